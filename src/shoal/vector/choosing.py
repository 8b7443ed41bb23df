"""``backend="auto"``: measure which of Serial and Multiprocessing steps the envs faster.

    probe: time of one env per step --> rehearsal: time of all envs, here and in workers --> the shorter one

The probe builds one env in this process, steps it with random actions and closes it. Then the core rehearses
a step of all envs: it runs loops that take the measured time, in this thread and on threads that wait for
each other as workers do (core/include/shoal/handshake/rehearsal.hpp). So the result includes the cost of
waiting and the load of other programs. Both take a tenth of a second, or half a second if times are close.
"""

from __future__ import annotations

import pickle
import random
import resource
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, Self

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal.adapters.single import Creator
from shoal.cores import patience_with, usable_cores
from shoal.processes.messages import dumps
from shoal.processes.placement import split
from shoal.stepping.block import build_envs, close_all
from shoal.stepping.row_slice import Infos
from shoal.vector.batch_view import BatchView
from shoal.vector.engine import Reset
from shoal.vector.options import VecOptions, seeds_of
from shoal.vector.serial import serve
from shoal.vector.spaces import batch

MASK = "action_mask"  # the key, in an observation or an info, of the mask of allowed actions
PROBE_SECONDS = 0.008  # seconds that the probe steps its env; it makes at least one step
SEGMENTS = 3  # parts of that time; the median counts, because the system may interrupt one of them
PATIENCE = 0.1  # seconds after which no other segment begins: steps are long, and one is enough
REHEARSAL_SECONDS = 0.5  # seconds at most; about 0.05 if steps are short and the result is clear
LONGEST_STEP = 30e6  # nanoseconds; of a longer step of all envs, only a part is rehearsed
# If steps are longer than a time slice of the scheduler and other programs use the cores, workers are faster
# than the threads of a rehearsal: 0.65 to 0.95 of the rehearsed time was measured.
TIME_SLICE = 4e6  # nanoseconds
LONG_STEP_FACTOR = 0.85
SAMPLE = 100  # the number of infos that are pickled to measure the cost of one
CHUNK = 50_000  # nanoseconds that the env is stepped, at least, between two reads of the clock
# Nanoseconds per step that this process needs beside the envs: in Serial; with workers (8,000 on a quiet
# machine, more after a pause); for the message of each worker whose envs return infos; and for each of these
# infos, in addition to unpickling it.
SERIAL = 2_000
PARENT = 15_000
MESSAGE = 60_000
INFO = 600
CLEARLY = 0.95  # workers must take less than this part of the time, because no process is the simpler choice


@dataclass(frozen=True)
class Decision:
    """A backend, and why it was chosen.

    Attributes:
        backend: The name of the backend: "serial" or "multiprocessing".
        reason: The reason, in a few words.
    """

    backend: str
    reason: str


@dataclass(frozen=True)
class Cost:
    """The cost of one step of a unit, in nanoseconds.

    Attributes:
        working: The processor time.
        waiting: The time spent waiting, for a sleep or a socket.
        packing: The time to pickle what a worker sends: infos, and objects of spaces without bytes.
        unpacking: The time to unpickle the same in this process.
        sends: The share of steps after which a worker sends something, from 0 to 1.
    """

    working: float
    waiting: float = 0.0
    packing: float = 0.0
    unpacking: float = 0.0
    sends: float = 0.0


def choose(creators: list[Creator], mode: AutoresetMode) -> Decision:
    """Measure which backend steps these envs faster. Only the env of the first creator is measured."""
    cores = usable_cores()
    sizes = split(len(creators), None, None, cores, parent_steps=False)
    try:
        cost = measure(creators[0], mode)
    except _CannotBeSent:
        return Decision("serial", "its infos or observations cannot be pickled")
    except Exception as error:  # the vec will raise it again when a verb needs the env, with the env's number
        return Decision("multiprocessing", f"the probe failed with {type(error).__name__}")
    if cost.waiting > cost.working:
        return Decision("multiprocessing", f"an env waits for {duration(cost.waiting)} in each step")
    try:
        alone, together = rehearse(cost, sizes, cores)
    except RuntimeError:  # no thread can be started, so probably no process either
        return Decision("serial", "the machine has no threads left")
    reason = f"a step takes {duration(alone)} here and {duration(together)} in {len(sizes)} workers"
    if together < CLEARLY * alone:
        return Decision("multiprocessing", reason)
    return Decision("serial", f"{reason}, too little to gain" if together < alone else reason)


