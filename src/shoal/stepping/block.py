"""Block: neighbouring envs and the rows that they step into.

A Serial vec has one block, a worker process has one or more. A block is built in two moves, because rows can
be laid out only when the spaces are known: first `build_envs`, then `Block`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from itertools import groupby
from typing import Any

import cloudpickle
import numpy as np
from gymnasium.utils import EzPickle
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv
from numpy.typing import NDArray

from shoal.adapters.agents import AgentsEnv
from shoal.adapters.env import Env
from shoal.adapters.single import Creator, SingleEnv, adopt
from shoal.errors import ArgumentError, SnapshotError
from shoal.stepping.env_faults import Guard
from shoal.stepping.in_place_envs import InPlaceStepper
from shoal.stepping.python_envs import Stepper
from shoal.stepping.row_slice import Infos, RowSlice
from shoal.stepping.vector_envs import NestedStepper
from shoal.vector.vec import VectorEnv

Unit = SingleEnv | Env | GymnasiumVectorEnv[Any, Any, Any]
"""The object that one creator returned: one env, or a vector env that holds several."""


def build_envs(creators: Sequence[Creator], numbers: Sequence[int] | None = None) -> list[Unit]:
    """Call every creator once. If a creator fails, close the envs made so far.

    Args:
        creators: One creator per unit.
        numbers: The number of each unit, for messages; by default they count from 0.
    """
    units: list[Unit] = []
    try:
        for index, creator in zip(numbers or range(len(creators)), creators, strict=True):
            try:
                with Guard(f"the creator of env {index}", env_ids=[index]):
                    units.append(adopt(creator()))
            except Exception as error:
                with suppress(Exception):  # an exception may refuse notes
                    error.add_note(f"raised while creating env {index}")
                raise
    except BaseException:
        close_all(units)
        raise
    return units


def close_all(units: Sequence[Unit], first: int = 0) -> list[Exception]:
    """Close every env, also if others raise; return the exceptions.

    Args:
        units: The envs.
        first: The number of the first env, for messages.
    """
    errors = []
    for index, unit in enumerate(units, first):
        try:
            with Guard(f"env {index}", "close", [index]):
                unit.close()
        except Exception as error:
            with suppress(Exception):  # an exception may refuse notes
                error.add_note(f"raised by close() of env {index}")
            errors.append(error)
    return errors


def agents_of(unit: Unit) -> int:
    """Return the number of rows per env of a unit."""
    if isinstance(unit, GymnasiumVectorEnv):
        inner = unit.unwrapped
        return inner.agents_per_env if isinstance(inner, VectorEnv) and not inner.rows_as_envs else 1
    return unit.num_agents


def names_of(unit: Unit) -> tuple[Any, ...]:
    """Return the names of the agents in one env of a unit."""
    inner = unit.unwrapped if isinstance(unit, GymnasiumVectorEnv) else unit
    named = getattr(inner, "agents" if isinstance(inner, VectorEnv) else "possible_agents", None)
    count = agents_of(unit)
    return tuple(named) if named and len(named) == count else tuple(f"agent_{i}" for i in range(count))


@dataclass
class _Group:
    """Neighbouring units that one stepper steps.

    Attributes:
        units: The units, in order.
        stepper: Their stepper.
        envs: The envs of these units, counted from the first env of the block.
    """

    units: list[Unit]
    stepper: Any
    envs: slice

    def in_block(self, infos: Infos, agents: int) -> Infos:
        """Return `infos` with rows counted from the first row of the block."""
        first = self.envs.start * agents
        return [(first + row, info) for row, info in infos]


def _step_groups(groups: Sequence[_Group], agents: int) -> Infos:
    infos: Infos = []
    for group in groups:
        infos += group.in_block(group.stepper.step(), agents)
    return infos


class Block:
    """Neighbouring envs that are stepped together.

    Args:
        units: The units, in order, as `build_envs` returned them.
        rows: The rows of all their envs.

    Attributes:
        step: Step every env once with the actions in the arena; return infos as `reset` does.
    """

    step: Callable[[], Infos]

    def __init__(self, units: Sequence[Unit], rows: RowSlice) -> None:
        self._agents, self._first_env = agents_of(units[0]), rows.first_env
        self._groups: list[_Group] = []
        first = 0
        for stepper, members in _grouped(units):
            last = first + sum(unit.num_envs for unit in members)
            driver = stepper(members, rows.part(first, last, self._agents))
            self._groups.append(_Group(members, driver, slice(first, last)))
            first = last
        self._bind()

    def _bind(self) -> None:
        # A block nearly always has one group: its stepper is then called directly.
        # A method of this block would be a reference cycle, and the rows would outlive their vec.
        one = len(self._groups) == 1
        self.step = self._groups[0].stepper.step if one else partial(_step_groups, self._groups, self._agents)

    @property
    def units(self) -> list[Unit]:
        """Return all units, in order."""
        return [unit for group in self._groups for unit in group.units]

    def reset(
        self,
        chosen: NDArray[np.bool_],
        seeds: Sequence[int | None],
        options: dict[str, Any] | None,
    ) -> Infos:
        """Reset the chosen envs; return infos with rows counted from the first row of the block."""
        infos: Infos = []
        for group in self._groups:
            own = group.stepper.reset(chosen[group.envs], seeds[group.envs], options)
            infos += group.in_block(own, self._agents)
        return infos

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the attribute `name` of every env; if it is callable, call it and return the result."""
        return self._ask(name, lambda unit, _: _call(unit, name, args, kwargs))

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        """Set the attribute `name` of every env to its value."""
        self._ask("set_attr", lambda unit, envs: _set_attr(unit, name, values[envs]))

    def render(self) -> list[Any]:
        """Return the frame of every env."""

        def frames(unit: Unit, _: slice) -> Sequence[Any]:
            return unit.render() or () if isinstance(unit, GymnasiumVectorEnv) else [unit.render()]

        return self._ask("render", frames)

    def _ask(self, verb: str, question: Callable[[Unit, slice], Sequence[Any]]) -> list[Any]:
        """Call `question` with each unit and its envs, counted from the block's first; join the answers."""
        answers: list[Any] = []
        first = 0
        for unit in self.units:
            envs, number = slice(first, first + unit.num_envs), self._first_env + first
            with Guard(f"env {number}", verb, range(number, number + unit.num_envs)):
                try:
                    answers.extend(question(unit, envs))
                except Exception as error:
                    with suppress(Exception):  # an exception may refuse notes
                        error.add_note(f"raised by {verb}() of env {number}")
                    raise
            first = envs.stop
        return answers

    def close(self) -> list[Exception]:
        """Close every env; return the exceptions."""
        return close_all(self.units, self._first_env)

    def snapshot(self) -> list[Any]:
        """Return the state of all envs and steppers, without the rows, in a form that can be pickled."""
        frozen = iter(self._ask("snapshot", lambda unit, _: [_freeze(unit)]))
        return [([next(frozen) for _ in group.units], group.stepper.state()) for group in self._groups]

    def restore(self, state: list[Any]) -> None:
        """Continue from a snapshot of a block of the same shape.

        Raises:
            SnapshotError: If the blocks differ.
        """
        ours, theirs = [len(group.units) for group in self._groups], [len(units) for units, _ in state]
        if ours != theirs:
            raise SnapshotError(f"the snapshot has groups of {theirs} envs, this vec of {ours}")
        # All envs are made before the first is put in place: a failure here leaves this block as it was.
        with Guard("an env", "restore"):
            thawed = [[_thaw(each) for each in frozen] for frozen, _ in state]
        for group, made, (frozen, stepper) in zip(self._groups, thawed, state, strict=True):
            old, group.units = group.units, [new or unit for new, unit in zip(made, group.units, strict=True)]
            for unit, new, each in zip(group.units, made, frozen, strict=True):
                if new is None:
                    unit.restore(each)  # type: ignore[union-attr]
            group.stepper.load(stepper, group.units)
            close_all([unit for unit in old if unit not in group.units])
        self._bind()


