"""Frames of hockey games: colours, places, and both doors to them."""

import gymnasium
import numpy as np
import pytest

import shoal
from shoal import _core
from shoal.hockey import Hockey, HockeyOne
from shoal.hockey.drawing import (
    BLACK,
    CENTER_CIRCLE,
    COLORS,
    GOAL_AREA,
    PLAYER_ONE,
    PLAYER_TWO,
    draw_observation,
    shapes,
)
from shoal.native.drawing import WHITE

needs_core = pytest.mark.skipif(_core.NAME != "native", reason="there are no compiled envs without the core")


def obs(one=(-3.0, 0.0, 0.0), two=(3.0, 0.0, 0.0), puck=(0.0, 0.0)):
    return np.array([*one, 0, 0, 0, *two, 0, 0, 0, *puck, 0, 0, 0, 0], np.float32)


def color_at(frame, x, y):
    """The colour at a place on the table, in metres."""
    return tuple(frame[round(240 - 60 * y), round(300 + 60 * x)].tolist())


def test_the_table_has_the_colours_of_the_original():
    frame = draw_observation(obs(puck=(0.0, 3.0)))
    assert (frame.shape, frame.dtype) == ((480, 600, 3), np.uint8)
    assert {tuple(color) for color in np.unique(frame.reshape(-1, 3), axis=0).tolist()} == set(COLORS)
    assert color_at(frame, 0, 0) == CENTER_CIRCLE
    assert color_at(frame, 0, 3.4) == color_at(frame, 0, -3.4) == BLACK
    for side in (-1, 1):
        assert color_at(frame, side * 4.1, 0.8) == GOAL_AREA
        assert color_at(frame, side * 4.3, 0.0) == WHITE  # behind the goal line
        assert color_at(frame, side * 4.0, 2.5) == color_at(frame, side * 4.0, -2.5) == BLACK
    assert color_at(frame, -3.1, 0.0) == PLAYER_ONE
    assert color_at(frame, 3.1, 0.0) == PLAYER_TWO
    assert color_at(frame, 0.0, 3.0) == BLACK
    assert color_at(frame, 0.0, 2.7) == WHITE


def test_rackets_turn_against_the_clock():
    level = draw_observation(obs())
    assert color_at(level, -3.0, 0.35) == PLAYER_ONE  # the ends of the flat face
    assert color_at(level, 3.0, 0.35) == PLAYER_TWO
    upright = draw_observation(obs((-3.0, 0.0, np.pi / 2), (3.0, 0.0, np.pi / 2)))
    assert color_at(upright, -3.0, 0.35) != PLAYER_ONE
    assert color_at(upright, -3.3, 0.05) == PLAYER_ONE
    # The round backs were away from the middle. Now that of player one is below, that of player two above.
    assert color_at(upright, -3.0, -0.38) == PLAYER_ONE
    assert color_at(upright, 3.0, 0.38) == PLAYER_TWO


def test_frames_are_mirrored_as_the_game_is():
    frame = draw_observation(obs((-2.0, 1.0, 0.4), (1.5, -2.0, -0.7), (0.3, 0.2)))
    other = draw_observation(obs((-1.5, 2.0, -0.7), (2.0, -1.0, 0.4), (-0.3, -0.2)))
    swapped = other[::-1, ::-1].copy()
    one, two = (swapped == PLAYER_ONE).all(2), (swapped == PLAYER_TWO).all(2)
    swapped[one], swapped[two] = PLAYER_TWO, PLAYER_ONE
    assert (frame != swapped).any(2).mean() < 0.001  # a pixel of an edge belongs to one side


def test_a_puck_outside_of_the_frame_is_left_out():
    assert draw_observation(obs(puck=(40.0, 0.0))).shape == (480, 600, 3)


def test_a_frame_can_be_changed_without_changing_the_next():
    frame = draw_observation(obs())
    frame[:] = 7
    assert color_at(draw_observation(obs()), 0, 3.4) == BLACK


def test_shapes_are_plain_numbers():
    found = shapes()
    assert np.shape(found["racket"]) == (7, 2)
    assert found["puck_radius"] == pytest.approx(13 / 60)
    assert max(x for x, _ in found["racket"]) == pytest.approx(0.1)  # the flat face


@needs_core
@pytest.mark.parametrize("env", [Hockey, HockeyOne])
def test_envs_render_what_player_one_observes(env):
    with shoal.Native(env, 2, num_workers=1, render_mode="rgb_array") as vec:
        vec.reset(seed=3)
        for _ in range(30):
            seen = vec.step(vec.action_space.sample())[0]
        rows = seen[:: vec.agents_per_env]
        for frame, row in zip(vec.render(), rows, strict=True):
            assert (frame != draw_observation(row)).any(2).sum() < 20  # observations are rounded to float32


@needs_core
def test_a_single_env_renders():
    env = gymnasium.make("shoal/HockeyOne-v0", render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().shape == (480, 600, 3)
    assert env.metadata["render_fps"] == 50
    env.close()
