"""How well default settings do on envs that nobody tuned them for, beside the defaults of other libraries.

old       PPOConfig as it was: no bound on the KL divergence
kl-0.02   the same with target_kl=0.02, and kl-0.05 with 0.05: the two bounds that were compared
new       PPOConfig() as it is
sb3       Stable-Baselines3's PPO with its defaults
cleanrl   Stable-Baselines3's PPO with the defaults of CleanRL's ppo.py or, for continuous actions, those of
          ppo_continuous_action.py with its normalisation

All learn from the same number of steps, then play 20 episodes with the likeliest actions. Ant is given mixed
actions, choices for the hips and quantities for the ankles: only Shoal's PPO can learn those.

.venv/bin/python benchmarks/defaults.py
.venv/bin/python benchmarks/defaults.py --envs Acrobot-v1 --who old new --seeds 1 2 3 4 5
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from shoal.learn import PPO, PPOConfig, Update, evaluate

EPISODES = 20
OURS: dict[str, dict[str, Any]] = {
    "old": {"target_kl": 0.0},
    "kl-0.02": {"target_kl": 0.02},
    "kl-0.05": {"target_kl": 0.05},
    "new": {},
}
WHO = [*OURS, "sb3", "cleanrl"]


class MixedAnt(gymnasium.ActionWrapper):
    """Ant whose hips have five levels of torque to choose from; its ankles have any torque."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("Ant-v5"))
        self.action_space = Dict({"hips": MultiDiscrete([5] * 4), "ankles": Box(-1, 1, (4,))})

    def action(self, action: Any) -> Any:
        torques = np.empty(8, np.float32)  # hip and ankle of each leg in turn
        torques[::2], torques[1::2] = np.asarray(action["hips"]) / 2 - 1, action["ankles"]
        return torques


ENVS: dict[str, Any] = {
    name: name for name in ("Acrobot-v1", "BipedalWalker-v3", "Hopper-v5", "HalfCheetah-v5")
} | {"mixed Ant-v5": MixedAnt}

# vf_coef: CleanRL's 0.5 is for half the squared error.
CLEANRL = {
    "batch_size": 64,
    "n_epochs": 10,
    "ent_coef": 0.0,
    "vf_coef": 0.25,
    "clip_range_vf": 0.2,
    "learning_rate": lambda left: left * 3e-4,
}
CLEANRL_DISCRETE = CLEANRL | {
    "n_steps": 128,
    "batch_size": 128,
    "n_epochs": 4,
    "ent_coef": 0.01,
    "learning_rate": lambda left: left * 2.5e-4,
}


def ours(env: Any, steps: int, seed: int, settings: dict[str, Any]) -> tuple[float, str]:
    """Train with PPO; return the mean return, and a note on KL divergence and clip fraction."""
    updates: list[Update] = []
    with PPO(env, PPOConfig(total_steps=steps, seed=seed, **settings)) as ppo:
        ppo.train(updates.append)
    moved, clipped = ([update.losses[name] for update in updates] for name in ("approx_kl", "clip_fraction"))
    note = f"KL {np.median(moved):.3f} (most {max(moved):.3f}), clipped {np.median(clipped):.2f}"
    return evaluate(ppo.policy, env, EPISODES, seed=1000 + seed).mean_return, note


def theirs(env: str, steps: int, seed: int, *, cleanrl: bool) -> tuple[float, str]:
    """Train with Stable-Baselines3; return the mean return, and an empty note."""
    with contextlib.redirect_stderr(io.StringIO()):
        import stable_baselines3
        from stable_baselines3.common.env_util import make_vec_env
        from stable_baselines3.common.evaluation import evaluate_policy
        from stable_baselines3.common.vec_env import VecNormalize
    torch.set_num_threads(1)
    spec = gymnasium.make(env)
    discrete = isinstance(spec.action_space, Discrete)
    spec.close()
    settings: dict[str, Any] = (CLEANRL_DISCRETE if discrete else CLEANRL) if cleanrl else {}
    vec: Any = make_vec_env(env, 4 if cleanrl and discrete else 1, seed=seed)
    playing: Any = make_vec_env(env, 10, seed=1000 + seed)
    if cleanrl and not discrete:
        vec, playing = VecNormalize(vec), VecNormalize(playing, training=False, norm_reward=False)
    model = stable_baselines3.PPO("MlpPolicy", vec, seed=seed, device="cpu", **settings)
    model.learn(steps)
    if isinstance(vec, VecNormalize):
        playing.obs_rms = vec.obs_rms
    return float(evaluate_policy(model, playing, EPISODES, deterministic=True, warn=False)[0]), ""


def train(who: str, env: Any, steps: int, seed: int) -> tuple[float, str]:
    if who in OURS:
        return ours(env, steps, seed, OURS[who])
    return theirs(env, steps, seed, cleanrl=who == "cleanrl")


def median(values: list[float]) -> str:
    middle, low, high = (f"{each(values):,.0f}" for each in (statistics.median, min, max))
    return f"{middle} ({low} to {high})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--envs", nargs="+", choices=list(ENVS), default=list(ENVS))
    parser.add_argument("--who", nargs="+", choices=WHO, default=WHO)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    given = parser.parse_args()
    found: dict[tuple[str, str], list[float]] = {}
    for seed in given.seeds:
        for name in given.envs:
            for who in given.who:
                if who in OURS or isinstance(ENVS[name], str):
                    score, note = train(who, ENVS[name], given.steps, seed)
                    found.setdefault((name, who), []).append(score)
                    print(f"{name}, {who}, seed {seed}: {score:,.1f}  {note}", flush=True)
    print(f"\n| env | {' | '.join(given.who)} |\n|{'---|' * (1 + len(given.who))}")
    for name in given.envs:
        cells = [median(found[name, who]) if (name, who) in found else "-" for who in given.who]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
