"""check_vector_env: the whole contract of a vec, for any backend.

Each promise is a function of its own; `check_vector_env` runs them all. A backend is anything that is called
like `shoal.Serial`: ``functools.partial(shoal.Multiprocessing, num_workers=2)``, say. One that runs compiled
envs gets those, and is spared what compiled envs cannot do: raise, have infos, be of any space, or be of
another kind.
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

# Rows of one number, of several, of another dtype, and of bytes.
BARE_SPACES = (Discrete(4, start=-2), Box(-1, 1, (2, 3)), Box(0, 255, (4, 5, 3), np.uint8), Text(6))


@dataclass(frozen=True)
class Cast:
    """A backend, and the envs to try it with.

    Attributes:
        backend: Called by calling this.
        sentinel: A class like `SentinelEnv`.
        pair: One with two agents.
        boxes: One with actions of two floats.
        compiled: Whether they are compiled.
    """

    backend: Backend
    sentinel: Any
    pair: Any
    boxes: Any
    compiled: bool

    def __call__(self, creators: Any, **options: Any) -> Any:
        """A vec of these."""
        return self.backend(creators, **options)

    def sentinels(self, num_envs: int, max_length: int = 7) -> list[Callable[[], Any]]:
        """One creator per env, each of which knows its place."""
        return [partial(self.sentinel, env_id=env, max_length=max_length) for env in range(num_envs)]


def cast_for(backend: Backend) -> Cast:
    """The envs that a backend can run."""
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
        backend: Called as ``backend(list_of_creators, **options)``.
        num_envs: Envs to run it with.
        steps: Vector steps for each promise about trajectories.

    Raises:
        ContractViolation: If a promise is broken; the message says which.

    Example:
        >>> import shoal
        >>> shoal.testing.check_vector_env(shoal.Serial, num_envs=2, steps=10)
    """
    cast = cast_for(backend)
    for check in CHECKS:
        if not (cast.compiled and check in OF_PYTHON):
            check(cast, num_envs, steps)


def check_counts_and_spaces(backend: Cast, num_envs: int, steps: int) -> None:
    """Counts, spaces and metadata describe what is returned."""
    with backend(backend.sentinels(num_envs)) as vec:
        require(vec.num_envs == vec.num_rows == vec.batch_size == num_envs, "the counts must agree", vec)
        require_equal(vec.agents_per_env, 1, "a single-agent env has one row")
        single = backend.sentinel.observation_space
        require(vec.single_observation_space == single, "single_observation_space is the env's")
        require(vec.observation_space == batch_space(single, num_envs), "observation_space is batched")
        require(vec.action_space == batch_space(backend.sentinel.action_space, num_envs), "so are actions")
        mode = vec.metadata["autoreset_mode"]
        require(mode is AutoresetMode.NEXT_STEP, "metadata names the autoreset mode", mode)
        obs, _ = vec.reset(seed=0)
        require(obs in vec.observation_space, "observations are in observation_space", obs)
        vec.step(vec.action_space.sample())


def check_trajectories(backend: Cast, num_envs: int, steps: int) -> None:
    """In every mode, by step and by send/recv, each row is what stepping by hand gives."""
    for mode in AutoresetMode:
        with backend(backend.sentinels(num_envs), autoreset_mode=mode) as vec:
            oracle = ByHand(backend.sentinels(num_envs), mode)
            follow(vec, oracle, steps, f"mode {mode.name}")


def check_spaces(backend: Cast, num_envs: int, steps: int) -> None:
    """Every kind of space goes there and back unchanged, as observation and as action."""
    for space in (*BARE_SPACES, OBJECT_SPACES[0], _together(*SPACES), _together(*SPACES, *OBJECT_SPACES)):
        creators = [partial(_sample_env, space) for _ in range(num_envs)]
        with backend(creators, autoreset_mode=AutoresetMode.SAME_STEP) as vec:
            oracle = ByHand(creators, AutoresetMode.SAME_STEP)
            follow(vec, oracle, 8, f"space {space}")


