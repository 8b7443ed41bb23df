"""Envs that `shoal.make` knows by name: one small file for each family of them.

A file offers ``names()``, what follows the family's name in its ids, and ``create(name, **kwargs)``, with the
preprocessing that users of these envs expect as defaults. Its package is imported only when it is.
`shoal.registry` has the list of families.
"""
