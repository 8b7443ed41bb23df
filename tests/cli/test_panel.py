"""The panel of training."""

import io
import math
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from shoal.cli import _panel
from shoal.cli._panel import Panel, Usage, learning_curve, number, steps_per_second, warnings_for
from shoal.learn import Update
from tests.cli.running import python

TITLE = "shoal/CartPole-v1, PPO, runs/seed-3"
SPLIT = {"wait": 0.2, "act": 0.2, "store": 0.1, "send": 0.1, "learn": 0.4}
LOSSES = {
    "policy": -0.01,
    "value": 0.5,
    "entropy": 0.546,
    "approx_kl": 0.007,
    "clip_fraction": 0.1,
    "grad_norm": 0.4,
    "explained_variance": 0.83,
}


def an_update(updates, mean_return=79.9, *, split=SPLIT, episodes=12, total_steps=100_000, **losses):
    return Update(
        steps=1024 * updates,
        total_steps=total_steps,
        updates=updates,
        seconds=0.02 * updates,
        steps_per_second=51_200.0,
        episodes=episodes,
        mean_return=mean_return,
        mean_length=mean_return,
        learning_rate=2.5e-3,
        losses=LOSSES | losses,
        split=split,
    )


def some(count, **changes):
    return [an_update(index, **changes) for index in range(1, count + 1)]


