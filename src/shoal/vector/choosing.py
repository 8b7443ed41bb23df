"""``backend="auto"``: Serial or Multiprocessing, by a measurement of some tens of milliseconds.

    one env: its time per step --> a step of all envs here, and in workers: rehearsed --> the shorter one

One env is built in this process, stepped with random actions and closed again. Then the core rehearses a
step of all envs with loops of that length, here and on threads that wait for each other as workers do
(core/include/shoal/rehearsal.hpp). So the price of waiting, and other programs that want the cores, are
measured and not guessed.
"""

from __future__ import annotations

import pickle
import random
import resource
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from shoal._core.run import Infos
from shoal.emulation import Creator
from shoal.vector._cores import patience_with, usable_cores
from shoal.vector._mail import dumps
from shoal.vector._plan import split
from shoal.vector.serial import Serial

PROBE = 0.008  # seconds that one env is stepped, and at least one step
REHEARSAL = 0.12  # seconds at most, and at least one step of each kind
LONGEST_STEP = 30e6  # nanoseconds: a longer step of all envs is rehearsed as a part of it
CHUNK = 50_000  # nanoseconds between two looks at the clock
# Nanoseconds that a step in workers takes beyond waiting for them: of Python in this process, and for each
# worker whose envs give infos, which it sends in a message.
EXTRA = 15_000
MESSAGE = 20_000
CLEARLY = 0.92


@dataclass(frozen=True)
class Decision:
    """A backend, and why it was chosen.

    Attributes:
        backend: "serial" or "multiprocessing".
        reason: In a few words.
    """

    backend: str
    reason: str


@dataclass(frozen=True)
class Cost:
    """The cost of one step of what a creator makes (one env or a vector env), in nanoseconds.

    Attributes:
        working: Processor time.
        waiting: Time spent waiting, for a sleep or a socket.
        packing: Time to pickle what a worker sends: infos, and objects of spaces without bytes.
        unpacking: Time to unpickle the same in this process.
    """

    working: float
    waiting: float = 0.0
    packing: float = 0.0
    unpacking: float = 0.0


def choose(creators: list[Creator], mode: AutoresetMode) -> Decision:
    """Measure which backend steps these envs faster. The first creator stands for all."""
    cores = usable_cores()
    sizes = split(len(creators), None, None, cores, parent_steps=False)
    try:
        cost = measure(creators[0], mode)
    except _CannotBeSent:
        return Decision("serial", "its infos or observations cannot be pickled")
    except Exception as error:  # the vec will raise it again, in its time and with the env's number
        return Decision("multiprocessing", f"the probe failed with {type(error).__name__}")
    if cost.waiting > cost.working:
        return Decision("multiprocessing", f"an env waits for {duration(cost.waiting)} in each step")
    try:
        alone, together = rehearse(cost, sizes, cores)
    except RuntimeError:  # no thread can be started, so probably no process either
        return Decision("serial", "the machine has no threads left")
    reason = f"a step takes {duration(alone)} here and {duration(together)} in {len(sizes)} workers"
    # Where both are about as fast, no process is the simpler choice.
    return Decision("multiprocessing" if together < CLEARLY * alone else "serial", reason)


def rehearse(cost: Cost, sizes: list[int], cores: int) -> tuple[float, float]:
    """A step of all envs in this process and in workers, in nanoseconds.

    Args:
        cost: Of what one creator makes.
        sizes: Creators of each worker.
        cores: That this process may use.
    """
    from shoal._core._native import rehearse as rehearse_in_core

    count, in_worker = sum(sizes), cost.working + cost.packing
    part = min(1.0, LONGEST_STEP / (in_worker * count))
    own, theirs = patience_with(len(sizes), cores)
    alone, together = rehearse_in_core([part * in_worker * size for size in sizes], own, theirs, REHEARSAL)
    messages = MESSAGE * len(sizes) if cost.unpacking else 0
    return (
        alone / part * cost.working / in_worker,
        together / part + EXTRA + messages + count * cost.unpacking,
    )


def measure(creator: Creator, mode: AutoresetMode) -> Cost:
    """Build what the creator makes, step it for some milliseconds with random actions, and close it."""
    disabled = mode is AutoresetMode.DISABLED  # then finished envs are reset between two steps
    with undisturbed(), Serial(creator, 1, autoreset_mode=mode, seed=0) as vec:
        vec.reset()
        _timed(vec, 1)  # the first step may import or compile something
        working = passed = switches = steps = 0
        infos: list[Infos] = []
        length, end = 1, time.perf_counter() + PROBE
        while not steps or time.perf_counter() < end:
            if disabled and not vec._mask.reshape(-1, vec.agents_per_env).any(1).all():
                vec.reset()
            worked, took, left, infos = _timed(vec, length)
            working, passed, switches = working + worked, passed + took, switches + left
            steps += length
            if took < CHUNK and not disabled:
                length *= 2
        packing, unpacking = _sending(vec, infos)
    # A thread that is preempted does not work either, but it does not leave its core of its own accord.
    waiting = passed - working if switches >= steps / 2 else 0
    return Cost(max(1.0, working / steps), waiting / steps, packing, unpacking)


def _timed(vec: Serial, steps: int) -> tuple[int, int, int, list[Infos]]:
    """Step the vec `steps` times.

    Returns:
        Nanoseconds of this thread, those that passed, how often the thread left its core, and the infos.
    """
    vec._whole.actions.write(vec.action_space.sample(), vec._mask)
    left = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    worked, passed = time.thread_time_ns(), time.perf_counter_ns()
    # Not `step`: what that takes beside the envs is the same for any number of them.
    infos = [vec._begin_step() or [] for _ in range(steps)]
    worked, passed = time.thread_time_ns() - worked, time.perf_counter_ns() - passed
    return worked, passed, resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - left, infos


class _CannotBeSent(Exception):
    """What an env gives cannot be pickled, so that it cannot run in a worker."""


def _sending(vec: Serial, infos: list[Infos]) -> tuple[float, float]:
    """Nanoseconds a step to pickle what a worker would send of it, and to unpickle it.

    Raises:
        _CannotBeSent: If it cannot be pickled.
    """
    objects = vec._arena.observation_objects, vec._arena.action_objects
    parts: list[tuple[Any, int]] = [(infos, len(infos))] if any(infos) else []
    parts += [(each, 1) for each in objects if each.size]
    packing = unpacking = 0.0
    for part, steps in parts:
        begun = time.thread_time_ns()
        try:
            pickled = dumps(part)
        except Exception as error:
            raise _CannotBeSent from error
        packed = time.thread_time_ns()
        pickle.loads(pickled)
        packing += (packed - begun) / steps
        unpacking += (time.thread_time_ns() - packed) / steps
    return packing, unpacking


@contextmanager
def undisturbed() -> Iterator[None]:
    """Leave the global random streams as they are, and warnings to the envs of the vec."""
    ours, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002 - what envs may still use
    torch = sys.modules.get("torch")
    torchs = None if torch is None else torch.get_rng_state()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(ours)
        np.random.set_state(numpys)  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(torchs)


def duration(nanoseconds: float) -> str:
    """A time with its unit, to two digits."""
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if nanoseconds >= size:
            return f"{nanoseconds / size:{'.0f' if nanoseconds >= 100 * size else '.2g'}} {unit}"
    return f"{nanoseconds:.0f} ns"
