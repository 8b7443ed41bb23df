"""A DQN loop of one's own, of Shoal's parts: change what you like, from top to bottom.

python own_loop.py --steps 40000
"""

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.nn.functional import huber_loss

import shoal
from shoal.learn import Episodes, QPolicy, Replay, Target

NUM_ENVS, REPLAY_SIZE, WARMUP_STEPS, BATCH_SIZE = 16, 50_000, 1000, 128
UPDATES = 2  # gradient steps after each step of all envs
GAMMA, N_STEP, LEARNING_RATE, MAX_GRAD_NORM, TARGET_RATE = 0.99, 3, 1e-3, 10.0, 0.005
EPSILON, EXPLORATION = 0.05, 0.3  # chance of a random action at last, and part of the steps in which it falls


def learn(policy, target, optimizer, sampled):
    """One gradient step."""
    with torch.no_grad():
        # The policy chooses the next actions, the target network judges them: double DQN.
        best = policy.actions.best(policy(sampled.next_obs), sampled.next_masks)
        following = target.module(sampled.next_obs).gather(-1, best)[:, 0]
        # The discount is 0 where the episode ended by itself, but not where it was cut off.
        wanted = sampled.returns + sampled.discounts * following
    values = policy(sampled.obs).gather(-1, sampled.actions)[:, 0]
    loss = huber_loss(values, wanted)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), MAX_GRAD_NORM)
    optimizer.step()
    target.follow(TARGET_RATE)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40_000, help="of all envs together")
    total = parser.parse_args().steps
    torch.manual_seed(0)
    torch.set_num_threads(1)  # small layers are faster on one

    with shoal.make("shoal/CartPole-v1", NUM_ENVS, flat=True, copy=False) as vec:
        layout, rows = vec.observation_layout, np.arange(vec.num_rows)
        policy = QPolicy(layout, vec.single_action_space, hidden=(64, 64), normalize_observations=False)
        target, random = Target(policy), torch.Generator().manual_seed(0)
        optimizer = torch.optim.Adam(policy.parameters(), lr=LEARNING_RATE)
        replay = Replay(REPLAY_SIZE, vec.num_rows, layout, policy.actions, seed=0)
        episodes, steps, first, begun = Episodes(vec.num_rows), 0, float("nan"), time.perf_counter()
        vec.async_reset(seed=0)
        while steps < total:
            batch = vec.recv()
            episodes.add(batch, rows)
            progress = min(1.0, steps / (EXPLORATION * total)) if steps >= WARMUP_STEPS else 0.0
            epsilon = 1.0 + progress * (EPSILON - 1.0)
            actions = policy.choose(torch.from_numpy(batch.obs), generator=random, epsilon=epsilon)
            replay.add(batch, actions.numpy())  # the outcome of the last actions, and these
            vec.send(policy.actions.to_env(actions))
            steps += int(batch.mask.sum())  # not of envs that are being reset
            if steps < WARMUP_STEPS:
                first = episodes.mean_return()
                continue
            for _ in range(UPDATES):
                learn(policy, target, optimizer, replay.sample(BATCH_SIZE, gamma=GAMMA, n_step=N_STEP))
    speed = steps / (time.perf_counter() - begun)
    print(f"mean return {first:.1f} at first, {episodes.mean_return():.1f} at last, {speed:.0f} steps/s")


if __name__ == "__main__":
    main()
