"""Run two vecs, or a vec and the oracle, side by side: they must return the same values."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray

from shoal.testing.by_hand import ByHand, Moment
from shoal.testing.contract import require_equal


def follow(vec: Any, oracle: ByHand, steps: int, where: str, *, reset: bool = True) -> None:
    """Step a vec and the oracle with the same actions and compare all returned values."""
    count = oracle.count
    vec.action_space.seed(11)
    if reset:
        moment = oracle.reset([21 + i for i in range(count)], [True] * count, None)
        obs, infos = vec.reset(seed=21)
        require_equal(obs, moment.obs, f"{where}: reset, observations")
        require_equal(infos, moment.infos, f"{where}: reset, infos")
    for number in range(steps):
        if oracle.mode is AutoresetMode.DISABLED and any(oracle.finished):
            chosen = np.array(oracle.finished)
            moment = oracle.reset([None] * count, chosen.tolist(), {})
            obs, infos = vec.reset(options={"reset_mask": chosen})
            require_equal(obs, moment.obs, f"{where}: partial reset before step {number}")
            require_equal(infos, moment.infos, f"{where}: partial reset, infos")
        actions = vec.action_space.sample()
        moment = oracle.step(list(iterate(vec.action_space, actions)))
        _compare(vec.step(actions), moment, f"{where}: step {number}")


def _compare(got: tuple[Any, ...], expected: Moment, where: str) -> None:
    obs, rewards, terminations, truncations, infos = got
    require_equal(obs, expected.obs, f"{where}, observations")
    require_equal(rewards, expected.rewards, f"{where}, rewards")
    require_equal(terminations, expected.terminations, f"{where}, terminations")
    require_equal(truncations, expected.truncations, f"{where}, truncations")
    require_equal(infos, expected.infos, f"{where}, infos")


def follow_on(vec: Any, where: str) -> None:
    """Check that the vec still works: each row belongs to its env."""
    vec.reset(seed=0)
    for _ in range(3):
        obs: NDArray[np.int64]
        obs, *_ = vec.step(np.ones(vec.num_envs, np.int64))
        require_equal(obs[:, 0], np.arange(vec.num_envs), f"{where}: rows are where they belong")


def same_batches(reference: Any, vec: Any, steps: int, where: str) -> None:
    """Run two vecs with the same actions and partial resets, and compare all batches.

    `vec` is also saved and restored in between, which must not change its batches.
    """
    rng = np.random.default_rng(0)
    count = reference.num_envs
    for each in (reference, vec):
        each.async_reset(seed=5)
    for number in range(steps):
        expected, got = reference.recv(), vec.recv()
        for batch in (expected, got):
            batch.infos.get("episode", {}).pop("t", None)
        for name, value in expected._asdict().items():
            require_equal(getattr(got, name), value, f"{where}: batch {number}, {name}")
        chosen = rng.random(count) < 0.3
        if reference.autoreset_mode is AutoresetMode.DISABLED:
            chosen |= ~expected.mask
        if chosen.any() and (number % 3 == 0 or not expected.mask.all()):
            options = {"reset_mask": chosen, "level": number}
            for each in (reference, vec):
                each.async_reset(seed=number, options=options)
            continue
        if number % 2 == 0:
            saved = vec.snapshot()
            vec.send(np.ones(count, np.int64))
            vec.recv()
            vec.restore(saved)
        actions = rng.integers(0, 1000, count)
        for each in (reference, vec):
            each.send(actions)
