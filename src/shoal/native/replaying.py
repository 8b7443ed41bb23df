"""Find the line at which a checked kernel raised: repeat the step in plain Python from a copy of the envs.

If an index is outside its array, Numba reports neither the index nor the line. So the envs are copied before
a checked kernel steps them. If the kernel raises, they are stepped again in plain Python, whose error has all
details.

Plain Python raises more errors than a kernel: for instance on a division by zero, where compiled code
continues with inf. The replay skips an env with such an error, and reports it only if no other env raises.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from shoal.errors import NativeError
from shoal.native.checks import line_of
from shoal.native.columns import Columns
from shoal.native.debugging import DebugKernel
from shoal.native.spec import Spec

ONLY_IN_PYTHON = (
    "Perhaps a later line raised. The search for it runs in plain Python, which stops here; compiled code "
    "may go on. Avoid this error, and the next run names the later line"
)


class Replay:
    """Copies envs before each step, to repeat the step if it raises.

    Args:
        spec: The spec of the envs.
        columns: The memory of the envs.
    """

    def __init__(self, spec: Spec, columns: Columns) -> None:
        self._spec, self._columns = spec, columns
        # Some columns share the same memory; copy it once. A workspace holds nothing before a step.
        addresses = {
            array.ctypes.data: name for name, array in columns.arrays.items() if name != "workspaces"
        }
        self._names = list(addresses.values())
        self._kept: dict[int, tuple[slice, int, dict[str, NDArray[Any]]]] = {}

    def keep(self, envs: slice, verb: int) -> None:
        """Copy envs before the kernel runs `verb` on them. The last copy of these envs is replaced."""
        arrays = self._columns.arrays
        self._kept[envs.start] = envs, verb, {name: arrays[name][envs].copy() for name in self._names}

    def explain(self) -> NativeError | None:
        """Repeat the steps of all copied envs and return the error; None if no env raises. Drop the copies.

        The envs stay in the middle of the failed step, so they must be reset.
        """
        kept, self._kept = self._kept, {}
        kernel = DebugKernel(self._spec, self._columns)
        doubtful: NativeError | None = None
        for envs, verb, values in kept.values():
            for name, value in values.items():
                self._columns.arrays[name][envs] = value
            for env in range(envs.start, envs.stop):
                try:
                    kernel.run(verb, slice(env, env + 1))
                except Exception as error:
                    if _is_of_kernels(error):
                        return self._described(error)
                    doubtful = doubtful or self._described(error, ONLY_IN_PYTHON)
        return doubtful

    def _described(self, error: Exception, *more: str) -> NativeError:
        said = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ()), *more])
        return NativeError(f"{line_of(self._spec, error)}{said}")


def _is_of_kernels(error: Exception) -> bool:
    """Return whether a checked kernel raises this error too: a wrong index, or shapes that do not fit."""
    return isinstance(error, IndexError) or (isinstance(error, ValueError) and "broadcast" in str(error))
