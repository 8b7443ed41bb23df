"""The core in plain Python: what the compiled functions do, and what runs where there are none."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal._core._faults import name_env, observation_error
from shoal._core.run import Infos, Run, begin_episodes, keep
from shoal.buffers import count_true
from shoal.fields import Branch, Choice, Kind, Leaf, Misfit, Node, describe
from shoal.layout import Layout, Rows
from shoal.packing import fit

Write = Callable[[int, Any], None]


# -------------------------------------------------------------------------------------------------- pack


class Packer:
    """Writes nested values into rows, each field at its place, shapes and dtypes checked.

    Args:
        layout: Of the rows.
        rows: A batch of byte rows.
        objects: Their object columns, if the layout has custom spaces.
        node: The part of the layout to write; all of it by default.

    Raises:
        Misfit: By ``write(row, value)``, if the value does not fit. The row may be half written by then.
    """

    def __init__(
        self,
        layout: Layout,
        rows: Rows,
        objects: NDArray[Any] | None = None,
        node: Node | None = None,
    ) -> None:
        self._columns = layout.columns(rows, objects)
        self.write: Write = self._writer(layout.root if node is None else node)

    def _writer(self, node: Node) -> Write:
        if isinstance(node, Branch):
            return self._branch_writer(node)
        if isinstance(node, Choice):
            return self._choice_writer(node)
        column, field = self._columns[node.index], node.field
        if field.kind is Kind.OBJECT:
            return column.__setitem__
        if field.kind is Kind.TEXT:

            def write_text(row: int, value: Any) -> None:
                column[row] = field.encode_text(value)

            return write_text

        dtype, shape = field.dtype, field.shape
        views = row_views(column)
        if field.kind is Kind.SCALAR:
            usual = (dtype.type, int) if dtype == np.int64 else (dtype.type,)

            def write_scalar(row: int, value: Any) -> None:
                try:
                    column[row] = value if type(value) in usual else fit(field, value)
                except OverflowError:  # an int beyond 64 bits
                    column[row] = fit(field, value)

            return write_scalar

        def write_array(row: int, value: Any) -> None:
            if type(value) is np.ndarray and value.dtype is dtype and value.shape == shape:
                views[row][...] = value
            else:
                views[row][...] = fit(field, value)

        return write_array

    def _branch_writer(self, node: Branch) -> Write:
        parts = [(k, self._writer(c)) for k, c in zip(node.keys, node.children, strict=True)]
        path = node.path
        usual: Any = dict if node.is_dict else tuple
        container: Any = Mapping if node.is_dict else (tuple, list, np.ndarray)
        size = None if node.is_dict else len(parts)

        def write_branch(row: int, value: Any) -> None:
            if type(value) is not usual and not isinstance(value, container):
                expected = "a dict" if size is None else f"a tuple of {size}"
                raise Misfit(path, f"expected {expected}, got {describe(value)}", is_type=True)
            if size is not None and len(value) != size:
                raise Misfit(path, f"expected a tuple of {size}, got {len(value)}", is_missing=True)
            for key, write in parts:
                try:
                    part = value[key]
                except KeyError:
                    problem = f"missing; got the keys {list(value)}"
                    raise Misfit((*path, key), problem, is_missing=True) from None
                write(row, part)

        return write_branch

    def _choice_writer(self, node: Choice) -> Write:
        index_column, path = self._columns[node.index], node.field.path
        members = [self._columns[i] for group in node.members for i in group]
        writers = [self._writer(child) for child in node.children]

        def write_choice(row: int, value: Any) -> None:
            if not isinstance(value, (tuple, list)) or len(value) != 2:
                raise Misfit(path, f"expected a pair (index, value), got {describe(value)}", is_type=True)
            try:
                index = operator.index(value[0])
            except TypeError:
                problem = f"expected an index, got {describe(value[0])}"
                raise Misfit(path, problem, is_type=True) from None
            if not 0 <= index < len(writers):
                raise Misfit(path, f"expected an index below {len(writers)}, got {index}")
            for column in members:
                column[row] = None if column.dtype == object else 0
            index_column[row] = index
            writers[index](row, value[1])

        return write_choice


def row_views(column: NDArray[Any]) -> list[NDArray[Any]]:
    """A view of each row's entry: writing through it is cheaper than indexing the column."""
    return [column[row, ...] for row in range(len(column))]


