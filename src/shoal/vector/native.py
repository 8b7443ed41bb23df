"""Native: compiled envs, stepped in place by a pool of threads: no process, no GIL, no copy."""

from __future__ import annotations

import inspect
import os
import time
import weakref
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Self, cast

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal import _core
from shoal.cores import patience_with, usable_cores
from shoal.errors import (
    ArgumentError,
    ArgumentTypeError,
    CoreNeeded,
    NativeError,
    ResetNeeded,
    WorkerError,
)
from shoal.limits import obtaining
from shoal.native.bodies import RESET, STEP_DISABLED, STEP_NEXT, STEP_SAME
from shoal.native.bounds import fitting
from shoal.native.columns import ORDER, Columns
from shoal.native.debugging import DebugKernel
from shoal.native.env import compiled
from shoal.native.records import Records
from shoal.native.replaying import Replay
from shoal.native.rng import keys_of
from shoal.native.spec import arguments_of
from shoal.rows.arena import Arena
from shoal.stepping.row_slice import Infos
from shoal.vector.batching import Batching, is_async
from shoal.vector.native_creators import spec_of
from shoal.vector.native_snapshots import NativeSnapshots
from shoal.vector.options import Options, autoreset
from shoal.vector.spaces import UnitFacts, combine
from shoal.vector.statistics import report
from shoal.vector.turns import give_back, holds_turn
from shoal.vector.vec import FAILED, READY

VERBS = {
    AutoresetMode.NEXT_STEP: STEP_NEXT,
    AutoresetMode.SAME_STEP: STEP_SAME,
    AutoresetMode.DISABLED: STEP_DISABLED,
}

# Their threads do not follow into a process that is forked.
_made: weakref.WeakSet[Native] = weakref.WeakSet()


def _disable_fast_path() -> None:
    for vec in _made:
        vec._quick = False  # the normal path raises the error


os.register_at_fork(after_in_child=_disable_fast_path)


