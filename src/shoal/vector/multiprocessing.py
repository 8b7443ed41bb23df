"""Multiprocessing: envs in worker processes, rows in shared memory."""

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

if TYPE_CHECKING:  # these modules need the compiled core
    from shoal.processes.engine import ProcessEngine
    from shoal.processes.restarts import Restarts
    from shoal.processes.workers import Workers


class Multiprocessing(VectorEnv):
    """Many envs on many cores, behind the same contract as `shoal.Serial` and with the same trajectories.

    Each worker process holds neighbouring envs and writes their rows into memory that it shares with this
    process. A step sends no message: this process increments a counter, the workers step, and each of them
    increments its own counter.

    Args:
        env: A creator or a list of creators; see `shoal.Serial`. Lambdas, local classes and ids that are
            registered only in this process work too.
        num_envs: How often to call the creator, if `env` is one creator.
        num_workers: The number of worker processes; by default one for each core that this process may use.
        envs_per_worker: The number of creators per worker, instead of `num_workers`.
        autoreset_mode: See `shoal.Serial`.
        flat: See `shoal.Serial`.
        copy: See `shoal.Serial`.
        seed: See `shoal.Serial`.
        episode_stats: See `shoal.Serial`.
        observation_mode: See `shoal.Serial`.
        rows_as_envs: See `shoal.Serial`.
        timeout: The longest wait for workers, in seconds, including their start. After it, `WorkerTimeout` is
            raised. With None, this process waits without a limit.
        on_error: ``"raise"`` or ``"restart"``. With ``"restart"``, a worker that dies, or whose env raises or
            hangs beyond `timeout`, is replaced. Its rows are reported as truncated and in
            ``infos["restarted"]``, and a `RestartWarning` gives the reason. This costs a copy of all rows at
            every step.
        start_method: ``"forkserver"`` (default), ``"fork"`` or ``"spawn"``. Scripts need no
            ``if __name__ == "__main__"``.
        parent_steps: Whether this process steps a share of the envs itself instead of waiting. This is
            fastest on few cores. An env of this share that hangs or crashes cannot be replaced, so
            `timeout` and ``on_error="restart"`` cannot be combined with it.
        batch_size: The number of envs in a batch, counted as for `num_envs`. If it is less than all envs, the
            vec is asynchronous: `recv` returns a batch while the other envs step, and `send` takes actions
            for the batch.
        surplus_envs: The number of additional envs, so that batches of `num_envs` envs do not wait for the
            slowest env.
        mode: ``"sync"`` or ``"async"``; by default `batch_size` and `surplus_envs` decide.
        order: The order of an asynchronous vec. ``"fifo"`` returns envs in the order in which they were sent:
            a fixed cycle, so runs can be reproduced. ``"ready"`` returns the envs that finished first.

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
        """Return whether this backend can run: it needs Linux and the compiled core."""
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
        with ExitStack() as undo:  # its callbacks run only if a line below raises
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
                self._all_rows.actions.dumps = workers.dumps
                self._all_rows.actions.own_rows = engine.blocks[0].first_env * self.agents_per_env
            undo.pop_all()
        _close_at_exit(self)


def _facts(own: Sequence[Unit], units: list[list[int]], theirs: list[list[UnitFacts]]) -> list[UnitFacts]:
    """Return the facts of all units, in order: of those in this process and of those in workers."""
    with Guard("a space or a property of an env"):
        facts = {number: UnitFacts.of(unit, names_of(unit)) for number, unit in enumerate(own)}
    for numbers, of_worker in zip(units, theirs, strict=True):
        facts.update(zip(numbers, of_worker, strict=True))
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
    """Lay out the shared memory, assign each worker its share of it, and make the engine."""
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


def _close_at_exit(vec: Multiprocessing) -> None:
    """Close the vec at exit, if it is not closed by then."""
    atexit.unregister(_close_open_vecs)
    atexit.register(_close_open_vecs)  # registered after the launcher's function, so that it runs before that
    _open.add(vec)


def _close_open_vecs() -> None:
    for vec in list(_open):
        vec.__del__()  # drops errors, because no caller could catch them


def _check_faults(timeout: Any, on_error: Any, parent_steps: bool) -> bool:
    """Check the arguments for faults of workers; return whether lost workers are replaced."""
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
