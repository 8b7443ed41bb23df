"""What tests of asynchronous pools share."""

from functools import partial

import shoal
from shoal.testing import SentinelEnv

FIELDS = ("obs", "rewards", "terminations", "truncations", "mask", "resets")


def sentinels(count, env=SentinelEnv, **options):
    return [partial(env, i, **options) for i in range(count)]


def pool(creators=8, **options):
    creators = sentinels(creators) if isinstance(creators, int) else creators
    return shoal.Multiprocessing(creators, **{"num_workers": 2, "batch_size": 4, **options})


def actions_for(batch):
    """What any vec would be sent for these observations, whoever else is in the batch."""
    obs = batch.obs.reshape(len(batch.env_ids), -1)
    if obs.shape[1] == 1:
        return obs[:, 0] % 2
    return (7 * obs[:, 0] + 3 * obs[:, 1] + obs[:, 2]) % 1000


def run(vec, batches):
    """What so many batches held."""
    seen = []
    for _ in range(batches):
        batch = vec.recv()
        seen.append([getattr(batch, field).copy() for field in (*FIELDS, "env_ids")])
        vec.send(actions_for(batch))
    return seen


def info_of(infos, row):
    """The part of merged infos that is about one row."""
    found = {}
    for key, values in infos.items():
        if key.startswith("_"):
            continue
        mask = infos[f"_{key}"]
        if mask[row]:
            found[key] = info_of(values, row) if isinstance(values, dict) else values[row]
    return found
