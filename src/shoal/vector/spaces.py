"""Spaces: check that the spaces of all envs fit together, and make the spaces and layouts of the vec."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gymnasium import Space, spaces
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from shoal.adapters.single import SingleEnv
from shoal.errors import ArgumentError, ArgumentTypeError, SpaceError, SpaceKindMismatch, SpaceMismatch
from shoal.rows.layout import Layout
from shoal.stepping.env_faults import Guard

ObservationMode = str | tuple[Space[Any], Space[Any]]


def same_space(one: Any, other: Any) -> bool:
    """Return whether two spaces are equal.

    Custom spaces without ``==`` are equal if their classes and attributes are equal. Otherwise a space that
    was pickled, for a worker or in a snapshot, would differ from itself.
    """
    if one is other or one == other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, spaces.Dict):
        return one.keys() == other.keys() and all(same_space(one[key], other[key]) for key in one)
    if isinstance(one, spaces.Tuple):
        return len(one) == len(other) and all(map(same_space, one, other))
    if not isinstance(one, Space) or type(one).__eq__ is not object.__eq__:
        return False
    ours, theirs = ({**vars(space), "_np_random": None} for space in (one, other))
    return ours.keys() == theirs.keys() and all(_same_value(ours[key], theirs[key]) for key in ours)


def _same_value(one: Any, other: Any) -> bool:
    """Return whether two attributes are equal, or have equal pickles."""
    with suppress(Exception):  # the comparison of arrays is no single bool
        if bool(one == other):
            return True
    try:
        return pickle.dumps(one) == pickle.dumps(other)
    except Exception:  # values that cannot be pickled count as different
        return False


@dataclass(frozen=True)
class UnitFacts:
    """The spaces and properties of one unit, which a worker sends to the parent.

    Attributes:
        observation_space: The observation space of one row.
        action_space: The action space of one row.
        num_envs: The number of envs in the unit.
        agents: The names of the agents of an env.
        metadata: The metadata of the env.
        render_mode: The render mode of the env.
        autoreset_mode: The autoreset mode, if the unit is a vector env.
    """

    observation_space: Space[Any]
    action_space: Space[Any]
    num_envs: int
    agents: tuple[Any, ...]
    metadata: dict[str, Any]
    render_mode: str | None
    autoreset_mode: AutoresetMode | None

    @classmethod
    def of(cls, unit: Any, agents: tuple[Any, ...]) -> UnitFacts:
        """Read the facts of a unit."""
        env = unit.env if isinstance(unit, SingleEnv) else unit
        metadata = dict(getattr(env, "metadata", None) or {})
        nested = isinstance(unit, GymnasiumVectorEnv)
        return cls(
            unit.single_observation_space if nested else unit.observation_space,
            unit.single_action_space if nested else unit.action_space,
            unit.num_envs,
            agents,
            metadata,
            getattr(env, "render_mode", None),
            metadata.get("autoreset_mode") if nested else None,
        )

    def is_like(self, other: UnitFacts) -> bool:
        """Return whether two units have the same spaces, agents and number of envs."""
        same = same_space(self.observation_space, other.observation_space)
        same = same and same_space(self.action_space, other.action_space)
        return same and (self.num_envs, self.agents) == (other.num_envs, other.agents)


@dataclass(frozen=True)
class VecSpaces:
    """The spaces and properties that all envs of a vec share.

    Attributes:
        num_envs: The number of envs.
        agents: The names of the agents of an env.
        single_observation_space: The observation space of one row.
        batched_observation_space: The observation space of all rows.
        flat_observation_space: The observation space of all rows, if observations are flat.
        observation: The layout of the observations.
        action: The layout of the actions.
        metadata: The metadata of the first env.
        render_mode: The render mode of the first env.
    """

    num_envs: int
    agents: tuple[Any, ...]
    single_observation_space: Space[Any]
    batched_observation_space: Space[Any]
    flat_observation_space: Space[Any]
    observation: Layout
    action: Layout
    metadata: dict[str, Any]
    render_mode: str | None


def combine(
    facts: Sequence[UnitFacts],
    observation_mode: ObservationMode,
    autoreset_mode: AutoresetMode,
    *,
    objects: bool,
) -> VecSpaces:
    """Check that the envs fit together, and return the spaces and properties that they share.

    Args:
        facts: The facts of each unit.
        observation_mode: ``"same"`` if all observation spaces are equal, ``"different"`` if they share shape
            and dtype, or the pair of the batched and the single space to use.
        autoreset_mode: The autoreset mode of the vec.
        objects: Whether rows may hold objects, for spaces whose values have no fixed number of bytes.

    Raises:
        SpaceMismatch: If the spaces of the envs do not fit together.
        SpaceError: If a space needs objects and `objects` is false.
    """
    num_envs = sum(fact.num_envs for fact in facts)
    agents = facts[0].agents
    own = [fact.observation_space for fact in facts for _ in range(fact.num_envs * len(agents))]
    single = facts[0].observation_space
    if observation_mode == "same":
        batched = batch(single, len(own))
        _check_same(facts, single)
    elif observation_mode == "different":
        _check_alike(facts, single)
        try:
            batched = batch_differing_spaces(own)
        except TypeError as error:
            raise SpaceError(
                f"observation_mode: 'different' has no batched space for {single}, because Gymnasium knows "
                "none for custom spaces. Pass a pair of spaces (batched, single) instead"
            ) from error
    elif isinstance(observation_mode, tuple) and len(observation_mode) == 2:
        if not all(isinstance(space, Space) for space in observation_mode):
            kinds = " and ".join(type(space).__name__ for space in observation_mode)
            raise ArgumentTypeError(f"observation_mode: expected a pair of spaces, got {kinds}")
        batched, single = observation_mode
        _check_alike(facts, single)
    else:
        raise ArgumentError(
            "observation_mode: expected 'same', 'different' or a pair of spaces (batched, single), "
            f"got {observation_mode!r}"
        )
    for number, fact in enumerate(facts):
        if not same_space(fact.action_space, facts[0].action_space):
            raise SpaceMismatch(
                f"env {number} has another action space than the first: {fact.action_space}, "
                f"not {facts[0].action_space}"
            )
        if fact.autoreset_mode not in (None, autoreset_mode):
            raise ArgumentError(
                f"autoreset_mode: the vector env made by creator {number} uses {fact.autoreset_mode}, this "
                f"vec {autoreset_mode}; make both the same"
            )
    observation = Layout(single, objects=objects)
    flat = batch_space(observation.flat_space, len(own)) if not objects else batched
    if observation_mode == "different" and not objects:
        flat = batch_differing_spaces([Layout(space).flat_space for space in own])
    return VecSpaces(
        num_envs,
        agents,
        single,
        batched,
        flat,
        observation,
        Layout(facts[0].action_space, objects=objects),
        facts[0].metadata,
        facts[0].render_mode,
    )


def batch(space: Space[Any], num_rows: int) -> Space[Any]:
    """Return the space of a batch, which Gymnasium makes.

    Raises:
        SpaceError: If Gymnasium fails, because a custom space cannot be copied or seeded.
    """
    try:
        with Guard("a space", "seed"):
            return batch_space(space, num_rows)
    except Exception as error:
        raise SpaceError(
            f"{space!r}: Gymnasium makes the space of a batch of copies, each with a seed of its own, which "
            f"failed: {type(error).__name__}: {error}"
        ) from error


def _has_same_form(space: Space[Any], single: Space[Any]) -> bool:
    """Return whether two spaces have the same shape and dtype."""
    try:
        return bool(is_space_dtype_shape_equiv(space, single))
    except NotImplementedError:  # a custom space, whose values are objects of any shape
        return True


def _check_same(facts: Sequence[UnitFacts], single: Space[Any]) -> None:
    """Raise if an observation space is not equal to the space of the vec."""
    for number, fact in enumerate(facts):
        if not same_space(fact.observation_space, single):
            raise SpaceMismatch(
                f"env {number} has another observation space than the first: {fact.observation_space}, "
                f"not {single}. If that is meant, pass observation_mode='different'."
            )


def _check_alike(facts: Sequence[UnitFacts], single: Space[Any]) -> None:
    """Raise if an observation space has another kind, shape or dtype than the space of the vec."""
    for number, fact in enumerate(facts):
        if type(fact.observation_space) is not type(single):
            raise SpaceKindMismatch(
                f"env {number} has an observation space of another kind: {fact.observation_space}, "
                f"not like {single}"
            )
        if not _has_same_form(fact.observation_space, single):
            raise SpaceMismatch(
                f"env {number} has an observation space of another shape or dtype: "
                f"{fact.observation_space}, not like {single}"
            )
