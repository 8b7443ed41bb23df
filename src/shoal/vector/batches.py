"""Batches: choose the blocks that an asynchronous vec returns next, and make the views of their rows.

    held by the caller --(send)--> sent to the engine --(receive)--> held by the caller

The order "fifo" returns blocks in the order in which they were sent. This is a fixed cycle, so runs can be
reproduced. The order "ready" returns the blocks that are done first; done blocks wait in a queue.

Adjoining blocks are a slice of the arena, which the caller sees without a copy. The rows of other blocks are
gathered into a separate arena, and the actions for them are scattered back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ArgumentError, NothingPending
from shoal.rows.arena import Arena
from shoal.vector.batch_view import BatchView
from shoal.vector.engine import BlockRange, Engine

MOST_SLICES = 64  # the number of views of adjoining blocks that are kept; "ready" may need many


class Batches:
    """The blocks of an asynchronous vec.

    Args:
        all_rows: The view of all rows of the vec.
        blocks: The blocks of the vec, all of one size.
        per_batch: The number of blocks in a batch.
        order: The order in which blocks are returned: "fifo" or "ready".

    Attributes:
        per_batch: The number of blocks in a batch.
        order: The order in which blocks are returned: "fifo" or "ready".
        block_size: The number of envs in a block.
        sent: The blocks that the engine has, in the order in which they were sent.
        held: The batches that the caller holds, as lists of blocks, in the order in which they were received.
        last: The view that was received last, if none of its blocks has been sent since. It is one of the
            views of held batches, which `refresh` updates.
        verbs: The last verb of each block: "reset" or "step".
    """

    def __init__(self, all_rows: BatchView, blocks: Sequence[BlockRange], per_batch: int, order: str) -> None:
        sizes = {block.num_envs for block in blocks}
        if len(sizes) > 1:
            raise ArgumentError(
                f"batch_size: expected creators that make equally many envs, got blocks of {sorted(sizes)}"
            )
        self.per_batch, self.order, self.block_size = per_batch, order, blocks[0].num_envs
        self.verbs = ["reset"] * len(blocks)
        self.sent: list[int] = []
        self.held: list[list[int]] = []
        self.last: BatchView | None = None
        self._all_rows, agents = all_rows, all_rows.agents
        self._rows = [np.arange(block.first_env * agents, block.last_env * agents) for block in blocks]
        self._env_ids = [rows // agents for rows in self._rows]
        self._block_of = np.repeat(np.arange(len(blocks)), self.block_size)
        # Most spaces have no objects; then copies of them are skipped.
        arena = all_rows.arena
        self._has_objects = arena.observation_objects.shape[1] > 0, arena.action_objects.shape[1] > 0
        self._slices: dict[tuple[int, int], BatchView] = {}
        self._held_views: list[BatchView] = []
        self._spare: list[BatchView] = []  # views with arenas of copies that can be used again

    # -- sending ---------------------------------------------------------------------------------------

    def to_send(self, env_ids: Any) -> BatchView:
        """Return the view of the rows that the caller gives actions for.

        Raises:
            NothingPending: If the caller holds no batch.
            ArgumentError: If `env_ids` are not those of blocks that the caller holds.
        """
        if env_ids is None:
            if not self.held:
                raise NothingPending("no batch was received and not sent: call recv() before send()", "send")
            if len(self.held) > 1:
                raise ArgumentError(
                    f"env_ids: {len(self.held)} batches were received and not sent, so say whose actions "
                    "these are: pass batch.env_ids"
                )
            return self.last or self._view_of(self.held[0])
        ids = np.asarray(env_ids)
        if self.last is not None and np.array_equal(ids, self.last.env_ids):
            return self.last
        return self._view_of(self._blocks_of(ids))

    def send(self, view: BatchView) -> None:
        """Mark the blocks of a view as sent for a step, and copy its actions to where envs read them."""
        if not isinstance(view.where, slice):
            self._all_rows.arena.actions[view.where] = view.arena.actions
            if self._has_objects[1]:
                self._all_rows.arena.action_objects[view.where] = view.arena.action_objects
        self._mark_sent(view.blocks, "step")
        if view not in self._held_views:  # it was made for this call only
            self._release(view)

    def send_reset(self, blocks: Sequence[int]) -> None:
        """Mark these blocks, which the caller held, as sent for a reset."""
        self._mark_sent(blocks, "reset")

    def restart(self) -> None:
        """Mark all blocks as sent for a reset, whether the caller held them or not."""
        self.sent, self.held = [], []
        self._mark_sent(range(len(self.verbs)), "reset")

    def _mark_sent(self, blocks: Sequence[int], verb: str) -> None:
        for block in blocks:
            self.verbs[block] = verb
        self.sent.extend(blocks)
        gone = set(blocks)
        self.held = [left for batch in self.held if (left := [b for b in batch if b not in gone])]
        held = self._blocks_held()
        for view in [view for view in self._held_views if not held.intersection(view.blocks)]:
            self._held_views.remove(view)
            self._release(view)
        if self.last is not None and not held.issuperset(self.last.blocks):
            self.last = None

    def _release(self, view: BatchView) -> None:
        """Keep a view with an arena of copies for the next batch that needs one."""
        if not isinstance(view.where, slice) and view not in self._spare:
            self._spare.append(view)

    def _blocks_held(self) -> set[int]:
        return {block for batch in self.held for block in batch}

    def _blocks_of(self, ids: NDArray[Any]) -> list[int]:
        """Return the blocks whose rows have these env ids, in the same order."""
        blocks: list[int] = []
        at, held = 0, self._blocks_held()
        while at < ids.size and ids.ndim == 1 and ids.dtype.kind in "iu":
            if not 0 <= ids[at] < len(self._block_of):
                break
            block = int(self._block_of[ids[at]])
            own = self._env_ids[block]
            if not np.array_equal(ids[at : at + len(own)], own):
                break
            if block not in held:
                raise ArgumentError(
                    "env_ids: expected envs that were received and not sent, but "
                    f"{sorted(set(own.tolist()))} were sent already, or have not been received"
                )
            held.discard(block)
            blocks.append(block)
            at += len(own)
        if not blocks or at < ids.size:
            raise ArgumentError(
                "env_ids: expected the env_ids of batches that were received and not sent, in their order, "
                f"got {np.array2string(ids, threshold=20)}"
            )
        return blocks

    def to_reset(self, chosen: NDArray[np.bool_]) -> list[int]:
        """Return the blocks of all held batches that have one of these envs.

        Each of these batches is sent, and returns, with all of its blocks.

        Raises:
            ArgumentError: If the caller does not hold one of the envs.
        """
        wanted = set(self._block_of[chosen].tolist())
        if away := wanted - self._blocks_held():
            envs = [env for env in np.flatnonzero(chosen).tolist() if self._block_of[env] in away]
            raise ArgumentError(
                f"reset_mask: expected only envs that were received and not sent, but {envs} are under way"
            )
        return [block for batch in self.held if wanted & set(batch) for block in batch]

    # -- receiving -------------------------------------------------------------------------------------

    def check_enough_sent(self) -> None:
        """Raise if fewer blocks have been sent than a batch has.

        Raises:
            NothingPending: If `recv` would wait for ever.
        """
        if len(self.sent) < self.per_batch:
            envs, wanted = len(self.sent) * self.block_size, self.per_batch * self.block_size
            first = "send actions for what was received and not sent" if self.held else "call async_reset()"
            raise NothingPending(
                f"a batch has {wanted} envs, and only {envs} are under way: {first} first", "recv"
            )

    def awaits_reset(self) -> bool:
        """Return whether a block whose last verb is a reset has not been received."""
        return any(self.verbs[block] == "reset" for block in self.sent)

    def receive(self, engine: Engine) -> BatchView:
        """Wait for the next batch, and return the view of its rows."""
        if self.order == "fifo":
            batch = self.sent[: self.per_batch]
            engine.wait_for(batch)
        else:
            batch = sorted(engine.wait_for_any(self.per_batch))  # sorted, so that more blocks adjoin
        received = set(batch)
        self.sent = [block for block in self.sent if block not in received]
        self.held.append(batch)
        self.last = self._view_of(batch)
        self._held_views.append(self.last)
        return self.last

    # -- views -----------------------------------------------------------------------------------------

    def _view_of(self, blocks: Sequence[int]) -> BatchView:
        """Return the view of the current rows of these blocks, in this order."""
        first, last = blocks[0], blocks[-1]
        if list(blocks) == list(range(first, last + 1)):
            return self._slice_of(first, last)
        rows = np.concatenate([self._rows[block] for block in blocks])
        view = next((spare for spare in self._spare if len(spare.arena) == len(rows)), None)
        if view is None:
            view = self._all_rows.like(self._all_rows.allocate(len(rows)))
        else:
            self._spare.remove(view)
        view.show(blocks, np.concatenate([self._env_ids[block] for block in blocks]))
        view.where = rows
        self._gather(view)
        return view

    def _slice_of(self, first: int, last: int) -> BatchView:
        """Return the view of adjoining blocks, which shows a slice of the arena."""
        view = self._slices.get((first, last))
        if view is None:
            if len(self._slices) == MOST_SLICES:
                self._slices.clear()
            rows = slice(int(self._rows[first][0]), int(self._rows[last][-1]) + 1)
            view = self._slices[first, last] = self._all_rows.like(
                self._all_rows.arena.rows(rows.start, rows.stop)
            )
            blocks = range(first, last + 1)
            view.show(blocks, np.concatenate([self._env_ids[block] for block in blocks]))
            view.where = rows
        return view

    def refresh(self) -> None:
        """Copy the rows of held batches again, because the arena has changed."""
        for view in self._held_views:
            self._gather(view)

    def _gather(self, view: BatchView) -> None:
        """Copy the rows of a view from the arena of the vec, unless the view is a slice of it."""
        if isinstance(view.where, slice):
            return
        for column in fields(Arena):
            if column.name not in ("actions", "observation_objects", "action_objects"):
                rows = getattr(self._all_rows.arena, column.name)
                np.take(rows, view.where, axis=0, out=getattr(view.arena, column.name), mode="clip")
        if self._has_objects[0]:
            view.arena.observation_objects[...] = self._all_rows.arena.observation_objects[view.where]

    # -- snapshots -------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of the batches for a snapshot."""
        return {
            "sent": list(self.sent),
            "held": [list(batch) for batch in self.held],
            "verbs": list(self.verbs),
            "last": None if self.last is None else list(self.last.blocks),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a `state`."""
        self.sent, self.verbs = list(state["sent"]), list(state["verbs"])
        self.held = [list(batch) for batch in state["held"]]
        self._held_views = [self._view_of(batch) for batch in self.held]
        self.last = next((view for view in self._held_views if view.blocks == state["last"]), None)

    def release(self) -> None:
        """Drop all references to the rows. A `close` that was interrupted calls this again."""
        self.last = None
        self._held_views, self._spare, self._slices = [], [], {}
        vars(self).pop("_all_rows", None)
