"""Snapshots of compiled envs: all of a vec, or some envs of it, to be put back anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ArgumentError, SnapshotError
from shoal.native.bodies import STEP_SAME
from shoal.native.columns import Columns
from shoal.native.fingerprint import text_of
from shoal.native.spec import Spec
from shoal.vector.turns import verb
from shoal.vector.vec import VectorEnv


class NativeSnapshots(VectorEnv):
    """What `shoal.Native` can freeze and thaw."""

    _native_spec: Spec
    _columns: Columns
    _step_verb: int
    _seeds_given: list[int | None]
    _quick: bool

    @property
    def _own_columns(self) -> tuple[str, ...]:
        finals = ("finals",) if self._step_verb == STEP_SAME else ()
        return ("states", "rngs", "elapsed", "finished", *finals)

    @verb
    def snapshot(self, env_ids: Sequence[int] | None = None) -> dict[str, Any]:
        """All envs, or some, exactly as they are now, in a form that can be pickled.

        Args:
            env_ids: Which; by default all.
        """
        return self._snapshot() if env_ids is None else self._snapshot_some(env_ids)

    def _snapshot_some(self, env_ids: Sequence[int]) -> dict[str, Any]:
        self._check_idle("snapshot")
        self._check_owner()
        envs, rows = self._places(env_ids)
        own = {name: self._columns.arrays[name][envs].copy() for name in self._own_columns}
        arena = {name: column[rows].copy() for name, column in self._row_columns().items()}
        own["never_reset"] = self._never_reset[envs].copy()
        kind = {**self._kind(), "number of rows": len(rows)}
        return {
            "kind": kind,
            "some": {**own, "parameters": self._columns.parameters[envs].copy()},
            "seeds": [self._seeds_given[env] for env in envs],
            "rows": arena,
        }

    @verb
    def restore(self, snapshot: Any, env_ids: Sequence[int] | None = None) -> None:
        """Go back to a snapshot.

        Args:
            snapshot: Of this vec, or of one made the same way.
            env_ids: The envs that are to be as those of the snapshot, in its order. Needed if it is of some
                only; they need not be the same ones.

        Raises:
            SnapshotError: If it is of another shape.
        """
        self._restore(snapshot, env_ids)

    def _restore(self, snapshot: Any, env_ids: Sequence[int] | None = None) -> None:
        if not isinstance(snapshot, dict) or "some" not in snapshot:
            if env_ids is not None:
                raise SnapshotError("env_ids: expected None, because the snapshot is of all envs")
            self._check_count(snapshot)
            super()._restore(snapshot)
            return
        self._check_idle("restore")
        self._check_owner()
        if env_ids is None:
            raise SnapshotError(
                "env_ids: the snapshot is of some envs only: say which are to be as they were"
            )
        envs, rows = self._places(env_ids)
        for name, ours in {**self._kind(), "number of rows": len(rows)}.items():
            theirs = snapshot["kind"].get(name)
            if theirs != ours:
                raise SnapshotError(f"the snapshot is of envs with another {name}: {theirs}, not {ours}")
        for name in self._own_columns:
            self._columns.arrays[name][envs] = snapshot["some"][name]
        self._columns.parameters[envs] = snapshot["some"]["parameters"]
        for name, column in self._row_columns().items():
            column[rows] = snapshot["rows"][name]
        self._never_reset[envs] = snapshot["some"]["never_reset"]
        for env, seed in zip(envs.tolist(), snapshot["seeds"], strict=True):
            self._seeds_given[env] = seed
        self._quick = False

    def _check_count(self, snapshot: Any) -> None:
        kind = snapshot.get("kind") if isinstance(snapshot, dict) else None
        theirs, ours = (kind or self._kind()).get("number of rows"), self.num_rows
        if theirs != ours:
            raise SnapshotError(
                f"the snapshot is of a vec with another number of rows: {theirs}, not {ours}. Between vecs "
                "of different sizes take snapshot(env_ids) of one and restore(snapshot, env_ids) in the other"
            )

    def _places(self, env_ids: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        envs = np.asarray(env_ids)
        if (
            envs.ndim != 1
            or envs.dtype.kind not in "iu"
            or not ((envs >= 0) & (envs < self._total_envs)).all()
        ):
            raise ArgumentError(
                f"env_ids: expected a list of envs from 0 to {self._total_envs - 1}, got {env_ids!r}"
            )
        if len(np.unique(envs)) < len(envs):
            raise ArgumentError(f"env_ids: expected each env once, got {env_ids!r}")
        rows = (envs[:, None] * self.agents_per_env + np.arange(self.agents_per_env)).reshape(-1)
        return envs.astype(np.int64), rows

    def _row_columns(self) -> dict[str, NDArray[Any]]:
        names = ("observations", "rewards", "terminations", "truncations", "mask", "resets", "starts")
        return {name: getattr(self._arena, name) for name in (*names, "episode_returns", "episode_lengths")}

    def _freeze(self) -> Any:
        self._check_owner()
        arrays = {name: self._columns.arrays[name].copy() for name in self._own_columns}
        return {**arrays, "parameters": self._columns.parameters.copy(), "seeds": list(self._seeds_given)}

    def _thaw(self, state: Any) -> None:
        self._check_owner()
        for name in self._own_columns:
            self._columns.arrays[name][...] = state[name]
        self._columns.parameters[...] = state["parameters"]
        self._quick = False  # until it is known that all have been reset
        self._seeds_given = list(state["seeds"])

    def _kind(self) -> dict[str, Any]:
        spec = self._native_spec
        return {
            **super()._kind(),
            "env": spec.cls.__qualname__,
            "state": spec.state,
            "constants": text_of(spec.constants),
        }
