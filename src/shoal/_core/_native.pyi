"""The compiled core. What each class does is documented on its twin in `_reference`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal._core.run import Infos, Run
from shoal.buffers import Arena
from shoal.fields import Node
from shoal.layout import Layout, Rows

__version__: str

class Packer:
    def __init__(
        self,
        layout: Layout,
        rows: Rows,
        objects: NDArray[Any] | None = None,
        node: Node | None = None,
    ) -> None: ...
    def write(self, row: int, value: Any, /) -> None: ...

class StepLoop:
    def __init__(
        self, envs: Sequence[Any], run: Run, packer: Packer, beginning: NDArray[np.bool_]
    ) -> None: ...
    def step(self) -> Infos: ...

class ActionColumn:
    def __init__(
        self, column: NDArray[Any], low: NDArray[Any] | None = None, high: NDArray[Any] | None = None
    ) -> None: ...
    def take(self, batch: Any, needed: NDArray[np.bool_], /) -> int: ...

class Transitions:
    def __init__(self, arena: Arena) -> None: ...
    def begin(self, acting: int, /) -> None: ...
    def take(self) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], int]: ...
    def figures(self) -> tuple[int, int, int, float, float]: ...
