"""The agent of a configuration file as a learner of `shoal.learn`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.hockey.actions import mirror_actions, mirror_observations, mirrored_places
from shoal.hockey.evaluation import LONGEST_GAME
from shoal.hockey.training.config import NOISES, Agent, Config, actions_of
from shoal.learn import DQNConfig, SACConfig
from shoal.learn.configs.replay import ReplayConfig
from shoal.learn.replay import Transitions

CONFIGS: dict[str, type[ReplayConfig]] = {"DDDQN": DQNConfig, "SAC": SACConfig}


def learner_config(config: Config, num_envs: int, device: str, seed: int) -> ReplayConfig:
    """Return the settings of the learner that a configuration file describes.

    Raises:
        ArgumentError: If they do not fit together.
    """
    own, training = config.agent.hyperparameters, config.training
    found: dict[str, Any] = {
        "num_envs": num_envs,
        "device": device,
        "seed": seed,
        "backend": "native",
        "total_steps": LONGEST_GAME * (config.episodes + num_envs),  # more than there will be
        "learning_rate": config.learning_rate,
        "batch_size": config.batch_size,
        "warmup_steps": training.warmup_steps,
        "updates_per_step": training.updates_per_step / training.train_freq,
        "gamma": own.get("gamma", own.get("discount", 0.99)),
        "replay_size": own.get("buffer_max_size", 1_000_000),
        **{name: own[name] for name in ("n_step", "prioritized", "normalize_observations") if name in own},
    }
    if "hidden_dim" in own:
        found["hidden"] = tuple(own["hidden_dim"])
    found |= _dddqn(own) if config.agent.type == "DDDQN" else _sac(own)
    if "max_grad_norm" in own:
        found["max_grad_norm"] = own["max_grad_norm"]
    return CONFIGS[config.agent.type].of(found)


def _dddqn(own: Any) -> dict[str, Any]:
    found = {
        "max_grad_norm": 1.0,
        "epsilon_start": own.get("eps", 1.0),
        "epsilon_end": own.get("eps_min", 0.01),
        "epsilon_decay": own.get("eps_decay", 0.9995),
        "loss": "huber" if own.get("use_huber_loss", False) else "squared",
        "action_table": actions_of(own),
        "target_rate": own.get("tau", 1.0),
        "target_every": own.get("target_update_freq", 1 if "tau" in own else 50),
    }
    return found | {name: own[name] for name in ("double", "dueling") if name in own}


def _sac(own: Any) -> dict[str, Any]:
    found = {
        "noise": NOISES[own.get("noise", "normal")],
        "noise_steps": LONGEST_GAME,
        "target_rate": own.get("tau", 0.005),
    }
    if not own.get("learn_alpha", True):
        found["temperature"] = own.get("alpha", 0.2)
    if "target_entropy" in own:
        found["target_entropy"] = own["target_entropy"]
    return found


def augmentation_of(agent: Agent) -> Callable[[Transitions], Transitions] | None:
    """Return the function that changes sampled transitions; None if they stay as they are."""
    if not agent.hyperparameters.get("mirror", False):
        return None
    if agent.type == "SAC":
        return lambda sampled: mirrored(sampled, _mirror_numbers)
    places = torch.from_numpy(mirrored_places(actions_of(agent.hyperparameters)))
    return lambda sampled: mirrored(sampled, lambda actions: places[actions])


def mirrored(sampled: Transitions, mirror: Callable[[Tensor], Tensor]) -> Transitions:
    """Mirror every second transition: y, angles and their velocities change sign."""
    found: dict[str, Any] = {"obs": sampled.obs, "next_obs": sampled.next_obs, "actions": sampled.actions}
    for name, values in found.items():
        change = mirror if name == "actions" else _mirror_observations
        found[name] = values.clone()
        found[name][::2] = change(values[::2])
    return sampled._replace(**found)


def _mirror_observations(values: Tensor) -> Tensor:
    return torch.from_numpy(mirror_observations(np.asarray(values)))


def _mirror_numbers(values: Tensor) -> Tensor:
    return torch.from_numpy(mirror_actions(np.asarray(values)))
