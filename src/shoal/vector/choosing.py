"""``backend="auto"``: Serial or Multiprocessing, by a measurement of a tenth of a second, or half a second.

    one env: its time per step --> a step of all envs here, and in workers: rehearsed --> the shorter one

One env is built in this process, stepped with random actions and closed again. Then the core rehearses a
step of all envs with loops of that length, here and on threads that wait for each other as workers do
(core/include/shoal/handshake/rehearsal.hpp). So the price of waiting, and other programs that want the
cores, are measured and not guessed.
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
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal.adapters.single import Creator
from shoal.cores import patience_with, usable_cores
from shoal.processes.messages import dumps
from shoal.processes.placement import split
from shoal.stepping.row_slice import Infos
from shoal.vector.serial import Serial

MASK = "action_mask"  # the part of an observation, or of infos, that says what is allowed
PROBE = 0.008  # seconds that one env is stepped, and at least one step
REHEARSAL = 0.5  # seconds at most; about 0.05 where steps are short and the result is clear
LONGEST_STEP = 30e6  # nanoseconds: a longer step of all envs is rehearsed as a part of it
# Steps that outlast a time slice of the scheduler take less in processes than in the threads of a rehearsal,
# beside other programs that want the cores: 0.65 to 0.95 was measured.
TIME_SLICE = 4e6  # nanoseconds
OUTLASTS = 0.85
SAMPLE = 100  # infos that are pickled to know what one takes
CHUNK = 50_000  # nanoseconds between two looks at the clock
# Nanoseconds that this process takes for a step beside the envs: in Serial, with workers (8,000 on a quiet
# machine, more after a pause), and for each worker whose envs give infos, which it sends in a message.
SERIAL = 2_000
PARENT = 15_000
MESSAGE = 30_000
CLEARLY = 0.95  # of the time here: where both are about as fast, no process is the simpler choice


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
        sends: Share of the steps after which there is something to send.
    """

    working: float
    waiting: float = 0.0
    packing: float = 0.0
    unpacking: float = 0.0
    sends: float = 0.0


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
    if together < CLEARLY * alone:
        return Decision("multiprocessing", reason)
    return Decision("serial", f"{reason}, too little to gain" if together < alone else reason)


def rehearse(cost: Cost, sizes: list[int], cores: int) -> tuple[float, float]:
    """A step of all envs in this process and in workers, in nanoseconds.

    Args:
        cost: Of what one creator makes.
        sizes: Creators of each worker.
        cores: That this process may use.
    """
    from shoal._core._native import rehearse as rehearse_in_core

    count, in_worker = sum(sizes), cost.working + cost.packing
    messages = sum(1 - (1 - cost.sends) ** size for size in sizes)  # in the mean
    alone = SERIAL + count * cost.working
    parent = PARENT + MESSAGE * messages + count * cost.unpacking
    part = min(1.0, LONGEST_STEP / (in_worker * count))
    found = rehearse_in_core(
        part * alone,
        part * parent,
        [part * in_worker * size for size in sizes],
        *patience_with(len(sizes), cores),
        REHEARSAL,
    )
    outlasts = OUTLASTS if found[1] > TIME_SLICE else 1.0
    return found[0] / part, outlasts * found[1] / part


def measure(creator: Creator, mode: AutoresetMode) -> Cost:
    """Build what the creator makes, step it for some milliseconds with random actions, and close it."""
    disabled = mode is AutoresetMode.DISABLED  # then finished envs are reset between two steps
    with undisturbed(), Serial(creator, 1, autoreset_mode=mode, seed=0) as vec:
        *_, infos = _timed(vec, 1, _reset(vec))  # the first step may import or compile something
        working = passed = switches = steps = 0
        given: list[Infos] = []  # all that are not empty
        length, end = 1, time.perf_counter() + PROBE
        while not steps or time.perf_counter() < end:
            if disabled and not vec._mask.reshape(-1, vec.agents_per_env).any(1).all():
                infos = _reset(vec)
            worked, took, left, infos = _timed(vec, length, infos)
            working, passed, switches = working + worked, passed + took, switches + left
            steps += length
            given += [each for each in infos if each]
            if took < CHUNK and not disabled and _allowed(vec, infos) is None:
                length *= 2
        sending = _sending(vec, given, steps)
    # A thread that is preempted does not work either, but it does not leave its core of its own accord.
    waiting = passed - working if switches >= steps / 2 else 0
    return Cost(max(1.0, working / steps), waiting / steps, *sending)


