"""The limit: envs without any vector env, in one process and in two at once."""

from loops import Bare

from envs import EnvSpec

VENV = "gymnasium"
PACKAGES = ()
CONTESTANTS: dict[str, dict] = {"bare": {}, "bare x2": {}}
PROCESSES = {"bare x2": 2}


def build(env: EnvSpec, num_envs: int) -> Bare:
    made = env.create(0)
    made.reset(seed=0)
    return Bare(made.step, made.reset)
