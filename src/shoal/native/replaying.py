"""Find the line at which a checked kernel raised: repeat the step uncompiled from a copy of the envs.

Numba says of an index outside of its array neither which it was nor where. So what envs consist of is kept
before a checked kernel moves them; if it raises, they move again uncompiled, and there the error says all.

Plain Python raises more than a kernel does: on a division by zero for instance, where compiled code goes on
with inf. An env that stops the replay so is passed over, and named only if no other env raises.
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
    """Keeps some envs as they are before each move.

    Args:
        spec: Of the envs.
        columns: Their memory.
    """

    def __init__(self, spec: Spec, columns: Columns) -> None:
        self._spec, self._columns = spec, columns
        # Some columns are the same memory under another name.
        self._names = list({array.ctypes.data: name for name, array in columns.arrays.items()}.values())
        self._kept: dict[int, tuple[slice, int, dict[str, NDArray[Any]]]] = {}

    def keep(self, envs: slice, verb: int) -> None:
        """Keep these envs, which are about to move in this way; of the same ones only the last is kept."""
        arrays = self._columns.arrays
        self._kept[envs.start] = envs, verb, {name: arrays[name][envs].copy() for name in self._names}

    def explain(self) -> NativeError | None:
        """Let all that is kept move again: what it raises, or None if it does not. Then nothing is kept.

        The envs are left where the error was, so that they must be reset.
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
                        return self._told(error)
                    doubtful = doubtful or self._told(error, ONLY_IN_PYTHON)
        return doubtful

    def _told(self, error: Exception, *more: str) -> NativeError:
        said = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ()), *more])
        return NativeError(f"{line_of(self._spec, error)}{said}")


def _is_of_kernels(error: Exception) -> bool:
    """Whether a kernel too raises this, for certain: about an index, or shapes that do not fit."""
    return isinstance(error, IndexError) or (isinstance(error, ValueError) and "broadcast" in str(error))
