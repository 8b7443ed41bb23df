"""Probes: tiny compiled envs with known answers, each of which finds another kind of broken learner.

    probe        asks for                                       chance    constant   perfect
    Bandit       the arm that pays most, through noise           0.2125    1          1
    Memory       what was seen some steps ago                    0.25      0.25       1
    Password     a sequence that pays only at its end            0.0313    0          1
    Stochastic   a random policy, but not a uniform one          0.0938    0          0.4019
    Squared      ways over a small map, other ones each time    -0.0161   -0.0556     1
    Continuous   numbers that are shown                         -2.4133    0.36       1
    Agents       what an agent sees together with who it is      0.1111    0.1111     1
    Nested       leaves of all kinds, deep in an observation     0.0833    0.0833     1

The figures are mean returns of an episode: of random play, of the best constant action, and of a perfect
policy. The first is what a learner has that learns nothing, the second one that is blind. (A bandit asks
for no more than the best constant; of its other constants each has 0.1.) They stand in each class as
`CHANCE`, `CONSTANT` and `PERFECT`, hold for its default config, and are measured by
``tests/envs_families/test_probes.py``.

A learner has solved a probe if it has 95 % of perfect. A good PPO needs less than 50,000 steps for that,
with an LSTM for Memory and an MLP for the others.
"""

# Compiled functions have no annotations, and spaces may be functions of the constants.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,assignment"
# ruff: noqa: D102, E731

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from shoal.native import NativeEnv


class Bandit(NativeEnv):
    """One pull at one of 8 arms whose rewards are noisy; there is nothing to see.

    Finds learners that do not follow rewards, or follow single ones instead of their mean. One that likes an
    action for no reason is found by putting `best` elsewhere.

    The best arm pays 1 in the mean, the others pay 0.1, with a standard deviation of 0.5.

    - chance: (1 + 7 * 0.1) / 8 = 0.2125
    - constant: 1, for the answer is a constant; each of the other seven has 0.1
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
    """A cue is shown, then hidden, and must be given back some steps later.

    Finds recurrent policies whose state is lost, is mixed up between rows, or outlives an episode.

    The first observation is the cue, one-hot. `delay` observations of zeros follow, then one with only
    its last entry set. The action that answers this one gets 1 if it is the cue, else 0, and ends the
    episode; those before it mean nothing.

    - chance: 1/4, with 4 cues
    - constant: 1/4, as has every policy without memory: when the answer is due, all cues look the same
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
    """A password of 5 binary digits. The last digit pays 1, a wrong one ends the episode with nothing.

    Finds learners that do not explore, or do not carry a reward back to all the actions that led to it.

    An observation is the place of the digit that is due, one-hot.

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
    """Two actions, six steps, nothing to see; 1 if the second one was taken exactly five times, else 0.

    Finds policies that become deterministic, as they may elsewhere, and wrong ratios of probabilities.

    It is for policies without memory, to which all six steps are the same. (Who remembers can count, and
    have 1.) All that such a policy can choose is the probability p of the second action, with which it
    has 6 p^5 (1 - p).

    - chance: p = 1/2, 6/64 = 0.09375
    - constant: 0, as has every deterministic policy
    - perfect: p = 5/6, (5/6)^5 = 0.4019; 95 % of that is had from p = 0.781 to p = 0.878. Being 0 or 1,
      returns deviate by 0.49: the mean of 4000 episodes is known to 2 % of perfect.
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
    """Put the agent into the middle, and a target anywhere on the rim."""
    side = 2 * config.radius
    edge, place = rng.integers(4), rng.integers(side)  # a corner belongs to the edge that begins there
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
    """An agent walks from the middle of a small square map to a target on its rim, four times.

    Finds learners that cannot read a map, or take rows for one another: every target needs other actions.

    The map has -1 where the agent is, and 1 at the target. An action is a move up, right, down or left;
    nobody leaves the map. On arrival the agent is back in the middle, and another target is shown. A
    whole way gives 1/4, and each move its part of it: a move away takes what the move back gives. The
    episode terminates after four targets, or after 16 moves, which are enough for the longest ways. (If it
    were cut off there, a learner that bootstraps would rightly dawdle: how many are left is not shown.)

    - chance: -0.0161
    - constant: -0.0556, for going on in any of the four directions; this and chance follow from the
      probability of each place and target after each move, over which the test sums up
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
    """Eight numbers are shown one after another, and each must be given back.

    Finds mistakes in the densities of a continuous policy, and in how it narrows.

    The numbers are uniform from -2 to 2, actions are clipped to that, and a step gives
    (1 - miss^4 / 5) / 8. So a policy with the right mean and a deviation of 0.5 has over 95 % of perfect.

    - chance: miss^4 is 256/15 in the mean, for two such numbers: 1 - 256/75 = -2.4133
    - constant: always 0, with which miss^4 is 16/5: 1 - 16/25 = 0.36
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
    """Each agent sees who it is, and a signal of its own."""
    count = len(state.signals)
    for agent in range(count):
        state.signals[agent] = rng.integers(count)
        if alive[agent]:  # what the others saw last stays
            obs[agent] = 0.0
            obs[agent, agent] = 1.0
            obs[agent, count + state.signals[agent]] = 1.0


class Agents(NativeEnv):
    """Three agents; each must do what its own signal means to it, and some leave before others.

    Finds learners that mix up the rows, rewards or ends of agents, or learn from those that have left.

    An agent sees who it is and one of three signals, both one-hot. For each of the nine pairs another
    action is right. Agent i is there for 4 + i steps, and has 1 / (4 + i) for each right action.

    - chance: 1/9, for each agent
    - constant: 1/9 in the mean, which is 1/3 for one agent and 0 for the others. (Policies that look only
      at the signal, or only at who they are, have 1/3.)
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
    """Something new for every leaf. What is asked for is noted in the state: `obs` is there to be written."""
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
    """Three leaves of a nested observation say what to do; the others are noise.

    Finds mistakes between a structured observation and a network, and between its heads and an action.

    The first part of an action must be the key (a Discrete), the second the third lamp (of a
    MultiBinary), the third whether the level (a Box) is positive. A step in which all three are right
    gives 1/4, and there are 4 steps.

    - chance: 1/3 * 1/2 * 1/2 = 1/12
    - constant: 1/12, because what is asked for is uniform
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
