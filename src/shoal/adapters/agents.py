"""A PettingZoo env as a `shoal.Env`: one row for each of its possible agents.

ParallelEnv                                used as it is
AECEnv whose agents act at the same time   converted by PettingZoo's aec_to_parallel
AECEnv whose agents take turns             converted by turn_based_aec_to_parallel; waiting agents are masked
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shoal.adapters.env import Env
from shoal.adapters.padding import common_space, cutter, padder
from shoal.errors import ArgumentTypeError
from shoal.rows.arena import Arena
from shoal.rows.layout import Layout


class AgentsEnv(Env):
    """Steps a PettingZoo env in place.

    An agent acts while the env lists it. An agent that the env no longer lists has finished. If the env lists
    it again, the agent has returned and begins a new episode. If the env drops an agent without setting a
    flag, the agent's episode was truncated.

    Args:
        env: A parallel env, an AEC env, or any object with the methods of a parallel env.

    Attributes:
        env: The env, converted to a parallel env.
        possible_agents: The names of the agents, in the order of their rows.
    """

    def __init__(self, env: Any) -> None:
        super().__init__()
        self.env = parallel(env)
        self.possible_agents = _names(self.env.possible_agents, type(env).__name__)
        self.num_agents = len(self.possible_agents)
        self.metadata = dict(getattr(self.env, "metadata", None) or {})
        self.render_mode = getattr(self.env, "render_mode", None)
        observed = {agent: self.env.observation_space(agent) for agent in self.possible_agents}
        acted = {agent: self.env.action_space(agent) for agent in self.possible_agents}
        self.observation_space = common_space(observed, f"observation spaces of {type(env).__name__}")
        self.action_space = common_space(acted, f"action spaces of {type(env).__name__}")
        self._padders = [padder(space, self.observation_space) for space in observed.values()]
        self._asked = (self.possible_agents, [cutter(space, self.action_space) for space in acted.values()])
        self._no_rewards, self._no_flags = [0.0] * self.num_agents, [False] * self.num_agents
        self._in_turns = self.env is not env and not self.metadata.get("is_parallelizable", False)
        self._listed: set[Any] = set()  # agents that the env lists
        self._playing: set[Any] = set()  # agents whose episode goes on

    def bind(self, rows: Arena, layouts: tuple[Layout, Layout] | None = None) -> None:
        """Make the env write into `rows` from now on."""
        super().bind(rows, layouts)
        action = (layouts or self._layouts())[1]
        self._split, self._columns = action.root.split, action.columns(rows.actions, rows.action_objects)
        self._bytes, self._objects = rows.observations, rows.observation_objects

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the rows."""
        rows = ("_split", "_columns", "_bytes", "_objects")
        return {name: value for name, value in super().__getstate__().items() if name not in rows}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin an episode."""
        observations, infos = self.env.reset(seed=seed, options=options)
        self._listed = set(self.env.agents)
        self._playing = set(self._listed)
        for row, agent in enumerate(self.possible_agents):
            if agent in observations:
                self._observe(row, observations[agent])
            else:
                # Clear the observation that the agent's last episode left there.
                self._bytes[row], self._objects[row] = 0, None
        self._set_mask()
        return self._infos(infos)

    def step(self, actions: Any) -> Any:
        """Step the env with the actions of all agents whose turn it is."""
        # Copied, because the env may keep the actions.
        given = self._split([column.copy() for column in self._columns], self.num_agents)
        chosen = {
            agent: given[row] if cut is None else cut(given[row])
            for row, (agent, cut, acts) in enumerate(zip(*self._asked, self.mask.tolist(), strict=True))
            if acts
        }
        observations, rewards, terminations, truncations, infos = self.env.step(chosen)
        before, self._listed = self._listed, set(self.env.agents)
        # Collected in lists and written once, because writing single numbers into arrays takes longer.
        earned, ended, cut_off = self._no_rewards.copy(), self._no_flags.copy(), self._no_flags.copy()
        for row, agent in enumerate(self.possible_agents):
            listed = agent in self._listed
            if agent in self._playing:
                earned[row] = rewards.get(agent, 0.0)
                terminated = ended[row] = bool(terminations.get(agent, False))
                truncated = cut_off[row] = bool(truncations.get(agent, False)) or not (terminated or listed)
                if terminated or truncated:
                    self._playing.remove(agent)  # some envs still list it for a while
            elif listed and agent not in before:
                self._playing.add(agent)
            else:
                continue
            if agent in observations:
                self._observe(row, observations[agent])
        self.rewards[:], self.terminations[:], self.truncations[:] = earned, ended, cut_off
        self._set_mask()
        return self._infos(infos)

    def _set_mask(self) -> None:
        turn = self.env.aec_env.agent_selection if self._in_turns and self.env.agents else None
        playing = self._playing
        self.mask[:] = [agent in playing and turn in (None, agent) for agent in self.possible_agents]

    def _observe(self, row: int, observation: Any) -> None:
        pad = self._padders[row]
        self.write(row, observation if pad is None else pad(observation))

    def _infos(self, infos: dict[Any, Any]) -> list[dict[str, Any]] | None:
        if self._in_turns:  # PettingZoo's converter adds this key; the mask says the same
            for info in infos.values():
                info.pop("active_agent", None)
        if not any(infos.values()):
            return None
        return [infos.get(agent) or {} for agent in self.possible_agents]

    def get_attr(self, name: str) -> Any:
        """Return the attribute `name` of the env."""
        return getattr(self.env, name)

    def set_attr(self, name: str, value: Any) -> None:
        """Set the attribute `name` of the env."""
        setattr(self.env, name, value)

    def render(self) -> Any:
        """Return the env's frame."""
        return self.env.render()

    def close(self) -> None:
        """Close the env, if it has a close method."""
        close = getattr(self.env, "close", None)
        if close is not None:
            close()


def _names(given: Any, kind: str) -> tuple[Any, ...]:
    """Return the names of the agents as a tuple.

    Raises:
        ArgumentTypeError: If `given` is not a list of different names.
    """
    if isinstance(given, Iterable) and not isinstance(given, (str, bytes)):
        names = tuple(given)
        if names and len(set(names)) == len(names):
            return names
    raise ArgumentTypeError(
        f"possible_agents of {kind}: expected a list with the name of each agent that may ever act, all "
        f'different, such as ["player_0", "player_1"], got {given!r}'
    )


def parallel(env: Any) -> Any:
    """Convert a PettingZoo env to a parallel env."""
    if not hasattr(env, "agent_iter"):
        return env
    from pettingzoo.utils import conversions

    if (env.metadata or {}).get("is_parallelizable", False):
        return conversions.aec_to_parallel(env)
    return conversions.turn_based_aec_to_parallel(env)
