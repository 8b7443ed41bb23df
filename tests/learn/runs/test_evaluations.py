"""Evaluation during training: a curve of its own, the best policy, and no effect on what is learnt."""

import json
import math

import pytest
import torch

from shoal.errors import RestartWarning
from shoal.learn import PPO, Run, RunOptions, evaluate, load, resume
from shoal.learn.runs import evaluations
from tests.learn.runs.folders import ENV, config, train_run

OPTIONS = RunOptions(eval_every=300, eval_episodes=3)


def lines(folder):
    return [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]


def weights(learner):
    return list(learner.policy.state_dict().values())


def test_training_is_the_same_with_and_without(tmp_path):
    plain = train_run(tmp_path / "plain", updates=99)
    watched = train_run(tmp_path / "watched", updates=99, options=OPTIONS)
    assert all(map(torch.equal, weights(plain), weights(watched)))
    assert not (tmp_path / "plain" / "evaluations.jsonl").exists()
    found = lines(tmp_path / "watched")
    assert [line["steps"] // 300 for line in found] == [1, 2, 3, 4, 5]
    assert all(line["episodes"] == 3 for line in found)


def test_the_best_policy_is_kept(tmp_path, monkeypatch):
    returns = iter([math.nan, 9.0, 4.0])
    found = []

    def fake(policy, vec, episodes, *, seed):
        result = evaluate(policy, vec, episodes, seed=seed)
        result.returns[:] = next(returns)
        found.append([tensor.clone() for tensor in policy.state_dict().values()])
        return result

    monkeypatch.setattr(evaluations, "evaluate", fake)
    with PPO(ENV, config(total_steps=1000)) as ppo, Run(tmp_path, ppo, ENV, options=OPTIONS) as run:
        ppo.train(run)
        assert run.best_return == 9.0
        assert run.evaluation["mean_return"] == 4.0
    assert all(map(torch.equal, load(tmp_path, best=True).state_dict().values(), found[1]))
    assert not all(map(torch.equal, load(tmp_path).state_dict().values(), found[1]))
    with resume(tmp_path) as run:
        assert run.best_return == 9.0


def test_a_resumed_run_has_the_same_evaluations(tmp_path):
    train_run(tmp_path / "whole", updates=99, options=OPTIONS)
    train_run(tmp_path / "stopped", updates=5, options=OPTIONS)
    with resume(tmp_path / "stopped") as run:
        run.learner.train(run)
    assert lines(tmp_path / "stopped") == lines(tmp_path / "whole")


def test_a_worker_that_dies_in_an_evaluation_is_replaced(tmp_path):
    # Only envs of evaluations die, once: their seeds are larger than those of training.
    file = tmp_path / "dying.py"
    file.write_text(DYING)
    env = f"{file}:Dying"
    settings = config(on_error="restart", backend="multiprocessing", num_workers=1, total_steps=500)
    with (
        PPO(env, settings) as ppo,
        Run(tmp_path / "run", ppo, env, options=OPTIONS) as run,
        pytest.warns(RestartWarning, match=r"worker . is restarted"),  # one of them, or both
    ):
        ppo.train(run)
    assert len(lines(tmp_path / "run")) == 2


DYING = """
import os, signal
from pathlib import Path

import gymnasium


class Dying(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))

    def reset(self, *, seed=None, options=None):
        flag = Path(__file__).with_name("died")
        self.dies = seed is not None and seed >= 1 << 30 and not flag.exists()
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self.dies:
            Path(__file__).with_name("died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)
"""


def test_there_is_no_best_policy_without_evaluations(tmp_path):
    train_run(tmp_path)
    with pytest.raises(ValueError, match=r"has no best\.safetensors: it is written by a run that evaluates"):
        load(tmp_path, best=True)
