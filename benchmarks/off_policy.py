"""DQN and SAC: gradient steps beside Stable-Baselines3 and beside torch's limit; replay; scores.

    .venv/bin/python benchmarks/off_policy.py rate     # gradient steps a second, 2 x 256, batch 256
    .venv/bin/python benchmarks/off_policy.py replay   # what adding and sampling costs, and memory
    .venv/bin/python benchmarks/off_policy.py score --tasks pendulum-sac --seeds 5 [--sb3]

In "rate", all contestants take turns in one process, and ratios are between turns of the same round. The
limit is the time that torch takes for the arithmetic of one gradient step and for nothing else: products,
activations, losses, Adam and target network, with matrices as torch multiplies them fastest.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import gymnasium
import numpy as np
import torch

from shoal.batch import Batch
from shoal.learn import DQN, SAC, Actions, DQNConfig, Replay, SACConfig, evaluate
from shoal.learn.squashing import Squashed, squash, squash_gradient
from shoal.rows.layout import layout

BATCH, WIDTH, OBS, NUMBERS, ALTERNATIVES = 256, 256, 18, 4, 8
SLICE = 96  # gradient steps in a turn
LEARNERS: dict[str, tuple[Any, Any]] = {"dqn": (DQN, DQNConfig), "sac": (SAC, SACConfig)}


class Random(gymnasium.Env):
    """Observations and rewards of hockey's size, without a game."""

    def __init__(self, discrete: bool) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
        box = gymnasium.spaces.Box(-1, 1, (NUMBERS,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(ALTERNATIVES) if discrete else box
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self.np_random.standard_normal(OBS, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        reward = float(self.np_random.standard_normal())
        return self.np_random.standard_normal(OBS, np.float32), reward, False, self._steps >= 200, {}


# -- gradient steps ------------------------------------------------------------------------------------------


def shoal_steps(name: str) -> Callable[[int], None]:
    learner_class, config_class = LEARNERS[name]
    config = config_class(total_steps=3000, updates_per_step=0, backend="serial", torch_threads=1)
    learner = learner_class(lambda: Random(name == "dqn"), config)
    learner.train()

    def steps(count: int) -> None:
        learner.threads = learner.threads._replace(
            acting=torch.get_num_threads(), learning=torch.get_num_threads()
        )
        learner._learn(count, learner.steps)

    return steps


def sb3_steps(name: str) -> Callable[[int], None]:
    import stable_baselines3

    peer = {"dqn": stable_baselines3.DQN, "sac": stable_baselines3.SAC}[name](
        "MlpPolicy",
        Random(name == "dqn"),
        batch_size=BATCH,
        policy_kwargs={"net_arch": [WIDTH, WIDTH]},
        learning_starts=10**9,
        buffer_size=10_000,
        device="cpu",
    )
    peer.learn(3000)
    return lambda count: peer.train(gradient_steps=count, batch_size=BATCH)


def arithmetic(name: str) -> Callable[[int], None]:
    """Return a function that does the arithmetic of some gradient steps in torch's operations, and no more.

    Nothing is sampled or reported, and no operation uses the results of another network.
    """
    q = _Network(OBS, ALTERNATIVES + 1, 0)
    actor, critics = _Network(OBS, 2 * NUMBERS, 0), _Network(OBS + NUMBERS, 1, 2)
    learnt = [q.numel] if name == "dqn" else [actor.numel, critics.numel]
    optimizers = []
    for numel in learnt:
        vector = torch.nn.Parameter(torch.randn(numel))
        vector.grad = torch.randn(numel)
        optimizers.append((torch.optim.Adam([vector], 3e-4, fused=True), vector.grad))
    target, followed = torch.randn(learnt[-1]), torch.randn(learnt[-1])
    obs, column = torch.randn(BATCH, OBS), torch.randn(BATCH)
    values, places = torch.randn(BATCH, ALTERNATIVES), torch.randint(0, ALTERNATIVES, (BATCH, 1))
    outputs, actions, judged = (
        torch.randn(shape) for shape in ((2 * BATCH, 2 * NUMBERS), (BATCH, NUMBERS), (2, BATCH, 1))
    )
    temperature = torch.ones(())

    def dqn_step() -> None:
        torch.cat([obs, obs])
        q.forwards(2)  # the learning network on both observations
        q.forwards(1)  # the target on the next one
        found = torch.addcmul(column, column, values.gather(-1, values.argmax(-1, keepdim=True))[:, 0])
        errors = values.gather(-1, places) - found[:, None]
        torch.zeros_like(values).scatter_(-1, places, errors.clamp(-1, 1).div_(BATCH))
        q.backwards()

    def sac_step() -> None:
        torch.cat([obs, obs])
        actor.forwards(2)  # on both observations
        found = squash(outputs, torch.randn(2 * BATCH, NUMBERS))
        for _ in range(3):  # the targets, the critics, and the critics of the actor's actions
            torch.cat([obs, actions], -1)
            critics.forwards(1)
        wanted = torch.addcmul(column, column, judged.amin(0)[:, 0] - temperature * column)
        (judged[..., 0] - wanted).div_(BATCH)
        critics.backwards()
        torch.zeros_like(judged).scatter_(0, judged.argmin(0, keepdim=True), -1 / BATCH)
        critics.inwards()
        own = Squashed(*(part[:BATCH] for part in found))
        squash_gradient(outputs[:BATCH], own, actions, temperature / BATCH)
        actor.backwards()

    def steps(count: int) -> None:
        with torch.no_grad():
            for _ in range(count):
                dqn_step() if name == "dqn" else sac_step()
                for optimizer, gradient in optimizers:
                    torch.linalg.vector_norm(gradient)
                    optimizer.step()
                target.lerp_(followed, 0.005)

    return steps


class _Network:
    """The operations of two layers of `WIDTH` units and outputs, for one network or several of one form."""

    def __init__(self, inputs: int, outputs: int, copies: int) -> None:
        lead = (copies,) if copies else ()
        self._multiply, self._add = (torch.bmm, torch.baddbmm) if copies else (torch.mm, torch.addmm)
        shapes = (inputs, WIDTH), (WIDTH, WIDTH), (outputs, WIDTH)
        self._first, self._hidden, self._last = (torch.randn(*lead, *shape) for shape in shapes)
        self._biases = [
            torch.randn(*(copies, 1) if copies else (), width) for width in (WIDTH, WIDTH, outputs)
        ]
        self._rows = {times: torch.randn(*lead, times * BATCH, inputs) for times in (1, 2)}
        self._slopes = torch.randn(*lead, BATCH, outputs)
        self._one, self._two = (torch.randn(*lead, BATCH, WIDTH) for _ in range(2))
        self.numel = (copies or 1) * (inputs * WIDTH + WIDTH * WIDTH + outputs * WIDTH + 2 * WIDTH + outputs)

    def forwards(self, times: int) -> None:
        one = torch.relu_(self._add(self._biases[0], self._rows[times], self._first))
        two = torch.relu_(self._add(self._biases[1], one, self._hidden))
        self._add(self._biases[2], two, self._last.mT)

    def inwards(self) -> None:
        passed = self._bend(self._multiply(self._slopes, self._last))
        self._multiply(self._bend(self._multiply(passed, self._hidden.mT)), self._first.mT)

    def backwards(self) -> None:
        self._multiply(self._slopes.mT, self._two)
        passed = self._bend(self._multiply(self._slopes, self._last))
        self._multiply(self._one.mT, passed)
        gradient = self._bend(self._multiply(passed, self._hidden.mT))
        self._multiply(self._rows[1].mT, gradient)
        for one in (self._slopes, passed, gradient):
            one.sum(-2)

    def _bend(self, gradient: torch.Tensor) -> torch.Tensor:
        """Multiply by the derivative of the activation function."""
        return torch.ops.aten.threshold_backward.grad_input(gradient, self._one, 0, grad_input=gradient)


def rate(rounds: int, threads: list[int]) -> None:
    for name in LEARNERS:
        contestants = {"shoal": shoal_steps(name), "sb3": sb3_steps(name), "limit": arithmetic(name)}
        found: dict[tuple[str, int], list[float]] = {}
        for count in threads:
            torch.set_num_threads(count)
            for steps in contestants.values():
                steps(20)
        for turn in range(rounds):
            for count in threads:
                torch.set_num_threads(count)
                for contestant, steps in [*contestants.items()][:: 1 if turn % 2 else -1]:
                    steps(10)
                    begun = time.perf_counter()
                    steps(SLICE)
                    taken = time.perf_counter() - begun
                    found.setdefault((contestant, count), []).append(SLICE / taken)
        best = {who: max(threads, key=lambda count: median(found[who, count])) for who in contestants}
        for who in contestants:
            each = ", ".join(f"{median(found[who, count]):,.0f} on {count}" for count in threads)
            print(f"{name} {who:6} {each} threads", flush=True)
        ours = found["shoal", best["shoal"]]
        for who in ("sb3", "limit"):
            ratios = sorted(a / b for a, b in zip(ours, found[who, best[who]], strict=True))
            low, high = ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]
            print(f"{name} shoal / {who}: {median(ratios):.2f} ({low:.2f} to {high:.2f})", flush=True)


# -- replay --------------------------------------------------------------------------------------------------


def replay(rounds: int) -> None:
    stack = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    actions = Actions(gymnasium.spaces.Discrete(6))
    ring = Replay(100_000, BATCH, layout(stack), actions, frame_stack=4)
    frames = np.random.default_rng(0).integers(0, 256, (BATCH, 24, 84, 84), np.uint8)
    seen = [np.ascontiguousarray(frames[:, at : at + 4]) for at in range(20)]

    def add(step: int) -> None:
        at = step % 20
        nothing = np.zeros(BATCH, np.bool_)
        begins = np.full(BATCH, at == 0)
        batch = Batch(
            seen[at],
            np.ones(BATCH),
            np.full(BATCH, at == 19),
            nothing,
            ~np.full(BATCH, at == 19),
            begins,
            np.arange(BATCH),
            np.zeros(BATCH, np.int64),
            {},
        )
        ring.add(batch, np.zeros((BATCH, 1), np.int64))

    for step in range(40):
        add(step)
    with DQN(
        lambda: _Frames(stack),
        DQNConfig(hidden=(512,), replay_size=2000, total_steps=1000, updates_per_step=0),
    ) as dqn:
        dqn.train()
        adding, sampling, learning = [], [], []
        for step in range(40, 40 + rounds * 20):
            begun = time.perf_counter()
            add(step)
            added = time.perf_counter()
            ring.sample(BATCH, gamma=0.99)
            adding.append(added - begun)
            sampling.append(time.perf_counter() - added)
        for _ in range(rounds):
            begun = time.perf_counter()
            dqn._learn(1, dqn.steps)
            learning.append(time.perf_counter() - begun)
    both, update = median(adding) + median(sampling), median(learning)
    print(f"adding {BATCH} rows of 84x84x4: {1e3 * median(adding):.2f} ms")
    print(f"sampling {BATCH} of them with their successors: {1e3 * median(sampling):.2f} ms")
    print(f"a gradient step of DQN with {BATCH} of them: {1e3 * update:.0f} ms")
    print(f"adding and sampling together are {both / update:.1%} of it")
    for name, space, choices, frame_stack in (
        ("hockey", gymnasium.spaces.Box(-1, 1, (OBS,), np.float32), gymnasium.spaces.Box(-1, 1, (4,)), 0),
        ("Atari", stack, gymnasium.spaces.Discrete(6), 4),
    ):
        made = Replay(10**6, 8, layout(space), Actions(choices), frame_stack=frame_stack)
        print(f"a million transitions of {name}: {made.nbytes / 1e6:,.0f} MB")


class _Frames(gymnasium.Env):
    def __init__(self, space: gymnasium.spaces.Box) -> None:
        self.observation_space, self.action_space = space, gymnasium.spaces.Discrete(6)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}


# -- scores --------------------------------------------------------------------------------------------------

TASKS: dict[str, tuple[str, str, int, dict[str, Any]]] = {  # learner, env, steps, SB3's settings (rl-zoo)
    "cartpole-dqn": ("dqn", "CartPole-v1", 60_000, {}),
    "lunarlander-dqn": (
        "dqn",
        "LunarLander-v3",
        300_000,
        {
            "learning_rate": 6.3e-4,
            "batch_size": 128,
            "buffer_size": 50_000,
            "learning_starts": 0,
            "target_update_interval": 250,
            "train_freq": 4,
            "gradient_steps": -1,
            "exploration_fraction": 0.12,
            "exploration_final_eps": 0.1,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
    ),
    "pendulum-sac": ("sac", "Pendulum-v1", 20_000, {"learning_rate": 1e-3}),
    "mountaincar-sac": ("sac", "MountainCarContinuous-v0", 50_000, {}),
}


def score(names: list[str], seeds: list[int], sb3: bool) -> None:
    for name in names:
        algorithm, env, steps, peer_settings = TASKS[name]
        learner_class, config_class = LEARNERS[algorithm]
        results: dict[str, list[tuple[float, float]]] = {"shoal": []} | ({"sb3": []} if sb3 else {})
        for seed in seeds:
            with learner_class(env, config_class.for_env(env, total_steps=steps, seed=seed)) as learner:
                result = learner.train()
            mean = evaluate(learner.policy, env, 100, seed=1000 + seed).mean_return
            results["shoal"].append((mean, result.seconds))
            print(f"  {name} seed {seed}: {mean:.1f} in {result.seconds:.0f} s", flush=True)
            if sb3:
                results["sb3"].append(_sb3_score(algorithm, env, steps, peer_settings, seed))
                print(f"  sb3 seed {seed}: {results['sb3'][-1]}", flush=True)
        for who, found in results.items():
            means = sorted(mean for mean, _ in found)
            print(
                f"{name} {who}: median {median(means):.1f} ({means[0]:.1f} to {means[-1]:.1f}) "
                f"after {steps:,} steps in {median(seconds for _, seconds in found):.0f} s",
                flush=True,
            )


def _sb3_score(
    algorithm: str, env: str, steps: int, settings: dict[str, Any], seed: int
) -> tuple[float, float]:
    import stable_baselines3
    from stable_baselines3.common.evaluation import evaluate_policy

    peer_class = {"dqn": stable_baselines3.DQN, "sac": stable_baselines3.SAC}[algorithm]
    peer = peer_class("MlpPolicy", env, seed=seed, device="cpu", **settings)
    begun = time.perf_counter()
    peer.learn(steps)
    seconds = time.perf_counter() - begun
    made = gymnasium.make(env)
    made.reset(seed=1000 + seed)
    return float(evaluate_policy(peer, made, 100, warn=False)[0]), seconds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["rate", "replay", "score"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--sb3", action="store_true", help="train Stable-Baselines3 on the same tasks too")
    given = parser.parse_args()
    if given.what == "rate":
        rate(given.rounds, given.threads)
    elif given.what == "replay":
        replay(given.rounds)
    else:
        score(given.tasks, given.seeds, given.sb3)
    sys.exit(0)
