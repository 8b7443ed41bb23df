"""VectorEnv: what a user holds, whatever engine runs the envs.

    env.step -(pack)-> row -(signal)-> parent -(view)-> Batch.obs -(unpack)-> policy -(store)-> ...
      worker           arena            recv()          flat rows             tensors

This file is the parent's side of that path: the verbs, their order, what they accept and what they return.
Where the envs run is the engine's part (`engine.py`). A synchronous vec has all blocks in every batch. An
asynchronous one has some of them, and `Batches` says which (`batches.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any, TypeVar

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
from shoal.vector.infos import merge_infos
from shoal.vector.life import Life
from shoal.vector.options import VecOptions, reset_mask_of, seeds_of
from shoal.vector.per_agent import every, interleaved, structure_of
from shoal.vector.spaces import VecSpaces, batch, same_space
from shoal.vector.statistics import EpisodeClock, Meter, report
from shoal.vector.turns import give_back, holds_turn, verb

Result = TypeVar("Result")


class State(Enum):
    """The state of a vec between its verbs. Only the verb that has the turn changes it."""

    READY = "ready"
    PENDING = "pending"  # a synchronous vec has sent, and not received
    FAILED = "failed"  # an env raised, or Ctrl-C came: rows of different moments; also while envs move


# The members as names of the module: looking one up in its Enum takes longer than to step a small env.
READY, PENDING, FAILED = State


class VectorEnv(Life):
    """Many envs as one: Gymnasium's vector contract, and ``async_reset``/``recv``/``send`` beside it.

    Args:
        spaces: What all envs have in common.
        arena: The rows of all envs.
        engine: Where the envs run.
        options: The options that every backend has.
        batching: The size and order of batches.

    Attributes:
        num_envs: The number of simulated envs (with ``rows_as_envs``: of rows).
        num_rows: The number of rows, one for each agent of each env.
        agents_per_env: The number of rows of an env.
        agents: The names of the agents of an env, in the order of their rows.
        batch_size: The number of envs in a batch.
        single_observation_space: The observation space of one row.
        observation_space: The observation space of a batch.
        single_action_space: The action space of one row.
        action_space: The action space of a batch.
        observation_layout: The layout of the observations; what `unpack` needs.
        action_layout: The layout of the actions.
        autoreset_mode: When a finished env is reset.
        metadata: The metadata of the first env, with ``autoreset_mode``.
        env_name: The name that `shoal.make` was asked for, if it was one.
        chosen_because: Why `shoal.make` chose this backend, if it had the choice.
    """

    env_name = ""
    chosen_because = ""

    def __init__(
        self, spaces: VecSpaces, arena: Arena, engine: Engine, options: VecOptions, batching: Batching
    ) -> None:
        self._arena, self._engine = arena, engine
        self._total_envs = spaces.num_envs
        self.agents, self.agents_per_env = spaces.agents, len(spaces.agents)
        self.num_rows = self._total_envs * self.agents_per_env
        self.num_envs = self.num_rows if options.rows_as_envs else self._total_envs
        # With rows_as_envs the caller gives a value for each agent of an env; that of the first counts.
        self._stride = self.num_envs // self._total_envs
        self.copy, self.flat, self.rows_as_envs = options.copy, options.flat, options.rows_as_envs
        self.autoreset_mode, self.observation_mode = options.autoreset_mode, options.observation_mode
        self.metadata = {**spaces.metadata, "autoreset_mode": options.autoreset_mode}
        self.render_mode = spaces.render_mode
        self.observation_layout, self.action_layout = spaces.observation, spaces.action
        self._whole = BatchView(
            arena,
            spaces.observation,
            spaces.action,
            self.agents_per_env,
            flat=options.flat,
            copy=options.copy,
        )
        self._mask, self._observe, self._transitions = (
            arena.mask,
            self._whole.observe,
            self._whole.transitions,
        )
        self._whole.blocks = list(range(len(engine.blocks)))
        self._set_spaces(spaces)
        self._batches: Batches | None = None  # None: a batch is all blocks
        if batching.order is not None:
            self._make_asynchronous(batching)

        self._next_seed: int | Sequence[int | None] | None = None
        # The verbs whose first observations are still to be checked. Different spaces have different bounds.
        self._unchecked = {"reset", "step"} if options.observation_mode == "same" else set()
        self._never_reset = np.ones(self._total_envs, np.bool_)
        self._clock = EpisodeClock(self.num_rows, self.agents_per_env) if options.episode_stats else None
        self._arrived: Infos | None = None  # the infos of a step that is over before it is received
        if (seed := options.seed) is not None:
            if not isinstance(seed, (int, np.integer)):
                raise ArgumentTypeError(f"seed: expected an integer, got {seed!r}; reset() takes lists")
            self.seed(seed)
            self.action_space.seed(int(seed))
        self._needs_first_reset = engine.needs_first_reset
        self._step_all = engine.step_all  # bound once: a small vec steps in two microseconds
        self._fast_step: Callable[[Any], Any] | None = None  # steps in one call of the core; see `Native`
        self._state = READY
        super().__init__(engine)  # last: a vec that could not be made has nothing to close

    def _set_spaces(self, spaces: VecSpaces) -> None:
        self.batch_size = self.num_envs
        self.single_action_space: Space[Any] = self._whole.actions.single_space
        self.action_space: Space[Any] = batch(self.single_action_space, self.num_rows)
        self.single_observation_space: Space[Any] = spaces.single_observation_space
        self.observation_space: Space[Any] = spaces.batched_observation_space
        if self.flat:
            self.single_observation_space = self.observation_layout.flat_space
            self.observation_space = spaces.flat_observation_space

    def _make_asynchronous(self, batching: Batching) -> None:
        """Let a batch be some of the blocks."""
        if self.observation_mode != "same":
            raise ArgumentError("observation_mode: an asynchronous vec has only 'same', got another")
        blocks = self._engine.blocks
        per_batch = batching.batch_size * len(blocks) // len(batching.creators)
        self._batches = Batches(self._whole, blocks, per_batch, str(batching.order))
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
        """The verb by which everything begins anew, for messages."""
        return "reset" if self._batches is None else "async_reset"

    def _failure(self) -> ResetNeeded:
        """Make the error of a verb that needs a reset first."""
        return ResetNeeded(
            "the last call was interrupted, or an env raised in it, so the rows are not of one moment: "
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
            seed: ``n`` gives env i the seed ``n + i``; a list gives each env its own; None leaves every
                env's random stream where it is.
            options: Passed to each env without ``reset_mask``; your dict is not changed.

        Returns:
            Observations and infos.

        Raises:
            WrongMode: If the vec is asynchronous.
        """
        if self._batches is not None:
            raise WrongMode("this vec is asynchronous: call async_reset(), then recv(), instead of reset()")
        self._begin_reset(seed, options)
        infos, *_ = self._receive_all()
        return self._observe(), infos

    @holds_turn
    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step every env with its action.

        Args:
            actions: One for each row, as ``action_space`` has them. Rows whose env is about to be
                autoreset need none: what stands there is not read.

        Returns:
            Observations, rewards, terminations, truncations and infos.

        Raises:
            ActionError: If an action does not fit; no env has moved.
            EpisodeOver: Under DISABLED, if an env's episode is over; no env has moved.
            WrongMode: If the vec is asynchronous.
        """
        taken = True
        try:  # as `verb` does, without another call
            taken, self._moving = self._moving, True
            closed = self._closed
            if taken or closed:
                raise self._refusal("step")
            result = None
            if self._fast_step is not None and self._state is READY:
                result = self._fast_step(actions)
                if result is False:
                    self._state = FAILED
                    raise self._engine.fast_step_error()
            if result is None:
                self._send_all(actions)
                infos, rewards, terminations, truncations = self._receive_all()
                result = self._observe(), rewards, terminations, truncations, infos
            self._moving = False
        except BaseException as error:
            if not taken:
                give_back(self, error)
            raise
        if self._closed:
            give_back(self)
        return result

    # -- Shoal's verbs ---------------------------------------------------------------------------------

    @verb
    def async_reset(
        self,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        """Begin what `reset` does; `recv` gives the rows. What was under way before is dropped.

        An asynchronous vec can reset some envs only if they were received and not sent.
        """
        self._begin_reset(seed, options)

    @verb
    def send(self, actions: Any, env_ids: NDArray[np.int64] | None = None) -> None:
        """Begin a step of the envs that were received.

        Args:
            actions: One for each row, in the order of the batch.
            env_ids: The env of each row: ``batch.env_ids`` of a batch that has been received and not sent, or
                of several, joined. An asynchronous vec needs it if the caller has received several batches.

        Raises:
            ActionError: If an action does not fit; no env has moved.
            NothingPending: If the caller has received no batch.
            EpisodeOver: Under DISABLED, if an env's episode is over; no env has moved.
        """
        if self._batches is not None:
            self._send_some(self._batches, actions, env_ids)
            return
        if env_ids is not None and not np.array_equal(env_ids, self._whole.env_ids):
            raise ArgumentError(
                f"env_ids: expected those of the batch last received, {self._whole.env_ids}, got {env_ids}"
            )
        self._send_all(actions)
        self._transitions.pause()

    @verb
    def recv(self) -> Batch:
        """Receive the rows of what `send` or `async_reset` began.

        An asynchronous vec returns the next batch in turn ("fifo"), or envs that finished first ("ready").

        Raises:
            NothingPending: If fewer envs are under way than a batch has.
        """
        return self._recv(None)

    @verb
    def recv_apart(self) -> tuple[Batch, Infos]:
        """Receive as `recv` does. The batch has no infos of the envs: they come beside it, one by one.

        This is for callers that need the infos of each env by itself: to merge them into arrays and take
        these apart again would take longer than to step some envs.
        """
        apart: Infos = []
        return self._recv(apart), apart

    def _recv(self, apart: Infos | None) -> Batch:
        if self._state is FAILED:
            raise self._failure()
        if self._batches is not None:
            return self._receive_some(self._batches, apart)
        if self._state is not PENDING:
            problem = "nothing is under way: call async_reset() or send() before recv()"
            raise NothingPending(problem, "recv")
        self._transitions.resume()
        infos, rewards, terminations, truncations = self._receive_all(apart)
        return self._whole.batch(rewards, terminations, truncations, infos)

    def seed(self, seed: int | Sequence[int | None]) -> None:
        """Seed the next reset, unless it is given a seed of its own."""
        self._seeds(seed)
        self._next_seed = seed

    @property
    def mask(self) -> NDArray[np.bool_]:
        """The rows that need an action now. Of an asynchronous vec: those of the batch received last."""
        if self._batches is None:
            return self._arena.mask.copy()
        if self._batches.last is None:
            raise NothingPending("no batch is in hand: call recv() first", "mask")
        return self._batches.last.mask.copy()

    def stats(self) -> dict[str, Any]:
        """Counts and times since the vec was made; see `shoal.vector.statistics`."""
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
        reset = Reset(chosen, self._seeds(self._next_seed if seed is None else seed), rest)
        self._engine.check(reset)
        blocks: Sequence[int] = range(len(self._engine.blocks))
        then = PENDING
        if self._batches is not None:
            then = READY
            if not reset.is_whole:
                blocks = self._batches.to_reset(chosen)
        self._pending, self._arrived, whole = "reset", None, reset.is_whole
        self._state = FAILED  # until it has begun
        self._engine.begin_reset(blocks, reset)
        if self._batches is not None and whole:
            self._batches.restart()
        elif self._batches is not None:
            self._batches.send_reset(blocks)
        self._state = then
        self._next_seed = None
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
        acting = self._whole.actions.write(actions, self._mask)
        if acting < self.num_rows and self.autoreset_mode is AutoresetMode.DISABLED:
            self._refuse_finished(self._whole)
        self._transitions.begin(acting)
        self._pending = "step"
        self._state = FAILED  # as long as they move
        self._arrived = self._step_all()
        self._state = PENDING

    def _receive_all(
        self, apart: Infos | None = None
    ) -> tuple[dict[str, Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
        """Wait for all blocks; return infos, rewards, terminations and truncations for the caller to keep."""
        infos = self._arrived
        if infos is None:
            self._state = FAILED  # as long as they move
            self._engine.wait_for(self._whole.blocks)
            infos = self._engine.take_infos(self._whole.blocks)
        self._arrived, self._state = None, READY
        return self._written(self._whole, infos, self._pending, apart)[:4]

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
        self._state = FAILED  # as long as they move
        blocks = view.blocks
        batches.send(view)
        self._engine.begin_steps(blocks)
        self._state = READY
        self._meter.leave()

    def _receive_some(self, batches: Batches, apart: Infos | None) -> Batch:
        batches.check_enough_sent()
        self._meter.enter()
        self._state = FAILED  # until the batch is complete
        view = batches.receive(self._engine)
        said = self._engine.take_infos(view.blocks)
        verb = batches.verbs[view.blocks[0]]
        infos, rewards, terminations, truncations, episodes = self._written(view, said, verb, apart)
        self._state = READY
        received = view.batch(rewards, terminations, truncations, infos)
        self._meter.leave(len(received.resets) - count_true(received.resets), episodes)
        return received

    def _written(
        self, view: BatchView, said: Infos, verb: str, apart: Infos | None
    ) -> tuple[dict[str, Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], int]:
        """Return copies of what was written beside observations, and how many episodes ended."""
        if verb in self._unchecked:  # the first batch of each verb
            self._unchecked.discard(verb)
            if view.warn_if_outside(verb):
                self._unchecked.clear()
            self._enable_fast_step()
        if apart is None:
            infos = merge_infos(said, len(view.arena)) if said else {}
        else:
            infos = {}
            apart += said
        rewards, terminations, truncations, episodes = view.transitions.take()
        if self._clock is not None:
            self._clock.add_to(infos, view.arena, self.autoreset_mode, episodes, view.where)
        return infos, rewards, terminations, truncations, episodes

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
            rows: Arrays with an entry for each row, of all envs or of a batch; or dicts and tuples of them.

        Returns:
            For each agent, a view: one entry per env.

        Example:
            >>> import shoal
            >>> vec = shoal.make("shoal/Foragers-v0", 3, env_kwargs={"num_agents": 2}, backend="serial")
            >>> obs, infos = vec.reset(seed=0)
            >>> {agent: len(seen) for agent, seen in vec.by_agent(obs).items()}
            {'agent_0': 3, 'agent_1': 3}
        """
        node = structure_of(rows, self.observation_layout, self.action_layout)
        return {agent: every(rows, index, len(self.agents), node) for index, agent in enumerate(self.agents)}

    def from_agents(self, values: Mapping[Any, Any]) -> Any:
        """Join values for agents into values for rows, such as `step` and `send` take.

        Raises:
            ArgumentError: If an agent is missing, or unknown.
        """
        if set(values) != set(self.agents):
            raise ArgumentError(f"expected a value for each of {self.agents}, got {tuple(values)}")
        parts = [values[agent] for agent in self.agents]
        return interleaved(parts, structure_of(parts[0], self.action_layout, self.observation_layout))

    # -- access to the envs ----------------------------------------------------------------------------

    @verb
    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every env, or read an attribute; one result per env."""
        return self._per_env(self._ask("call", lambda: self._engine.call(name, args, kwargs)))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Read an attribute of every env, wrappers included."""
        return self.call(name)

    @verb
    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every env: a list or tuple gives each its own value."""
        self._check_idle("set_attr")
        if not isinstance(values, (list, tuple)):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ArgumentError(f"values: expected one for each of {self.num_envs} envs, got {len(values)}")
        self._ask("set_attr", lambda: self._engine.set_attr(name, values[:: self._stride]))

    @verb
    def render(self) -> tuple[Any, ...]:
        """Return the frames of all envs."""
        return self._per_env(self._ask("render", self._engine.render))

    def _per_env(self, results: list[Any]) -> tuple[Any, ...]:
        return tuple(result for result in results for _ in range(self._stride))

    def _ask(self, verb: str, question: Callable[[], Result]) -> Result:
        """Let the engine reach into the envs. Whatever they answer, the vec is then as it was."""
        self._check_idle(verb)
        self._finish_moving()
        before, self._state, self._pending = self._state, FAILED, verb
        try:
            result = question()
        except Exception:  # not Ctrl-C, after which it is not known which envs were reached
            self._state = before
            raise
        self._state = before
        return result

    def _finish_moving(self) -> None:
        """Wait for all blocks of an asynchronous vec that are under way. They stay to be received."""
        if self._batches is not None and self._batches.sent and self._state is READY:
            self._state = FAILED
            self._engine.finish()
            self._state = READY

    @property
    def np_random_seed(self) -> Any:
        """The seed of every env's random stream."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]  # not to be set, as in SyncVectorEnv: the streams are the envs'
    def np_random(self) -> Any:
        """Every env's random stream."""
        return self.get_attr("np_random")

    @property
    def needs_whole_reset(self) -> bool:
        """Whether the next reset must be one of all envs: before the first one, and after a failure."""
        return self._state is not READY or bool(self._never_reset.any())

    # -- snapshots -------------------------------------------------------------------------------------

    @verb
    def snapshot(self) -> dict[str, Any]:
        """Return all envs and rows as they are now, in a form that can be pickled.

        An asynchronous vec waits for what is under way; it stays to be received. The caller's own things
        are not in the snapshot: ``action_space`` keeps its random stream.

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
            "envs": self._ask("snapshot", self._engine.freeze),
            "arena": self._arena.state(),
            "never_reset": self._never_reset.copy(),
            "next_seed": self._next_seed,
            "clock": None if self._clock is None else self._clock.state(),
            "batches": None if self._batches is None else self._batches.state(),
        }

    @verb
    def restore(self, snapshot: Any) -> None:
        """Go back to a snapshot of this vec, or of one made the same way.

        Raises:
            SnapshotError: If it is of another shape.
        """
        self._restore(snapshot)

    def _restore(self, snapshot: Any) -> None:
        if not isinstance(snapshot, dict) or "kind" not in snapshot:
            raise SnapshotError("expected what snapshot() returned, got something else")
        for name, ours in self._kind().items():
            theirs = snapshot["kind"].get(name)
            if not same_space(theirs, ours):
                raise SnapshotError(f"the snapshot is of a vec with another {name}: {theirs}, not {ours}")
        self._pending, self._arrived = "restore", None
        self._state = FAILED  # until it is complete
        self._engine.thaw(snapshot["envs"])
        self._arena.load(snapshot["arena"])
        self._never_reset[:] = snapshot["never_reset"]
        self._next_seed = snapshot["next_seed"]
        if self._clock is not None and snapshot["clock"] is not None:
            self._clock.load(snapshot["clock"])
        if self._batches is not None:
            self._batches.load(snapshot["batches"])
        self._state = READY
        self._step_all = self._engine.step_all  # a restored block has another one
        self._enable_fast_step()

    def _kind(self) -> dict[str, Any]:
        """Return what a snapshot and the vec it is put into must have in common."""
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

    # -- inside ----------------------------------------------------------------------------------------

    def _release_arena(self) -> None:
        """Drop all references to the rows; views that the user holds still keep them."""
        if "_whole" not in self.__dict__:  # an earlier close() was interrupted after its last line
            return
        self.stats = partial(dict, self.stats())  # type: ignore[method-assign]
        if self._batches is not None:
            self._batches.release()
        empty = Arena.allocate(0, self.observation_layout, self.action_layout)
        self._arena = replace(empty, mask=self._arena.mask.copy())
        self._fast_step = None
        for name in ("_mask", "_observe", "_transitions", "_step_all", "_whole"):
            self.__dict__.pop(name, None)

    def _enable_fast_step(self) -> None:
        """Enable the fast path if its conditions hold."""
        ready = not self._unchecked and not self._never_reset.any() and self._clock is None
        self._fast_step = self._engine.fast_step if ready else None

    def _check_idle(self, verb: str) -> None:
        if self._state is PENDING:
            problem = f"a {self._pending} is under way: call recv() before {verb}()"
            raise AlreadyPending(problem, self._pending)

    def __repr__(self) -> str:
        """Backend, env and counts, and why ``backend="auto"`` chose it."""
        known = self.env_name or ("" if self.spec is None else self.spec.id)
        parts = [known, *(f"{name}={value!r}" for name, value in self._counts().items())]
        parts.append(f"auto: {self.chosen_because}" if self.chosen_because else "")
        return f"{type(self).__name__}({', '.join(filter(None, parts))})"

    def _counts(self) -> dict[str, Any]:
        """Return what `repr` shows, by the names of the arguments."""
        agents = {} if self.agents_per_env == 1 else {"agents_per_env": self.agents_per_env}
        batch = {}
        if self._batches is not None:
            batch = {"batch_size": self.batch_size, "order": self._batches.order}
        return {"num_envs": self.num_envs, **agents, **self._engine.counts(), **batch}
