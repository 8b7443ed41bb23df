"""Batches: which blocks an asynchronous vec hands out next, and the views of their rows.

    held --(send)--> sent --(done, and its turn)--> received: held again

"fifo" hands out blocks in the order in which they were sent: a fixed cycle, and the same run each time.
"ready" hands out those that were done first. Done blocks queue, so a block waits only for those before it.

Blocks that adjoin are a slice of the arena, which the caller sees without a copy. Other blocks are gathered
into an arena of their own, and the actions given for them are scattered back.
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

MOST_SLICES = 64  # views of adjoining blocks that are kept; "fifo" has few, "ready" may have many


class Batches:
    """The blocks of an asynchronous vec.

    Args:
        whole: The view of all rows of the vec.
        blocks: The blocks of the vec, all of one size.
        per_batch: The number of blocks in a batch.
        order: "fifo" or "ready".

    Attributes:
        per_batch: The number of blocks in a batch.
        order: "fifo" or "ready".
        block_size: The number of envs in a block.
        sent: The blocks that the engine has, in the order in which they were sent.
        held: The batches that the caller has, as blocks, the last one last.
        last: The view that was received last, if none of its blocks has been sent since.
        verbs: The verb that each block was last sent for.
    """

    def __init__(self, whole: BatchView, blocks: Sequence[BlockRange], per_batch: int, order: str) -> None:
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
        self._whole, agents = whole, whole.agents
        self._rows = [np.arange(block.first_env * agents, block.last_env * agents) for block in blocks]
        self._env_ids = [rows // agents for rows in self._rows]
        self._block_of = np.repeat(np.arange(len(blocks)), self.block_size)
        # Most spaces have no objects.
        arena = whole.arena
        self._has_objects = arena.observation_objects.shape[1] > 0, arena.action_objects.shape[1] > 0
        self._slices: dict[tuple[int, int], BatchView] = {}
        self._held_views: list[BatchView] = []
        self._spare: list[BatchView] = []  # arenas of copies that can be used again

    # -- sending ---------------------------------------------------------------------------------------

    def to_send(self, env_ids: Any) -> BatchView:
        """Find the rows that the caller gives actions for.

        Raises:
            NothingPending: If the caller holds no batch.
            ArgumentError: If `env_ids` are not those of blocks that the caller holds.
        """
        if env_ids is None:
            if not self.held:
                raise NothingPending("no batch is in hand: call recv() before send()", "send")
            if len(self.held) > 1:
                raise ArgumentError(
                    f"env_ids: {len(self.held)} batches are in hand, so say whose actions these are: "
                    "pass batch.env_ids"
                )
            return self.last or self._view_of(self.held[0])
        ids = np.asarray(env_ids)
        if self.last is not None and np.array_equal(ids, self.last.env_ids):
            return self.last
        return self._view_of(self._blocks_of(ids))

    def send(self, view: BatchView) -> None:
        """Note that the blocks of a view are sent for a step, and put its actions where envs read them."""
        if not isinstance(view.where, slice):
            self._whole.arena.actions[view.where] = view.arena.actions
            if self._has_objects[1]:
                self._whole.arena.action_objects[view.where] = view.arena.action_objects
        self._leave(view.blocks, "step")
        if view not in self._held_views:  # it was put together for this call only
            self._release(view)

    def send_reset(self, blocks: Sequence[int]) -> None:
        """Note that these blocks, which the caller held, have been sent for a reset."""
        self._leave(blocks, "reset")

    def restart(self) -> None:
        """Note that all blocks have been sent for a reset, wherever they were."""
        self.sent, self.held = [], []
        self._leave(range(len(self.verbs)), "reset")

    def _leave(self, blocks: Sequence[int], verb: str) -> None:
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
        """Keep an arena of copies for the next batch that needs one."""
        if not isinstance(view.where, slice) and view not in self._spare:
            self._spare.append(view)

    def _blocks_held(self) -> set[int]:
        return {block for batch in self.held for block in batch}

    def _blocks_of(self, ids: NDArray[Any]) -> list[int]:
        """Find the blocks whose rows have these env ids, one block after another."""
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
                    f"env_ids: envs {sorted(set(own.tolist()))} are not in hand: they were sent already, or "
                    "have not been received"
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
        """Find the held batches with these envs. Each batch is reset, and comes back, as a whole.

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
            NothingPending: With what to do first.
        """
        if len(self.sent) < self.per_batch:
            envs, wanted = len(self.sent) * self.block_size, self.per_batch * self.block_size
            first = "send actions for what is in hand" if self.held else "call async_reset()"
            raise NothingPending(
                f"a batch has {wanted} envs, and only {envs} are under way: {first} first", "recv"
            )

    def receive(self, engine: Engine) -> BatchView:
        """Wait for the next batch, and return the view of its rows."""
        if self.order == "fifo":
            batch = self.sent[: self.per_batch]
            engine.wait_for(batch)
        else:
            batch = sorted(engine.wait_for_any(self.per_batch))  # in the order of rows, so that blocks adjoin
        taken = set(batch)
        self.sent = [block for block in self.sent if block not in taken]
        self.held.append(batch)
        self.last = self._view_of(batch)
        self._held_views.append(self.last)
        return self.last

    # -- views -----------------------------------------------------------------------------------------

    def _view_of(self, blocks: Sequence[int]) -> BatchView:
        """Make the view of these blocks, in this order, with their rows as they are now."""
        first, last = blocks[0], blocks[-1]
        if list(blocks) == list(range(first, last + 1)):
            return self._slice_of(first, last)
        rows = np.concatenate([self._rows[block] for block in blocks])
        view = next((spare for spare in self._spare if len(spare.arena) == len(rows)), None)
        if view is None:
            view = self._whole.like(self._whole.allocate(len(rows)))
        else:
            self._spare.remove(view)
        view.show(blocks, np.concatenate([self._env_ids[block] for block in blocks]))
        view.where = rows
        self._gather(view)
        return view

    def _slice_of(self, first: int, last: int) -> BatchView:
        view = self._slices.get((first, last))
        if view is None:
            if len(self._slices) == MOST_SLICES:
                self._slices.clear()
            rows = slice(int(self._rows[first][0]), int(self._rows[last][-1]) + 1)
            view = self._slices[first, last] = self._whole.like(self._whole.arena.rows(rows.start, rows.stop))
            blocks = range(first, last + 1)
            view.show(blocks, np.concatenate([self._env_ids[block] for block in blocks]))
            view.where = rows
        return view

    def refresh(self) -> None:
        """Copy the rows of the held batches again, because they have changed."""
        for view in self._held_views:
            self._gather(view)

    def _gather(self, view: BatchView) -> None:
        if isinstance(view.where, slice):
            return
        for column in fields(Arena):
            if column.name not in ("actions", "observation_objects", "action_objects"):
                whole = getattr(self._whole.arena, column.name)
                np.take(whole, view.where, axis=0, out=getattr(view.arena, column.name), mode="clip")
        if self._has_objects[0]:
            view.arena.observation_objects[...] = self._whole.arena.observation_objects[view.where]

    # -- snapshots -------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return what a snapshot needs."""
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
        self.last = None if state["last"] is None else self._view_of(state["last"])

    def release(self) -> None:
        """Drop all references to the rows."""
        self.last = None
        self._held_views, self._spare, self._slices = [], [], {}
        del self._whole
