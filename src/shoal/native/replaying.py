"""What was raised in a checked kernel, with its line: the same envs once more, from before, in plain Python.

Numba says of an index outside of its array neither which it was nor where. So what envs consist of is kept
before a checked kernel moves them; if it raises, they move again uncompiled, and there the error says all.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from shoal.errors import NativeError
from shoal.native.checks import line_of
from shoal.native.columns import Columns
from shoal.native.debugging import DebugKernel
from shoal.native.spec import Spec


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
        for envs, verb, values in kept.values():
            for name, value in values.items():
                self._columns.arrays[name][envs] = value
            try:
                kernel.run(verb, envs)
            except Exception as error:
                said = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
                return NativeError(f"{line_of(self._spec, error)}{said}")
        return None
