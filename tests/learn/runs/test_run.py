"""Runs on disk: what is written, and going on bit for bit."""

import json
import pickle
import threading

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import shoal
from shoal.errors import RunError
from shoal.learn import PPO, PPOConfig, Run, evaluate, load, resume
from shoal.learn.runs import run as run_module

QUICK = {"num_envs": 8, "horizon": 16, "minibatch_size": 64, "epochs": 2, "hidden": (16, 16)}


def weights(ppo):
    return {name: tensor.clone() for name, tensor in ppo.policy.state_dict().items()}


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


def config(**settings):
    return PPOConfig(**{**QUICK, "total_steps": 1500, **settings})


@pytest.mark.parametrize("mode", ["sync", "overlap"])
@pytest.mark.parametrize("lstm", [False, True])
@pytest.mark.parametrize("env", ["shoal/CartPole-v1", "CartPole-v1"])
def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path, mode, lstm, env):
    # CHECKLIST 28.
    with PPO(env, config(mode=mode, lstm=lstm)) as whole:
        expected = whole.train()
    with PPO(env, config(mode=mode, lstm=lstm)) as ppo, Run(tmp_path / "run", ppo, env) as run:
        ppo.train(lambda update: update.updates == 5 and ppo.stop())
        assert ppo.updates < expected.updates
        assert run.save()
    with resume(tmp_path / "run") as resumed:
        again = resumed.learner
        assert (resumed.about.env, resumed.about.env_kwargs, resumed.restored.exact) == (env, {}, True)
        assert again.steps == ppo.steps
        found = again.train()
        assert same(weights(again), weights(whole))
    assert (found.steps, found.updates, found.episodes) == (
        expected.steps,
        expected.updates,
        expected.episodes,
    )
    assert found.mean_return == expected.mean_return


def interrupted(folder, env, updates=5, **settings):
    """A run that stopped after so many updates; returns its learner."""
    name = env if isinstance(env, str) else "CartPole-v1"
    with PPO(env, config(**settings)) as ppo, Run(folder, ppo, name) as run:
        ppo.train(lambda update: (run(update), update.updates == updates and ppo.stop()))
    return ppo


def test_a_run_goes_on_exactly_on_another_number_of_cores(tmp_path, monkeypatch):
    ppo = interrupted(tmp_path, "CartPole-v1", num_workers=3)
    monkeypatch.setattr("shoal.making.usable_cores", lambda: 1)
    with resume(tmp_path) as run:
        assert run.restored.exact
        assert run.learner.vec.num_workers == 3
        assert run.learner.threads == ppo.threads


def test_a_run_goes_on_with_new_episodes_if_its_vec_was_another(tmp_path, monkeypatch):
    settings = run_module._vec_settings
    monkeypatch.setattr(run_module, "_vec_settings", lambda vec: {**settings(vec), "num_workers": 1})
    with shoal.Multiprocessing(
        lambda: gymnasium.make("CartPole-v1"), 8, num_workers=2, flat=True, episode_stats=True
    ) as vec:
        ppo = interrupted(tmp_path, vec)
    with resume(tmp_path) as run:
        assert not run.restored.exact
        assert same(weights(run.learner), weights(ppo))
        assert run.learner.train(run).steps >= 1500


def test_the_state_of_a_learner_stays_as_it_was(tmp_path):
    with PPO("shoal/CartPole-v1", config()) as ppo:
        ppo.train(lambda update: update.updates == 5 and ppo.stop())
        state, before = ppo.state_dict(), weights(ppo)
        expected = ppo.train()
        assert same(before, state["policy"])
        assert not same(before, weights(ppo))
    with PPO("shoal/CartPole-v1", config()) as again:
        again.load_state_dict(state)
        assert again.train().mean_return == expected.mean_return
        assert same(weights(again), weights(ppo))


class Talkative(gymnasium.Wrapper):
    """Has infos that cannot be copied."""

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action):
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"held": threading.Lock()}


