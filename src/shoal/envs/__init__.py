"""Env families: envs that `shoal.make` knows by name, with one small file for each family.

Each file has two functions. ``names()`` returns the names of the envs, without the prefix of the family.
``create(name, **kwargs)`` makes an env, with the usual preprocessing as default. Importing the file imports
the package of the family. `shoal.registry` has the list of families.
"""
