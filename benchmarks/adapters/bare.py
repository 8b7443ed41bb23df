"""The limit: envs without any vector env, in one process and in two at once."""

from loops import Bare

from envs import EnvSpec

VENV = "gymnasium"
PACKAGES = ()
CONTESTANTS: dict[str, dict] = {
    "bare": {},
    "bare x2": {},
    "bare x2 all": {"share": 2},
    "packaged x2": {"packaged": True},
    "packaged x2 all": {"share": 2, "packaged": True},
}
PROCESSES = {"bare x2": 2, "bare x2 all": 2, "packaged x2": 2, "packaged x2 all": 2}


def build(env: EnvSpec, num_envs: int, share: int = 0, packaged: bool = False) -> Bare:
    """One env, or a process's share of all: a vec has as many, and they do not fit into a cache together."""
    create = (packaged and env.packaged) or env.create
    made = [create(index) for index in range(num_envs // share if share else 1)]
    for index, each in enumerate(made):
        each.reset(seed=index)
    return Bare([each.step for each in made], [each.reset for each in made])
