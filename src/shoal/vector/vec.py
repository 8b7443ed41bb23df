"""VectorEnv: the object a user holds, with all verbs, for every engine.

    env.step -(pack)-> row -(signal)-> parent -(view)-> Batch.obs -(unpack)-> policy -(store)-> ...
      worker           arena            recv()          flat rows             tensors

This file is the parent's side of that path: the verbs, their order, their arguments and their results. The
engine runs the envs (`engine.py`). A batch of a synchronous vec has all blocks. A batch of an asynchronous
vec has some blocks, which `Batches` chooses (`batches.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np
from gymnasium import Space
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from shoal.batch import Batch
from shoal.errors import (
    AlreadyPending,
    ArgumentError,
    ArgumentTypeError,
    EpisodeOver,
    NothingPending,
    ResetNeeded,
    SnapshotError,
    WrongMode,
)
from shoal.rows.arena import Arena, count_true
from shoal.stepping.row_slice import Infos
from shoal.vector.batch_view import BatchView
from shoal.vector.batches import Batches
from shoal.vector.batching import Batching
from shoal.vector.engine import Engine, Reset
from shoal.vector.infos import merge_infos, split_infos
from shoal.vector.life import Life
from shoal.vector.options import VecOptions, reset_mask_of, seeds_of
from shoal.vector.per_agent import find_root, interleave, take_agent
from shoal.vector.spaces import VecSpaces, batch, same_space
from shoal.vector.statistics import EpisodeClock, Meter, report
from shoal.vector.turns import holds_turn, verb

Result = TypeVar("Result")


class State(Enum):
    """The state of a vec between its verbs. Only the verb that has the turn changes it."""

    READY = "ready"
    PENDING = "pending"  # a synchronous vec has sent and not received
    FAILED = "failed"  # envs move; or an env raised or Ctrl-C came, so that rows are of different steps


# The members are names of the module, because a lookup in an Enum takes longer than a step of a small env.
READY, PENDING, FAILED = State


class VectorEnv(Life):
    """Many envs as one: Gymnasium's vector contract, and the verbs ``async_reset``, ``recv`` and ``send``.

    Args:
        spaces: The spaces and properties that all envs share.
        arena: The rows of all envs.
        engine: The engine that runs the envs.
        options: The options that every backend has.
        batching: The size and order of batches.

    Attributes:
        num_envs: The number of envs; with ``rows_as_envs``, the number of rows.
        num_rows: The number of rows, one for each agent of each env.
        agents_per_env: The number of rows of an env.
        agents: The names of the agents of an env, in the order of their rows.
        batch_size: The number of envs in a batch.
        single_observation_space: The observation space of one row.
        observation_space: The observation space of a batch.
        single_action_space: The action space of one row.
        action_space: The action space of a batch.
        observation_layout: The layout of the observations, which `unpack` needs.
        action_layout: The layout of the actions.
        autoreset_mode: When a finished env is reset.
        metadata: The metadata of the first env, with ``autoreset_mode``.
        env_name: The name that was passed to `shoal.make`; empty if the vec was made another way.
        chosen_because: The reason why `shoal.make` chose this backend; empty if the user chose it.
    """

    env_name = ""
    chosen_because = ""
    _kind_hints: ClassVar[Mapping[str, str]] = {}  # what to do if a property of a snapshot differs

    def __init__(
        self, spaces: VecSpaces, arena: Arena, engine: Engine, options: VecOptions, batching: Batching
    ) -> None:
        self._arena, self._engine = arena, engine
        self._total_envs = spaces.num_envs
        self.agents, self.agents_per_env = spaces.agents, len(spaces.agents)
        self.num_rows = self._total_envs * self.agents_per_env
        self.num_envs = self.num_rows if options.rows_as_envs else self._total_envs
        # With rows_as_envs the caller gives a value for each agent of an env; only the first agent's is used.
        self._stride = self.num_envs // self._total_envs
        self.copy, self.flat, self.rows_as_envs = options.copy, options.flat, options.rows_as_envs
        self.autoreset_mode, self.observation_mode = options.autoreset_mode, options.observation_mode
        self.metadata = {**spaces.metadata, "autoreset_mode": options.autoreset_mode}
        self.render_mode = spaces.render_mode
        self.observation_layout, self.action_layout = spaces.observation, spaces.action
        self._all_rows = BatchView(
            arena,
            spaces.observation,
            spaces.action,
            self.agents_per_env,
            flat=options.flat,
            copy=options.copy,
        )
        self._mask, self._observe, self._transitions = (
            arena.mask,
            self._all_rows.observe,
            self._all_rows.transitions,
        )
        self._all_rows.blocks = list(range(len(engine.blocks)))
        self._set_spaces(spaces)
        self._batches: Batches | None = None  # None: a batch is all blocks
        if batching.order is not None:
            self._make_asynchronous(batching)

        self._next_seed: int | Sequence[int | None] | None = None
        self._seed_under_way = False  # whether a reset that has not been received uses `_next_seed`
        # The verbs whose first observations are still to be checked; none if each env has its own bounds.
        self._unchecked = {"reset", "step"} if options.observation_mode == "same" else set()
        self._never_reset = np.ones(self._total_envs, np.bool_)
        self._clock = EpisodeClock(self.num_rows, self.agents_per_env) if options.episode_stats else None
        self._early_infos: Infos | None = None  # the infos of a step that is over before it is received
        if (seed := options.seed) is not None:
            if not isinstance(seed, (int, np.integer)):
                raise ArgumentTypeError(f"seed: expected an integer, got {seed!r}; reset() takes lists")
            self.seed(seed)
            self.action_space.seed(int(seed))
        self._needs_first_reset = engine.needs_first_reset
        self._info_arrays = engine.info_arrays
        self._step_all = engine.step_all  # looked up once, because a small vec steps in two microseconds
        self._fast_step: Callable[[Any], Any] | None = None  # one call of the core per step; see `Native`
        self._state = READY
        super().__init__(engine)  # last, because a vec whose constructor raises has nothing to close

    def _set_spaces(self, spaces: VecSpaces) -> None:
        self.batch_size = self.num_envs
        self.single_action_space: Space[Any] = self._all_rows.actions.single_space
        self.action_space: Space[Any] = batch(self.single_action_space, self.num_rows)
        self.single_observation_space: Space[Any] = spaces.single_observation_space
        self.observation_space: Space[Any] = spaces.batched_observation_space
        if self.flat:
            self.single_observation_space = self.observation_layout.flat_space
            self.observation_space = spaces.flat_observation_space

    def _make_asynchronous(self, batching: Batching) -> None:
        """Split the vec into batches that have some of the blocks."""
        if self.observation_mode != "same":
            raise ArgumentError("observation_mode: an asynchronous vec has only 'same', got another")
        blocks = self._engine.blocks
        per_batch, rest = divmod(batching.batch_size * len(blocks), len(batching.creators))
        if rest or per_batch == 0:
            raise ArgumentError(
                f"batch_size: expected a multiple of a block's envs, with {len(batching.creators)} envs in "
                f"{len(blocks)} blocks, got {batching.batch_size}"
            )
        self._batches = Batches(self._all_rows, blocks, per_batch, str(batching.order))
        self._meter = Meter()
        envs = per_batch * self._batches.block_size
        self.batch_size = envs * self._stride
        self.observation_space = batch_space(self.single_observation_space, envs * self.agents_per_env)
        self.action_space = batch_space(self.single_action_space, envs * self.agents_per_env)

    @property
    def is_async(self) -> bool:
        """Whether the vec is asynchronous: `recv` and `send` instead of `step`."""
        return self._batches is not None

    @property
    def _reset_verb(self) -> str:
        """The name of the verb that resets all envs, for messages."""
        return "reset" if self._batches is None else "async_reset"

    def _failure(self) -> ResetNeeded:
        """Make the error of a verb that is called after a failure, before the next reset."""
        return ResetNeeded(
            "in the last call an env raised, a worker was lost, or Ctrl-C came, so the rows are not of one "
            "moment: "
            f"call {self._reset_verb}() first"
        )

    # -- Gymnasium's verbs -----------------------------------------------------------------------------

    @verb
    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all envs, or those of ``options["reset_mask"]``.

        Args:
            seed: ``n`` gives env i the seed ``n + i``. A list gives each env its own seed. With None, every
                env continues its random stream.
            options: The options for `reset` of each env, which gets them without ``reset_mask``. The dict is
                not changed.

        Returns:
            Observations and infos.

        Raises:
            WrongMode: If the vec is asynchronous.
        """
        if self._batches is not None:
            raise WrongMode("this vec is asynchronous: call async_reset(), then recv(), instead of reset()")
        self._begin_reset(seed, options)
        infos, *_ = self._receive_all()
        self._forget_seed()
        return self._observe(), infos

    @holds_turn
    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step every env with its action.

        Args:
            actions: One action for each row, in the form of ``action_space``. The actions of rows whose env
                is about to be autoreset are not read.

        Returns:
            Observations, rewards, terminations, truncations and infos.

        Raises:
            ActionError: If an action does not fit; no env has moved.
            EpisodeOver: Under DISABLED, if an env's episode is over; no env has moved.
            WrongMode: If the vec is asynchronous.
        """
        taken = True
        try:  # the same as `verb` does, without another call
            taken, self._turn_taken = self._turn_taken, True
            if taken or self._closed:
                raise self._refusal("step")
            fast = self._fast_step
            result = fast(actions) if fast is not None and self._state is READY else None
            if result is None:
                self._send_all(actions)
                infos, rewards, terminations, truncations, _ = self._receive_all()
                result = self._observe(), rewards, terminations, truncations, infos
            elif result is False:
                self._state = FAILED
                raise self._engine.fast_step_error()
            self._turn_taken = False
        except BaseException as error:
            if not taken:
                self._end_turn(error)
            raise
        if self._closed:
            self._end_turn()  # type: ignore[unreachable]  # closed meanwhile
        return result

    # -- Shoal's verbs ---------------------------------------------------------------------------------

    @verb
    def async_reset(
        self,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        """Begin to reset envs as `reset` does; `recv` returns the rows. Drop the steps that are under way.

        An asynchronous vec can reset some envs only if they were received and not sent.
        """
        self._begin_reset(seed, options)

    @verb
    def send(self, actions: Any, env_ids: NDArray[np.int64] | None = None) -> None:
        """Begin a step of the envs that were received.

        Args:
            actions: One action for each row, in the order of the batch.
            env_ids: The env of each row: ``batch.env_ids`` of one batch, or of several batches joined, that
                were received and not sent. An asynchronous vec needs this if the caller holds several
                batches.

        Raises:
            ActionError: If an action does not fit; no env has moved.
            NothingPending: If the caller holds no batch.
            EpisodeOver: Under DISABLED, if an env's episode is over; no env has moved.
        """
        if self._batches is not None:
            self._send_some(self._batches, actions, env_ids)
            return
        if env_ids is not None and not np.array_equal(env_ids, self._all_rows.env_ids):
            raise ArgumentError(
                f"env_ids: expected those of the batch last received, {self._all_rows.env_ids}, got {env_ids}"
            )
        self._send_all(actions)
        self._transitions.pause()

    @verb
    def recv(self) -> Batch:
        """Wait for the envs that `send` or `async_reset` moved, and return their rows as a batch.

        An asynchronous vec returns the batch that was sent first ("fifo") or the envs that finished first
        ("ready").

        Raises:
            NothingPending: If fewer envs are under way than a batch has.
        """
        return self._recv(None)

    @verb
    def recv_apart(self) -> tuple[Batch, Infos]:
        """Receive a batch as `recv` does, and return the infos of the envs beside it, as pairs (row, info).

        This is for callers that need the info of each env: to merge infos into arrays and split the arrays
        again can take longer than a step. ``batch.infos`` has only ``episode``, with ``episode_stats``.
        """
        separate: Infos = []
        return self._recv(separate), separate

    def _recv(self, separate: Infos | None) -> Batch:
        """Receive a batch. Append the infos of the envs to `separate`, or merge them if it is None."""
        if self._state is FAILED:
            raise self._failure()
        if self._batches is not None:
            return self._receive_some(self._batches, separate)
        if self._state is not PENDING:
            problem = "nothing is under way: call async_reset() or send() before recv()"
            raise NothingPending(problem, "recv")
        self._transitions.resume()
        infos, rewards, terminations, truncations, _ = self._receive_all(separate)
        if self._seed_under_way:
            self._forget_seed()
        return self._all_rows.batch(rewards, terminations, truncations, infos)

    def seed(self, seed: int | Sequence[int | None]) -> None:
        """Seed the next reset, unless that gets a seed of its own. If it fails, seed the one after it."""
        self._seeds(seed)
        self._next_seed, self._seed_under_way = seed, False

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Whether each row needs an action now; an asynchronous vec has the rows of the last batch."""
        if self._batches is None:
            return self._arena.mask.copy()
        if self._batches.last is None:
            raise NothingPending("no batch was received and not sent: call recv() first", "mask")
        return self._batches.last.mask.copy()

    def stats(self) -> dict[str, Any]:
        """Return counts and times since the vec was made; see `shoal.vector.statistics.report`."""
        figures = self._transitions.figures() if self._batches is None else self._meter.figures()
        return report(figures, self._engine.figures())

    # -- moving the envs -------------------------------------------------------------------------------

    def _begin_reset(self, seed: int | Sequence[int | None] | None, options: dict[str, Any] | None) -> None:
        chosen, rest = reset_mask_of(options, self.num_envs, self._stride)
        if self._state is FAILED and not chosen.all():
            raise self._failure()
        if (self._never_reset & ~chosen).any():
            raise ArgumentError(
                "reset_mask: some envs have never been reset, so they have no observation yet; "
                "reset all of them first"
            )
        # The seed of a reset that failed, or that was never received, is used again. A READY vec is
        # asynchronous here, and the caller may have received a part of the last reset.
        planned = None if self._seed_under_way and self._state is READY else self._next_seed
        reset = Reset(chosen, self._seeds(planned if seed is None else seed), rest)
        self._engine.check(reset)
        blocks: Sequence[int] = range(len(self._engine.blocks))
        next_state = PENDING
        if self._batches is not None:
            next_state = READY
            if not reset.is_whole:
                blocks = self._batches.to_reset(chosen)
        self._pending, self._early_infos, whole = "reset", None, reset.is_whole
        self._next_seed, self._seed_under_way = planned, False
        self._transitions.drop()
        self._state = FAILED  # until the reset has begun
        self._engine.begin_reset(blocks, reset)
        if self._batches is not None and whole:
            self._batches.restart()
        elif self._batches is not None:
            self._batches.send_reset(blocks)
        self._state = next_state
        self._seed_under_way = True
        self._never_reset &= ~chosen
        if self._clock is not None:
            self._clock.restart(np.repeat(chosen, self.agents_per_env))
        self._enable_fast_step()

    def _send_all(self, actions: Any) -> None:
        if self._batches is not None:
            raise WrongMode("this vec is asynchronous: call send(), then recv(), instead of step()")
        if self._state is not READY:
            self._check_idle("the next step() or send")
            raise self._failure()
        if self._needs_first_reset:
            self._refuse_never_reset()
        acting = self._all_rows.actions.write(actions, self._mask)
        if acting < self.num_rows and self.autoreset_mode is AutoresetMode.DISABLED:
            self._refuse_finished(self._all_rows)
        self._transitions.begin(acting)
        self._pending = "step"
        self._state = FAILED  # as long as envs move
        self._early_infos = self._step_all()
        self._state = PENDING

    def _receive_all(
        self, separate: Infos | None = None
    ) -> tuple[dict[str, Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], int]:
        """Wait for all blocks; return what `_results` returns of them."""
        infos = self._early_infos
        if infos is None:
            self._state = FAILED  # as long as envs move
            self._engine.wait_for(self._all_rows.blocks)
            infos = self._engine.take_infos(self._all_rows.blocks)
        self._early_infos, self._state = None, READY
        return self._results(self._all_rows, infos, self._pending, separate)

    def _send_some(self, batches: Batches, actions: Any, env_ids: NDArray[np.int64] | None) -> None:
        if self._state is not READY:
            raise self._failure()
        view = batches.to_send(env_ids)
        if self._needs_first_reset:
            self._refuse_never_reset()
        self._meter.enter()
        acting = view.actions.write(actions, view.mask)
        if acting < len(view.arena) and self.autoreset_mode is AutoresetMode.DISABLED:
            self._refuse_finished(view)
        self._pending = "step"
        self._state = FAILED  # until the engine has all blocks
        blocks = view.blocks
        batches.send(view)
        self._engine.begin_steps(blocks)
        self._state = READY
        self._meter.leave()

    def _receive_some(self, batches: Batches, separate: Infos | None) -> Batch:
        batches.check_enough_sent()
        self._meter.enter()
        self._state = FAILED  # until the batch is complete
        view = batches.receive(self._engine)
        of_envs = self._engine.take_infos(view.blocks)
        self._state = READY
        if self._seed_under_way and not batches.awaits_reset():
            self._forget_seed()
        verb = batches.verbs[view.blocks[0]]
        infos, rewards, terminations, truncations, episodes = self._results(view, of_envs, verb, separate)
        received = view.batch(rewards, terminations, truncations, infos)
        self._meter.leave(len(received.resets) - count_true(received.resets), episodes)
        return received

    def _results(
        self, view: BatchView, of_envs: Infos, verb: str, separate: Infos | None
    ) -> tuple[dict[str, Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], int]:
        """Return the infos, copies of the rewards and flags, and the number of episodes that ended."""
        if verb in self._unchecked:  # the first batch of each verb
            self._unchecked.discard(verb)
            if view.warn_if_outside(verb):
                self._unchecked.clear()
            self._enable_fast_step()
        if separate is None:
            infos = merge_infos(of_envs, len(view.arena)) if of_envs else {}
        else:
            infos = {}
            separate += of_envs
        if self._info_arrays is not None:
            arrays = self._info_arrays(view.blocks)
            if separate is None:
                infos |= arrays
            else:
                separate += split_infos(arrays, len(view.arena))
        rewards, terminations, truncations, episodes = view.transitions.take()
        if self._clock is not None:
            self._clock.add_to(infos, view.arena, self.autoreset_mode, episodes, view.where)
        return infos, rewards, terminations, truncations, episodes

    def _forget_seed(self) -> None:
        """Drop the planned seed, if the reset that has been received used it."""
        if self._seed_under_way:
            self._next_seed, self._seed_under_way = None, False

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None or isinstance(seed, (int, np.integer)):
            return seeds_of(seed, self._total_envs)
        return seeds_of(seed, self.num_envs)[:: self._stride]

    def _refuse_never_reset(self) -> None:
        if self._never_reset.any():
            raise ResetNeeded(
                f"compiled envs have no state before their first reset: call {self._reset_verb}() first"
            )

    def _refuse_finished(self, view: BatchView) -> None:
        alive = view.mask.reshape(-1, self.agents_per_env).any(1)
        if not alive.all():
            finished = view.env_ids[:: self.agents_per_env][~alive].tolist()
            raise EpisodeOver(
                f"envs {finished} have finished and autoreset is DISABLED: reset them first, by "
                f'{self._reset_verb}(options={{"reset_mask": mask}}) with their entries of mask set. '
                "No env has moved."
            )

    # -- rows and agents -------------------------------------------------------------------------------

    def by_agent(self, rows: Any) -> dict[Any, Any]:
        """Split values for rows into values for agents.

        Args:
            rows: Arrays with an entry for each row of all envs or of a batch, or dicts and tuples of such
                arrays.

        Returns:
            A view for each agent, with one entry per env.

        Example:
            >>> import shoal
            >>> vec = shoal.make("shoal/Foragers-v0", 3, env_kwargs={"num_agents": 2}, backend="serial")
            >>> obs, infos = vec.reset(seed=0)
            >>> {agent: len(seen) for agent, seen in vec.by_agent(obs).items()}
            {'agent_0': 3, 'agent_1': 3}
        """
        node, count = find_root(rows, self.observation_layout, self.action_layout), len(self.agents)
        return {agent: take_agent(rows, index, count, node) for index, agent in enumerate(self.agents)}

    def from_agents(self, values: Mapping[Any, Any]) -> Any:
        """Join values for agents into values for rows, which `step` and `send` accept.

        Raises:
            ArgumentError: If an agent is missing, or unknown.
        """
        if set(values) != set(self.agents):
            raise ArgumentError(f"expected a value for each of {self.agents}, got {tuple(values)}")
        parts = [values[agent] for agent in self.agents]
        return interleave(parts, find_root(parts[0], self.action_layout, self.observation_layout))

    # -- access to the envs ----------------------------------------------------------------------------

    @verb
    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every env, or read an attribute; return one result per env."""
        return self._repeat(self._ask_engine("call", lambda: self._engine.call(name, args, kwargs)))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of every env; it may be an attribute of a wrapper."""
        return self.call(name)

    @verb
    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every env. A list or tuple gives each env its own value."""
        self._check_idle("set_attr")
        if not isinstance(values, (list, tuple)):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ArgumentError(f"values: expected one for each of {self.num_envs} envs, got {len(values)}")
        self._ask_engine("set_attr", lambda: self._engine.set_attr(name, values[:: self._stride]))

    @verb
    def render(self) -> tuple[Any, ...]:
        """Return the frames of all envs."""
        return self._repeat(self._ask_engine("render", self._engine.render))

    def _repeat(self, results: list[Any]) -> tuple[Any, ...]:
        """Return the result of each env once, or with ``rows_as_envs`` once for each of its rows."""
        return tuple(result for result in results for _ in range(self._stride))

    def _ask_engine(self, verb: str, question: Callable[[], Result]) -> Result:
        """Let the engine use the envs between two steps. An error of an env does not make the vec fail."""
        self._check_idle(verb)
        self._finish_moving()
        before, self._state, self._pending = self._state, FAILED, verb
        try:
            result = question()
        except Exception:  # not Ctrl-C: after it, some envs may have been reached and others not
            self._state = before
            raise
        self._state = before
        return result

    def _finish_moving(self) -> None:
        """Wait for all blocks of an asynchronous vec that are under way. `recv` still returns them later."""
        if self._batches is not None and self._batches.sent and self._state is READY:
            self._state = FAILED
            self._engine.finish()
            self._state = READY

    @property
    def np_random_seed(self) -> Any:
        """The seed of every env's random stream."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]  # read-only, as in SyncVectorEnv, because each env has its own stream
    def np_random(self) -> Any:
        """The random stream of every env."""
        return self.get_attr("np_random")

    @property
    def needs_whole_reset(self) -> bool:
        """Whether the next reset must include all envs: before the first reset, and after a failure."""
        return self._state is not READY or bool(self._never_reset.any())

    # -- snapshots -------------------------------------------------------------------------------------

    @verb
    def snapshot(self) -> dict[str, Any]:
        """Return the state of all envs and rows in a form that can be pickled.

        An asynchronous vec waits for the blocks that are under way; `recv` still returns them later. The
        random stream of ``action_space`` is not in the snapshot.

        Raises:
            SnapshotError: If an env cannot be pickled.
        """
        return self._snapshot()

    def _snapshot(self) -> dict[str, Any]:
        self._check_idle("snapshot")
        if self._state is FAILED:
            raise self._failure()
        return {
            "kind": self._kind(),
            "envs": self._ask_engine("snapshot", self._engine.snapshot),
            "arena": self._arena.state(),
            "never_reset": self._never_reset.copy(),
            "next_seed": None if self._seed_under_way else self._next_seed,
            "clock": None if self._clock is None else self._clock.state(),
            "batches": None if self._batches is None else self._batches.state(),
        }

    @verb
    def restore(self, snapshot: Any) -> None:
        """Go back to a snapshot of this vec, or of a vec that was made with the same arguments.

        Raises:
            SnapshotError: If the snapshot is of a different kind of vec.
        """
        self._restore(snapshot)

    def _restore(self, snapshot: Any) -> None:
        if not isinstance(snapshot, dict) or "kind" not in snapshot:
            raise SnapshotError("expected what snapshot() returned, got something else")
        self._check_kind(snapshot, self._kind(), "a vec", self._kind_hints)
        self._pending, self._early_infos = "restore", None
        self._transitions.drop()
        self._state = FAILED  # until the restore is complete
        self._engine.restore(snapshot["envs"])
        self._arena.load(snapshot["arena"])
        self._never_reset[:] = snapshot["never_reset"]
        self._next_seed, self._seed_under_way = snapshot["next_seed"], False
        if self._clock is not None and snapshot["clock"] is not None:
            self._clock.load(snapshot["clock"])
        if self._batches is not None:
            self._batches.load(snapshot["batches"])
        self._state = READY
        self._step_all = self._engine.step_all  # a restored block has a new one
        self._enable_fast_step()

    def _kind(self) -> dict[str, Any]:
        """Return the properties in which a snapshot and the vec that restores it must agree."""
        return {
            "backend": type(self).__name__,
            "number of rows": self.num_rows,
            "autoreset_mode": self.autoreset_mode,
            "observation space": self.observation_layout.space,
            "action space": self.action_layout.space,
            "batch size": self.batch_size,
            "order": None if self._batches is None else self._batches.order,
            **self._engine.kind(),
        }

    def _check_kind(
        self, snapshot: dict[str, Any], expected: dict[str, Any], of: str, hints: Mapping[str, str]
    ) -> None:
        """Raise if a snapshot differs from `expected`, which `_kind` made.

        Args:
            snapshot: The snapshot.
            expected: The properties that the snapshot must have.
            of: What the snapshot is of, for messages.
            hints: What to do if a property differs, by its name.
        """
        for name, ours in expected.items():
            theirs = snapshot["kind"].get(name)
            if not same_space(theirs, ours):
                raise SnapshotError(
                    f"the snapshot is of {of} with another {name}: {theirs}, not {ours}{hints.get(name, '')}"
                )

    # -- inside ----------------------------------------------------------------------------------------

    def _release_arena(self) -> None:
        """Drop all references to the rows. Views that the user holds keep the memory alive."""
        if "_all_rows" not in self.__dict__:  # an earlier close() was interrupted after it had done this
            return
        self.stats = partial(dict, self.stats())  # type: ignore[method-assign]
        if self._batches is not None:
            self._batches.release()
        empty = Arena.allocate(0, self.observation_layout, self.action_layout)
        self._arena = replace(empty, mask=self._arena.mask.copy())
        self._fast_step = None
        for name in ("_mask", "_observe", "_transitions", "_step_all", "_all_rows"):
            self.__dict__.pop(name, None)

    def _enable_fast_step(self) -> None:
        """Enable the fast path if its conditions hold."""
        ready = not self._unchecked and not self._never_reset.any() and self._clock is None
        self._fast_step = self._engine.fast_step if ready else None

    def _verb_under_way(self) -> str:
        # The fast path leaves `_state` and `_pending` as they are.
        return "step" if self._fast_step is not None and self._state is READY else self._pending

    def _check_idle(self, verb: str) -> None:
        if self._state is PENDING:
            problem = f"a {self._pending} is under way: call recv() before {verb}()"
            raise AlreadyPending(problem, self._pending)

    def __repr__(self) -> str:
        """Return the backend, the env and the counts, and why ``backend="auto"`` chose the backend."""
        known = self.env_name or ("" if self.spec is None else self.spec.id)
        parts = [known, *(f"{name}={value!r}" for name, value in self._counts().items())]
        parts.append(f"auto: {self.chosen_because}" if self.chosen_because else "")
        return f"{type(self).__name__}({', '.join(filter(None, parts))})"

    def _counts(self) -> dict[str, Any]:
        """Return the counts that `repr` shows, by the names of the arguments."""
        agents = {} if self.agents_per_env == 1 else {"agents_per_env": self.agents_per_env}
        batch = {}
        if self._batches is not None:
            batch = {"batch_size": self.batch_size, "order": self._batches.order}
        return {"num_envs": self.num_envs, **agents, **self._engine.counts(), **batch}