def test_infos_are_nobodys_business(tmp_path):
    with shoal.Serial(Talkative, 8, flat=True) as vec:
        interrupted(tmp_path, vec)
    assert (tmp_path / "checkpoint.safetensors").exists()


class Unpicklable(gymnasium.Env):
    """Holds something that cannot be saved."""

    observation_space = Box(0, 1, (1,), np.float32)
    action_space = Discrete(2)

    def __init__(self):
        self.held = threading.Lock()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, self.np_random.random() < 0.1, False, {}


def test_envs_that_cannot_be_saved_are_told_of(tmp_path):
    with (
        shoal.Serial(Unpicklable, 8, flat=True) as vec,
        PPO(vec, config()) as ppo,
        Run(tmp_path, ppo, "unknown") as run,
    ):
        ppo.train(lambda update: ppo.stop())
        assert not run.save()
        state = ppo.state_dict()
    assert not list(tmp_path.glob("*.pickle"))
    with shoal.Serial(Unpicklable, 8, flat=True) as vec, PPO(vec, config()) as again:
        assert state["envs"] is None
        assert not again.load_state_dict(state)
        assert same(weights(again), weights(ppo))
        assert again.train().steps >= 1500


def test_what_a_run_writes(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with PPO("shoal/CartPole-v1", config()) as ppo, Run(tmp_path, ppo, "shoal/CartPole-v1") as run:
        result = ppo.train(run)
        told = run.history()
    assert (tmp_path / "policy.safetensors").exists()
    asked = json.loads((tmp_path / "config.json").read_text())
    assert (asked["algorithm"], asked["env"], asked["config"]["horizon"]) == ("ppo", "shoal/CartPole-v1", 16)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["updates"] for line in lines] == list(range(1, result.updates + 1))
    assert lines[-1]["steps"] == result.steps
    assert lines[-1]["mean_return"] == pytest.approx(result.mean_return)
    assert [update.steps for update in told] == [line["steps"] for line in lines]
    assert told[-1].mean_return == pytest.approx(result.mean_return)
    assert told[-1].losses["entropy"] == lines[-1]["entropy"]
    board = EventAccumulator(str(tmp_path))
    board.Reload()
    names = set(board.Tags()["scalars"])
    assert {"charts/episodic_return", "charts/SPS", "losses/value_loss", "losses/approx_kl"} <= names
    assert board.Scalars("charts/episodic_return")[-1].step == result.steps


def test_the_policy_of_a_run_plays_as_it_did(tmp_path):
    # CHECKLIST 27: its normaliser is saved with it.
    with PPO("shoal/Pendulum-v1", config()) as ppo:
        ppo.train()
        ppo.save(tmp_path)
    policy = load(tmp_path)
    assert policy.encoder.moments.count > 0
    first, second = (evaluate(each, "shoal/Pendulum-v1", 10, seed=3) for each in (ppo.policy, policy))
    assert first.returns.tolist() == second.returns.tolist()
    assert policy.return_scale == ppo.policy.return_scale != 1


def test_a_pickle_of_the_weights_holds_each_number_once():
    with PPO("shoal/CartPole-v1", config(hidden=(64, 64))) as ppo:
        ppo.train(lambda update: ppo.stop())  # from the first step on, all weights are parts of one vector
        numbers = sum(tensor.nbytes for tensor in ppo.policy.state_dict().values())
        assert len(pickle.dumps(ppo.policy.state_dict())) < 1.5 * numbers


def test_a_run_that_was_killed_has_no_update_twice(tmp_path):
    with PPO("shoal/CartPole-v1", config()) as ppo, Run(tmp_path, ppo, "shoal/CartPole-v1") as run:

        def told(update):
            run(update)
            if update.updates == 5:
                run.save()
            if update.updates == 9:
                raise KeyboardInterrupt("killed")

        with pytest.raises(KeyboardInterrupt, match="killed"):
            ppo.train(told)
        run._close(save=False)  # as if the process had ended
    with resume(tmp_path, total_steps=2000) as run:
        ppo = run.learner
        assert ppo.updates == 5
        ppo.train(run)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["updates"] for line in lines] == list(range(1, ppo.updates + 1))
    assert json.loads((tmp_path / "config.json").read_text())["config"]["total_steps"] == 2000


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    interrupted(tmp_path, "shoal/CartPole-v1")
    metrics = tmp_path / "metrics.jsonl"
    whole = metrics.read_text()
    metrics.write_text(whole + '{"steps": 12')
    with resume(tmp_path) as run:
        assert metrics.read_text() == whole
        assert len(run.history()) == 5
        assert run.damaged_lines == 1


