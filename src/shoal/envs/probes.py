"""Probes: tiny compiled envs with known best returns. Each finds another kind of bug in a learner.

    probe        tests for                                      chance    constant   perfect
    Bandit       the arm that pays most, under noise             0.2125    1          1
    Memory       an observation of some steps ago                0.25      0.25       1
    Password     a sequence that pays only at its end            0.0313    0          1
    Stochastic   a random policy that is not uniform             0.0938    0          0.4019
    Squared      paths over a small map, to random targets      -0.0161   -0.0556     1
    Continuous   repeating a number that is shown               -2.4133    0.36       1
    Agents       a signal together with the agent's identity     0.1111    0.1111     1
    Nested       leaves of all kinds, deep in an observation     0.0833    0.0833     1

The figures are mean returns of an episode: of random actions, of the best constant action, and of a perfect
policy. A learner that learns nothing gets the first; a learner that ignores observations gets the second. (In
Bandit the best constant action is perfect; every other constant action gets 0.1.) Each class has the figures
as `CHANCE`, `CONSTANT` and `PERFECT`. They hold for the default config, and
``tests/envs_families/test_probes.py`` measures them.

A learner has solved a probe if it gets 95 % of the perfect return. A good PPO needs less than 50,000 steps
for that, with an LSTM for Memory and an MLP for the others.
"""

# Compiled functions have no annotations, and spaces may be functions of the constants.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,assignment"
# ruff: noqa: D102, E731

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from shoal.native import NativeEnv


class Bandit(NativeEnv):
    """One pull at one of 8 arms with noisy rewards. The observation is constant.

    Finds learners that do not follow rewards, or that follow single rewards instead of their mean. Change
    `best` to find a learner that prefers an action without a reason.

    The best arm pays 1 on average, the others 0.1, with a standard deviation of 0.5.

    - chance: (1 + 7 * 0.1) / 8 = 0.2125
    - constant: 1, because the best action is constant; each of the other seven arms gets 0.1
    - perfect: 1
    """

    CHANCE, CONSTANT, PERFECT = 0.2125, 1.0, 1.0

    observation_space = Box(0, 1, (1,), np.float32)
    action_space = lambda config: Discrete(config.arms)
    constants = {"arms": 8}
    parameters = {"best": 5, "others": 0.1, "noise": 0.5}

    @staticmethod
    def reset(obs):
        obs[0] = 1.0

    @staticmethod
    def step(action, rng, config):
        mean = 1.0 if action == config.best else config.others
        return rng.normal(mean, config.noise), True


class Memory(NativeEnv):
    """A cue is shown, then hidden. Some steps later the action must repeat it.

    Finds recurrent policies whose state is lost, is mixed up between rows, or survives the end of an episode.

    The first observation is the cue, one-hot. Then follow `delay` observations of zeros, then one with only
    its last entry set. The action after that one gets 1 if it is the cue, else 0, and ends the episode.
    Earlier actions have no effect.

    - chance: 1/4, with 4 cues
    - constant: 1/4. Every policy without memory gets this, because the last observation does not show the cue
    - perfect: 1
    """

    CHANCE, CONSTANT, PERFECT = 1 / 4, 1 / 4, 1.0

    observation_space = lambda config: Box(0, 1, (config.cues + 1,), np.float32)
    action_space = lambda config: Discrete(config.cues)
    state = np.dtype([("cue", np.int64), ("steps", np.int64)])
    constants = {"cues": 4, "delay": 3}

    @staticmethod
    def reset(state, rng, obs, config):
        state.cue = rng.integers(config.cues)
        obs[:] = 0.0
        obs[state.cue] = 1.0

    @staticmethod
    def step(state, action, obs, config):
        answers = state.steps > config.delay
        state.steps += 1
        obs[:] = 0.0
        obs[config.cues] = 1.0 if state.steps > config.delay else 0.0
        return 1.0 if answers and action == state.cue else 0.0, answers


class Password(NativeEnv):
    """A password of 5 binary digits. The last digit pays 1. A wrong digit ends the episode with 0.

    Finds learners that do not explore, or that do not credit all actions that led to a reward.

    An observation is the position of the next digit, one-hot.

    - chance: (1/2)^5 = 0.03125
    - constant: 0, because the digits are not all the same
    - perfect: 1
    """

    CHANCE, CONSTANT, PERFECT = 1 / 32, 0.0, 1.0

    observation_space = lambda config: Box(0, 1, (len(config.password),), np.float32)
    action_space = Discrete(2)
    state = np.dtype([("place", np.int64)])
    constants = {"password": np.array([1, 0, 1, 1, 0])}

    @staticmethod
    def reset(obs):
        obs[:] = 0.0
        obs[0] = 1.0

    @staticmethod
    def step(state, action, obs, config):
        right = action == config.password[state.place]
        state.place += 1
        whole = state.place == len(config.password)
        obs[:] = 0.0
        if not whole:
            obs[state.place] = 1.0
        return 1.0 if right and whole else 0.0, whole or not right


