"""Native: compiled envs that threads of this process step in place."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal import _core
from shoal.cores import usable_cores
from shoal.errors import ArgumentError, CoreNeeded, SnapshotError
from shoal.native.columns import ORDER, Columns
from shoal.native.engine import SPLIT, ThreadEngine
from shoal.native.spec import Spec
from shoal.rows.arena import Arena
from shoal.vector.batching import Batching
from shoal.vector.engine import BlockRange
from shoal.vector.native_creators import spec_of
from shoal.vector.options import VecOptions, autoreset, positive_integer
from shoal.vector.spaces import UnitFacts, combine
from shoal.vector.turns import verb
from shoal.vector.vec import FAILED, VectorEnv


class Native(VectorEnv):
    """Many compiled envs, behind the same contract as `shoal.Serial`.

    With ``copy=False`` a step copies and allocates nothing: rewards and flags are views too, which are valid
    until the next step.

    Args:
        env: A `shoal.NativeEnv` class, or a list with one entry for each env. An entry is the same class, or
            ``functools.partial`` of it with other parameters.
        num_envs: The number of envs, if `env` is one class.
        env_kwargs: The values of constants and parameters of the class. The value of a parameter may be an
            array with one entry for each env.
        num_workers: The number of threads, including the caller's; by default one for each core that this
            process may use.
        render_mode: ``"rgb_array"`` if `render` is to return frames.
        debug: Run the env's functions uncompiled, so that breakpoints and prints work in them.
        check: Compile the env's functions so that an index outside its array raises a
            `shoal.errors.NativeError` with the line, instead of reading or writing other memory.
            ``SHOAL_NATIVE_CHECK=1`` in the environment does so for all vecs.
        infos: Show the infos that the class declares: for each field of its `infos` an array over rows.
        autoreset_mode: See `shoal.Serial`.
        flat: See `shoal.Serial`.
        copy: See `shoal.Serial`.
        seed: See `shoal.Serial`.
        episode_stats: See `shoal.Serial`.
        rows_as_envs: See `shoal.Serial`.
        batch_size: The number of envs in a batch. If it is less than all envs, the vec is asynchronous; see
            `shoal.Multiprocessing`.
        surplus_envs: See `shoal.Multiprocessing`.
        mode: See `shoal.Multiprocessing`.
        order: See `shoal.Multiprocessing`.

    Example:
        >>> import numpy as np, shoal
        >>> with shoal.make("shoal/CartPole-v1", num_envs=1000) as vec:
        ...     obs, infos = vec.reset(seed=0)
        ...     obs, rewards, terminations, truncations, infos = vec.step(np.zeros(1000, np.int64))
        >>> type(vec).__name__, obs.shape
        ('Native', (1000, 4))
    """

    _kind_hints: ClassVar[Mapping[str, str]] = {
        "number of rows": ". Between vecs of different sizes take snapshot(env_ids) of one and "
        "restore(snapshot, env_ids) in the other"
    }

    def __init__(
        self,
        env: Any,
        num_envs: int | None = None,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        num_workers: int | None = None,
        render_mode: str | None = None,
        debug: bool = False,
        check: bool = False,
        infos: bool = False,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        flat: bool = False,
        copy: bool = True,
        seed: int | None = None,
        episode_stats: bool = False,
        rows_as_envs: bool = False,
        batch_size: int | None = None,
        surplus_envs: int = 0,
        mode: str | None = None,
        order: str = "fifo",
    ) -> None:
        if _core.NAME != "native" and not debug:
            raise CoreNeeded(
                "Native needs the compiled core, which this installation does not have or SHOAL_CORE has "
                "switched off. Install with a C++ compiler at hand, or pass debug=True."
            )
        options = VecOptions(autoreset(autoreset_mode), flat, copy, seed, episode_stats, "same", rows_as_envs)
        resetting = options.autoreset_mode
        spec, count = spec_of(env, num_envs, dict(env_kwargs or {}))
        batching = Batching.of(spec.cls, count, batch_size, surplus_envs, mode, order, parent_steps=False)
        count = len(batching.creators)
        _check_surplus(spec, surplus_envs)
        if infos and not spec.infos.names:
            raise ArgumentError(f"infos: {spec.cls.__name__} declares none, by an `infos` of the class")
        metadata = dict(spec.cls.metadata)
        _check_render_mode(spec, render_mode, metadata)
        agents = tuple(f"agent_{i}" for i in range(spec.agents))
        facts = UnitFacts(
            spec.observation.space, spec.action.space, count, agents, metadata, render_mode, None
        )
        spaces = combine([facts], "same", resetting, objects=False)
        arena = Arena.allocate(count * spec.agents, spaces.observation, spaces.action)
        self.debug = debug
        self.check = not debug and (check or os.environ.get("SHOAL_NATIVE_CHECK", "") not in ("", "0"))
        self.num_workers = 1 if debug else _num_threads(num_workers)
        engine = ThreadEngine(
            spec,
            Columns(spec, arena, count, finals=resetting is AutoresetMode.SAME_STEP),
            arena,
            spaces.observation,
            _blocks(batching, self.num_workers),
            self.num_workers,
            resetting,
            at_once=batching.order is None,
            flat=flat,
            debug=debug,
            check=self.check,
            infos=infos,
            renders=render_mode is not None,
            reset_verb="reset" if batching.order is None else "async_reset",
        )
        self._thread_engine = engine
        super().__init__(spaces, arena, engine, options, batching)
        self._prepare_fast_step()

    def _prepare_fast_step(self) -> None:
        """Let one call of the core check actions, step and return views, if the options allow it."""
        engine, actions = self._thread_engine, self._all_rows.actions.usual
        if (
            engine.loop is None
            or self.debug
            or self.check
            or self.copy
            or engine.info_arrays is not None
            or self.autoreset_mode is not AutoresetMode.NEXT_STEP
            or actions is None
            or not isinstance(self._observe(), np.ndarray)
        ):
            return
        arena = self._arena
        engine.loop.prepare(
            ORDER.index("actions"),
            engine.step_verb,
            actions,
            arena.mask,
            (self._observe(), arena.rewards, arena.terminations, arena.truncations),
            self._transitions,
        )
        engine.fast_step = engine.loop.step

    # -- access to the envs ----------------------------------------------------------------------------

    def set_attr(self, name: str, values: Any) -> None:
        """Set a parameter, or a field of the state that has bounds.

        Args:
            name: The name of the parameter or field.
            values: An array, list or tuple with a value for each env, or one value for all envs.

        Raises:
            ArgumentError: If a value does not fit, or if the class declares no bounds for the field.
        """
        super().set_attr(name, list(values) if isinstance(values, np.ndarray) else values)

    def column_of(self, name: str) -> NDArray[Any] | None:
        """Return the values of a parameter or a field of the state, one for each env; None for unknown names.

        The array is a view: a value that is written into it reaches the env unchecked.
        """
        self._check_open()
        return self._thread_engine.column_of(name)

    @property
    def constants(self) -> Mapping[str, Any]:
        """The constants of the env's class, which are compiled in."""
        return self._thread_engine.spec.constants

    @property
    def observation_rows(self) -> NDArray[np.uint8]:
        """The bytes of all observations, as a view that changes with the next step; see `shoal.Layout`."""
        return self._arena.observations

    # -- snapshots -------------------------------------------------------------------------------------

    @verb
    def snapshot(self, env_ids: Sequence[int] | None = None) -> dict[str, Any]:
        """Return the state of all envs, or of some, in a form that can be pickled.

        Args:
            env_ids: The envs to include; by default all envs.
        """
        if env_ids is None:
            return self._snapshot()
        self._check_idle("snapshot")
        if self._state is FAILED:
            raise self._failure()
        self._finish_moving()
        envs, rows = self._envs_and_rows(env_ids)
        return {
            "kind": self._kind_of_some(rows),
            "some": self._thread_engine.snapshot_some(envs),
            "never_reset": self._never_reset[envs],
            "clock": None if self._clock is None else self._clock.state()[rows],
            "rows": {name: column[rows] for name, column in self._row_columns().items()},
        }

    @verb
    def restore(self, snapshot: Any, env_ids: Sequence[int] | None = None) -> None:
        """Go back to a snapshot.

        Args:
            snapshot: A snapshot of this vec, or of a vec that was made with the same arguments.
            env_ids: The envs that get the states of the snapshot, in its order. A snapshot of some envs needs
                them; they may be other envs than those of the snapshot.

        Raises:
            SnapshotError: If the snapshot is of a different kind of vec.
        """
        if not isinstance(snapshot, dict) or "some" not in snapshot:
            if env_ids is not None:
                raise SnapshotError("env_ids: expected None, because the snapshot is of all envs")
            self._restore(snapshot)
            return
        self._check_idle("restore")
        self._finish_moving()
        if env_ids is None:
            raise SnapshotError(
                "env_ids: the snapshot is of some envs only: say which are to be as they were"
            )
        envs, rows = self._envs_and_rows(env_ids)
        self._check_kind(snapshot, self._kind_of_some(rows), "envs", {})
        before, self._state = self._state, FAILED  # until the restore is complete
        self._thread_engine.restore_some(envs, snapshot["some"])
        for name, column in self._row_columns().items():
            column[rows] = snapshot["rows"][name]
        self._never_reset[envs] = snapshot["never_reset"]
        if self._clock is not None and snapshot["clock"] is not None:
            self._clock.load(snapshot["clock"], rows)
        if self._batches is not None:
            self._batches.refresh()
        self._state = before
        self._enable_fast_step()

    def _kind_of_some(self, rows: NDArray[np.int64]) -> dict[str, Any]:
        """Return the properties in which a snapshot of some envs and the vec that restores it must agree."""
        kind = {**self._kind(), "number of rows": len(rows)}
        kind.pop(SPLIT, None)
        return kind

    def _envs_and_rows(self, env_ids: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Check the env ids of a caller; return them and the numbers of their rows."""
        envs = np.asarray(env_ids)
        if (
            envs.ndim != 1
            or envs.dtype.kind not in "iu"
            or not ((envs >= 0) & (envs < self._total_envs)).all()
        ):
            raise ArgumentError(
                f"env_ids: expected a list of envs from 0 to {self._total_envs - 1}, got {env_ids!r}"
            )
        if len(np.unique(envs)) < len(envs):
            raise ArgumentError(f"env_ids: expected each env once, got {env_ids!r}")
        rows = (envs[:, None] * self.agents_per_env + np.arange(self.agents_per_env)).reshape(-1)
        return envs.astype(np.int64), rows

    def _row_columns(self) -> dict[str, NDArray[Any]]:
        names = ("observations", "rewards", "terminations", "truncations", "mask", "resets", "starts")
        return {name: getattr(self._arena, name) for name in (*names, "episode_returns", "episode_lengths")}


def _check_surplus(spec: Spec, surplus_envs: Any) -> None:
    for name, value in spec.parameters.items():
        if value.ndim and surplus_envs:
            raise ArgumentError(f"{name}: expected one value for all envs, because surplus_envs adds some")


def _check_render_mode(spec: Spec, render_mode: str | None, metadata: Mapping[str, Any]) -> None:
    if render_mode is not None and (spec.cls.render is None or render_mode not in metadata["render_modes"]):
        raise ArgumentError(
            f"render_mode: {spec.cls.__name__} has no {render_mode!r}: expected 'rgb_array', and a "
            "render(state) in the class, or None"
        )


def _blocks(batching: Batching, threads: int) -> list[BlockRange]:
    """Split the envs into equal blocks that divide a batch; if possible, a batch has one for each thread."""
    envs = len(batching.creators)
    if batching.order is None:
        return [BlockRange(0, 0, envs)]
    size = math.gcd(envs, batching.batch_size)
    # In small blocks, fewer envs wait for a slow one.
    wanted = threads if batching.order == "fifo" else 4 * threads
    while size > 1 and batching.batch_size // size < wanted:
        size //= next(factor for factor in range(2, size + 1) if size % factor == 0)
    return [BlockRange(number, number * size, (number + 1) * size) for number in range(envs // size)]


def _num_threads(num_workers: Any) -> int:
    """Check the number of threads that the user asked for, or choose one."""
    if num_workers is None:
        return usable_cores()
    return positive_integer("num_workers", num_workers)
