"""Spec -> kernel: an env's functions and the body around them, compiled by Numba into one C function.

    int64 kernel(const uint64 *addresses, int64 verb, int64 first, int64 last)

The addresses are those of `columns.ORDER`. It needs no Python and allocates nothing. If something is raised
inside, Numba prints it, and the result is 0. Otherwise the bit DONE is set. A checked kernel prints nothing,
and raises on an index outside of its array too.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any

import numpy as np
from numba import carray, jit, njit, types
from numba.core.ccallback import CFunc
from numba.extending import overload

from shoal.errors import NativeError
from shoal.native import cache as disk
from shoal.native.bodies import Parts, several, single
from shoal.native.checks import check_syntax
from shoal.native.columns import ORDER, kinds
from shoal.native.config import ConfigType, config_at
from shoal.native.fingerprint import fingerprint, text_of
from shoal.native.functions import Replacement, is_compiled
from shoal.native.rng_compiled import pointer_to, rng_at
from shoal.native.spec import RESET_ARGUMENTS, Spec, arguments_of
from shoal.native.straight import is_straight
from shoal.native.translation import translated

# As in NumPy and C, dividing by zero gives inf or nan: checks would cost a branch each, and have nobody to
# tell.
OPTIONS: dict[str, Any] = {"error_model": "numpy"}
INLINE = {
    **OPTIONS,
    "forceinline": True,
}  # a call, or a size that is not known, keeps a loop from being vectorised
SIGNATURE = types.int64(types.CPointer(types.uint64), types.int64, types.int64, types.int64)
DONE = 1 << 62
SLOW = 1.0  # seconds of compiling that are worth a word


@dataclass(frozen=True)
class Kernel:
    """A compiled function.

    Attributes:
        address: Where it is.
        keeps: What must live as long as it.
        was_cached: Whether it was found on disk.
    """

    address: int
    keeps: Any
    was_cached: bool


_made: dict[str, Kernel] = {}


def compile_kernel(spec: Spec, *, checked: bool = False) -> Kernel:
    """The kernel of these envs: of this process, from disk, or compiled now.

    Args:
        spec: Of the envs.
        checked: Whether an index outside of its array is to raise.

    Raises:
        NativeError: If Numba cannot compile what the class says.
    """
    told = fingerprint(spec)
    key = None if told is None else disk.key_of(told, checked=checked)
    if key in _made:
        return _made[key]
    if stops := check_syntax(spec):
        raise NativeError(stops)
    begun = time.perf_counter()
    step = _calling(spec.step, spec.step_arguments, INLINE, checked=checked)
    compiled: Any = CFunc(
        _kernel_of(spec, step, checked=checked),
        (SIGNATURE.args, SIGNATURE.return_type),
        locals={},
        options=OPTIONS,
    )
    why_not = "it reads something whose value cannot be told"
    with translated(spec):
        if key is None:
            compiled.compile()
        else:
            with disk.Store(key, lambda: _check_result(spec, step)) as compiled._cache:
                compiled.compile()
            why_not = compiled._cache.refusal
    kernel = Kernel(compiled.address, compiled, was_cached=compiled.cache_hits > 0)
    if not kernel.was_cached:
        _check_result(spec, step)
        took = time.perf_counter() - begun
        if took > SLOW:
            kept = (
                f"each process compiles it anew ({why_not})"
                if why_not
                else "the next time it is found on disk"
            )
            print(f"shoal: compiled {spec.cls.__name__} in {took:.1f} s; {kept}", file=sys.stderr)
    if key is not None:
        _made[key] = kernel
    return kernel


def _check_result(spec: Spec, step: Any) -> None:
    if spec.is_team:
        return
    (result,) = {signature.return_type for signature in step.nopython_signatures}
    if not isinstance(result, types.BaseTuple):  # Optional, that is
        raise NativeError(
            f"{spec.cls.__name__}.step must return (reward, terminated) on every path: one returns nothing"
        )


def _kernel_of(spec: Spec, step: Any, *, checked: bool) -> Any:
    config = ConfigType(spec.constants, spec.parameter_dtype, text_of(spec.constants))
    at = config_at(config)
    parts = Parts(
        step,
        _calling(spec.reset, RESET_ARGUMENTS, OPTIONS, checked=checked),
        njit(**OPTIONS)(lambda result: _result(result)),
        _rng_of,
        njit(**OPTIONS)(lambda parameters, i: at(np.uint64(parameters[i].ctypes.data))),
        spec.max_steps,
        njit(**OPTIONS),
        _apart,
        is_straight(spec) and not checked,  # a step that is for nothing must not raise
    )
    names: dict[str, Any] = {
        "__name__": __name__,  # by which Numba finds it when it is loaded again
        "carray": carray,
        "body": njit(**INLINE)((several if spec.is_team else single)(parts)),
    }
    arrays: list[str] = []
    for index, name in enumerate(ORDER):
        names[f"column_{index}"] = _column(*kinds(spec)[name])
        arrays.append(f"column_{index}(addresses[{index}], first, last - first)")
    call = f"return {DONE} + body(verb, {', '.join(arrays)})"
    if checked:  # what was raised is found by `replaying.py`, which can say more than Numba would print
        call = f"try:\n        {call}\n    except Exception:\n        return 0"
    source = f"""
