"""The states of blocks as one table, and a model that follows it: what tests hold `Blocks` to."""

from shoal.processes.blocks import BlockState

HELD, CALLED, DONE = BlockState.HELD, BlockState.CALLED, BlockState.DONE
ORPHANED, CUT_OFF = BlockState.ORPHANED, BlockState.CUT_OFF

BLOCK_TABLE = {
    "call": {HELD: CALLED, ORPHANED: CUT_OFF},
    "settle": {CALLED: DONE, CUT_OFF: DONE, HELD: DONE},  # HELD: a snapshot in which it was DONE is restored
    "receive": {CALLED: HELD, DONE: HELD},  # ORPHANED, if its worker was replaced since it was called
    "orphan": {HELD: ORPHANED, ORPHANED: ORPHANED, CALLED: CALLED, DONE: DONE},
    "restart": dict.fromkeys(BlockState, HELD),  # CALLED, if the block is among those that are called anew
}


class BlockModel:
    """The states of some blocks, as the table has them.

    Args:
        count: The number of blocks.

    Attributes:
        states: The state of each block.
        seen: The pairs of an event and the state in which it met a block.
    """

    def __init__(self, count):
        self.states = dict.fromkeys(range(count), HELD)
        self.seen = set()
        self._replaced = set()  # blocks whose worker was replaced since they were called

    def do(self, event, blocks):
        """Change the states of blocks. Every event must be in the table.

        Args:
            event: The name of a method of `Blocks`.
            blocks: Its argument.
        """
        for block in self.states if event == "restart" else blocks:
            before = self.states[block]
            assert before in BLOCK_TABLE[event], f"block {block} is {before}, and meets {event}"
            self.seen.add((event, before))
            after = BLOCK_TABLE[event][before]
            if event == "orphan":
                self._replaced.add(block)
            elif event == "receive" and block in self._replaced:
                after = ORPHANED
            elif event == "restart":
                self._replaced.discard(block)
                after = CALLED if block in blocks else HELD
            elif event == "call":
                self._replaced.discard(block)
            self.states[block] = after

    def of(self, *states):
        """Return the blocks in these states."""
        return [block for block, state in self.states.items() if state in states]
