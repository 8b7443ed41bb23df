"""TorchRL's PPO on a Shoal vec: TorchRL's own GymWrapper takes it as it is.

python ppo_cartpole.py --steps 100000
"""

import argparse
import time

import numpy as np
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper, RewardSum, TransformedEnv
from torchrl.modules import OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

import shoal

NUM_ENVS, NUM_STEPS, NUM_EPOCHS, BATCH_SIZE = 64, 32, 6, 256
GAMMA, GAE_LAMBDA, CLIP, ENTROPY, LEARNING_RATE, MAX_GRAD_NORM = 0.99, 0.95, 0.2, 0.001, 2e-3, 0.5


def network(inputs, outputs):
    layers = nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    return nn.Sequential(*layers)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000, help="of all envs together")
    frames = NUM_ENVS * NUM_STEPS
    total = max(1, parser.parse_args().steps // frames) * frames
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the cores are for the envs

    # TorchRL resets envs itself, so the vec must not: it is asked by a reset_mask instead.
    vec = shoal.make("CartPole-v1", NUM_ENVS, autoreset_mode=shoal.AutoresetMode.DISABLED)
    env = TransformedEnv(GymWrapper(vec), RewardSum())
    env.set_seed(0)

    inputs, outputs = vec.single_observation_space.shape[0], int(vec.single_action_space.n)
    logits = TensorDictModule(network(inputs, outputs), in_keys=["observation"], out_keys=["logits"])
    actor = ProbabilisticActor(
        logits,
        in_keys=["logits"],
        spec=env.full_action_spec,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    critic = ValueOperator(network(inputs, 1), in_keys=["observation"])
    advantage = GAE(gamma=GAMMA, lmbda=GAE_LAMBDA, value_network=critic, average_gae=True)
    loss_of = ClipPPOLoss(actor, critic, clip_epsilon=CLIP, entropy_coeff=ENTROPY)
    optimizer = torch.optim.Adam(loss_of.parameters(), lr=LEARNING_RATE, eps=1e-5)

    collector = Collector(
        env, actor, frames_per_batch=frames, total_frames=total, auto_register_policy_transforms=False
    )
    returns, begun = [], time.perf_counter()
    for data in collector:  # [N, T]
        returns += data["next", "episode_reward"][data["next", "done"]].tolist()
        with torch.no_grad():
            advantage(data)
        rows = data.reshape(-1)
        for _ in range(NUM_EPOCHS):
            for chosen in torch.randperm(frames).split(BATCH_SIZE):
                losses = loss_of(rows[chosen])
                loss = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(loss_of.parameters(), MAX_GRAD_NORM)
                optimizer.step()
    speed = total / (time.perf_counter() - begun)
    first, last = np.mean(returns[:100]), np.mean(returns[-100:])
    print(f"mean return {first:.1f} at first, {last:.1f} at last, {speed:.0f} steps/s")
    collector.shutdown()  # closes the vec


if __name__ == "__main__":
    main()
