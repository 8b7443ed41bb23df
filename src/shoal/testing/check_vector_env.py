"""check_vector_env: check the whole contract of a vec, for any backend.

Each promise has its own function; `check_vector_env` runs them all. A backend is anything that can be called
like `shoal.Serial`, for instance ``functools.partial(shoal.Multiprocessing, num_workers=2)``. A backend of
compiled envs is tested with compiled envs. It skips the checks that need what compiled envs cannot do: raise,
have infos, have any space, or be of another kind.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.spaces import Box, Dict, Discrete, Text
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray

from shoal.adapters.env import Env
from shoal.errors import ActionError, EpisodeOver, ResetNeeded
from shoal.testing.by_hand import ByHand
from shoal.testing.contract import require, require_equal, require_raises
from shoal.testing.envs import CrashEnv, SampleEnv, SentinelAgent, SentinelEnv, SentinelRows
from shoal.testing.side_by_side import follow, follow_on, same_batches
from shoal.testing.spaces import OBJECT_SPACES, SPACES

Backend = Callable[..., Any]

# Spaces whose rows are one number, several numbers, another dtype, and bytes.
BARE_SPACES = (Discrete(4, start=-2), Box(-1, 1, (2, 3)), Box(0, 255, (4, 5, 3), np.uint8), Text(6))


@dataclass(frozen=True)
class Cast:
    """A backend, and the envs to test it with.

    Attributes:
        backend: The backend. Calling this object calls it.
        sentinel: A class like `SentinelEnv`.
        pair: An env class with two agents.
        boxes: An env class with actions of two floats.
        compiled: Whether the envs are compiled.
    """

    backend: Backend
    sentinel: Any
    pair: Any
    boxes: Any
    compiled: bool

    def __call__(self, creators: Any, **options: Any) -> Any:
        """Make a vec of the given creators."""
        return self.backend(creators, **options)

    def sentinels(self, num_envs: int, max_length: int = 7) -> list[Callable[[], Any]]:
        """Return one creator per env. Each passes its number as `env_id`."""
        return [partial(self.sentinel, env_id=env, max_length=max_length) for env in range(num_envs)]


def cast_for(backend: Backend) -> Cast:
    """Return the backend with envs that it can run."""
    from shoal.vector.native import Native

    made: Any = backend
    while isinstance(made, partial):
        made = made.func
    if made is Native:
        from shoal.testing.native_envs import BoxNative, PairNative, SentinelNative

        return Cast(backend, SentinelNative, PairNative, BoxNative, compiled=True)
    return Cast(backend, SentinelEnv, _Pair, _box_env, compiled=False)


def _box_env() -> SampleEnv:
    return SampleEnv(Box(0, 1, (2,)), Box(-1, 1, (2,)))


def check_vector_env(backend: Backend, *, num_envs: int = 5, steps: int = 60) -> None:
    """Check that a backend keeps every promise of a vec.

    Args:
        backend: The backend. It is called as ``backend(list_of_creators, **options)``.
        num_envs: The number of envs of each vec.
        steps: The number of vector steps for each check of trajectories.

    Raises:
        ContractViolation: If the backend breaks a promise; the message says which.

    Example:
        >>> import shoal
        >>> shoal.testing.check_vector_env(shoal.Serial, num_envs=2, steps=10)
    """
    cast = cast_for(backend)
    for check in CHECKS:
        if not (cast.compiled and check in OF_PYTHON):
            check(cast, num_envs, steps)


def check_counts_and_spaces(backend: Cast, num_envs: int, steps: int) -> None:
    """Check that counts, spaces and metadata describe the returned values."""
    with backend(backend.sentinels(num_envs)) as vec:
        asynchronous = "the backend makes a synchronous vec: this kit calls reset() and step()"
        require(not vec.is_async, asynchronous, vec)
        require(vec.num_envs == vec.num_rows == vec.batch_size == num_envs, "the counts must agree", vec)
        require_equal(vec.agents_per_env, 1, "a single-agent env has one row")
        single = backend.sentinel.observation_space
        require(vec.single_observation_space == single, "single_observation_space is the env's")
        require(vec.observation_space == batch_space(single, num_envs), "observation_space is batched")
        require(vec.action_space == batch_space(backend.sentinel.action_space, num_envs), "action_space too")
        mode = vec.metadata["autoreset_mode"]
        require(mode is AutoresetMode.NEXT_STEP, "metadata names the autoreset mode", mode)
        obs, _ = vec.reset(seed=0)
        require(obs in vec.observation_space, "observations are in observation_space", obs)
        vec.step(vec.action_space.sample())


def check_trajectories(backend: Cast, num_envs: int, steps: int) -> None:
    """Check in every autoreset mode that each row equals that of envs stepped one at a time."""
    for mode in AutoresetMode:
        with backend(backend.sentinels(num_envs), autoreset_mode=mode) as vec:
            oracle = ByHand(backend.sentinels(num_envs), mode)
            follow(vec, oracle, steps, f"mode {mode.name}")


def check_spaces(backend: Cast, num_envs: int, steps: int) -> None:
    """Check that values of every kind of space pass unchanged, as observations and as actions."""
    for space in (*BARE_SPACES, OBJECT_SPACES[0], _together(*SPACES), _together(*SPACES, *OBJECT_SPACES)):
        creators = [partial(_sample_env, space) for _ in range(num_envs)]
        with backend(creators, autoreset_mode=AutoresetMode.SAME_STEP) as vec:
            oracle = ByHand(creators, AutoresetMode.SAME_STEP)
            follow(vec, oracle, 8, f"space {space}")


def _together(*spaces: Space[Any]) -> Dict:
    """Put all spaces into one Dict, so that one vec tests them all."""
    return Dict({str(number): space for number, space in enumerate(spaces)})


def _sample_env(space: Any) -> SampleEnv:
    return SampleEnv(deepcopy(space), deepcopy(space))


def check_flat(backend: Cast, num_envs: int, steps: int) -> None:
    """Check that with flat=True rows are elements of a Box and unpack to the original values."""
    for space in (*BARE_SPACES, _together(*SPACES)):
        creators = [partial(_sample_env, space) for _ in range(num_envs)]
        with backend(creators, flat=True) as vec:
            oracle = ByHand(creators, AutoresetMode.NEXT_STEP)
            layout = vec.observation_layout
            require(isinstance(vec.single_observation_space, Box), "a flat observation is a Box", vec)
            obs, _ = vec.reset(seed=3)
            moment = oracle.reset([3 + i for i in range(num_envs)], [True] * num_envs, None)
            require(obs in vec.observation_space, f"flat {space}: in observation_space", obs)
            vec.step(vec.action_space.sample())
            values = [layout.value(row) for row in obs]
            expected = list(iterate(batch_space(space, num_envs), moment.obs))
            require_equal(values, expected, f"flat {space}: unpacks to the original values")


def check_seeds(backend: Cast, num_envs: int, steps: int) -> None:
    """Check seeds: an integer n gives env i the seed n + i, a list one for each env; None goes on."""
    own = [100 + 7 * i for i in range(num_envs)]
    counted = [5 + i for i in range(num_envs)]
    asked: list[tuple[Any, list[int]]] = [
        (5, counted),
        (np.int64(5), counted),
        (own, own),
        (tuple(own), own),
        (np.array(own), own),
    ]
    with backend(backend.sentinels(num_envs)) as vec:
        obs: Any = None
        for seed, expected in asked:
            obs, _ = vec.reset(seed=seed)
            require_equal(obs[:, 4].tolist(), expected, f"seed={seed!r}: seeds of the envs")
        before = obs[:, 1].copy()
        obs, _ = vec.reset()
        require_equal(obs[:, 1], before + 1, "seed=None: the next episode of the same stream")
        vec.seed(9)
        obs, _ = vec.reset()
        require_equal(int(obs[0, 4]), 9, "seed(9): used by the next reset")
        require_raises(ValueError, lambda: vec.reset(seed=[1] * (num_envs + 1)), "too many seeds")
        require_raises(TypeError, lambda: vec.reset(seed="one"), "a seed that is not a number")
        follow_on(vec, "after refused seeds")


def check_reset_mask(backend: Cast, num_envs: int, steps: int) -> None:
    """Check that reset_mask resets only those envs, and does not change options, other rows or statistics."""
    for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED):
        creators = backend.sentinels(num_envs, 1_000_000)
        with backend(creators, autoreset_mode=mode, episode_stats=True) as vec:
            oracle = ByHand(creators, mode)
            follow(vec, oracle, 2, f"before a partial reset, {mode.name}")
            chosen = np.arange(num_envs) % 2 == 0
            others = {} if backend.compiled else {"other": 1}
            options = {"reset_mask": chosen, **others}
            obs, infos = vec.reset(seed=77, options=options)
            moment = oracle.reset([77 + i for i in range(num_envs)], chosen.tolist(), others)
            require_equal(obs, moment.obs, "reset_mask: observations")
            require_equal(infos, moment.infos, "reset_mask: infos")
            require(options["reset_mask"] is chosen, "the caller's options are not changed", options)
            follow(vec, oracle, 2, "after a partial reset", reset=False)
            wrong: list[tuple[type[Exception], Any]] = [
                (TypeError, [True] * num_envs),
                (TypeError, np.ones(num_envs)),
                (ValueError, np.ones(num_envs + 1, np.bool_)),
                (ValueError, np.zeros(num_envs, np.bool_)),
            ]
            for kind, mask in wrong:
                verb = partial(vec.reset, options={"reset_mask": mask})
                require_raises(kind, verb, f"reset_mask={mask!r}")
            follow(vec, oracle, 2, "after refused masks", reset=False)


def check_disabled(backend: Cast, num_envs: int, steps: int) -> None:
    """Check that with DISABLED a step of a finished env is refused before any env moves."""
    creators = backend.sentinels(num_envs, 1_000_000)
    creators[0] = partial(backend.sentinel, env_id=0, max_length=2)
    with backend(creators, autoreset_mode=AutoresetMode.DISABLED) as vec:
        vec.reset(seed=0)
        actions = np.zeros(num_envs, np.int64)
        while True:
            obs, _, terminations, truncations, _ = vec.step(actions)
            over = terminations | truncations
            if over[0]:
                break
        require_raises(EpisodeOver, lambda: vec.step(actions), "stepping a finished env")
        after, _ = vec.reset(options={"reset_mask": over})
        require_equal(after[~over], obs[~over], "no env has moved")
        vec.step(actions)


def check_bad_actions(backend: Cast, num_envs: int, steps: int) -> None:
    """Check that actions that do not fit are refused before any env moves."""
    with backend(backend.sentinels(num_envs)) as vec:
        oracle = ByHand(backend.sentinels(num_envs), AutoresetMode.NEXT_STEP)
        follow(vec, oracle, 1, "before bad actions")
        good = np.zeros(num_envs, np.int64)
        wrong: dict[str, Any] = {
            "too few": good[:-1],
            "too many": np.zeros(num_envs + 1, np.int64),
            "two-dimensional": good[:, None],
            "fractions": good + 0.5,
            "above the range": good + 1000,
            "below the range": good - 1,
            "no array": None,
            "strings": ["left"] * num_envs,
        }
        for name, actions in wrong.items():
            require_raises(ActionError, partial(vec.step, actions), f"actions {name}")
        follow(vec, oracle, 4, "after refused actions", reset=False)
    with backend([backend.boxes] * num_envs) as vec:
        vec.reset(seed=0)
        nan = np.full((num_envs, 2), np.nan, np.float32)
        require_raises(ActionError, lambda: vec.step(nan), "NaN in a Box action")
        vec.step(np.zeros_like(nan))


def check_order_of_verbs(backend: Cast, num_envs: int, steps: int) -> None:
    """Check that methods called in a wrong order raise, do not hang, and leave the vec usable."""
    actions = np.zeros(num_envs, np.int64)
    vec = backend(backend.sentinels(num_envs))
    require_raises(NoAsyncCallError, vec.recv, "recv with nothing pending")
    vec.async_reset(seed=0)
    require_raises(AlreadyPendingCallError, lambda: vec.send(actions), "send before recv")
    require_raises(AlreadyPendingCallError, lambda: vec.step(actions), "step before recv")
    require_raises(AlreadyPendingCallError, lambda: vec.get_attr("env_id"), "get_attr before recv")
    vec.recv()
    require_raises(NoAsyncCallError, vec.recv, "recv twice")
    vec.send(actions)
    require_raises(AlreadyPendingCallError, lambda: vec.send(actions), "send twice")
    obs, _ = vec.reset(seed=1)
    require_equal(obs[:, 2].sum(), np.int64(0), "reset drops pending steps")
    vec.send(actions)
    vec.async_reset(seed=2)
    batch = vec.recv()
    with backend(backend.sentinels(num_envs)) as other:
        require_equal(batch.obs, other.reset(seed=2)[0], "async_reset drops pending steps")
    vec.send(actions)
    vec.close()
    vec.close()
    for name in ("recv", "reset", "async_reset", "render", "snapshot"):
        require_raises(ClosedEnvironmentError, getattr(vec, name), f"{name} after close")
    require_raises(ClosedEnvironmentError, lambda: vec.step(actions), "step after close")
    require(vec.closed, "a closed vec says so")


def check_batches(backend: Cast, num_envs: int, steps: int) -> None:
    """Check that a batch has the env of each row, which rows need an action, and which have no transition."""
    for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
        with backend(backend.sentinels(num_envs), autoreset_mode=mode) as vec:
            oracle = ByHand(backend.sentinels(num_envs), mode)
            vec.async_reset(seed=4)
            moment = oracle.reset([4 + i for i in range(num_envs)], [True] * num_envs, None)
            rng = np.random.default_rng(0)
            for _ in range(steps):
                batch = vec.recv()
                require_equal(batch.obs, moment.obs, "recv: observations")
                require_equal(batch.obs[:, 0], batch.env_ids, "recv: env_ids")
                require_equal(batch.agent_ids, np.zeros(num_envs, np.int64), "recv: agent_ids")
                require_equal(batch.resets, moment.resets, "recv: resets")
                done = moment.terminations | moment.truncations
                acts = ~done if mode is AutoresetMode.NEXT_STEP else np.ones_like(done)
                require_equal(batch.mask, acts, "recv: mask")
                require_equal(batch.rewards, moment.rewards, "recv: rewards")
                require_equal(batch.infos, moment.infos, "recv: infos")
                actions = rng.integers(0, 1000, num_envs)
                garbage = np.where(batch.mask, actions, -1)  # actions of masked rows may have any value
                vec.send(garbage, env_ids=batch.env_ids)
                moment = oracle.step(list(actions))


def check_attributes(backend: Cast, num_envs: int, steps: int) -> None:
    """Check that call, get_attr and set_attr reach every env, and that a failed call changes nothing."""
    with backend(backend.sentinels(num_envs)) as vec:
        vec.reset(seed=0)
        require_equal(vec.get_attr("env_id"), tuple(range(num_envs)), "get_attr")
        vec.set_attr("max_length", list(range(1, num_envs + 1)))
        require_equal(
            vec.get_attr("max_length"), tuple(range(1, num_envs + 1)), "set_attr with one value each"
        )
        vec.set_attr("max_length", 9)
        require_equal(vec.get_attr("max_length"), (9,) * num_envs, "set_attr with one value for all")
        rewards = vec.call("reward_of", np.arange(5))
        require_equal(rewards, (SentinelEnv.reward_of(np.arange(5)),) * num_envs, "call")
        require_raises(AttributeError, lambda: vec.get_attr("typo"), "an attribute that does not exist")
        require_raises(
            ValueError, lambda: vec.set_attr("max_length", [1] * (num_envs + 1)), "too many values"
        )
        follow_on(vec, "after a failed get_attr")


def check_copies(backend: Cast, num_envs: int, steps: int) -> None:
    """Check that returned arrays never change with copy=True, and are the vec's memory with copy=False."""
    with backend(backend.sentinels(num_envs)) as vec:
        kept, _ = vec.reset(seed=0)
        as_it_was = kept.copy()
        vec.step(vec.action_space.sample())
        require_equal(kept, as_it_was, "copy=True: a returned observation stays as it was")
    with backend(backend.sentinels(num_envs), copy=False) as vec:
        first, _ = vec.reset(seed=0)
        second, *_ = vec.step(np.ones(num_envs, np.int64))
        require(np.shares_memory(first, second), "copy=False: observations are views of the same rows")


