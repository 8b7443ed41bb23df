"""The kernel in plain Python: the same functions and body, not compiled, so that breakpoints work."""

from __future__ import annotations

from contextlib import suppress
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np

from shoal.errors import NativeError
from shoal.native.bodies import Parts, several, single
from shoal.native.columns import ORDER, Columns
from shoal.native.functions import Replacement, is_compiled
from shoal.native.records import Record, Records
from shoal.native.rng import Rng
from shoal.native.spec import RESET_ARGUMENTS, Spec, arguments_of
from shoal.stepping.env_faults import stand_in, would_end


class DebugKernel:
    """Runs envs as plain Python.

    Args:
        spec: The spec of the envs.
        columns: The memory of the envs.
    """

    def __init__(self, spec: Spec, columns: Columns) -> None:
        arrays = [columns.arrays[name] for name in ORDER]
        arrays[ORDER.index("actions")] = actions = columns.arrays["actions"].view()
        actions.flags.writeable = False  # the array may belong to the caller
        self._arrays = [Records(array) if array.dtype.names else array for array in arrays]
        self._spec, self._columns = spec, columns
        self._first, self._env = 0, 0  # the first env of the current run, and the current env
        constants, dtype = spec.constants, spec.parameter_dtype
        names = dtype.names or ()

        def config_at(parameters: Any, i: int) -> Any:
            own: Any = parameters[i].view(dtype)[0] if names else None
            return SimpleNamespace(**constants, **{name: own[name] for name in names})

        def rng_at(rngs: Any, i: int) -> Rng:
            self._env = self._first + i  # every call for an env gets its stream first
            return Rng(rngs[i])

        parts = Parts(
            self._noting("step", _calling(spec, "step", spec.step_arguments)),
            self._noting("reset", _calling(spec, "reset", RESET_ARGUMENTS)),
            self._noting("step", lambda result: _result(spec, result)),
            rng_at,
            config_at,
            spec.max_steps,
            lambda function: function,
            lambda function: function,
            is_straight=False,
        )
        self._body = (several if spec.is_team else single)(parts)

    def run(self, verb: int, envs: slice = slice(None)) -> tuple[int, int]:
        """Run all envs, or a range. Return how many rows have acted and how many episodes have ended."""
        self._first = envs.start or 0
        with np.errstate(all="ignore"):  # as in compiled code
            result = self._body(verb, *(array[envs] for array in self._arrays))
        return result & 0xFFFFFFFF, result >> 32

    def _noting(self, verb: str, function: Any) -> Any:
        """Wrap a function so that its exceptions get a note with the env and the step."""

        def called(*given: Any) -> Any:
            try:
                return function(*given)
            except BaseException as error:
                if would_end(error):
                    raise stand_in(error, f"env {self._env}", verb, [self._env]) from error
                where = f"raised by {self._spec.cls.__name__}.{verb}()"
                if len(self._columns.arrays["starts"]) > 1:  # with one env, the vec around it adds the env
                    where += f" of env {self._env}"
                if verb == "step":
                    where += f", in step {self._steps() + 1} of its episode"
                with suppress(Exception):  # an exception may refuse notes
                    error.add_note(where)
                raise

        return called

    def _steps(self) -> int:
        """Return the number of steps that the current env has done in its episode."""
        arrays, env = self._columns.arrays, self._env
        if self._spec.is_team:
            return int(arrays["elapsed"][env])
        return 0 if arrays["starts"][env] else int(arrays["lengths"][env])


class DebugQueue:
    """A queue of blocks of envs. Blocks run one after another when `collect` asks for them.

    Args:
        spec: The spec of the envs.
        columns: The memory of the envs.
        ends: The end of each block: one past its last env.
    """

    def __init__(self, spec: Spec, columns: Columns, ends: list[int]) -> None:
        self._kernel = DebugKernel(spec, columns)
        self._envs = [slice(first, last) for first, last in zip([0, *ends[:-1]], ends, strict=True)]
        self._waiting: list[tuple[int, int]] = []

    def submit(self, blocks: list[int], verb: int) -> None:
        """Add blocks to the queue."""
        self._waiting += [(block, verb) for block in blocks]

    def forget(self) -> None:
        """Empty the queue."""
        self._waiting.clear()

    def collect(self, wanted: int) -> list[int]:
        """Run the first `wanted` blocks of the queue and return them."""
        done = []
        for block, verb in self._waiting[:wanted]:
            self._kernel.run(verb, self._envs[block])
            done.append(block)
        del self._waiting[:wanted]
        return done


def _calling(spec: Spec, verb: str, known: tuple[str, ...]) -> Any:
    function = _uncompiled(getattr(spec, verb))
    positions = [known.index(name) for name in arguments_of(function)]
    if verb == "step" and not spec.is_team:
        return lambda *given: function(*(given[position] for position in positions))

    def call(*given: Any) -> None:
        result = function(*(given[position] for position in positions))
        if result is not None:
            where = "obs" if verb == "reset" else "obs, rewards and terminated"
            raise NativeError(
                f"{spec.cls.__name__}.{verb} must return nothing, got {result!r}. Write into {where}: "
                "obs[:] = ..."
            )

    return call


def _uncompiled(function: FunctionType) -> Any:
    """Return the function with all functions that it calls as plain Python, also those with ``@njit``."""
    found = []

    def plain(copy: FunctionType, original: Any) -> FunctionType:
        found.append(original)
        return copy

    made = Replacement(plain, lambda value: True).of(function)
    # Without ``@njit`` functions, return the author's own function: it sees what a debugger changes in its
    # module.
    return made if any(map(is_compiled, found)) else function


def _has_array(result: Any) -> bool:
    return isinstance(result, tuple) and any(isinstance(part, (np.ndarray, Record)) for part in result)


def _result(spec: Spec, result: Any) -> tuple[float, bool, bool]:
    numbers = (bool, int, float, np.bool_, np.number)
    if (
        not isinstance(result, tuple)
        or len(result) not in (2, 3)
        or not all(isinstance(part, numbers) for part in result)
    ):
        raise NativeError(
            f"{spec.cls.__name__}.step must return (reward, terminated), or (reward, terminated, truncated), "
            f"got {result!r}{'. Write observations into obs' if _has_array(result) else ''}"
        )
    reward, terminated, *truncated = result
    return float(reward), bool(terminated), bool(truncated[0]) if truncated else False
