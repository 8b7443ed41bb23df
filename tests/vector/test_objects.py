"""Spaces without bytes (Sequence, Graph, custom ones): carried as objects by every backend of Python envs."""

import pickle
import threading
from copy import deepcopy
from functools import partial

import gymnasium
import gymnasium.spaces as sp
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tests.backends import BACKENDS, marks_of, processes, with_spaces
from tests.vector.every_mode import backends_and_modes
from tests.vector.object_envs import (
    COUNTS,
    Bare,
    Ledger,
    Reusing,
    Saying,
    Talking,
    Uncopied,
    Unreadable,
)

import shoal
from shoal import _core
from shoal.errors import (
    ActionError,
    EnvError,
    ObservationError,
    RestartWarning,
    SpaceError,
)
from shoal.testing import OBJECT_SPACES, SampleEnv
from shoal.testing.contract import require_equal

pytestmark = pytest.mark.core

native = pytest.mark.skipif(_core.NAME != "native", reason="worker processes need the compiled core")
backends = pytest.mark.parametrize(
    "backend",
    [pytest.param(backend, id=name, marks=marks_of(name)) for name, backend in BACKENDS.items()],
)
modes = pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)


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


@backends_and_modes
def test_objects_on_one_side_only(backend, mode):
    graph, box = sp.Graph(sp.Box(-1, 1, (2,)), sp.Discrete(3)), sp.Box(-1, 1, (2,))
    side_by_side(backend, lambda: SampleEnv(deepcopy(graph), deepcopy(box)), mode)
    side_by_side(backend, lambda: SampleEnv(deepcopy(box), deepcopy(graph)), mode)


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


@backends_and_modes
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
