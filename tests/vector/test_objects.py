"""Spaces without bytes (Sequence, Graph, custom ones): carried as objects by every backend of Python envs."""

import os
import pickle
import signal
import threading
import time
from copy import deepcopy
from functools import partial
from pathlib import Path

import gymnasium
import gymnasium.spaces as sp
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tests.backends import BACKENDS, processes, with_spaces

import shoal
from shoal import _core
from shoal.errors import (
    ActionError,
    EnvError,
    ObservationError,
    RestartWarning,
    SpaceError,
    WorkerDied,
)
from shoal.testing import OBJECT_SPACES, SampleEnv
from shoal.testing.contract import require_equal

native = pytest.mark.skipif(_core.NAME != "native", reason="worker processes need the compiled core")
backends = pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
modes = pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)

COUNTS = sp.Sequence(sp.Discrete(10**9))


class Ledger(gymnasium.Env):
    """Says the same in its bytes and in its object: which env, episode and step this is.

    The object also repeats the object of the last action, which must begin with the env's own number.
    """

    observation_space = sp.Dict(bytes=sp.Box(-1, 10**9, (3,), np.int64), object=COUNTS)
    action_space = sp.Dict(bytes=sp.Discrete(1000), object=COUNTS)

    def __init__(self, env_id=0, length=4, dies_at=0):
        self.env_id, self.length, self.dies_at = env_id, length, dies_at
        self.life, self.episode = 0, -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.count = self.episode + 1, 0
        return self._observe(()), {}

    def step(self, action):
        self.life, self.count = self.life + 1, self.count + 1
        assert action["object"][0] == action["bytes"] == self.env_id
        if self.life == self.dies_at:
            os._exit(3)
        return self._observe(action["object"]), 1.0, self.count == self.length, False, {}

    def process_id(self):
        return os.getpid()

    def _observe(self, last):
        moment = (self.env_id, self.episode, self.count)
        return {"bytes": np.array(moment), "object": (*moment, *last)}


def ledgers(count, dying=None):
    return [partial(Ledger, i, dies_at=6 if i == dying else 0) for i in range(count)]


def actions_for(env_ids):
    ids = [int(env) for env in env_ids]
    return {"bytes": np.array(ids), "object": tuple((env, 7) for env in ids)}


def check(obs, env_ids):
    """Bytes and objects are of the same moment, of the env of their row."""
    assert obs["bytes"][:, 0].tolist() == list(env_ids)
    for row, told in enumerate(obs["object"]):
        assert told[:3] == tuple(obs["bytes"][row])
        assert told[3:] in ((), (told[0], 7))


def check_finals(infos):
    for row in np.flatnonzero(infos.get("_final_obs", [])):
        final = infos["final_obs"][row]
        assert final["object"][:3] == tuple(final["bytes"])
        assert final["object"][0] == row or len(infos["_final_obs"]) < 8


# -- the same as Gymnasium -----------------------------------------------------------------------------------


def side_by_side(backend, create, mode, steps=12):
    theirs = SyncVectorEnv([create] * 3, autoreset_mode=mode)
    with backend([create] * 3, autoreset_mode=mode) as ours:
        assert ours.observation_space == theirs.observation_space
        assert ours.action_space == theirs.action_space
        require_equal(ours.reset(seed=7), theirs.reset(seed=7), "reset")
        theirs.action_space.seed(7)
        done = np.zeros(3, bool)
        for number in range(steps):
            if mode is AutoresetMode.DISABLED and done.any():
                mine = ours.reset(options={"reset_mask": done})
                require_equal(mine, theirs.reset(options={"reset_mask": done}), f"partial reset {number}")
            actions = theirs.action_space.sample()
            expected = theirs.step(deepcopy(actions))
            require_equal(ours.step(actions), expected, f"step {number}")
            done = expected[2] | expected[3]
        for own, expected in zip(ours.get_attr("actions"), theirs.get_attr("actions"), strict=True):
            require_equal(own, expected, "actions, as the envs got them")
    theirs.close()


@pytest.mark.parametrize(("backend", "space"), with_spaces(OBJECT_SPACES))
def test_every_space_is_as_in_gymnasium(backend, space):
    mode = list(AutoresetMode)[len(str(space)) % 3]
    side_by_side(backend, lambda: SampleEnv(deepcopy(space), deepcopy(space)), mode)


