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
from shoal.vector._bounds import warn_if_outside
from shoal.vector._flow import Flow
from shoal.vector._hands import Hand, Hands
from shoal.vector._plan import Plan
from shoal.vector._pool import ALL_PLAIN, STEP, first_of
from shoal.vector.base import FAILED, FAILED_BEFORE, READY, Result
from shoal.vector.infos import merge_infos
from shoal.vector.multiprocessing import Multiprocessing
from shoal.vector.statistics import Meter, report


class AsyncMultiprocessing(Multiprocessing):
    """What `Multiprocessing` makes if a batch has less than all envs, or with ``mode="async"``."""

    def _take_shape(self, plan: Plan, arena: Arena) -> None:
        sizes = {part.num_envs for part in self._parts}
        if len(sizes) > 1:
            raise ArgumentError(
                f"batch_size: expected creators that make equally many envs, got blocks of {sorted(sizes)}"
            )
        if self.observation_mode != "same":
            raise ArgumentError("observation_mode: an asynchronous vec has only 'same', got another")
        self.order = self._order
        self._flow = Flow(len(self._parts), plan.per_batch, self._order)
        self._hands = Hands(
            arena,
            self._parts,
            self.observation_layout,
            self.action_layout,
            self.agents_per_env,
            flat=self.flat,
            copy=self.copy,
        )
        self._verbs = ["reset"] * len(self._parts)  # that each block was last sent for
        self._hand: Hand | None = None  # what was received last, if it has not been sent
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
        """Begin a reset of everything, or of batches that are in hand."""
        blocks = list(range(len(self._parts))) if chosen.all() else self._blocks_to_reset(chosen)
        self._move(lambda: self._begin_resets(blocks, chosen, seeds, options), READY)

    def _blocks_to_reset(self, chosen: NDArray[np.bool_]) -> list[int]:
        wanted = set(self._hands.block_of[chosen].tolist())
        if away := wanted - self._flow.in_hand():
            envs = [env for env in np.flatnonzero(chosen).tolist() if self._hands.block_of[env] in away]
            raise ArgumentError(
                f"reset_mask: expected only envs that were received and not sent, but {envs} are under way"
            )
        # A batch comes back as a whole, as it was received.
        return [block for hand in self._flow.hands if wanted & set(hand) for block in hand]

    def _begin_resets(
        self,
        blocks: list[int],
        chosen: NDArray[np.bool_],
        seeds: Sequence[int | None],
        options: dict[str, Any] | None,
    ) -> None:
        self._check_owner()
        whole = len(blocks) == len(self._parts)
        bereft = set() if self._restarts is None or whole else self._restarts.bereft & set(blocks)
        for block in bereft:  # a new worker has them, and they know nothing of an episode
            chosen[self._parts[block].envs] = True
        parts = [self._parts[block] for block in blocks]
        requests = self._pool.requests(
            "reset", [(chosen[part.envs], list(seeds[part.envs]), options) for part in parts]
        )
        if self._restarts is not None:
            self._restarts.begin(blocks, chosen, seeds, options)
        if whole:
            self._drop_what_is_under_way()
            self._flow.restart()
        else:
            self._pool.refuse_if_lost()
            self._flow.send(blocks)
        self._hand = None
        for block, request in zip(blocks, requests, strict=True):
            self._verbs[block] = "reset"
            self._pool.ask(block, request)
        for block in bereft:
            self._restarts.bereft.discard(block)  # type: ignore[union-attr]
        self._unheard = True

    def send(self, actions: Any, env_ids: NDArray[np.int64] | None = None) -> None:
        """Begin a step of the envs that were received.

        Args:
            actions: One for each row, in the order of the batch.
            env_ids: Whose they are: ``batch.env_ids`` of a batch that has been received and not sent, or of
                several, joined. By default that of the batch last received.

        Raises:
            ActionError: If an action does not fit; no env has moved.
            NothingPending: If no batch is in hand.
            EpisodeOver: Under DISABLED, if an env's episode is over; no env has moved.
        """
        self._check_still("send")
        if self._state is not READY:
            raise ResetNeeded(FAILED_BEFORE)
        hand = self._hand_of(env_ids)
        self._meter.enter()
        acting = hand.actions.write(actions, hand.arena.mask)
        if acting < len(hand.arena) and self.autoreset_mode is AutoresetMode.DISABLED:
            self._refuse_finished(hand.arena.mask, hand.env_ids)
        self._pending = "step"
        self._move(lambda: self._begin_steps(hand), READY)
        self._meter.leave()

    def _hand_of(self, env_ids: NDArray[np.int64] | None) -> Hand:
        if env_ids is None or (self._hand is not None and env_ids is self._hand.env_ids):
            if self._hand is None:
                raise NothingPending("no batch is in hand: call recv() before send()", "send")
            return self._hand
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
        bereft: set[int] = set()
        if self._restarts is None:
            self._pool.refuse_if_lost()
        else:
            self._restarts.begin(hand.blocks)
            bereft = self._restarts.bereft.intersection(hand.blocks)
        self._hands.scatter(hand)
        self._flow.send(hand.blocks)
        for block in hand.blocks:
            self._verbs[block] = "step"
        if self._hand is not None and not self._flow.in_hand().issuperset(self._hand.blocks):
            self._hands.release(self._hand)
            self._hand = None
        self._hands.release(hand)
        self._signals.post([block for block in hand.blocks if block not in bereft], STEP)
        for block in sorted(bereft):  # their envs are gone: what they report is that
            self._pool.heard[block] = self._restarts.cut_off(block)  # type: ignore[union-attr]
            self._flow.arrive([block])
        self._unheard = True

    def recv(self) -> Batch:
        """Receive a batch: the next in turn ("fifo"), or whichever envs have finished first ("ready").

        Raises:
            NothingPending: If fewer envs are under way than a batch has.
        """
        self._check_still("recv")
        if self._state is FAILED:
            raise ResetNeeded(FAILED_BEFORE)
        if len(self._flow.sent) < self._flow.per_batch:
            envs = len(self._flow.sent) * self._parts[0].num_envs
            wanted = self.batch_size // self._stride
            first = "send actions for what is in hand" if self._flow.hands else "call async_reset()"
            raise NothingPending(
                f"a batch has {wanted} envs, and only {envs} are under way: {first} first", "recv"
            )
        self._meter.enter()
        blocks = self._move(self._arrive, READY)
        hand = self._hand = self._hands.of(blocks)
        pairs = self._said_by(blocks)
        verb = self._verbs[blocks[0]]
        if verb in self._unchecked:
            self._unchecked.discard(verb)
            if warn_if_outside(self.observation_layout, hand.columns, hand.arena.mask, hand.env_ids, verb):
                self._unchecked.clear()
        infos = merge_infos(pairs, len(hand.arena)) if pairs else {}
        rewards, terminations, truncations, episodes = hand.transitions.take()
        if self._clock is not None:
            self._clock.add_to(infos, hand.arena, self.autoreset_mode, episodes, hand.where)
        resets = hand.arena.resets.copy()
        batch = Batch(
            hand.observe(),
            rewards,
            terminations,
            truncations,
            hand.arena.mask.copy(),
            resets,
            hand.env_ids.copy(),
            hand.agent_ids.copy(),
            infos,
        )
        self._meter.leave(len(resets) - count_true(resets), episodes)
        return batch

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
        flow = self._flow
        while True:
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
        try:
            came = None
            if not self._pool.lost and not self._pool.failures:
                came = goal(-1.0 if self._timeout is None else self._timeout)
            if came != ALL_PLAIN:
                self._pool.wait(goal, for_all=False, came=came, whose=wanted)
        except Exception:
            raise
        except BaseException:
            self._pool.interrupted = True
            raise
        failures = self._pool.failures
        if not failures:
            return True
        if self._restarts is None:
            self._unheard = False
            raise first_of(self._pool.take_failures())
        worker = min(failures)
        self._mend(worker, failures.pop(worker))
        return False

    def _mend(self, worker: int, error: BaseException) -> None:
        there = {*self._flow.there, *self._signals.arrived()}
        lost = [
            block for block in self._flow.sent if block in self._pool.blocks[worker] and block not in there
        ]
        verbs = {block: self._verbs[block] for block in lost}
        self._pool.heard.update(self._restarts.mend(worker, error, verbs))  # type: ignore[union-attr]
        self._flow.arrive(lost)

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

    def restore(self, snapshot: Any) -> None:
        """Go back to a snapshot of this vec, or of one made the same way."""
        super().restore(snapshot)
        flow = snapshot["flow"]
        self._flow.load(flow)
        self._pool.heard = dict(flow["heard"])
        self._verbs = list(flow["verbs"])
        if self._restarts is not None:
            self._restarts.bereft = set(flow["bereft"])
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
