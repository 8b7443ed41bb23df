"""Settings that may change when a run is resumed."""

import json

import pytest

from shoal.errors import ArgumentError
from shoal.learn import resume
from tests.learn.runs.folders import train_run


def test_a_setting_changes_and_is_written_down(tmp_path):
    train_run(tmp_path, anneal=False)
    with resume(tmp_path, learning_rate=1e-5, entropy=0.02, options={"checkpoint_seconds": 5.0}) as run:
        assert run.restored.changed == {"learning_rate": [2.5e-3, 1e-5], "entropy": [0.005, 0.02]}
        rates = []
        run.learner.train(lambda update: (run(update), rates.append(update.learning_rate)))
        steps = run.about.changes[0]["steps"]
    assert set(rates) == {1e-5}
    with resume(tmp_path) as run:
        assert run.restored.changed == {}
        assert run.learner.config.entropy == 0.02
        assert run.about.options.checkpoint_seconds == 5.0
        assert [change["steps"] for change in run.about.changes] == [steps]
    described = json.loads((tmp_path / "config.json").read_text())
    assert described["changes"][0]["changed"]["learning_rate"] == [2.5e-3, 1e-5]
    assert described["config"]["learning_rate"] == 1e-5


def test_a_setting_that_shapes_the_run_cannot_change(tmp_path):
    train_run(tmp_path)
    with pytest.raises(
        ArgumentError, match="num_envs: the run was begun with 8, and this cannot change; what can"
    ):
        resume(tmp_path, num_envs=16)
    with pytest.raises(ArgumentError, match="learning_rat: PPO has no such setting: did you mean learning_"):
        resume(tmp_path, learning_rat=1)
    with pytest.raises(ArgumentError, match="eval_episodes: expected at least 1, got 0"):
        resume(tmp_path, options={"eval_episodes": 0})
    with resume(tmp_path, num_envs=8) as run:  # the command of the run, repeated
        assert run.restored.changed == {}