class Clock:
    """Stands still until it is set."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Screen(io.StringIO):
    """A terminal that takes its time, and counts frames."""

    def __init__(self, clock=None, seconds=0.0):
        super().__init__()
        self.clock, self.seconds, self.frames = clock, seconds, 0

    def write(self, text):
        if TITLE in text:
            self.frames += 1
            if self.clock is not None:
                self.clock.now += self.seconds
        return super().write(text)


def a_terminal(file, width=100, height=30):
    return Console(
        file=file,
        force_terminal=True,
        force_interactive=True,
        color_system=None,
        width=width,
        height=height,
        _environ={},
    )


def a_pipe(file):
    return Console(file=file, force_terminal=False, width=40, _environ={})


def last_frame(history, width=100, height=30):
    """Lines, without what moves the cursor."""
    screen = Screen()
    with Panel(TITLE, a_terminal(screen, width, height)) as panel:
        for update in history:
            panel(update)
    text = screen.getvalue()
    frame = text[text.rindex(TITLE[:15]) :]
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", frame).rstrip("\n").split("\n")


def test_a_run_that_is_resumed_shows_what_was_before():
    screen = Screen()
    with Panel(TITLE, a_terminal(screen), history=some(50)) as panel:
        panel(an_update(51))
    assert "└ 1,024 ─" in screen.getvalue()


def braille(lines):
    return [line for line in lines if any("\u2800" < character <= "\u28ff" for character in line)]


# -- in a terminal -----------------------------------------------------------------------------------------


def test_a_frame_has_it_all():
    history = [an_update(index, 2.0 * index) for index in range(1, 51)]
    lines = last_frame(history)
    frame = "\n".join(lines)
    assert lines[0] == TITLE
    assert "51,200 / 100,000 steps  51%" in lines[1]
    assert "51,200 steps/s   0:00:01 elapsed   0:00:00 left" in lines[2]
    assert re.search(r"100\.0 ┤", frame)
    assert re.search(r"2\.00 ┤", frame)
    assert re.search(r"└ 1,024 ─+ 51,200 steps", frame)
    for name, value in [
        ("episodes", "12"),
        ("return", r"100\.0"),
        ("length", r"100\.0"),
        ("policy", r"-0\.010"),
        ("entropy", r"0\.546"),
        ("kl", r"0\.007"),
        ("expl. variance", r"0\.830"),
        ("learning rate", "2.5e-03"),
    ]:
        assert re.search(rf"{re.escape(name)} +{value}", frame), name
    assert "wait 20%  ▓ act 20%  ▒ store 10%  ░ send 10%  ▚ learn 40%" in frame
    assert len(braille(lines)) == 8


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 200])
@pytest.mark.parametrize("height", [1, 5, 12, 20, 30, 60])
def test_a_frame_fits(width, height):
    history = some(40, entropy=0.0, approx_kl=0.4, explained_variance=-1.0)
    lines = last_frame(history, width, height)
    assert len(lines) <= max(1, height - 1)
    assert max(map(len, lines)) <= min(width, 100)


def test_where_there_is_little_room_the_chart_is_left_out():
    history = [an_update(index, float(index)) for index in range(1, 30)]
    assert 4 <= len(braille(last_frame(history, 60, 20))) < 8
    small = last_frame(history, 60, 14)
    assert not braille(small)
    assert any("entropy" in line for line in small)


def test_warnings_are_what_stays():
    lines = last_frame(some(20, approx_kl=0.4), 60, 8)
    assert lines[0] == TITLE
    assert lines[-2:] == [
        "! updates move the policy far, KL 0.400: lower the learning",
        "  rate or take fewer epochs",
    ]


def test_the_last_frame_stays_and_the_cursor_comes_back():
    screen = Screen()
    with Panel(TITLE, a_terminal(screen)) as panel:
        panel(an_update(1))
    assert screen.getvalue().endswith("\n\x1b[?25h")


def test_nothing_is_drawn_without_an_update():
    screen = Screen()
    with Panel(TITLE, a_terminal(screen)):
        pass
    assert screen.getvalue() == ""


def test_the_last_state_is_drawn_after_an_error():
    screen = Screen()

    def train():
        with Panel(TITLE, a_terminal(screen)) as panel:
            panel(an_update(1))
            panel(an_update(2))
            raise ValueError("the env is broken")

    with pytest.raises(ValueError, match="the env is broken"):
        train()
    assert "2,048 / 100,000" in screen.getvalue()
    assert screen.getvalue().endswith("\x1b[?25h")


@pytest.mark.parametrize("seconds", [0.0, 0.0001, 0.001, 0.01, 0.1])
def test_it_takes_a_third_of_a_percent_of_the_time(seconds):
    clock = Clock()
    screen = Screen(clock, seconds)
    begun = clock.now
    with Panel(TITLE, a_terminal(screen), clock=clock) as panel:
        for index in range(1, 10_001):
            clock.now += 0.01
            panel(an_update(index))
        passed, frames = clock.now - begun, screen.frames
    most = 1 + passed / max(0.25, 300 * seconds)
    # Less, because no update comes just when a frame is due.
    assert 0.9 * most - 1 <= frames <= most
    assert "10,240,000 / 100,000" in screen.getvalue()


def test_a_slow_terminal_still_shows_the_last_state():
    clock = Clock()
    screen = Screen(clock, 1.0)
    with Panel(TITLE, a_terminal(screen), clock=clock) as panel:
        for index in range(1, 100):
            clock.now += 1.0
            panel(an_update(index))
        assert screen.frames == 1
    assert "101,376 / 100,000" in screen.getvalue()


def test_a_long_run_is_remembered_in_part():
    clock = Clock()
    with Panel(TITLE, a_pipe(io.StringIO()), clock=clock) as panel:
        for index in range(1, 20_001):
            panel(an_update(index))
        kept = [update.updates for update in panel._history]
    assert len(kept) <= _panel.MOST_KEPT
    assert kept[0] == 1
    assert kept[-50:] == list(range(19_951, 20_001))
    assert kept == sorted(kept)


# -- elsewhere ---------------------------------------------------------------------------------------------


def test_a_line_every_second():
    clock, file = Clock(), io.StringIO()
    with Panel(TITLE, a_pipe(file), clock=clock) as panel:
        for index in range(1, 36):
            panel(an_update(index))
            clock.now += 0.125
    assert file.getvalue().splitlines() == [
        f"steps {1024 * index:,}/100,000  return 79.9  SPS 51,200  entropy 0.546  kl 0.007"
        for index in (1, 9, 17, 25, 33, 35)
    ]


def test_the_last_line_is_not_told_twice():
    file = io.StringIO()
    with Panel(TITLE, a_pipe(file)) as panel:
        panel(an_update(1))
    assert len(file.getvalue().splitlines()) == 1


def test_how_often_lines_come():
    clock, file = Clock(), io.StringIO()
    with Panel(TITLE, a_pipe(file), every=5.0, clock=clock) as panel:
        for index in range(1, 11):
            panel(an_update(index))
            clock.now += 1.0
    assert [line.split()[1] for line in file.getvalue().splitlines()] == [
        "1,024/100,000",
        "6,144/100,000",
        "10,240/100,000",
    ]


def test_a_terminal_that_cannot_draw_gets_lines():
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, _environ={"TERM": "dumb"})
    with Panel(TITLE, console) as panel:
        panel(an_update(1))
    assert file.getvalue().startswith("steps 1,024/100,000  return 79.9")
    assert "\x1b" not in file.getvalue()


def test_learners_with_other_losses():
    update = replace(an_update(20), losses={"td_error": 0.25}, split={})
    file = io.StringIO()
    with Panel(TITLE, a_pipe(file)) as panel:
        panel(update)
    assert file.getvalue() == "steps 20,480/100,000  return 79.9  SPS 51,200\n"
    assert any(re.search(r"td error +0\.250", line) for line in last_frame([update]))
    assert warnings_for([update] * 50) == []


def test_torch_is_not_imported():
    done = python("import sys, shoal.cli._panel; print('torch' in sys.modules)")
    assert (done.stdout, done.stderr) == ("False\n", "")


# -- returns that are not there ----------------------------------------------------------------------------


def test_before_the_first_episode_there_is_a_dash():
    history = some(3, mean_return=math.nan, episodes=0)
    lines = last_frame(history)
    assert not braille(lines)
    assert any(re.search(r"return +- +length +- ", line) for line in lines)
    file = io.StringIO()
    with Panel(TITLE, a_pipe(file)) as panel:
        panel(history[0])
    assert "return -  SPS" in file.getvalue()


def test_a_curve_begins_with_the_first_episode():
    history = [an_update(index, math.nan if index <= 50 else 5.0) for index in range(1, 101)]
    curve = [line.plain for line in learning_curve(history, 70, 8)]
    (line,) = braille(curve)
    assert re.match(r"    5\.00 ┤ {29,31}[\u2801-\u28ff]{29,31}$", line)


def test_a_curve_rises():
    history = [an_update(index, float(index)) for index in range(1, 301)]
    curve = [line.plain for line in learning_curve(history, 50, 8)]
    begins = [re.search("[\u2801-\u28ff]", line).start() for line in curve[:-1]]
    assert begins == sorted(begins, reverse=True)
    assert len(set(begins)) == 8
    assert {len(line) for line in curve[:-1]} == {50}
    assert len(curve[-1]) <= 50


@given(
    st.lists(
        st.floats(-1e9, 1e9) | st.sampled_from([math.nan, math.inf, -math.inf]), min_size=1, max_size=50
    ),
    st.integers(1, 120),
    st.integers(1, 10),
)
def test_any_returns_make_a_curve(returns, width, rows):
    history = [an_update(index, value) for index, value in enumerate(returns, 1)]
    curve = learning_curve(history, width, rows)
    assert len(curve) == (rows + 1 if any(map(math.isfinite, returns)) else 0)
    assert bool(braille([line.plain for line in curve])) == bool(curve)


# -- speed -------------------------------------------------------------------------------------------------


def test_speed_is_that_of_the_last_seconds():
    slow = [replace(an_update(1), steps=index * 100, seconds=float(index)) for index in range(1, 101)]
    fast = [
        replace(an_update(1), steps=10_000 + index * 900, seconds=100.0 + index) for index in range(1, 21)
    ]
    assert steps_per_second(slow) == pytest.approx(100)
    assert steps_per_second(slow + fast[:5]) == pytest.approx(500)
    assert steps_per_second(slow + fast) == pytest.approx(900)


def test_the_speed_of_the_first_update_is_its_own():
    assert steps_per_second([an_update(1)]) == 51_200.0
    assert steps_per_second([an_update(1)] * 2) == 51_200.0


def test_speed_where_an_update_takes_longer():
    history = [replace(an_update(1), steps=index * 6000, seconds=60.0 * index) for index in range(1, 4)]
    assert steps_per_second(history) == pytest.approx(100)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (79.94, "79.9"),
        (0.5461, "0.546"),
        (-1.5, "-1.50"),
        (0.0, "0.000"),
        (2.5e-4, "2.5e-04"),
        (52_300.4, "52,300"),
        (-1.23e7, "-1.2e+07"),
        (math.nan, "-"),
        (math.inf, "-"),
    ],
)
def test_numbers_are_short(value, text):
    assert number(value) == text


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