def check_errors(backend: Cast, num_envs: int, steps: int) -> None:
    """Check that an env's exception reaches the caller unchanged, and that only a reset works after it."""
    creators: list[Any] = backend.sentinels(num_envs)
    creators[-1] = partial(CrashEnv, num_envs - 1, 2, max_length=1000)
    actions = np.zeros(num_envs, np.int64)
    with backend(creators) as vec:
        vec.reset(seed=0)
        vec.step(actions)
        try:
            vec.step(actions)
        except ValueError as error:
            said = "\n".join([str(error), *getattr(error, "__notes__", [])])
            require(f"env {num_envs - 1}" in said, "the error names the env", said)
        else:
            require(False, "an env's exception reaches the caller")
        require_raises(ResetNeeded, lambda: vec.step(actions), "a step after a failed step")
        require_raises(ResetNeeded, vec.recv, "a recv after a failed step")
        obs, _ = vec.reset(seed=0)
        require_equal(obs[:, 0], np.arange(num_envs), "a reset after a failed step")
        follow_on(vec, "after a failed step and a reset")
    refusing = [partial(CrashEnv, i, 0) for i in range(num_envs)]
    with backend(refusing) as vec:
        require_raises(ValueError, vec.reset, "an exception in reset reaches the caller")
    broken: list[Any] = [*backend.sentinels(num_envs - 1), lambda: SentinelEnv(**{"no such": 1})]
    require_raises(TypeError, lambda: backend(broken), "an exception in a creator reaches the caller")


