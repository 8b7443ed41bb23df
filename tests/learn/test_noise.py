"""Noise for exploring: normal numbers, one process per row, which begins anew with the row's episode."""

import numpy as np
import pytest
import torch

from shoal.learn.noise import EXPONENTS, Noise, colored

ROWS, NOBODY = np.arange(3), np.zeros(3, np.bool_)


def drawn(noise, steps, rows=ROWS, begins=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    nobody = np.zeros(len(rows), np.bool_)
    return np.stack(
        [
            noise.draw(rows, nobody if begins is None else begins(step), generator).numpy()
            for step in range(steps)
        ]
    )


@pytest.mark.parametrize("steps", [80, 81])
@pytest.mark.parametrize("color", EXPONENTS)
def test_each_number_alone_is_a_normal_one(color, steps):
    random = np.random.default_rng(0)
    found = colored(random, steps, 20_000, EXPONENTS[color])
    assert found.var(1) == pytest.approx(np.ones(steps), abs=0.08)
    assert found.mean(1) == pytest.approx(np.zeros(steps), abs=0.05)
    assert (np.abs(found) < 1).mean() == pytest.approx(0.683, abs=0.01)


@pytest.mark.parametrize(
    ("color", "least", "most"), [("white", -0.05, 0.05), ("pink", 0.5, 0.8), ("red", 0.97, 1)]
)
def test_neighbours_are_as_alike_as_the_color_says(color, least, most):
    found = colored(np.random.default_rng(1), 1000, 500, EXPONENTS[color])
    assert least < (found[1:] * found[:-1]).mean() / (found**2).mean() < most


@pytest.mark.parametrize("color", ["pink", "red"])
def test_the_power_falls_with_the_frequency(color):
    found = colored(np.random.default_rng(2), 1024, 2000, EXPONENTS[color])
    power = (np.abs(np.fft.rfft(found, axis=0)) ** 2).mean(1)
    slope = np.polyfit(np.log(np.arange(4, 400)), np.log(power[4:400]), 1)[0]
    assert slope == pytest.approx(-EXPONENTS[color], abs=0.05)


def test_each_row_has_a_process_of_its_own():
    # SPEC 2.2, defect 8: rows that take numbers of one sequence in turn have nothing of its color left.
    together = drawn(Noise("red", 3, 2, 100, seed=5), 50)
    neighbours = (together[1:] * together[:-1]).mean((0, 2)) / (together**2).mean((0, 2))
    assert (neighbours > 0.9).all()
    assert np.abs(np.corrcoef(together[:, :, 0].T) - np.eye(3)).max() < 0.999
    alone = [drawn(Noise("red", 3, 2, 100, seed=5), 50, rows=np.array([row])) for row in range(3)]
    for row in range(3):  # whatever the other rows do, and in whatever order rows arrive
        assert (together[:, row] == alone[row][:, 0]).all()


def test_only_the_row_whose_episode_begins_begins_anew():
    usual = drawn(Noise("pink", 3, 1, 100, seed=5), 40)
    other = drawn(Noise("pink", 3, 1, 100, seed=5), 40, begins=lambda step: (step == 20) & (ROWS == 1))
    assert (usual[:, [0, 2]] == other[:, [0, 2]]).all()
    assert (usual[:20, 1] == other[:20, 1]).all()
    assert not (usual[20:, 1] == other[20:, 1]).any()


def test_a_sequence_that_is_used_up_is_followed_by_another():
    found = drawn(Noise("red", 3, 1, 10, seed=1), 35)
    assert np.isfinite(found).all()
    assert len(np.unique(found[:, 0])) == 35


@pytest.mark.parametrize("color", EXPONENTS)
def test_a_restored_process_goes_on_alike(color):
    one, two = Noise(color, 3, 2, 16, seed=9), Noise(color, 3, 2, 16, seed=9)
    drawn(one, 21)
    two.load_state_dict(one.state_dict())
    assert (drawn(one, 20, seed=4) == drawn(two, 20, seed=4)).all()
