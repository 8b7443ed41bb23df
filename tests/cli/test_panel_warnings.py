"""The panel of training: when it warns, and what it says of the machine."""

import math
import os
import re
import subprocess
import sys

import pytest

from shoal.cli import _panel
from shoal.cli._panel import Usage, warnings_for
from tests.cli.updates import Clock, an_update, some

# -- warnings ----------------------------------------------------------------------------------------------


def only(history):
    (warning,) = warnings_for(history)
    return warning


def test_nothing_to_warn_of():
    assert warnings_for([]) == []
    assert warnings_for(some(50)) == []


BAD = {"approx_kl": 0.5, "explained_variance": -3.0, "split": {"wait": 9.0, "learn": 1.0}}


def test_no_alarm_at_the_very_start():
    history = [an_update(1), *some(8, mean_return=1.0, entropy=0.0, **BAD)]
    assert warnings_for(history) == []
    assert warnings_for(some(9, episodes=0, mean_return=math.nan)) == []  # of 97 updates


def test_entropy_has_collapsed():
    learnt = [an_update(index, 10.0 * index) for index in range(1, 21)]
    settled = [an_update(index, 120.0, entropy=0.004) for index in range(21, 31)]
    assert only(learnt + settled).startswith(
        "entropy has collapsed from 0.546 to 0.004 and the return is below"
    )
    assert warnings_for(learnt + settled[:-1]) == []  # not for long
    little = [an_update(index, 120.0, entropy=0.006) for index in range(21, 31)]
    assert warnings_for(learnt + little) == []


def test_a_policy_that_is_sure_and_right_has_not_collapsed():
    learnt = [an_update(index, 10.0 * index) for index in range(1, 21)]
    assert warnings_for(learnt + [an_update(index, 199.0, entropy=0.001) for index in range(21, 41)]) == []
    assert warnings_for(learnt + [an_update(index, 260.0, entropy=0.0) for index in range(21, 41)]) == []


def test_entropy_of_continuous_actions_may_be_negative():
    learnt = [an_update(index, 10.0 * index, entropy=1.4) for index in range(1, 21)]
    assert warnings_for(learnt + [an_update(index, 50.0, entropy=-2.0) for index in range(21, 41)]) == []


def test_the_learner_is_the_bottleneck():
    warning = only(some(10, split={"wait": 0.1, "act": 0.05, "learn": 0.85}))
    assert warning.startswith("learning takes 85% of the time: more envs will not help")
    assert warnings_for(some(10, split={"wait": 0.2, "learn": 0.8})) == []


def test_the_envs_are_the_bottleneck():
    warning = only(some(10, split={"wait": 0.9, "act": 0.05, "learn": 0.05}))
    assert warning == "waiting for envs takes 90% of the time: more workers or compiled envs may help"
    assert warnings_for(some(10, split={"wait": 0.8, "learn": 0.2})) == []


def test_the_time_of_late_updates_counts():
    compiled = some(5, split={"wait": 100.0, "learn": 1.0})
    assert warnings_for(compiled + some(10)) == []


def test_no_episode_has_finished():
    history = some(10, episodes=0, mean_return=math.nan)
    assert only(history) == "no episode has finished yet: there are no returns to show"
    assert warnings_for(some(10, episodes=1)) == []


def test_the_policy_moves_far():
    assert only(some(10, approx_kl=0.15)).startswith("updates move the policy far, KL 0.150")
    assert warnings_for(some(10, approx_kl=0.1 - 1e-9)) == []
    assert warnings_for([*some(9), an_update(10, approx_kl=0.5)]) == []  # once


def test_the_value_function_predicts_nothing():
    history = some(30, explained_variance=-0.1)
    assert (
        only(history)
        == "explained variance has been below 0 for 20 updates: the value function predicts nothing"
    )
    assert warnings_for(history[:-1]) == []
    assert warnings_for([*history, an_update(31, explained_variance=0.1)]) == []


def test_values_that_are_right_have_nothing_to_explain():
    first = some(20)
    assert only(first + some(30, explained_variance=-2.0, value=0.01)).startswith("explained variance")
    assert warnings_for(first + some(30, explained_variance=-2.0, value=0.001)) == []


def test_figures_that_are_not_numbers():
    assert warnings_for(some(40, explained_variance=math.nan, approx_kl=math.nan, entropy=math.nan)) == []
    assert only(some(2, value=math.nan)).startswith("the losses are not numbers any more")


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
