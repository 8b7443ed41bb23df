"""Agents that have not acted yet: their rewards and ends reach their rows exactly once, in every backend."""

from types import SimpleNamespace

import gymnasium.spaces as sp
import numpy as np
import pytest

import shoal
from shoal import _core
from shoal.errors import RestartWarning
from shoal.testing import CrashEnv
from tests.backends import BACKENDS, marks_of

pytestmark = [pytest.mark.core, pytest.mark.twins]

MODES = ["NextStep", "SameStep"]


class Blitz(shoal.Env):
    """Player 0 moves first, and pays player 1 one for it. Action 1 ends the game and pays three more."""

    observation_space = sp.Discrete(99)
    action_space = sp.Discrete(2)
    num_agents = 2

    def reset(self, seed=None, options=None):
        self.moves = 0
        self.observations[:] = 0
        self.mask[:] = (True, False)

    def step(self, actions):
        mover = self.moves % 2
        pays = 4 if actions[mover] else 1
        self.moves += 1
        self.observations[:] = self.moves
        self.rewards[mover], self.rewards[1 - mover] = -pays, pays
        self.mask[:] = (mover == 1, mover == 0)
        if actions[mover]:
            self.terminations[:] = True


class CompiledBlitz(shoal.NativeEnv):
    """The same, compiled."""

    observation_space = sp.Discrete(99)
    action_space = sp.Discrete(2)
    num_agents = 2
    state = np.dtype([("moves", np.int64)])

    @staticmethod
    def reset(state, obs, alive):
        obs[0] = obs[1] = 0
        alive[1] = False

    @staticmethod
    def step(state, actions, obs, rewards, terminated, alive):
        mover = state.moves % 2
        pays = 4.0 if actions[mover] == 1 else 1.0
        state.moves += 1
        obs[0] = obs[1] = state.moves
        rewards[mover] = -pays
        rewards[1 - mover] = pays
        alive[mover] = False
        alive[1 - mover] = True
        if actions[mover] == 1:
            terminated[0] = terminated[1] = True


FIRST_MOVES = {
    name: lambda *args, make=make, **kw: make(Blitz, *args, **kw) for name, make in BACKENDS.items()
}
FIRST_MOVES["nested"] = lambda envs, **kw: shoal.Serial(
    [lambda: shoal.Serial(Blitz, envs, **_mode(kw))], **kw
)
FIRST_MOVES["debug"] = lambda *args, **kw: shoal.Native(CompiledBlitz, *args, debug=True, **kw)
if _core.NAME == "native":
    FIRST_MOVES["native"] = lambda *args, **kw: shoal.Native(CompiledBlitz, *args, **kw)
EACH = [pytest.param(name, marks=marks_of(name)) for name in FIRST_MOVES]


def _mode(options):
    return {"autoreset_mode": options["autoreset_mode"]}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", EACH)
def test_an_end_by_the_first_move_reaches_the_other_player_once(backend, mode):
    with FIRST_MOVES[backend](2, autoreset_mode=mode, episode_stats=True) as vec:
        vec.async_reset(seed=0)
        vec.recv()
        for game in range(3):
            vec.send([1, 0, 1, 0])
            batch = vec.recv()
            assert batch.rewards.tolist() == [-4, 4, -4, 4]
            assert batch.terminations.all()
            assert not batch.truncations.any()
            assert batch.resets.tolist() == [False, True, False, True]  # no transition to learn from
            assert batch.infos["episode"]["r"].tolist() == [-4, 4, -4, 4]
            assert batch.infos["episode"]["l"].tolist() == [1, 0, 1, 0]
            if mode == "SameStep":
                assert np.array(batch.infos["final_obs"].tolist()).ravel().tolist() == [1, 1, 1, 1]
            else:
                vec.send([0, 0, 0, 0])
                batch = vec.recv()
                assert not batch.rewards.any(), game
                assert not batch.terminations.any()
                assert batch.resets.all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", EACH)