def rehearse(cost: Cost, sizes: list[int], cores: int) -> tuple[float, float]:
    """Measure a step of all envs in this process and in workers.

    Args:
        cost: The cost of one step of a unit.
        sizes: The number of units of each worker.
        cores: The number of cores that this process may use.

    Returns:
        The nanoseconds of a step in this process, and of a step in workers.
    """
    from shoal._core._native import rehearse as rehearse_in_core

    count, in_worker = sum(sizes), cost.working + cost.packing
    messages = sum(1 - (1 - cost.sends) ** size for size in sizes)  # per step, on average
    alone = SERIAL + count * cost.working
    parent = PARENT + MESSAGE * messages + count * (INFO * cost.sends + cost.unpacking)
    part = min(1.0, LONGEST_STEP / (in_worker * count))
    found = rehearse_in_core(
        part * alone,
        part * parent,
        [part * in_worker * size for size in sizes],
        *patience_with(len(sizes), cores),
        REHEARSAL_SECONDS,
    )
    factor = LONG_STEP_FACTOR if found[1] > TIME_SLICE else 1.0
    return found[0] / part, factor * found[1] / part


def measure(creator: Creator, mode: AutoresetMode) -> Cost:
    """Build a unit, measure the cost of its step for some milliseconds with random actions, and close it."""
    disabled = mode is AutoresetMode.DISABLED  # then finished envs are reset between two steps
    with undisturbed(), Probe(creator, mode) as probe:
        *_, infos = probe.step(1, probe.reset(seed=0))  # the first step may import or compile something
        passed = switches = steps = 0
        works: list[float] = []  # nanoseconds per step, of each segment
        given: list[Infos] = []  # the infos of each step that has some
        length, begun = 1, time.perf_counter()
        while len(works) < SEGMENTS and time.perf_counter() < begun + PATIENCE:
            end = time.perf_counter() + PROBE_SECONDS / SEGMENTS
            working = made = 0
            while not made or time.perf_counter() < end:
                if disabled and probe.has_finished_env():
                    infos = probe.reset()
                worked, took, left, infos = probe.step(length, infos)
                working, passed, switches = working + worked, passed + took, switches + left
                made, steps = made + length, steps + length
                given += [each for each in infos if each]
                if took < CHUNK and not disabled and probe.allowed_actions(infos) is None:
                    length *= 2
            works.append(working / made)
        sending = _sending(given, probe.objects(), steps)
    work = median(works)
    # A preempted thread does not work either, but it does not leave its core of its own accord.
    waiting = max(0.0, passed / steps - work) if switches >= steps / 2 else 0.0
    return Cost(max(1.0, work), waiting, *sending)


