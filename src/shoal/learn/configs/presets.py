"""Presets: settings that are known to work for an env. Settings given by the user override them.

Those of PPO were chosen without a bound on the KL divergence, so all but CartPole's have none.
"""

from __future__ import annotations

from typing import Any

_ATARI: dict[str, Any] = {  # CleanRL's settings
    "num_envs": 8,
    "horizon": 128,
    "epochs": 4,
    "minibatch_size": 256,
    "learning_rate": 2.5e-4,
    "clip": 0.1,
    "entropy": 0.01,
    "hidden": (),
    "normalize_returns": False,
    "total_steps": 10_000_000,
    "target_kl": 0.0,
}

_PENDULUM: dict[str, Any] = {
    "total_steps": 300_000,
    "num_envs": 16,
    "horizon": 128,
    "minibatch_size": 256,
    "epochs": 10,
    "learning_rate": 2e-3,
    "gamma": 0.95,
    "target_kl": 0.0,
    "entropy": 0.0,
}

_PPO: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "num_envs": 16,
        "minibatch_size": 256,
        "learning_rate": 2.5e-3,
    },
    "shoal/CartPole-v1": {"num_envs": 64},
    "Pendulum-v1": _PENDULUM,
    "shoal/Pendulum-v1": _PENDULUM,
    "LunarLander-v3": {
        "total_steps": 1_000_000,
        "num_envs": 16,
        "horizon": 256,
        "minibatch_size": 256,
        "learning_rate": 3e-4,
        "gamma": 0.999,
        "gae_lambda": 0.98,
        "target_kl": 0.0,
        "entropy": 0.01,
        "epochs": 4,
    },
    "minigrid-doorkey-5x5": {
        "total_steps": 200_000,
        "num_envs": 16,
        "horizon": 128,
        "minibatch_size": 256,
        "learning_rate": 1e-3,
        "target_kl": 0.0,
        "entropy": 0.01,
        "epochs": 4,
        "normalize_returns": False,  # rewards are rare, so that the first few would become huge
    },
    "atari-*": _ATARI,
}


_CARTPOLE_DQN: dict[str, Any] = {
    "total_steps": 60_000,
    "hidden": (128, 128),
    "batch_size": 128,
    "learning_rate": 1e-3,
    "updates_per_step": 0.25,
    "n_step": 5,
    "target_rate": 0.01,
    "exploration": 0.3,
}

_DQN: dict[str, dict[str, Any]] = {
    "CartPole-v1": _CARTPOLE_DQN,
    "shoal/CartPole-v1": _CARTPOLE_DQN,
    "LunarLander-v3": {
        "total_steps": 300_000,
        "num_envs": 16,
        "warmup_steps": 5000,
        "updates_per_step": 0.25,
        "exploration": 0.15,
        "epsilon_end": 0.1,
    },
    "atari-*": {  # CleanRL's settings, with two heads
        "total_steps": 10_000_000,
        "hidden": (),
        "batch_size": 32,
        "learning_rate": 1e-4,
        "warmup_steps": 80_000,
        "updates_per_step": 0.25,
        "target_rate": 1.0,
        "target_every": 250,
        "epsilon_end": 0.01,
        "frame_stack": 4,
    },
}

_PENDULUM_SAC: dict[str, Any] = {
    "total_steps": 20_000,
    "num_envs": 4,
    "learning_rate": 1e-3,
    "updates_per_step": 0.5,
}

_SAC: dict[str, dict[str, Any]] = {
    "Pendulum-v1": _PENDULUM_SAC,
    "shoal/Pendulum-v1": _PENDULUM_SAC,
    # White noise never reaches the goal, and the weight of the entropy must not follow the first rewards.
    "MountainCarContinuous-v0": {
        "total_steps": 50_000,
        "hidden": (64, 64),
        "gamma": 0.999,
        "temperature": 0.1,
        "target_rate": 0.01,
        "noise": "red",
        "noise_steps": 999,
        "normalize_observations": False,
    },
}

PRESETS: dict[str, dict[str, dict[str, Any]]] = {"ppo": _PPO, "dqn": _DQN, "sac": _SAC}


def preset_for(env: str, algorithm: str = "ppo") -> tuple[str, dict[str, Any]]:
    """Return the name and the settings of an env's preset; an empty name and dict if there is none."""
    presets = PRESETS.get(algorithm, {})
    if env in presets:
        return env, presets[env]
    family = f"{env.partition('-')[0]}-*"
    return (family, presets[family]) if family in presets else ("", {})
