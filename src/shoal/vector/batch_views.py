"""Hands: the rows of some blocks, as the caller of an asynchronous vec gets and gives them.

Blocks that adjoin are a slice of the arena, which the caller sees without a copy. Others are gathered into an
arena of their own, and the actions given for them are scattered back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from shoal.processes.placement import Part
from shoal.rows.arena import Arena
from shoal.vector.batch_view import Hand

MOST_ADJOINING = 64  # that are kept ready; "fifo" has few, "ready" may have many


class Hands:
    """Makes hands.

    Args:
        whole: All rows of the vec.
        parts: The blocks.
    """

    def __init__(self, whole: Hand, parts: Sequence[Part]) -> None:
        self._whole, agents = whole, whole.agents
        self._rows = [np.arange(part.first_env * agents, part.last_env * agents) for part in parts]
        self.env_ids = [rows // agents for rows in self._rows]
        envs = sum(part.num_envs for part in parts)
        self.block_of = np.zeros(envs, np.int64)
        for part in parts:
            self.block_of[part.envs] = part.number
        # Objects only where there are some: most vecs have none.
        arena = whole.arena
        self._has_objects = arena.observation_objects.shape[1] > 0, arena.action_objects.shape[1] > 0
        self._adjoining: dict[tuple[int, int], Hand] = {}
        self._spare: list[Hand] = []  # to gather into

    def of(self, blocks: Sequence[int]) -> Hand:
        """The rows of these blocks, in this order, as they are now."""
        first, last = blocks[0], blocks[-1]
        if list(blocks) == list(range(first, last + 1)):
            hand = self._adjoining.get((first, last))
            if hand is None:
                if len(self._adjoining) == MOST_ADJOINING:
                    self._adjoining.clear()
                start, stop = int(self._rows[first][0]), int(self._rows[last][-1]) + 1
                hand = self._adjoining[first, last] = self._whole.like(self._whole.arena.rows(start, stop))
                self._hold(hand, blocks)
                hand.where = slice(start, stop)
            return hand
        rows = np.concatenate([self._rows[block] for block in blocks])
        for index, spare in enumerate(self._spare):
            if len(spare.arena) == len(rows):
                hand = self._spare.pop(index)
                self._hold(hand, blocks)
                break
        else:
            hand = self._whole.like(self._whole.allocate(len(rows)))
            self._hold(hand, blocks)
        hand.where = rows
        self.gather(hand)
        return hand

    def gather(self, hand: Hand) -> None:
        """Bring the rows of a hand up to date, if they are copies."""
        if isinstance(hand.where, slice):
            return
        for column in fields(Arena):
            if column.name not in ("actions", "observation_objects", "action_objects"):
                whole = getattr(self._whole.arena, column.name)
                np.take(whole, hand.where, axis=0, out=getattr(hand.arena, column.name), mode="clip")
        if self._has_objects[0]:
            hand.arena.observation_objects[...] = self._whole.arena.observation_objects[hand.where]

    def _hold(self, hand: Hand, blocks: Sequence[int]) -> None:
        hand.hold(blocks, np.concatenate([self.env_ids[block] for block in blocks]))

    def scatter(self, hand: Hand) -> None:
        """Put the actions of a hand where its envs read them."""
        if isinstance(hand.where, slice):
            return
        self._whole.arena.actions[hand.where] = hand.arena.actions
        if self._has_objects[1]:
            self._whole.arena.action_objects[hand.where] = hand.arena.action_objects

    def release(self, hand: Hand) -> None:
        """Its rows have been sent, so that its views are not valid any more."""
        if not isinstance(hand.where, slice) and hand not in self._spare:
            self._spare.append(hand)
