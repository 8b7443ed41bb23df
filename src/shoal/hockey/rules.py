"""The rules of the game around the physics: control, possession, shots, goals, observations, rewards.

A player sees the table from its own side: its goal is on the left, and it plays to the right. The state has
each racket as its own player sees it, and the puck as player one sees it. So both players have the same code.
The game is exactly symmetric, because each step is computed from the side where the puck is.
"""

# Compiled functions have no annotations.
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import math

import numpy as np

from shoal.hockey.physics import ANGLE, SPIN, VX, VY, X, Y, advance, find_contacts, is_in_goal
from shoal.hockey.table import CENTER_OFFSET, PUCK, RACKET_INERTIA, RACKET_MASS, TIME_STEP
from shoal.native.math import cos, sin

NORMAL, TRAIN_SHOOTING, TRAIN_DEFENSE = range(3)  # modes
NONE, WEAK, STRONG, AGENT = range(4)  # opponents

FORCE, TORQUE, SHOT_SPEED = 6000.0, 400.0, 60.0
MAX_ANGLE = math.pi / 3
MAX_SPEED, MAX_PUCK_SPEED = 10.0, 25.0
ZONE = 0.5  # a racket is pushed back when it is nearer than this to the middle line
MAX_TIME_KEEP_PUCK = 15

STATE = np.dtype(
    [
        ("rackets", np.float64, (2, 6)),
        ("puck", np.float64, 5),  # x, y, velocity x, y, spin
        ("shot", np.float64, 2),  # the velocity that the puck gets in its first step
        ("possession", np.int64, 2),  # counts down while a player holds the puck
        ("touching", np.uint8, 2),  # whether the puck touched each racket at the start of the last step
        ("scored", np.uint8, 2),  # whether the puck was in each player's goal at the start of the last step
        ("time", np.int64),
        ("time_limit", np.int64),
        ("mode", np.int64),
        ("opponent", np.int64),
        ("winner", np.int64),  # 1: player one, -1: player two
        ("one_starts", np.bool_),
        ("phases", np.float64, 2),  # of the bots that play for each player
        ("own_player", np.int64),  # the player that the agent of `HockeyOne` plays for
        ("returns", np.float64, 2),  # of players that are agents: sums of the original game's rewards
    ]
)
INFOS = np.dtype(
    [
        ("winner", np.int64),
        ("reward_closeness_to_puck", np.float64),
        ("reward_touch_puck", np.float64),
        ("reward_puck_direction", np.float64),
        ("mode", np.int64),
        ("opponent", np.int64),
    ]
)


# -- reset ---------------------------------------------------------------------------------------------


def _place(state, player, x, y):
    """Put a racket at rest, with its origin at (x, y) as its player sees it."""
    state.rackets[player, :] = 0.0
    state.rackets[player, X] = x - CENTER_OFFSET
    state.rackets[player, Y] = y


def draw(rng, first, second, third, fourth):
    """Draw 0, 1, 2 or 3 by their weights. If all are 0, that is 0."""
    at = rng.uniform() * (first + second + third + fourth)
    if at < first:
        return 0
    if at < first + second:
        return 1
    if at < first + second + third:
        return 2
    return 3 if fourth > 0.0 else 0


def begin(state, rng, mode, opponent, one_starts):
    """Begin a game.

    `one_starts` is 1 if player one has the puck, 0 if player two has it, -1 to draw it.
    """
    state.mode, state.opponent = mode, opponent
    state.returns[:] = 0.0
    state.one_starts = rng.uniform() < 0.5 if one_starts < 0 else one_starts > 0
    for player in range(2):  # uniform: after some games, the phase of a bot can be any
        state.phases[player] = rng.uniform(0.0, 2.0 * math.pi)
    state.time_limit = 250 if mode == NORMAL else 80
    _place(state, 0, -3.0, 0.0)
    if mode == NORMAL:
        _place(state, 1, -3.0, 0.0)
    else:
        x, y = 3.0 + rng.uniform(-10.0 / 3, 5.0 / 3), rng.uniform(-2.0, 2.0)
        _place(state, 1, -x, -y)
    if mode == TRAIN_DEFENSE:
        x, y = rng.uniform(0.0, 10.0 / 3), 0.8 * rng.uniform(-4.0, 4.0)
        dx, dy = -5.0 - x, 0.6 * rng.uniform(-1.25, 1.25) - y
        far = math.sqrt(dx * dx + dy * dy)
        state.shot[0], state.shot[1] = SHOT_SPEED * dx / far, SHOT_SPEED * dy / far
    else:
        x, y = rng.uniform(1.0, 2.0), rng.uniform(-1.0, 1.0)
        if state.one_starts or mode == TRAIN_SHOOTING:
            x = -x
    state.puck[0], state.puck[1] = x, y


