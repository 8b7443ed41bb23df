"""Make the contestants of `shoal bench`."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, iterate

import shoal
from shoal.adapters.single import SingleEnv, adopt
from shoal.cli._loops import Bare, Loop, Timed, Vector
from shoal.cli._turns import Unfit, why
from shoal.errors import ArgumentError, ShoalError
from shoal.registry import Source, find
from shoal.stepping.block import Unit, agents_of
from shoal.vector.native_creators import spec_of

BARE, NATIVE, SERIAL, PROCESSES = "bare loop", "shoal.Native", "shoal.Serial", "shoal.Multiprocessing"
SYNC, ASYNC = "gymnasium Sync", "gymnasium Async"
DIRECT, MADE = "direct use", "shoal.make"

# Native runs thousands of compiled envs. As Python objects they would take longer to make than to measure.
MOST_OBJECTS = 128

NUM_ACTIONS = 16384  # drawn in advance, about; more would not be more random
NATIVE_ROUNDS = 32  # repeats of all batches: a fast vec has to run for a while between readings of the clock


@dataclass(frozen=True)
class Task:
    """Hold what all contestants have in common.

    Attributes:
        name: Name of the env.
        num_envs: Envs in each vector env.
        num_workers: Worker processes of `shoal.Multiprocessing`; threads of `shoal.Native`.
        kwargs: Arguments for the env.
        source: The registry entry that makes the env.
        first: The first env made from it, not reset yet. The first contestant uses it; it is closed last.
        seconds: Time that making the first env took.
        action_space: Action space of all rows.
        batches: Actions for all rows, the same for all contestants.
        backend: "all" backends of Shoal, or "auto": the one that `shoal.make` chooses.
    """

    name: str
    num_envs: int
    num_workers: int | None
    kwargs: Mapping[str, Any]
    source: Source
    first: Unit
    seconds: float
    action_space: gymnasium.Space[Any]
    batches: list[Any]
    backend: str = "all"

    @property
    def creators(self) -> list[Callable[[], Any]]:
        """Return a creator for each env."""
        return [partial(self.source.create, **self.kwargs)] * self.num_envs

    def contestants(self) -> dict[str, Callable[[Task], Timed]]:
        """Return the function that makes each contestant, in the order of the table."""
        if self.source.steps_many:
            return {DIRECT: direct, MADE: made}
        if self.source.native is not None and isinstance(self.first, gymnasium.vector.VectorEnv):
            return {NATIVE: native}  # several agents, which Gymnasium's vector envs cannot have
        ours: dict[str, Callable[[Task], Timed]] = {} if self.source.native is None else {NATIVE: native}
        if self.backend == "all":
            ours |= {SERIAL: serial, PROCESSES: processes}
        elif not ours:
            ours = {MADE: made}
        return {BARE: bare, **ours, SYNC: gymnasium_sync, ASYNC: gymnasium_async}

    def check_objects(self) -> None:
        """Check that there are few enough envs to make a Python object of each.

        Raises:
            Unfit: If there are too many envs.
        """
        if self.source.native is not None and self.num_envs > MOST_OBJECTS:
            raise Unfit(f"makes an object for each env: measured up to {MOST_OBJECTS} compiled envs")


def set_task(
    name: str, num_envs: int, num_workers: int | None, kwargs: Mapping[str, Any], backend: str = "all"
) -> Task:
    """Find the env, make the first one, and draw actions for all rows.

    Raises:
        ArgumentError: If the env cannot be found or made.
    """
    try:
        source = find(name)
        begun = perf_counter()
        if source.steps_many:
            first = source.create(num_envs=num_envs, autoreset_mode=AutoresetMode.NEXT_STEP, **kwargs)
        elif source.native is not None and spec_of(source.native, 1, dict(kwargs))[0].agents > 1:
            first = shoal.make(name, env_kwargs=kwargs)
        else:
            first = adopt(source.create(**kwargs))
        seconds = perf_counter() - begun
    except ShoalError:
        raise
    except Exception as error:
        raise ArgumentError(f"env: {name} cannot be made: {why(error)} ({_place(error)})") from error
    several = isinstance(first, gymnasium.vector.VectorEnv)
    single = first.single_action_space if several else first.action_space
    rows = num_envs if source.steps_many else num_envs * first.num_envs * agents_of(first)
    space = batch_space(single, rows)
    space.seed(0)
    batches = [space.sample() for _ in range(max(4, min(64, NUM_ACTIONS // rows)))]
    return Task(name, num_envs, num_workers, kwargs, source, first, seconds, space, batches, backend)


def _place(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"line {frame.lineno} of {frame.filename}"


class AgentsLoop(Loop):
    """Step a vec of Shoal and let the vec count: agents that wait do not step.

    The counts are read once a slice, so that counting does not slow down compiled envs.
    """

    def __init__(self, vec: shoal.VectorEnv) -> None:
        super().__init__(close=vec.close)
        self._step, self._stats = vec.step, vec.stats

    def begin(self) -> None:
        """Read the count at the start of a slice."""
        self._before = self._stats()["transitions"]

    def run(self, batches: Sequence[Any]) -> int:
        """Step once with each batch; `finish` counts the steps."""
        step = self._step
        for batch in batches:
            step(batch)
        return 0

    def finish(self) -> int:
        """Return the number of steps since the start of the slice."""
        return int(self._stats()["transitions"] - self._before)


def bare(task: Task) -> Timed:
    """Make a loop over one env without a vector env."""
    unit = task.first
    if not isinstance(unit, SingleEnv):
        several = isinstance(unit, gymnasium.vector.VectorEnv)
        raise Unfit("is a vector env already" if several else "steps one agent at a time")
    unit.reset(0, None)
    actions = [action for batch in task.batches for action in iterate(task.action_space, batch)]
    return Timed(Bare([unit.env.step], [unit.env.reset]), actions)


def native(task: Task) -> Timed:
    """Make a vec that steps compiled envs on threads."""
    vec = _make(task, num_workers=task.num_workers)
    return Timed(AgentsLoop(vec), task.batches * NATIVE_ROUNDS)


def serial(task: Task) -> Timed:
    """Make a vec with all envs in this process."""
    task.check_objects()
    return _ours(task, backend="serial")


def processes(task: Task) -> Timed:
    """Make a vec with the envs in worker processes."""
    if not shoal.Multiprocessing.is_available():
        raise Unfit("needs Linux and the compiled core")
    task.check_objects()
    return _ours(task, backend="multiprocessing", num_workers=task.num_workers)


def made(task: Task) -> Timed:
    """Make the vec that `shoal.make` chooses; for a package's own vector env, Shoal's vec around it."""
    return _ours(task, num_workers=task.num_workers)


def _ours(task: Task, **options: Any) -> Timed:
    vec = _make(task, **options)
    loop = _vector(vec) if vec.agents_per_env == 1 else AgentsLoop(vec)
    if vec.chosen_because and not task.source.steps_many:
        loop.note = f"shoal.make chose {type(vec).__name__}: {vec.chosen_because}."
    return Timed(loop, task.batches)


def _make(task: Task, **options: Any) -> shoal.VectorEnv:
    vec = shoal.make(task.name, task.num_envs, env_kwargs=task.kwargs, copy=False, **options)
    _reset(vec)
    return vec


def _vector(vec: Any, close: Callable[[], None] | None = None) -> Loop:
    return Vector(vec.step, vec.num_envs, counts_resets=True, close=close or vec.close)


def _reset(vec: Any) -> None:
    try:
        vec.reset(seed=0)
    except BaseException:
        vec.close()
        raise


def direct(task: Task) -> Timed:
    """Use a package's own vector env without Shoal. It is `task.first`, which is closed last."""
    vec: Any = task.first
    vec.reset(seed=0)
    return Timed(_vector(vec, close=lambda: None), task.batches)


