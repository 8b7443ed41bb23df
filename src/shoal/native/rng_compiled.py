"""The streams of `rng.py` in compiled functions: a Numba type that holds the address of a stream."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core.datamodel import models
from numba.extending import intrinsic, overload_method, register_model

from shoal.native import rng as plain

GOLDEN, FIRST, SECOND = np.uint64(plain.GOLDEN), np.uint64(plain.FIRST), np.uint64(plain.SECOND)
TO_FRACTION = plain.TO_FRACTION
HALF = np.uint64(0xFFFFFFFF)
N27, N30, N31, N32, N11, ONE, TWO_32 = map(np.uint64, (27, 30, 31, 32, 11, 1, 1 << 32))


class RngType(types.Type):
    """The Numba type of `rng`."""

    def __init__(self) -> None:
        super().__init__("rng")


RNG = RngType()


@register_model(RngType)
class _RngModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, ir.IntType(64))


@intrinsic
def pointer_to(typing: Any, address: Any, kind: Any) -> Any:
    """Convert an address to a pointer to values of type `kind`."""
    pointed = kind.dtype if isinstance(kind, types.DType) else kind.instance_type

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(pointed)(types.uint64, kind), generate


@intrinsic
def rng_at(typing: Any, address: Any) -> Any:
    """Return the stream whose key and counter lie at `address`."""
    return RNG(types.uint64), lambda context, builder, signature, args: args[0]


@intrinsic
def _address_of(typing: Any, rng: Any) -> Any:
    return types.uint64(RNG), lambda context, builder, signature, args: args[0]


@njit(error_model="numpy")
def _mix(number: Any) -> Any:
    number = (number ^ (number >> N30)) * FIRST
    number = (number ^ (number >> N27)) * SECOND
    return number ^ (number >> N31)


@njit(error_model="numpy")
def _next(rng: Any) -> Any:
    place = carray(pointer_to(_address_of(rng), types.uint64), 2)
    key, counter = place[0], place[1]
    place[1] = counter + ONE
    return _mix(_mix(counter * GOLDEN + key) + key)


@njit(error_model="numpy")
def _fraction(rng: Any) -> Any:
    return (_next(rng) >> N11) * TO_FRACTION


# No annotations here, because Numba requires both signatures to be identical.


@overload_method(RngType, "uniform")
def _uniform(rng, low=0.0, high=1.0):
    return lambda rng, low=0.0, high=1.0: low + (high - low) * _fraction(rng)


@overload_method(RngType, "normal")
def _normal(rng, mean=0.0, deviation=1.0):
    def normal(rng, mean=0.0, deviation=1.0):
        radius = math.sqrt(-2.0 * math.log(1.0 - _fraction(rng)))
        return mean + deviation * (radius * math.cos(2.0 * math.pi * _fraction(rng)))

    return normal


@njit(error_model="numpy")
def _below(rng: Any, count: Any) -> Any:
    if count - ONE >= TWO_32:  # an empty range, or too many integers
        return np.int64(0)
    limit = TWO_32 % count
    while True:
        product = (_next(rng) >> N32) * count
        if (product & HALF) >= limit:
            return np.int64(product >> N32)


@overload_method(RngType, "integers")
def _integers(rng, low, high=None):
    if high is None or isinstance(high, (types.NoneType, types.Omitted)):
        return lambda rng, low, high=None: _below(rng, np.uint64(low))
    return lambda rng, low, high=None: np.int64(low) + _below(rng, np.uint64(high - low))