class Probe:
    """One unit in this process, stepped without the work of a vec, which is the same for any number of envs.

    Args:
        creator: The creator of the unit.
        mode: The autoreset mode of the vec.
    """

    def __init__(self, creator: Creator, mode: AutoresetMode) -> None:
        units = build_envs([creator])
        try:
            common, self._arena, self._engine = serve(units, VecOptions(autoreset_mode=mode))
            self._num_envs, self._agents = common.num_envs, len(common.agents)
            self._view = BatchView(
                self._arena, common.observation, common.action, self._agents, flat=False, copy=True
            )
            self._observation_space = common.single_observation_space
            self._action_space = self._view.actions.single_space
            self._action_batch = batch(self._action_space, len(self._arena))
            self._action_batch.seed(0)
        except BaseException:
            close_all(units)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        errors = self._engine.close()
        if errors:
            raise errors[0]

    def reset(self, seed: int | None = None) -> list[Infos]:
        """Reset all envs and return their infos, in the form that `step` takes."""
        seeds = seeds_of(seed, self._num_envs)
        self._engine.begin_reset([0], Reset(np.ones(self._num_envs, np.bool_), seeds, None))
        return [self._engine.take_infos([0])]

    def step(self, steps: int, before: list[Infos]) -> tuple[int, int, int, list[Infos]]:
        """Step all envs `steps` times with the same random actions.

        Args:
            steps: The number of steps.
            before: The infos of the verb before.

        Returns:
            The nanoseconds that this thread worked, the nanoseconds that passed, how often the thread left
            its core, and the infos of each step.
        """
        self._view.actions.write(self._random_actions(before), self._arena.mask)
        step = self._engine.step_all
        left = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        worked, passed = time.thread_time_ns(), time.perf_counter_ns()
        infos = [step() for _ in range(steps)]
        worked, passed = time.thread_time_ns() - worked, time.perf_counter_ns() - passed
        return worked, passed, resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - left, infos

    def has_finished_env(self) -> bool:
        """Return whether an env needs a reset, because none of its agents needs an action."""
        return not self._arena.mask.reshape(-1, self._agents).any(1).all()

    def objects(self) -> list[NDArray[Any]]:
        """Return the objects of observations and actions that a worker would send or receive in each step."""
        both = self._arena.observation_objects, self._arena.action_objects
        return [objects for objects in both if objects.size]

    def _random_actions(self, infos: list[Infos]) -> Any:
        """Draw random actions: allowed ones, if the env gives an ``action_mask``."""
        allowed = self.allowed_actions(infos)
        if allowed is None:
            return self._action_batch.sample()
        return np.array([self._action_space.sample(mask=mask) for mask in allowed])

    def allowed_actions(self, infos: list[Infos]) -> list[NDArray[np.int8]] | None:
        """Return the action mask of each row, from its observation or last info; None if a row has none."""
        rows, space = len(self._arena), self._observation_space
        if not isinstance(self._action_space, spaces.Discrete):
            return None
        if isinstance(space, spaces.Dict) and MASK in space.spaces:
            found = dict(enumerate(self._view.observe()[MASK]))
        else:
            found = {row: info[MASK] for row, info in (infos[-1] if infos else []) if MASK in info}
        known = (found[row] for row in range(rows) if row in found)
        masks = [(np.asarray(mask).reshape(-1) != 0).astype(np.int8) for mask in known]
        return masks if [mask.size for mask in masks] == [self._action_space.n] * rows else None


class _CannotBeSent(Exception):
    """An info or observation cannot be pickled, so the env cannot run in a worker."""


def _sending(infos: list[Infos], objects: list[NDArray[Any]], steps: int) -> tuple[float, float, float]:
    """Measure the cost of sending the results of a step from a worker.

    Args:
        infos: The infos of each step that has some.
        objects: The objects that every step sends.
        steps: The number of steps that were made.

    Returns:
        The nanoseconds per step to pickle, the nanoseconds per step to unpickle, and the share of steps after
        which a worker sends something.

    Raises:
        _CannotBeSent: If a value cannot be pickled.
    """
    (packing, unpacking), (packing_objects, unpacking_objects) = _pickling(infos), _pickling(objects)
    share = len(infos) / steps
    return (
        packing * share + packing_objects * len(objects),
        unpacking * share + unpacking_objects * len(objects),
        1.0 if objects else share,
    )


def _pickling(values: Sequence[Any]) -> tuple[float, float]:
    """Measure the nanoseconds to pickle and to unpickle one of these values, if a message holds many."""
    sample = list(values[:: max(1, len(values) // SAMPLE)])
    count = 1  # it grows, because a value may be large
    while sample:
        some = sample[:count]
        begun = time.thread_time_ns()
        try:
            pickled = dumps(some)
        except Exception as error:
            raise _CannotBeSent from error
        packed = time.thread_time_ns()
        pickle.loads(pickled)
        packing, unpacking = packed - begun, time.thread_time_ns() - packed
        if count >= len(sample) or 4 * (packing + unpacking) > 1e9 * PROBE_SECONDS:
            return packing / len(some), unpacking / len(some)
        count *= 4
    return 0.0, 0.0


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restore the global random streams at the end, and suppress warnings: the envs of the vec will warn."""
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 - envs may still use it
    torch = sys.modules.get("torch")
    torch_state = None if torch is None else torch.get_rng_state()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(torch_state)


def duration(nanoseconds: float) -> str:
    """Return a time with its unit, to two or three digits."""
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if nanoseconds >= size:
            return f"{nanoseconds / size:{'.0f' if nanoseconds >= 9.95 * size else '.2g'}} {unit}"
    return f"{nanoseconds:.0f} ns"
