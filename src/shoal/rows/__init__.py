"""Spaces as the bytes of rows: layouts, packing, actions, and the arena that holds all rows."""
