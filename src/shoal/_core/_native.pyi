"""The compiled core."""

__version__: str