def test_what_comes_before_the_first_action_counts_in_the_return(backend, mode):
    with FIRST_MOVES[backend](1, autoreset_mode=mode, episode_stats=True) as vec:
        vec.reset(seed=0)
        for _ in range(2):
            *_, infos = vec.step([0, 0])  # -1, 1
            assert "episode" not in infos
            _, rewards, terminations, _, infos = vec.step([0, 1])
            assert rewards.tolist() == [4, -4]
            assert terminations.all()
            assert infos["episode"]["r"].tolist() == [3, -3]
            assert infos["episode"]["l"].tolist() == [1, 1]
            if mode == "NextStep":
                vec.step([0, 0])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", EACH)
def test_random_play_of_a_zero_sum_game_sums_to_zero(backend, mode):
    random = np.random.default_rng(0)
    total, of_episodes, episodes = np.zeros(8), np.zeros(8), np.zeros(8, int)
    with FIRST_MOVES[backend](4, autoreset_mode=mode, episode_stats=True) as vec:
        vec.reset(seed=0)
        for step in range(400):
            ends = random.random(8) < (0.5 if step < 390 else 1)
            _, rewards, _, _, infos = vec.step(ends.astype(np.int64))
            total += rewards
            if "episode" in infos:
                of_episodes += infos["episode"]["r"]
                episodes += infos["_episode"]
    assert total.sum() == of_episodes.sum() == 0
    assert total[0::2].any()
    assert (episodes[0::2] == episodes[1::2]).all()
    assert episodes.min() > 50


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("paid", "told"), [(0, False), (2, True)])
def test_an_agent_without_a_flag_is_truncated_only_if_it_had_a_part(mode, paid, told):
    class Silent(Blitz):
        def step(self, actions):
            self.rewards[:] = (1, paid)
            self.mask[:] = False

    with shoal.Serial(Silent, 1, autoreset_mode=mode, episode_stats=True) as vec:
        vec.reset(seed=0)
        for _ in range(3):
            _, rewards, _, truncations, infos = vec.step([0, 0])
            assert rewards.tolist() == [1, paid]
            assert truncations.tolist() == [True, told]
            assert infos["_episode"].tolist() == [True, told]
            if mode == "NextStep":
                vec.step([0, 0])


def test_totals_survive_a_partial_reset_of_other_envs():
    with shoal.Serial(Blitz, 2, autoreset_mode="Disabled", episode_stats=True) as vec:
        vec.reset(seed=0)
        vec.step([0, 0, 1, 0])  # the second game is over
        vec.reset(options={"reset_mask": np.array([False, True])})
        *_, infos = vec.step([0, 1, 1, 0])
        assert infos["episode"]["r"].tolist() == [3, -3, -4, 4]


@pytest.mark.skipif(_core.NAME != "native", reason="needs the compiled core")
def test_a_restart_reports_what_came_before_the_first_action():
    class Fragile(Blitz):
        def step(self, actions):
            if self.moves == 1:
                CrashEnv(0, how="kill")._fail()
            super().step(actions)

    with shoal.Multiprocessing(Fragile, 1, num_workers=1, on_error="restart", episode_stats=True) as vec:
        vec.reset(seed=0)
        vec.step([0, 0])
        with pytest.warns(RestartWarning, match="worker 0 is restarted"):
            *_, truncations, infos = vec.step([0, 0])
        assert truncations.all()
        assert infos["episode"]["r"].tolist() == [-1, 1]
        assert infos["episode"]["l"].tolist() == [1, 0]


