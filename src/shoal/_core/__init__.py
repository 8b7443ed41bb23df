"""The core's face: one list of names, provided by the compiled core or by its twins in Python.

`Packer` writes a nested value into its row. `Stepper` steps a run of Python envs into their rows.
``SHOAL_CORE=reference`` in the environment selects the twins of `_reference`. The compiled core does not
provide these names yet, so the twins serve everywhere.
"""

from shoal._core._reference import Packer, Stepper

__all__ = ["Packer", "Stepper"]
