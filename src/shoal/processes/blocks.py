"""Blocks: the states of the blocks of a process engine, as the parent knows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum


class BlockState(Enum):
    """The state of a block."""

    HELD = "held"  # the caller has its rows
    CALLED = "called"  # its worker has been called, and has not answered
    DONE = "done"  # its rows are complete; the caller has not received them yet
    ORPHANED = "orphaned"  # HELD, and its worker has been replaced in the meantime
    CUT_OFF = "cut off"  # it was ORPHANED and the caller has sent it; its rows are reported as truncated


class Blocks:
    """The states of all blocks.

        call      HELD -> CALLED; ORPHANED -> CUT_OFF
        settle    CALLED, CUT_OFF -> DONE; HELD -> DONE if a snapshot is restored
        receive   DONE -> HELD; CALLED -> HELD if the answer is taken from the handshake; ORPHANED instead of
                  HELD if the worker was replaced since the call
        orphan    HELD -> ORPHANED; CALLED (and answered) and DONE stay, and are ORPHANED when received
        restart   any state -> CALLED for the given blocks, HELD for all others

    The handshake knows whether a block is CALLED, DONE or HELD, so that a step needs no Python code for each
    block (signals.hpp). So `called` is used only if the vec restarts workers, and a block is in `done` only
    after its answer was taken from the handshake.

    Attributes:
        called: The blocks that are CALLED, or DONE in the handshake only.
        done: The blocks that are DONE, in the order of their answers.
        orphaned: The blocks that are ORPHANED now, or will be when they are received.
        cut_off: The blocks that are CUT_OFF, in the order in which the caller sent them.
    """

    def __init__(self) -> None:
        self.called: set[int] = set()
        self.done: list[int] = []
        self.orphaned: set[int] = set()
        self.cut_off: list[int] = []

    def state(self, block: int) -> BlockState:
        """Return the state of a block. This is exact only if the vec restarts workers."""
        if block in self.cut_off:
            return BlockState.CUT_OFF
        if block in self.done:
            return BlockState.DONE
        if block in self.called:
            return BlockState.CALLED
        return BlockState.ORPHANED if block in self.orphaned else BlockState.HELD

    def call(self, blocks: Sequence[int]) -> set[int]:
        """Set blocks to CALLED, but ORPHANED blocks to CUT_OFF.

        Returns:
            The blocks that are CUT_OFF now. Their worker must not be called.
        """
        cut = self.orphaned.intersection(blocks)
        self.orphaned -= cut
        self.cut_off += [block for block in blocks if block in cut]
        self.called.update(block for block in blocks if block not in cut)
        return cut

    def orphan(self, blocks: Iterable[int]) -> None:
        """Note that the worker of these blocks has been replaced: HELD blocks are ORPHANED now."""
        self.orphaned.update(blocks)

    def settle(self, blocks: Sequence[int]) -> None:
        """Set these blocks to DONE, because their rows are complete."""
        self.called.difference_update(blocks)
        self.cut_off = [block for block in self.cut_off if block not in blocks]
        self.done += blocks

    def receive(self, blocks: Sequence[int]) -> None:
        """Set these blocks to HELD, because the caller receives their rows."""
        if self.called:
            self.called.difference_update(blocks)
        if self.done:
            self.done = [block for block in self.done if block not in blocks]

    def restart(self, blocks: Iterable[int]) -> None:
        """Set these blocks to CALLED and all others to HELD, whatever their states."""
        self.called, self.done, self.orphaned, self.cut_off = set(blocks), [], set(), []