@backends
@modes
def test_objects_on_one_side_only(backend, mode):
    graph, box = sp.Graph(sp.Box(-1, 1, (2,)), sp.Discrete(3)), sp.Box(-1, 1, (2,))
    side_by_side(backend, lambda: SampleEnv(deepcopy(graph), deepcopy(box)), mode)
    side_by_side(backend, lambda: SampleEnv(deepcopy(box), deepcopy(graph)), mode)


class Bare(gymnasium.Space):
    """A custom space with nothing of its own: no sample, no contains, no ==."""


class Talking(gymnasium.Env):
    def __init__(self, space):
        self.observation_space, self.action_space = space, space

    def reset(self, *, seed=None, options=None):
        return "reset", {}

    def step(self, action):
        return f"step({action})", 0.0, False, False, {}


@backends
@pytest.mark.parametrize("shared", [True, False], ids=["one space", "a space for each env"])
def test_a_space_without_any_method(backend, shared):
    space = Bare()
    with backend([lambda: Talking(space if shared else Bare())] * 3) as vec:
        assert isinstance(vec.single_action_space, Bare)
        assert isinstance(vec.action_space, sp.Tuple)
        assert vec.reset(seed=0)[0] == ("reset",) * 3
        assert vec.step(("a", "b", "c"))[0] == ("step(a)", "step(b)", "step(c)")
        saved = pickle.loads(pickle.dumps(vec.snapshot()))
        vec.restore(saved)


def test_spaces_that_differ_are_still_found():
    class Sized(Bare):
        def __init__(self, size):
            super().__init__()
            self.size = size

    with pytest.raises(shoal.errors.SpaceMismatch, match="env 1 has another observation space"):
        shoal.Serial([lambda: Talking(Sized(1)), lambda: Talking(Sized(2))])


@backends
def test_observation_modes(backend):
    def create(high):
        return SampleEnv(
            sp.Dict(a=sp.Sequence(sp.Box(0, high, (2,))), b=sp.Box(0, high, (2,))), sp.Discrete(2)
        )

    with backend([partial(create, 1), partial(create, 2)], observation_mode="different") as vec:
        obs, _ = vec.reset(seed=0)
        assert len(obs["a"]) == 2
        assert obs in vec.observation_space
    pair = (sp.Tuple((Bare(), Bare())), Bare())
    with backend([lambda: Talking(Bare())] * 2, observation_mode=pair) as vec:
        assert vec.reset()[0] == ("reset", "reset")
    with pytest.raises(SpaceError, match=r"'different' has no batched space for .*Pass a pair of spaces"):
        backend([lambda: Talking(Bare())] * 2, observation_mode="different")


# -- who owns an object --------------------------------------------------------------------------------------


class Reusing(gymnasium.Env):
    """Gives the same list each time, which all envs of a process share, and keeps its actions."""

    observation_space = action_space = Bare()
    shared = [0]

    def __init__(self, env_id=0):
        self.env_id, self.actions = env_id, []

    def reset(self, *, seed=None, options=None):
        self.count = 0
        self.shared[:] = [self.env_id, 0]
        return self.shared, {}

    def step(self, action):
        self.count += 1
        self.shared[:] = [self.env_id, self.count]
        self.actions.append(action)
        return self.shared, 0.0, self.count == 3, False, {}


@backends
@modes
def test_rows_own_their_objects(backend, mode):
    with backend([partial(Reusing, i) for i in range(4)], autoreset_mode=mode) as vec:
        kept, _ = vec.reset(seed=0)
        action = [0]
        for step in range(1, 4):
            action[0] = step
            obs, *_, infos = vec.step((action,) * 4)
            first_again = step == 3 and mode is AutoresetMode.SAME_STEP
            assert obs == tuple([env, 0 if first_again else step] for env in range(4))
        if mode is AutoresetMode.SAME_STEP:
            assert infos["final_obs"].tolist() == [[env, 3] for env in range(4)]
        assert kept == tuple([env, 0] for env in range(4))
        obs[0].append("changed by the caller")
        if mode is AutoresetMode.DISABLED:
            after, _ = vec.reset(options={"reset_mask": np.array([False, True, True, True])})
            assert after == ([0, 3], [1, 0], [2, 0], [3, 0])
        assert vec.get_attr("actions") == ([[1], [2], [3]],) * 4


