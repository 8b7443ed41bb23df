"""Life: which verb of a vec has the turn (see `turns.py`), and how the vec is closed.

Guarantees
  - `close` may be called twice, in any state, by another thread, a signal handler or an env.
  - If a verb is under way, `close` leaves the engine and the rows to it. The verb closes them at its end and
    raises `Closed`.
  - Exactly one thread closes the engine and the rows. A `close` of another thread waits for it.
  - In a forked child, all verbs of a vec that the child cannot use are refused before they write anything.
"""

from __future__ import annotations

import os
import time
import weakref
from contextlib import suppress
from typing import Any, Self

from gymnasium.vector import VectorEnv as GymnasiumVectorEnv
from numpy.typing import NDArray

from shoal.caller_warning import warn_caller
from shoal.errors import AlreadyPending, CallError, Closed, SnapshotError, WorkerError
from shoal.stepping.env_faults import summary_of
from shoal.vector.engine import Engine
from shoal.vector.turns import has_turn_here

PATIENCE = 1.0  # seconds that `close` waits for a verb of another thread to end

_made: weakref.WeakSet[Life] = weakref.WeakSet()  # all vecs that exist


def _lock_in_child() -> None:
    for vec in list(_made):
        vec.lock_unless_owner()


os.register_at_fork(after_in_child=_lock_in_child)


class Life(GymnasiumVectorEnv[Any, Any, NDArray[Any]]):
    """A vec that can be closed, and whose verbs take turns.

    Args:
        engine: The engine that runs the envs.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pending = "reset"  # the verb that moves the envs, or moved them last
        self._turn_taken = False  # whether a verb has the turn; in a forked child, whether none may have it
        self._closed = False  # whether `close` was called, so that no verb may begin
        self._must_release = False  # whether the engine and the rows of a closed vec are still to be released
        self._closing = False  # whether a call of `close` is running, or one has succeeded
        _made.add(self)

    def _release_arena(self) -> None:
        """Drop all references to the rows."""
        raise NotImplementedError

    def _verb_under_way(self) -> str:
        """Return the verb that moves the envs, for messages."""
        return self._pending

    def lock_unless_owner(self) -> None:
        """Refuse all verbs if this process is a fork that cannot use the engine.

        Otherwise a step would write its actions into memory that the parent shares. The turn is taken for
        good, because a check of the process in each step would take time.
        """
        if not self._is_owner():
            self._turn_taken = True

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the vec has been closed: make a new one")

    def _refusal(self, verb: str) -> CallError:
        """Make the error of a verb that did not get the turn."""
        self._check_open()
        self._engine.check_owner()
        problem = f"the envs are moving: {verb}() was called by an env, or by another thread"
        return AlreadyPending(f"{problem}. Call it when their {self._verb_under_way()} is over.", verb)

    def _end_turn(self, error: BaseException | None = None) -> None:
        """End the turn of a verb that raised, or whose vec was closed meanwhile.

        Args:
            error: The exception that the verb raised, if it did.

        Raises:
            Closed: If the vec was closed, unless an env or a signal handler raised.
        """
        self._turn_taken = False
        self.lock_unless_owner()  # an env may have forked in the middle of the verb
        if self._closed:
            for failure in self._release_all():
                warn_caller(f"in close(): {summary_of(failure)}")
            if error is None or _is_ours(error):
                raise Closed("the vec was closed while its envs were moving") from error

    def close(self, **kwargs: Any) -> None:
        """Close all envs and release everything. This may be called twice and in any state.

        A verb that is under way raises `Closed`. It may run in another thread, or in this thread if a signal
        handler or an env calls `close`. Then envs in this process are closed when the verb ends, and workers
        are killed without a `close` of their envs.
        """
        if "_closing" not in self.__dict__:  # the constructor raised
            return
        taken = True
        try:
            taken, self._closing = self._closing, True
            if taken or self.closed:
                return
            if not self._closed:  # otherwise an earlier close() left that to a verb, which may be doing it
                self._must_release = True
            moving, self._closed = self._turn_taken, True
            if moving and self._is_owner():
                self._engine.interrupt()
                if not has_turn_here(self):
                    self._await_closed()
                return
            errors = self._release_all()
            if not has_turn_here(self):
                self._await_closed()  # a verb of another thread may have begun to release everything
        except BaseException:  # such as Ctrl-C: another close() continues
            if not taken:
                self._closing = False
            raise
        if errors:
            raise errors[0]

    def _is_owner(self) -> bool:
        """Return whether this process may use the engine."""
        try:
            self._engine.check_owner()
        except WorkerError:
            return False
        return True

    def _release_all(self) -> list[Exception]:
        """Close the engine and release the rows, if that is not done; return the errors of envs.

        `close` calls this, or the verb that was under way.
        """
        must_release = False
        try:
            must_release, self._must_release = self._must_release, False
            if not must_release:
                return []
            errors = self._engine.close()
            self._release_arena()
            self.closed = True
        except BaseException:  # such as Ctrl-C: another close() continues
            if must_release:
                self._must_release, self._closing = True, False
            raise
        return errors

    def _await_closed(self) -> None:
        """Wait a moment for the verb of another thread to end and release everything. It may end later."""
        end = time.monotonic() + PATIENCE
        while not self.closed and time.monotonic() < end:
            time.sleep(0.0005)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the vec; Gymnasium's wrappers call this."""
        self.close(**kwargs)

    def __enter__(self) -> Self:
        """Return the vec; ``with shoal.Serial(...) as vec:`` closes it at the end."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the vec."""
        self.close()

    def __del__(self) -> None:
        """Close the vec if the user did not. Errors are dropped, because no caller could catch them."""
        with suppress(Exception):
            self.close()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to pickle or copy the vec, because a copy would not own its memory and envs."""
        raise SnapshotError("a vec cannot be pickled or copied: use snapshot() and restore()")


def _is_ours(error: BaseException) -> bool:
    """Return whether an error arose in Shoal's own code, where `close` may have caused it."""
    last = error.__traceback__
    if not isinstance(error, Exception) or isinstance(error, Closed) or last is None:
        return False
    while last.tb_next is not None:
        last = last.tb_next
    return bool(last.tb_frame.f_globals.get("__name__", "").startswith("shoal."))
