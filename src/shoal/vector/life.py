"""Life: how a vec is closed, whenever and from wherever, and why a verb cannot begin.

Guarantees
  - `close` may be called twice, in any state, by another thread, a signal handler or an env.
  - A verb that is under way then raises `Closed`, and closes the rest itself: it can use all until its end.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, Self

from gymnasium.vector import VectorEnv as GymnasiumVectorEnv
from numpy.typing import NDArray

from shoal.errors import AlreadyPending, CallError, Closed, SnapshotError, WorkerError
from shoal.vector.engine import Engine
from shoal.vector.turns import has_turn_here

PATIENCE = 1.0  # seconds for a verb in another thread to end, once the vec is closed


class Life(GymnasiumVectorEnv[Any, Any, NDArray[Any]]):
    """The life of a vec, from its first verb to its end.

    Args:
        engine: Where the envs run.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pending = "reset"  # the verb that moves the envs, or did so last
        self._moving = False  # whether a verb has the turn
        self._closed = False  # whether no verb begins any more
        self._rest = False  # whether a closed vec is still to be taken apart
        self._closing = False  # whether `close` is at work, or has done all of it

    def _release_arena(self) -> None:
        """Drop all references to the rows."""
        raise NotImplementedError

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the vec has been closed: make a new one")

    def _refusal(self, verb: str) -> CallError:
        """Make the error of a verb that has not got the turn."""
        self._check_open()
        self._engine.check_owner()
        problem = f"the envs are moving: {verb}() was called by an env, or by another thread"
        return AlreadyPending(f"{problem}. Call it when their {self._pending} is over.", verb)

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
                self._engine.interrupt()
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

    def _is_usable_here(self) -> bool:
        try:
            self._engine.check_owner()
        except WorkerError:
            return False
        return True

    def _close_rest(self) -> list[Exception]:
        """Close all that is left: by `close`, or by the verb that it found under way."""
        rest, self._rest = self._rest, False
        if not rest:
            return []
        try:
            errors = self._engine.close()
            self._release_arena()
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
        """Do what `close` does; Gymnasium's wrappers call it."""
        self.close(**kwargs)

    def __enter__(self) -> Self:
        """``with shoal.Serial(...) as vec:`` closes it at the end."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close."""
        self.close()

    def __del__(self) -> None:
        """Close a vec that was forgotten. There is no caller that an error could reach."""
        with suppress(Exception):
            self.close()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A vec owns memory and envs that a copy would not: it has snapshots instead."""
        raise SnapshotError("a vec cannot be pickled or copied: use snapshot() and restore()")