class Uncopied:
    """Can be handed on, but not pickled."""

    def __deepcopy__(self, memo):
        return self

    def __reduce_ex__(self, protocol):
        raise RuntimeError("not to be pickled")


class Saying(gymnasium.Env):
    observation_space = sp.Dict(a=sp.Discrete(2), deep=sp.Tuple((sp.Discrete(2), Bare())))
    action_space = sp.Dict(word=Bare())

    def __init__(self, what=None):
        self.what, self.moved = what, 0

    def reset(self, *, seed=None, options=None):
        return {"a": 0, "deep": (0, 1)}, {}

    def step(self, action):
        self.moved += 1
        value = self.what() if callable(self.what) else self.what
        return {"a": 0, "deep": (0, value)}, 0.0, False, False, {}


WORDS = {"word": ("x", "y")}


@native
def test_an_observation_that_cannot_be_pickled_names_env_and_field():
    match = r'observation\["deep"\]\[1\] of env 1 cannot be pickled, so it cannot leave its worker: not to be'
    with processes([Saying, partial(Saying, Uncopied)], num_workers=1) as vec:
        vec.reset()
        with pytest.raises(EnvError, match=match):
            vec.step(WORDS)
        vec.reset()
    with processes([Saying, partial(Saying, Uncopied)], on_error="restart") as vec:
        vec.reset()
        with pytest.warns(RestartWarning, match=match):
            obs, _, _, truncations, _ = vec.step(WORDS)
        assert truncations.tolist() == [False, True]
        assert obs["deep"][1] == (None, 1)


@backends
def test_an_observation_that_cannot_be_copied_names_env_and_field(backend):
    match = r'observation\["deep"\]\[1\]: expected a value that can be copied, got a lock .*step\(\) of env 1'
    with backend([Saying, partial(Saying, threading.Lock)]) as vec:
        vec.reset()
        with pytest.raises(ObservationError, match=match):
            vec.step(WORDS)


@backends
def test_an_action_that_cannot_reach_its_env(backend):
    with backend([Saying, Saying]) as vec:
        vec.reset()
        with pytest.raises(
            ActionError, match=r'action\["word"\] of env 1: expected a value that can be copied'
        ):
            vec.step({"word": ("x", threading.Lock())})
        with pytest.raises(ActionError, match=r'action\["word"\]: expected a sequence of 2'):
            vec.step({"word": ("x",)})
        assert vec.get_attr("moved") == (0, 0)
        vec.step(WORDS)


@native
def test_an_action_that_cannot_be_pickled_moves_no_env():
    with processes([Saying, Saying]) as vec:
        vec.reset()
        with pytest.raises(
            ActionError, match=r'action\["word"\] of env 1 cannot be pickled.*No env has moved'
        ):
            vec.step({"word": ("x", Uncopied())})
        assert vec.get_attr("moved") == (0, 0)
        vec.step(WORDS)


class Unreadable:
    """Can be pickled, and not unpickled."""

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        return int, ("no number",)


@native
def test_an_object_that_cannot_be_unpickled():
    with processes([Saying, partial(Saying, Unreadable)]) as vec:
        vec.reset()
        with pytest.raises(
            EnvError, match=r'action\["word"\] of env 1 cannot be unpickled in its worker.*no number'
        ):
            vec.step({"word": ("x", Unreadable())})
        vec.reset()
        with pytest.raises(
            EnvError, match=r"what a worker sent cannot be unpickled here.*no number"
        ) as caught:
            vec.step(WORDS)
        assert caught.value.env_ids == [1]
        vec.reset()


@native
def test_a_space_that_cannot_be_pickled():
    class Locked(Bare):
        def __init__(self):
            super().__init__()
            self.lock = threading.Lock()

    with pytest.raises(EnvError, match=r"a space or the metadata of an env cannot be pickled.*lock"):
        shoal.Multiprocessing(lambda: Talking(Locked()), 2, num_workers=2)
    with pytest.raises(SpaceError, match=r"Gymnasium makes the space of a batch of copies.*lock"):
        shoal.Serial(lambda: Talking(Locked()), 2)


