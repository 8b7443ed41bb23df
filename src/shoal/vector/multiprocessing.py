"""Multiprocessing: envs in worker processes, rows in memory that all of them share."""

from __future__ import annotations

import atexit
import math
import os
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal import _core
from shoal._core.run import Infos, Run
from shoal.buffers import SharedMemory
from shoal.errors import ArgumentError, CoreNeeded, WorkerError
from shoal.vector._cores import patience_with, split, usable_cores
from shoal.vector._launching import check_start_method
from shoal.vector._remote_errors import summary_of
from shoal.vector.arguments import autoreset, creators_of
from shoal.vector.base import VectorEnv
from shoal.vector.block import Block, agents_of, build_envs, close_all
from shoal.vector.spaces import ObservationMode, UnitFacts, combine
from shoal.vector.statistics import report


class Multiprocessing(VectorEnv):
    """Many envs on many cores, behind the same contract as `shoal.Serial` and with the same trajectories.

    Each worker process owns a run of neighbouring envs and writes their rows into memory that it shares with
    this process. A step passes no message: a counter goes up, the workers step, their counters follow.

    Args:
        env: As for `shoal.Serial`. Lambdas, local classes and ids that only this process has registered work.
        num_envs: How often to call a single creator.
        num_workers: Worker processes; by default one for each core this process may use.
        envs_per_worker: Creators per worker, instead of `num_workers`.
        autoreset_mode: As for `shoal.Serial`, and so are `flat`, `copy`, `seed`, `episode_stats`,
            `observation_mode` and `rows_as_envs`.
        flat: See `shoal.Serial`.
        copy: See `shoal.Serial`.
        seed: See `shoal.Serial`.
        episode_stats: See `shoal.Serial`.
        observation_mode: See `shoal.Serial`.
        rows_as_envs: See `shoal.Serial`.
        timeout: Seconds for any one wait for the workers, their start included; then `WorkerTimeout` is
            raised. None waits for ever.
        on_error: ``"raise"``, or ``"restart"``: a worker whose env raises, hangs beyond `timeout` or dies is
            replaced, its rows are reported as truncated and in ``infos["restarted"]``, and a `RestartWarning`
            says why. This costs a copy of all rows at every step.
        start_method: ``"forkserver"`` (default), ``"fork"`` or ``"spawn"``. Scripts need no
            ``if __name__ == "__main__"``.
        parent_steps: This process steps a share of the envs itself instead of waiting, which is fastest where
            there are few cores. Nothing can be done about an env that hangs or crashes natively in that
            share, so it cannot be combined with `timeout` or ``on_error="restart"``.

    Example:
        >>> import gymnasium, shoal
        >>> with shoal.Multiprocessing(
        ...     lambda: gymnasium.make("CartPole-v1"), num_envs=4, num_workers=2
        ... ) as vec:
        ...     obs, infos = vec.reset(seed=0)
        ...     obs, rewards, terminations, truncations, infos = vec.step([0, 1, 0, 1])
        >>> rewards
        array([1., 1., 1., 1.])
    """

    def __init__(
        self,
        env: Callable[[], Any] | Sequence[Callable[[], Any]],
        num_envs: int | None = None,
        *,
        num_workers: int | None = None,
        envs_per_worker: int | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        flat: bool = False,
        copy: bool = True,
        seed: int | None = None,
        episode_stats: bool = False,
        observation_mode: ObservationMode = "same",
        rows_as_envs: bool = False,
        timeout: float | None = None,
        on_error: str = "raise",
        start_method: str | None = None,
        parent_steps: bool = False,
    ) -> None:
        if sys.platform != "linux":
            raise CoreNeeded("Multiprocessing needs Linux. Use shoal.Serial.")
        if _core.NAME != "native":
            raise CoreNeeded(
                "Multiprocessing needs the compiled core, which this installation does not have or "
                "SHOAL_CORE has switched off. Install with a C++ compiler at hand, or use shoal.Serial."
            )
        from shoal.vector._pool import Pool
        from shoal.vector._restarts import Restarts
        from shoal.vector._share import Share

        mode = autoreset(autoreset_mode)
        self.env_fns = creators_of(env, num_envs)
        method = check_start_method(start_method)
        restarts = _check_faults(timeout, on_error, parent_steps)
        cores = usable_cores()
        sizes = split(len(self.env_fns), num_workers, envs_per_worker, cores, parent_steps=parent_steps)
        parts = [self.env_fns[first:last] for first, last in pairwise(accumulate(sizes, initial=0))]
        own = parts.pop(0) if parent_steps else []
        self._timeout, self.parent_steps = timeout, parent_steps
        self._owner = os.getpid()
        self._units = build_envs(own)
        memory: SharedMemory | None = None
        try:
            self._pool = Pool(parts, len(own), method, timeout)
        except BaseException:
            close_all(self._units)
            raise
        try:
            own_facts = [UnitFacts.of(unit, agents_of(unit)) for unit in self._units]
            facts = [own_facts] * bool(own) + self._pool.facts
            described = combine(
                [fact for part in facts for fact in part], observation_mode, mode, objects=False
            )
            agents = described.agents_per_env
            envs = list(accumulate((sum(fact.num_envs for fact in part) for part in facts), initial=0))
            own_patience, patience = patience_with(len(parts), cores)
            shares = [
                Share(
                    worker=worker,
                    num_workers=len(parts),
                    rows=described.num_envs * agents,
                    first_env=first,
                    num_envs=last - first,
                    first_row=first * agents,
                    last_row=last * agents,
                    observation=described.observation.space,
                    action=described.action.space,
                    mode=mode,
                    flat=flat,
                    patience=patience,
                    keeps=restarts,
                )
                for worker, (first, last) in enumerate(list(pairwise(envs))[bool(own) :])
            ]
            memory = SharedMemory(shares[0].nbytes())
            arena = shares[0].arena(memory.block)
            arena.mask[:] = True
            self._pool.assign(shares, memory, own_patience, cores, parent_steps=parent_steps)
            self._signals, self._shares = self._pool.signals, shares
            self._own: Block | None = None
            if own:
                run = Run(arena, described.observation, described.action, mode, flat=flat)
                self._own = Block(self._units, run.part(0, envs[1], agents))
            self._own_infos: Infos = []
            self._unheard = False  # whether something is under way that nobody has asked for yet
            self._restarts: Restarts | None = None
            if restarts:
                kept = shares[0].kept(memory.block)
                self._restarts = Restarts(self._pool, shares, arena, kept, described.observation)
            self.num_workers = len(parts)
            super().__init__(
                described,
                arena,
                autoreset_mode=mode,
                flat=flat,
                copy=copy,
                seed=seed,
                episode_stats=episode_stats,
                rows_as_envs=rows_as_envs,
                check_bounds=observation_mode == "same",
            )
        except BaseException:
            self._pool.close()
            if memory is not None:
                memory.close()
            close_all(self._units)
            raise
        self.observation_mode = observation_mode
        _remember(self)

    # -- the verbs -------------------------------------------------------------------------------------

    def _begin_step(self) -> None:
        self._check_owner()
        if self._restarts is None:
            self._pool.refuse_if_lost()
        else:
            self._restarts.begin()
        self._signals.post(0)  # a step
        if self._own is not None:
            self._own_infos = self._own.step()
        self._unheard = True

    def _begin_reset(
        self,
        chosen: NDArray[np.bool_],
        seeds: Sequence[int | None],
        options: dict[str, Any] | None,
    ) -> None:
        self._check_owner()
        parts = [slice(share.first_env, share.first_env + share.num_envs) for share in self._shares]
        if self._restarts is not None:
            for worker in self._pool.lost:  # who takes its place begins with all its envs
                chosen[parts[worker]] = True
        requests = self._pool.requests(
            "reset", [(chosen[part], list(seeds[part]), options) for part in parts]
        )
        if self._restarts is not None:
            self._restarts.begin(chosen, seeds, options)
        elif not chosen.all():
            self._pool.refuse_if_lost()
        unheard, self._unheard = self._unheard, False
        dropped = self._pool.settle()
        if unheard:  # else it has been told, or interrupted
            for error in dropped:
                warnings.warn(f"dropped by reset(): {summary_of(error)}", stacklevel=6)
        for worker, request in enumerate(requests):
            self._pool.ask(worker, request)
        if self._own is not None:
            first = self._shares[0].first_env
            self._own_infos = self._own.reset(chosen[:first], seeds[:first], options)
        self._unheard = True

    def _finish(self) -> Infos:
        self._unheard = False
        try:
            came = None
            if not self._pool.lost:
                came = self._signals.wait(-1.0 if self._timeout is None else self._timeout)
            if came != 0:
                return self._hear(came)
        except Exception:
            raise
        except BaseException:
            self._pool.interrupted = True
            raise
        infos, self._own_infos = self._own_infos, []  # as nearly always: nothing but rows
        return infos

    def _hear(self, came: int | None) -> Infos:
        """What the workers have to say, beside their rows."""
        from shoal.vector._pool import first_of

        messages, failures = self._pool.wait(for_all=self._restarts is not None, came=came)
        if failures and self._restarts is None:
            raise first_of(failures)
        if self._restarts is not None:
            for worker in sorted(failures):
                messages[worker] = self._restarts.mend(worker, failures[worker], self._pending)
        infos, self._own_infos = self._own_infos, []
        for worker in sorted(messages):
            first = self._shares[worker].first_row
            infos = infos + [(first + row, info) for row, info in messages[worker]]
        return infos

    # -- access to the envs ----------------------------------------------------------------------------

    def _ask_all(self, verb: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """One result per worker; the parent's own share comes first."""
        self._check_owner()
        theirs = arguments[1:] if self._own is not None else arguments
        results = [] if self._own is None else [getattr(self._own, verb)(*arguments[0])]
        return results + self._pool.ask_all(verb, theirs)

    def _parts(self) -> list[slice]:
        """The envs of each share, the parent's own first."""
        parts = [slice(share.first_env, share.first_env + share.num_envs) for share in self._shares]
        return parts if self._own is None else [slice(0, parts[0].start), *parts]

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        results = self._ask_all("call", [(name, args, kwargs)] * len(self._parts()))
        return [value for part in results for value in part]

    def _set_attr(self, name: str, values: Sequence[Any]) -> None:
        self._ask_all("set_attr", [(name, list(values[part])) for part in self._parts()])

    def _render(self) -> list[Any]:
        frames = self._ask_all("render", [()] * len(self._parts()))
        return [frame for part in frames for frame in part]

    def _freeze(self) -> Any:
        theirs = self._ask_all("snapshot", [()] * len(self._parts()))
        return theirs if self._own is None else [(theirs[0], None, False), *theirs[1:]]

    def _thaw(self, state: Any) -> None:
        self._check_owner()
        self._pool.settle()
        parts = [(part,) for part in state]
        if self._own is not None:
            parts[0] = (state[0][0],)  # the parent's own share has no restarts
        self._ask_all("restore", parts)

    def _kind(self) -> dict[str, Any]:
        sizes = [part.stop - part.start for part in self._parts()]
        return {**super()._kind(), "split of envs among processes": sizes}

    # -- the end ---------------------------------------------------------------------------------------

    def _shut(self, *, moving: bool) -> list[Exception]:
        # In the middle of a call, from a signal handler or another thread, there is nobody to talk to.
        errors = self._pool.close(at_once=moving)
        if os.getpid() != self._owner:
            return []
        # A thread that still waits needs a moment to find out, also if Python is about to end.
        end = time.monotonic() + 1.0
        while self._signals.waits() and time.monotonic() < end:
            time.sleep(0.001)
        return errors + close_all(self._units)

    def stats(self) -> dict[str, Any]:
        """Counts and times since the vec was made; see `shoal.vector.statistics`."""
        waited, signal, slowest, worked, idle = self._signals.figures()
        workers = {
            "seconds_step": slowest,
            "seconds_signal": signal,
            "seconds_waiting": waited,
            "seconds_workers_stepping": worked / self.num_workers,
            "seconds_workers_waiting": idle / self.num_workers,
            "restarts": 0 if self._restarts is None else self._restarts.count,
        }
        return report(self._transitions.figures(), workers)

    def _check_owner(self) -> None:
        if os.getpid() != self._owner:
            raise WorkerError(
                "this vec was made by the process from which this one was forked, and only that one can use "
                "it: make a new one here"
            )

    def __repr__(self) -> str:
        """Backend, env and counts."""
        steps = ", parent_steps=True" if self.parent_steps else ""
        return f"{super().__repr__()[:-1]}, num_workers={self.num_workers}{steps})"


_open: weakref.WeakSet[Multiprocessing] = weakref.WeakSet()


def _remember(vec: Multiprocessing) -> None:
    """Close it at exit, if nobody else does."""
    atexit.unregister(_close_what_is_open)
    atexit.register(_close_what_is_open)  # after that of the launcher, so that it runs before it
    _open.add(vec)


def _close_what_is_open() -> None:
    for vec in list(_open):
        vec.__del__()  # nobody is left to hear of an error


def _check_faults(timeout: Any, on_error: Any, parent_steps: bool) -> bool:
    """Whether workers are to be restarted."""
    if timeout is not None and not (isinstance(timeout, (int, float)) and 0.0 < timeout < math.inf):
        raise ArgumentError(f"timeout: expected a positive number of seconds or None, got {timeout!r}")
    if on_error not in ("raise", "restart"):
        raise ArgumentError(f"on_error: expected 'raise' or 'restart', got {on_error!r}")
    if parent_steps and (timeout is not None or on_error == "restart"):
        wrong = "timeout" if timeout is not None else "on_error='restart'"
        raise ArgumentError(
            f"parent_steps: cannot be combined with {wrong}, because nothing can be done about an env that "
            "hangs or crashes in this process. Drop one of the two."
        )
    return bool(on_error == "restart")