def gymnasium_sync(task: Task) -> Timed:
    """Make Gymnasium's vector env in this process."""
    _check_gymnasium(task)
    vec = gymnasium.vector.SyncVectorEnv(task.creators, copy=False)
    _reset(vec)
    return Timed(_vector(vec), task.batches)


def gymnasium_async(task: Task) -> Timed:
    """Make Gymnasium's vector env with a process for each env."""
    _check_gymnasium(task)
    before = set(multiprocessing.active_children())
    try:
        vec = gymnasium.vector.AsyncVectorEnv(task.creators, copy=False, daemon=True)
        vec.reset(seed=0)
    except BaseException:
        _kill(before)
        raise

    def close() -> None:
        try:
            vec.close(terminate=True)
        except Exception:
            vec.closed = True  # so that its destructor does not try to close it again
        finally:
            _kill(before)

    return Timed(_vector(vec, close), task.batches)


def _check_gymnasium(task: Task) -> None:
    if not isinstance(task.first, SingleEnv):
        raise Unfit("runs Gymnasium's envs only")
    task.check_objects()


def _kill(before: set[Any]) -> None:
    """Kill all child processes of `multiprocessing` that are not in `before`."""
    since = set(multiprocessing.active_children()) - before
    for process in since:
        process.kill()
    for process in since:
        process.join()