@backends
def test_an_observation_outside_its_space_is_told_once(backend):
    class Wrong(SampleEnv):
        def reset(self, **kwargs):
            return "not a sequence", {}

    with backend([lambda: Wrong(COUNTS, sp.Discrete(2))] * 2) as vec:
        with pytest.warns(
            UserWarning, match=r"observation of env 0, from reset\(\), is outside its space Sequence"
        ):
            assert vec.reset()[0] == ("not a sequence",) * 2
        vec.reset()


@native
def test_large_objects():
    class Large(gymnasium.Env):
        observation_space = action_space = Bare()

        def reset(self, *, seed=None, options=None):
            return np.zeros(3 * 10**5), {}

        def step(self, action):
            return action + 1, 0.0, False, False, {}

    with processes([Large] * 4, batch_size=2, order="ready") as vec:
        vec.async_reset()
        for _ in range(6):
            batch = vec.recv()
            vec.send(batch.obs)
        batch = vec.recv()
        assert all(obs.shape == (3 * 10**5,) and (obs == obs[0]).all() for obs in batch.obs)


# -- asynchronous, restarts, snapshots -----------------------------------------------------------------------


@native
@modes
@pytest.mark.parametrize("order", ["fifo", "ready"])
@pytest.mark.parametrize("dying", [None, 2], ids=["sound", "a worker dies"])
@pytest.mark.filterwarnings("ignore:worker . is restarted")
def test_asynchronous(mode, order, dying):
    options = {"num_workers": 2, "batch_size": 4, "order": order, "autoreset_mode": mode}
    restarts = {} if dying is None else {"on_error": "restart"}
    with shoal.Multiprocessing(ledgers(8, dying), **options, **restarts) as vec:
        vec.async_reset(seed=0)
        for number in range(40):
            batch = vec.recv()
            check(batch.obs, batch.env_ids)
            check_finals(batch.infos)
            if number == 20:
                saved = pickle.loads(pickle.dumps(vec.snapshot()))
                vec.restore(saved)
            if mode is AutoresetMode.DISABLED and not batch.mask.all():
                mask = np.zeros(8, bool)
                mask[batch.env_ids[~batch.mask]] = True
                vec.async_reset(options={"reset_mask": mask})
            else:
                vec.send(actions_for(batch.env_ids))
        assert vec.stats()["restarts"] == 0 or dying is not None
        assert vec.stats()["restarts"] > 0 or dying is None


@native
def test_gathered_batches_and_their_actions():
    with shoal.Multiprocessing(ledgers(8), num_workers=2, batch_size=2, order="ready") as vec:
        vec.async_reset(seed=0)
        first, second = vec.recv(), vec.recv()
        ids = np.concatenate([second.env_ids, first.env_ids])
        vec.send(actions_for(ids), ids)  # of blocks that do not adjoin, in an order of the caller's
        for _ in range(4):
            batch = vec.recv()
            check(batch.obs, batch.env_ids)
            vec.send(actions_for(batch.env_ids))


@native
@modes
@pytest.mark.filterwarnings("ignore:worker . is restarted")
def test_restarts(mode):
    with processes(ledgers(4, dying=2), on_error="restart", autoreset_mode=mode) as vec:
        last, _ = vec.reset(seed=0)
        for _ in range(30):
            obs, _, terminations, truncations, infos = vec.step(actions_for(range(4)))
            check(obs, range(4))
            check_finals(infos)
            if "restarted" in infos:
                ended = (
                    [infos["final_obs"][2]["object"]]
                    if mode is AutoresetMode.SAME_STEP
                    else obs["object"][2:3]
                )
                assert list(ended) == [last["object"][2]]
            done = terminations | truncations
            while mode is AutoresetMode.DISABLED and done.any():  # one after the other
                one = np.arange(4) == done.argmax()
                obs, _ = vec.reset(options={"reset_mask": one})
                check(obs, range(4))
                done &= ~one
            last = obs
        assert vec.stats()["restarts"] > 1


