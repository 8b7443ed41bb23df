"""ParentSettings: the settings of the parent process that a new worker takes over before it makes envs."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import gymnasium
from gymnasium.envs.registration import EnvSpec

from shoal.processes.messages import dumps_by_value

# A worker has one core. These variables keep libraries from starting a thread for every core, unless the user
# has set other values.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "OPENCV_FOR_THREADS_NUM": "1",
}


@dataclass(frozen=True)
class ParentSettings:
    """The settings that a worker needs before it can unpickle a creator.

    Attributes:
        path: The parent's ``sys.path``.
        folder: The parent's working directory; None if it has been deleted.
        environment: The parent's environment variables.
        arguments: The parent's ``sys.argv``.
        show_crashes: Whether Python prints a traceback if it crashes.
        registry: The parent's registry of Gymnasium: for each id, a pickle of the id and its spec.
        authkey: The parent's key of `multiprocessing`, without which a worker cannot reach the parent's
            managers and queues.
    """

    path: list[str]
    folder: str | None
    environment: dict[str, str]
    arguments: list[str]
    show_crashes: bool
    registry: list[bytes]
    authkey: bytes

    @staticmethod
    def of_this_process(registry: list[bytes]) -> ParentSettings:
        """Return the settings of this process as they are now.

        Args:
            registry: The pickled registry of Gymnasium, from `pickled_registry`.
        """
        try:
            folder: str | None = str(Path.cwd())
        except FileNotFoundError:
            folder = None
        environment = {**ONE_THREAD, **os.environ}
        return ParentSettings(
            list(sys.path),
            folder,
            environment,
            list(sys.argv),
            faulthandler.is_enabled(),
            registry,
            bytes(multiprocessing.current_process().authkey),
        )

    def apply(self) -> dict[str, EnvSpec]:
        """Apply the settings to this process; return the specs that were registered, by id."""
        if self.show_crashes:
            faulthandler.enable()
        sys.path[:] = self.path
        sys.argv[:] = self.arguments
        if self.folder is not None:
            os.chdir(self.folder)
        for name in set(os.environ) - set(self.environment):
            del os.environ[name]
        os.environ.update(self.environment)
        multiprocessing.current_process().authkey = self.authkey
        specs: dict[str, EnvSpec] = {}
        for pickled in self.registry:
            with suppress(Exception):  # a missing spec matters only if a creator asks for its id
                specs.update([pickle.loads(pickled)])
        gymnasium.registry.update(specs)
        return specs


def pickled_registry() -> list[bytes]:
    """Pickle each entry of Gymnasium's registry, also the built-in ones: the user may have replaced them."""
    pickled = []
    for name, spec in list(gymnasium.registry.items()):
        plain = isinstance(spec.entry_point, str) and not spec.kwargs
        with suppress(Exception):  # if a creator needs this id, the worker raises an error that names it
            pickled.append((pickle.dumps if plain else dumps_by_value)((name, spec)))
    return pickled
