"""The Atari ladder, 4 of 4: 64 games on Shoal, 32 of them in a batch. Prints its steps per second.

python examples/atari/4_async.py [seconds]
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
    vec = shoal.make("atari-breakout", num_envs=64, batch_size=32, order="ready")
    vec.async_reset(seed=0)
    for _ in range(2):  # until all have begun
        vec.send(act(vec.recv().obs))
    steps, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        obs = vec.recv().obs
        vec.send(act(obs))
        steps += len(obs)
    print(f"{steps / (time.perf_counter() - begun):,.0f} steps per second")
    vec.close()


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 10)
