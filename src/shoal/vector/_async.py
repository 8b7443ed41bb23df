"""The verbs of an asynchronous vec: more envs than a batch, and no waiting for the slowest.

A backend says how blocks of envs are moved: by `_reset_all`, `_reset_some` and `_begin_steps`, which begin
something, `_arrive`, which waits for a batch, and `_said_by`, which has the infos of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from shoal.batch import Batch
from shoal.errors import ArgumentError, NothingPending, ResetNeeded, WrongMode
from shoal.processes.placement import Part
from shoal.rows.arena import count_true
from shoal.stepping.row_slice import Infos
from shoal.vector.batch_view import Hand
from shoal.vector.batch_views import Hands
from shoal.vector.schedule import Flow
from shoal.vector.statistics import Meter
from shoal.vector.turns import verb
from shoal.vector.vec import FAILED, READY, VectorEnv


class AsyncVerbs(VectorEnv):
    """What every asynchronous vec has, wherever its envs run."""

    _reset_verb = "async_reset"
    _failed_before = "the last call failed, or was interrupted: call async_reset(), which begins anew"

    def _divide(self, parts: Sequence[Part], per_batch: int, order: str) -> None:
        """Be made of these blocks, so many of which are a batch."""
        sizes = {part.num_envs for part in parts}
        if len(sizes) > 1:
            raise ArgumentError(
                f"batch_size: expected creators that make equally many envs, got blocks of {sorted(sizes)}"
            )
        if self.observation_mode != "same":
            raise ArgumentError("observation_mode: an asynchronous vec has only 'same', got another")
        self._block_size, self._order = parts[0].num_envs, order
        self._flow = Flow(len(parts), per_batch, order)
        self._hands = Hands(self._whole, parts)
        self._verbs = ["reset"] * len(parts)  # that each block was last sent for
        self._hand: Hand | None = None  # what was received last, if it has not been sent
        self._held: list[Hand] = []  # all that were received, and not sent as a whole
        self._meter = Meter()
        envs = per_batch * self._block_size
        rows = envs * self.agents_per_env
        self.batch_size = envs * self._stride
        self.observation_space = batch_space(self.single_observation_space, rows)
        self.action_space = batch_space(self.single_action_space, rows)

    # -- what a backend provides -----------------------------------------------------------------------

    def _reset_all(
        self, chosen: NDArray[np.bool_], seeds: Sequence[int | None], options: dict[str, Any] | None
    ) -> None:
        raise NotImplementedError

    def _reset_some(
        self,
        blocks: list[int],
        chosen: NDArray[np.bool_],
        seeds: Sequence[int | None],
        options: dict[str, Any] | None,
    ) -> None:
        raise NotImplementedError

    def _begin_steps(self, hand: Hand) -> None:
        raise NotImplementedError

    def _arrive(self) -> list[int]:
        raise NotImplementedError

    def _said_by(self, blocks: Sequence[int]) -> Infos:
        raise NotImplementedError

    # -- Gymnasium's verbs -----------------------------------------------------------------------------

    def reset(self, **_: Any) -> NoReturn:
        """Not here: `async_reset` begins, and `recv` gives a batch.

        Raises:
            WrongMode: Always.
        """
        self._check_open()
        raise WrongMode("this vec is asynchronous: call async_reset(), then recv(), instead of reset()")

    def step(self, actions: Any) -> NoReturn:
        """Not here: `send` and `recv` are its halves.

        Raises:
            WrongMode: Always.
        """
        self._check_open()
        raise WrongMode("this vec is asynchronous: call send(), then recv(), instead of step()")

    # -- Shoal's verbs ---------------------------------------------------------------------------------

    def _launch_reset(
        self, chosen: NDArray[np.bool_], seeds: Sequence[int | None], options: dict[str, Any] | None
    ) -> None:
        if chosen.all():
            self._move(lambda: self._reset_all(chosen, seeds, options), READY)
        else:
            blocks = self._blocks_to_reset(chosen)
            self._move(lambda: self._reset_some(blocks, chosen, seeds, options), READY)

    def _blocks_to_reset(self, chosen: NDArray[np.bool_]) -> list[int]:
        """The batches in hand with these envs. They come back as a whole, as they were received."""
        wanted = set(self._hands.block_of[chosen].tolist())
        if away := wanted - self._flow.in_hand():
            envs = [env for env in np.flatnonzero(chosen).tolist() if self._hands.block_of[env] in away]
            raise ArgumentError(
                f"reset_mask: expected only envs that were received and not sent, but {envs} are under way"
            )
        return [block for hand in self._flow.hands if wanted & set(hand) for block in hand]

    @verb
    def send(self, actions: Any, env_ids: NDArray[np.int64] | None = None) -> None:
        """Begin a step of the envs that were received.

        Args:
            actions: One for each row, in the order of the batch.
            env_ids: Whose they are: ``batch.env_ids`` of a batch that has been received and not sent, or of
                several, joined. Needed if several batches are in hand.

        Raises:
            ActionError: If an action does not fit; no env has moved.
            NothingPending: If no batch is in hand.
            EpisodeOver: Under DISABLED, if an env's episode is over; no env has moved.
        """
        self._send(actions, env_ids)

    def _send(self, actions: Any, env_ids: NDArray[np.int64] | None) -> None:
        if self._state is not READY:
            raise ResetNeeded(self._failed_before)
        hand = self._hand_of(env_ids)
        self._meter.enter()
        acting = hand.actions.write(actions, hand.arena.mask)
        if acting < len(hand.arena) and self.autoreset_mode is AutoresetMode.DISABLED:
            self._refuse_finished(hand.arena.mask, hand.env_ids)
        self._pending = "step"
        self._state = FAILED  # as long as they move
        self._begin_steps(hand)
        self._state = READY
        self._meter.leave()

    def _hand_of(self, env_ids: NDArray[np.int64] | None) -> Hand:
        if env_ids is None:
            if not self._flow.hands:
                raise NothingPending("no batch is in hand: call recv() before send()", "send")
            if len(self._flow.hands) > 1:
                raise ArgumentError(
                    f"env_ids: {len(self._flow.hands)} batches are in hand, so say whose actions these are: "
                    "pass batch.env_ids"
                )
            return self._hand or self._hands.of(self._flow.hands[0])
        ids = np.asarray(env_ids)
        if self._hand is not None and np.array_equal(ids, self._hand.env_ids):
            return self._hand
        return self._hands.of(self._blocks_of(ids))

    def _blocks_of(self, ids: NDArray[Any]) -> list[int]:
        """The blocks whose rows these are, one after another."""
        blocks: list[int] = []
        at, in_hand = 0, self._flow.in_hand()
        while at < ids.size and ids.ndim == 1 and ids.dtype.kind in "iu":
            if not 0 <= ids[at] < self._total_envs:
                break
            block = int(self._hands.block_of[ids[at]])
            rows = self._hands.env_ids[block]
            if not np.array_equal(ids[at : at + len(rows)], rows):
                break
            if block not in in_hand:
                raise ArgumentError(
                    f"env_ids: envs {sorted(set(rows.tolist()))} are not in hand: they were sent already, or "
                    "have not been received"
                )
            in_hand.discard(block)
            blocks.append(block)
            at += len(rows)
        if not blocks or at < ids.size:
            raise ArgumentError(
                "env_ids: expected the env_ids of batches that were received and not sent, in their order, "
                f"got {env_ids_text(ids)}"
            )
        return blocks

    def _let_go(self) -> None:
        """What is not in hand any more may be used again."""
        in_hand = self._flow.in_hand()
        for hand in [hand for hand in self._held if not in_hand.intersection(hand.blocks)]:
            self._held.remove(hand)
            self._hands.release(hand)
        if self._hand is not None and not in_hand.issuperset(self._hand.blocks):
            self._hand = None

    @verb
    def recv(self) -> Batch:
        """Receive a batch: the next in turn ("fifo"), or whichever envs have finished first ("ready").

        Raises:
            NothingPending: If fewer envs are under way than a batch has.
        """
        if self._state is FAILED:
            raise ResetNeeded(self._failed_before)
        if len(self._flow.sent) < self._flow.per_batch:
            envs = len(self._flow.sent) * self._block_size
            wanted = self.batch_size // self._stride
            first = "send actions for what is in hand" if self._flow.hands else "call async_reset()"
            raise NothingPending(
                f"a batch has {wanted} envs, and only {envs} are under way: {first} first", "recv"
            )
        self._meter.enter()
        self._state = FAILED  # until the batch is complete
        batch, episodes = self._next_batch()
        self._state = READY
        self._meter.leave(len(batch.resets) - count_true(batch.resets), episodes)
        return batch

    def _next_batch(self) -> tuple[Batch, int]:
        blocks = self._arrive()
        hand, verb = self._hands.of(blocks), self._verbs[blocks[0]]
        infos, rewards, terminations, truncations, episodes = self._written(hand, self._said_by(blocks), verb)
        self._hand = hand
        self._held.append(hand)
        return hand.batch(rewards, terminations, truncations, infos), episodes

    # -- the rest --------------------------------------------------------------------------------------

    @property
    def mask(self) -> NDArray[np.bool_]:
        """The rows of the batch last received that need an action."""
        if self._hand is None:
            raise NothingPending("no batch is in hand: call recv() first", "mask")
        return self._hand.arena.mask.copy()

    def _snapshot(self) -> dict[str, Any]:
        """All envs and rows as they are once what is under way is there; it stays to be received."""
        taken = super()._snapshot()
        taken["flow"] = {
            **self._flow.state(),
            "verbs": list(self._verbs),
            "hand": None if self._hand is None else list(self._hand.blocks),
        }
        return taken

    def _load(self, snapshot: dict[str, Any]) -> None:
        super()._load(snapshot)
        flow = snapshot["flow"]
        self._flow.load(flow)
        self._verbs = list(flow["verbs"])
        self._held = [self._hands.of(hand) for hand in flow["hands"]]
        self._hand = None if flow["hand"] is None else self._hands.of(flow["hand"])

    def _kind(self) -> dict[str, Any]:
        return {**super()._kind(), "batch size": self.batch_size, "order": self._order}

    def _counts(self) -> dict[str, Any]:
        return {**super()._counts(), "batch_size": self.batch_size, "order": self._order}


def env_ids_text(ids: NDArray[Any]) -> str:
    """An array, cut short."""
    return np.array2string(ids, threshold=20)
