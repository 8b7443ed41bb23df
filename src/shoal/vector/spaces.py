"""From the spaces of single envs to those of a vec: checked, batched, laid out."""

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
    """Whether two spaces are equal. Custom ones that do not define ``==`` are if class and attributes are.

    Without that, a space that has been pickled, for a worker or in a snapshot, would differ from itself.
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
    with suppress(Exception):  # arrays have no single answer
        if bool(one == other):
            return True
    try:
        return pickle.dumps(one) == pickle.dumps(other)
    except Exception:  # what cannot be pickled cannot be compared either
        return False


@dataclass(frozen=True)
class UnitFacts:
    """What the parent must know of one unit; small enough to cross a process border."""

    observation_space: Space[Any]
    action_space: Space[Any]
    num_envs: int
    agents: tuple[Any, ...]
    metadata: dict[str, Any]
    render_mode: str | None
    autoreset_mode: AutoresetMode | None

    @classmethod
    def of(cls, unit: Any, agents: tuple[Any, ...]) -> UnitFacts:
        """Read them off a unit."""
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
        """Whether one can stand for the other, rows and all."""
        same = same_space(self.observation_space, other.observation_space)
        same = same and same_space(self.action_space, other.action_space)
        return same and (self.num_envs, self.agents) == (other.num_envs, other.agents)


@dataclass(frozen=True)
class VecSpaces:
    """What all envs of a vec have in common."""

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
    """Check that the envs belong together, and say what they have in common.

    Args:
        facts: One per unit.
        observation_mode: ``"same"``: all observation spaces are equal. ``"different"``: they share shape
            and dtype. A pair of spaces: the batched and the single one to use.
        autoreset_mode: Of the vec.
        objects: Whether values in spaces without bytes may be carried as objects.

    Raises:
        SpaceMismatch: If they do not belong together.
        SpaceError: If a space has no bytes and may not be carried as objects.
    """
    num_envs = sum(fact.num_envs for fact in facts)
    agents = facts[0].agents
    own = [fact.observation_space for fact in facts for _ in range(fact.num_envs * len(agents))]
    single = facts[0].observation_space
    if observation_mode == "same":
        batched = batch(single, len(own))
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
    else:
        raise ArgumentError(
            "observation_mode: expected 'same', 'different' or a pair of spaces (batched, single), "
            f"got {observation_mode!r}"
        )
    if observation_mode == "same":
        for number, fact in enumerate(facts):
            if not same_space(fact.observation_space, single):
                raise SpaceMismatch(
                    f"env {number} has another observation space than the first: {fact.observation_space}, "
                    f"not {single}. If that is meant, pass observation_mode='different'."
                )
    else:
        _check_alike(facts, single)
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
    """The space of a batch, as Gymnasium makes it.

    Raises:
        SpaceError: If it cannot, because a custom space cannot be copied or seeded.
    """
    try:
        with Guard("a space", "seed"):
            return batch_space(space, num_rows)
    except Exception as error:
        raise SpaceError(
            f"{space!r}: Gymnasium makes the space of a batch of copies, each with a seed of its own, which "
            f"failed: {type(error).__name__}: {error}"
        ) from error


def _fits(space: Space[Any], single: Space[Any]) -> bool:
    try:
        return bool(is_space_dtype_shape_equiv(space, single))
    except NotImplementedError:  # a custom space, whose values are objects of any shape
        return True


def _check_alike(facts: Sequence[UnitFacts], single: Space[Any]) -> None:
    for number, fact in enumerate(facts):
        if type(fact.observation_space) is not type(single):
            raise SpaceKindMismatch(
                f"env {number} has an observation space of another kind: {fact.observation_space}, "
                f"not like {single}"
            )
        if not _fits(fact.observation_space, single):
            raise SpaceMismatch(
                f"env {number} has an observation space of another shape or dtype: "
                f"{fact.observation_space}, not like {single}"
            )