def check_episode_stats(backend: Cast, num_envs: int, steps: int) -> None:
    """Check in every mode that infos["episode"] has the return and length of each episode that ends."""
    for mode in AutoresetMode:
        with backend(backend.sentinels(num_envs), autoreset_mode=mode, episode_stats=True) as vec:
            vec.reset(seed=1)
            returns, lengths, ended = np.zeros(num_envs), np.zeros(num_envs, int), 0
            for _ in range(steps):
                acting = vec.mask
                _, rewards, terminations, truncations, infos = vec.step(vec.action_space.sample())
                returns[acting] += rewards[acting]
                lengths[acting] += 1
                done = terminations | truncations
                require(("episode" in infos) == done.any(), "infos has an episode only if one ends", infos)
                if done.any():
                    ended += int(done.sum())
                    require_equal(infos["_episode"], done, "_episode")
                    require_equal(infos["episode"]["r"], np.where(done, returns, 0.0), "returns")
                    require_equal(infos["episode"]["l"], np.where(done, lengths, 0), "lengths")
                    returns[done], lengths[done] = 0.0, 0
                    if mode is AutoresetMode.DISABLED:
                        vec.reset(options={"reset_mask": done})
            require_equal(int(vec.stats()["episodes"]), ended, "stats() counts the episodes")


