"""Flow: where each block of an asynchronous vec is, and which of them make the next batch.

    in hand --(send)--> under way --(answered)--> there --(recv)--> in hand

"fifo" returns blocks in the order in which they were sent: a fixed cycle, and the same run each time. "ready"
returns those that were answered first; since they queue, none waits longer than until all that were answered
before it have been received.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


class Flow:
    """The bookkeeping of blocks.

    Args:
        num_blocks: Of the vec.
        per_batch: Blocks in a batch.
        order: "fifo" or "ready".

    Attributes:
        sent: Under way or there, in the order in which they were sent.
        there: Of those, the ones whose answer has been taken from the handshake, in the order of the answers.
        hands: Batches received and not sent, the last one last; as blocks.
    """

    def __init__(self, num_blocks: int, per_batch: int, order: str) -> None:
        self.num_blocks, self.per_batch, self.order = num_blocks, per_batch, order
        self.sent: list[int] = []
        self.there: list[int] = []
        self.hands: list[list[int]] = []

    def restart(self) -> None:
        """Everything has been sent anew."""
        self.sent = list(range(self.num_blocks))
        self.there, self.hands = [], []

    def send(self, blocks: Sequence[int]) -> None:
        """These leave the caller's hands."""
        self.sent.extend(blocks)
        gone = set(blocks)
        self.hands = [left for hand in self.hands if (left := [b for b in hand if b not in gone])]

    def arrive(self, blocks: Iterable[int]) -> None:
        """These are there."""
        self.there.extend(blocks)

    def next_batch(self) -> list[int]:
        """The blocks to wait for under "fifo"."""
        return self.sent[: self.per_batch]

    def receive(self) -> list[int]:
        """The next batch, which is there: the caller's from now on. By rows, so that blocks adjoin."""
        batch = self.next_batch() if self.order == "fifo" else self.there[: self.per_batch]
        taken = set(batch)
        self.sent = [block for block in self.sent if block not in taken]
        self.there = [block for block in self.there if block not in taken]
        if self.order == "ready":
            batch.sort()
        self.hands.append(batch)
        return batch

    def in_hand(self) -> set[int]:
        """Blocks that wait for actions."""
        return {block for hand in self.hands for block in hand}

    def state(self) -> dict[str, Any]:
        """For a snapshot."""
        return {"sent": list(self.sent), "there": list(self.there), "hands": [list(h) for h in self.hands]}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a snapshot."""
        self.sent, self.there = list(state["sent"]), list(state["there"])
        self.hands = [list(hand) for hand in state["hands"]]
