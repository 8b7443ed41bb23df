"""ThreadEngine: steps compiled envs in place on threads of this process, without the GIL and without copies.

The engine of a synchronous vec runs the kernel over all envs at once, and the caller's thread works too. The
engine of an asynchronous vec submits blocks to threads, and collects the blocks that are done.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from shoal.cores import patience_with, usable_cores
from shoal.errors import ArgumentError, ArgumentTypeError, NativeError
from shoal.limits import obtaining
from shoal.native.bodies import RESET, STEP_DISABLED, STEP_NEXT, STEP_SAME
from shoal.native.bounds import fitting
from shoal.native.columns import Columns
from shoal.native.debugging import DebugKernel, DebugQueue
from shoal.native.env import compiled
from shoal.native.fingerprint import text_of
from shoal.native.records import Records
from shoal.native.replaying import Replay
from shoal.native.rng import keys_of
from shoal.native.spec import Spec, arguments_of
from shoal.rows.arena import Arena
from shoal.rows.layout import Layout
from shoal.stepping.row_slice import Infos
from shoal.vector.engine import BlockRange, OwnedEngine, Reset

STEP_VERBS = {
    AutoresetMode.NEXT_STEP: STEP_NEXT,
    AutoresetMode.SAME_STEP: STEP_SAME,
    AutoresetMode.DISABLED: STEP_DISABLED,
}

SPLIT = "split of envs into blocks"  # a property of `kind` that snapshots of some envs do not have


class ThreadEngine(OwnedEngine):
    """Steps compiled envs on threads.

    Args:
        spec: The class of the envs, with its constants and parameters.
        columns: The memory of the envs.
        arena: The rows of all envs.
        layout: The layout of the observations.
        blocks: The blocks; a synchronous vec has one.
        threads: The number of threads. The caller's thread is one of them if the vec is synchronous.
        mode: When a finished env is reset.
        at_once: Whether the vec is synchronous, so that the kernel runs over all envs at once.
        flat: Whether last observations are flat rows.
        debug: Whether to run the env's functions uncompiled.
        check: Whether to check indices in compiled code.
        infos: Whether the vec shows the infos that the class declares.
        renders: Whether `render` returns frames.
        reset_verb: The verb that resets all envs, for messages.

    Attributes:
        spec: The class of the envs, with its constants and parameters.
        columns: The memory of the envs, until the engine is closed.
        step_verb: The kernel's verb for a step.
        kernel: The compiled kernel; None with `debug`.
        loop: The object that runs the kernel over all envs at once; None if the vec is asynchronous.
        seeds: The last seed that each env was given.
    """

    needs_first_reset = True

    def __init__(
        self,
        spec: Spec,
        columns: Columns,
        arena: Arena,
        layout: Layout,
        blocks: Sequence[BlockRange],
        threads: int,
        mode: AutoresetMode,
        *,
        at_once: bool,
        flat: bool,
        debug: bool,
        check: bool,
        infos: bool,
        renders: bool,
        reset_verb: str,
    ) -> None:
        super().__init__()
        self.spec, self.columns, self.blocks, self.step_verb = spec, columns, blocks, STEP_VERBS[mode]
        self._arena, self._layout, self._flat, self._threads = arena, layout, flat, threads
        self._debug, self._check, self._renders, self._reset_verb = debug, check, renders, reset_verb
        self._at_once, self._count = at_once, blocks[-1].last_env
        self._agents = len(arena) // self._count
        self.seeds: list[int | None] = [None] * self._count
        self._verbs = [RESET] * len(blocks)  # the last verb of each block
        self._moving: set[int] = set()  # blocks that were submitted and not collected
        self._done: list[int] = []  # blocks that were collected and not waited for, in order
        self._replay = Replay(spec, columns) if check else None
        if infos and spec.infos.names:
            self.info_arrays = self._info_arrays
        self.kernel = None if debug else compiled(spec, checked=check)
        self.loop: Any = None
        self._queue: Any = None
        ends = [block.last_env for block in blocks]
        if debug and at_once:
            self.loop = DebugKernel(spec, columns)
        elif debug:
            self._queue = DebugQueue(spec, columns, ends)
        elif at_once:
            from shoal._core._native import NativeLoop

            self.loop = self._made_by(NativeLoop, self._count, others=threads - 1)
        else:
            from shoal._core._native import NativeQueue

            self._queue = self._made_by(NativeQueue, ends, others=threads)

    def _made_by(self, kind: Any, division: int | list[int], *, others: int) -> Any:
        """Make the part of the core that runs the kernel.

        Args:
            kind: The class of the core.
            division: The number of envs, or for each block the number after its last env.
            others: The number of threads, without the caller's thread.
        """
        assert self.kernel is not None
        _, patience = patience_with(others, usable_cores())
        with obtaining(f"{self._threads} threads", "Use fewer by num_workers"):
            return kind(
                self.kernel.address,
                self._crash_text(),
                self.columns.addresses,
                (self.columns, self.kernel.keeps),
                division,
                self._threads,
                patience.pauses,
                patience.yields,
            )

    def _crash_text(self) -> str:
        """Return the text that the core prints after the name of a signal if the kernel crashes."""
        cls = self.spec.cls
        what = (
            "Its indices are checked, so the cause is another one: a recursion without end, for instance"
            if self._check
            else "It may have read or written outside of an array: run it again with SHOAL_NATIVE_CHECK=1 in "
            "the environment, which names the line"
        )
        return f" in the compiled code of {cls.__module__}.{cls.__qualname__}. {what}.\n"

    # -- moving ----------------------------------------------------------------------------------------

    def check(self, reset: Reset) -> None:
        """Raise if a seed is negative, or if there are options, which compiled envs do not have."""
        keys_of(reset.seeds)
        if reset.options:
            raise ArgumentError(
                f"options: compiled envs have none beside reset_mask, got {sorted(reset.options)}. Make "
                "values that differ between envs parameters of the class, which set_attr() changes"
            )

    def begin_reset(self, blocks: Sequence[int], reset: Reset) -> None:
        """Reset the chosen envs; if the vec is asynchronous, submit their blocks for that."""
        self.check_owner()
        if reset.is_whole:
            self._drop()
        # Only the entries of these blocks are written, because other blocks may be moving.
        envs = np.concatenate([np.arange(self.blocks[b].first_env, self.blocks[b].last_env) for b in blocks])
        arrays = self.columns.arrays
        keys, given = keys_of(reset.seeds)
        for name, values in (("chosen", reset.chosen), ("keys", keys), ("seeded", given)):
            arrays[name][envs] = values[envs]
        for env in np.flatnonzero(reset.chosen & given).tolist():
            self.seeds[env] = reset.seeds[env]
        self._move(blocks, RESET)

    def begin_steps(self, blocks: Sequence[int]) -> None:
        """Step all envs; if the vec is asynchronous, submit these blocks for that."""
        self.check_owner()
        self._move(blocks, self.step_verb)

    def step_all(self) -> Infos:
        """Step all envs, and return the last observations of episodes that ended as infos."""
        self.begin_steps([0])
        return self.take_infos([0])

    def _move(self, blocks: Sequence[int], verb: int) -> None:
        for block in blocks:
            self._verbs[block] = verb
            if self._replay is not None:
                self._replay.keep(self.blocks[block].envs, verb)
        if self._queue is not None:
            self._moving.update(blocks)
            self._queue.submit(list(blocks), verb)
        elif self.loop.run(verb) is None:
            raise self.fast_step_error()

    def fast_step_error(self) -> NativeError:
        """Make the error of a kernel that raised."""
        explained = self._replay.explain() if self._replay is not None else None
        what = (
            "and does not happen with debug=True: perhaps a float32 is rounded differently there"
            if self._check
            else "and printed. SHOAL_NATIVE_CHECK=1 in the environment, check=True and debug=True show where"
        )
        return explained or NativeError(
            f"something was raised inside the kernel of {self.spec.cls.__name__}, {what}. Not all "
            f"envs have moved: call {self._reset_verb}() first"
        )

    # -- waiting ---------------------------------------------------------------------------------------

    def wait_for(self, blocks: Sequence[int]) -> None:
        """Collect blocks until all of these are done."""
        self.check_owner()
        while self._queue is not None and not set(blocks).issubset(self._done):
            self._collect(1)
        self._done = [block for block in self._done if block not in blocks]

    def wait_for_any(self, count: int) -> list[int]:
        """Collect blocks until `count` of them are done, and return the first ones."""
        self.check_owner()
        while len(self._done) < count:
            self._collect(1)
        first, self._done = self._done[:count], self._done[count:]
        return first

    def finish(self) -> None:
        """Collect all blocks that were submitted, which waits for them."""
        self.check_owner()
        while self._moving:
            self._collect(len(self._moving))

    def _collect(self, wanted: int) -> None:
        """Wait until `wanted` more blocks are done, and note all blocks that are done."""
        if not self._debug:
            self._note_done(self._queue.kept())  # the blocks that an interrupted call had collected
        self._note_done(self._queue.collect(wanted if self._moving else 0))
        if not self._debug and self._queue.has_failed():
            if self._replay is not None:  # it moves all envs, so threads must not move some of them
                self._note_done(self._queue.collect(len(self._moving)))
            raise self.fast_step_error()

    def _note_done(self, blocks: Sequence[int]) -> None:
        self._done += blocks
        self._moving.difference_update(blocks)

    def _drop(self) -> None:
        """Wait for all blocks that were submitted, and forget them."""
        if self._queue is None:
            return
        if self._debug:
            self._queue.forget()
        else:
            self._moving.difference_update(self._queue.kept())
            self._queue.collect(len(self._moving))
            self._queue.has_failed()
        self._moving, self._done = set(), []

    def take_infos(self, blocks: Sequence[int]) -> Infos:
        """Return the last observations of agents whose episode has just ended, under SAME_STEP."""
        if self.step_verb != STEP_SAME:
            return []
        infos: Infos = []
        first = 0
        for block in blocks:
            own = self.blocks[block]
            rows = slice(own.first_env * self._agents, own.last_env * self._agents)
            if self._verbs[block] == STEP_SAME:
                infos += [(first + row, info) for row, info in self._finals(rows)]
            first += rows.stop - rows.start
        return infos

    def _info_arrays(self, blocks: Sequence[int]) -> dict[str, Any]:
        """Return the infos of rows that have just made a transition, as arrays over the rows of these blocks.

        Under SAME_STEP, those of an episode's last step are in its ``final_info``.
        """
        arena, own = self._arena, [self.blocks[block] for block in blocks]
        rows = np.concatenate(
            [np.arange(each.first_env * self._agents, each.last_env * self._agents) for each in own]
        )
        stepped = np.repeat(
            [self._verbs[block] != RESET for block in blocks], [each.num_envs * self._agents for each in own]
        )
        stepped &= ~arena.resets[rows]
        if self.step_verb == STEP_SAME:
            stepped &= ~(arena.terminations[rows] | arena.truncations[rows])
        if not stepped.any():
            return {}
        infos = self.columns.arrays["infos"].reshape(len(arena))[rows]
        infos[~stepped] = 0
        found: dict[str, Any] = {}
        for name in self.spec.infos.names or ():
            found[name] = infos[name].copy()
            found[f"_{name}"] = stepped.copy()
        return found

    def _finals(self, rows: slice) -> Infos:
        done = np.flatnonzero(self._arena.terminations[rows] | self._arena.truncations[rows])
        if not done.size:
            return []
        raw = self.columns.arrays["finals"].reshape(len(self._arena), -1)[rows][done]
        layout = self._layout
        values = list(layout.flat(raw)) if self._flat else layout.root.split(layout.columns(raw), len(done))
        infos: list[dict[str, Any]] = [{} for _ in values]
        if self.info_arrays is not None:
            last = self.columns.arrays["infos"].reshape(len(self._arena))[rows][done]
            infos = [{name: each[name].copy() for name in each.dtype.names} for each in last]
        return [
            (row, {"final_obs": value, "final_info": info})
            for row, value, info in zip(done.tolist(), values, infos, strict=True)
        ]

    # -- access to the envs ----------------------------------------------------------------------------

    def _stop_moving(self) -> None:
        """Wait until no thread moves an env. After a verb that failed, the vec has not waited for that.

        With `debug` no thread moves an env, and `finish` would run the env that raised once more.
        """
        self.check_owner()
        if not self._debug:
            self.finish()

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Read a parameter, a field of the state or an attribute of the class, or call a method of it."""
        self._stop_moving()
        spec = self.spec
        if name == "np_random_seed":
            return list(self.seeds)
        column = self.column_of(name)
        if column is not None:
            return list(column.copy())
        if name in spec.constants:
            return [spec.constants[name]] * self._count
        try:
            value = getattr(spec.cls, name)
        except AttributeError:
            known = ", ".join([*spec.parameters, *(spec.state.names or ()), *spec.constants])
            raise AttributeError(f"{spec.cls.__name__} has no {name!r}. Its envs have {known}") from None
        return [value(*args, **kwargs) if callable(value) else value for _ in range(self._count)]

    def column_of(self, name: str) -> NDArray[Any] | None:
        """Return the values of a parameter, or of a field of the state."""
        if name in (self.columns.parameters.dtype.names or ()):
            return self.columns.parameters[name]
        if name in (self.spec.state.names or ()):
            return self.columns.arrays["states"].view(self.spec.declared)[name]
        return None

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        """Set a parameter, or a field of the state that has bounds."""
        self._stop_moving()
        spec, column = self.spec, self.column_of(name)
        if column is None and name in spec.constants:
            raise AttributeError(
                f"{name}: this is a constant of {spec.cls.__name__}, compiled in. Pass another "
                "value as env_kwargs when the vec is made, or let it be a parameter of the class"
            )
        if column is None:
            known = ", ".join([*spec.parameters, *(spec.state.names or ())])
            raise AttributeError(f"{name}: expected a parameter or a field of the state: {known}")
        if name not in spec.parameters and name not in spec.bounds:
            raise ArgumentError(
                f"{name}: this field of the state of {spec.cls.__name__} can be read only. Its compiled code "
                "trusts it, and may read or write anywhere if the value makes no sense. The class can allow "
                f"it, by bounds = {{{name!r}: (lowest, highest)}}; or make what is to be set a parameter"
            )
        given = np.asarray(values)
        if given.shape != column.shape or not np.can_cast(given.dtype, column.dtype, "same_kind"):
            raise ArgumentTypeError(
                f"{name}: expected {column.dtype} of shape {column.shape[1:]} for each env, got "
                f"{given.dtype} of shape {given.shape[1:]}"
            )
        column[:] = fitting(name, given, column.dtype, spec.bounds.get(name))

    def render(self) -> list[Any]:
        """Draw the state of every env by the class's `render`."""
        self._stop_moving()
        spec = self.spec
        if not self._renders:
            return [None] * self._count
        draw: Any = inspect.getattr_static(spec.cls, "render").__func__
        states = Records(self.columns.arrays["states"].view(spec.declared).copy())
        frames = []
        for env in range(self._count):
            own = dict(zip(spec.parameters, self.columns.parameters[env].tolist(), strict=True))
            known = {"state": states[env], "config": SimpleNamespace(**spec.constants, **own)}
            frames.append(draw(**{name: known[name] for name in arguments_of(draw)}))
        return frames

    # -- snapshots -------------------------------------------------------------------------------------

    @property
    def _saved_columns(self) -> tuple[str, ...]:
        finals = ("finals",) if self.step_verb == STEP_SAME else ()
        infos = () if self.info_arrays is None else ("infos",)  # of blocks that are done and not received
        return ("states", "rngs", "elapsed", "finished", *finals, *infos)

    def snapshot(self) -> Any:
        """Copy the memory of all envs."""
        return {
            **self.snapshot_some(np.arange(self._count)),
            "done": list(self._done),
            "verbs": list(self._verbs),
        }

    def snapshot_some(self, envs: NDArray[np.int64]) -> dict[str, Any]:
        """Copy the memory of these envs."""
        self._stop_moving()
        return {
            **{name: self.columns.arrays[name][envs] for name in self._saved_columns},
            "parameters": self.columns.parameters[envs],
            "seeds": [self.seeds[env] for env in envs.tolist()],
        }

    def restore(self, state: Any) -> None:
        """Drop the blocks that were submitted, and copy the memory of all envs back."""
        self.check_owner()
        self._drop()
        self.restore_some(np.arange(self._count), state)
        self._done, self._verbs = list(state["done"]), list(state["verbs"])

    def restore_some(self, envs: NDArray[np.int64], state: Any) -> None:
        """Copy the memory of these envs back."""
        self._stop_moving()
        for name in self._saved_columns:
            self.columns.arrays[name][envs] = state[name]
        self.columns.parameters[envs] = state["parameters"]
        for env, seed in zip(envs.tolist(), state["seeds"], strict=True):
            self.seeds[env] = seed

    def kind(self) -> dict[str, Any]:
        """Return the properties on which the memory of an env depends, and the split into blocks."""
        kind = {
            "env": self.spec.cls.__qualname__,
            "state": self.spec.state,
            "constants": text_of(self.spec.constants),
            "infos": self.info_arrays is not None,
        }
        if not self._at_once:
            kind[SPLIT] = f"{len(self.blocks)} blocks of {self.blocks[0].num_envs}"
        return kind

    # -- life ------------------------------------------------------------------------------------------

    def close(self) -> list[Exception]:
        """End the threads, and drop the memory of the envs."""
        runner = vars(self).get("loop") or vars(self).get("_queue")  # None if close() was called before
        while runner is not None and not self._debug and os.getpid() == self._owner:
            try:
                runner.close()
            except RuntimeError:  # another thread is in the middle of a step, which ends by itself
                time.sleep(0.0005)
            else:
                break
        for name in ("fast_step", "info_arrays", "loop", "_queue", "_replay", "_arena", "columns"):
            vars(self).pop(name, None)
        return []

    def counts(self) -> dict[str, Any]:
        """Return the number of threads, or that the envs run uncompiled, and whether indices are checked."""
        how = {"debug": True} if self._debug else {"num_workers": self._threads}
        return {**how, **({"check": True} if self._check else {})}
