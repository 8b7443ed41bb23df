"""The core's face: one list of names, provided by the compiled core or by its twins in Python.

`Packer` writes a nested value into its row. `Stepper` steps a run of Python envs into their rows. The
compiled core does not provide them yet, so the twins of `_reference` serve everywhere.
"""

from shoal._core._reference import Packer, Stepper

__all__ = ["Packer", "Stepper"]
