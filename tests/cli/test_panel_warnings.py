"""The panel of training: when it warns, and what it says of the machine."""

import math
import os
import re
import subprocess
import sys

import pytest

from shoal.cli import _panel
from shoal.cli._panel import Usage
from shoal.cli._warnings import warnings_for
from tests.cli.updates import Clock, an_update, some

# -- warnings ----------------------------------------------------------------------------------------------


def only(history):
    (warning,) = warnings_for(history).values()
    return warning


def test_nothing_to_warn_of():
    assert warnings_for([]) == {}
    assert warnings_for(some(50)) == {}


BAD = {
    "approx_kl": 0.5,
    "clip_fraction": 0.9,
    "explained_variance": -3.0,
    "split": {"wait": 9.0, "learn": 1.0},
    "passes": 0.1,
}


def test_no_alarm_at_the_very_start():
    history = [an_update(1), *some(8, mean_return=1.0, entropy=0.0, **BAD)]
    assert warnings_for(history) == {}
    assert warnings_for(some(9, episodes=0, mean_return=math.nan)) == {}  # of 97 updates


def test_entropy_has_collapsed():
    learnt = [an_update(index, 10.0 * index) for index in range(1, 21)]
    settled = [an_update(index, 120.0, entropy=0.004) for index in range(21, 31)]
    assert only(learnt + settled).startswith(
        "entropy has collapsed from 0.546 to 0.004 and the return is below"
    )
    assert warnings_for(learnt + settled[:-1]) == {}  # not for long
    little = [an_update(index, 120.0, entropy=0.006) for index in range(21, 31)]
    assert warnings_for(learnt + little) == {}


def test_a_policy_that_is_sure_and_right_has_not_collapsed():
    learnt = [an_update(index, 10.0 * index) for index in range(1, 21)]
    assert warnings_for(learnt + [an_update(index, 199.0, entropy=0.001) for index in range(21, 41)]) == {}
    assert warnings_for(learnt + [an_update(index, 260.0, entropy=0.0) for index in range(21, 41)]) == {}


def test_entropy_of_continuous_actions_may_be_negative():
    learnt = [an_update(index, 10.0 * index, entropy=1.4) for index in range(1, 21)]
    assert warnings_for(learnt + [an_update(index, 50.0, entropy=-2.0) for index in range(21, 41)]) == {}
    certain = learnt + [an_update(index, 50.0, entropy=-2.9) for index in range(21, 41)]
    assert only(certain).startswith("entropy has collapsed from 1.40 to -2.90 and the return is below")


def test_entropy_has_risen():
    learnt = [an_update(index, 10.0 * index, entropy=1.4) for index in range(1, 16)]
    noisy = [an_update(index, 50.0, entropy=2.2) for index in range(16, 26)]
    assert (
        only(learnt + noisy) == "entropy has risen from 1.40 to 2.20 and the return is below its best: "
        "actions become noise. Lower --entropy"
    )
    assert warnings_for(learnt + [an_update(index, 50.0, entropy=2.0) for index in range(16, 26)]) == {}
    assert warnings_for(learnt + [an_update(index, 300.0, entropy=2.2) for index in range(16, 26)]) == {}


def test_the_policy_still_acts_at_random():
    early, late = (some(count, mean_return=0.0, entropy=0.546) for count in (29, 30))  # of 97 updates
    assert warnings_for(early) == {}
    assert only(late).startswith("entropy is 0.546 after 31% of the steps, as high as at the beginning")
    assert only(late).endswith("Lower --entropy or raise --learning-rate")
    assert warnings_for([an_update(index, index, entropy=0.546) for index in range(1, 31)]) == {}  # it learns
    surer = [an_update(index, 0.0, entropy=0.546 - 0.001 * index) for index in range(1, 31)]
    assert warnings_for(surer) == {}
    assert warnings_for(some(30, mean_return=math.nan, entropy=0.546)) == {}


def test_the_learner_is_the_bottleneck():
    warning = only(some(10, split={"wait": 0.1, "act": 0.05, "learn": 0.85}))
    assert warning.startswith("learning takes 85% of the time: more envs will not help")
    assert warnings_for(some(10, split={"wait": 0.2, "learn": 0.8})) == {}


def test_the_envs_are_the_bottleneck():
    warning = only(some(10, split={"wait": 0.9, "act": 0.05, "learn": 0.05}))
    assert warning == "waiting for envs takes 90% of the time: more --num-workers or compiled envs may help"
    assert warnings_for(some(10, split={"wait": 0.8, "learn": 0.2})) == {}


def test_the_time_of_late_updates_counts():
    compiled = some(5, split={"wait": 100.0, "learn": 1.0})
    assert warnings_for(compiled + some(10)) == {}


def test_no_episode_has_finished():
    history = some(10, episodes=0, mean_return=math.nan)
    assert only(history) == "no episode has finished yet: there are no returns to show"
    assert warnings_for(some(10, episodes=1)) == {}


def test_the_policy_moves_far():
    assert (
        only(some(10, approx_kl=0.15))
        == "updates move the policy too far: KL 0.150, where 0.005 to 0.03 are usual. Lower --learning-rate, "
        "or bound it with --target-kl 0.02"
    )
    assert warnings_for(some(10, approx_kl=0.05 + 1e-9))
    assert warnings_for(some(10, approx_kl=0.05 - 1e-9)) == {}
    assert warnings_for([*some(9), an_update(10, approx_kl=0.5)]) == {}  # once