# -- what a player sees --------------------------------------------------------------------------------


def origin(state, player):
    """Return the position of a racket, as its player sees it."""
    angle = state.rackets[player, ANGLE]
    x = state.rackets[player, X] + CENTER_OFFSET * cos(angle)
    return x, state.rackets[player, Y] + CENTER_OFFSET * sin(angle)


def observe(state, player, keep_mode, obs):
    """Write the observation of a player."""
    other, sign = 1 - player, 1.0 - 2.0 * player
    x, y = origin(state, player)
    obs[0], obs[1] = x, y
    obs[2] = state.rackets[player, ANGLE]
    obs[3], obs[4] = state.rackets[player, VX], state.rackets[player, VY]
    obs[5] = state.rackets[player, SPIN]
    x, y = origin(state, other)
    obs[6], obs[7] = -x, -y
    obs[8] = state.rackets[other, ANGLE]
    obs[9], obs[10] = -state.rackets[other, VX], -state.rackets[other, VY]
    obs[11] = state.rackets[other, SPIN]
    for i in range(4):
        obs[12 + i] = sign * state.puck[i]
    if keep_mode:
        obs[16], obs[17] = state.possession[player], state.possession[other]


def proxies(state, player):
    """Return the parts of a player's reward: closeness to the puck, touch, direction of the puck."""
    sign = 1.0 - 2.0 * player
    closeness = 0.0
    if sign * state.puck[0] < 0.0 and sign * state.puck[2] <= 0.0:
        x, y = origin(state, player)
        far = math.sqrt((x - sign * state.puck[0]) ** 2 + (y - sign * state.puck[1]) ** 2)
        closeness = -30.0 / (250.0 / 60.0 * state.time_limit / 2) * far
    touch = 1.0 if state.possession[player] == MAX_TIME_KEEP_PUCK else 0.0
    return closeness, touch, sign * state.puck[2] / (state.time_limit * MAX_PUCK_SPEED)


def reward_of(state, player, config, info):
    """Return a player's reward, and write its infos."""
    closeness, touch, direction = proxies(state, player)
    winner = state.winner * (1 - 2 * player)
    state.returns[player] += 10.0 * winner + closeness
    info.winner = winner
    info.reward_closeness_to_puck = closeness
    info.reward_touch_puck = touch
    info.reward_puck_direction = direction
    info.mode, info.opponent = state.mode, state.opponent
    return (
        config.reward_win * winner
        + config.reward_closeness * closeness
        + config.reward_touch * touch
        + config.reward_direction * direction
    )


# -- a step --------------------------------------------------------------------------------------------


def _clip(value):
    return min(max(value, -1.0), 1.0)