def _together(*spaces: Space[Any]) -> Dict:
    """All of them in one space, so that one vec tries them all."""
    return Dict({str(number): space for number, space in enumerate(spaces)})


def _sample_env(space: Any) -> SampleEnv:
    return SampleEnv(deepcopy(space), deepcopy(space))


def check_flat(backend: Cast, num_envs: int, steps: int) -> None:
    """With flat=True rows are elements of a Box, and unpack to the values they were made of."""
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
            require_equal(values, expected, f"flat {space}: unpacks to what it was made of")


def check_seeds(backend: Cast, num_envs: int, steps: int) -> None:
    """An integer of any kind gives env i the seed n + i; a list gives each its own; None goes on."""
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
        require_raises(TypeError, lambda: vec.reset(seed="one"), "a seed that is no number")
        follow_on(vec, "after refused seeds")


def check_reset_mask(backend: Cast, num_envs: int, steps: int) -> None:
    """reset_mask resets just those envs, and leaves options, other rows and their statistics alone."""
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
    """Under DISABLED, stepping an env whose episode is over is refused before any env moves."""
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
    """Actions that do not fit are refused before any env moves."""
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
    """Verbs out of turn are errors, never hangs, and leave the vec usable."""
    actions = np.zeros(num_envs, np.int64)
    vec = backend(backend.sentinels(num_envs))
    require_raises(NoAsyncCallError, vec.recv, "recv with nothing under way")
    vec.async_reset(seed=0)
    require_raises(AlreadyPendingCallError, lambda: vec.send(actions), "send before recv")
    require_raises(AlreadyPendingCallError, lambda: vec.step(actions), "step before recv")
    require_raises(AlreadyPendingCallError, lambda: vec.get_attr("env_id"), "get_attr before recv")
    vec.recv()
    require_raises(NoAsyncCallError, vec.recv, "recv twice")
    vec.send(actions)
    require_raises(AlreadyPendingCallError, lambda: vec.send(actions), "send twice")
    obs, _ = vec.reset(seed=1)
    require_equal(obs[:, 2].sum(), np.int64(0), "reset drops what was under way")
    vec.send(actions)
    vec.async_reset(seed=2)
    batch = vec.recv()
    with backend(backend.sentinels(num_envs)) as other:
        require_equal(batch.obs, other.reset(seed=2)[0], "async_reset drops what was under way")
    vec.send(actions)
    vec.close()
    vec.close()
    for name in ("recv", "reset", "async_reset", "render", "snapshot"):
        require_raises(ClosedEnvironmentError, getattr(vec, name), f"{name} after close")
    require_raises(ClosedEnvironmentError, lambda: vec.step(actions), "step after close")
    require(vec.closed, "a closed vec says so")


def check_batches(backend: Cast, num_envs: int, steps: int) -> None:
    """A batch says whose each row is, which need an action, and which carry no transition."""
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
                garbage = np.where(batch.mask, actions, -1)  # masked rows may hold anything
                vec.send(garbage, env_ids=batch.env_ids)
                moment = oracle.step(list(actions))


def check_attributes(backend: Cast, num_envs: int, steps: int) -> None:
    """call, get_attr and set_attr reach every env, and a failed one leaves the vec as it was."""
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
        require_raises(AttributeError, lambda: vec.get_attr("typo"), "an attribute that is not there")
        require_raises(
            ValueError, lambda: vec.set_attr("max_length", [1] * (num_envs + 1)), "too many values"
        )
        follow_on(vec, "after a failed get_attr")


def check_copies(backend: Cast, num_envs: int, steps: int) -> None:
    """With copy=True, what was returned never changes; with copy=False it is the vec's own memory."""
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
    """An env's exception comes out as it is; then only a reset makes sense, and it works."""
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
            require(False, "an env's exception comes out")
        require_raises(ResetNeeded, lambda: vec.step(actions), "a step after a failed step")
        require_raises(ResetNeeded, vec.recv, "a recv after a failed step")
        obs, _ = vec.reset(seed=0)
        require_equal(obs[:, 0], np.arange(num_envs), "a reset after a failed step")
        follow_on(vec, "after a failed step and a reset")
    refusing = [partial(CrashEnv, i, 0) for i in range(num_envs)]
    with backend(refusing) as vec:
        require_raises(ValueError, vec.reset, "an exception in reset comes out")
    broken: list[Any] = [*backend.sentinels(num_envs - 1), lambda: SentinelEnv(**{"no such": 1})]
    require_raises(TypeError, lambda: backend(broken), "an exception in a creator comes out")


