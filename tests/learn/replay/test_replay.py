"""What is sampled from a replay is what happened, whatever the order in which rows arrive."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

import shoal
from shoal.errors import ArgumentError, Diverged, OutOfResources
from shoal.learn import DQN, Actions, DQNConfig, Replay
from shoal.learn.replay import check_memory
from shoal.rows.layout import layout
from tests.learn.replay.batches import NUMBER, batch, content, play, small


def test_transitions_are_sampled_as_they_happened():
    replay = small()
    play(replay, batch([1], begins=[0]), batch([2], 10.0), batch([3], 20.0), batch([4], 30.0))
    assert len(replay) == 3  # what follows the action at 4 is not known
    assert content(replay) == [(1, 1, 10, 0.5, 2), (2, 2, 20, 0.5, 3), (3, 3, 30, 0.5, 4)]


def test_an_episode_that_ends_by_itself_has_no_value_after_it():
    replay = small()
    play(replay, batch([1], begins=[0]), batch([2], 10.0, ends=[0]), batch([3], begins=[0]), batch([4], 1.0))
    assert content(replay) == [(1, 1, 10, 0.0, None), (3, 3, 1, 0.5, 4)]


def test_an_episode_that_is_cut_off_goes_on_from_its_last_observation():
    # CHECKLIST 24: never from the observation after the reset.
    replay = small()
    play(replay, batch([1], begins=[0]), batch([2], 10.0, cuts=[0]), batch([3], begins=[0]), batch([4], 1.0))
    assert content(replay) == [(1, 1, 10, 0.5, 2), (3, 3, 1, 0.5, 4)]


def test_an_episode_that_ends_and_is_cut_off_at_once_has_ended():
    replay = small()
    play(replay, batch([1], begins=[0]), batch([2], 10.0, ends=[0], cuts=[0]))
    assert content(replay) == [(1, 1, 10, 0.0, None)]


def test_rewards_while_a_row_waits_belong_to_its_last_action():
    replay = small()
    play(
        replay,
        batch([1], begins=[0]),
        batch([7], 10.0, waits=[0]),
        batch([8], 5.0, waits=[0]),
        batch([2], 1.0),
        batch([9], 3.0, waits=[0]),
        batch([9], 4.0, ends=[0]),
    )
    assert content(replay) == [(1, 1, 16, 0.5, 2), (2, 2, 7, 0.0, None)]


def test_a_reward_before_the_first_action_belongs_to_none():
    replay = small()
    play(replay, batch([1], 9.0, begins=[0], waits=[0]), batch([2], 8.0, begins=[0]), batch([3], 1.0))
    assert content(replay) == [(2, 2, 1, 0.5, 3)]


def test_an_action_whose_outcome_a_reset_hides_is_not_learnt_from():
    replay = small()
    play(replay, batch([1], begins=[0]), batch([2], begins=[0]), batch([3], 1.0))
    assert content(replay) == [(2, 2, 1, 0.5, 3)]


def test_rows_arrive_in_any_order():
    replay = small(rows=2)
    play(replay, batch([10], begins=[0]), row=1)
    play(replay, batch([1], begins=[0]), batch([2], 1.0), row=0)
    play(replay, batch([11], 5.0), batch([12], 6.0), row=1)
    play(replay, batch([3], 2.0), row=0)
    assert content(replay) == [(1, 1, 1, 0.5, 2), (2, 2, 2, 0.5, 3), (10, 0, 5, 0.5, 11), (11, 1, 6, 0.5, 12)]


def test_the_oldest_go_first():
    replay = small(capacity=4)
    play(replay, batch([1], begins=[0]), *(batch([number], float(number)) for number in range(2, 9)))
    assert len(replay) == 3
    assert [row[0] for row in content(replay)] == [5, 6, 7]
    assert replay.nbytes == 4 * (4 + 4 + 4 + 4)


def test_a_row_that_waits_while_the_ring_turns_loses_its_action_only():
    replay = small(capacity=4, rows=2)
    play(replay, batch([10], begins=[0]), row=1)
    play(replay, batch([1], begins=[0]), *(batch([number], float(number)) for number in range(2, 7)), row=0)
    play(replay, batch([11], 99.0), batch([12], 7.0), row=1)
    assert [row for row in content(replay) if row[0] >= 10] == [(11, 1, 7, 0.5, 12)]
    assert 99 not in [row[2] for row in content(replay)]


def test_an_outcome_is_not_written_to_a_place_that_the_same_batch_takes():
    random, kept = np.random.default_rng(0), {}
    replay = small(capacity=12, rows=6)
    for step in range(2000):
        rows = random.choice(6, random.integers(1, 4), replace=False)
        numbers = [10_000 * (int(row) + 1) + step for row in rows]
        for row, number in zip(rows.tolist(), numbers, strict=True):
            kept.setdefault(row, []).append(number)
        begins = [place for place, row in enumerate(rows.tolist()) if len(kept[row]) == 1]
        given = batch(numbers, [float(number) for number in numbers], begins=begins)
        replay.add(given, np.zeros((len(rows), 1), np.int64), rows=rows)
        assert len(replay) <= 12
        if len(replay):
            for now, _, reward, _, after in content(replay, 20):
                row = kept[int(now) // 10_000 - 1]
                assert row[row.index(now) + 1] == after == reward


def test_clear_forgets_all_and_the_outcome_of_what_was_under_way():
    replay = small(prioritized=True)
    play(replay, batch([1], begins=[0]), batch([2], 1.0))
    replay.clear()
    assert len(replay) == 0
    with pytest.raises(ArgumentError, match="expected a replay with at least one transition"):
        replay.sample(1, gamma=0.5)
    play(replay, batch([3], 50.0), batch([4], 2.0))
    assert content(replay) == [(3, 3, 2, 0.5, 4)]


# -- n steps -------------------------------------------------------------------------------------------------


def episode(*outcomes, last):
    """Observations 1, 2, 3... with rewards 1, 10, 100...; the last batch is as `last` says."""
    batches = [batch([1], begins=[0])]
    for place in range(outcomes[0]):
        how = {last: [0]} if place == outcomes[0] - 1 and last else {}
        batches.append(batch([place + 2], 10.0**place, **how))
    return batches


def test_n_step_returns_by_hand():
    replay = small()
    play(replay, *episode(4, last=""))
    assert content(replay, n_step=3) == [
        (1, 1, 1 + 5 + 25, 0.125, 4),
        (2, 2, 10 + 50 + 250, 0.125, 5),
        (3, 3, 100 + 500, 0.25, 5),  # fewer steps are known
        (4, 4, 1000, 0.5, 5),
    ]


def test_n_step_returns_stop_where_an_episode_ends():
    replay = small()
    play(replay, *episode(3, last="ends"), batch([8], begins=[0]), batch([9], 7.0))
    assert content(replay, n_step=5) == [
        (1, 1, 1 + 5 + 25, 0.0, None),
        (2, 2, 10 + 50, 0.0, None),
        (3, 3, 100, 0.0, None),
        (8, 3, 7, 0.5, 9),
    ]


def test_n_step_returns_stop_at_a_truncation_and_go_on_from_the_last_observation():
    replay = small()
    play(replay, *episode(3, last="cuts"), batch([8], begins=[0]), batch([9], 7.0))
    assert content(replay, n_step=5) == [
        (1, 1, 1 + 5 + 25, 0.125, 4),
        (2, 2, 10 + 50, 0.25, 4),
        (3, 3, 100, 0.5, 4),
        (8, 3, 7, 0.5, 9),
    ]


# -- what is stored ------------------------------------------------------------------------------------------


def test_masks_are_sampled_with_both_observations():
    replay = small()
    masks = np.array([[True, False, False, True, False]])
    first, second = batch([1], begins=[0]), batch([2], 1.0)
    replay.add(first, np.array([[0]]), masks=masks)
    replay.add(second, np.array([[2]]), masks=~masks)
    found = replay.sample(3, gamma=0.5)
    assert found.masks.tolist() == [masks[0].tolist()] * 3
    assert found.next_masks.tolist() == [(~masks)[0].tolist()] * 3


def test_any_layout_comes_back_as_it_was():
    space = Dict({"a": Box(0, 1, (2,), np.float64), "b": Discrete(7), "c": MultiDiscrete([3, 4])})
    plan = layout(space)
    replay = Replay(50, 1, plan, Actions(Box(-1, 1, (3,), np.float32)))
    rows = [plan.pack(space.sample()) for _ in range(10)]
    for place, row in enumerate(rows):
        given = batch([0], begins=[0] if place == 0 else [])._replace(obs=row[None])
        replay.add(given, np.full((1, 3), place / 10, np.float32))
    found = replay.sample(200, gamma=1.0)
    for obs, action, after in zip(found.obs, found.actions, found.next_obs, strict=True):
        place = round(float(action[0]) * 10)
        assert (obs.numpy() == rows[place]).all()
        assert (after.numpy() == rows[place + 1]).all()


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_reward_or_observation_that_is_not_finite_is_refused(wrong):
    replay = small()
    play(replay, batch([1], begins=[0]))
    with pytest.raises(Diverged, match=f"env 0 gave {wrong} as a reward"):
        play(replay, batch([2], wrong))
    with pytest.raises(Diverged, match=f"observation of env 0 has {wrong}"):
        replay.add(batch([wrong], 1.0), np.array([[0]]))
    play(replay, batch([2], 3.0))
    assert content(replay) == [(1, 1, 3, 0.5, 2)]


def test_it_is_refused_if_it_does_not_fit_into_memory():
    with pytest.raises(OutOfResources, match=r"replay_size: 100,000,000,000 transitions take 2800\.0 GB"):
        DQN("shoal/CartPole-v1", DQNConfig(replay_size=10**11, total_steps=10**11))
    check_memory(1000, 10_000)


def test_only_what_will_be_used_must_fit_into_memory():
    with DQN("shoal/CartPole-v1", DQNConfig(replay_size=10**12, total_steps=10_000)) as dqn:
        assert dqn.replay.nbytes < 10**6


# -- saving --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("prioritized", [False, True])
def test_a_restored_replay_goes_on_alike(turns, prioritized):
    def made():
        return small(capacity=8 if turns else 100, rows=1, prioritized=prioritized, seed=3)

    before = [batch([1], begins=[0]), *(batch([number], float(number)) for number in range(2, 14))]
    after = [batch([20], 5.0), batch([21], 6.0, cuts=[0]), batch([22], begins=[0]), batch([23], 1.0)]
    one = made()
    play(one, *before)
    one.set_errors(one.sample(4, gamma=0.5).places, np.arange(4, dtype=np.float32), 0.6)
    two = made()
    two.load_state_dict(one.state_dict())
    for replay in (one, two):
        play(replay, *after)
    for _ in range(3):
        a, b = (replay.sample(32, gamma=0.9, n_step=2) for replay in (one, two))
        assert all(torch.equal(x, y) for x, y in zip(a[:5], b[:5], strict=True))
        assert a.places.tolist() == b.places.tolist()
    assert len(one) == len(two)


def test_all_backends_give_the_same_transitions():
    def transitions(enough, **settings):
        with shoal.make("CartPole-v1", 4, flat=True, copy=False, **settings) as vec:
            replay = Replay(10_000, 4, vec.observation_layout, Actions(vec.single_action_space))
            vec.async_reset(seed=3)
            while len(replay) < enough:
                got = vec.recv()
                chosen = (got.obs[:, 2:3] > 0).astype(np.int64)
                replay.add(got, chosen, rows=got.env_ids)
                vec.send(chosen[:, 0])
        found = replay.sample(20_000, gamma=0.9)
        after = torch.where(found.discounts[:, None] > 0, found.next_obs, 0)
        columns = (found.obs, found.actions, found.returns[:, None], found.discounts[:, None], after)
        table = torch.cat([column.double() for column in columns], 1).numpy()
        return {row.tobytes() for row in table}

    settings = {"backend": "multiprocessing", "num_workers": 2, "batch_size": 2, "order": "ready"}
    asynchronous = transitions(200, **settings)
    # Envs are not equally far, but none is further than all steps together.
    assert asynchronous <= transitions(4 * 220, backend="serial")


def test_a_capacity_for_less_than_two_steps_is_refused():
    with pytest.raises(
        ArgumentError, match="capacity: expected at least twice the number of rows, 20, got 9"
    ):
        Replay(9, 10, NUMBER, Actions(Discrete(2)))
