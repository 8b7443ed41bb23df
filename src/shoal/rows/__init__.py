"""Rows: how values of spaces lie in bytes, how they get there, and the arena that holds all rows."""
