"""How the caller gets the observations: flat or in their own form, as copies or views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.rows.arena import Arena, copier
from shoal.rows.fields import Kind, Leaf
from shoal.rows.layout import Layout


def observer(layout: Layout, arena: Arena, *, flat: bool, copy: bool) -> Callable[[], Any]:
    """A function that returns the observations of all rows, as they are when it is called."""
    root, columns = layout.root, layout.columns(arena.observations, arena.observation_objects)
    plain = {field.kind for field in layout.fields} <= {Kind.ARRAY, Kind.SCALAR}
    if flat or (plain and isinstance(root, Leaf)):
        view = layout.flat(arena.observations) if flat else columns[0]
        return copier(view) if copy else lambda: view
    if copy:
        # Field by field, so that each array the user keeps is contiguous and only its own.
        copiers = [copier(column) for column in columns]
        return lambda: root.values([copied() for copied in copiers])
    if not plain:
        return lambda: root.values(columns)
    views = root.values(columns)
    return lambda: _regathered(views)


def _regathered(views: Any) -> Any:
    """The same views in containers of their own, which the user may change."""
    if type(views) is dict:
        return {key: _regathered(view) for key, view in views.items()}
    return tuple(map(_regathered, views)) if type(views) is tuple else views
