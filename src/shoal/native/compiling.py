"""Spec -> kernel: an env's functions and the body around them, compiled by Numba into one C function.

    int64 kernel(const uint64 *addresses, int64 verb, int64 first, int64 last)

The addresses are those of the columns, in `columns.ORDER`. A kernel needs no Python and allocates nothing.
If the env's code raises, Numba prints the error and the kernel returns 0. Otherwise the bit DONE is set. A
checked kernel prints nothing, and an index outside its array raises too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any

import numpy as np
from numba import carray, jit, njit, types
from numba.core import config as numba_config
from numba.core.ccallback import CFunc
from numba.core.codegen import CPUCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
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

OPTIONS: dict[str, Any] = {
    # As in NumPy and C, a division by zero gives inf or NaN. A check would cost a branch, and a kernel cannot
    # report an error anyway.
    "error_model": "numpy",
    # Only kernels call these functions. To make each callable from Python and C too would take a quarter of
    # the time.
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
INLINE = {
    **OPTIONS,
    "forceinline": True,
}  # the compiler does not vectorise a loop that has a call or an unknown size
SIGNATURE = types.int64(types.CPointer(types.uint64), types.int64, types.int64, types.int64)
DONE = 1 << 62
SLOW = 1.0  # seconds of compiling after which a message is printed
PART = "part of a kernel: "  # begins the names of functions that are only called by a kernel


@dataclass(frozen=True)
class Kernel:
    """A compiled function.

    Attributes:
        address: The address of the function.
        keeps: The object that owns the code. It must live as long as the kernel.
        was_cached: Whether the kernel was found on disk.
    """

    address: int
    keeps: Any
    was_cached: bool


_made: dict[str, Kernel] = {}


def compile_kernel(spec: Spec, *, checked: bool = False) -> Kernel:
    """Return the kernel of an env class: from this process, from disk, or compiled now.

    Args:
        spec: The spec of the envs.
        checked: Whether an index outside its array raises.

    Raises:
        NativeError: If Numba cannot compile the class.
    """
    text = fingerprint(spec)
    key = None if text is None else disk.key_of(text, checked=checked)
    if key in _made:
        return _made[key]
    if stops := check_syntax(spec):
        raise NativeError(stops)
    begun = time.perf_counter()
    # Only a straight step is inlined as a whole, for the compiler to vectorise it. Elsewhere the compiler
    # decides: inlining all that a large step calls would take minutes.
    straight = is_straight(spec) and not checked  # a step that is not needed must not raise
    step = _calling(spec.step, spec.step_arguments, INLINE if straight else OPTIONS, checked=checked)
    compiled: Any = CFunc(
        _kernel_of(spec, step, straight=straight, checked=checked),
        (SIGNATURE.args, SIGNATURE.return_type),
        locals={},
        options=OPTIONS,
    )
    why_not = "it reads a value that cannot be hashed"
    # A straight step is small, and its loop is vectorised only if its parts are optimised first.
    with translated(spec), nullcontext() if straight else _optimised_as_a_whole():
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
                f"each process compiles it again ({why_not})"
                if why_not
                else "the next time it is found on disk"
            )
            print(f"shoal: compiled {spec.cls.__name__} in {took:.1f} s; {kept}", file=sys.stderr)
    if key is not None:
        _made[key] = kernel
    return kernel


@contextmanager
def _optimised_as_a_whole() -> Iterator[None]:
    """Let Numba optimise a kernel once, with all its parts in it, at LLVM's level 2.

    Numba optimises each function together with all functions that it calls. That would repeat the work for
    each level of calls. For large steps, its own level, 3, takes five times as long as 2 and gains nothing.
    """
    optimise, usual = getattr(CPUCodeLibrary, "_optimize_final_module", None), numba_config.OPT
    if optimise is None:  # another Numba: it takes longer
        yield
        return

    def optimise_unless_part(library: Any) -> None:
        if not library.name.startswith(PART):
            optimise(library)

    with global_compiler_lock:  # another thread may compile functions of its own
        CPUCodeLibrary._optimize_final_module = optimise_unless_part
        numba_config.OPT = type(usual)(2)
        try:
            yield
        finally:
            CPUCodeLibrary._optimize_final_module, numba_config.OPT = optimise, usual


def _part(function: Any, **options: Any) -> Any:
    """Compile a function that only a kernel calls."""
    function.__qualname__ = PART + function.__qualname__
    return njit(**options)(function)


def _check_result(spec: Spec, step: Any) -> None:
    if spec.is_team:
        return
    (result,) = {signature.return_type for signature in step.nopython_signatures}
    if not isinstance(result, types.BaseTuple):  # it is Optional
        raise NativeError(
            f"{spec.cls.__name__}.step must return (reward, terminated) on every path: one returns None"
        )


def _kernel_of(spec: Spec, step: Any, *, straight: bool, checked: bool) -> Any:
    config = ConfigType(spec.constants, spec.parameter_dtype, text_of(spec.constants))
    at = config_at(config)
    parts = Parts(
        step,
        _calling(spec.reset, RESET_ARGUMENTS, OPTIONS, checked=checked),
        _part(lambda result: _result(result), **OPTIONS),
        _rng_of,
        _part(lambda parameters, i: at(np.uint64(parameters[i].ctypes.data)), **OPTIONS),
        spec.max_steps,
        lambda function: _part(function, **OPTIONS),
        _apart,
        straight,
    )
    names: dict[str, Any] = {
        "__name__": __name__,  # Numba needs the name to load the function again
        "carray": carray,
        "body": _part((several if spec.is_team else single)(parts), **INLINE),
    }
    arrays: list[str] = []
    for index, name in enumerate(ORDER):
        names[f"column_{index}"] = _column(*kinds(spec)[name])
        arrays.append(f"column_{index}(addresses[{index}], first, last - first)")
    call = f"return {DONE} + body(verb, {', '.join(arrays)})"
    if checked:  # `replaying.py` finds the error, and can say more than Numba would print
        # Only one call is in the try block: Numba splits it at each call, which would double the time to
        # compile. Other kernels would be slower with names for their arrays.
        views = "; ".join(f"array_{index} = {view}" for index, view in enumerate(arrays))
        call = f"return {DONE} + body(verb, {', '.join(f'array_{index}' for index in range(len(arrays)))})"
        call = f"{views}\n    try:\n        {call}\n    except Exception:\n        return 0"
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
    """Compile a function and tell the compiler that its arrays do not overlap."""
    made = _part(function, **INLINE)

    def customize(flags: Any) -> Any:
        flags.noalias = True
        return flags

    made._compiler._customize_flags = customize
    return made


@cache
def _column(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """Return a function that views the entries of some envs as an array. It takes 0.1 s to compile."""
    nbytes = int(dtype.itemsize * np.prod(shape, dtype=np.int64))

    @njit(**OPTIONS)
    def entries(address: Any, first: Any, count: Any) -> Any:
        return carray(pointer_to(address + np.uint64(first * nbytes), dtype), (count, *shape))

    return entries


def _calling(
    function: FunctionType, known: tuple[str, ...], options: dict[str, Any], *, checked: bool
) -> Any:
    """Compile a function that takes all `known` arguments and passes on those that `function` asks for."""
    names = {"__name__": __name__, "function": _deep(function, options, checked=checked)}
    exec(f"def call({', '.join(known)}): return function({', '.join(arguments_of(function))})", names)
    return _part(names["call"], **options)


def _deep(function: FunctionType, options: dict[str, Any], *, checked: bool) -> Any:
    """Compile a function together with the plain functions that it calls.

    If `checked`, functions that the author decorated with ``@njit`` are compiled again with checks of
    indices. Numba would otherwise use them as they are.
    """

    def compiled(copy: FunctionType, original: Any) -> Any:
        if not is_compiled(original):
            return _part(copy, **options, boundscheck=checked)
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
