"""How fast and how well PPO learns, beside Stable-Baselines3 and beside what torch itself can do.

rate      sample passes/s (steps x epochs) on the compiled CartPole, MLP and LSTM, and torch's own limit
zoo       steps/s with the RL zoo's settings on Python's CartPole, beside Stable-Baselines3
solve     seconds to a mean return of 475 over the last 20 episodes, beside Stable-Baselines3
watch     the share of the time that the run's folder and the panel take, with the compiled CartPole
score     mean returns after a number of steps, of CartPole and others (--envs)
atari     steps/s of training on Pong with CleanRL's settings, beside its own script if you have it

.venv/bin/python benchmarks/learning.py rate zoo solve
.venv/bin/python benchmarks/learning.py score --envs cartpole pendulum --seeds 5
.venv/bin/python benchmarks/learning.py atari --cleanrl path/to/cleanrl/ppo_atari.py --seeds 3
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from shoal.learn import PPO, PPOConfig, evaluate
from shoal.learn.configs.presets import preset_for

COMPILED = "shoal/CartPole-v1"
ZOO = {"num_envs": 8, "horizon": 32, "minibatch_size": 256, "epochs": 20, "gamma": 0.98, "gae_lambda": 0.8}
RATE = {"num_envs": 1024, "horizon": 32, "epochs": 4, "minibatch_size": 8192}
QUICKEST = {"num_envs": 64, "total_steps": 300_000}
SOLVED = 475


def median(values: list[float], digits: int = 1) -> str:
    middle, low, high = (f"{each(values):,.{digits}f}" for each in (statistics.median, min, max))
    return f"{middle} ({low} to {high})"


# -- rate ----------------------------------------------------------------------------------------------------


def passes(threads: int | None, settings: dict[str, Any], *, lstm: bool = False) -> float:
    """Measure sample passes per second, rollouts included. No update ends early, so that passes are known."""
    config = PPOConfig(total_steps=400_000, lstm=lstm, torch_threads=threads, target_kl=0.0, **settings)
    rates: list[float] = []
    with PPO(COMPILED, config) as ppo:
        ppo.train(lambda update: rates.append(update.steps_per_second))
    return statistics.median(rates[2:]) * config.epochs


def limit(threads: int, minibatch_size: int) -> float:
    """Measure the same passes in bare torch: one network, one repeated minibatch, PPO's loss, clip, Adam."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
    adam = torch.optim.Adam(net.parameters(), 1e-3, fused=True)
    obs, taken = torch.randn(minibatch_size, 4), torch.randint(0, 2, (minibatch_size, 1))
    old, advantages, returns = torch.randn(3, minibatch_size)
    turns, warm_up = 400_000 // minibatch_size, 8
    begun = 0.0
    for turn in range(turns + warm_up):
        begun = time.perf_counter() if turn == warm_up else begun
        outputs = net(obs)
        chances = outputs[:, :2].log_softmax(-1)
        ratios = (chances.gather(1, taken)[:, 0] - old).exp()
        clipped = torch.minimum(advantages * ratios, advantages * ratios.clamp(0.8, 1.2))
        entropy = -(chances.exp() * chances).sum(-1).mean()
        loss = 0.5 * ((outputs[:, 2] - returns) ** 2).mean() - clipped.mean() - 0.01 * entropy
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        adam.step()
    rate = turns * minibatch_size / (time.perf_counter() - begun)
    torch.set_num_threads(before)
    return rate


def rate(rounds: int) -> None:
    for threads in (1, 2):
        found: dict[str, list[float]] = {name: [] for name in ("MLP", "torch's own limit", "LSTM")}
        for _ in range(rounds):
            found["MLP"].append(passes(threads, RATE))
            found["torch's own limit"].append(limit(threads, RATE["minibatch_size"]))
            # By default an LSTM uses all cores and torch one: torch's waiting threads would slow it down.
            found["LSTM"].append(passes(1 if threads == 1 else None, RATE, lstm=True))
        for name, values in found.items():
            print(f"{threads} torch threads, {name}: {median([value / 1000 for value in values])} k passes/s")
        for name, one, other in (("MLP / limit", "MLP", "torch's own limit"), ("LSTM / MLP", "LSTM", "MLP")):
            ratios = [a / b for a, b in zip(found[one], found[other], strict=True)]
            print(f"{threads} torch threads, {name}: {median(ratios, digits=2)}")
    pairs = [(passes(None, {}), passes(None, {}, lstm=True)) for _ in range(rounds)]
    print(f"default settings, MLP: {median([mlp / 1000 for mlp, _ in pairs])} k passes/s")
    ratios = [lstm / mlp for mlp, lstm in pairs]
    print(f"default settings, LSTM / MLP: {median(ratios, digits=2)}")