class Stochastic(NativeEnv):
    """Six steps with two actions. The return is 1 if the second action was taken exactly five times, else 0.

    Finds policies that become deterministic, and wrong ratios of probabilities.

    The probe is for policies without memory: all six steps look the same to them. (A policy with memory can
    count and get 1.) Such a policy can only choose the probability p of the second action, and gets
    6 p^5 (1 - p).

    - chance: p = 1/2, 6/64 = 0.09375
    - constant: 0; every deterministic policy gets this
    - perfect: p = 5/6, (5/6)^5 = 0.4019. Policies with p from 0.781 to 0.878 get 95 % of it. Returns are 0 or
      1, with a deviation of 0.49, so the mean of 4000 episodes is exact to 2 % of perfect.
    """

    CHANCE, CONSTANT, PERFECT = 6 / 64, 0.0, (5 / 6) ** 5

    observation_space = Box(0, 1, (1,), np.float32)
    action_space = Discrete(2)
    state = np.dtype([("steps", np.int64), ("taken", np.int64)])
    constants = {"length": 6, "wanted": 5}

    @staticmethod
    def reset(obs):
        obs[0] = 1.0

    @staticmethod
    def step(state, action, config):
        state.steps += 1
        state.taken += action
        over = state.steps == config.length
        return 1.0 if over and state.taken == config.wanted else 0.0, over


ROWS, COLUMNS = np.array([-1, 0, 1, 0]), np.array([0, 1, 0, -1])  # of moves up, right, down and left


def _distance(state):
    return abs(state.row - state.target_row) + abs(state.column - state.target_column)


def _begin_anew(state, rng, config):
    """Put the agent into the middle, and a target at a random cell of the border."""
    side = 2 * config.radius
    edge, place = rng.integers(4), rng.integers(side)  # a corner belongs to the edge that begins with it
    if edge == 0:
        state.target_row, state.target_column = 0, place
    elif edge == 1:
        state.target_row, state.target_column = place, side
    elif edge == 2:
        state.target_row, state.target_column = side, side - place
    else:
        state.target_row, state.target_column = side - place, 0
    state.row, state.column = config.radius, config.radius
    state.way = _distance(state)


def _draw_map(state, obs):
    obs[:] = 0.0
    obs[state.target_row, state.target_column] = 1.0
    obs[state.row, state.column] = -1.0


class Squared(NativeEnv):
    """An agent walks from the middle of a small square map to a target on its border, four times.

    Finds learners that cannot read a map, or that mix up rows: every target needs other actions.

    The map has -1 at the agent and 1 at the target. An action is a move up, right, down or left. The agent
    cannot leave the map. When it reaches the target, it is put back into the middle, and a new target is
    shown. Each target gives 1/4 in total, in equal parts for each move towards it; a move away costs the same
    part. The episode terminates after four targets, or after 16 moves, which are enough for the longest
    paths. (If it were truncated there, a learner that bootstraps could rightly take its time, because the
    observation does not show how many moves are left.)

    - chance: -0.0161
    - constant: -0.0556, for a move in the same direction at every step. The test computes this and chance
      from the probability of each position and target after each move
    - perfect: 1
    """

    CHANCE, CONSTANT, PERFECT = -0.016135, -0.055555, 1.0

    observation_space = lambda config: Box(-1, 1, (2 * config.radius + 1,) * 2, np.float32)
    action_space = Discrete(4)
    state = np.dtype(
        [
            (name, np.int64)
            for name in ("row", "column", "target_row", "target_column", "way", "reached", "moves")
        ]
    )
    constants = {"radius": 2, "targets": 4}

    @staticmethod
    def reset(state, rng, obs, config):
        _begin_anew(state, rng, config)
        _draw_map(state, obs)

    @staticmethod
    def step(state, action, rng, obs, config):
        before = _distance(state)
        state.row = min(max(state.row + ROWS[action], 0), 2 * config.radius)
        state.column = min(max(state.column + COLUMNS[action], 0), 2 * config.radius)
        after = _distance(state)
        reward = (before - after) / (state.way * config.targets)
        if after == 0:
            state.reached += 1
            _begin_anew(state, rng, config)
        _draw_map(state, obs)
        state.moves += 1
        return reward, state.reached == config.targets or state.moves == 2 * config.radius * config.targets


