"""The verbs of an asynchronous pool: more envs than a batch, and no waiting for the slowest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from shoal._core.run import Infos
from shoal.batch import Batch
from shoal.buffers import Arena, count_true
from shoal.errors import ArgumentError, NothingPending, ResetNeeded, WrongMode
from shoal.vector._flow import Flow
from shoal.vector._hand import Hand
from shoal.vector._hands import Hands
from shoal.vector._plan import Plan
from shoal.vector._pool import ALL_PLAIN, first_of
from shoal.vector.base import FAILED, READY, Result
from shoal.vector.multiprocessing import Multiprocessing
from shoal.vector.statistics import Meter, report


class AsyncMultiprocessing(Multiprocessing):
    """What `Multiprocessing` makes if a batch has less than all envs, or with ``mode="async"``."""

    _reset_verb = "async_reset"
    _failed_before = "the last call failed, or was interrupted: call async_reset(), which begins anew"

    def _take_shape(self, plan: Plan, arena: Arena) -> None:
        sizes = {part.num_envs for part in self._parts}
        if len(sizes) > 1:
            raise ArgumentError(
                f"batch_size: expected creators that make equally many envs, got blocks of {sorted(sizes)}"
            )
        if self.observation_mode != "same":
            raise ArgumentError("observation_mode: an asynchronous vec has only 'same', got another")
        self._crew.reset_verb = self._reset_verb
        self._flow = Flow(len(self._parts), plan.per_batch, self._order)
        self._hands = Hands(self._whole, self._parts)
        self._verbs = ["reset"] * len(self._parts)  # that each block was last sent for
        self._hand: Hand | None = None  # what was received last, if it has not been sent
        self._held: list[Hand] = []  # all that were received, and not sent as a whole
        self._cut: list[int] = []  # bereft blocks that were sent, and are to say so
        self._meter = Meter()
        envs = plan.per_batch * self._parts[0].num_envs
        rows = envs * self.agents_per_env
        self.batch_size = envs * self._stride
        self.observation_space = batch_space(self.single_observation_space, rows)
        self.action_space = batch_space(self.single_action_space, rows)

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

    def _reset_all(
        self, chosen: NDArray[np.bool_], seeds: Sequence[int | None], options: dict[str, Any] | None
    ) -> None:
        """Whatever is where, everything begins anew."""
        self._check_owner()
        blocks = list(range(len(self._parts)))
        requests = self._reset_requests(blocks, chosen, seeds, options)
        if self._restarts is not None:
            self._restarts.begin(blocks, chosen, seeds, options)
        self._drop_what_is_under_way("async_reset")
        self._replace_the_lost()
        self._flow.restart()
        self._let_go()
        self._cut = []
        self._ask_resets(blocks, requests)

    def _blocks_to_reset(self, chosen: NDArray[np.bool_]) -> list[int]:
        """The batches in hand with these envs. They come back as a whole, as they were received."""
        wanted = set(self._hands.block_of[chosen].tolist())
        if away := wanted - self._flow.in_hand():
            envs = [env for env in np.flatnonzero(chosen).tolist() if self._hands.block_of[env] in away]
            raise ArgumentError(
                f"reset_mask: expected only envs that were received and not sent, but {envs} are under way"
            )
        return [block for hand in self._flow.hands if wanted & set(hand) for block in hand]

    def _reset_some(
        self,
        blocks: list[int],
        chosen: NDArray[np.bool_],
        seeds: Sequence[int | None],
        options: dict[str, Any] | None,
    ) -> None:
        self._check_owner()
        requests = self._reset_requests(blocks, chosen, seeds, options)
        self._crew.notice_deaths()
        self._miss_the_lost()
        if self._restarts is not None:
            self._restarts.begin(blocks, chosen, seeds, options)
        self._flow.send(blocks)
        self._let_go()
        # What was to be reset is gone: its rows say so, and wait for another reset.
        gone = self._cut_off(blocks)
        there = [
            (block, request) for block, request in zip(blocks, requests, strict=True) if block not in gone
        ]
        self._ask_resets([block for block, _ in there], [request for _, request in there])

    def _ask_resets(self, blocks: Sequence[int], requests: Sequence[bytes]) -> None:
        for block, request in zip(blocks, requests, strict=True):
            self._verbs[block] = "reset"
            self._pool.ask(block, request)
        self._unheard = True

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
        self._check_still("send")
        if self._state is not READY:
            raise ResetNeeded(self._failed_before)
        hand = self._hand_of(env_ids)
        self._meter.enter()
        acting = hand.actions.write(actions, hand.arena.mask)
        if acting < len(hand.arena) and self.autoreset_mode is AutoresetMode.DISABLED:
            self._refuse_finished(hand.arena.mask, hand.env_ids)
        self._pending = "step"
        self._move(lambda: self._begin_steps(hand), READY)
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

    def _begin_steps(self, hand: Hand) -> None:
        self._check_owner()
        self._miss_the_lost()
        if self._restarts is not None:
            self._restarts.begin(hand.blocks)
        self._hands.scatter(hand)
        self._flow.send(hand.blocks)
        gone = self._cut_off(hand.blocks)
        for block in hand.blocks:
            self._verbs[block] = "step"
        self._pool.post_steps([block for block in hand.blocks if block not in gone])
        self._unheard = True
        if hand not in self._held:  # put together only now
            self._hands.release(hand)
        self._let_go()

    def _miss_the_lost(self) -> None:
        """Who has died while nothing of its was under way: replaced, or told."""
        for worker in sorted(self._crew.lost):
            error = self._crew.loss(worker)
            if self._restarts is None:
                raise error
            self._mend(worker, error)

    def _cut_off(self, blocks: Sequence[int]) -> set[int]:
        """Those whose worker was replaced while they were in hand. `recv` will have them say so."""
        if self._restarts is None:
            return set()
        gone = self._restarts.bereft.intersection(blocks)
        for block in [block for block in blocks if block in gone]:
            self._restarts.sever(block)
            self._verbs[block] = "step"
            self._cut.append(block)
        return gone

    def _let_go(self) -> None:
        """What is not in hand any more may be used again."""
        in_hand = self._flow.in_hand()
        for hand in [hand for hand in self._held if not in_hand.intersection(hand.blocks)]:
            self._held.remove(hand)
            self._hands.release(hand)
        if self._hand is not None and not in_hand.issuperset(self._hand.blocks):
            self._hand = None

    def recv(self) -> Batch:
        """Receive a batch: the next in turn ("fifo"), or whichever envs have finished first ("ready").

        Raises:
            NothingPending: If fewer envs are under way than a batch has.
        """
        self._check_still("recv")
        if self._state is FAILED:
            raise ResetNeeded(self._failed_before)
        if len(self._flow.sent) < self._flow.per_batch:
            envs = len(self._flow.sent) * self._parts[0].num_envs
            wanted = self.batch_size // self._stride
            first = "send actions for what is in hand" if self._flow.hands else "call async_reset()"
            raise NothingPending(
                f"a batch has {wanted} envs, and only {envs} are under way: {first} first", "recv"
            )
        self._meter.enter()
        batch, episodes = self._move(self._next_batch, READY)
        self._meter.leave(len(batch.resets) - count_true(batch.resets), episodes)
        return batch

    def _next_batch(self) -> tuple[Batch, int]:
        blocks = self._arrive()
        hand, verb = self._hands.of(blocks), self._verbs[blocks[0]]
        infos, rewards, terminations, truncations, episodes = self._written(hand, self._said_by(blocks), verb)
        self._hand = hand
        self._held.append(hand)
        return hand.batch(rewards, terminations, truncations, infos), episodes

    def _said_by(self, blocks: Sequence[int]) -> Infos:
        pairs: Infos = []
        if self._pool.heard:
            size = len(self._hands.env_ids[0])
            for position, block in enumerate(blocks):
                for row, info in self._pool.heard.pop(block, ()):
                    pairs.append((position * size + row, info))
        return pairs

    def _arrive(self) -> list[int]:
        """Wait for a batch."""
        self._check_owner()
        flow = self._flow
        while True:
            self._tell_of_cuts()
            if flow.order == "fifo":
                batch = flow.next_batch()
                settled = self._await(partial(self._signals.wait_for, batch), batch)
            else:
                self._pool.miss_overdue()
                missing = max(0, flow.per_batch - len(flow.there))
                settled = self._await(partial(self._signals.wait_for_any, missing), None)
            if settled:
                break
        if flow.order == "ready":
            self._take_arrived()
        else:
            self._signals.take(flow.next_batch())
        if len(flow.sent) == flow.per_batch:
            self._unheard = False
        return flow.receive()

    def _await(self, goal: Callable[[float], int], wanted: Sequence[int] | None) -> bool:
        """Wait for a goal once; False if workers had to be replaced meanwhile."""
        with self._pool.interruption:
            came = None
            if not self._crew.lost and not self._pool.failures:
                came = goal(-1.0 if self._timeout is None else self._timeout)
            if came != ALL_PLAIN:
                self._pool.wait(goal, for_all=False, came=came, whose=wanted)
        if not self._pool.failures:
            return True
        if self._restarts is None:
            self._unheard = False
            raise first_of(self._pool.take_failures())
        worker = min(self._pool.failures)
        self._mend(worker, self._pool.failures.pop(worker))
        return False

    def _mend(self, worker: int, error: BaseException) -> None:
        """Replace a worker. What was under way says so; what is there, and has been heard, stays."""
        self._crew.kill(worker)  # so that nothing comes any more
        arrived, unheard = self._signals.arrived(), set(self._signals.speakers())
        there = {*self._flow.there, *arrived} - unheard
        lost = [
            block for block in self._flow.sent if block in self._crew.blocks[worker] and block not in there
        ]
        self._pool.drop(lost)
        self._cut = [block for block in self._cut if block not in lost]
        verbs = {block: self._verbs[block] for block in lost}
        self._pool.heard.update(self._restarts.mend(worker, error, verbs))  # type: ignore[union-attr]
        self._pool.failures.pop(worker, None)
        self._flow.arrive(lost)

    def _tell_of_cuts(self) -> None:
        while self._cut:
            block = self._cut[0]
            try:
                self._pool.heard[block] = self._restarts.cut_off(block)  # type: ignore[union-attr]
            except Exception as error:
                self._mend(self._crew.owners[block], error)
            else:
                self._cut.remove(block)
                self._flow.arrive([block])

    def _take_arrived(self) -> None:
        arrived, unheard = self._signals.arrived(), set(self._signals.speakers())
        heard = [block for block in arrived if block not in unheard]  # others have come just now
        self._flow.arrive(heard)
        self._signals.take(heard)

    # -- access to the envs ----------------------------------------------------------------------------

    def _ask(self, verb: str, question: Callable[[], Result]) -> Result:
        """As ever, once all that is under way is there. It stays to be received."""
        self._check_still(verb)
        if self._flow.sent and self._state is READY:
            self._move(self._drain, READY)
        return super()._ask(verb, question)

    def _drain(self) -> None:
        self._check_owner()
        self._tell_of_cuts()
        while not self._await(self._signals.wait, None):
            pass
        self._take_arrived()

    @property
    def mask(self) -> NDArray[np.bool_]:
        """The rows of the batch last received that need an action."""
        if self._hand is None:
            raise NothingPending("no batch is in hand: call recv() first", "mask")
        return self._hand.arena.mask.copy()

    def snapshot(self) -> dict[str, Any]:
        """All envs and rows as they are once what is under way is there; it stays to be received."""
        taken = super().snapshot()
        taken["flow"] = {
            **self._flow.state(),
            "heard": dict(self._pool.heard),
            "verbs": list(self._verbs),
            "bereft": set() if self._restarts is None else set(self._restarts.bereft),
            "hand": None if self._hand is None else list(self._hand.blocks),
        }
        return taken

    def _load(self, snapshot: dict[str, Any]) -> None:
        super()._load(snapshot)
        flow = snapshot["flow"]
        self._flow.load(flow)
        self._pool.heard = dict(flow["heard"])
        self._verbs = list(flow["verbs"])
        if self._restarts is not None:
            self._restarts.load(flow["bereft"])
        self._cut = []
        self._held = [self._hands.of(hand) for hand in flow["hands"]]
        self._hand = None if flow["hand"] is None else self._hands.of(flow["hand"])

    def _kind(self) -> dict[str, Any]:
        return {**super()._kind(), "batch size": self.batch_size, "order": self._order}

    def stats(self) -> dict[str, Any]:
        """Counts and times since the vec was made; see `shoal.vector.statistics`."""
        return report(self._meter.figures(), self._worker_figures())

    def __repr__(self) -> str:
        """Backend, env and counts."""
        sync = super().__repr__().removeprefix("Async")
        return f"{sync[:-1]}, batch_size={self.batch_size}, order={self._order!r})"


def env_ids_text(ids: NDArray[Any]) -> str:
    """An array, cut short."""
    return np.array2string(ids, threshold=20)
