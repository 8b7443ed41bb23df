"""The compiled core and its twin in Python agree: on every value, row, info and error."""

import signal
import time
import warnings
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.disguises import Custom, corrupted, disguised, info, pick, result

from shoal._core import _native, _reference
from shoal.adapters.single import SingleEnv
from shoal.rows.arena import Arena
from shoal.rows.fields import Misfit
from shoal.rows.layout import Layout
from shoal.stepping import python_envs as stepper
from shoal.stepping.row_slice import RowSlice
from shoal.testing.contract import difference
from shoal.testing.spaces import DTYPES, SPACES, random_space

pytestmark = pytest.mark.core

SEEDS = st.integers(0, 2**32 - 1)
CORES = (_native, _reference)


def outcome(function, *args):
    """What a call returned, or how it failed, in a form that can be compared."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # casts that overflow; each core casts with NumPy
        try:
            return "returned", function(*args)
        except Misfit as misfit:
            return "misfit", str(misfit), misfit.public
        except Exception as error:
            return "raised", type(error), str(error), getattr(error, "__notes__", [])


def observation_space(rng):
    space = random_space(rng)
    if rng.random() < 0.2:
        space = Dict({"known": space, "custom": Custom(), "word": Text(5)})
        space.seed(int(rng.integers(2**31)))
    return space


# -------------------------------------------------------------------------------------------------- pack


def packed(core, layout, values):
    """The rows after writing each value into one, and what became of each."""
    rows = np.full((len(values), layout.nbytes), 77, np.uint8)
    objects = np.full((len(values), layout.num_objects), "untouched", object)
    packer = core.Packer(layout, rows, objects)
    outcomes = [outcome(packer.write, row, value) for row, value in enumerate(values)]
    # A row whose value was refused may be half written, which a caller never sees.
    for row, (verdict, *_) in enumerate(outcomes):
        if verdict != "returned":
            rows[row], objects[row] = 0, None
    return rows, objects, outcomes


@settings(max_examples=300)
@given(SEEDS)
def test_packers_agree_on_any_form_of_a_value(seed):
    rng = np.random.default_rng(seed)
    space = observation_space(rng)
    layout = Layout(space, objects=True)
    values = [disguised(space, space.sample(), rng) for _ in range(5)]
    values += [corrupted(space.sample(), rng) for _ in range(5)]
    native, reference = (packed(core, layout, values) for core in CORES)
    for got, expected in zip(native, reference, strict=True):
        assert difference(got, expected) is None, difference(got, expected)


@pytest.mark.parametrize("space", SPACES, ids=lambda space: str(space)[:60])
def test_packers_agree_on_samples(space):
    layout = Layout(space)
    values = [space.sample() for _ in range(4)]
    (native, _, verdicts), (reference, *_) = (packed(core, layout, values) for core in CORES)
    assert (native == reference).all()
    assert all(verdict == "returned" for verdict, *_ in verdicts)


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 28224, 28224 + 127, 2**20 + 1])
@pytest.mark.parametrize("shift", [None, 0, 5, -5], ids=["apart", "the row itself", "ahead", "behind"])
def test_large_arrays_are_copied_as_they_are(size, shift):
    memory = np.random.default_rng(size).integers(256, size=3 * size + 16, dtype=np.uint8)
    rows = memory[8 : 8 + 2 * size].reshape(2, size)
    value = memory[-size:] if shift is None else memory[8 + shift : 8 + shift + size]
    expected, beside = value.copy(), rows[1].copy()
    _native.Packer(Layout(Box(0, 255, (size,), np.uint8)), rows).write(0, value)
    assert (rows[0] == expected).all()
    assert (rows[1] == beside).all()


def test_a_row_outside_is_refused():
    layout = Layout(Discrete(3))
    packer = _native.Packer(layout, np.zeros((2, layout.nbytes), np.uint8))
    for row in (-1, 2):
        with pytest.raises(IndexError, match=f"row {row} of 2"):
            packer.write(row, 1)


def test_rows_of_another_layout_are_refused():
    layout = Layout(Discrete(3))
    for rows in (
        np.zeros((2, 9), np.uint8),
        np.zeros((2, 8), np.int8),
        np.zeros((2, 16), np.uint8)[:, ::2],
        3,
    ):
        with pytest.raises(ValueError, match="expected writeable byte rows of 8"):
            _native.Packer(layout, rows)


# -------------------------------------------------------------------------------------------------- step


class Scripted:
    """Does what its random stream says, the same for the same seed, and remembers what it was given."""

    def __init__(self, seed, space, faults):
        self.rng, self.faults = np.random.default_rng(seed), faults
        self.observation_space, self.action_space = space, Discrete(2)
        space.seed(seed)
        self.given = []

    def fault(self):
        wrong = self.rng.random() < self.faults
        parts = ("obs", "reward", "flag", "second flag", "info", "result", "raise", "reset")
        return pick(self.rng, *parts) if wrong else None

    def reset(self, seed=None, options=None):
        if self.fault() == "reset":
            raise ZeroDivisionError("cannot begin")
        return disguised(self.observation_space, self.observation_space.sample(), self.rng), info(
            self.rng, False
        )

    def step(self, action):
        self.given.append(action)
        fault = self.fault()
        if fault == "raise":
            raise pick(self.rng, KeyError("gone"), ValueError("two", "arguments"), Misfit((), "of its own"))
        return result(self.rng, self.observation_space, self.rng.random() < 0.3, fault)


class Lab:
    """One core with envs, rows and a random stream of its own, all made from the same seed."""

    def __init__(self, core, seed, env_type=Scripted):
        rng = np.random.default_rng(seed)
        spaces = [observation_space(rng), random_space(rng, depth=2)]
        self.layouts = [Layout(space, objects=True) for space in spaces]
        count, faults = int(rng.integers(1, 5)), pick(rng, 0.0, 0.05)
        flat = not self.layouts[0].num_objects and bool(rng.random() < 0.5)
        self.envs = [env_type(int(rng.integers(2**31)), spaces[0], faults) for _ in range(count)]
        mode = list(AutoresetMode)[rng.integers(3)]
        self.arena = Arena.allocate(count, *self.layouts)
        self.action_space, self.mode, self.count = spaces[1], mode, count
        self.action_space.seed(seed)
        run = RowSlice(self.arena, *self.layouts, mode, first_env=int(rng.integers(9)), flat=flat)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stepper, "Packer", core.Packer)
            patch.setattr(stepper, "StepLoop", core.StepLoop)
            self.stepper = stepper.Stepper([SingleEnv(env) for env in self.envs], run)

    def reset(self):
        return outcome(self.stepper.reset, np.ones(self.count, np.bool_), [None] * self.count, None)

    def step(self):
        writer = _reference.Packer(self.layouts[1], self.arena.actions, self.arena.action_objects)
        for row in range(self.count):
            writer.write(row, self.action_space.sample())
        return outcome(self.stepper.step)

    def state(self):
        arena = self.arena.state()
        arena["starts"] = arena["starts"][
            self.arena.mask
        ]  # of a row that waits for its reset it says nothing
        return {
            "arena": arena,
            "stepper": self.stepper.state(),
            "given": [env.given for env in self.envs],
        }


@settings(max_examples=200)
@given(SEEDS)
def test_steppers_agree_in_every_mode_whatever_the_envs_do(seed):
    labs = [Lab(core, seed) for core in CORES]
    assert type(labs[0].stepper._packer) is not type(labs[1].stepper._packer)
    fresh = False
    for _ in range(12):
        verbs = [lab.step if fresh else lab.reset for lab in labs]
        native, reference = (verb() for verb in verbs)
        assert difference(native, reference) is None, difference(native, reference)
        fresh = native[0] == "returned"
        if not fresh:
            continue  # rows of different moments: only a reset counts
        assert difference(labs[0].state(), labs[1].state()) is None, difference(
            labs[0].state(), labs[1].state()
        )
        for lab in labs:
            if lab.mode is AutoresetMode.DISABLED and not lab.arena.mask.all():
                fresh = False


def test_an_interrupt_goes_straight_through():
    class Interrupted(Scripted):
        def step(self, action):
            raise KeyboardInterrupt("stop")

    for core in CORES:
        lab = Lab(core, 1, Interrupted)
        with pytest.raises(KeyboardInterrupt, match="stop") as caught:
            lab.stepper.step()
        assert not hasattr(caught.value, "__notes__")


def test_a_signal_is_seen_between_envs_that_run_no_python():
    # A million times nothing, then this for ever: `next` of it is slow once, all of it in C.
    moment = (np.zeros(2, np.float32), 0.0, False, False, {})

    def told(number, frame):
        raise InterruptedError("stop")

    for core in CORES:
        once_slow = filter(None, chain(repeat(0, 20_000_000), repeat(moment)))
        layout, count = Layout(Box(0, 1, (2,))), 2
        arena = Arena.allocate(count, layout, Layout(Discrete(2)))
        run = RowSlice(arena, layout, Layout(Discrete(2)), AutoresetMode.NEXT_STEP)
        packer = core.Packer(layout, arena.observations)
        after = Scripted(0, layout.space, 0.0)
        envs = [SimpleNamespace(step=partial(next, once_slow), restart=None), SingleEnv(after)]
        loop = core.StepLoop(envs, run, packer, np.ones(count, np.bool_))
        before = signal.signal(signal.SIGVTALRM, told)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.02)
        try:
            with pytest.raises(InterruptedError, match="stop"):
                loop.step()
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, before)
        assert not after.given


def test_an_interrupt_within_a_value_is_not_lost():
    class Once:
        calls = 0

        def __array__(self, dtype=None, copy=None):
            Once.calls += 1
            if Once.calls == 1:
                raise KeyboardInterrupt("stop")
            return np.zeros(2, np.float32)

    layout = Layout(Box(0, 1, (2,)))
    packer = _native.Packer(layout, np.zeros((1, layout.nbytes), np.uint8))
    with pytest.raises(KeyboardInterrupt, match="stop"):
        packer.write(0, Once())


# ----------------------------------------------------------------------------------------------- actions


def action_space(rng):
    if rng.random() < 0.6:
        return Box(0, 1, (2,), pick(rng, *DTYPES))
    return pick(rng, Discrete(4, start=-1), MultiDiscrete([3, 2]), MultiBinary(3), Box(-1, 1, (2, 2)))


def takes(core, space, batch, needed):
    """How many actions were taken, and the rows if they were."""
    layout = Layout(Dict({"action": space, "beside": Box(0, 1, (1,), np.uint8)}))
    (index,) = (index for index, field in enumerate(layout.fields) if field.path == ("action",))
    rows = np.full((len(needed), layout.nbytes), 99, np.uint8)
    bounds = () if isinstance(space, Box) else layout.fields[index].bounds()
    taken = core.ActionColumn(layout.columns(rows)[index], *bounds).take(batch, needed)
    return taken, rows if taken >= 0 else None


@settings(max_examples=500)
@given(SEEDS)
def test_action_columns_agree(seed):
    rng = np.random.default_rng(seed)
    space, count = action_space(rng), 5
    space.seed(seed)
    batch = np.stack([np.asarray(space.sample()) for _ in range(count)])
    if rng.random() < 0.5:
        place = tuple(rng.integers(0, size) for size in batch.shape)
        with suppress(ValueError, OverflowError, DeprecationWarning):
            batch[place] = pick(rng, 77, 3, -1, -2, float("nan"), float("inf"))
    forms = [lambda: batch] * 6
    forms += [lambda: batch[..., None], batch.tolist, lambda: batch[::-1], lambda: batch.astype(np.int32)]
    with np.errstate(invalid="ignore"):
        batch = pick(rng, *forms, lambda: batch[:-1], lambda: None)()
    needed = rng.random(count) < pick(rng, 0.5, 1.0)
    native, reference = (takes(core, space, batch, needed) for core in CORES)
    assert difference(native, reference) is None, difference(native, reference)


@pytest.mark.parametrize("core", CORES, ids=["native", "reference"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
def test_action_columns_take_what_is_good_and_only_that(core, dtype):
    space, needed = Box(0, 1, (2,), dtype), np.array([True, False, True])
    batch = np.zeros((3, 2), dtype)
    assert takes(core, space, batch, needed)[0] == 2
    if batch.dtype.kind == "f":
        batch[2, 1] = np.inf
        assert takes(core, space, batch, needed)[0] == 2
        batch[1, 0] = np.nan
        assert takes(core, space, batch, needed)[0] == 2
        batch[2, 1] = np.nan
        assert takes(core, space, batch, needed)[0] == -1


@pytest.mark.parametrize("core", CORES, ids=["native", "reference"])
@pytest.mark.parametrize(
    ("action", "taken"), [(-2, -1), (-1, 3), (2, 3), (3, -1), (2**62, -1), (-(2**62), -1)]
)
def test_action_columns_know_the_range(core, action, taken):
    batch = np.array([0, 1, action])
    assert takes(core, Discrete(4, start=-1), batch, np.ones(3, np.bool_))[0] == taken


# ------------------------------------------------------------------------------------------- transitions


def test_transitions_agree_and_are_copies():
    layout = Layout(Discrete(2))
    arena = Arena.allocate(5, layout, layout)
    arena.rewards[:] = np.arange(5)
    arena.terminations[1:3] = True
    arena.truncations[2:4] = True
    native, reference = (core.Transitions(arena).take() for core in CORES)
    assert difference(native, reference) is None
    assert native[3] == 3
    for part, column in zip(native, (arena.rewards, arena.terminations, arena.truncations), strict=False):
        assert part.base is None
        assert not np.shares_memory(part, column)


@pytest.mark.parametrize("core", CORES, ids=["native", "reference"])
def test_transitions_are_counted_and_timed(core):
    layout = Layout(Discrete(2))
    arena = Arena.allocate(5, layout, layout)
    arena.terminations[1:3] = True
    transitions = core.Transitions(arena)
    assert transitions.figures() == (0, 0, 0, 0.0, 0.0)
    transitions.take()  # of a reset
    assert transitions.figures() == (0, 0, 0, 0.0, 0.0)
    begun = time.perf_counter()
    for _ in range(3):
        transitions.begin(4)
        transitions.take()
    transitions.begin(4)  # which fails
    *counts, inside, outside = transitions.figures()
    assert counts == [3, 12, 6]
    assert inside > 0
    assert outside > 0
    assert inside + outside <= time.perf_counter() - begun
    transitions.begin(4)  # nobody was waiting for a step since the one that failed
    assert transitions.figures()[-1] == outside
    transitions.pause()
    transitions.drop()
    transitions.resume()
    transitions.take()  # of a reset
    assert transitions.figures() == (*counts, inside, outside)
