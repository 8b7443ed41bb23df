"""Multiprocessing: envs in worker processes, rows in memory that all of them share."""

from __future__ import annotations

import atexit
import math
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Self, cast

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal import _core
from shoal.caller_warning import warn_caller
from shoal.cores import patience_with, usable_cores
from shoal.errors import ArgumentError, CoreNeeded, WorkerError
from shoal.processes.launcher_client import check_start_method
from shoal.processes.placement import Plan
from shoal.rows.arena import Arena, SharedMemory
from shoal.stepping.block import Block, build_envs, close_all, names_of
from shoal.stepping.env_faults import Guard, summary_of
from shoal.stepping.row_slice import Infos, Run
from shoal.vector.batching import Batching, is_async
from shoal.vector.options import Options, autoreset
from shoal.vector.spaces import ObservationMode, UnitFacts, combine
from shoal.vector.statistics import report
from shoal.vector.vec import VectorEnv


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
        batch_size: Envs in a batch, counted as `num_envs` are. With less than all of them the vec is
            asynchronous: `recv` returns a batch while the other envs go on, `send` takes actions for it.
        surplus_envs: Envs beside `num_envs`, so that batches of `num_envs` need not wait for the slowest.
        mode: ``"sync"`` or ``"async"``; by default what the two before say.
        order: Of an asynchronous vec: ``"fifo"`` returns envs in the order in which they were sent, a fixed
            cycle that reproduces itself; ``"ready"`` those that have finished first.

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
        if cls is Multiprocessing and is_async(env, num_envs, batch_size, surplus_envs, mode):
            from shoal.vector._async_pool import AsyncMultiprocessing

            return cast(Self, object.__new__(AsyncMultiprocessing))
        return super().__new__(cls)

    @staticmethod
    def is_available() -> bool:
        """Whether there is what it needs: Linux, and the compiled core."""
        return sys.platform == "linux" and _core.NAME == "native"

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
        batch_size: int | None = None,
        surplus_envs: int = 0,
        mode: str | None = None,
        order: str = "fifo",
    ) -> None:
        if sys.platform != "linux":
            raise CoreNeeded("Multiprocessing needs Linux. Use shoal.Serial.")
        if not self.is_available():
            raise CoreNeeded(
                "Multiprocessing needs the compiled core, which this installation does not have or "
                "SHOAL_CORE has switched off. Install with a C++ compiler at hand, or use shoal.Serial."
            )
        from shoal.processes.workers import Crew

        resetting = autoreset(autoreset_mode)
        options = Options(resetting, flat, copy, seed, episode_stats, observation_mode, rows_as_envs)
        batching = Batching.of(
            env, num_envs, batch_size, surplus_envs, mode, order, parent_steps=parent_steps
        )
        if (batching.order is not None) != (type(self).recv is not VectorEnv.recv):
            raise ArgumentError(
                "batch_size: an asynchronous vec cannot be made of a generator of creators, nor by a "
                "subclass of Multiprocessing. Pass a list"
            )
        method = check_start_method(start_method)
        restarts = _check_faults(timeout, on_error, parent_steps)
        plan = batching.plan(num_workers, envs_per_worker, usable_cores())
        self.env_fns, self.num_workers, self.parent_steps = batching.creators, plan.num_workers, parent_steps
        self._order, self._timeout = order, timeout
        with ExitStack() as undo:  # unless all of it works
            self._units = build_envs(self.env_fns[: plan.own])
            undo.callback(close_all, self._units)
            units = [plan.of_worker(worker) for worker in range(plan.num_workers)]
            creators = [[self.env_fns[unit] for unit in own] for own in units]
            self._crew = Crew(creators, units, method, timeout)
            undo.callback(self._crew.end)
            self._share_out(plan, units, options, restarts, undo)
            undo.pop_all()
        _remember(self)

    def _share_out(
        self, plan: Plan, units: list[list[int]], options: Options, restarts: bool, undo: ExitStack
    ) -> None:
        """Lay out the memory, and tell every worker its share of it."""
        from shoal.processes.calls import Pool
        from shoal.processes.restarts import Restarts
        from shoal.processes.share import shares_of

        mode, flat = options.autoreset_mode, options.flat
        with Guard("a space or a property of an env"):
            facts = {unit: UnitFacts.of(own, names_of(own)) for unit, own in enumerate(self._units)}
            for own, told in zip(units, self._crew.facts, strict=True):
                facts.update(zip(own, told, strict=True))
            in_order = [facts[unit] for unit in range(len(self.env_fns))]
            described = combine(in_order, options.observation_mode, mode, objects=not flat)
        cores = usable_cores()
        own_patience, patience = patience_with(plan.num_workers, cores)
        shares = shares_of(
            plan,
            [fact.num_envs for fact in in_order],
            agents=len(described.agents),
            observation=described.observation.space,
            action=described.action.space,
            mode=mode,
            flat=flat,
            patience=patience,
            keeps=restarts,
        )
        memory = SharedMemory(shares[0].nbytes())
        undo.callback(memory.close)
        arena = shares[0].arena(memory.block)
        arena.begin()
        self._crew.assign(shares, memory, own_patience, cores, parent_steps=self.parent_steps)
        self._signals, self._shares = self._crew.signals, shares
        self._parts = sorted((part for share in shares for part in share.parts), key=lambda part: part.number)
        objects = [shares[0].rows_of(part, arena).observation_objects for part in self._parts]
        self._pool = Pool(self._crew, self._timeout, objects)
        undo.callback(self._pool.close)
        self._own: Block | None = None
        if plan.own:
            run = Run(arena, described.observation, described.action, mode, flat=flat)
            self._own = Block(self._units, run.part(0, self._parts[0].first_env, len(described.agents)))
        self._own_infos: Infos = []
        self._unheard = False  # whether something is under way that nobody has asked for yet
        self._restarts: Restarts | None = None
        if restarts:
            kept = shares[0].kept(memory.block)
            self._restarts = Restarts(self._crew, self._pool, shares, arena, kept, described.observation)
        super().__init__(described, arena, options)
        self._sends_objects = described.action.num_objects > 0
        if self._sends_objects:
            self._whole.actions.dumps = self._crew.dumps
            self._whole.actions.own_rows = self._parts[0].first_env * self.agents_per_env
        self._take_shape(plan, arena)

    def _take_shape(self, plan: Plan, arena: Arena) -> None:
        """What an asynchronous vec has beside."""

    # -- the verbs -------------------------------------------------------------------------------------

    def _begin_step(self) -> None:
        self._check_owner()
        if self._restarts is None:
            self._pool.refuse_if_lost()
        else:
            self._restarts.begin(range(len(self._parts)))
        if self._sends_objects:
            self._ask_steps(range(len(self._parts)))
        elif self._crew.lost:
            self._pool.post_steps(range(len(self._parts)))
        else:
            self._signals.post_steps()
        if self._own is not None:
            self._own_infos = self._own.step()
        self._unheard = True

    def _ask_steps(self, blocks: Sequence[int]) -> None:
        """Ask for a step by message, which has what actions hold beside bytes."""
        from shoal.processes.objects import action_pickles

        rows = [self._shares[0].rows_of(self._parts[block], self._arena) for block in blocks]
        requests = self._pool.requests("act", [(action_pickles(own),) for own in rows])
        for block, request in zip(blocks, requests, strict=True):
            self._pool.ask(block, request)

    def _begin_reset(
        self,
        chosen: NDArray[np.bool_],
        seeds: Sequence[int | None],
        options: dict[str, Any] | None,
    ) -> None:
        self._check_owner()
        blocks = range(len(self._parts))
        requests = self._reset_requests(blocks, chosen, seeds, options)
        self._drop_what_is_under_way("reset")
        if self._crew.lost and not chosen.all():
            if self._restarts is None:
                raise self._crew.loss(min(self._crew.lost))
            for worker in self._crew.lost:  # who takes its place begins with all its envs
                for part in self._shares[worker].parts:
                    chosen[part.envs] = True
            requests = self._reset_requests(blocks, chosen, seeds, options)
        if self._restarts is not None:
            self._restarts.begin(blocks, chosen, seeds, options)
        self._replace_the_lost()
        for block, request in enumerate(requests):
            self._pool.ask(block, request)
        if self._own is not None:
            first = self._parts[0].first_env
            self._own_infos = self._own.reset(chosen[:first], seeds[:first], options)
        self._unheard = True

    def _reset_requests(
        self,
        blocks: Sequence[int],
        chosen: NDArray[np.bool_],
        seeds: Sequence[int | None],
        options: dict[str, Any] | None,
    ) -> list[bytes]:
        envs = [self._parts[block].envs for block in blocks]
        return self._pool.requests("reset", [(chosen[own], list(seeds[own]), options) for own in envs])

    def _drop_what_is_under_way(self, verb: str) -> None:
        unheard, self._unheard = self._unheard, False
        self._crew.notice_deaths()
        dropped = self._pool.finish_calls()
        self._pool.drop(range(len(self._parts)))
        self._crew.refuse_if_ended()
        if unheard:  # else it has been told, or interrupted
            for error in dropped:
                warn_caller(f"dropped by {verb}(): {summary_of(error)}")

    def _replace_the_lost(self) -> None:
        for worker in sorted(self._crew.lost):
            due = None if self._restarts is None else self._restarts.seeds_for_another(worker)
            self._crew.replace(worker, due)

    def _finish(self) -> Infos:
        self._check_owner()
        self._unheard = False
        with self._pool.interruption:
            came = None
            if not self._crew.lost and not self._pool.failures:
                came = self._signals.wait_and_take(-1.0 if self._timeout is None else self._timeout)
            if came != 0:
                return self._hear(came)
        infos, self._own_infos = self._own_infos, []  # as nearly always: nothing but rows
        return infos

    def _hear(self, came: int | None) -> Infos:
        """What the workers have to say, beside their rows."""
        from shoal.processes.calls import first_of

        self._pool.wait(for_all=self._restarts is not None, came=came)
        if self._pool.failures and self._restarts is None:
            raise first_of(self._pool.take_failures())
        failures, said = self._pool.take_failures(), self._pool.heard
        if self._restarts is not None:
            for worker in sorted(failures):
                verbs = dict.fromkeys(self._crew.blocks[worker], self._pending)
                said.update(self._restarts.mend(worker, failures[worker], verbs))
        infos, self._own_infos = self._own_infos, []
        for block in sorted(said):
            first = self._parts[block].first_env * self.agents_per_env
            infos = infos + [(first + row, info) for row, info in said[block]]
        self._pool.drop(range(len(self._parts)))
        return infos

    # -- access to the envs ----------------------------------------------------------------------------

    def _ask_all(self, verb: str, arguments: Callable[[slice], tuple[Any, ...]]) -> list[Any]:
        """One result for each block; the parent's own comes first.

        Args:
            verb: Of a block.
            arguments: For the block with these envs.
        """
        self._check_owner()
        results: list[Any] = []
        if self._own is not None:
            results.append(getattr(self._own, verb)(*arguments(slice(0, self._parts[0].first_env))))
        theirs = self._pool.ask_all(
            verb, [[arguments(part.envs) for part in share.parts] for share in self._shares]
        )
        by_block = {
            part.number: result
            for share, said in zip(self._shares, theirs, strict=True)
            for part, result in zip(share.parts, said, strict=True)
        }
        return results + [by_block[block] for block in range(len(self._parts))]

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        results = self._ask_all("call", lambda envs: (name, args, kwargs))
        return [value for part in results for value in part]

    def _set_attr(self, name: str, values: Sequence[Any]) -> None:
        self._ask_all("set_attr", lambda envs: (name, list(values[envs])))

    def _render(self) -> list[Any]:
        frames = self._ask_all("render", lambda envs: ())
        return [frame for part in frames for frame in part]

    def _freeze(self) -> Any:
        return self._ask_all("snapshot", lambda envs: ())

    def _thaw(self, state: Any) -> None:
        self._check_owner()
        self._drop_what_is_under_way("restore")
        self._replace_the_lost()
        first = [0] * bool(self.parent_steps) + [part.first_env for part in self._parts]
        by_start = dict(zip(first, state, strict=True))
        self._ask_all("restore", lambda envs: (by_start[envs.start],))

    def _kind(self) -> dict[str, Any]:
        sizes = [part.num_envs for part in self._parts]
        if self._own is not None:
            sizes.insert(0, self._parts[0].first_env)
        return {**super()._kind(), "split of envs among processes": sizes}

    # -- the end ---------------------------------------------------------------------------------------

    def _interrupt(self) -> None:
        self._crew.interrupt()

    def _shut(self) -> list[Exception]:
        if "_signals" not in vars(self):  # an earlier close() was interrupted after its last line
            return []
        # If a verb was interrupted, it had the lines to the workers: nothing can be said to them any more.
        errors = self._pool.close(at_once=self._crew.ended)
        if os.getpid() != self._owner:
            return []
        errors += close_all(self._units)
        self._give_memory_back()
        return errors

    def _give_memory_back(self) -> None:
        """Drop all references to the shared memory; views that the user holds still keep it."""
        self.stats = partial(dict, self.stats())  # type: ignore[method-assign]
        empty = Arena.allocate(0, self.observation_layout, self.action_layout)
        self._arena = replace(empty, mask=self._arena.mask.copy())
        own = ("_mask", "_whole", "_observe", "_transitions", "_own", "_restarts", "_units", "_signals")
        held = [(self, own), (self._crew, ("_memory", "signals")), (self._pool, ("signals",))]
        for owner, names in held:
            for name in names:
                vars(owner).pop(name, None)

    def stats(self) -> dict[str, Any]:
        """Counts and times since the vec was made; see `shoal.vector.statistics`."""
        _, signal, slowest, _, _ = self._signals.figures()
        hops = {"seconds_step": slowest, "seconds_signal": signal}
        return report(self._transitions.figures(), {**hops, **self._worker_figures()})

    def _worker_figures(self) -> dict[str, float]:
        waited, _, _, worked, idle = self._signals.figures()
        return {
            "seconds_waiting": waited,
            "seconds_workers_stepping": worked / self.num_workers,
            "seconds_workers_waiting": idle / self.num_workers,
            "restarts": 0 if self._restarts is None else self._restarts.count,
        }

    def _check_owner(self) -> None:
        if os.getpid() != self._owner:
            raise WorkerError(
                "this vec was made by the process from which this one was forked, and only that one can use "
                "it: make a new one here"
            )

    def _counts(self) -> dict[str, Any]:
        own = {"parent_steps": True} if self.parent_steps else {}
        return {**super()._counts(), "num_workers": self.num_workers, **own}


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