def test_the_policy_hardly_moves():
    still = [an_update(index, 100.0 - index, approx_kl=1e-5) for index in range(1, 11)]
    assert only(still) == "updates hardly move the policy: KL 1.0e-05. Raise --learning-rate or --epochs"
    moving = [an_update(index, 100.0 - index, approx_kl=1e-4) for index in range(1, 11)]
    assert warnings_for(moving) == {}
    # At the end the learning rate has fallen, and at its best a policy may stay as it is.
    slow = [an_update(index, 100.0 - index, approx_kl=1e-5, learning_rate=1e-3) for index in range(2, 12)]
    assert warnings_for([an_update(1), *slow]) == {}
    assert warnings_for(some(10, approx_kl=1e-5)) == {}
    certain = [an_update(index, 100.0 - index, approx_kl=1e-5, entropy=0.2) for index in range(2, 12)]
    assert warnings_for([an_update(1), *certain]) == {}  # it tries nothing new, so it cannot learn more


def test_much_is_clipped():
    warning = only(some(10, clip_fraction=0.65))
    assert warning.startswith("65% of the samples are clipped, where 5% to 30% are usual")
    assert warning.endswith("Lower --learning-rate or --epochs")
    assert warnings_for(some(10, clip_fraction=0.4 - 1e-9)) == {}


def test_the_bound_ends_updates_early():
    warning = only(some(10, passes=0.25))
    assert warning.startswith("--target-kl ends updates after 25% of the samples")
    assert warning.endswith("Lower --learning-rate")
    assert warnings_for(some(10, passes=1.0)) == {}
    assert warnings_for(some(10, passes=math.nan)) == {}  # a history from a file


def test_threads_wait_for_cores():
    warning = only(some(4, threads=2, cpu=0.6))
    assert warning.startswith("torch learns with 2 threads, but they get only 30% of the CPU time of 2 cores")
    assert "an update takes 0.400 s" in warning
    assert "--torch-threads 1" in warning
    assert warnings_for(some(3, threads=2, cpu=0.6)) == {}  # of which the first does not count
    assert warnings_for(some(10, threads=2, cpu=1.41)) == {}
    assert warnings_for(some(10, threads=1, cpu=0.3)) == {}  # fewer there cannot be
    assert warnings_for(some(10, threads=2, cpu=math.nan)) == {}  # a history from a file


def test_each_warning_names_an_option():
    """All but two: of the envs' episodes, and of the losses."""
    from shoal.learn import PPOConfig

    known = {f"--{name.replace('_', '-')}" for name in PPOConfig.__dataclass_fields__} | {"--resume"}
    rest = {"mean_return": 1.0, "learning_rate": 1e-3, "split": {"learn": 1.0}}
    found = dict(warnings_for([an_update(1), *some(40, **BAD), an_update(41)]))
    found |= warnings_for([an_update(1), *some(40, entropy=0.001, **{**BAD, **rest})])
    named = set(re.findall(r"--[a-z-]+", " ".join(found.values())))
    assert len(found) >= 8
    assert named <= known
    assert all("--" in sentence for sentence in found.values())


def test_the_value_function_predicts_nothing():
    history = some(30, explained_variance=-0.1)
    assert only(history).startswith(
        "explained variance has been below 0 for 20 updates: the value function predicts nothing"
    )
    assert warnings_for(history[:-1]) == {}
    assert warnings_for([*history, an_update(31, explained_variance=0.1)]) == {}


def test_values_that_are_right_have_nothing_to_explain():
    first = some(20)
    assert only(first + some(30, explained_variance=-2.0, value=0.01)).startswith("explained variance")
    assert warnings_for(first + some(30, explained_variance=-2.0, value=0.001)) == {}


def test_figures_that_are_not_numbers():
    assert warnings_for(some(40, explained_variance=math.nan, approx_kl=math.nan, entropy=math.nan)) == {}
    assert only(some(2, value=math.nan)).startswith("the losses are NaN")


# -- the machine -------------------------------------------------------------------------------------------


CHILD = """
import time
block = bytearray(b"x") * 100_000_000
while time.process_time() < 0.5: pass
print(flush=True)
input()
"""


def percent(cells):
    return int(cells["CPU"].rstrip("%"))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_what_children_use_counts():
    clock = Clock()
    usage = Usage(clock)
    assert usage.cells() == {}  # nothing has passed
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=-1, stdout=-1, text=True) as child:
        child.stdout.readline()
        clock.now += 10
        during, pages = usage.cells(), sum(pages for _, pages in _panel._processes().values())
        child.communicate("\n")
    assert percent(during) >= 4  # half a second of ten
    assert re.fullmatch(r"\d+ MB|\d+\.\d GB", during["memory"])
    freed = pages - sum(pages for _, pages in _panel._processes().values())
    assert freed * os.sysconf("SC_PAGE_SIZE") > 90e6
    clock.now += 0.5
    assert usage.cells() is during  # too soon to say
    clock.now += 1000
    assert 0 <= percent(usage.cells()) < 4  # a child that has ended takes nothing off


def test_without_proc_there_is_nothing_to_show(monkeypatch):
    monkeypatch.setattr(_panel, "_processes", dict)
    clock = Clock()
    usage = Usage(clock)
    clock.now += 10
    assert usage.cells() == {}
