"""Creators of compiled envs: one class for all envs, or one entry per env with its own parameters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from shoal.errors import ArgumentError, ArgumentTypeError
from shoal.native.env import is_native
from shoal.native.fingerprint import text_of
from shoal.native.spec import Spec
from shoal.vector.options import creators_of


def spec_of(env: Any, num_envs: Any, kwargs: dict[str, Any]) -> tuple[Spec, int]:
    """Return the spec that all creators share, and the number of envs.

    Args:
        env: One creator, or a list with one per env.
        num_envs: The number of envs, if there is one creator.
        kwargs: The values of constants and parameters.

    Raises:
        ArgumentError: If the creators differ in more than parameters, or do not make compiled envs.
    """
    creators: list[Callable[..., Any]] = creators_of(env, num_envs)
    same = len(set(creators)) == 1
    parts = [_class_and_kwargs(creator) for creator in (creators[:1] if same else creators)]
    cls, count = parts[0][0], len(creators)
    for other, _ in parts:
        if other is not cls:
            raise ArgumentError(
                f"env: expected the same class for each env, got {cls.__name__} and {other.__name__}"
            )
    specs = [Spec.of(cls, {**kwargs, **own}) for _, own in parts]
    if len(specs) > 1:
        if any(
            text_of(each.constants) != text_of(specs[0].constants) or each.max_steps != specs[0].max_steps
            for each in specs
        ):
            raise ArgumentError(
                f"env: expected the same constants for each env of {cls.__name__}, got different ones"
            )
        if any(value.ndim for each in specs for value in each.parameters.values()):
            raise ArgumentError(
                "env_kwargs: expected one value for each parameter, because each env has its own"
            )
        together = {name: np.array([each.parameters[name] for each in specs]) for name in specs[0].parameters}
        specs[0].parameters.update(together)
    for name, value in specs[0].parameters.items():
        if value.ndim and len(value) != count:
            raise ArgumentError(
                f"{name}: expected one value, or one for each of {count} envs, got {len(value)}"
            )
    return specs[0], count


def _class_and_kwargs(creator: Any) -> tuple[Any, dict[str, Any]]:
    """Return the class that a creator makes, and the arguments of ``functools.partial`` around it."""
    if not is_native(creator):
        raise ArgumentTypeError(
            f"env: Native runs classes derived from shoal.NativeEnv, got {creator!r}. Use "
            "shoal.Multiprocessing for other envs"
        )
    own: dict[str, Any] = {}
    while isinstance(creator, partial):
        if creator.args:
            raise ArgumentError(f"env: compiled envs take their config by name, got {creator.args!r}")
        own = {**creator.keywords, **own}
        creator = creator.func
    return creator, own
