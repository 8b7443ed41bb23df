"""Step a Gymnasium env through Shoal and through Gymnasium's own vector envs, side by side.

All get the same actions in turns of about 50 ms, because a shared machine changes its speed from one second
to the next: only what was measured together can be compared.

    make run
    make run ARGS="--env Acrobot-v1 --num-envs 16 --seconds 5"
    make run ARGS="--env nested"        an env that costs nothing, so that only the vector env is measured
"""

import argparse
import os
import statistics
import time
from contextlib import suppress

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Space
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import shoal


class Nothing(gymnasium.Env):
    """Returns the same observation for ever, at no cost."""

    action_space = Discrete(2)

    def __init__(self, observation_space: Space) -> None:
        self.observation_space = observation_space
        self.observation = observation_space.sample()

    def reset(self, *, seed=None, options=None):
        return self.observation, {}

    def step(self, action):
        return self.observation, 0.0, False, False, {}


NOTHING = {
    "null": Box(-1, 1, (4,)),
    "nested": Dict(
        {
            "map": Box(0, 255, (5, 5), np.uint8),
            "stats": Dict({"health": Box(0, 1, (3,)), "place": Discrete(9)}),
            "keys": MultiBinary(4),
        }
    ),
    "frame": Box(0, 255, (84, 84, 4), np.uint8),
}


REFERENCE = "gymnasium Sync"


def measure(vec: gymnasium.vector.VectorEnv, actions: list, seconds: float) -> float:
    """Vector steps per second over about `seconds`."""
    begun, steps = time.perf_counter(), 0
    while True:
        for batch in actions:
            vec.step(batch)
        steps += len(actions)
        elapsed = time.perf_counter() - begun
        if elapsed >= seconds:
            return steps / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--env",
        default="CartPole-v1",
        help=f"a Gymnasium id (module:id too), or one of {', '.join(NOTHING)}",
    )
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=8.0)
    args = parser.parse_args()
    if args.num_envs < 1 or args.seconds <= 0:
        parser.error("--num-envs and --seconds must be positive")
    if args.env not in NOTHING:
        try:
            gymnasium.make(args.env).close()
        except (gymnasium.error.Error, ImportError) as error:
            parser.error(f"--env: {error}")

    def create() -> gymnasium.Env:
        return Nothing(NOTHING[args.env]) if args.env in NOTHING else gymnasium.make(args.env)

    creators = [create] * args.num_envs
    contestants: dict[str, gymnasium.vector.VectorEnv] = {
        REFERENCE: gymnasium.vector.SyncVectorEnv(creators, copy=False),
        "gymnasium Async": gymnasium.vector.AsyncVectorEnv(creators, copy=False),
        "shoal.Serial": shoal.Serial(creators, copy=False),
        "shoal.Multiprocessing": shoal.Multiprocessing(creators, copy=False),
    }
    if args.num_envs > 1:
        contestants["... parent_steps=True"] = shoal.Multiprocessing(creators, copy=False, parent_steps=True)
    space = contestants["shoal.Serial"].action_space
    space.seed(0)
    actions = [space.sample() for _ in range(10)]
    for vec in contestants.values():
        vec.reset(seed=0)
        measure(vec, actions, 0.1)

    turns = max(4, round(args.seconds / (0.05 * len(contestants))))
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    console = Console()
    with Progress(console=console, transient=True) as progress:
        for turn in progress.track(range(turns), description=f"{args.num_envs} x {args.env}"):
            order = list(contestants) if turn % 2 else list(reversed(contestants))
            for name in order:
                rates[name].append(args.num_envs * measure(contestants[name], actions, 0.05))
    for vec in contestants.values():
        vec.close()

    cores = len(os.sched_getaffinity(0))
    table = Table(title=f"{args.num_envs} x {args.env}, {cores} cores, {turns} turns each")
    table.add_column("vector env")
    for title in ("steps per second", "of Sync", "half of all turns"):
        table.add_column(title, justify="right")
    for name, measured in rates.items():
        ratios = np.array(measured) / np.array(rates[REFERENCE])
        low, median, high = np.quantile(ratios, [0.25, 0.5, 0.75])
        table.add_row(
            name, f"{statistics.median(measured):,.0f}", f"{median:.2f}", f"{low:.2f} to {high:.2f}"
        )
    console.print(table)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):  # Ctrl-C ends the demo, without a page of traceback
        main()
