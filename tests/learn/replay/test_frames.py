"""Stacks of frames come back exactly, though each frame is stored once."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from shoal.batch import Batch
from shoal.errors import ArgumentError
from shoal.learn import Actions, Replay
from shoal.learn.observation_store import Frames
from shoal.learn.replay import bytes_per_transition
from shoal.rows.layout import layout


def space(last):
    return Box(0, 255, (6, 5, 4) if last else (4, 6, 5), np.uint8)


class Game:
    """Rows that show stacks of four frames; an episode begins with one frame four times, or with zeros."""

    def __init__(self, rows, last, zeros, seed=0):
        self.random, self.last, self.zeros = np.random.default_rng(seed), last, zeros
        self.stacks = np.zeros((rows, 4, 6, 5), np.uint8)
        self.begun = np.zeros(rows, np.bool_)

    def step(self, rows):
        """Let rows go on, or begin; returns their observations and which of them begin."""
        begins = ~self.begun[rows] | (self.random.random(len(rows)) < 0.1)
        for row, begin in zip(rows, begins, strict=True):
            frame = self.random.integers(0, 256, (6, 5), np.uint8)
            if begin:
                self.stacks[row] = 0 if self.zeros else frame
            self.stacks[row] = [*self.stacks[row][1:], frame]
        self.begun[rows] = True
        found = self.stacks[rows].copy()
        return (np.moveaxis(found, 1, -1).copy() if self.last else found), begins


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_observations_come_back_exactly(last, zeros):
    game = Game(5, last, zeros)
    store = Frames(200, 5, layout(space(last)), 4)
    kept = {}
    total = 0
    for _ in range(150):
        rows = np.sort(game.random.choice(5, game.random.integers(1, 6), replace=False))
        obs, _ = game.step(rows)
        serials = np.arange(total, total + len(rows))
        store.write(serials, rows, obs)
        kept.update(zip(serials.tolist(), obs, strict=True))
        total += len(rows)
        if store.has(serials % 200) is not None:
            assert store.has(serials % 200).all()
    serials = np.arange(total - 200, total)
    stored = store.has(serials % 200)
    serials = serials if stored is None else serials[stored]
    assert len(serials) > 150
    assert (store.read(serials % 200) == np.stack([kept[serial] for serial in serials.tolist()])).all()


def test_a_frame_is_stored_once():
    game = Game(1, last=False, zeros=False)
    game.random = np.random.default_rng(3)
    store = Frames(1000, 1, layout(space(last=False)), 4)
    begun = 0
    for serial in range(500):
        obs, begins = game.step(np.array([0]))
        begun += int(begins[0])
        store.write(np.array([serial]), np.array([0]), obs)
    assert store._total == 500  # one frame for each observation, also where an episode begins


def test_a_million_atari_transitions_fit_into_ten_gigabytes():
    stack = layout(Box(0, 255, (4, 84, 84), np.uint8))
    replay = Replay(10**6, 8, stack, Actions(Discrete(6)), frame_stack=4)
    assert 7e9 < replay.nbytes < 8e9
    each = bytes_per_transition(stack, Actions(Discrete(6)), 4, prioritized=False)
    assert replay.nbytes == pytest.approx(1e6 * each, rel=0.01)


def test_a_million_transitions_of_hockey_fit_into_300_megabytes():
    replay = Replay(10**6, 8, layout(Box(-1, 1, (18,), np.float32)), Actions(Box(-1, 1, (4,), np.float32)))
    assert replay.nbytes < 100e6
    plan, actions = layout(Box(-1, 1, (18,), np.float32)), Actions(Box(-1, 1, (4,), np.float32))
    assert replay.nbytes == 1e6 * bytes_per_transition(plan, actions, 0, prioritized=False)


def test_a_restored_replay_of_frames_is_the_same():
    def made():
        return Replay(60, 3, layout(space(last=False)), Actions(Discrete(2)), frame_stack=4, seed=2)

    def fill(replay, game, steps):
        for _ in range(steps):
            obs, begins = game.step(np.arange(3))
            nothing = np.zeros(3, np.bool_)
            got = Batch(
                obs, np.ones(3), nothing, nothing, ~nothing, begins, np.arange(3), np.zeros(3, int), {}
            )
            replay.add(got, np.zeros((3, 1), np.int64))

    for steps in (10, 45):  # before the rings turn, and after
        one, two, game = made(), made(), Game(3, last=False, zeros=True)
        fill(one, game, steps)
        parts = [
            one.part(first, min(first + 7, one.total), np.zeros(0, np.int64))
            for first in range(one.oldest, one.total, 7)
        ]
        two.load_state_dict({**one.rest(), "parts": iter(parts)})
        for replay in (one, two):
            fill(replay, Game(3, last=False, zeros=True, seed=9), 5)
        a, b = one.sample(200, gamma=0.9), two.sample(200, gamma=0.9)
        assert (a.obs == b.obs).all()
        assert (a.next_obs == b.next_obs).all()
        assert (a.places == b.places).all()


@pytest.mark.parametrize("stack", [1, 3, 6])
def test_a_stack_that_is_no_axis_is_refused(stack):
    with pytest.raises(ArgumentError, match="frame_stack: expected the length of the first or last axis"):
        Frames(100, 1, layout(space(last=False)), stack)


def test_observations_that_are_no_stacks_are_refused():
    store = Frames(5000, 1, layout(space(last=False)), 4)
    random = np.random.default_rng(0)

    def fill():
        for serial in range(2000):
            obs = random.integers(0, 256, (1, 4, 6, 5), np.uint8)
            store.write(np.array([serial]), np.array([0]), obs)

    with pytest.raises(ArgumentError, match=r"frame_stack: expected stacks of 4 frames.*Use frame_stack=0"):
        fill()
