"""The blocks of a process pool that are not simply called and answered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum


class BlockState(Enum):
    """The state of a block, as the parent knows it."""

    HELD = "held"  # its rows are the caller's
    CALLED = "called"  # its worker has been called, and has not answered
    DONE = "done"  # its rows are complete, and wait to be received
    ORPHANED = "orphaned"  # held, and its worker has been replaced meanwhile
    CUT_OFF = "cut off"  # orphaned, and sent: its rows are to say that the episode was cut off


class Blocks:
    """The states of all blocks.

        HELD --(call)--> CALLED --(an answer, or the report of a restart)--> DONE --(receive)--> HELD
        HELD --(orphan)--> ORPHANED --(call)--> CUT_OFF --(settle)--> DONE
        any state --(restart)--> CALLED

    The handshake itself tells CALLED, DONE and HELD apart, without a call of Python for each step
    (signals.hpp). So `called` is kept only in a pool that restarts workers, and a block is in `done` only
    after its answer was taken from the handshake.

    Attributes:
        called: Blocks that are CALLED, or DONE in the handshake only.
        done: Blocks that are DONE, in the order in which they were done.
        orphaned: Blocks that are ORPHANED.
        cut_off: Blocks that are CUT_OFF, in the order in which they were sent.
    """

    def __init__(self) -> None:
        self.called: set[int] = set()
        self.done: list[int] = []
        self.orphaned: set[int] = set()
        self.cut_off: list[int] = []

    def state(self, block: int) -> BlockState:
        """Return the state of a block, in a pool that restarts workers."""
        if block in self.cut_off:
            return BlockState.CUT_OFF
        if block in self.done:
            return BlockState.DONE
        if block in self.orphaned:
            return BlockState.ORPHANED
        return BlockState.CALLED if block in self.called else BlockState.HELD

    def call(self, blocks: Sequence[int]) -> set[int]:
        """Let blocks leave the caller. Return the orphaned ones: they are CUT_OFF now, and not called."""
        cut = self.orphaned.intersection(blocks)
        self.orphaned -= cut
        self.cut_off += [block for block in blocks if block in cut]
        self.called.update(block for block in blocks if block not in cut)
        return cut

    def orphan(self, blocks: Iterable[int]) -> None:
        """Note that the worker of these HELD blocks has been replaced."""
        self.orphaned.update(blocks)

    def settle(self, blocks: Sequence[int]) -> None:
        """Note that the rows of these blocks are complete."""
        self.called.difference_update(blocks)
        self.cut_off = [block for block in self.cut_off if block not in blocks]
        self.done += blocks

    def receive(self, blocks: Sequence[int]) -> None:
        """Give the rows of these blocks to the caller."""
        if self.called:
            self.called.difference_update(blocks)
        if self.done:
            self.done = [block for block in self.done if block not in blocks]

    def restart(self, blocks: Iterable[int]) -> None:
        """Note that all blocks are called anew, wherever they were."""
        self.called, self.done, self.orphaned, self.cut_off = set(blocks), [], set(), []