def _reset(vec: Serial) -> list[Infos]:
    """Reset the vec, and return what its infos say of allowed actions."""
    _, infos = vec.reset()
    return [[(row, {MASK: mask}) for row, mask in enumerate(infos[MASK])]] if MASK in infos else []


def _timed(vec: Serial, steps: int, before: list[Infos]) -> tuple[int, int, int, list[Infos]]:
    """Step the vec `steps` times with the same random actions; `before` are the infos of the steps before.

    Returns:
        Nanoseconds of this thread, those that passed, how often the thread left its core, and the infos.
    """
    vec._whole.actions.write(_actions(vec, before), vec._mask)
    left = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    worked, passed = time.thread_time_ns(), time.perf_counter_ns()
    # Not `step`: what that takes beside the envs is the same for any number of them.
    infos = [vec._step_all() or [] for _ in range(steps)]
    worked, passed = time.thread_time_ns() - worked, time.perf_counter_ns() - passed
    return worked, passed, resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - left, infos


def _actions(vec: Serial, infos: list[Infos]) -> Any:
    """Draw random actions: allowed ones, if the env says by an ``action_mask`` which those are."""
    allowed = _allowed(vec, infos)
    if allowed is None:
        return vec.action_space.sample()
    return np.array([vec.single_action_space.sample(mask=mask) for mask in allowed])


def _allowed(vec: Serial, infos: list[Infos]) -> list[NDArray[np.int8]] | None:
    """The mask of each row, from observations or the last infos, if there is one for each."""
    rows, space = vec.num_rows, vec.single_observation_space
    if not isinstance(vec.single_action_space, spaces.Discrete):
        return None
    if isinstance(space, spaces.Dict) and MASK in space.spaces:
        found = dict(enumerate(vec._observe()[MASK]))
    else:
        found = {row: info[MASK] for row, info in (infos[-1] if infos else []) if MASK in info}
    masks = [(np.asarray(found[row]).reshape(-1) != 0).astype(np.int8) for row in range(rows) if row in found]
    return masks if [mask.size for mask in masks] == [vec.single_action_space.n] * rows else None


class _CannotBeSent(Exception):
    """What an env gives cannot be pickled, so that it cannot run in a worker."""


def _sending(vec: Serial, infos: list[Infos], steps: int) -> tuple[float, float, float]:
    """Nanoseconds a step to pickle what a worker would send and to unpickle it, and how often it would send.

    Args:
        vec: The vec that was stepped.
        infos: Those of its steps that are not empty.
        steps: How many steps it made.

    Raises:
        _CannotBeSent: If it cannot be pickled.
    """
    arena = vec._arena
    objects = [
        each for each in (arena.observation_objects, arena.action_objects) if each.size
    ]  # of each step
    (packing, unpacking), (packing_objects, unpacking_objects) = _pickling(infos), _pickling(objects)
    talking = len(infos) / steps
    return (
        packing * talking + packing_objects * len(objects),
        unpacking * talking + unpacking_objects * len(objects),
        1.0 if objects else talking,
    )


def _pickling(things: Sequence[Any]) -> tuple[float, float]:
    """Nanoseconds to pickle one of these and to unpickle it, where a message holds many of them."""
    sample = list(things[:: max(1, len(things) // SAMPLE)])
    count = 1  # more of them each time, because one may be large
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
        if count >= len(sample) or 4 * (packing + unpacking) > 1e9 * PROBE:
            return packing / len(some), unpacking / len(some)
        count *= 4
    return 0.0, 0.0


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
    """A time with its unit, to two or three digits."""
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if nanoseconds >= size:
            return f"{nanoseconds / size:{'.0f' if nanoseconds >= 9.95 * size else '.2g'}} {unit}"
    return f"{nanoseconds:.0f} ns"