def check_episode_stats(backend: Cast, num_envs: int, steps: int) -> None:
    """infos["episode"] has the return and length of each episode, where it ends, in every mode."""
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
                require(("episode" in infos) == done.any(), "episode only where one ends", infos)
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
    """A restored vec goes on as it did the first time."""
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
        require_equal(second, first, "restore: the same future")


class _Pair(Env):
    """Two agents; the first dies after three steps, the second after five."""

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
    """An agent that dies reports its last transition once, and is masked until its env resets."""
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
                    require_equal(before, alive, f"who acts at {moment}")
                if mode is AutoresetMode.SAME_STEP and moment == 5:
                    require_equal(obs[:, 0], np.zeros(2 * num_envs), "reset in the same step")
        with backend([backend.pair] * num_envs, rows_as_envs=True) as vec:
            require_equal(vec.num_envs, 2 * num_envs, "rows_as_envs: each row is an env")


def check_hierarchy(backend: Cast, num_envs: int, steps: int) -> None:
    """A creator may return a vec: its envs become envs of this one."""
    from shoal.vector.serial import Serial

    for mode in AutoresetMode:
        creators = backend.sentinels(2 * num_envs)
        inner = [partial(Serial, creators[2 * i : 2 * i + 2], autoreset_mode=mode) for i in range(num_envs)]
        with backend(inner, autoreset_mode=mode) as vec:
            require_equal(vec.num_envs, 2 * num_envs, "hierarchy: envs are counted flat")
            follow(vec, ByHand(creators, mode), steps, f"hierarchy, mode {mode.name}")
            require_equal(vec.get_attr("env_id"), tuple(range(2 * num_envs)), "hierarchy: get_attr")


class Careful(SentinelEnv):
    """Makes a new array each time: SyncVectorEnv cannot keep the final one of a buffer that is reused."""

    def _observe(self, action: int) -> NDArray[np.int64]:
        return super()._observe(action).copy()


def check_kinds_of_env(backend: Cast, num_envs: int, steps: int) -> None:
    """The same envs as plain ones, in place, as agents, and inside vector envs: every batch is the same."""
    from shoal.vector.serial import Serial

    ids = range(2 * num_envs)
    pairs = [list(ids[i : i + 2]) for i in ids[::2]]
    for mode in AutoresetMode:
        plain = [partial(SentinelEnv, i) for i in ids]
        kinds: dict[str, list[Any]] = {
            "restored": plain,  # only the one that is compared is saved and restored
            "in place": [partial(SentinelRows, i) for i in ids],
            "as PettingZoo's": [partial(SentinelAgent, i) for i in ids],
            "inside Serial": [partial(Serial, [plain[i] for i in p], autoreset_mode=mode) for p in pairs],
            "inside SyncVectorEnv": [
                partial(SyncVectorEnv, [partial(Careful, i) for i in p], autoreset_mode=mode) for p in pairs
            ],
        }
        for kind, creators in kinds.items():
            with (
                backend(plain, autoreset_mode=mode, episode_stats=True) as reference,
                backend(creators, autoreset_mode=mode, episode_stats=True) as vec,
            ):
                same_batches(reference, vec, steps, f"{kind}, mode {mode.name}")


CHECKS = (
    check_counts_and_spaces,
    check_trajectories,
    check_spaces,
    check_flat,
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
    check_kinds_of_env,
)
"""Every promise, in the order in which a reader would want them broken to him."""

OF_PYTHON = (check_spaces, check_flat, check_seeds, check_errors, check_hierarchy, check_kinds_of_env)
"""Those that need envs which cannot be compiled."""
