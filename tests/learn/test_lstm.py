"""The LSTM: the core, its twin in torch, and torch's own layer agree."""

import copy
import pickle

import pytest
import torch
from torch import nn

from shoal import _core
from shoal.learn.lstm import LSTM

pytestmark = pytest.mark.core

in_the_core = pytest.mark.skipif(_core.NAME != "native", reason="needs the compiled core")


def example(steps, rows, inputs, width, chance=0.2, seed=0):
    torch.manual_seed(seed)
    layer = LSTM(inputs, width)
    with torch.no_grad():
        layer.weights[-1] = torch.randn(4 * width)
    numbers, starts = torch.randn(steps, rows, inputs), torch.rand(steps, rows) < chance
    return layer, numbers, starts, torch.randn(2, rows, width), torch.randn(steps, rows, width)


def results(layer, numbers, starts, state, slopes, **how):
    """Outputs, the state after them, and gradients by inputs and weights."""
    layer.zero_grad()
    numbers = numbers.clone().requires_grad_()
    outputs, after = layer(numbers, starts, state, **how)
    outputs.backward(slopes)
    return outputs.detach(), after, numbers.grad, layer.weights.grad


@in_the_core
@pytest.mark.parametrize("width", [16, 64, 80])
@pytest.mark.parametrize("rows", [1, 5, 12, 13, 100, 331])
@pytest.mark.parametrize("steps", [1, 9])
def test_the_core_agrees_with_torch(steps, rows, width):
    case = example(steps, rows, 3, width)
    for found, expected in zip(results(*case, in_core=True), results(*case, in_core=False), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_as_torchs_own_layer():
    layer, numbers, starts, state, slopes = example(11, 6, 3, 32, chance=0)
    own = nn.LSTM(3, 32)
    with torch.no_grad():
        own.weight_hh_l0.copy_(layer.weights[:32].t())
        own.weight_ih_l0.copy_(layer.weights[32:-1].t())
        own.bias_ih_l0.copy_(layer.weights[-1])
        own.bias_hh_l0.zero_()
    outputs, after, _, slope = results(layer, numbers, starts, state, slopes)
    expected, (seen, kept) = own(numbers, (state[:1], state[1:]))
    expected.backward(slopes)
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(after, torch.cat([seen, kept]))
    torch.testing.assert_close(slope[:32], own.weight_hh_l0.grad.t(), rtol=1e-4, atol=1e-5)


def test_it_forgets_where_an_episode_begins():
    layer, numbers, starts, state, _ = example(8, 4, 3, 16, chance=0)
    starts[5, 2] = True
    outputs, after = layer(numbers, starts, state)
    anew, after_anew = layer(numbers[5:], starts[5:] & False, torch.zeros_like(state))
    torch.testing.assert_close(outputs[5:, 2], anew[:, 2])
    torch.testing.assert_close(after[:, 2], after_anew[:, 2])
    assert (outputs[5:, 1] - anew[:, 1]).abs().max() > 1e-3


def test_a_step_at_a_time_is_the_same_as_a_column():
    layer, numbers, starts, state, _ = example(8, 7, 3, 64)
    whole, after = layer(numbers, starts, state)
    for step, expected in enumerate(whole):
        outputs, state = layer(numbers[step : step + 1], starts[step : step + 1], state)
        torch.testing.assert_close(outputs[0], expected)
    torch.testing.assert_close(state, after)


@in_the_core
def test_the_number_of_threads_changes_nothing():
    case = example(16, 500, 4, 64)
    assert 16 * 500 * (64 + 4 + 1) * 4 * 64 > 2**25  # enough for threads
    by_threads = []
    for threads in (1, 2, 7):
        case[0].threads = threads
        by_threads.append([part.clone() for part in results(*case)])
    for found in by_threads[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found, by_threads[0], strict=True))


@in_the_core
def test_large_numbers_and_none():
    layer, numbers, starts, state, slopes = example(4, 3, 2, 16)
    numbers[0, 0], numbers[1, 1] = 1e30, -1e30
    for part in results(layer, numbers, starts, state, slopes):
        assert torch.isfinite(part).all()
    numbers[2, 2] = float("nan")
    outputs, _ = layer(numbers, starts, state)
    assert outputs[2, 2].isnan().all()
    assert not outputs[:, :2].isnan().any()


@in_the_core
def test_a_second_backward_pass_is_refused():
    layer, numbers, starts, state, slopes = example(4, 3, 2, 16)
    outputs, _ = layer(numbers, starts, state)
    outputs.backward(slopes, retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward pass for each forward pass"):
        outputs.backward(slopes)


@in_the_core
def test_two_passes_alive_at_once_do_not_share_memory():
    layer, numbers, starts, state, slopes = example(6, 5, 3, 16)
    expected = results(layer, numbers, starts, state, slopes)[3].clone()
    layer.zero_grad()
    first, _ = layer(numbers, starts, state)
    second, _ = layer(numbers, starts, state)
    with torch.no_grad():
        layer(numbers * 2, starts, state)
    first.backward(slopes)
    torch.testing.assert_close(layer.weights.grad, expected)
    layer.zero_grad()
    second.backward(slopes)
    torch.testing.assert_close(layer.weights.grad, expected)


def test_copies_and_pickles_carry_no_spare_memory():
    case = example(64, 100, 3, 16)
    results(*case)
    assert len(pickle.dumps(case[0])) < 20_000
    assert copy.deepcopy(case[0])._spare == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [0, 2])
def test_no_rows_and_other_numbers(rows, dtype):
    layer, numbers, starts, state, _ = example(3, rows, 2, 16)
    outputs, after = layer.to(dtype)(numbers.to(dtype), starts, state.to(dtype))
    assert outputs.shape == (3, rows, 16)
    assert after.dtype == dtype


def test_what_is_not_a_number_ends_with_its_episode():
    layer, numbers, starts, state, _ = example(2, 2, 2, 16, chance=0)
    state[:, 0], starts[1, 0] = float("nan"), True
    outputs, _ = layer(numbers, starts, state)
    assert outputs[0, 0].isnan().all()
    assert outputs[1].isfinite().all()