@native
def test_a_worker_that_was_lost_between_two_steps():
    with processes(ledgers(4), on_error="restart") as vec:
        vec.reset(seed=0)
        pid = vec.call("process_id")[2]
        for _ in range(2):
            shown, *_ = vec.step(actions_for(range(4)))
        os.kill(pid, signal.SIGKILL)
        while Path(f"/proc/{pid}").exists():
            time.sleep(0.001)
        with pytest.raises(WorkerDied, match=r"killed by signal 9"):
            vec.call("process_id")
        with pytest.warns(RestartWarning, match="worker 1 is restarted"):
            obs, _, _, truncations, _ = vec.step(actions_for(range(4)))
        assert truncations.tolist() == [False, False, True, True]
        check(obs, range(4))
        assert obs["object"][2:] == shown["object"][2:]


@native
@pytest.mark.filterwarnings("ignore:worker . is restarted")
def test_a_reset_of_others_leaves_what_a_restart_shows():
    with processes(ledgers(4, dying=2), on_error="restart") as vec:
        vec.reset(seed=0)
        infos = {}
        while "restarted" not in infos:
            shown, *_, infos = vec.step(actions_for(range(4)))
        obs, _ = vec.reset(options={"reset_mask": np.array([True, False, False, False])})
        check(obs, range(4))
        assert obs["object"][2:] == shown["object"][2:]
        check(vec.step(actions_for(range(4)))[0], range(4))


@backends
def test_a_snapshot_in_another_vec(backend):
    with backend(ledgers(4), autoreset_mode="Disabled") as vec:
        vec.reset(seed=0)
        shown, *_ = vec.step(actions_for(range(4)))
        saved = vec.snapshot()
        for _ in range(2):
            after, *_ = vec.step(actions_for(range(4)))
        saved = pickle.loads(pickle.dumps(saved))
    with backend(ledgers(4), autoreset_mode="Disabled") as vec:
        vec.restore(saved)
        obs, _ = vec.reset(options={"reset_mask": np.array([True, False, False, False])})
        check(obs, range(4))
        assert obs["object"][1:] == shown["object"][1:]
        for _ in range(2):
            obs, *_ = vec.step(actions_for(range(4)))
        assert obs["object"][1:] == after["object"][1:]


# -- other kinds of envs -------------------------------------------------------------------------------------


class Pair:
    """A PettingZoo env of two agents; the second leaves after two steps and sends nothing from then on."""

    possible_agents = ("long", "short")

    def __init__(self, env_id=0):
        self.env_id, self.agents = env_id, []

    def observation_space(self, agent):
        return Ledger.observation_space

    def action_space(self, agent):
        return Ledger.action_space

    def reset(self, seed=None, options=None):
        self.agents, self.count = list(self.possible_agents), 0
        return self._moment({}), {agent: {} for agent in self.agents}

    def step(self, actions):
        assert all(action["object"] == (self.env_id, 7) for action in actions.values())
        assert set(actions) == set(self.agents)
        self.count += 1
        now = self._moment(actions)
        over = {"long": self.count == 4, "short": self.count == 2}
        ends = {agent: over[agent] for agent in self.agents}
        self.agents = [agent for agent in self.agents if not over[agent]]
        nothing = dict.fromkeys(ends, False)
        return now, dict.fromkeys(ends, 1.0), ends, nothing, {agent: {} for agent in ends}

    def _moment(self, actions):
        moments = {agent: (self.env_id, row, self.count) for row, agent in enumerate(self.possible_agents)}
        said = {agent: (*moments[agent], *actions.get(agent, {"object": ()})["object"]) for agent in moments}
        return {agent: {"bytes": np.array(moments[agent]), "object": said[agent]} for agent in self.agents}


class PairRows(shoal.Env):
    """The same by the other contract: one agent written in place, one by `write`."""

    observation_space, action_space, num_agents = Ledger.observation_space, Ledger.action_space, 2

    def __init__(self, env_id=0):
        super().__init__()
        self.env_id = env_id

    def reset(self, seed=None, options=None):
        self.count = 0
        self._observe([(), ()])

    def step(self, actions):
        self.count += 1
        self._observe(actions["object"])
        self.terminations[:] = self.count == 4, self.count == 2
        if self.count == 4:
            self.terminations[1] = False

    def _observe(self, last):
        moment = (self.env_id, 0, self.count)
        self.observations["bytes"][0] = moment
        self.observations["object"][0] = (*moment, *last[0])
        if self.count <= 2:
            moment = (self.env_id, 1, self.count)
            self.write(1, {"bytes": np.array(moment), "object": (*moment, *last[1])})


