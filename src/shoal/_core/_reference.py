"""The core in plain Python: what the compiled core must agree with, and what runs where there is none."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal.rows.arena import Arena, count_true
from shoal.rows.copies import copied
from shoal.rows.fields import Branch, Choice, Kind, Leaf, Misfit, Node, describe
from shoal.rows.layout import Layout, Rows
from shoal.rows.packing import fit
from shoal.stepping.env_faults import name_env, observation_error
from shoal.stepping.episodes import Episodes
from shoal.stepping.results import checked, final, five, flag, number
from shoal.stepping.row_slice import Infos, RowSlice, keep

Write = Callable[[int, Any], None]


# -------------------------------------------------------------------------------------------------- pack


class Packer:
    """Writes nested values into rows, each field at its place, shapes and dtypes checked.

    Args:
        layout: Of the rows.
        rows: A batch of byte rows.
        objects: Their object columns, if the layout has custom spaces.
        node: The part of the layout to write; all of it by default.
        on_undeclared: Function to call with the node of a Dict and a dict that has other keys too. It is
            called once for each node.

    Raises:
        Misfit: By ``write(row, value)``, if the value does not fit. The row may be half written by then.
    """

    def __init__(
        self,
        layout: Layout,
        rows: Rows,
        objects: NDArray[Any] | None = None,
        node: Node | None = None,
        on_undeclared: Callable[[Branch, Mapping[Any, Any]], None] | None = None,
    ) -> None:
        self._columns, self._on_undeclared = layout.columns(rows, objects), on_undeclared
        self.write: Write = self._writer(layout.root if node is None else node)

    def _writer(self, node: Node) -> Write:
        if isinstance(node, Branch):
            return self._branch_writer(node)
        if isinstance(node, Choice):
            return self._choice_writer(node)
        column, field = self._columns[node.index], node.field
        if field.kind is Kind.OBJECT:

            def write_object(row: int, value: Any) -> None:
                # A row owns its objects: an env, or the caller, may change its own later.
                try:
                    column[row] = copied(value)
                except Exception as error:
                    problem = f"expected a value that can be copied, got {describe(value)}"
                    problem += f" ({type(error).__name__}: {error})"
                    raise Misfit(field.path, problem, is_type=True) from error

            return write_object
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
        report = self._on_undeclared if node.is_dict else None

        def write_branch(row: int, value: Any) -> None:
            nonlocal report
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
            if report is not None and len(value) != len(parts):  # all declared keys are there
                tell, report = report, None
                tell(node, value)

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


# -------------------------------------------------------------------------------------------------- step


class StepLoop:
    """Steps a run of Python envs, one row each, straight into the arena.

    Args:
        envs: The envs, in the order of their rows (see `shoal.stepping.python_envs.SteppedEnv`).
        run: Their rows.
        packer: Writes their observations.
        beginning: Rows whose next transition begins an episode; kept up to date.
    """

    def __init__(
        self, envs: Sequence[Any], run: RowSlice, packer: Packer, beginning: NDArray[np.bool_]
    ) -> None:
        self._run, self._arena = run, replace(run.arena, starts=beginning)
        self._episodes = Episodes(self._arena, run.mode)
        self._steps, self._restarts = [env.step for env in envs], [env.restart for env in envs]
        self._same_step = run.mode is AutoresetMode.SAME_STEP
        self._write = packer.write
        # For the most common case, an observation that is one plain array: written without a call.
        self._plain: tuple[Any, Any, Any] = (None, None, None)
        root = run.observation.root
        if isinstance(root, Leaf) and root.field.kind is Kind.ARRAY:
            (column,) = run.observation.columns(run.arena.observations)
            self._plain = row_views(column), root.field.dtype, root.field.shape
        self._actions = run.action.columns(run.arena.actions, run.arena.action_objects)
        self._split = run.action.root.split

    def step(self) -> Infos:
        """Step every env once, as its mode says, with the actions in the arena."""
        arena, write, ndarray = self._arena, self._write, np.ndarray
        views, dtype, shape = self._plain
        same_step = self._same_step
        acting = self._episodes.begin_step()
        # Copied, because an env may keep the action it was given.
        actions = self._split([column.copy() for column in self._actions], len(acting))
        # In a list, which is written as a whole: writing single numbers into an array takes longer.
        rewards = [0.0] * len(acting)
        infos: Infos = []
        row, verb = 0, "step"
        try:
            for row, (acts, step, action) in enumerate(
                zip(acting.tolist(), self._steps, actions, strict=True)
            ):
                if acts:
                    result = step(action)
                    if type(result) is not tuple or len(result) != 5:
                        result = five(result)
                    obs, reward, terminated, truncated, info = result
                    if type(obs) is ndarray and obs.dtype is dtype and obs.shape == shape:
                        views[row][...] = obs
                    else:
                        write(row, obs)
                    rewards[row] = reward if type(reward) is float else number(reward)
                    terminated, truncated = flag(terminated, "terminated"), flag(truncated, "truncated")
                    if terminated or truncated:
                        arena.terminations[row], arena.truncations[row] = terminated, truncated
                        if same_step:
                            infos.append((row, final(self._run, row, obs, info)))
                            verb = "reset"
                            obs, info = self._restarts[row]()
                            write(row, obs)
                else:
                    verb = "reset"
                    obs, info = self._restarts[row]()
                    write(row, obs)
                if type(info) is not dict:
                    info = checked(info)
                if info:
                    infos.append((row, keep(info)))
                verb = "step"
        except Misfit as misfit:
            raise observation_error(misfit, self._run.first_env + row, verb) from None
        except BaseException as error:
            name_env(error, self._run.first_env + row, verb)
            raise
        arena.rewards[:] = rewards
        self._episodes.end_step_of_single_rows(acting)
        return infos


# ----------------------------------------------------------------------------------------------- actions


class ActionColumn:
    """Takes a batch of actions of one field that needs no conversion; any other is left to the caller.

    Args:
        column: The field's place in the action rows.
        low: Smallest value of each element, None if there is none.
        high: Largest value of each element, None if there is none.
    """

    def __init__(
        self, column: NDArray[Any], low: NDArray[Any] | None = None, high: NDArray[Any] | None = None
    ) -> None:
        self._column, self._low, self._high = column, low, high

    def take(self, batch: Any, needed: NDArray[np.bool_]) -> int:
        """Write the rows that are needed, if every element of them is in bounds and a number.

        Returns:
            How many rows were written; -1 if any is not to be taken: the column may then be half written.
        """
        column, count = self._column, count_true(needed)
        if type(batch) is not np.ndarray or batch.shape != column.shape:
            return -1
        if batch.dtype.num != column.dtype.num or not batch.dtype.isnative or not batch.flags.c_contiguous:
            return -1
        if count == len(needed):
            column[...] = taken = batch
        else:
            column[needed] = taken = batch[needed]
        if self._low is not None and self._high is not None:
            good = (taken >= self._low) & (taken <= self._high)
            return count if good.all() else -1
        return -1 if column.dtype.kind == "f" and np.isnan(taken).any() else count


# ------------------------------------------------------------------------------------------- transitions


class Transitions:
    """What a step wrote into the columns of the arena, and what all steps together came to."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._steps = self._transitions = self._episodes = self._acting = 0
        self._inside = self._outside = 0.0
        self._begun: float | None = None
        self._paused: float | None = None
        self._ended: float | None = None

    def begin(self, acting: int) -> None:
        """A step with so many actions is being sent."""
        self._begun, self._acting = time.perf_counter(), acting
        if self._ended is not None:
            self._outside += self._begun - self._ended
        self._ended = None

    def pause(self) -> None:
        """The step is under way, and the caller does something else."""
        self._paused = time.perf_counter()

    def resume(self) -> None:
        """The caller is back."""
        if self._begun is None or self._paused is None:
            return
        elsewhere = time.perf_counter() - self._paused
        self._outside += elsewhere
        self._begun += elsewhere
        self._paused = None

    def drop(self) -> None:
        """Forget the step that was begun, if there is one: it is dropped and does not count."""
        self._begun = self._paused = None

    def take(self) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], int]:
        """Copies of rewards, terminations and truncations, and the number of episodes that ended.

        This is also the end of the step, if one was begun.
        """
        terminations, truncations = self._arena.terminations.copy(), self._arena.truncations.copy()
        episodes = count_true(terminations | truncations)
        if self._begun is not None:
            self._ended = time.perf_counter()
            self._inside += self._ended - self._begun
            self._steps += 1
            self._transitions += self._acting
            self._episodes += episodes
            self._begun = None
        return self._arena.rewards.copy(), terminations, truncations, episodes

    def figures(self) -> tuple[int, int, int, float, float]:
        """Vector steps, transitions, episodes; seconds from sending a step to its rows, and between steps."""
        return self._steps, self._transitions, self._episodes, self._inside, self._outside