class Native(NativeSnapshots):
    """Many compiled envs, behind the same contract as `shoal.Serial`.

    With ``copy=False`` nothing is copied and nothing allocated: rewards and flags are views too, valid until
    the next step.

    Args:
        env: A `shoal.NativeEnv` class, or a list with one for each env: the same class, or
            ``functools.partial`` of it with other parameters.
        num_envs: How many, of one class.
        env_kwargs: Values for its constants and parameters; a parameter may have an array with one for each
            env.
        num_workers: Threads, this one counted; by default one for each core this process may use.
        render_mode: ``"rgb_array"`` if `render` is to give frames.
        debug: Run the env's functions uncompiled, so that breakpoints and prints work in them.
        check: Compile them so that an index outside of its array raises a `shoal.errors.NativeError` with the
            line, instead of reading or writing elsewhere. ``SHOAL_NATIVE_CHECK=1`` in the environment does so
            for all.
        autoreset_mode: As for `shoal.Serial`, and so are `flat`, `copy`, `seed`, `episode_stats` and
            `rows_as_envs`.
        flat: See `shoal.Serial`.
        copy: See `shoal.Serial`.
        seed: See `shoal.Serial`.
        episode_stats: See `shoal.Serial`.
        rows_as_envs: See `shoal.Serial`.
        batch_size: Envs in a batch; with less than all of them the vec is asynchronous, as
            `shoal.Multiprocessing` is.
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

    def __new__(
        cls,
        env: Any = None,
        num_envs: Any = None,
        *,
        batch_size: Any = None,
        surplus_envs: Any = 0,
        mode: Any = None,
        **_: Any,
    ) -> Self:
        """One that waits for all envs, or one that does not."""
        if cls is Native and is_async(env, num_envs, batch_size, surplus_envs, mode):
            from shoal.vector._native_async import AsyncNative

            return cast(Self, object.__new__(AsyncNative))
        return super().__new__(cls)

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
        resetting = autoreset(autoreset_mode)
        options = Options(resetting, flat, copy, seed, episode_stats, "same", rows_as_envs)
        self._native_spec, count = spec_of(env, num_envs, dict(env_kwargs or {}))
        count = self._shape(count, batch_size, surplus_envs, mode, order)
        spec = self._native_spec
        metadata = dict(spec.cls.metadata)
        if render_mode is not None and (
            spec.cls.render is None or render_mode not in metadata["render_modes"]
        ):
            raise ArgumentError(
                f"render_mode: {spec.cls.__name__} has no {render_mode!r}: expected 'rgb_array', and a "
                "render(state) in the class, or None"
            )
        agents = tuple(f"agent_{i}" for i in range(spec.agents))
        facts = UnitFacts(
            spec.observation.space, spec.action.space, count, agents, metadata, render_mode, None
        )
        described = combine([facts], "same", resetting, objects=False)
        arena = Arena.allocate(count * spec.agents, described.observation, described.action)
        self._columns = Columns(spec, arena, count, finals=resetting is AutoresetMode.SAME_STEP)
        self._step_verb, self.debug = VERBS[resetting], debug
        self.check = not debug and (check or os.environ.get("SHOAL_NATIVE_CHECK", "") not in ("", "0"))
        self._replay = Replay(spec, self._columns) if self.check else None
        self.num_workers = 1 if debug else _threads(num_workers)
        self._seeds_given: list[int | None] = [None] * count
        self._quick = False
        super().__init__(described, arena, options)
        self._start()
        _made.add(self)

    def _shape(self, count: int, batch_size: Any, surplus_envs: Any, mode: Any, order: Any) -> int:
        """How many envs are simulated."""
        self._batching = Batching.of(
            self._native_spec.cls, count, batch_size, surplus_envs, mode, order, parent_steps=False
        )
        return len(self._batching.creators)

    def _start(self) -> None:
        """Compile, and start the threads."""
        self._loop: Any
        if self.debug:
            self._loop = DebugKernel(self._native_spec, self._columns)
            return
        from shoal._core._native import NativeLoop

        self._loop = self._made_by(NativeLoop, self._total_envs, others=self.num_workers - 1)
        self._may_be_quick = (
            self._step_verb == STEP_NEXT
            and not self.check
            and not self.copy
            and self._clock is None
            and isinstance(self._observe(), np.ndarray)
            and self._whole.actions.usual is not None
        )
        if self._may_be_quick:
            arena = self._arena
            self._loop.prepare(
                ORDER.index("actions"),
                self._step_verb,
                self._whole.actions.usual,
                arena.mask,
                (self._observe(), arena.rewards, arena.terminations, arena.truncations),
            )

    def _made_by(self, kind: Any, division: int | list[int], *, others: int) -> Any:
        """Compile, and make the part of the core that runs the kernel.

        Args:
            kind: The class of the core.
            division: How many envs there are, or where each block of them ends.
            others: Threads beside this one.
        """
        self._kernel = compiled(self._native_spec, checked=self.check)
        _, patience = patience_with(others, usable_cores())
        with obtaining(f"{self.num_workers} threads", "Use fewer by num_workers"):
            return kind(
                self._kernel.address,
                self._of_a_crash(),
                self._columns.addresses,
                (self._columns, self._kernel.keeps),
                division,
                self.num_workers,
                patience.pauses,
                patience.yields,
            )

    def _of_a_crash(self) -> str:
        """What the core prints after the name of a signal if the process dies of it inside the kernel."""
        cls = self._native_spec.cls
        what = (
            "Its indices are checked, so that it was something else: a recursion without end, for instance"
            if self.check
            else "It may have read or written outside of an array: run it again with SHOAL_NATIVE_CHECK=1 in "
            "the environment, which names the line"
        )
        return f" in the compiled code of {cls.__module__}.{cls.__qualname__}. {what}.\n"

    # -- the verbs -------------------------------------------------------------------------------------

    @holds_turn
    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step every env with its action: see `shoal.VectorEnv.step`."""
        if self._quick and self._state is READY and not self._moving and not self._closed:
            try:
                self._moving = True  # no other thread has come between: there was no call (see `verb`)
                result = self._loop.step(actions)
                if result is False:
                    self._state = FAILED
                self._moving = False
            except BaseException as error:
                give_back(self, error)
                raise
            if self._closed:  # meanwhile
                give_back(self)  # type: ignore[unreachable]
            if result:
                return result  # type: ignore[no-any-return]
            if result is False:
                raise self._raised_inside()
        return super().step(actions)

    def _begin_reset(
        self,
        chosen: NDArray[np.bool_],
        seeds: Sequence[int | None],
        options: dict[str, Any] | None,
    ) -> Infos | None:
        self._choose(slice(None), chosen, seeds)
        self._run(RESET)
        self._enable_fast_path()
        return []

    def _launch_reset(
        self, chosen: NDArray[np.bool_], seeds: Sequence[int | None], options: dict[str, Any] | None
    ) -> None:
        self._check_reset(seeds, options)
        super()._launch_reset(chosen, seeds, options)

    def _check_reset(self, seeds: Sequence[int | None], options: dict[str, Any] | None) -> None:
        """Before anything moves."""
        keys_of(seeds)
        if options:
            raise ArgumentError(
                f"options: compiled envs have none beside reset_mask, got {sorted(options)}. What differs "
                "between envs is a parameter, which set_attr() changes"
            )

    def _choose(
        self,
        envs: slice | NDArray[np.int64],
        chosen: NDArray[np.bool_],
        seeds: Sequence[int | None],
    ) -> None:
        """Tell these envs, each in its place, whether they are to be reset and with which seed."""
        self._check_owner()
        arrays = self._columns.arrays
        keys, given = keys_of(seeds)
        for name, values in (("chosen", chosen), ("keys", keys), ("seeded", given)):
            arrays[name][envs] = values[envs]
        for env in np.flatnonzero(chosen & given).tolist():
            self._seeds_given[env] = seeds[env]

    def _send(self, actions: Any, env_ids: NDArray[np.int64] | None) -> None:
        self._refuse_never_reset()
        super()._send(actions, env_ids)

    def _refuse_never_reset(self) -> None:
        if self._never_reset.any():
            raise ResetNeeded(
                f"compiled envs have no state before their first reset: call {self._reset_verb}() first"
            )

    def _run(self, verb: int) -> None:
        if self._replay is not None:
            self._replay.keep(slice(0, self._total_envs), verb)
        if self._loop.run(verb) is None:
            raise self._raised_inside()

    def _raised_inside(self) -> NativeError:
        explained = self._replay.explain() if self._replay is not None else None
        what = (
            "and does not happen with debug=True: perhaps a float32 is rounded differently there"
            if self.check
            else "and printed. SHOAL_NATIVE_CHECK=1 in the environment, check=True and debug=True show where"
        )
        return explained or NativeError(
            f"something was raised inside the kernel of {self._native_spec.cls.__name__}, {what}. Not all "
            f"envs have moved; {self._reset_verb}() begins anew"
        )

    def _begin_step(self) -> Infos | None:
        self._check_owner()
        self._run(self._step_verb)
        self._enable_fast_path()
        return self._finals(slice(None)) if self._step_verb == STEP_SAME else []

    def _enable_fast_path(self) -> None:
        """Enable the fast path if its conditions hold."""
        self._quick = not self.debug and self._may_be_quick and not self._unchecked

    def _finals(self, rows: slice | NDArray[np.int64]) -> Infos:
        """What agents saw last whose episode has just ended."""
        arena = self._arena
        done = np.flatnonzero(arena.terminations[rows] | arena.truncations[rows])
        if not done.size:
            return []
        raw = self._columns.arrays["finals"].reshape(self.num_rows, -1)[rows][done]
        layout = self.observation_layout
        values = list(layout.flat(raw)) if self.flat else layout.root.split(layout.columns(raw), len(done))
        return [
            (row, {"final_obs": value, "final_info": {}})
            for row, value in zip(done.tolist(), values, strict=True)
        ]

    # -- access to the envs ----------------------------------------------------------------------------

    def set_attr(self, name: str, values: Any) -> None:
        """Set a parameter, or a field of the state that has bounds.

        Args:
            name: Of the parameter or field.
            values: An array, list or tuple gives each env its own value; anything else is for all.

        Raises:
            ArgumentError: If a value does not fit, or if the class declares no bounds for the field.
        """
        super().set_attr(name, list(values) if isinstance(values, np.ndarray) else values)

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        self._check_owner()
        spec, count = self._native_spec, self._total_envs
        if name == "np_random_seed":
            return list(self._seeds_given)
        column = self._column_of(name)
        if column is not None:
            return list(column.copy())
        if name in spec.constants:
            return [spec.constants[name]] * count
        try:
            value = getattr(spec.cls, name)
        except AttributeError:
            known = ", ".join([*spec.parameters, *(spec.state.names or ()), *spec.constants])
            raise AttributeError(f"{spec.cls.__name__} has no {name!r}. Its envs have {known}") from None
        return [value(*args, **kwargs) if callable(value) else value for _ in range(count)]

    def _column_of(self, name: str) -> NDArray[Any] | None:
        """The values of a parameter, or of a field of the state."""
        if name in (self._columns.parameters.dtype.names or ()):
            return self._columns.parameters[name]
        if name in (self._native_spec.state.names or ()):
            return self._columns.arrays["states"].view(self._native_spec.declared)[name]
        return None

    def _set_attr(self, name: str, values: Sequence[Any]) -> None:
        self._check_owner()
        column = self._column_of(name)
        if column is None and name in self._native_spec.constants:
            raise AttributeError(
                f"{name}: this is a constant of {self._native_spec.cls.__name__}, compiled in. Pass another "
                "value as env_kwargs when the vec is made, or let it be a parameter of the class"
            )
        if column is None:
            known = ", ".join([*self._native_spec.parameters, *(self._native_spec.state.names or ())])
            raise AttributeError(f"{name}: expected a parameter or a field of the state: {known}")
        spec = self._native_spec
        if name not in spec.parameters and name not in spec.bounds:
            raise ArgumentError(
                f"{name}: this field of the state of {spec.cls.__name__} can be read only. Its compiled code "
                "trusts it, and may read or write anywhere if the value makes no sense. The class can allow "
                f"it, by bounds = {{{name!r}: (lowest, highest)}}; or make what is to be set a parameter"
            )
        given = np.asarray(values)
        if given.shape != column.shape or not np.can_cast(given.dtype, column.dtype, "same_kind"):
            raise ArgumentTypeError(
                f"{name}: expected {column.dtype} of shape {column.shape[1:]} for each env, got "
                f"{given.dtype} of shape {given.shape[1:]}"
            )
        column[:] = fitting(name, given, column.dtype, spec.bounds.get(name))

    def _render(self) -> list[Any]:
        self._check_owner()
        spec = self._native_spec
        if self.render_mode is None:
            return [None] * self._total_envs
        draw: Any = inspect.getattr_static(spec.cls, "render").__func__
        states = Records(self._columns.arrays["states"].view(spec.declared).copy())
        frames = []
        for env in range(self._total_envs):
            own = dict(zip(spec.parameters, self._columns.parameters[env].tolist(), strict=True))
            known = {
                "state": states[env],
                "config": SimpleNamespace(**spec.constants, **own),
            }
            frames.append(draw(**{name: known[name] for name in arguments_of(draw)}))
        return frames

    # -- the end ---------------------------------------------------------------------------------------

    def _shut(self) -> list[Exception]:
        self._quick = False
        while os.getpid() == self._owner:
            try:
                self._end_threads()
            except RuntimeError:  # another thread is in the middle of a step, which ends by itself
                time.sleep(0.0005)
            else:
                break
        return []

    def _end_threads(self) -> None:
        if not self.debug:
            self._loop.close()

    def stats(self) -> dict[str, Any]:
        """Counts and times since the vec was made; see `shoal.vector.statistics`."""
        figures = self._transitions.figures()
        if not self.debug:
            figures = tuple(ours + quick for ours, quick in zip(figures, self._loop.figures(), strict=True))
        return report(figures)

    def _check_owner(self) -> None:
        if os.getpid() != self._owner:
            raise WorkerError(
                "this vec was made by the process from which this one was forked, and its threads are there: "
                "make a new one here"
            )

    def _counts(self) -> dict[str, Any]:
        how = {"debug": True} if self.debug else {"num_workers": self.num_workers}
        return {**super()._counts(), **how, **({"check": True} if self.check else {})}


def _threads(num_workers: Any) -> int:
    if num_workers is None:
        return usable_cores()
    if not isinstance(num_workers, (int, np.integer)) or isinstance(num_workers, bool) or num_workers < 1:
        raise ArgumentError(f"num_workers: expected a positive integer, got {num_workers!r}")
    return int(num_workers)
