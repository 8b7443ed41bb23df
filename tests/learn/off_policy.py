"""Small DQN and SAC learners, and what tells one from another."""

import hashlib

from shoal.learn import DQN, SAC, DQNConfig, SACConfig

QUICK = {
    "num_envs": 4,
    "hidden": (16, 16),
    "batch_size": 32,
    "warmup_steps": 100,
    "updates_per_step": 0.25,
    "replay_size": 10_000,
    "total_steps": 600,
    "torch_threads": 1,
}
LEARNERS = {
    "dqn": (DQN, DQNConfig, "shoal/CartPole-v1"),
    "sac": (SAC, SACConfig, "shoal/Pendulum-v1"),
}


def make(name, env=None, **settings):
    learner, config, usual = LEARNERS[name]
    return learner(usual if env is None else env, config(**{**QUICK, **settings}))


def digest(learner):
    """Of all weights, of the normaliser's sums, and of what is sampled next."""
    found = hashlib.sha256()
    for name, tensor in sorted(learner.policy.state_dict().items()):
        found.update(name.encode() + tensor.numpy().tobytes())
    sampled = learner.replay.sample(64, gamma=0.9, n_step=2)
    for part in sampled[:5]:
        found.update(part.numpy().tobytes())
    return found.hexdigest()


def trained(name, env=None, **settings):
    with make(name, env, **settings) as learner:
        learner.train()
    return learner
