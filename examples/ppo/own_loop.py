"""A PPO loop of one's own, of Shoal's parts: change what you like, from top to bottom.

python own_loop.py --steps 100000
"""

import argparse
import time

import numpy as np
import torch
from torch import nn

import shoal
from shoal.learn import Collector, Policy, losses

NUM_ENVS, HORIZON, NUM_EPOCHS, BATCH_SIZE = 64, 32, 8, 512
GAMMA, GAE_LAMBDA, LEARNING_RATE, MAX_GRAD_NORM = 0.99, 0.95, 2.5e-3, 0.5
REWARD_SCALE = 0.1  # so that returns are not far from 1, where values are easy to learn
TERMS = losses.Terms(clip=0.2, clip_value=0.0, entropy=0.005, value_weight=0.5)


def learn(policy, optimizer, experience):
    """Some passes over all entries in which somebody acted."""
    acts = torch.from_numpy(experience.acts)  # False where an env was being reset
    obs, actions = experience.obs[acts], experience.actions[acts]
    # How much better actions were than expected: through truncations, not through resets.
    found = experience.advantages(GAMMA, GAE_LAMBDA, experience.rewards * np.float32(REWARD_SCALE))
    advantages, values = torch.from_numpy(found)[acts], experience.values[acts]
    gains = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    numbers = torch.stack([experience.log_probs[acts], gains, advantages + values, values], -1)
    for _ in range(NUM_EPOCHS):
        for chosen in torch.randperm(len(obs)).split(BATCH_SIZE):
            outputs = policy(obs[chosen])  # [batch, logits and value]
            loss, _ = losses.ppo_loss(policy, outputs, actions[chosen], numbers[chosen], TERMS)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), MAX_GRAD_NORM)
            optimizer.step()
    policy.observe(obs)  # the scale of observations, from now on


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000, help="of all envs together")
    total = parser.parse_args().steps
    torch.manual_seed(0)
    torch.set_num_threads(1)  # small layers are faster on one

    with shoal.make("shoal/CartPole-v1", NUM_ENVS, flat=True, copy=False) as vec:
        policy = Policy(vec.observation_layout, vec.single_action_space, hidden=(64, 64))
        optimizer = torch.optim.Adam(policy.parameters(), lr=LEARNING_RATE, eps=1e-5)
        collector = Collector(vec, policy, HORIZON, seed=0)
        (rollout,) = collector.begin(1)
        means, begun = [], time.perf_counter()
        while collector.steps < total:
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - collector.steps / total)
            collector.collect(rollout, policy)  # HORIZON steps of all envs
            learn(policy, optimizer, rollout.take())
            rollout.release()
            means.append(collector.episodes.mean_return())  # of the last 100
    speed = collector.steps / (time.perf_counter() - begun)
    print(f"mean return {means[0]:.1f} at first, {means[-1]:.1f} at last, {speed:.0f} steps/s")


if __name__ == "__main__":
    main()