# ------------------------------------------------------------------------------------------------ advantage


def gae(
    rewards: NDArray[np.float32],
    values: NDArray[np.float32],
    last_values: NDArray[np.float32],
    terminations: NDArray[np.bool_],
    truncations: NDArray[np.bool_],
    acts: NDArray[np.bool_],
    carries: NDArray[np.bool_],
    gamma: float,
    lam: float,
    advantages: NDArray[np.float32],
) -> None:
    """Generalised advantage estimation, into `advantages`; all arrays are [steps, columns], one column a row.

    Args:
        rewards: Of each entry.
        values: Of its observation.
        last_values: [columns]: of the observations after the last entries.
        terminations: Its episode ended by itself: there is no future.
        truncations: It was cut off: its future is the value of the next observation.
        acts: It chose an action. Others have no advantage.
        carries: It was followed by a transition. One that does not act yet carries waits, and its rewards
            belong to its last action; one that does neither was being reset.
        gamma: Discount.
        lam: Of the mean over horizons.
        advantages: Of the entries that act; 0 elsewhere.
    """
    discount, decay = np.float32(gamma), np.float32(gamma) * np.float32(lam)
    zero = np.zeros(rewards.shape[1], np.float32)
    value, advantage, reward = last_values.copy(), zero.copy(), zero.copy()  # later on
    for step in reversed(range(len(rewards))):
        after = values[step + 1] if step + 1 < len(values) else last_values
        idle = ~acts[step] & ~carries[step]
        ends = terminations[step] | truncations[step]
        value = np.where(ends, np.where(terminations[step], zero, after), value)
        advantage, reward = np.where(ends, zero, advantage), np.where(ends, zero, reward)
        delta = rewards[step] + reward + discount * value - values[step]
        advantages[step] = np.where(acts[step], delta + decay * advantage, zero)
        reward = np.where(acts[step] | idle, zero, reward + rewards[step])
        value = np.where(acts[step] | idle, values[step], value)
        advantage = np.where(acts[step], advantages[step], np.where(idle, zero, advantage))
