"""Tianshou's PPO on a Shoal vec, which its collector takes through a few lines (`ShoalVectorEnv`).

python ppo_cartpole.py --steps 100000
"""

import argparse
import time

import numpy as np
import torch
from tianshou.algorithm.modelfree.ppo import PPO
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from tianshou.utils.torch_utils import policy_within_training_step
from torch import nn
from torch.distributions import Categorical

import shoal

NUM_ENVS, NUM_STEPS, NUM_EPOCHS, BATCH_SIZE = 64, 32, 6, 256
GAMMA, GAE_LAMBDA, CLIP, ENTROPY, LEARNING_RATE, MAX_GRAD_NORM = 0.99, 0.95, 0.2, 0.001, 2e-3, 0.5


class ShoalVectorEnv:
    """What tianshou's collector asks of a vector env. It resets envs itself, so the vec must not."""

    is_async = False

    def __init__(self, vec):
        assert vec.autoreset_mode is shoal.AutoresetMode.DISABLED
        self.vec = vec
        self.action_space = [vec.single_action_space] * len(self)
        self.actions = vec.action_space.sample()
        self.infos = np.array([{"env_id": env} for env in range(len(self))])  # the envs' own are left out

    def __len__(self):
        return self.vec.num_envs

    def reset(self, env_id=None, *, seed=None, options=None):
        chosen = np.zeros(len(self), bool)
        chosen[slice(None) if env_id is None else env_id] = True
        obs, _ = self.vec.reset(seed=seed, options={**(options or {}), "reset_mask": chosen})
        return obs[chosen], self.infos[chosen]

    def step(self, action, id):
        # All envs but at the end of `collect(n_episode=...)`. The others go on, and nobody looks.
        self.actions[id] = action
        *transitions, _ = self.vec.step(self.actions)
        ended = transitions[2] | transitions[3]
        ended[id] = False
        if ended.any():
            self.vec.reset(options={"reset_mask": ended})
        return *(column[id] for column in transitions), self.infos[id]

    def close(self):
        self.vec.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000, help="of all envs together")
    num_updates = max(1, parser.parse_args().steps // (NUM_ENVS * NUM_STEPS))
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - by which tianshou shuffles
    torch.set_num_threads(1)  # the cores are for the envs

    vec = shoal.make("CartPole-v1", NUM_ENVS, autoreset_mode=shoal.AutoresetMode.DISABLED)
    shape = vec.single_observation_space.shape
    bodies = [Net(state_shape=shape, hidden_sizes=[64, 64], activation=nn.Tanh) for _ in range(2)]
    actor = DiscreteActor(
        preprocess_net=bodies[0], action_shape=vec.single_action_space.n, softmax_output=False
    )
    policy = ProbabilisticActorPolicy(
        actor=actor,
        dist_fn=lambda logits: Categorical(logits=logits),
        action_space=vec.single_action_space,
        action_scaling=False,
        action_bound_method=None,
    )
    ppo = PPO(
        policy=policy,
        critic=DiscreteCritic(preprocess_net=bodies[1]),
        optim=AdamOptimizerFactory(lr=LEARNING_RATE, eps=1e-5),
        gamma=GAMMA,
        gae_lambda=GAE_LAMBDA,
        eps_clip=CLIP,
        ent_coef=ENTROPY,
        max_grad_norm=MAX_GRAD_NORM,
    )
    collector = Collector(ppo, ShoalVectorEnv(vec), VectorReplayBuffer(NUM_ENVS * NUM_STEPS, NUM_ENVS))

    collector.reset(gym_reset_kwargs={"seed": 0})
    returns, begun = [], time.perf_counter()
    with policy_within_training_step(policy):
        for _ in range(num_updates):
            returns.extend(collector.collect(n_step=NUM_ENVS * NUM_STEPS).returns)
            ppo.update(collector.buffer, batch_size=BATCH_SIZE, repeat=NUM_EPOCHS)
            collector.reset_buffer(keep_statistics=True)
    speed = collector.collect_step / (time.perf_counter() - begun)
    first, last = np.mean(returns[:100]), np.mean(returns[-100:])
    print(f"mean return {first:.1f} at first, {last:.1f} at last, {speed:.0f} steps/s")
    collector.close()


if __name__ == "__main__":
    main()
