"""Records for plain Python that work as in compiled code: ``state.place`` reads the field ``place``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Record:
    """One record. Its fields can be read and written as attributes and as entries.

    Args:
        row: A structured scalar that is a view into its array.
    """

    __slots__ = ("_row",)

    def __init__(self, row: Any) -> None:
        object.__setattr__(self, "_row", row)

    def __getitem__(self, name: str) -> Any:
        row = object.__getattribute__(self, "_row")
        try:
            value = row[name]
        except ValueError:
            known = ", ".join(row.dtype.names)
            raise AttributeError(f"there is no field {name!r}. The fields are {known}") from None
        return Record(value) if isinstance(value, np.void) else value

    def __setitem__(self, name: str, value: Any) -> None:
        self[name]  # raises if there is no such field
        object.__getattribute__(self, "_row")[name] = value

    def __getattribute__(self, name: str) -> Any:
        """Return the field of that name. Names that begin with two underscores are not fields."""
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        """Write the field of that name."""
        self[name] = value

    def __repr__(self) -> str:
        """Return the values of the fields as text."""
        return f"Record({object.__getattribute__(self, '_row')})"


class Records:
    """An array of records.

    Args:
        array: A structured array.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, index: Any) -> Any:
        """Return one record, or `Records` for a slice."""
        found = self._array[index]
        return Record(found) if isinstance(found, np.void) else Records(found)
