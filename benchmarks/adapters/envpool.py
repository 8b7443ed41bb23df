"""EnvPool, which runs its own envs in C++ threads; finished envs are reset by the next step."""

from __future__ import annotations

from typing import Any

from loops import Vector

from envs import EnvSpec

VENV = "envpool"
PACKAGES = ("envpool",)
ENVS = ("cartpole", "lunarlander")
CONTESTANTS = {
    "EnvPool sync": {"share": 1},
    # A batch is the first half of the envs to be ready.
    "EnvPool async": {"share": 2},
}
NOTE = "its own envs, written in C++: no Python env can be run"


def build(env: EnvSpec, num_envs: int, share: int) -> Vector:
    import envpool

    names = (env.gymnasium_id, "LunarLander-v3", "LunarLander-v2")
    task = next(name for name in names if name in envpool.list_all_envs())
    rows = max(1, num_envs // share)
    pool = envpool.make(task, env_type="gymnasium", num_envs=num_envs, batch_size=rows, seed=0)
    if share == 1:
        pool.reset()
        return Vector(pool.step, rows=rows, counts_resets=True, note=f"{task}; {NOTE}")
    pool.async_reset()
    env_ids = pool.recv()[-1]["env_id"]

    def step(actions: Any) -> Any:
        # Those that have ended in the batch before are sent now, so this call's resets are theirs.
        nonlocal env_ids
        pool.send(actions, env_ids)
        result = pool.recv()
        env_ids = result[-1]["env_id"]
        return result

    return Vector(step, rows=rows, counts_resets=True, note=f"{task}, batches of {rows}; {NOTE}")
