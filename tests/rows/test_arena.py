from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

import shoal
from shoal.rows.arena import LARGE, SPARE_BLOCKS, copier

pytestmark = pytest.mark.core


class Counter(gymnasium.Env):
    """Shows a large frame of the number of steps."""

    observation_space = Box(0, 255, (300, 300), np.uint8)
    action_space = Discrete(2)

    def __init__(self, nested=False):
        self.nested = nested
        if nested:
            self.observation_space = Dict({"frame": self.observation_space, "small": Box(0, 255, (2,))})

    def show(self):
        frame = np.full((300, 300), self.steps, np.uint8)
        return {"frame": frame, "small": np.full(2, self.steps, np.float32)} if self.nested else frame

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self.show(), {}

    def step(self, action):
        self.steps += 1
        return self.show(), 0.0, False, False, {}


WAYS_TO_KEEP = {
    "array": lambda obs: obs,
    "slice": lambda obs: obs[1, :3],
    "reshaped": lambda obs: obs.reshape(-1)[5:9],
    "memoryview": lambda obs: memoryview(obs),
    "tensor": torch.from_numpy,
    "dlpack": torch.from_dlpack,
    "part of a tensor": lambda obs: torch.from_numpy(obs)[0, 0],
}


@pytest.mark.parametrize("flat", [False, True], ids=["as it is", "flat"])
@pytest.mark.parametrize("way", WAYS_TO_KEEP)
def test_what_is_kept_of_a_large_observation_stays(way, flat):
    with shoal.Serial(Counter, 2, flat=flat) as vec:
        vec.reset(seed=0)
        # Often enough for Python to specialise its bytecode, which may change how references are counted.
        kept = [WAYS_TO_KEEP[way](vec.step([0, 0])[0]) for _ in range(80)]
        for step, part in enumerate(kept, 1):
            assert (np.asarray(part) == step).all()


def test_each_part_of_a_nested_observation_is_kept_by_itself():
    with shoal.Serial(partial(Counter, nested=True), 2) as vec:
        vec.reset(seed=0)
        frames, smalls = [], []
        for step in range(1, 9):
            obs = vec.step([0, 0])[0]
            (frames if step % 2 else smalls).append(obs["frame" if step % 2 else "small"])
            del obs
        assert [int(frame.max()) for frame in frames] == [1, 3, 5, 7]
        assert [int(small.max()) for small in smalls] == [2, 4, 6, 8]


def test_memory_that_was_dropped_is_used_again():
    with shoal.Serial(Counter, 2) as vec:
        obs, _ = vec.reset(seed=0)
        seen = set()
        for _ in range(20):
            obs = vec.step([0, 0])[0]
            seen.add(obs.ctypes.data)
        assert len(seen) <= 2  # that of the last step, and the one before


def test_what_a_caller_does_to_an_array_does_not_outlive_it():
    with shoal.Serial(Counter, 2) as vec:
        obs, _ = vec.reset(seed=0)
        shape = obs.shape
        for step in range(1, 9):
            obs = vec.step([0, 0])[0]
            assert obs.shape == shape
            assert (obs == step).all()
            obs.shape = (-1,)
            obs.flags.writeable = False


def test_only_a_few_blocks_are_held():
    copy = copier(np.zeros(LARGE, np.uint8))
    kept = [copy() for _ in range(10)]
    assert len({array.ctypes.data for array in kept}) == 10
    assert len(copy._blocks) == SPARE_BLOCKS


def test_small_copies_own_their_memory():
    column = np.arange(5)
    copy = copier(column)()
    assert copy.base is None
    assert (copy == column).all()