def test_a_run_goes_on_with_other_threads_if_asked(tmp_path):
    interrupted(tmp_path, "shoal/CartPole-v1", updates=1, torch_threads=2)
    with resume(tmp_path) as run:
        assert run.learner.threads.learning == 2
    with resume(tmp_path, torch_threads=1) as run:
        assert run.learner.threads.learning == 1


def test_a_folder_holds_one_run(tmp_path):
    with PPO("shoal/CartPole-v1", config()) as ppo:
        Run(tmp_path, ppo, "shoal/CartPole-v1").close()
        with pytest.raises(RunError, match="contains a run already"):
            Run(tmp_path, ppo, "shoal/CartPole-v1")
        with pytest.raises(TypeError, match="env: expected a name, by which the run can be resumed"):
            Run(tmp_path / "new", ppo, type(ppo))
        with pytest.raises(TypeError, match=r"options: expected RunOptions\(...\), got {}"):
            Run(tmp_path / "new", ppo, "shoal/CartPole-v1", options={})
        (tmp_path / "foreign").mkdir()
        (tmp_path / "foreign" / "events.out.tfevents.1").touch()
        with pytest.raises(RunError, match=r"events\.out\.tfevents\.1: belongs to something else"):
            Run(tmp_path / "foreign", ppo, "shoal/CartPole-v1")
    for folder, why in ((tmp_path / "none", "does not exist"), (tmp_path / "config.json", "is a file")):
        for read in (load, resume):
            with pytest.raises(RunError, match=f"expected the folder of a run, but it {why}"):
                read(folder)
    (tmp_path / "policy.safetensors").unlink()
    with pytest.raises(RunError, match=r"but it has no policy\.safetensors"):
        load(tmp_path)


def test_a_run_that_saved_nothing_is_in_nobodys_way(tmp_path):
    with PPO("shoal/CartPole-v1", config()) as ppo:
        run = Run(tmp_path, ppo, "shoal/CartPole-v1")
        run._close(save=False)  # as if the process had been killed
        (tmp_path / "metrics.jsonl").write_text("half a line")
        (tmp_path / "policy.safetensors.part").write_text("half a policy")
        with Run(tmp_path, ppo, "shoal/CartPole-v1") as run:
            ppo.train(lambda update: (run(update), ppo.stop()))
            # Saved after the first update already, and written down so that others can read it.
            assert (tmp_path / "checkpoint.safetensors").exists()
            assert not list(tmp_path.glob("*.part"))
            assert json.loads((tmp_path / "metrics.jsonl").read_text())["updates"] == 1


def test_evaluation_is_not_biased_to_short_episodes():
    # CHECKLIST 30: half of the envs have episodes of 1 step, half of 9. The first 20 to end would be short.
    class Uneven(gymnasium.Env):
        observation_space = Box(0, 1, (1,), np.float32)
        action_space = Discrete(2)
        made = 0

        def __init__(self):
            self.length = 1 if Uneven.made % 2 else 9
            Uneven.made += 1

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.steps = 0
            return np.zeros(1, np.float32), {}

        def step(self, action):
            self.steps += 1
            return np.zeros(1, np.float32), 1.0, self.steps == self.length, False, {}

    with shoal.Serial(Uneven, 4, flat=True) as vec, PPO(vec, config(num_envs=4)) as ppo:
        found = evaluate(ppo.policy, vec, 20)
    assert sorted(found.lengths) == [1] * 10 + [9] * 10
    assert found.mean_return == 5
