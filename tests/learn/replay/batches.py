"""Batches by hand: each row's observation is a number that says which one it is."""

import numpy as np
from gymnasium.spaces import Box, Discrete

from shoal.batch import Batch
from shoal.learn import Actions, Replay
from shoal.rows.layout import layout

NUMBER = layout(Box(-np.inf, np.inf, (1,), np.float32))
CHOICE = Actions(Discrete(5))


def small(capacity=100, rows=1, **settings):
    return Replay(capacity, rows, NUMBER, CHOICE, **settings)


def batch(obs, rewards=0.0, *, ends=(), cuts=(), waits=(), begins=()):
    """A batch of one row for each observation. What happens to rows is given by their places."""
    rows = len(obs)

    def at(places):
        found = np.zeros(rows, np.bool_)
        found[list(places)] = True
        return found

    numbers = np.asarray(obs, np.float32)[:, None]
    return Batch(
        numbers,
        np.broadcast_to(np.asarray(rewards, np.float64), rows).copy(),
        at(ends),
        at(cuts),
        ~at([*ends, *cuts, *waits]),
        at(begins),
        np.arange(rows),
        np.zeros(rows, np.int64),
        {},
    )


def play(replay, *batches, row=0):
    """Add batches of one row; its action is the number of the observation, modulo 5."""
    for each in batches:
        actions = each.obs.astype(np.int64) % 5
        replay.add(each, actions, rows=np.array([row]))


def content(replay, size=400, **settings):
    """All that can be sampled, as (obs, action, return, discount, next obs) without repetition."""
    settings = {"gamma": 0.5, **settings}
    found = replay.sample(size, **settings)
    columns = (found.obs[:, 0], found.actions[:, 0], found.returns, found.discounts, found.next_obs[:, 0])
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return sorted({row if row[3] else (*row[:4], None) for row in rows})