# ----------------------------------------------------------------------------------------------- stepper


class SteppedEnv(Protocol):
    """What the stepper needs of an env (see `shoal.emulation.SingleEnv`)."""

    step: Callable[[Any], Any]

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode as the caller asks."""

    def restart(self) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode."""


class Stepper:
    """Steps a run of Python envs, one row each, straight into the arena.

    Args:
        envs: The envs, in the order of their rows.
        run: Their rows.
    """

    def __init__(self, envs: Sequence[SteppedEnv], run: Run) -> None:
        arena, observation, action = run.arena, run.observation, run.action
        self._run, self._arena, self._first_env = run, arena, run.first_env
        self._same_step = run.mode is AutoresetMode.SAME_STEP
        self._ones = np.ones(len(arena), np.int64)
        self._write = Packer(observation, arena.observations, arena.observation_objects).write
        # For the most common case, an observation that is one plain array: written without a call.
        self._plain: tuple[Any, Any, Any] = (None, None, None)
        root = observation.root
        if isinstance(root, Leaf) and root.field.kind is Kind.ARRAY:
            (column,) = observation.columns(arena.observations)
            self._plain = row_views(column), root.field.dtype, root.field.shape
        self._actions = action.columns(arena.actions, arena.action_objects)
        self._split = action.root.split
        # Rows whose next transition begins an episode. Their totals are cleared only then, so that those of a
        # finished episode can be read until its successor's first transition.
        self._beginning = list(range(len(arena)))
        self._eventful = True  # whether the last call left flags, resets or masks to be cleared
        self._adopt(envs)

    def _adopt(self, envs: Sequence[SteppedEnv]) -> None:
        self._envs, self._steps = envs, [env.step for env in envs]

    def reset(
        self,
        chosen: NDArray[np.bool_],
        seeds: Sequence[int | None],
        options: dict[str, Any] | None,
    ) -> Infos:
        """Reset the chosen envs; the other rows keep their observation."""
        infos: Infos = []
        row = 0
        try:
            for row, env in enumerate(self._envs):
                if chosen[row]:
                    obs, info = env.reset(seeds[row], options)
                    self._write(row, obs)
                    if info:
                        infos.append((row, checked(info)))
        except Misfit as misfit:
            raise observation_error(misfit, self._first_env + row, "reset") from None
        except Exception as error:
            name_env(error, self._first_env + row, "reset")
            raise
        self._arena.mask[chosen] = True
        self._beginning = [row for row in self._beginning if not chosen[row]]
        self._beginning += np.flatnonzero(chosen).tolist()
        begin_episodes(self._arena, chosen)
        self._eventful = True
        return infos

    def step(self) -> Infos:
        """Step every env once, as its mode says, with the actions in the arena."""
        arena, write, ndarray = self._arena, self._write, np.ndarray
        views, dtype, shape = self._plain
        same_step = self._same_step
        acting = arena.mask.tolist()
        # Copied, because an env may keep the action it was given.
        actions = self._split([column.copy() for column in self._actions], len(acting))
        # Work that only episode ends need is done only for the rows that have one, and rewards go through a
        # plain list: an operation on a whole array costs as much as stepping a small env.
        rewards: list[Any] = [0.0] * len(acting)
        if self._eventful:
            arena.terminations[:] = False
            arena.truncations[:] = False
        ended: list[int] = []
        restarted: list[int] = []
        infos: Infos = []
        row, verb = 0, "step"
        try:
            for row, (acts, step, action) in enumerate(zip(acting, self._steps, actions, strict=True)):
                if acts:
                    result = step(action)
                    if type(result) is not tuple or len(result) != 5:
                        result = five(result)
                    obs, rewards[row], terminated, truncated, info = result
                    if type(obs) is ndarray and obs.dtype is dtype and obs.shape == shape:
                        views[row][...] = obs
                    else:
                        write(row, obs)
                    if terminated or truncated:
                        ended.append(row)
                        arena.terminations[row], arena.truncations[row] = terminated, truncated
                        if same_step:
                            final = {"final_obs": self._final(row, obs), "final_info": keep(info)}
                            infos.append((row, final))
                            verb = "reset"
                            obs, info = self._envs[row].restart()
                            write(row, obs)
                            verb = "step"
                else:
                    restarted.append(row)
                    verb = "reset"
                    obs, info = self._envs[row].restart()
                    write(row, obs)
                    verb = "step"
                if info:
                    infos.append((row, checked(info)))
        except Misfit as found:
            raise observation_error(found, self._first_env + row, verb) from None
        except Exception as error:
            name_env(error, self._first_env + row, verb)
            raise
        self._write_rewards(rewards)
        self._settle(acting, ended, restarted)
        return infos

    def _write_rewards(self, rewards: list[Any]) -> None:
        column = self._arena.rewards
        try:
            column[:] = rewards
            wrong = count_true(np.isnan(column)) > 0 and any(r is None for r in rewards)
        except (TypeError, ValueError):  # an array of one number will do, nothing else
            wrong = True
        if wrong:
            for row, reward in enumerate(rewards):
                column[row] = self._number(reward, row)

    def _number(self, reward: Any, row: int) -> float:
        try:
            number = np.asarray(reward, np.float64)
        except (TypeError, ValueError):
            number = np.empty(0)
        if reward is None or number.size != 1:
            misfit = Misfit((), f"expected a number, got {describe(reward)}", root="reward", is_type=True)
            raise observation_error(misfit, self._first_env + row, "step")
        return float(number.item())

    def _settle(self, acting: list[bool], ended: list[int], restarted: list[int]) -> None:
        """Bring the episode totals, `resets` and `mask` up to date."""
        arena = self._arena
        if self._beginning:
            arena.episode_returns[self._beginning] = 0.0
            arena.episode_lengths[self._beginning] = 0
        np.add(arena.episode_returns, arena.rewards, arena.episode_returns)
        np.add(arena.episode_lengths, acting if restarted else self._ones, arena.episode_lengths)
        eventful = bool(ended or restarted)
        if eventful or self._eventful:
            arena.resets[:] = False
            arena.resets[restarted] = True
            arena.mask[:] = True
            if not self._same_step:
                arena.mask[ended] = False
        self._beginning = ended if self._same_step else restarted
        self._eventful = eventful

    def _final(self, row: int, obs: Any) -> Any:
        # Copied, because an env may reuse its buffer for the first observation of the next episode.
        if self._run.flat:
            return self._run.observation.flat(self._arena.observations)[row].copy()
        return deepcopy(obs)

    def state(self) -> dict[str, Any]:
        """What a snapshot needs besides the envs and the arena."""
        return {"beginning": list(self._beginning)}

    def load(self, state: dict[str, Any], envs: Sequence[SteppedEnv]) -> None:
        """Continue from a `state`, with envs taken from the same snapshot."""
        self._beginning = list(state["beginning"])
        self._eventful = True
        self._adopt(envs)


def five(result: Any) -> Any:
    """A step in old gym's form of four as Gymnasium's five."""
    if not isinstance(result, (tuple, list)) or len(result) not in (4, 5):
        got = f"{len(result)} values" if isinstance(result, (tuple, list)) else describe(result)
        wanted = "5 values (observation, reward, terminated, truncated, info), or old gym's 4"
        raise Misfit((), f"expected {wanted}, got {got}", root="step()", is_type=True)
    if len(result) == 5:
        return result
    obs, reward, done, info = result
    info = checked(info or {})
    truncated = bool(done) and bool(info.get("TimeLimit.truncated", False))
    return obs, reward, bool(done) and not truncated, truncated, info


def checked(info: Any) -> dict[str, Any]:
    """An info that really is one."""
    if isinstance(info, dict):
        return info
    if not isinstance(info, Mapping):
        raise Misfit((), f"expected a dict, got {describe(info)}", root="info", is_type=True)
    return dict(info)
