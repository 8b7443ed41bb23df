"""`shoal demo`: run a benchmark, train until CartPole is solved, then draw a curve and a replay."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from shoal.cli._curve import draw_curve
from shoal.cli._invocation import invocation
from shoal.cli._panel import Panel
from shoal.cli._replay import write_replay
from shoal.cli.bench import Bench
from shoal.cli.train import train
from shoal.errors import MissingExtra

if TYPE_CHECKING:
    from shoal.learn import Update

ENV = "shoal/CartPole-v1"
SOLVED = 475.0  # mean return; 500 is the maximum


@dataclass(frozen=True)
class Demo:
    """Measure CartPole beside Gymnasium's vector envs, then learn to play it; half a minute.

    Example: shoal demo
    """

    run_dir: Annotated[str, arg(help_behavior_hint="(default: runs/demo-TIME)")] = ""
    """Where curve and replay are written."""
    seconds: float = 6.0
    """Of the benchmark."""
    seed: int = 1
    """Of the training."""

    def run(self) -> int:
        """Run the demo; return the exit code."""
        try:
            from shoal.learn import PPO, PPOConfig, Run, evaluate, stop_on_signals
        except ImportError as error:  # torch is missing
            raise MissingExtra(str(error)) from error
        print(
            "1. How fast envs step: CartPole, written in Python, in vector envs of Gymnasium's and Shoal's\n"
        )
        Bench("CartPole-v1", backend="auto", seconds=self.seconds).run()
        print(f"\n2. PPO learns {ENV}, the same game compiled, until its mean return is {SOLVED:g}\n")
        folder = Path(self.run_dir or f"runs/demo-{datetime.now():%Y%m%d-%H%M%S}")
        with (
            PPO(ENV, PPOConfig(total_steps=300_000, seed=self.seed)) as ppo,
            Run(folder, ppo, ENV) as run,
        ):
            with Panel(f"PPO on {ENV}, {folder}") as panel, stop_on_signals(ppo):

                def told(update: Update) -> None:
                    panel(update)
                    if update.episodes >= 100 and update.mean_return >= SOLVED:
                        ppo.stop()

                result = train(run, told)
            run.save()
            solved = result.mean_return >= SOLVED
            how = "Solved" if solved else "Not solved"
            print(
                f"\n{how} in {result.seconds:.1f} s, {result.steps:,} steps. Drawing its curve and a replay"
            )
            draw_curve(folder, title=f"PPO on {ENV}")
            write_replay(folder / "replay.gif", ppo.policy, ENV, {}, seed=self.seed)
            found = evaluate(ppo.policy, ENV, 20, seed=self.seed)
        print(f"Mean return of the likeliest actions in {found.episodes} episodes: {found.mean_return:.0f}\n")
        print(f"learning curve  {folder / 'curve.png'}")
        print(f"replay          {folder / 'replay.gif'}")
        print(f"evaluate it     {invocation()} eval {folder}")
        print(f"learn your own  {invocation()} train ppo --env YOUR_ENV")
        return 130 if result.stopped and not solved else 0