class Continuous(NativeEnv):
    """Eight numbers are shown one after another. Each action must repeat the number.

    Finds bugs in the densities of a continuous policy, and in how its deviation shrinks.

    The numbers are uniform from -2 to 2, and actions are clipped to that range. A step gives
    (1 - miss^4 / 5) / 8. So a policy with the right mean and a deviation of 0.5 gets over 95 % of perfect.

    - chance: the mean of miss^4 for two such numbers is 256/15: 1 - 256/75 = -2.4133
    - constant: always 0, for which the mean of miss^4 is 16/5: 1 - 16/25 = 0.36
    - perfect: 1
    """

    CHANCE, CONSTANT, PERFECT = 1 - 256 / 75, 1 - 16 / 25, 1.0

    observation_space = Box(-2, 2, (1,), np.float32)
    action_space = Box(-2, 2, (1,), np.float32)
    state = np.dtype([("target", np.float64), ("steps", np.int64)])
    constants = {"length": 8}

    @staticmethod
    def reset(state, rng, obs):
        state.target = rng.uniform(-2.0, 2.0)
        obs[0] = state.target

    @staticmethod
    def step(state, action, rng, obs, config):
        miss = min(max(float(action[0]), -2.0), 2.0) - state.target
        state.target = rng.uniform(-2.0, 2.0)
        state.steps += 1
        obs[0] = state.target
        return (1.0 - miss * miss * miss * miss / 5.0) / config.length, state.steps == config.length


def _show_signals(state, rng, obs, alive):
    """Show each agent its identity and its own signal."""
    count = len(state.signals)
    for agent in range(count):
        state.signals[agent] = rng.integers(count)
        if alive[agent]:  # the last observations of the other agents stay
            obs[agent] = 0.0
            obs[agent, agent] = 1.0
            obs[agent, count + state.signals[agent]] = 1.0


class Agents(NativeEnv):
    """Three agents. The right action depends on the agent and on its signal. Some agents leave early.

    Finds learners that mix up the rows, rewards or ends of agents, or that learn from agents that have left.

    An agent sees its identity and one of three signals, both one-hot. Each of the nine pairs has another
    right action. Agent i stays for 4 + i steps, and gets 1 / (4 + i) for each right action.

    - chance: 1/9, for each agent
    - constant: 1/9 on average, which is 1/3 for one agent and 0 for the others. (Policies that use only the
      signal, or only the identity, get 1/3.)
    - perfect: 1, for each agent
    """

    CHANCE, CONSTANT, PERFECT = 1 / 9, 1 / 9, 1.0

    observation_space = lambda config: Box(0, 1, (2 * config.agents,), np.float32)
    action_space = lambda config: Discrete(config.agents**2)
    num_agents = lambda config: config.agents
    state = lambda config: np.dtype([("signals", np.int64, (config.agents,)), ("steps", np.int64)])
    constants = {"agents": 3, "shortest": 4}

    @staticmethod
    def reset(state, rng, obs, alive):
        _show_signals(state, rng, obs, alive)

    @staticmethod
    def step(state, actions, rng, obs, rewards, terminated, alive, config):
        state.steps += 1
        for agent in range(config.agents):
            if alive[agent]:
                length = config.shortest + agent
                right = actions[agent] == config.agents * agent + state.signals[agent]
                rewards[agent] = 1.0 / length if right else 0.0
                terminated[agent] = state.steps == length
        _show_signals(state, rng, obs, alive)


def _deal(state, rng, obs):
    """Draw new values for every leaf. Keep the answers in the state, because `obs` is only written."""
    for i in range(len(obs.noise)):
        obs.noise[i] = rng.uniform(-1.0, 1.0)
    obs.box.f0 = rng.integers(5)
    inner = obs.box.f1
    for i in range(len(inner.lamps)):
        lit = rng.integers(2)
        inner.lamps[i] = lit
        if i == 2:
            state.lamp = lit
    state.key = rng.integers(3)
    inner.key = state.key
    state.level = rng.uniform(-1.0, 1.0)
    inner.level[0] = state.level


class Nested(NativeEnv):
    """Three leaves of a nested observation determine the right action. The other leaves are noise.

    Finds bugs on the way from a structured observation to a network, and from its heads to an action.

    The first part of an action must be the key (a Discrete), the second part the third lamp (of a
    MultiBinary), and the third part whether the level (a Box) is positive. A step with all three right gives
    1/4. An episode has 4 steps.

    - chance: 1/3 * 1/2 * 1/2 = 1/12
    - constant: 1/12, because the right action is uniform
    - perfect: 1
    """

    CHANCE, CONSTANT, PERFECT = 1 / 12, 1 / 12, 1.0

    observation_space = Dict(
        {
            "noise": Box(-1, 1, (3,), np.float32),
            "box": Tuple(
                (
                    Discrete(5),
                    Dict(
                        {
                            "lamps": MultiBinary(4),
                            "key": Discrete(3),
                            "level": Box(-1, 1, (1,), np.float32),
                        }
                    ),
                )
            ),
        }
    )
    action_space = MultiDiscrete([3, 2, 2])
    state = np.dtype([("key", np.int64), ("lamp", np.int64), ("level", np.float32), ("steps", np.int64)])
    constants = {"length": 4}

    @staticmethod
    def reset(state, rng, obs):
        _deal(state, rng, obs)

    @staticmethod
    def step(state, action, rng, obs, config):
        positive = 1 if state.level > 0 else 0
        right = action[0] == state.key and action[1] == state.lamp and action[2] == positive
        state.steps += 1
        _deal(state, rng, obs)
        return 1.0 / config.length if right else 0.0, state.steps == config.length
