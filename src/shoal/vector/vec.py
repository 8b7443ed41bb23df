"""VectorEnv: what every backend is to its user.

    env.step -(pack)-> row -(signal)-> parent -(view)-> Batch.obs -(unpack)-> policy -(store)-> ...
      worker           arena            recv()          flat rows             tensors

This file is the parent's side of that path: the verbs, their order, what they accept and what they return.
A backend decides only where the envs run: by `_begin_reset`, `_begin_step` and `_finish` (which is not called
where the infos were there at once), and by the calls that reach into the envs (`_call`, `_set_attr`,
`_render`, `_freeze`, `_thaw`, `_interrupt`, `_shut`). `_begin_reset` and `_thaw` drop what is still under
way; the former may have to reset more envs than it was told, and then adds them to `chosen`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, Self, TypeVar

import numpy as np
from gymnasium import Space
from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv
from numpy.typing import NDArray

from shoal.batch import Batch
from shoal.errors import (
    AlreadyPending,
    ArgumentError,
    ArgumentTypeError,
    CallError,
    Closed,
    EpisodeOver,
    NothingPending,
    ResetNeeded,
    SnapshotError,
    WorkerError,
)
from shoal.rows.arena import Arena
from shoal.stepping.row_slice import Infos
from shoal.vector.batch_view import Hand
from shoal.vector.infos import merge_infos
from shoal.vector.options import Options, reset_mask_of, seeds_of
from shoal.vector.per_agent import every, interleaved, structure_of
from shoal.vector.spaces import VecSpaces, batch, same_space
from shoal.vector.statistics import EpisodeClock, report
from shoal.vector.turns import give_back, has_turn_here, holds_turn, verb

Result = TypeVar("Result")


class State(Enum):
    """Where a vec is between its verbs. Only the verb that has the turn writes it."""

    READY = "ready"
    PENDING = "pending"  # sent, not received
    FAILED = "failed"  # an env raised, or Ctrl-C came: rows of different moments; also while envs move


# By their names in the module: looking a member up in its Enum takes longer than to step a small env.
READY, PENDING, FAILED = State

PATIENCE = 1.0  # seconds for a verb in another thread to end, once the vec is closed


class VectorEnv(GymnasiumVectorEnv[Any, Any, NDArray[Any]]):
    """Many envs as one: Gymnasium's vector contract, and ``async_reset``/``recv``/``send`` beside it.

    Attributes:
        num_envs: Envs simulated (with ``rows_as_envs``: rows).
        num_rows: Rows, one for each agent of each env.
        agents_per_env: Rows of an env.
        agents: Names of the agents of an env, in the order of their rows.
        batch_size: Envs in a batch.
        single_observation_space: Of one row.
        observation_space: Of all rows.
        single_action_space: Of one row.
        action_space: Of all rows.
        observation_layout: The plan behind the observations; what `unpack` needs.
        action_layout: The plan behind the actions.
        autoreset_mode: When a finished env is reset.
        metadata: Of the first env, with ``autoreset_mode``.
        env_name: By which `shoal.make` was asked for the envs, if by one.
        chosen_because: Why `shoal.make` chose this backend, if that was left to it.
    """

    env_name = ""
    chosen_because = ""

    def __init__(
        self,
        described: VecSpaces,
        arena: Arena,
        options: Options,
    ) -> None:
        self._arena, self._mask = arena, arena.mask
        self._total_envs = described.num_envs
        self.agents, self.agents_per_env = described.agents, len(described.agents)
        self.num_rows = self._total_envs * self.agents_per_env
        self.num_envs = self.num_rows if options.rows_as_envs else self._total_envs
        self.batch_size = self.num_envs
        # With rows_as_envs the caller gives a value for each agent of an env; that of the first counts.
        self._stride = self.num_envs // self._total_envs
        self.copy, self.flat, self.rows_as_envs = options.copy, options.flat, options.rows_as_envs
        self.autoreset_mode, self.observation_mode = options.autoreset_mode, options.observation_mode
        self.metadata = {**described.metadata, "autoreset_mode": options.autoreset_mode}
        self.render_mode = described.render_mode

        self.observation_layout, self.action_layout = described.observation, described.action
        self._whole = Hand(
            arena,
            described.observation,
            described.action,
            self.agents_per_env,
            flat=options.flat,
            copy=options.copy,
        )
        self.single_action_space: Space[Any] = self._whole.actions.single_space
        self.action_space: Space[Any] = batch(self.single_action_space, self.num_rows)
        self.single_observation_space: Space[Any] = described.single_observation_space
        self.observation_space: Space[Any] = described.batched_observation_space
        if options.flat:
            self.single_observation_space = self.observation_layout.flat_space
            self.observation_space = described.flat_observation_space
        self._observe, self._transitions = self._whole.observe, self._whole.transitions

        self._next_seed: int | Sequence[int | None] | None = None
        # Verbs whose first observations are still to be checked. Different spaces have different bounds.
        self._unchecked = {"reset", "step"} if options.observation_mode == "same" else set()
        self._never_reset = np.ones(self._total_envs, np.bool_)
        self._clock = EpisodeClock(self.num_rows, self.agents_per_env) if options.episode_stats else None
        self._pending = "reset"  # the verb that moves the envs, or did so last
        self._arrived: Infos | None = None  # what was begun and is there already
        if (seed := options.seed) is not None:
            if not isinstance(seed, (int, np.integer)):
                raise ArgumentTypeError(f"seed: expected an integer, got {seed!r}; reset() takes lists")
            self.seed(seed)
            self.action_space.seed(int(seed))
        self._owner = os.getpid()
        self._state = READY
        self._moving = False  # whether a verb has the turn
        self._closed = False  # no verb begins any more
        self._rest = False  # what is closed is still to be taken apart
        self._closing = False  # whether `close` is at work, or has done all of it

    # -- what a backend provides -----------------------------------------------------------------------

    _begin_step: Callable[[], Infos | None]
    _reset_verb = "reset"  # by which everything begins anew
    _failed_before = (
        "the last call was interrupted, or an env raised in it, so the rows are not of one moment: "
        "call reset() first"
    )

    def _begin_reset(
        self,
        chosen: NDArray[np.bool_],
        seeds: Sequence[int | None],
        options: dict[str, Any] | None,
    ) -> Infos | None:
        raise NotImplementedError

    def _finish(self) -> Infos:
        raise NotImplementedError

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        raise NotImplementedError

    def _set_attr(self, name: str, values: Sequence[Any]) -> None:
        raise NotImplementedError

    def _render(self) -> list[Any]:
        raise NotImplementedError

    def _freeze(self) -> Any:
        raise NotImplementedError

    def _thaw(self, state: Any) -> None:
        raise NotImplementedError

    def _interrupt(self) -> None:
        """Make the verb under way end soon; the vec has just been closed."""

    def _shut(self) -> list[Exception]:
        """Close the envs, and end what runs them."""
        raise NotImplementedError

    def _check_owner(self) -> None:
        """Raise if this process cannot use the vec, because it is a fork of the one that made it."""

    def _is_usable_here(self) -> bool:
        try:
            self._check_owner()
        except WorkerError:
            return False
        return True

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
        """
        self._begin_anew(seed, options)
        infos, *_ = self._receive()
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
        """
        taken = True
        try:  # as `verb` does, without another call
            taken, self._moving = self._moving, True
            closed = self._closed
            if taken or closed:
                raise self._refusal("step")
            self._send(actions, None)
            infos, rewards, terminations, truncations = self._receive()
            obs = self._observe()
            self._moving = False
        except BaseException as error:
            if not taken:
                give_back(self, error)
            raise
        if self._closed:
            give_back(self)
        return obs, rewards, terminations, truncations, infos

    # -- Shoal's verbs ---------------------------------------------------------------------------------

    @verb
    def async_reset(
        self,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        """Begin what `reset` does; `recv` gives the rows. What was under way before is dropped."""
        self._begin_anew(seed, options)

    def _begin_anew(self, seed: int | Sequence[int | None] | None, options: dict[str, Any] | None) -> None:
        chosen, rest = reset_mask_of(options, self.num_envs, self._stride)
        if self._state is FAILED and not chosen.all():
            raise ResetNeeded(self._failed_before)
        if (self._never_reset & ~chosen).any():
            raise ArgumentError(
                "reset_mask: some envs have never been reset, so they have no observation yet; "
                "reset all of them first"
            )
        seeds = self._seeds(self._next_seed if seed is None else seed)
        self._pending = "reset"
        self._launch_reset(chosen, seeds, rest)
        self._next_seed = None
        self._never_reset &= ~chosen
        if self._clock is not None:
            self._clock.restart(np.repeat(chosen, self.agents_per_env))

    def _launch_reset(
        self, chosen: NDArray[np.bool_], seeds: Sequence[int | None], options: dict[str, Any] | None
    ) -> None:
        self._arrived = self._move(lambda: self._begin_reset(chosen, seeds, options), PENDING)

    @verb
    def send(self, actions: Any, env_ids: NDArray[np.int64] | None = None) -> None:
        """Begin a step: the first half of `step`.

        Args:
            actions: As for `step`.
            env_ids: The env of each row, if not that of the batch last received. A vec that
                receives all rows at once has only one order.
        """
        self._send(actions, env_ids)
        self._transitions.pause()

    def _send(self, actions: Any, env_ids: NDArray[np.int64] | None) -> None:
        if self._state is not READY:
            self._check_idle("the next step() or send")
            raise ResetNeeded(self._failed_before)
        if env_ids is not None and not np.array_equal(env_ids, self._whole.env_ids):
            raise ArgumentError(
                f"env_ids: expected those of the batch last received, {self._whole.env_ids}, got {env_ids}"
            )
        acting = self._whole.actions.write(actions, self._mask)
        if acting < self.num_rows and self.autoreset_mode is AutoresetMode.DISABLED:
            self._refuse_finished(self._mask, self._whole.env_ids)
        self._transitions.begin(acting)
        self._pending = "step"
        self._state = FAILED  # as long as they move
        self._arrived = self._begin_step()
        self._state = PENDING

    @verb
    def recv(self) -> Batch:
        """Receive the rows of what `send` or `async_reset` began: the second half of `step`."""
        self._resume()
        infos, rewards, terminations, truncations = self._receive()
        return self._whole.batch(rewards, terminations, truncations, infos)

    @verb
    def _recv_apart(self) -> tuple[Batch, Infos]:
        """Receive as `recv` does, with the infos of the envs beside the batch, as the envs gave them."""
        self._resume()
        said = self._move(self._finish, PENDING) if self._arrived is None else self._arrived
        self._arrived = []
        infos, rewards, terminations, truncations = self._receive()
        return self._whole.batch(rewards, terminations, truncations, infos), said

    def _resume(self) -> None:
        if self._state is FAILED:
            raise ResetNeeded(self._failed_before)
        if self._state is not PENDING:
            problem = "nothing is under way: call async_reset() or send() before recv()"
            raise NothingPending(problem, "recv")
        self._transitions.resume()

    def seed(self, seed: int | Sequence[int | None]) -> None:
        """Seed the next reset, unless it is given a seed of its own."""
        self._seeds(seed)
        self._next_seed = seed

    @property
    def mask(self) -> NDArray[np.bool_]:
        """The rows that need an action now."""
        return self._arena.mask.copy()

    def stats(self) -> dict[str, Any]:
        """Counts and times since the vec was made; see `shoal.vector.statistics`."""
        return report(self._transitions.figures())

    # -- rows and agents -------------------------------------------------------------------------------

    def by_agent(self, rows: Any) -> dict[Any, Any]:
        """Values for rows as values for agents.

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
        """The way back: values for agents as values for rows, such as `step` and `send` take.

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
        return self._per_env(self._ask("call", lambda: self._call(name, args, kwargs)))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of every env, wrappers included."""
        return self.call(name)

    @verb
    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every env: a list or tuple gives each its own value."""
        self._check_idle("set_attr")
        if not isinstance(values, (list, tuple)):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ArgumentError(f"values: expected one for each of {self.num_envs} envs, got {len(values)}")
        self._ask("set_attr", lambda: self._set_attr(name, values[:: self._stride]))

    @verb
    def render(self) -> tuple[Any, ...]:
        """The frames of all envs."""
        return self._per_env(self._ask("render", self._render))

    def _per_env(self, results: list[Any]) -> tuple[Any, ...]:
        return tuple(result for result in results for _ in range(self._stride))

    @property
    def np_random_seed(self) -> Any:
        """The seed of every env's random stream."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]  # not to be set, as in SyncVectorEnv: the streams are the envs'
    def np_random(self) -> Any:
        """Every env's random stream."""
        return self.get_attr("np_random")

    # -- snapshots -------------------------------------------------------------------------------------

    @verb
    def snapshot(self) -> dict[str, Any]:
        """All envs and rows as they are now, in a form that can be pickled.

        The caller's own things are not in it: ``action_space`` keeps its random stream.

        Raises:
            SnapshotError: If an env cannot be pickled.
        """
        return self._snapshot()

    def _snapshot(self) -> dict[str, Any]:
        self._check_idle("snapshot")
        if self._state is FAILED:
            raise ResetNeeded(self._failed_before)
        return {
            "kind": self._kind(),
            "envs": self._ask("snapshot", self._freeze),
            "arena": self._arena.state(),
            "never_reset": self._never_reset.copy(),
            "next_seed": self._next_seed,
            "clock": None if self._clock is None else self._clock.state(),
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
        self._pending = "restore"
        self._move(lambda: self._load(snapshot), READY)

    def _load(self, snapshot: dict[str, Any]) -> None:
        self._thaw(snapshot["envs"])
        self._arena.load(snapshot["arena"])
        self._never_reset[:] = snapshot["never_reset"]
        self._next_seed = snapshot["next_seed"]
        if self._clock is not None and snapshot["clock"] is not None:
            self._clock.load(snapshot["clock"])

    def _kind(self) -> dict[str, Any]:
        """What a snapshot and the vec it is put into must have in common."""
        return {
            "backend": type(self).__name__,
            "number of rows": self.num_rows,
            "autoreset_mode": self.autoreset_mode,
            "observation space": self.observation_layout.space,
            "action space": self.action_layout.space,
        }

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A vec owns memory and envs that a copy would not: it has snapshots instead."""
        raise SnapshotError("a vec cannot be pickled or copied: use snapshot() and restore()")

    # -- the end ---------------------------------------------------------------------------------------

    def close(self, **kwargs: Any) -> None:
        """Close every env and release everything. May be called twice and in any state.

        A verb that is under way raises `Closed`: one of another thread, or one of this thread that a signal
        handler or an env interrupts by this call. Envs in this process are closed when that verb ends;
        workers are killed then, without a `close` of their envs.
        """
        if "_closing" not in self.__dict__:  # it could not be made
            return
        working = True
        try:
            working, self._closing = self._closing, True
            if working or self.closed:
                return
            self._rest = True
            moving, self._closed = self._moving, True
            if moving and self._is_usable_here():
                self._interrupt()
                if not has_turn_here(self):
                    self._await_closed()
                return
            errors = self._close_rest()
        except BaseException:  # Ctrl-C, say: another close() goes on with it
            if not working:
                self._closing = False
            raise
        if errors:
            raise errors[0]

    def _close_rest(self) -> list[Exception]:
        """Close all that is left: by `close`, or by the verb that it found under way."""
        rest, self._rest = self._rest, False
        if not rest:
            return []
        try:
            errors = self._shut()
        except BaseException:  # Ctrl-C, say: another close() goes on with it
            self._rest, self._closing = True, False
            raise
        self.closed = True
        return errors

    def _await_closed(self) -> None:
        """Give the verb of another thread a moment to end and to close the rest. It may do so later."""
        end = time.monotonic() + PATIENCE
        while not self.closed and time.monotonic() < end:
            time.sleep(0.0005)

    def close_extras(self, **kwargs: Any) -> None:
        """What Gymnasium's wrappers call; the same as `close`."""
        self.close(**kwargs)

    def __enter__(self) -> Self:
        """``with shoal.Serial(...) as vec:`` closes it at the end."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close."""
        self.close()

    def __del__(self) -> None:
        """Close a vec that was forgotten; nobody is left to hear of an error."""
        with suppress(Exception):
            self.close()

    # -- inside ----------------------------------------------------------------------------------------

    def _move(self, verb: Callable[[], Result], then: State) -> Result:
        """Let the backend move the envs. The vec is in the state `then` afterwards, or has failed."""
        self._state = FAILED
        result = verb()
        self._state = then
        return result

    def _ask(self, verb: str, question: Callable[[], Result]) -> Result:
        """Let the backend reach into the envs. Whatever they answer, the vec is then as it was."""
        self._check_idle(verb)
        before, self._state, self._pending = self._state, FAILED, verb
        try:
            result = question()
        except Exception:  # not Ctrl-C, after which it is not known which envs were reached
            self._state = before
            raise
        self._state = before
        return result

    def _receive(
        self,
    ) -> tuple[dict[str, Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
        """Wait for what is under way: infos, rewards, terminations and truncations, to be kept."""
        infos = self._arrived
        if infos is None:
            self._state = FAILED  # as long as they move
            infos = self._finish()
        self._arrived, self._state = None, READY
        return self._written(self._whole, infos, self._pending)[:4]

    def _written(
        self, hand: Hand, pairs: Infos, verb: str
    ) -> tuple[dict[str, Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], int]:
        """What was written into these rows beside observations, to be kept, and how many episodes ended."""
        if verb in self._unchecked:  # the first batch of each verb
            self._unchecked.discard(verb)
            if hand.warn_if_outside(verb):
                self._unchecked.clear()
        infos = merge_infos(pairs, len(hand.arena)) if pairs else {}
        rewards, terminations, truncations, episodes = hand.transitions.take()
        if self._clock is not None:
            self._clock.add_to(infos, hand.arena, self.autoreset_mode, episodes, hand.where)
        return infos, rewards, terminations, truncations, episodes

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None or isinstance(seed, (int, np.integer)):
            return seeds_of(seed, self._total_envs)
        return seeds_of(seed, self.num_envs)[:: self._stride]

    def _refuse_finished(self, mask: NDArray[np.bool_], env_ids: NDArray[np.int64]) -> None:
        alive = mask.reshape(-1, self.agents_per_env).any(1)
        if not alive.all():
            finished = env_ids[:: self.agents_per_env][~alive].tolist()
            raise EpisodeOver(
                f"envs {finished} have finished and autoreset is DISABLED: reset them first, by "
                f'{self._reset_verb}(options={{"reset_mask": mask}}) with their entries of mask set. '
                "No env has moved."
            )

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the vec has been closed: make a new one")

    def _refusal(self, verb: str) -> CallError:
        """The error of a verb that has not got the turn."""
        self._check_open()
        self._check_owner()
        problem = f"the envs are moving: {verb}() was called by an env, or by another thread"
        return AlreadyPending(f"{problem}. Call it when their {self._pending} is over.", verb)

    def _check_idle(self, verb: str) -> None:
        if self._state is PENDING:
            problem = f"a {self._pending} is under way: call recv() before {verb}()"
            raise AlreadyPending(problem, self._pending)

    def __repr__(self) -> str:
        """Backend, env and counts, and why ``backend="auto"`` chose it."""
        known = self.env_name or ("" if self.spec is None else self.spec.id)
        parts = [known, *(f"{name}={value!r}" for name, value in self._counts().items())]
        parts.append(f"auto: {self.chosen_because}" if self.chosen_because else "")
        return f"{type(self).__name__.removeprefix('Async')}({', '.join(filter(None, parts))})"

    def _counts(self) -> dict[str, Any]:
        """What `repr` shows, by the names of the arguments."""
        agents = {} if self.agents_per_env == 1 else {"agents_per_env": self.agents_per_env}
        return {"num_envs": self.num_envs, **agents}