@backends
@modes
@pytest.mark.parametrize("kind", [Pair, PairRows])
def test_agents(backend, mode, kind):
    ids = np.repeat(range(3), 2)
    with backend([partial(kind, i) for i in range(3)], autoreset_mode=mode) as vec:
        obs, _ = vec.reset(seed=0)
        check(obs, ids)
        for step in range(1, 12):
            obs, *_, infos = vec.step(actions_for(ids))
            check(obs, ids)
            by_agent = vec.by_agent(obs)
            assert [told[1] for told in by_agent[vec.agents[1]]["object"]] == [1, 1, 1]
            require_equal(vec.from_agents(by_agent), obs, "from agents and back")
            if mode is AutoresetMode.SAME_STEP:
                for row in np.flatnonzero(infos.get("_final_obs", [])):
                    final = infos["final_obs"][row]
                    assert (
                        final["object"][:3] == tuple(final["bytes"]) == (row // 2, row % 2, final["bytes"][2])
                    )
            if mode is AutoresetMode.DISABLED and not vec.mask.any():
                check(vec.reset()[0], ids)
                assert step % 4 == 0


@backends
@modes
def test_vector_envs_inside(backend, mode):
    def inner(first, kind):
        return kind(ledgers(6)[first : first + 2], autoreset_mode=mode)

    creators = [
        partial(inner, 0, shoal.Serial),
        partial(inner, 2, SyncVectorEnv),
        partial(inner, 4, shoal.Serial),
    ]
    with backend(creators, autoreset_mode=mode) as vec:
        obs, _ = vec.reset(seed=0)
        check(obs, range(6))
        for _ in range(10):
            if mode is AutoresetMode.DISABLED and not vec.mask.all():
                check(vec.reset(options={"reset_mask": ~vec.mask})[0], range(6))
            obs, *_, infos = vec.step(actions_for(range(6)))
            check(obs, range(6))
            check_finals(infos)


# -- what refuses --------------------------------------------------------------------------------------------


@backends
@pytest.mark.parametrize(
    ("space", "text"),
    [
        (sp.Sequence(sp.Discrete(3)), r"a Sequence has no fixed size.*Box of the longest length.*flat=False"),
        (sp.Graph(sp.Box(0, 1), None), r"a Graph has no fixed size.*padded Boxes.*flat=False"),
        (sp.Dict(a=Bare()), r'space\["a"\]: Bare is not a space Shoal knows the bytes of.*flat=False'),
    ],
    ids=["Sequence", "Graph", "custom"],
)
def test_flat_rows_have_no_place_for_objects(backend, space, text):
    for spaces in [(space, sp.Discrete(2)), (sp.Discrete(2), space)]:
        with pytest.raises(SpaceError, match=text):
            backend([partial(SampleEnv, *spaces)] * 2, flat=True)


def test_a_learner_refuses_objects():
    pytest.importorskip("torch")
    from shoal.learn import PPO, PPOConfig

    for spaces in [(COUNTS, sp.Discrete(2)), (sp.Box(0, 1, (2,)), COUNTS)]:
        create = partial(SampleEnv, *spaces)
        with (
            shoal.Serial(create, 2) as vec,
            pytest.raises(SpaceError, match=r"a Sequence has no fixed size.*A learner takes only bytes"),
        ):
            PPO(vec)
        with pytest.raises(SpaceError, match=r"a Sequence has no fixed size.*Wrap the env"):
            PPO(create, PPOConfig(num_envs=2, backend="serial"))


def test_a_layout_with_objects_says_so():
    with shoal.Serial(Ledger, 2) as vec:
        layout = vec.observation_layout
        assert "objects beside it: 1" in repr(layout)
        assert 'value["object"]: an object of Sequence' in repr(layout)
        obs, _ = vec.reset()
        for verb in (lambda: layout.flat_space, lambda: layout.pack(obs), lambda: layout.unpack(np.zeros(3))):
            with pytest.raises(SpaceError, match=r'space\["object"\]: a Sequence has no fixed size'):
                verb()
