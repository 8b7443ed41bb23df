"""Multiprocessing: envs in worker processes, rows in memory that all of them share."""

from __future__ import annotations

import atexit
import math
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from gymnasium.vector import AutoresetMode

from shoal import _core
from shoal.cores import patience_with, usable_cores
from shoal.errors import ArgumentError, CoreNeeded
from shoal.processes.launcher_client import check_start_method
from shoal.processes.placement import Placement, place
from shoal.rows.arena import Arena, SharedMemory
from shoal.stepping.block import Block, Unit, build_envs, close_all, names_of
from shoal.stepping.env_faults import Guard
from shoal.stepping.row_slice import RowSlice
from shoal.vector.batching import Batching
from shoal.vector.options import VecOptions, autoreset
from shoal.vector.spaces import ObservationMode, UnitFacts, VecSpaces, combine
from shoal.vector.vec import VectorEnv

if TYPE_CHECKING:  # they need the compiled core
    from shoal.processes.engine import ProcessEngine
    from shoal.processes.restarts import Restarts
    from shoal.processes.workers import Workers


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
        from shoal.processes.workers import Workers

        options = VecOptions(
            autoreset(autoreset_mode), flat, copy, seed, episode_stats, observation_mode, rows_as_envs
        )
        batching = Batching.of(
            env, num_envs, batch_size, surplus_envs, mode, order, parent_steps=parent_steps
        )
        method = check_start_method(start_method)
        restarts = _check_faults(timeout, on_error, parent_steps)
        placement = place(batching, num_workers, envs_per_worker, usable_cores(), parent_steps=parent_steps)
        self.env_fns, self.num_workers = batching.creators, placement.num_workers
        self.parent_steps = parent_steps
        with ExitStack() as undo:  # unless all of it works
            own = build_envs(self.env_fns[: placement.own])
            undo.callback(close_all, own)
            units = [placement.of_worker(worker) for worker in range(placement.num_workers)]
            creators = [[self.env_fns[unit] for unit in theirs] for theirs in units]
            workers = Workers(creators, units, method, timeout)
            undo.callback(workers.end)
            in_order = _facts(own, units, workers.facts)
            spaces, arena, engine = _share_out(workers, placement, own, in_order, options, batching, restarts)
            undo.pop_all()
            undo.callback(engine.close)
            super().__init__(spaces, arena, engine, options, batching)
            if spaces.action.num_objects:
                self._whole.actions.dumps = workers.dumps
                self._whole.actions.own_rows = engine.blocks[0].first_env * self.agents_per_env
            undo.pop_all()
        _remember(self)


def _facts(own: Sequence[Unit], units: list[list[int]], theirs: list[list[UnitFacts]]) -> list[UnitFacts]:
    """Return what each creator made, in order: in this process, and in the workers."""
    with Guard("a space or a property of an env"):
        facts = {number: UnitFacts.of(unit, names_of(unit)) for number, unit in enumerate(own)}
    for numbers, told in zip(units, theirs, strict=True):
        facts.update(zip(numbers, told, strict=True))
    return [facts[number] for number in range(len(facts))]


def _share_out(
    workers: Workers,
    placement: Placement,
    own_units: list[Unit],
    facts: list[UnitFacts],
    options: VecOptions,
    batching: Batching,
    restarts: bool,
) -> tuple[VecSpaces, Arena, ProcessEngine]:
    """Lay out the shared memory, tell every worker its share of it, and make the engine."""
    from shoal.processes.blocks import Blocks
    from shoal.processes.calls import Calls
    from shoal.processes.engine import ProcessEngine
    from shoal.processes.restarts import Restarts
    from shoal.processes.share import shares_of

    mode, flat = options.autoreset_mode, options.flat
    with Guard("a space or a property of an env"):
        spaces = combine(facts, options.observation_mode, mode, objects=not flat)
    cores = usable_cores()
    own_patience, patience = patience_with(placement.num_workers, cores)
    shares = shares_of(
        placement,
        [fact.num_envs for fact in facts],
        agents=len(spaces.agents),
        observation=spaces.observation.space,
        action=spaces.action.space,
        mode=mode,
        flat=flat,
        patience=patience,
        keeps=restarts,
    )
    memory = SharedMemory(shares[0].nbytes())
    arena = shares[0].arena(memory.block)
    arena.begin()
    if batching.order is not None:
        workers.reset_verb = "async_reset"
    workers.assign(shares, memory, own_patience, cores, parent_steps=placement.own > 0)
    rows = [share.rows_of(block, arena) for share in shares for block in share.blocks]
    numbers = [block.number for share in shares for block in share.blocks]
    objects = [rows[numbers.index(number)].observation_objects for number in range(len(rows))]
    calls, states = Calls(workers, objects), Blocks()
    own: Block | None = None
    if own_units:
        whole = RowSlice(arena, spaces.observation, spaces.action, mode, flat=flat)
        own = Block(
            own_units,
            whole.part(0, sum(fact.num_envs for fact in facts[: placement.own]), len(spaces.agents)),
        )
    replacing: Restarts | None = None
    if restarts:
        kept = shares[0].kept(memory.block)
        replacing = Restarts(workers, calls, states, shares, arena, kept, spaces.observation)
    engine = ProcessEngine(
        workers,
        calls,
        shares,
        arena,
        own,
        replacing,
        states,
        waits_for_all=batching.order is None,
        sends_objects=spaces.action.num_objects > 0,
    )
    return spaces, arena, engine


_open: weakref.WeakSet[Multiprocessing] = weakref.WeakSet()


def _remember(vec: Multiprocessing) -> None:
    """Close the vec at exit, if it has not been closed by then."""
    atexit.unregister(_close_what_is_open)
    atexit.register(_close_what_is_open)  # after that of the launcher, so that it runs before it
    _open.add(vec)


def _close_what_is_open() -> None:
    for vec in list(_open):
        vec.__del__()  # there is no caller that an error could reach


def _check_faults(timeout: Any, on_error: Any, parent_steps: bool) -> bool:
    """Check what to do about faults; return whether lost workers are replaced."""
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
