"""The compiled core. What each class does is documented on its twin in `_reference`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.rows.arena import Arena
from shoal.rows.fields import Node
from shoal.rows.layout import Layout, Rows
from shoal.stepping.row_slice import Infos, RowSlice

__version__: str

class Packer:
    def __init__(
        self,
        layout: Layout,
        rows: Rows,
        objects: NDArray[Any] | None = None,
        node: Node | None = None,
        on_undeclared: Callable[[Any, Mapping[Any, Any]], None] | None = None,
    ) -> None: ...
    def write(self, row: int, value: Any, /) -> None: ...

class StepLoop:
    def __init__(
        self, envs: Sequence[Any], run: RowSlice, packer: Packer, beginning: NDArray[np.bool_]
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
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def drop(self) -> None: ...
    def take(self) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], int]: ...
    def figures(self) -> tuple[int, int, int, float, float]: ...

def gae(
    rewards: NDArray[np.float32],
    values: NDArray[np.float32],
    last_values: NDArray[np.float32],
    terminations: NDArray[np.bool_],
    truncations: NDArray[np.bool_],
    acts: NDArray[np.bool_],
    carries: NDArray[np.bool_],
    gamma: float,
    lam: float,
    advantages: NDArray[np.float32],
) -> None: ...
def surrogate(
    outputs: NDArray[np.float32],
    actions: NDArray[np.int64],
    numbers: NDArray[np.float32],
    mask: NDArray[np.bool_] | None,
    weights: NDArray[np.float32] | None,
    sizes: Sequence[int],
    clip: float,
    clip_value: float,
    entropy: float,
    value_weight: float,
    gradient: NDArray[np.float32],
) -> tuple[float, float, float, float, float]: ...
def lstm_forward(
    inputs: NDArray[np.float32],
    starts: NDArray[np.bool_],
    weights: NDArray[np.float32],
    gates: NDArray[np.float32],
    factors: NDArray[np.float32],
    cells: NDArray[np.float32],
    outputs: NDArray[np.float32],
    state: NDArray[np.float32],
    threads: int,
) -> None: ...
def lstm_backward(
    to_outputs: NDArray[np.float32],
    starts: NDArray[np.bool_],
    weights: NDArray[np.float32],
    gates: NDArray[np.float32],
    factors: NDArray[np.float32],
    cells: NDArray[np.float32],
    to_weights: NDArray[np.float32],
    threads: int,
) -> None: ...

class NativeLoop:
    """Steps all envs of a compiled kind on a pool of threads; see `shoal.native.engine`."""

    def __init__(
        self,
        kernel: int,
        about: str,
        columns: NDArray[np.uint64],
        keeps: Any,
        envs: int,
        threads: int,
        pauses: int,
        yields: int,
    ) -> None: ...
    def run(self, verb: int, /) -> tuple[int, int] | None: ...
    def prepare(
        self,
        place: int,
        verb: int,
        actions: ActionColumn,
        mask: NDArray[np.bool_],
        results: tuple[Any, ...],
        transitions: Transitions,
    ) -> None: ...
    def step(self, actions: Any, /) -> tuple[Any, ...] | bool | None: ...
    def threads(self) -> int: ...
    def close(self) -> None: ...

class NativeQueue:
    """Steps blocks of compiled envs, each of which goes its own way; see `shoal.native.engine`."""

    def __init__(
        self,
        kernel: int,
        about: str,
        columns: NDArray[np.uint64],
        keeps: Any,
        ends: Sequence[int],
        threads: int,
        pauses: int,
        yields: int,
    ) -> None: ...
    def submit(self, blocks: Sequence[int], verb: int, /) -> None: ...
    def collect(self, wanted: int, /) -> list[int]: ...
    def has_failed(self) -> bool: ...
    def kept(self) -> list[int]: ...
    def close(self) -> None: ...

def handshake_nbytes(workers: int, blocks: int, /) -> int: ...
def progress_offset(worker: int, blocks: int, /) -> int: ...
def die_with_parent(parent: int, /) -> bool: ...

class ParentSignals:
    def __init__(
        self,
        memory: NDArray[np.uint8],
        owners: Sequence[int],
        pauses: int,
        yields: int,
        death_descriptor: int,
        parent_steps: bool,
        usable_cores: int,
    ) -> None: ...
    def renew(self, worker: int, /) -> None: ...
    def post_steps(self) -> None: ...
    def post(self, blocks: Sequence[int], verb: int, /) -> None: ...
    def wait(self, timeout: float, /) -> int: ...
    def wait_and_take(self, timeout: float, /) -> int: ...
    def wait_for(self, blocks: Sequence[int], timeout: float, /) -> int: ...
    def wait_for_any(self, wanted: int, timeout: float, /) -> int: ...
    def overdue(self, seconds: float, /) -> list[int]: ...
    def running_seconds(self) -> float: ...
    def interrupt(self) -> None: ...
    def watch(self, death_descriptor: int, /) -> None: ...
    def watch_connections(self, descriptors: Sequence[int], /) -> None: ...
    def due(self, worker: int, /) -> list[int]: ...
    def arrived(self) -> list[int]: ...
    def unread(self) -> list[int]: ...
    def mark_read(self, block: int, /) -> int: ...
    def take(self, blocks: Sequence[int], /) -> None: ...
    def last_env(self, worker: int, /) -> int: ...
    def kept(self, block: int, /) -> bool: ...
    def skip(self, blocks: Sequence[int], /) -> None: ...
    def figures(self) -> tuple[float, float, float, float, float]: ...

class WorkerSignals:
    def __init__(
        self,
        memory: NDArray[np.uint8],
        workers: int,
        blocks: int,
        worker: int,
        pauses: int,
        yields: int,
        descriptor: int = -1,
    ) -> None: ...
    def serve(self, steps: list[Callable[[], Any]], /) -> Any: ...
    def block(self) -> int: ...
    def keep(self) -> None: ...
    def answer(self, outcome: int, /) -> None: ...

def rehearse(
    alone: float,
    parent: float,
    shares: Sequence[float],
    own: tuple[int, int],
    theirs: tuple[int, int],
    seconds: float,
) -> tuple[float, float]: ...
