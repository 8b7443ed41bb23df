"""Runs of a second or less, and what tells one from another."""

import hashlib

from shoal.learn import PPO, PPOConfig

QUICK = {"num_envs": 8, "horizon": 16, "minibatch_size": 64, "epochs": 2, "hidden": (16, 16)}


def quick(**settings):
    return PPOConfig(**{**QUICK, "total_steps": 1000, **settings})


def digest(ppo):
    """Of all weights, and of the normaliser's sums."""
    found = hashlib.sha256()
    for name, tensor in sorted(ppo.policy.state_dict().items()):
        found.update(name.encode() + tensor.numpy().tobytes())
    return found.hexdigest()


def trained(env="shoal/CartPole-v1", **settings):
    with PPO(env, quick(**settings)) as ppo:
        ppo.train()
    return digest(ppo)
