"""One file per peer: what it is called, where it is installed, and how a vec of it is made.

An adapter is imported by the harness, which has none of the peers, and by the contestant's own interpreter,
so it imports its peer only in `build`. It defines

- `VENV`: the environment it runs in, see `venvs.py`;
- `PACKAGES`: whose versions go into the results, beside Python's, NumPy's and Gymnasium's;
- `CONTESTANTS`: for each contestant's name the options that `build` takes;
- `build(env, num_envs, **options)`: a `Vector` (or `Bare`), reset and ready for its first step;
- `ENVS`, if it cannot run all of them: the names of those it can;
- `PROCESSES`, if a contestant is to run several times at once: how often, by name.
"""