def test_pettingzoo_games_that_end_on_the_first_move_are_zero_sum():
    aec = pytest.importorskip("pettingzoo").AECEnv

    class Duel(aec):
        metadata = {"name": "duel", "is_parallelizable": False}
        possible_agents = ["first", "second"]
        render_mode = None

        def observation_space(self, agent):
            return sp.Discrete(9)

        def action_space(self, agent):
            return sp.Discrete(2)

        def observe(self, agent):
            return self.moves

        def reset(self, seed=None, options=None):
            self.agents, self.moves = list(self.possible_agents), 0
            self.agent_selection = "first"
            self.rewards = self._cumulative_rewards = dict.fromkeys(self.agents, 0)
            self.terminations = dict.fromkeys(self.agents, False)
            self.truncations = dict.fromkeys(self.agents, False)
            self.infos = {agent: {} for agent in self.agents}

        def step(self, action):
            if self.terminations[self.agent_selection]:
                self._was_dead_step(action)
                return
            mover = self.agent_selection
            (other,) = set(self.possible_agents) - {mover}
            self.moves += 1
            self.agent_selection = other
            self.rewards = {mover: 0, other: 0}
            if action or self.moves == 8:
                self.rewards = {mover: 1, other: -1}
                self.terminations = dict.fromkeys(self.agents, True)
            self._cumulative_rewards = dict.fromkeys(self.agents, 0)
            self._accumulate_rewards()

    random, total = np.random.default_rng(0), np.zeros(8)
    with shoal.Serial(Duel, 4, episode_stats=True) as vec:
        vec.reset(seed=0)
        for _ in range(200):
            _, rewards, _, _, infos = vec.step(random.integers(2, size=8))
            total += rewards
            if "episode" in infos:
                ended = infos["_episode"].reshape(4, 2)
                assert (ended[:, 0] == ended[:, 1]).all()
                assert infos["episode"]["r"].sum() == 0
    assert total.sum() == 0
    assert total.any()


def test_learners_leave_such_rows_out_of_the_loss():
    pytest.importorskip("torch")
    import torch

    from shoal.learn.episodes import Episodes
    from shoal.learn.rollout import Rollout

    actions = SimpleNamespace(width=1, dtype=torch.int64, num_logits=2)
    with shoal.Serial(Blitz, 1, flat=True) as vec:
        rollout = Rollout(2, 4, vec.observation_layout, actions)
        episodes = Episodes(2)
        vec.async_reset(seed=0)
        ones = torch.ones(2)
        for _ in range(4):
            batch = vec.recv()
            episodes.add(batch, slice(None))
            rollout.finish(batch, slice(None))
            chosen = np.array([1, 0])
            rollout.store(batch, slice(None), torch.tensor(chosen)[:, None], ones, 7 * ones, None, None)
            vec.send(chosen.reshape(2, *vec.single_action_space.shape))
        batch = vec.recv()
        full = rollout.finish(batch, slice(None))
        rollout.close(full, np.array([7, 7], np.float32))
    found = rollout.take()
    # The second player never acts: the game is over before its turn, or is being reset.
    assert found.acts.T.tolist() == [[True, False, True, False], [False] * 4]
    assert found.rewards.T.tolist() == [[-4, 0, -4, 0], [0, 0, 0, 0]]
    assert found.advantages(0.99, 0.95).T.tolist() == [[-11, 0, -11, 0], [0, 0, 0, 0]]
    # The means are of both players' episodes: unbiased.
    assert list(episodes.returns) == [-4, 4, -4, 4]
    assert list(episodes.lengths) == [1, 0, 1, 0]


def test_an_evaluation_counts_both_players():
    pytest.importorskip("torch")
    from shoal.learn import PPO, PPOConfig, evaluate

    class Short(Blitz):
        def step(self, actions):
            actions[:] = 1  # the first move ends the game
            super().step(actions)

    with PPO(Blitz, PPOConfig(total_steps=256, num_envs=2, seed=0, backend="serial")) as ppo:
        ppo.train()
    with shoal.Serial(Short, 8, flat=True) as vec:
        found = evaluate(ppo.policy, vec, 160)
    assert found.mean_return == 0
    assert sorted(set(found.lengths.tolist())) == [0, 1]
