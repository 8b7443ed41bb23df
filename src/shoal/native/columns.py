"""Columns: the memory that a kernel works on. Rows lie in the arena; state, streams and parameters do not."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.native.rng import fresh_keys
from shoal.native.spec import Spec, row_dtype
from shoal.rows.arena import Arena

ORDER = (
    "states", "bytes_of_states", "rngs", "parameters", "elapsed", "actions", "observations",
    "bytes_of_observations", "finals", "rewards", "terminations", "truncations", "mask", "resets", "starts",
    "returns", "lengths", "acting", "finished", "chosen", "keys", "seeded", "infos", "bytes_of_infos",
    "workspaces",
)  # fmt: skip
"""The order in which the bodies of kernels take the columns."""


def kinds(spec: Spec) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Return the dtype and shape of one env's entry in each column."""
    agents = (spec.agents,) if spec.is_team else ()
    observation, seen = row_dtype(spec.observation)
    action, acted = row_dtype(spec.action)
    if not spec.is_team and not seen and not observation.names:
        seen = (1,)  # an array of one entry, so that the env can write it
    whole, flag, real = np.dtype(np.int64), np.dtype(np.bool_), np.dtype(np.float64)
    byte, word = np.dtype(np.uint8), np.dtype(np.uint64)
    raw = (byte, (*agents, spec.observation.nbytes))
    return {
        "states": (spec.state, ()),
        "bytes_of_states": (byte, (spec.state.itemsize,)),
        "rngs": (word, (2,)),
        "parameters": (byte, (max(1, spec.parameter_dtype.itemsize),)),
        "elapsed": (whole, ()),
        "actions": (action, (*agents, *acted)),
        "observations": (observation, (*agents, *seen)),
        "bytes_of_observations": raw,
        "finals": raw,
        "rewards": (real, agents),
        **dict.fromkeys(
            ("terminations", "truncations", "mask", "resets", "starts", "acting", "finished"), (flag, agents)
        ),
        "returns": (real, agents),
        "lengths": (whole, agents),
        "chosen": (flag, ()),
        "keys": (word, ()),
        "seeded": (flag, ()),
        "infos": (spec.infos if spec.infos.names else np.dtype([("nothing", np.uint8)]), agents),
        "bytes_of_infos": (byte, (*agents, spec.infos.itemsize)),
        # A kernel uses only the workspace of its first env, so that threads do not share one. The others are
        # never touched, and so take no memory.
        "workspaces": (spec.workspace, ()),
    }


class Columns:
    """The columns of a vec, as arrays.

    Args:
        spec: The spec of the envs.
        arena: The rows of the vec.
        num_envs: The number of envs.
        finals: Whether the last observations of episodes are kept.

    Attributes:
        arrays: The columns by name. Each has one entry per env.
        parameters: The parameters, with one record for each env.
        addresses: The addresses of all columns, in `ORDER`.
    """

    def __init__(self, spec: Spec, arena: Arena, num_envs: int, *, finals: bool) -> None:
        self.parameters = np.zeros(num_envs, spec.parameter_dtype)
        for name, value in spec.parameters.items():
            self.parameters[name] = value
        states = np.zeros(num_envs, spec.state)
        rngs = np.zeros((num_envs, 2), np.uint64)
        rngs[:, 0] = fresh_keys(num_envs)
        raw = arena.observations
        infos = np.zeros((len(arena), max(1, spec.infos.itemsize)), np.uint8)
        own: dict[str, Any] = {
            "states": states,
            "bytes_of_states": states.view(np.uint8),
            "rngs": rngs,
            "parameters": self.parameters.view(np.uint8) if spec.parameters else np.zeros(num_envs, np.uint8),
            "elapsed": np.zeros(num_envs, np.int64),
            "actions": arena.actions,
            "observations": raw,
            "bytes_of_observations": raw,
            "finals": np.zeros_like(raw) if finals else raw,
            "rewards": arena.rewards,
            "terminations": arena.terminations,
            "truncations": arena.truncations,
            "mask": arena.mask,
            "resets": arena.resets,
            "starts": arena.starts,
            "returns": arena.episode_returns,
            "lengths": arena.episode_lengths,
            "acting": np.zeros(len(arena), np.bool_),
            "finished": np.zeros(len(arena), np.bool_),  # agents that have ended in this episode
            "chosen": np.zeros(num_envs, np.bool_),
            "keys": np.zeros(num_envs, np.uint64),
            "seeded": np.zeros(num_envs, np.bool_),
            "infos": infos,
            "bytes_of_infos": infos,
            "workspaces": np.zeros(num_envs, spec.workspace),
        }
        self.arrays: dict[str, NDArray[Any]] = {}
        for name, (dtype, shape) in kinds(spec).items():
            array = own[name]
            self.arrays[name] = np.ndarray((num_envs, *shape), dtype, array.data if array.size else None)
        self.addresses = np.array([self.arrays[name].ctypes.data for name in ORDER], np.uint64)
