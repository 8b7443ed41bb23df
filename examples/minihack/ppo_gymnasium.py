"""A plain PPO on MiniHack through Gymnasium's vector env. It stops where it makes its storage:

    TypeError: Value after * must be an iterable, not NoneType

because an observation of MiniHack is a dict of ten arrays, which has no shape. From here on one would rewrite
the storage, the minibatches and the network for exactly these keys. ppo_shoal.py changes the line that makes
the envs, and lets the network unpack; nothing in between needs to know.

    python ppo_gymnasium.py
"""

import sys
import time

import gymnasium
import minihack  # noqa: F401  (registers its envs)
import numpy as np
import torch
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torch import nn
from torch.distributions import Categorical

TOTAL_STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
NUM_ENVS, NUM_STEPS, NUM_EPOCHS, NUM_MINIBATCHES = 32, 64, 3, 4
GAMMA, GAE_LAMBDA, CLIP, ENTROPY, LEARNING_RATE, MAX_GRAD_NORM = 0.99, 0.95, 0.2, 0.01, 1e-3, 0.5


class Policy(nn.Module):
    def __init__(self, envs):
        super().__init__()
        size = int(np.prod(envs.single_observation_space.shape))
        self.features = nn.Sequential(nn.Linear(size, 128), nn.ReLU())
        self.actor, self.critic = nn.Linear(128, envs.single_action_space.n), nn.Linear(128, 1)

    def forward(self, obs):
        features = self.features(obs.float())
        return Categorical(logits=self.actor(features)), self.critic(features).squeeze(-1)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the cores are for the envs
    envs = gymnasium.make_vec("MiniHack-Room-15x15-v0", NUM_ENVS, vectorization_mode="sync")
    envs = RecordEpisodeStatistics(envs)

    # Storage: [T, N, ...]
    shape, dtype = envs.single_observation_space.shape, envs.single_observation_space.dtype
    obs = np.zeros((NUM_STEPS, NUM_ENVS, *shape), dtype)
    actions, log_probs, rewards, values = (np.zeros((NUM_STEPS, NUM_ENVS), np.float32) for _ in range(4))
    terminations, ends, valid = (np.zeros((NUM_STEPS, NUM_ENVS), bool) for _ in range(3))

    policy = Policy(envs)
    optimizer = torch.optim.Adam(policy.parameters(), lr=LEARNING_RATE, eps=1e-5)
    next_obs, _ = envs.reset(seed=0)
    ended = np.zeros(NUM_ENVS, bool)
    lengths, begun = [], time.perf_counter()
    for update in range(1, TOTAL_STEPS // (NUM_STEPS * NUM_ENVS) + 1):
        for step in range(NUM_STEPS):
            obs[step], valid[step] = next_obs, ~ended  # the step after an end only resets
            with torch.no_grad():
                distribution, value = policy(torch.from_numpy(obs[step]))
                action = distribution.sample()
            actions[step], values[step], log_probs[step] = action, value, distribution.log_prob(action)
            next_obs, rewards[step], terminations[step], truncations, infos = envs.step(action.numpy())
            ended = ends[step] = terminations[step] | truncations
            if "episode" in infos:
                lengths.extend(infos["episode"]["l"][infos["_episode"]])

        # Advantages. A truncated episode goes on in the value of its last observation.
        with torch.no_grad():
            next_value = policy(torch.from_numpy(np.asarray(next_obs)))[1].numpy()
        advantages, carried = np.zeros_like(rewards), np.zeros(NUM_ENVS, np.float32)
        for step in reversed(range(NUM_STEPS)):
            delta = rewards[step] + GAMMA * next_value * ~terminations[step] - values[step]
            carried = delta + GAMMA * GAE_LAMBDA * ~ends[step] * carried
            advantages[step], next_value = carried, values[step]

        # Learn from all transitions, in minibatches.
        rows = np.flatnonzero(valid)
        flat = obs.reshape(-1, *shape)
        columns = (actions, log_probs, advantages, advantages + values)
        taken, old_log_probs, gains, targets = (torch.from_numpy(c.reshape(-1)) for c in columns)
        for _ in range(NUM_EPOCHS):
            np.random.default_rng(update).shuffle(rows)
            for batch in np.array_split(rows, NUM_MINIBATCHES):
                distribution, value = policy(torch.from_numpy(flat[batch]))
                ratio = (distribution.log_prob(taken[batch]) - old_log_probs[batch]).exp()
                gain = (gains[batch] - gains[batch].mean()) / (gains[batch].std() + 1e-8)
                policy_loss = -torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
                value_loss = 0.5 * (value - targets[batch]).square().mean()
                loss = policy_loss + 0.5 * value_loss - ENTROPY * distribution.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(policy.parameters(), MAX_GRAD_NORM)
                optimizer.step()

        steps = update * NUM_STEPS * NUM_ENVS
        speed = steps / (time.perf_counter() - begun)
        mean = np.mean(lengths[-100:] or [0])  # the sooner the stairs are found, the better
        print(f"{steps} steps, mean length {mean:.1f}, {speed:.0f} steps/s", flush=True)
    envs.close()


if __name__ == "__main__":
    main()
