"""A quick test that training works on this machine: two games at once, about two minutes.

python test_vectorized_integration.py
"""

import argparse
import json
import tempfile
from pathlib import Path

from shoal.compat import install_as_rl_hockey

install_as_rl_hockey()

from rl_hockey.common.training.train_single_run import train_single_run  # noqa: E402

CONFIG = Path(__file__).with_name("configs") / "curriculum_simple.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=60, help="games of each phase")
    given = parser.parse_args()
    config = json.loads(CONFIG.read_text())
    for phase in config["curriculum"]["phases"]:
        phase["episodes"] = given.episodes
    config["training"].update(warmup_steps=1000, updates_per_step=1, train_freq=4)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.json")
        path.write_text(json.dumps(config))
        result = train_single_run(
            str(path), base_output_dir=folder, eval_freq_steps=10_000, eval_num_games=50, num_envs=2
        )
    assert result["total_episodes"] == 4 * given.episodes, result
    assert result["run_name"].endswith("_vec2"), result
    assert result["total_gradient_steps"] > 0, result
    print(f"it works: {result['total_steps']:,} steps, {result['total_gradient_steps']:,} gradient steps")


if __name__ == "__main__":
    main()
