"""The panel of training: what it shows in a terminal, and the lines it prints elsewhere."""

import io
import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from shoal.cli import _panel
from shoal.cli._panel import Panel, learning_curve, number, steps_per_second, warnings_for
from tests.cli.running import python
from tests.cli.updates import Clock, an_update, some

TITLE = "shoal/CartPole-v1, PPO, runs/seed-3"


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


def test_a_log_warns_once_when_something_is_wrong():
    clock, file = Clock(), io.StringIO()
    with Panel(TITLE, a_pipe(file), clock=clock) as panel:
        for index in range(1, 60):
            panel(an_update(index, 2.0 * index, approx_kl=0.01 if index < 20 else 0.01 * index))
            clock.now += 1
    lines = file.getvalue().splitlines()
    (place,) = (number for number, line in enumerate(lines) if line.startswith("warning: "))
    assert lines[place].startswith("warning: updates move the policy too far: KL 0.")
    assert "--learning-rate" in lines[place]
    assert len(lines) == 60
    assert 20 < place < 30


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
    assert lines[-3:] == [
        "! updates move the policy too far: KL 0.400, where 0.005 to",
        "  0.03 are usual. Lower --learning-rate, or bound it with",
        "  --target-kl 0.02",
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
            panel(an_update(index, total_steps=1_000_000))
            clock.now += 0.125
    assert file.getvalue().splitlines() == [
        f"steps {1024 * index:,}/1,000,000  return 79.9  SPS 51,200  entropy 0.546  kl 0.007"
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
    assert warnings_for([update] * 50) == {}


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