def check_snapshots(backend: Cast, num_envs: int, steps: int) -> None:
    """Check that a restored vec gives the same results as before."""
    with backend(backend.sentinels(num_envs)) as vec:
        vec.reset(seed=0)
        rng = np.random.default_rng(0)
        plan = rng.integers(0, 1000, (20, num_envs))
        for actions in plan[:7]:
            vec.step(actions)
        saved = vec.snapshot()
        first = [vec.step(actions) for actions in plan[7:]]
        vec.restore(saved)
        second = [vec.step(actions) for actions in plan[7:]]
        require_equal(second, first, "restore: the same results")


class _Pair(Env):
    """Two agents. The first terminates after three steps, the second is truncated after five."""

    observation_space = Box(-1, 2**31, (2,), np.float64)
    action_space = Discrete(10)
    num_agents = 2

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.count = 0
        self.observations[:, 0] = 0
        self.observations[:, 1] = (0, 1)

    def step(self, actions: Any) -> dict[str, Any]:
        self.count += 1
        self.observations[self.mask, 0] = self.count
        self.rewards[:] = actions
        self.terminations[0] = self.count == 3
        self.truncations[1] = self.count == 5
        return {"count": self.count}


def check_agents(backend: Cast, num_envs: int, steps: int) -> None:
    """Check that a finished agent reports its last transition once, and is masked until its env resets."""
    for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
        with backend([backend.pair] * num_envs, autoreset_mode=mode) as vec:
            require_equal((vec.num_rows, vec.num_envs), (2 * num_envs, num_envs), "rows and envs")
            vec.reset(seed=0)
            period = 6 if mode is AutoresetMode.NEXT_STEP else 5
            for count in range(1, 3 * period):
                moment = (count - 1) % period + 1  # 6 is the reset of NEXT_STEP
                actions = np.arange(2 * num_envs) % 10
                before = vec.mask
                obs, rewards, terminations, truncations, _ = vec.step(actions)
                alive = np.tile([moment <= 3, moment <= 5], num_envs)
                require_equal(rewards, np.where(alive, actions, 0.0), f"rewards at {moment}")
                died = np.tile([moment == 3, False], num_envs)
                require_equal(terminations, died, f"terminations at {moment}")
                cut = np.tile([False, moment == 5], num_envs)
                require_equal(truncations, cut, f"truncations at {moment}")
                if moment <= 5:
                    require_equal(before, alive, f"mask at {moment}")
                if mode is AutoresetMode.SAME_STEP and moment == 5:
                    require_equal(obs[:, 0], np.zeros(2 * num_envs), "reset in the same step")
        with backend([backend.pair] * num_envs, rows_as_envs=True) as vec:
            require_equal(vec.num_envs, 2 * num_envs, "rows_as_envs: each row is an env")


