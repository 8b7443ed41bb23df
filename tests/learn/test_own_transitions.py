"""What learners with a replay offer to loops of one's own: watching, changed transitions, gradient steps."""

import pytest
import torch

from shoal import _core
from shoal.errors import ArgumentError
from tests.learn.off_policy import digest, make, trained

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="there are no compiled envs without the core")


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    """Small networks wait for each other's threads longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


BOTH = pytest.mark.parametrize("name", ["dqn", "sac"])


@pytest.mark.parametrize("mode", ["sync", "overlap"])
def test_every_batch_is_watched_while_no_env_is_stepped(mode):
    with make("dqn", mode=mode, total_steps=300) as learner:
        ends, lengths = [], []

        def look(batch):
            lengths.append(len(batch.obs))
            learner.vec.snapshot()  # which raises while envs are stepped
            ends.append(int((batch.terminations | batch.truncations).sum()))

        learner.watch(look)
        learner.train()
    assert set(lengths) == {4}
    assert sum(ends) == learner.episodes.count > 0


def test_a_watcher_may_stop_training_and_may_be_removed():
    with make("dqn") as learner:
        seen = []

        def look(batch):
            seen.append(batch.rewards.copy())
            if len(seen) == 20:
                learner.stop()

        learner.watch(look)
        result = learner.train()
        assert result.stopped
        assert learner.steps < 200
        learner.watch(None)
        count = len(seen)
        assert not learner.train().stopped
        assert len(seen) == count


def test_watching_changes_nothing():
    with make("dqn", total_steps=200) as learner:
        learner.watch(lambda batch: None)
        learner.train()
    assert digest(learner) == digest(trained("dqn", total_steps=200))


@BOTH
def test_sampled_transitions_are_changed_before_they_are_learnt_from(name):
    sampled = []

    def pay_more(transitions):
        sampled.append(transitions)
        return transitions._replace(returns=transitions.returns + 100)

    with make(name, learning_rate=1e-2, total_steps=120) as learner:
        learner.train()
        values = learner.learn(2)["q_values"]
        learner.augment = pay_more
        learner.learn(30)
        assert learner.learn(2)["q_values"] > values + 2
    assert sampled[0].returns.abs().max() < 50
    assert sum(len(each.returns) for each in sampled) == 32 * 32


@BOTH
def test_gradient_steps_of_a_loop_of_ones_own(name):
    with make(name, total_steps=150) as learner:
        with pytest.raises(ArgumentError, match="expected a replay with at least one transition, got none"):
            learner.learn()
        learner.train()
        updates = learner.updates
        before = digest(learner)
        figures = learner.learn(3)
        assert learner.updates == updates + 3
        assert {"value", "q_values", "grad_norm"} <= set(figures)
        assert digest(learner) != before


@BOTH
@pytest.mark.parametrize("mode", ["sync", "overlap"])
def test_a_learner_begins_with_the_policy_of_another(name, mode):
    source = trained(name, total_steps=150)
    with make(name, mode=mode, seed=9, total_steps=150) as learner:
        learner.start_from(source.policy)
        expected = source.policy.state_dict()
        assert all(torch.equal(value, expected[key]) for key, value in learner.policy.state_dict().items())
        # Its targets are those of the new weights: nothing is left of the first ones.
        target = learner.state_dict()["learning"]["target"]
        with make(name, mode=mode, seed=10, total_steps=150) as other:
            other.start_from(source.policy)
            same = other.state_dict()["learning"]["target"]
        assert target
        assert all(torch.equal(one, other) for one, other in zip(target, same, strict=True))
        learner.train()
        assert any(
            not torch.equal(value, expected[key]) for key, value in learner.policy.state_dict().items()
        )


def test_policies_that_do_not_fit():
    source = trained("dqn", total_steps=110)
    with (
        make("dqn", hidden=(8,)) as learner,
        pytest.raises(ArgumentError, match="policy: expected a QPolicy with"),
    ):
        learner.start_from(source.policy)
    with (
        make("sac") as learner,
        pytest.raises(ArgumentError, match=r"expected a SACPolicy with .* got a QPolicy"),
    ):
        learner.start_from(source.policy)
    with (
        make("dqn", "shoal/Acrobot-v1") as learner,
        pytest.raises(ArgumentError, match="trained on observations"),
    ):
        learner.start_from(source.policy)


def test_a_state_can_be_restored_when_no_gradient_step_is_due():
    settings = {"num_envs": 1, "updates_per_step": 0.1, "warmup_steps": 10, "total_steps": 20}
    with make("dqn", **settings) as learner, make("dqn", **settings) as other:
        learner.train()
        assert learner.updates == 1
        other.load_state_dict(learner.state_dict())
        assert other.updates == 1