# -- beside Stable-Baselines3 --------------------------------------------------------------------------------


def sb3(steps: int, seed: int, callback: Any = None) -> float:
    """Train with the RL zoo's settings; return the seconds."""
    with contextlib.redirect_stderr(io.StringIO()):
        import stable_baselines3
        from stable_baselines3.common.env_util import make_vec_env
    torch.set_num_threads(1)
    model = stable_baselines3.PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", 8, seed=seed),
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gamma=0.98,
        gae_lambda=0.8,
        ent_coef=0.0,
        learning_rate=lambda left: left * 1e-3,
        clip_range=lambda left: left * 0.2,
        seed=seed,
        device="cpu",
    )
    begun = time.perf_counter()
    model.learn(steps, callback=callback)
    return time.perf_counter() - begun


def zoo(rounds: int) -> None:
    ours, theirs, ratios = [], [], []
    for round_ in range(rounds):
        theirs.append(20_480 / sb3(20_480, round_))
        config = PPOConfig(
            total_steps=20_480,
            backend="serial",  # as SB3's
            learning_rate=1e-3,
            entropy=0.0,
            target_kl=0.0,
            normalize_observations=False,
            normalize_returns=False,
            **ZOO,
        )
        with PPO("CartPole-v1", config) as ppo:
            result = ppo.train()
        ours.append(result.steps / result.seconds)
        ratios.append(ours[-1] / theirs[-1])
    print(f"zoo settings, Python's CartPole: shoal {median(ours)} steps/s")
    print(f"zoo settings, Python's CartPole: Stable-Baselines3 {median(theirs)} steps/s")
    print(f"zoo settings: shoal is {median(ratios)} times as fast")


def seconds_to_solve(seed: int) -> tuple[float, int]:
    """Train until solved; return the seconds and the steps."""
    with PPO(COMPILED, PPOConfig(seed=seed, **QUICKEST)) as ppo:

        def stop(update: Any) -> None:
            if update.episodes >= 20 and ppo.episodes.mean_return(20) >= SOLVED:
                ppo.stop()

        begun = time.perf_counter()
        result = ppo.train(stop)
    return time.perf_counter() - begun if result.stopped else float("inf"), result.steps


def sb3_seconds_to_solve(seed: int) -> float:
    returns: list[float] = []

    def watch(values: dict[str, Any], _: dict[str, Any]) -> bool:
        returns.extend(info["episode"]["r"] for info in values["infos"] if "episode" in info)
        return len(returns) < 20 or float(np.mean(returns[-20:])) < SOLVED

    return sb3(100_000, seed, watch)


def solve(rounds: int) -> None:
    ours, steps, theirs = [], [], []
    for seed in range(1, rounds + 1):
        took, needed = seconds_to_solve(seed)
        ours.append(took)
        steps.append(float(needed))
        theirs.append(sb3_seconds_to_solve(seed))
    print(f"to a mean return of {SOLVED}: shoal {median(ours)} s, {median(steps)} steps")
    print(f"to a mean return of {SOLVED}: Stable-Baselines3 {median(theirs)} s")
    print(f"share of its time: {statistics.median(ours) / statistics.median(theirs):.2f}")


# -- what watching costs -------------------------------------------------------------------------------------


