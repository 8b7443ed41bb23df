"""Batching: check the arguments that decide the size and order of batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoal.adapters.single import Creator
from shoal.errors import ArgumentError
from shoal.vector.options import creators_of, is_integer


@dataclass(frozen=True)
class Batching:
    """The creators of a vec, and the size and order of its batches.

    Attributes:
        creators: All creators, including those of surplus envs.
        batch_size: The number of creators whose envs form a batch.
        order: The order of an asynchronous vec; None if the vec is synchronous.
    """

    creators: list[Creator]
    batch_size: int
    order: str | None

    @classmethod
    def all_of(cls, creators: list[Creator]) -> Batching:
        """Return the batching of a synchronous vec: a batch has all envs."""
        return cls(creators, len(creators), None)

    @classmethod
    def of(
        cls,
        env: Any,
        num_envs: Any,
        batch_size: Any,
        surplus_envs: Any,
        mode: Any,
        order: Any,
        *,
        parent_steps: bool,
    ) -> Batching:
        """Return the batching that the arguments of a user ask for; see `shoal.Multiprocessing`.

        Raises:
            ArgumentError: If an argument is not valid, or cannot be combined with another.
        """
        creators = creators_of(env, num_envs)
        asked = len(creators)
        if not is_integer(surplus_envs) or surplus_envs < 0:
            raise ArgumentError(f"surplus_envs: expected an integer from 0 on, got {surplus_envs!r}")
        if batch_size is not None and (not is_integer(batch_size) or not 1 <= batch_size <= asked):
            raise ArgumentError(
                f"batch_size: expected an integer from 1 to {asked}, the number of envs asked for, "
                f"got {batch_size!r}"
            )
        if mode not in (None, "sync", "async"):
            raise ArgumentError(f"mode: expected 'sync', 'async' or None, got {mode!r}")
        if order not in ("fifo", "ready"):
            raise ArgumentError(f"order: expected 'fifo' or 'ready', got {order!r}")
        if surplus_envs and not callable(env):
            raise ArgumentError(
                "surplus_envs: expected one creator, of which more can be made, got a list of them. Add "
                "creators to the list instead, and pass batch_size"
            )
        batch = asked if batch_size is None else int(batch_size)
        is_partial = batch < asked or surplus_envs > 0  # a batch has only some of the envs
        if mode == "sync" and is_partial:
            raise ArgumentError(
                "mode: a synchronous vec has all envs in a batch. Drop mode='sync', or batch_size and "
                "surplus_envs"
            )
        asynchronous = mode == "async" or is_partial
        if asynchronous and parent_steps:
            raise ArgumentError(
                "parent_steps: cannot be combined with an asynchronous vec, where this process does not "
                "wait. Drop it, or batch_size, surplus_envs and mode"
            )
        if not asynchronous and order != "fifo":
            raise ArgumentError(
                "order: a synchronous vec returns all envs at once. Pass batch_size, surplus_envs or "
                "mode='async'"
            )
        return cls(creators + creators[:1] * int(surplus_envs), batch, order if asynchronous else None)