def kernel(columns, verb, first, last):
    addresses = carray(columns, {len(ORDER)})
    {call}
"""
    exec(source, names)
    return names["kernel"]


@njit(**OPTIONS)
def _rng_of(rngs, i):
    return rng_at(np.uint64(rngs[i].ctypes.data))


def _apart(function: Any) -> Any:
    """Compiled, and told that no two of its arrays overlap."""
    made = njit(**INLINE)(function)

    def customize(flags: Any) -> Any:
        flags.noalias = True
        return flags

    made._compiler._customize_flags = customize
    return made


@cache
def _column(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """A function that gives the entries of some envs as an array; it takes a tenth of a second to compile."""
    nbytes = int(dtype.itemsize * np.prod(shape, dtype=np.int64))

    @njit(**OPTIONS)
    def entries(address: Any, first: Any, count: Any) -> Any:
        return carray(pointer_to(address + np.uint64(first * nbytes), dtype), (count, *shape))

    return entries


def _calling(
    function: FunctionType, known: tuple[str, ...], options: dict[str, Any], *, checked: bool
) -> Any:
    """A compiled function of all that may be asked for, which passes on what is."""
    names = {"__name__": __name__, "function": _deep(function, options, checked=checked)}
    exec(f"def call({', '.join(known)}): return function({', '.join(arguments_of(function))})", names)
    return njit(**options)(names["call"])


def _deep(function: FunctionType, options: dict[str, Any], *, checked: bool) -> Any:
    """A function compiled, with the plain functions that it calls.

    If indices are to be checked, so are those of functions that the author has compiled, whatever flags they
    have: Numba would use them as they are.
    """

    def compiled(copy: FunctionType, original: Any) -> Any:
        if not is_compiled(original):
            return njit(**options, boundscheck=checked)(copy)
        own = {**original.targetoptions, "boundscheck": True}
        return jit(None if original._can_compile else list(original.signatures), **own)(copy)

    return Replacement(compiled, lambda value: checked or not is_compiled(value)).of(function)


def _result(result: Any) -> Any:
    raise NotImplementedError


@overload(_result)
def _(result):
    if not isinstance(result, types.BaseTuple) or result.count not in (2, 3):
        return None
    if not all(isinstance(each, (types.Number, types.Boolean)) for each in result):
        return None
    if result.count == 2:
        return lambda result: (float(result[0]), bool(result[1]), False)
    return lambda result: (float(result[0]), bool(result[1]), bool(result[2]))
