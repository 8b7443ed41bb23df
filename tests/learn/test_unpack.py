import subprocess
import sys

import gymnasium.spaces as sp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import shoal
from shoal.learn import unpack
from shoal.testing import SPACES, random_space


def leaves(nested):
    if isinstance(nested, (np.ndarray, torch.Tensor)):
        return [nested]
    parts = nested.values() if isinstance(nested, dict) else nested
    return [leaf for part in parts for leaf in leaves(part)]


def check(space, lead=(4,)):
    layout = shoal.layout(space)
    rows = np.stack([layout.pack(space.sample()) for _ in range(int(np.prod(lead)))])
    rows = rows.reshape((*lead, *layout.flat_shape))
    tensors, arrays = unpack(torch.from_numpy(rows), layout), layout.unpack(rows)
    for tensor, array in zip(leaves(tensors), leaves(arrays), strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)
        assert array.size == 0 or np.shares_memory(tensor.numpy(), rows)  # a view


@given(st.integers(0, 2**32 - 1))
def test_any_space_is_unpacked_as_views(seed):
    check(random_space(seed))


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_each_kind_of_space(space):
    check(space)
    check(space, lead=(2, 3))


def test_a_plain_box_stays_what_it_is():
    layout = shoal.layout(sp.Box(0, 255, (3, 3), np.uint8))
    obs = torch.zeros((5, 3, 3), dtype=torch.uint8)
    assert unpack(obs, layout) is obs


def test_what_a_vec_gives_can_be_unpacked():
    space = sp.Dict({"map": sp.Box(0, 255, (4, 4), np.uint8), "hp": sp.Box(0, 1, (1,))})
    create = lambda: shoal.testing.SampleEnv(space, sp.Discrete(2))  # noqa: E731
    with shoal.Serial(create, 3, flat=True) as flat, shoal.Serial(create, 3) as nested:
        rows, _ = flat.reset(seed=0)
        layout = flat.observation_layout
        tensors = unpack(torch.from_numpy(rows), layout)
        assert tensors["map"].shape == (3, 4, 4)
        assert tensors["hp"].dtype == torch.float32
        assert nested.reset(seed=0)[0]["map"].shape == (3, 4, 4)


COMPILED = """
import numpy as np, shoal, torch, gymnasium.spaces as sp
from shoal.learn import unpack

space = sp.Dict({"a": sp.Box(-1, 1, (3,)), "b": sp.Discrete(5), "c": sp.Box(0, 255, (2, 2), np.uint8)})
layout = shoal.layout(space)
rows = torch.from_numpy(np.stack([layout.pack(space.sample()) for _ in range(6)]))

def policy(obs):
    nested = unpack(obs, layout)
    return nested["a"].sum(-1) + nested["b"].float() + nested["c"].float().sum((-1, -2))

compiled = torch.compile(policy, fullgraph=True, backend="BACKEND")
torch.testing.assert_close(compiled(rows), policy(rows))
"""


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_under_torch_compile(backend):
    # In a process of its own: torch's compiler keeps threads.
    code = COMPILED.replace("BACKEND", backend)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr


def test_rows_of_another_layout_are_refused():
    layout = shoal.layout(sp.Dict({"a": sp.Box(0, 1, (2,)), "b": sp.Discrete(2)}))
    with pytest.raises(shoal.errors.ArgumentError, match=r"expected rows of dtype uint8 and shape"):
        unpack(torch.zeros((3, 7), dtype=torch.uint8), layout)
    with pytest.raises(shoal.errors.ArgumentError, match=r"got torch.float32"):
        unpack(torch.zeros((3, 16)), layout)
    with pytest.raises(TypeError, match=r"expected a layout, got Dict"):
        unpack(torch.zeros((3, 16)), layout.space)
    with pytest.raises(TypeError, match=r"expected a tensor, got ndarray"):
        unpack(np.zeros((3, 16), np.uint8), layout)
