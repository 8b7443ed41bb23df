"""Settings that may change when a run is resumed."""

import json

import pytest

from shoal.errors import ArgumentError
from shoal.learn import PPO, Run, resume
from tests.learn.runs.folders import ENV, config, train_run


def test_a_setting_changes_and_is_written_down(tmp_path):
    train_run(tmp_path, anneal=False)
    with resume(tmp_path, learning_rate=1e-5, entropy=0.02, checkpoint_seconds=5.0) as run:
        before = config()
        assert run.restored.changed == {
            "learning_rate": [before.learning_rate, 1e-5],
            "entropy": [before.entropy, 0.02],
            "checkpoint_seconds": [60.0, 5.0],
        }
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
    assert described["changes"][0]["changed"]["learning_rate"] == [before.learning_rate, 1e-5]
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
        resume(tmp_path, eval_episodes=0)
    with resume(tmp_path, num_envs=8) as run:  # the command of the run, repeated
        assert run.restored.changed == {}


def test_a_change_outlives_a_kill(tmp_path):
    train_run(tmp_path)
    run = resume(tmp_path, entropy=0.02)
    run.learner.train(lambda update: (run(update), run.learner.stop()))
    run._close(save=False)  # as if the process had been killed
    with resume(tmp_path) as run:
        assert run.learner.config.entropy == 0.02


@pytest.mark.parametrize("mode", ["sync", "overlap"])
def test_another_minibatch_size_keeps_the_horizon(tmp_path, mode):
    train_run(tmp_path, mode=mode, horizon=None)
    with resume(tmp_path, minibatch_size=128) as run:
        assert run.learner.config.horizon == 32
        assert {rollout.horizon for rollout in run.learner._rollouts} == {32}


def test_the_env_of_a_run_stays(tmp_path):
    train_run(tmp_path)
    with pytest.raises(ArgumentError, match=f"env: the run was begun on {ENV}, and this cannot change"):
        resume(tmp_path, env="CartPole-v1")
    with pytest.raises(TypeError, match="env: expected a name, by which the run can be resumed"):
        resume(tmp_path, env=PPO)
    with pytest.raises(ArgumentError, match="timeout: only a run whose envs are in worker processes has it"):
        resume(tmp_path, timeout=3)


def test_an_env_file_may_move(tmp_path):
    code = "import gymnasium\n\n\ndef cartpole(length=None):\n    return gymnasium.make('CartPole-v1')\n"
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(code)
    old, new = (f"{tmp_path / folder / 'mine.py'}:cartpole" for folder in ("old", "new"))
    with PPO(old, config(), env_kwargs={"length": 3}) as ppo, Run(tmp_path / "run", ppo, old) as run:
        ppo.train(lambda update: (run(update), ppo.stop()))
    with resume(tmp_path / "run", env=new) as run:
        assert not run.restored.exact
        assert run.restored.changed == {"env": [old, new]}
        assert run.about.env_kwargs == {"length": 3}  # those of the learner
        run.learner.train(run)
    with resume(tmp_path / "run", env=new, total_steps=2000) as run:
        assert run.restored.exact
