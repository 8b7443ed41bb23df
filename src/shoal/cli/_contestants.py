"""Who takes part in `shoal bench`: how each of them is made, and ended."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, iterate

import shoal
from shoal.adapters.single import SingleEnv, adopt
from shoal.cli._turns import AgentsLoop, BareLoop, Loop, Unfit, VectorLoop, why
from shoal.errors import ArgumentError, ShoalError
from shoal.registry import Source, find
from shoal.stepping.block import Unit, agents_of
from shoal.vector.native_creators import spec_of

BARE, NATIVE, SERIAL, PROCESSES = "bare loop", "shoal.Native", "shoal.Serial", "shoal.Multiprocessing"
SYNC, ASYNC = "gymnasium Sync", "gymnasium Async"
DIRECT, MADE = "direct use", "shoal.make"

# Compiled envs by the thousand are for Native; as objects of Python they would take longer to make than to
# measure.
MOST_OBJECTS = 128

NUM_ACTIONS = 16384  # about so many are drawn; more would not be more random
NATIVE_ROUNDS = 32  # all over again, between two looks at the clock and at the counts


@dataclass(frozen=True)
class Task:
    """What everybody is to do.

    Attributes:
        name: Of the env.
        num_envs: How many.
        num_workers: Of `shoal.Multiprocessing`, and threads of `shoal.Native`.
        kwargs: Arguments for the env.
        source: What makes it.
        first: What it made first, not reset yet: for the first contestant, and closed after all the others.
        seconds: That this took.
        action_space: Of all rows.
        batches: Actions for all rows, the same for everybody.
        backend: "all" of Shoal's, or "auto": the one that `shoal.make` chooses.
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
        """One for each env."""
        return [partial(self.source.create, **self.kwargs)] * self.num_envs

    def contestants(self) -> dict[str, Callable[[Task], Loop]]:
        """How to make each, in the order of the table. The first one has `first`."""
        if self.source.steps_many:
            return {DIRECT: direct, MADE: made}
        if self.source.native is not None and isinstance(self.first, gymnasium.vector.VectorEnv):
            return {NATIVE: native}  # several agents: those of Gymnasium cannot have them
        ours: dict[str, Callable[[Task], Loop]] = {} if self.source.native is None else {NATIVE: native}
        if self.backend == "all":
            ours |= {SERIAL: serial, PROCESSES: processes}
        elif not ours:
            ours = {MADE: made}
        return {BARE: bare, **ours, SYNC: gymnasium_sync, ASYNC: gymnasium_async}

    def check_objects(self) -> None:
        """That each env can be an object of its own.

        Raises:
            Unfit: If there are too many.
        """
        if self.source.native is not None and self.num_envs > MOST_OBJECTS:
            raise Unfit(f"makes an object for each env: measured up to {MOST_OBJECTS} compiled envs")


def set_task(
    name: str, num_envs: int, num_workers: int | None, kwargs: Mapping[str, Any], backend: str = "all"
) -> Task:
    """Find the env, make a first one, and draw actions for all.

    Raises:
        ArgumentError: If it cannot be found or made.
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


def bare(task: Task) -> Loop:
    """One env, one process, no vector env."""
    unit = task.first
    if not isinstance(unit, SingleEnv):
        several = isinstance(unit, gymnasium.vector.VectorEnv)
        raise Unfit("is a vector env already" if several else "steps one agent at a time")
    unit.reset(0, None)
    return BareLoop(unit.env, [list(iterate(task.action_space, batch)) for batch in task.batches])


def native(task: Task) -> Loop:
    """Compiled envs on threads. So fast that counting must not take part: it is done by the vec."""
    vec = shoal.make(
        task.name, task.num_envs, env_kwargs=task.kwargs, copy=False, num_workers=task.num_workers
    )
    _begin(vec)
    return AgentsLoop(vec, task.batches * NATIVE_ROUNDS)


def serial(task: Task) -> Loop:
    """All envs in this process."""
    task.check_objects()
    return _ours(task, backend="serial")


def processes(task: Task) -> Loop:
    """Envs in worker processes."""
    if not shoal.Multiprocessing.is_available():
        raise Unfit("needs Linux and the compiled core")
    task.check_objects()
    return _ours(task, backend="multiprocessing", num_workers=task.num_workers)


def made(task: Task) -> Loop:
    """What `shoal.make` gives if it is left to choose; of an engine, that behind our contract."""
    return _ours(task, num_workers=task.num_workers)


def _ours(task: Task, **options: Any) -> Loop:
    vec = shoal.make(task.name, task.num_envs, env_kwargs=task.kwargs, copy=False, **options)
    _begin(vec)
    loop = (VectorLoop if vec.agents_per_env == 1 else AgentsLoop)(vec, task.batches)
    if vec.chosen_because and not task.source.steps_many:
        loop.remark = f"shoal.make chose {type(vec).__name__}: {vec.chosen_because}."
    return loop


def direct(task: Task) -> Loop:
    """An engine as it comes."""
    vec: Any = task.first
    vec.reset(seed=0)
    return VectorLoop(vec, task.batches, end=lambda: None)


def _begin(vec: Any) -> None:
    try:
        vec.reset(seed=0)
    except BaseException:
        vec.close()
        raise


def gymnasium_sync(task: Task) -> Loop:
    """Gymnasium's, in this process."""
    _refuse_others_than_envs(task)
    task.check_objects()
    vec = gymnasium.vector.SyncVectorEnv(task.creators, copy=False)
    _begin(vec)
    return VectorLoop(vec, task.batches)


def gymnasium_async(task: Task) -> Loop:
    """Gymnasium's, with a process for each env."""
    _refuse_others_than_envs(task)
    task.check_objects()
    before = set(multiprocessing.active_children())
    try:
        vec = gymnasium.vector.AsyncVectorEnv(task.creators, copy=False, daemon=True)
        vec.reset(seed=0)
    except BaseException:
        _kill(before)
        raise

    def end() -> None:
        try:
            vec.close(terminate=True)
        except Exception:
            vec.closed = True  # else it would try the same again when it is forgotten
        finally:
            _kill(before)

    return VectorLoop(vec, task.batches, end)


def _refuse_others_than_envs(task: Task) -> None:
    if not isinstance(task.first, SingleEnv):
        raise Unfit("runs Gymnasium's envs only")


def _kill(before: set[Any]) -> None:
    """End all processes of `multiprocessing` that were not there before."""
    since = set(multiprocessing.active_children()) - before
    for process in since:
        process.kill()
    for process in since:
        process.join()
