"""Parameters for tests of every backend in every autoreset mode."""

import pytest
from gymnasium.vector import AutoresetMode
from tests.backends import BACKENDS

# Serial and two workers with every mode; the other two backends differ only in which process holds the rows.
ONCE = {("one worker", AutoresetMode.SAME_STEP), ("parent steps", AutoresetMode.DISABLED)}
backends_and_modes = pytest.mark.parametrize(
    ("backend", "mode"),
    [
        pytest.param(
            backend,
            mode,
            id=f"{name}-{mode.value}",
            marks=() if name in ("serial", "two workers") or (name, mode) in ONCE else pytest.mark.slow,
        )
        for name, backend in BACKENDS.items()
        for mode in AutoresetMode
    ],
)
