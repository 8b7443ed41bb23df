"""A whole training run by a configuration file, with four games at once.

python train_single_run.py                                # configs/curriculum_simple.json, for hours
python train_single_run.py --config configs/sac.json      # about half an hour on two cores
"""

import argparse
from pathlib import Path

from shoal.compat import install_as_rl_hockey

install_as_rl_hockey()

from rl_hockey.common.training.train_single_run import train_single_run  # noqa: E402

CONFIG = Path(__file__).with_name("configs") / "curriculum_simple.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--config", default=str(CONFIG))
    parser.add_argument("--num-envs", type=int, default=4, help="games at once")
    parser.add_argument("--device", help="cpu, cuda or cuda:N; by default a GPU if there is one")
    given = parser.parse_args()
    result = train_single_run(given.config, device=given.device, num_envs=given.num_envs)
    print(f"Training completed: {result['run_name']}")
    print(f"Total steps: {result['total_steps']}")
    print(f"Mean reward: {result['mean_reward']:.2f}")


if __name__ == "__main__":
    main()
