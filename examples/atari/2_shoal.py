"""The Atari ladder, 2 of 4: the same 8 games on Shoal. Prints its steps per second.

python examples/atari/2_shoal.py [seconds]
"""

import sys
import time

import torch
from torch import nn

import shoal

torch.set_num_threads(1)  # the cores are for the games
policy = nn.Sequential(
    nn.Conv2d(4, 16, 8, stride=4),
    nn.ReLU(),
    nn.Conv2d(16, 32, 4, stride=2),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(32 * 9 * 9, 256),
    nn.ReLU(),
    nn.Linear(256, 4),
)


def act(obs):
    """In the place of a learner: one forward pass."""
    with torch.inference_mode():
        return policy(torch.from_numpy(obs) / 255).argmax(1).numpy()


def main(seconds):
    vec = shoal.make("atari-breakout", num_envs=8)
    obs, _ = vec.reset(seed=0)
    steps, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        obs, *_ = vec.step(act(obs))
        steps += len(obs)
    print(f"{steps / (time.perf_counter() - begun):,.0f} steps per second")
    vec.close()


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 10)