def _control(state, player, w, racket, sign):
    """Turn the action of a player into a push of its racket. Put the racket into the workspace."""
    x, y = origin(state, player)
    angle, spin = state.rackets[player, ANGLE], state.rackets[player, SPIN]
    vx, vy = state.rackets[player, VX], state.rackets[player, VY]
    fx, fy = FORCE * _clip(w.actions[player, 0]), FORCE * _clip(w.actions[player, 1])
    speed = math.sqrt(vx * vx + vy * vy)
    damping, applies = 5.0, True
    if x > -ZONE:  # the middle of the table belongs to nobody
        fx = -2.0 * vx * RACKET_MASS / TIME_STEP if vx > 0.0 else 0.0
        fx -= x * vx * RACKET_MASS / TIME_STEP
        damping = 20.0
    elif speed >= MAX_SPEED:
        damping = 20.0
        after_x, after_y = vx + TIME_STEP * fx / RACKET_MASS, vy + TIME_STEP * fy / RACKET_MASS
        applies = math.sqrt(after_x * after_x + after_y * after_y) < speed
    if applies:
        if (x < -3.5 and fx < 0.0) or (x > 0.0 and fx > 0.0):
            vx = fx = 0.0
        if (y > 2.8 and fy > 0.0) or (y < -2.8 and fy < 0.0):
            vy = fy = 0.0
    else:
        fx = fy = 0.0
    if abs(angle) <= MAX_ANGLE:
        torque, spin_damping = TORQUE * _clip(w.actions[player, 2]), 2.0
    else:
        torque = -0.1 * angle * RACKET_MASS / TIME_STEP
        if angle * spin > 0.0:
            torque -= 0.1 * spin * RACKET_MASS / TIME_STEP
        spin_damping = 10.0
    w.bodies[racket, X], w.bodies[racket, Y] = (
        sign * state.rackets[player, X],
        sign * state.rackets[player, Y],
    )
    w.bodies[racket, ANGLE], w.bodies[racket, SPIN] = angle, spin
    w.bodies[racket, VX], w.bodies[racket, VY] = sign * vx, sign * vy
    w.pushes[racket, 0] = sign * TIME_STEP * fx / RACKET_MASS
    w.pushes[racket, 1] = sign * TIME_STEP * fy / RACKET_MASS
    w.pushes[racket, 2] = TIME_STEP * torque / RACKET_INERTIA
    w.pushes[racket, 3] = 1.0 - TIME_STEP * damping
    w.pushes[racket, 4] = 1.0 - TIME_STEP * spin_damping


def _hold(state, player, w, racket, sign):
    """Carry the puck with the racket of a player that holds it, and shoot."""
    if state.possession[player] <= 1:
        return
    angle = w.bodies[racket, ANGLE]
    c, s = cos(angle), sin(angle)
    w.bodies[PUCK, X] = w.bodies[racket, X] + sign * CENTER_OFFSET * c
    w.bodies[PUCK, Y] = w.bodies[racket, Y] + sign * CENTER_OFFSET * s
    w.bodies[PUCK, VX], w.bodies[PUCK, VY] = w.bodies[racket, VX], w.bodies[racket, VY]
    state.possession[player] -= 1
    if state.possession[player] == 1 or w.actions[player, 3] > 0.5:
        state.possession[player] = 0
        w.pushes[PUCK, 0] += sign * SHOT_SPEED * c
        w.pushes[PUCK, 1] += sign * SHOT_SPEED * s


def _catch(state, player, touches, puck_speed, keep_mode):
    """Let a player catch the puck when it begins to touch the racket, unless it flies to the opponent."""
    begins = touches and not state.touching[player]
    if begins and keep_mode and state.possession[player] == 0 and puck_speed < 0.1:
        state.possession[player] = MAX_TIME_KEEP_PUCK
    state.touching[player] = touches


def _concede(state, player, inside):
    """Let the other player win when the puck begins to be in a player's goal."""
    if inside and not state.scored[player]:
        state.winner = -1 if player == 0 else 1
    state.scored[player] = inside