def watch(rounds: int) -> None:
    from rich.console import Console

    from shoal.cli._panel import Panel
    from shoal.learn import Run

    shares = []
    for seed in range(1, rounds + 1):
        spent = [0.0]
        terminal = Console(file=io.StringIO(), force_terminal=True, width=100, height=40)
        with (
            tempfile.TemporaryDirectory() as folder,
            PPO(COMPILED, PPOConfig.for_env(COMPILED, total_steps=400_000, seed=seed)) as ppo,
            Run(folder, ppo, COMPILED) as run,
            Panel("a benchmark", terminal) as panel,
        ):

            def told(update: Any, run: Any = run, panel: Any = panel, spent: list[float] = spent) -> None:
                begun = time.perf_counter()
                run(update)
                panel(update)
                spent[0] += time.perf_counter() - begun

            begun = time.perf_counter()
            ppo.train(told)
            shares.append(100 * spent[0] / (time.perf_counter() - begun))
    print(f"logging and panel: {median(shares)} % of the time")


# -- score ---------------------------------------------------------------------------------------------------


class NoVelocities(gymnasium.ObservationWrapper):
    """CartPole without velocities: an observation has only the positions of cart and pole."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        low, high = self.env.observation_space.low[::2], self.env.observation_space.high[::2]
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=np.float32)

    def observation(self, observation: Any) -> Any:
        return observation[::2]


VELOCITIES = {"num_envs": 32, "horizon": 64, "minibatch_size": 512, "total_steps": 100_000}
TASKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "cartpole": ("CartPole-v1", {"total_steps": 100_000}),
    "compiled": (COMPILED, {"total_steps": 100_000}),
    "no-velocities": (NoVelocities, {**VELOCITIES, "lstm": True}),
    "no-velocities-mlp": (NoVelocities, VELOCITIES),
    "pendulum": ("Pendulum-v1", {}),
    "doorkey": ("minigrid-doorkey-5x5", {}),
    "lunarlander": ("LunarLander-v3", {}),
    "pong": ("atari-pong", {"total_steps": 1_000_000, "learning_rate": 5e-4}),
}


def score(names: list[str], seeds: int) -> None:
    for name in names:
        env, settings = TASKS[name]
        preset = preset_for(env)[1] if isinstance(env, str) else {}
        found, seconds = [], []
        for seed in range(1, seeds + 1):
            with PPO(env, PPOConfig(**{**preset, **settings, "seed": seed})) as ppo:
                result = ppo.train()
            found.append(evaluate(ppo.policy, env, 100, seed=1000 + seed).mean_return)
            seconds.append(result.seconds)
        each = ", ".join(f"{value:.2f}" for value in found)
        steps = ppo.config.total_steps
        print(
            f"{name}: {median(found)} after {steps:,} steps in {median(seconds)} s; each {each}", flush=True
        )


# -- Atari ---------------------------------------------------------------------------------------------------


def atari_rate(steps: int) -> float:
    """Measure steps per second from the first reset on, as CleanRL's script does."""
    with PPO("atari-pong", PPOConfig.for_env("atari-pong", total_steps=steps)) as ppo:
        begun = time.perf_counter()
        return ppo.train().steps / (time.perf_counter() - begun)


def cleanrl_rate(script: str, steps: int) -> float:
    """Run CleanRL's script; return the last rate that it prints, which is over all steps."""
    command = [sys.executable, script, "--env-id", "PongNoFrameskip-v4", "--total-timesteps", str(steps)]
    done = subprocess.run([*command, "--no-cuda"], capture_output=True, text=True, check=True)
    return float(re.findall(r"SPS: (\d+)", done.stdout)[-1])


def atari(rounds: int, script: str, steps: int = 10_240) -> None:
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(atari_rate(steps))
        if script:
            theirs.append(cleanrl_rate(script, steps))
    print(f"Pong: shoal {median(ours)} steps/s")
    if theirs:
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        print(f"Pong: CleanRL {median(theirs)} steps/s; shoal is {median(ratios)} times as fast")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="+", choices=["rate", "zoo", "solve", "watch", "score", "atari"])
    parser.add_argument("--envs", nargs="+", choices=list(TASKS), default=["compiled"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--cleanrl", default="", metavar="FILE", help="its ppo_atari.py")
    given = parser.parse_args()
    for what in given.what:
        if what == "score":
            score(given.envs, given.seeds)
        elif what == "atari":
            atari(given.seeds, given.cleanrl)
        else:
            partial({"rate": rate, "zoo": zoo, "solve": solve, "watch": watch}[what], given.seeds)()