def check_hierarchy(backend: Cast, num_envs: int, steps: int) -> None:
    """Check that a creator may return a vec: its envs become envs of the outer vec."""
    from shoal.vector.serial import Serial

    for mode in AutoresetMode:
        creators = backend.sentinels(2 * num_envs)
        inner = [partial(Serial, creators[2 * i : 2 * i + 2], autoreset_mode=mode) for i in range(num_envs)]
        with backend(inner, autoreset_mode=mode) as vec:
            require_equal(vec.num_envs, 2 * num_envs, "hierarchy: envs are counted flat")
            follow(vec, ByHand(creators, mode), steps, f"hierarchy, mode {mode.name}")
            require_equal(vec.get_attr("env_id"), tuple(range(2 * num_envs)), "hierarchy: get_attr")


class Careful(SentinelEnv):
    """A sentinel that returns a new array each time: SyncVectorEnv does not copy final observations."""

    def _observe(self, action: int) -> NDArray[np.int64]:
        return super()._observe(action).copy()


def check_kinds_of_env(backend: Cast, num_envs: int, steps: int) -> None:
    """Check that all kinds of env give the same batches: plain, in place, PettingZoo, inside vector envs."""
    from shoal.vector.serial import Serial

    ids = range(2 * num_envs)
    pairs = [list(ids[i : i + 2]) for i in ids[::2]]
    for mode in AutoresetMode:
        plain = [partial(SentinelEnv, i) for i in ids]
        kinds: dict[str, list[Any]] = {
            "restored": plain,  # only this vec is saved and restored, not the reference
            "in place": [partial(SentinelRows, i) for i in ids],
            "as PettingZoo's": [partial(SentinelAgent, i) for i in ids],
            "inside Serial": [partial(Serial, [plain[i] for i in p], autoreset_mode=mode) for p in pairs],
            "inside SyncVectorEnv": [
                partial(SyncVectorEnv, [partial(Careful, i) for i in p], autoreset_mode=mode) for p in pairs
            ],
        }
        with backend(plain, autoreset_mode=mode, episode_stats=True) as reference:
            for kind, creators in kinds.items():
                with backend(creators, autoreset_mode=mode, episode_stats=True) as vec:
                    same_batches(reference, vec, steps, f"{kind}, mode {mode.name}")


CHECKS = (
    check_counts_and_spaces,
    check_trajectories,
    check_seeds,
    check_reset_mask,
    check_disabled,
    check_bad_actions,
    check_order_of_verbs,
    check_batches,
    check_attributes,
    check_copies,
    check_errors,
    check_episode_stats,
    check_snapshots,
    check_agents,
    check_hierarchy,
    check_spaces,
    check_flat,
    check_kinds_of_env,
)
"""The checks, from the simplest promise to the most complex. The last three take most of the time."""

OF_PYTHON = (check_spaces, check_flat, check_seeds, check_errors, check_hierarchy, check_kinds_of_env)
"""The checks that need envs that cannot be compiled."""
