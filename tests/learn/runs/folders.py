"""A small run on disk, which tests may damage, and kills at chosen moments."""

import os

from shoal.learn import PPO, PPOConfig, Run, RunOptions

ENV = "shoal/CartPole-v1"
QUICK = {"num_envs": 8, "horizon": 16, "minibatch_size": 64, "epochs": 2, "hidden": (16, 16)}


def config(**settings):
    return PPOConfig(**{**QUICK, "total_steps": 1500, **settings})


def train_run(folder, env=ENV, updates=5, options=None, **settings):
    """Train a run until it has so many updates; returns its learner, which is closed."""
    with PPO(env, config(**settings)) as ppo, Run(folder, ppo, env, options=options) as run:
        ppo.train(lambda update: (run(update), update.updates == updates and ppo.stop()))
    return ppo


def evaluated_run(folder):
    """A run with all files that a run can have."""
    return train_run(folder, options=RunOptions(eval_every=300, eval_episodes=2))


def end_at_call(number, functions=("fsync", "replace", "rename", "unlink", "open")):
    """Let the process end at its call of that number to a function that changes a folder or a disk."""
    calls = 0

    def wrapped(function):
        def call(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls == number:
                os._exit(9)
            return function(*args, **kwargs)

        return call

    for name in functions:
        setattr(os, name, wrapped(getattr(os, name)))
