"""Infos and workspaces of compiled envs."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import shoal
from shoal import AutoresetMode, _core
from shoal.errors import ArgumentError, NativeError
from shoal.native import NativeEnv
from shoal.testing.contract import require_equal

if _core.NAME != "native":
    pytest.skip("compiled envs need the compiled core", allow_module_level=True)
pytest.importorskip("numba")
# One process of pytest's, so that each kernel is compiled and loaded once.
pytestmark = pytest.mark.xdist_group("native infos")


class Counter(NativeEnv):
    """Counts to `last`. Tells the count and, at the end, the number of steps."""

    observation_space = Box(0, 99, (1,), np.float32)
    action_space = Discrete(3)
    state = np.dtype([("count", np.int64), ("steps", np.int64)])
    infos = np.dtype([("count", np.int64), ("half", np.float64), ("length", np.int64), ("pair", np.int64, 2)])
    workspace = np.dtype([("squares", np.float64, 8)])
    parameters = {"last": 3}

    @staticmethod
    def reset(state, obs, workspace):
        workspace.squares[:] = 7.0
        obs[0] = 0.0

    @staticmethod
    def step(state, action, obs, config, info, workspace):
        state.steps += 1
        state.count += action
        for i in range(8):
            workspace.squares[i] = i * state.count
        obs[0] = workspace.squares[1]
        info.count = state.count
        info.half = workspace.squares[1] / 2
        info.pair[1] = state.count
        if state.count >= config.last:
            info.length = state.steps  # in other steps it is 0
        return 1.0, state.count >= config.last


class Pair(NativeEnv):
    """Two agents, of which each tells its own action."""

    observation_space = Box(0, 9, (1,), np.float32)
    action_space = Discrete(5)
    num_agents = 2
    infos = np.dtype([("chose", np.int64)])

    @staticmethod
    def reset(obs, alive):
        obs[0, 0] = obs[1, 0] = 0.0

    @staticmethod
    def step(actions, obs, terminated, infos, alive):
        for agent in range(2):
            if alive[agent]:
                infos[agent].chose = actions[agent]
                terminated[agent] = actions[agent] == 4


def follow(env, mode, **options):
    """All infos of some steps of three envs, of which each has its own action."""
    actions = [[0, 1, 2], [1, 1, 2], [1, 1, 2], [1, 1, 0]]
    with shoal.make(env, 3, autoreset_mode=mode, infos=True, **options) as vec:
        _, first = vec.reset(seed=0)
        seen = [first]
        for action in actions:
            over = ~vec.mask
            if over.any() and mode is AutoresetMode.DISABLED:
                seen.append(vec.reset(options={"reset_mask": over})[1])
            seen.append(vec.step(action)[-1])
    return seen


@pytest.mark.parametrize("mode", AutoresetMode)
def test_infos_are_the_same_on_every_backend(mode):
    native = follow(Counter, mode)
    require_equal(follow(Counter, mode, backend="serial"), native, "Serial")
    require_equal(follow(Counter, mode, debug=True), native, "uncompiled")
    require_equal(follow(Counter, mode, check=True), native, "checked")


def test_infos_are_arrays_over_rows():
    first, *steps = follow(Counter, AutoresetMode.NEXT_STEP)
    assert first == {}
    assert steps[0]["count"].tolist() == [0, 1, 2]
    assert steps[0]["count"].dtype == np.int64
    assert steps[1]["half"].tolist() == [0.5, 1.0, 2.0]
    assert steps[1]["length"].tolist() == [0, 0, 2]
    # The third env is reset in this step, and has no transition.
    assert steps[2]["_length"].tolist() == [True, True, False]
    assert steps[2]["count"].tolist() == [2, 3, 0]
    assert steps[2]["length"].tolist() == [0, 3, 0]
    assert steps[3]["length"].tolist() == [4, 0, 0]  # nothing is left of what an earlier step told


def test_infos_of_a_last_step_are_final_infos_under_same_step():
    _, *steps = follow(Counter, AutoresetMode.SAME_STEP)
    assert steps[1]["_count"].tolist() == [True, True, False]
    assert steps[1]["final_info"]["length"].tolist() == [0, 0, 2]
    assert steps[1]["final_info"]["_length"].tolist() == [False, False, True]
    assert steps[1]["final_info"]["pair"].tolist() == [[0, 0], [0, 0], [0, 4]]


def test_infos_are_there_only_if_asked_for():
    with shoal.make(Counter, 3) as vec:
        vec.reset(seed=0)
        assert vec.step([0, 0, 0])[-1] == {}


def test_infos_of_asynchronous_batches():
    with shoal.make(Counter, 8, infos=True, batch_size=4, env_kwargs={"last": np.arange(1, 9)}) as vec:
        vec.async_reset(seed=0)
        vec.recv(), vec.send(np.ones(4, np.int64))
        vec.recv(), vec.send(np.full(4, 2, np.int64))
        for expected in (1, 2):
            batch = vec.recv()
            assert batch.infos["count"].tolist() == [expected] * 4
            assert batch.infos["_count"].all()
            vec.send(np.zeros(4, np.int64))


def test_a_snapshot_has_the_infos_of_batches_that_are_not_received():
    with shoal.make(Counter, 8, infos=True, batch_size=4) as vec:
        vec.async_reset(seed=0)
        vec.recv(), vec.send(np.full(4, 2, np.int64))
        snapshot = vec.snapshot()
        vec.recv(), vec.send(np.zeros(4, np.int64))
        vec.recv(), vec.send(np.zeros(4, np.int64))
        vec.restore(snapshot)
        vec.recv()
        assert vec.recv().infos["count"].tolist() == [2] * 4


def test_each_agent_has_its_own_infos():
    for backend in ("native", "serial"):
        with shoal.make(Pair, 2, infos=True, backend=backend) as vec:
            vec.reset(seed=0)
            infos = vec.step([1, 2, 3, 4])[-1]
            assert infos["chose"].tolist() == [1, 2, 3, 4]
            infos = vec.step([1, 2, 3, 0])[-1]
            assert infos["chose"].tolist()[:3] == [1, 2, 3]
            assert infos["_chose"].tolist() == [True, True, True, False]


def test_a_single_env_returns_its_info():
    env = Counter(infos=True)
    assert isinstance(env, gymnasium.Env)
    env.reset(seed=0)
    *_, info = env.step(2)
    assert info.pop("pair").tolist() == [0, 2]
    assert info == {"count": 2, "half": 1.0, "length": 0}
    env.close()


def test_a_class_without_infos_cannot_show_any():
    with pytest.raises(ArgumentError, match="infos: CartPole declares none"):
        shoal.make("shoal/CartPole-v1", 2, infos=True)
    with pytest.raises(ArgumentError, match="infos: only compiled envs have it"):
        shoal.make("CartPole-v1", 2, infos=True)


def test_infos_must_be_named_fields():
    with pytest.raises(NativeError, match=r"Wrong\.infos: expected fields with names"):

        class Wrong(Counter):
            infos = np.float64


def test_an_info_is_written_in_place():
    with pytest.raises(NativeError, match=r"info to a new value.*info\.field"):

        class Rebinds(Counter):
            @staticmethod
            def step(state, action, obs, info):
                info = 3  # noqa: F841 - that is the mistake
                return 0.0, False


@pytest.mark.parametrize("name", ["_count", "episode", "final_obs"])
def test_names_that_a_vec_gives_itself_are_refused(name):
    with pytest.raises(NativeError, match=f"Named.infos.'{name}'.: expected another name"):

        class Named(Counter):
            infos = np.dtype([(name, np.int64)])


def test_what_is_asked_for_must_be_declared():
    with pytest.raises(
        NativeError, match="Asks: step or reset asks for info, but the class declares no infos"
    ):

        class Asks(Counter):
            infos = None

    with pytest.raises(NativeError, match="asks for workspace, but the class declares no workspace"):

        class AsksToo(Counter):
            workspace = None


def test_one_agent_has_one_info():
    with pytest.raises(NativeError, match=r"expected arguments among .*info.*got infos"):

        class Plural(Counter):
            @staticmethod
            def step(state, obs, infos):
                return 0.0, False