def _grouped(units: Sequence[Unit]) -> Iterable[tuple[Callable[..., Any], list[Unit]]]:
    for number, unit in enumerate(units):
        if agents_of(unit) != agents_of(units[0]):
            raise ArgumentError(
                f"expected the same number of agents in every env, got {agents_of(units[0])} in the "
                f"first and {agents_of(unit)} in number {number}. Pad the smaller ones with agents "
                "whose mask is clear, and for which the env writes neither rewards nor flags."
            )

    def kind(numbered: tuple[int, Unit]) -> tuple[str, int]:
        number, unit = numbered
        if isinstance(unit, GymnasiumVectorEnv):
            return "nested", number  # each vector env has a stepper of its own
        return ("single", 0) if isinstance(unit, SingleEnv) else ("in place", 0)

    steppers: dict[str, Callable[..., Any]] = {
        "nested": NestedStepper,
        "single": Stepper,
        "in place": InPlaceStepper,
    }
    for (name, _), members in groupby(enumerate(units), key=kind):
        yield steppers[name], [unit for _, unit in members]


def _call(unit: Unit, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
    if isinstance(unit, GymnasiumVectorEnv):
        results: Sequence[Any] = unit.unwrapped.call(name, *args, **kwargs)  # type: ignore[attr-defined]
        return results
    known = isinstance(unit, (SingleEnv, AgentsEnv))
    value = unit.get_attr(name) if known else getattr(unit, name)
    return [value(*args, **kwargs) if callable(value) else value]


def _set_attr(unit: Unit, name: str, values: Sequence[Any]) -> Sequence[Any]:
    if isinstance(unit, GymnasiumVectorEnv):
        unit.unwrapped.set_attr(name, list(values))  # type: ignore[attr-defined]
    elif isinstance(unit, (SingleEnv, AgentsEnv)):
        unit.set_attr(name, values[0])
    else:
        setattr(unit, name, values[0])
    return ()


def _freeze(unit: Unit) -> Any:
    """Return the state of a unit: its own snapshot if it makes one, otherwise its pickle."""
    own = getattr(unit, "snapshot", None)
    if isinstance(unit, GymnasiumVectorEnv) and own is not None:
        return own()
    env = unit.env if isinstance(unit, (SingleEnv, AgentsEnv)) else unit
    file = BytesIO()
    try:
        _StatePickler(file).dump(unit)
    except SnapshotError:
        raise
    except Exception as error:
        raise SnapshotError(
            f"{type(env).__name__} cannot be pickled, so it cannot be in a snapshot: {error}. "
            "Give it __getstate__ and __setstate__."
        ) from error
    return file.getvalue()


def _thaw(frozen: Any) -> Unit | None:
    """Return the unit of a pickle, or None for a snapshot, which the existing unit restores itself."""
    return cloudpickle.loads(frozen) if isinstance(frozen, bytes) else None


class _StatePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A pickler that refuses objects whose pickle would lack their state."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, EzPickle) and type(obj).__getstate__ is EzPickle.__getstate__:
            raise SnapshotError(
                f"{type(obj).__name__} is an EzPickle: pickling it keeps the arguments of its constructor "
                "and forgets its state. Give it __getstate__ and __setstate__."
            )
        return super().reducer_override(obj)
