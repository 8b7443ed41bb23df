"""Bodies: the loop of a kernel over its envs, which applies the rules of episodes around `reset` and `step`.

`shoal.stepping.episodes` states the rules; `tests/stepping/test_episodes.py` holds both bodies to them.

Both bodies are plain functions over arrays with one entry per env. Compiled, a body is the kernel that the
thread pool runs. With ``debug=True`` it runs as plain Python. `Parts` holds the functions that a body calls.
A body returns the number of rows that acted (low 32 bits) and the number of episodes that ended (high bits).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Verbs of a kernel: a step in each autoreset mode, and a reset of the envs that are `chosen`.
STEP_NEXT, STEP_SAME, STEP_DISABLED, RESET = range(4)


@dataclass(frozen=True)
class Parts:
    """The functions that a body calls, and its settings.

    Attributes:
        step: The env's step. It takes all possible arguments, in the order of `spec.SINGLE_STEP` or
            `spec.SEVERAL_STEP`.
        reset: The env's reset. It takes all possible arguments, in the order of `spec.RESET_ARGUMENTS`.
        result: Converts the return value of a step into reward, terminated, truncated.
        rng_at: Returns the random stream of env `i` from the array of all streams.
        config_at: Returns the config of env `i` from the array of all parameters.
        max_steps: The number of steps after which an episode is truncated; 0 for no limit.
        wrap: Compiles an inner function of a body; in plain Python it returns the function unchanged.
        wrap_apart: Does the same for a function whose arrays do not overlap.
        is_straight: Whether `step` may be called for envs that need no step: see `straight.py`.
    """

    step: Callable[..., Any]
    reset: Callable[..., Any]
    result: Callable[..., Any]
    rng_at: Callable[..., Any]
    config_at: Callable[..., Any]
    max_steps: int
    wrap: Callable[[Any], Any]
    wrap_apart: Callable[[Any], Any]
    is_straight: bool


def single(parts: Parts) -> Callable[..., int]:
    """Return the body for envs with one agent each.

    An env that waits for its reset needs no step. If `step` is straight, it is called for such an env too,
    and the reset overwrites the result. The loop then has no branch, so the compiler can vectorise it.
    """
    step, reset, result, rng_at, config_at = (
        parts.step,
        parts.reset,
        parts.result,
        parts.rng_at,
        parts.config_at,
    )
    max_steps = parts.max_steps

    @parts.wrap
    def begin(i, states, bytes_of_states, rngs, parameters, observations, mask, workspaces):
        for place in range(bytes_of_states.shape[1]):
            bytes_of_states[i, place] = 0
        reset(
            states[i], rng_at(rngs, i), observations[i], mask[i : i + 1], config_at(parameters, i),
            workspaces[0],
        )  # fmt: skip

    @parts.wrap_apart
    def step_all(
        states, rngs, parameters, actions, observations, rewards, terminations, truncations, mask, resets,
        starts, returns, lengths, infos, bytes_of_infos, workspaces,
    ):  # fmt: skip
        acted = 0
        for i in range(len(states)):
            for place in range(bytes_of_infos.shape[1]):
                bytes_of_infos[i, place] = 0
            reward, terminated, truncated = result(
                step(
                    states[i], actions[i], rng_at(rngs, i), observations[i], config_at(parameters, i),
                    infos[i], workspaces[0],
                )
            )  # fmt: skip
            acts, begins = mask[i], starts[i]
            before, steps = returns[i], lengths[i]
            total = reward if begins else reward + before
            length = 1 if begins else 1 + steps
            if max_steps > 0:
                truncated |= length >= max_steps
            rewards[i] = reward
            returns[i] = total if acts else before
            lengths[i] = length if acts else steps
            terminations[i] = terminated
            truncations[i] = truncated
            resets[i] = False
            starts[i] = terminated | truncated | (not acts)
            acted += acts
        return acted

    @parts.wrap_apart
    def step_each(
        states, rngs, parameters, actions, observations, rewards, terminations, truncations, mask, resets,
        starts, returns, lengths, infos, bytes_of_infos, workspaces,
    ):  # fmt: skip
        acted = 0
        for i in range(len(states)):
            if not mask[i]:
                continue
            for place in range(bytes_of_infos.shape[1]):
                bytes_of_infos[i, place] = 0
            reward, terminated, truncated = result(
                step(
                    states[i], actions[i], rng_at(rngs, i), observations[i], config_at(parameters, i),
                    infos[i], workspaces[0],
                )
            )  # fmt: skip
            total, length = reward, 1
            if not starts[i]:
                total += returns[i]
                length += lengths[i]
            if max_steps > 0 and length >= max_steps:
                truncated = True
            rewards[i] = reward
            returns[i] = total
            lengths[i] = length
            terminations[i] = terminated
            truncations[i] = truncated
            resets[i] = False
            starts[i] = terminated or truncated
            acted += 1
        return acted

    step_them = step_all if parts.is_straight else step_each

    def body(
        verb, states, bytes_of_states, rngs, parameters, elapsed, actions, observations,
        bytes_of_observations, finals, rewards, terminations, truncations, mask, resets, starts, returns,
        lengths, acting, finished, chosen, keys, seeded, infos, bytes_of_infos, workspaces,
    ):  # fmt: skip
        acted, ended = 0, 0
        if verb == RESET:
            for i in range(len(states)):
                if chosen[i]:
                    if seeded[i]:
                        rngs[i, 0] = keys[i]
                        rngs[i, 1] = 0
                    mask[i] = starts[i] = True
                    begin(i, states, bytes_of_states, rngs, parameters, observations, mask, workspaces)
                if chosen[i] or terminations[i] or truncations[i]:
                    returns[i] = 0.0
                    lengths[i] = 0
                rewards[i] = 0.0
                terminations[i] = truncations[i] = False
                resets[i] = True
            return 0
        acted = step_them(
            states, rngs, parameters, actions, observations, rewards, terminations, truncations, mask,
            resets, starts, returns, lengths, infos, bytes_of_infos, workspaces,
        )  # fmt: skip
        for i in range(len(states)):
            if not starts[i]:  # the episode goes on, as in nearly all envs
                continue
            if mask[i]:
                ended += 1
                if verb == STEP_SAME:
                    for place in range(finals.shape[1]):
                        finals[i, place] = bytes_of_observations[i, place]
                    begin(i, states, bytes_of_states, rngs, parameters, observations, mask, workspaces)
                else:
                    mask[i] = False
            else:
                rewards[i] = returns[i] = 0.0
                lengths[i] = 0
                terminations[i] = truncations[i] = False
                resets[i] = True
                if verb == STEP_NEXT:
                    mask[i] = True
                    begin(i, states, bytes_of_states, rngs, parameters, observations, mask, workspaces)
        return acted + (ended << 32)

    return body


def several(parts: Parts) -> Callable[..., int]:
    """Return the body for envs with several agents each. The rules for agents are those of `shoal.Env`."""
    step, reset, rng_at, config_at = parts.step, parts.reset, parts.rng_at, parts.config_at
    max_steps = parts.max_steps

    @parts.wrap
    def begin(
        i, states, bytes_of_states, rngs, parameters, elapsed, observations, mask, starts, finished,
        workspaces,
    ):  # fmt: skip
        for place in range(bytes_of_states.shape[1]):
            bytes_of_states[i, place] = 0
        elapsed[i] = 0
        for agent in range(mask.shape[1]):
            mask[i, agent] = starts[i, agent] = True
            finished[i, agent] = False
        reset(states[i], rng_at(rngs, i), observations[i], mask[i], config_at(parameters, i), workspaces[0])

    def body(
        verb, states, bytes_of_states, rngs, parameters, elapsed, actions, observations,
        bytes_of_observations, finals, rewards, terminations, truncations, mask, resets, starts, returns,
        lengths, acting, finished, chosen, keys, seeded, infos, bytes_of_infos, workspaces,
    ):  # fmt: skip
        acted, ended, agents = 0, 0, mask.shape[1]
        for i in range(len(states)):
            goes_on = False
            for agent in range(agents):
                acting[i, agent] = mask[i, agent]
                goes_on |= mask[i, agent]
                if terminations[i, agent] or truncations[i, agent]:  # ended in the last step
                    returns[i, agent] = 0.0
                    lengths[i, agent] = 0
                rewards[i, agent] = 0.0
                terminations[i, agent] = truncations[i, agent] = False
                for place in range(bytes_of_infos.shape[2]):
                    bytes_of_infos[i, agent, place] = 0
            if verb == RESET or not goes_on:
                for agent in range(agents):
                    resets[i, agent] = True
                if verb == RESET:
                    if not chosen[i]:
                        continue
                    if seeded[i]:
                        rngs[i, 0] = keys[i]
                        rngs[i, 1] = 0
                    for agent in range(agents):
                        returns[i, agent] = 0.0
                        lengths[i, agent] = 0
                if verb in (RESET, STEP_NEXT):
                    begin(
                        i, states, bytes_of_states, rngs, parameters, elapsed, observations, mask, starts,
                        finished, workspaces,
                    )  # fmt: skip
                continue
            step(
                states[i], actions[i], rng_at(rngs, i), observations[i], rewards[i], terminations[i], mask[i],
                config_at(parameters, i), infos[i], workspaces[0],
            )  # fmt: skip
            elapsed[i] += 1
            late = max_steps > 0 and elapsed[i] >= max_steps
            over = True
            for agent in range(agents):
                if acting[i, agent]:
                    finished[i, agent] = False  # the agent may have returned
                if finished[i, agent]:  # drop what the env still writes for this agent
                    rewards[i, agent] = 0.0
                    terminations[i, agent] = False
                elif terminations[i, agent]:
                    mask[i, agent] = False
                if late:
                    mask[i, agent] = False
                if mask[i, agent]:
                    over = False
            for agent in range(agents):
                acts, begins = acting[i, agent], starts[i, agent]
                returns[i, agent] += rewards[i, agent]
                if acts:
                    acted += 1
                    lengths[i, agent] += 1
                # At the step limit, or if the env ends without a flag for an agent, the agent is truncated if
                # it has acted or got a reward. The other agents had no part in the episode.
                took_part = (acts or not begins or returns[i, agent] != 0.0) and not finished[i, agent]
                if took_part and (late or (over and not terminations[i, agent])):
                    truncations[i, agent] = True
                resets[i, agent] = begins and not acts
                done = terminations[i, agent] or truncations[i, agent]
                starts[i, agent] = done or (begins and not acts)
                if done:
                    finished[i, agent] = True
                    ended += 1
                    if verb == STEP_SAME:
                        for place in range(finals.shape[2]):
                            finals[i, agent, place] = bytes_of_observations[i, agent, place]
            if over and verb == STEP_SAME:
                begin(
                    i, states, bytes_of_states, rngs, parameters, elapsed, observations, mask, starts,
                    finished, workspaces,
                )  # fmt: skip
        return acted + (ended << 32)

    return body