def play(state, w, keep_mode):
    """Do one step with the actions in the workspace: x, y, turn and shoot of both players, as they see it."""
    near = 1 if state.puck[0] > 0.0 or (state.puck[0] == 0.0 and state.puck[1] > 0.0) else 0
    sign = 1.0 - 2.0 * near  # this step is computed as the player near the puck sees it
    for racket in range(2):
        _control(state, abs(near - racket), w, racket, 1.0 - 2.0 * racket)
    w.bodies[PUCK, X], w.bodies[PUCK, Y] = sign * state.puck[0], sign * state.puck[1]
    w.bodies[PUCK, VX], w.bodies[PUCK, VY] = sign * state.puck[2], sign * state.puck[3]
    w.bodies[PUCK, ANGLE], w.bodies[PUCK, SPIN] = 0.0, state.puck[4]
    speed = math.sqrt(state.puck[2] ** 2 + state.puck[3] ** 2)
    w.pushes[PUCK, 0], w.pushes[PUCK, 1], w.pushes[PUCK, 2] = sign * state.shot[0], sign * state.shot[1], 0.0
    w.pushes[PUCK, 3] = 1.0 - TIME_STEP * (10.0 if speed > MAX_PUCK_SPEED else 0.05)
    w.pushes[PUCK, 4] = 1.0
    state.shot[:] = 0.0
    if keep_mode:
        for i in range(2):  # the near player last: if both hold the puck, it has it
            racket = 1 - i
            _hold(state, abs(near - racket), w, racket, 1.0 - 2.0 * racket)
    find_contacts(w)
    for racket in range(2):
        player, own = abs(near - racket), 1.0 - 2.0 * racket
        _catch(state, player, w.touches[racket], own * w.bodies[PUCK, VX], keep_mode)
        _concede(state, player, is_in_goal(w, racket))
    for body in range(3):
        w.bodies[body, VX] = (w.bodies[body, VX] + w.pushes[body, 0]) * w.pushes[body, 3]
        w.bodies[body, VY] = (w.bodies[body, VY] + w.pushes[body, 1]) * w.pushes[body, 3]
        w.bodies[body, SPIN] = (w.bodies[body, SPIN] + w.pushes[body, 2]) * w.pushes[body, 4]
    advance(w)
    for racket in range(2):
        player, own = abs(near - racket), 1.0 - 2.0 * racket
        state.rackets[player, X], state.rackets[player, Y] = (
            own * w.bodies[racket, X],
            own * w.bodies[racket, Y],
        )
        state.rackets[player, ANGLE] = w.bodies[racket, ANGLE]
        state.rackets[player, VX] = own * w.bodies[racket, VX]
        state.rackets[player, VY] = own * w.bodies[racket, VY]
        state.rackets[player, SPIN] = w.bodies[racket, SPIN]
    state.puck[0], state.puck[1] = sign * w.bodies[PUCK, X], sign * w.bodies[PUCK, Y]
    state.puck[2], state.puck[3] = sign * w.bodies[PUCK, VX], sign * w.bodies[PUCK, VY]
    state.puck[4] = w.bodies[PUCK, SPIN]
    late = state.time >= state.time_limit
    state.time += 1
    return late


# -- bots ----------------------------------------------------------------------------------------------


def bot(state, player, rng, strong, chosen):
    """Write the action of a `BasicOpponent` that plays for a player."""
    sign = 1.0 - 2.0 * player
    state.phases[player] += rng.uniform(0.0, 0.2)
    x, y = origin(state, player)
    px, py, pvx, pvy = sign * state.puck[0], sign * state.puck[1], sign * state.puck[2], sign * state.puck[3]
    target_x, target_y = -3.5, 0.0
    if pvx < 0.5:  # the puck comes, or goes away slowly
        target_y = py
        if x < px and abs(y - py) < 0.5:
            far = math.sqrt((x - px) ** 2 + (y - py) ** 2)
            target_x, target_y = px + 0.2, py + pvy * far * 0.1
    gain = 10.0 if strong else 0.5
    errors = (
        target_x - x,
        target_y - y,
        MAX_ANGLE * sin(state.phases[player]) - state.rackets[player, ANGLE],
    )
    gains = (gain, gain / 5, gain / 2)
    brakes = (0.1, 0.1, 1.0)
    for i in range(3):
        speed = state.rackets[player, VX + i]
        action = errors[i] * gains[i]
        if abs(errors[i] / (speed + 0.01)) < brakes[i]:
            action -= 0.5 * speed
        chosen[i] = _clip(action)
    chosen[3] = 1.0 if 0 < state.possession[player] < 7 else 0.0
