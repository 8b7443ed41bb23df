"""An env that raises what would end a process: it is an error of the env, and the user's process goes on."""

import signal
import sys
import traceback
from functools import partial

import gymnasium
import pytest
from tests.vector.faulty import LONG, Leaving
from tests.vector.scripts import run_script

import shoal
from shoal import _core
from shoal.errors import EnvError, RestartWarning, ShoalError
from shoal.testing import SentinelEnv, SentinelRows

needs_workers = pytest.mark.skipif(_core.NAME != "native", reason="Multiprocessing needs the compiled core")

VERBS = {
    "reset": lambda vec: vec.reset(seed=0),
    "step": lambda vec: vec.step([0] * vec.num_envs),
    "render": lambda vec: vec.render(),
    "method": lambda vec: vec.call("method"),
    "set_attr": lambda vec: vec.set_attr("level", 1),
    "snapshot": lambda vec: vec.snapshot(),
    "close": lambda vec: vec.close(),  # the last
}
WORDS = {
    "exit": r"called sys\.exit\(4\)",
    "cancelled": "raised CancelledError: x",
    "generator": "raised GeneratorExit: x",
    "custom": "raised Custom: x",
}
every_backend = pytest.mark.parametrize(
    "backend",
    [
        pytest.param(shoal.Serial, id="serial"),
        pytest.param(partial(shoal.Multiprocessing, num_workers=2), marks=needs_workers, id="workers"),
        pytest.param(
            partial(shoal.Multiprocessing, num_workers=1, parent_steps=True),
            marks=needs_workers,
            id="parent steps",
        ),
    ],
)


def envs(verb="", what="exit"):
    """Three envs; env 1 leaves in this verb."""
    return [partial(Leaving, i, verb if i == 1 else "", what) for i in range(3)]


@every_backend
def test_36_sys_exit_is_an_error_of_the_env(backend):
    vec = backend(envs())
    for verb, call in VERBS.items():
        vec.reset(seed=0)
        vec.set_attr("verb", ["", verb, ""])
        text = rf"^env 1 called sys\.exit\(4\) in {verb}\(\)\. Let the env raise an exception"
        with pytest.raises(EnvError, match=text) as caught:
            call(vec)
        assert isinstance(caught.value, ShoalError)
        assert caught.value.env_ids == [1]
        assert isinstance(caught.value.__cause__, SystemExit)
        assert caught.value.__cause__.code == 4
        assert "in leave" in "".join(traceback.format_exception(caught.value))  # the line in the env
        if verb != "close":
            vec.set_attr("verb", "")
    vec.close()


@every_backend
def test_36_whatever_an_env_raises_is_an_exception_here(backend):
    with backend(envs()) as vec:
        for what, did in WORDS.items():
            vec.reset(seed=0)
            vec.set_attr("what", what)
            vec.set_attr("verb", ["", "step", ""])
            with pytest.raises(EnvError, match=f"env 1 {did} in step"):
                vec.step([0] * 3)
            vec.set_attr("verb", "")
            vec.reset(seed=0)
            vec.step([0] * 3)


@every_backend
@pytest.mark.parametrize("what", ["exit", "custom"])
def test_36_a_creator_that_leaves(backend, what):
    with pytest.raises(EnvError, match=f"the creator of env 1 {WORDS[what]}") as caught:
        backend(envs("creator", what))
    assert caught.value.__notes__ == ["raised while creating env 1"]


def test_36_an_env_that_writes_in_place():
    class Rows(SentinelRows):
        def step(self, actions):
            sys.exit("no map")

    with shoal.Serial([SentinelRows, Rows]) as vec:
        vec.reset(seed=0)
        with pytest.raises(EnvError, match=r"^env 1 called sys\.exit\('no map'\) in step\(\)\. Let"):
            vec.step([0, 0])


def test_36_inside_a_vector_env():
    create = partial(gymnasium.vector.SyncVectorEnv, envs("step"))
    with shoal.Serial([create, partial(shoal.Serial, envs("step"))]) as vec:
        vec.reset(seed=0)
        words = r"the vector env that holds envs 0 to 2 called sys\.exit\(4\) in step\(\)"
        with pytest.raises(EnvError, match=words) as caught:
            vec.step([0] * 6)
        assert caught.value.env_ids == [0, 1, 2]


def test_36_at_the_end_of_an_episode():
    class Short(SentinelEnv):
        def reset(self, **kwargs):
            if self.episode >= 0:
                sys.exit()
            return super().reset(**kwargs)

    with shoal.Serial([partial(Short, max_length=1)], autoreset_mode="SameStep") as vec:
        vec.reset(seed=0)
        with pytest.raises(EnvError, match=r"^env 0 called sys\.exit\(\) in reset\(\)\. Let the env"):
            vec.step([0])


class Interrupted(SentinelEnv):
    def step(self, action):
        raise KeyboardInterrupt("by the env")


@needs_workers
def test_36_a_keyboard_interrupt_in_a_worker_is_the_envs():
    with shoal.Multiprocessing([SentinelEnv, Interrupted], num_workers=2) as vec:
        vec.reset(seed=0)
        with pytest.raises(EnvError, match=r"env 1 raised KeyboardInterrupt: by the env in step\(\)"):
            vec.step([0, 0])


@pytest.fixture
def ctrl_c():
    """Shells switch it off for what runs behind them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_06_ctrl_c_in_this_process_stays_what_it_is(ctrl_c):
    class Pressed(SentinelEnv):
        def step(self, action):
            signal.raise_signal(signal.SIGINT)
            return super().step(action)

    with shoal.Serial([SentinelEnv, Pressed]) as vec:
        vec.reset(seed=0)
        with pytest.raises(KeyboardInterrupt, match=r"^$") as caught:
            vec.step([0, 0])
        assert not hasattr(caught.value, "__notes__")


def test_06_a_signal_handler_may_end_the_process_while_an_env_steps():
    """As scripts do that tidy up on SIGTERM: sys.exit() of theirs is no error of an env."""

    class Terminated(SentinelEnv):
        def step(self, action):
            signal.raise_signal(signal.SIGUSR1)
            return super().step(action)

    before = signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3))
    try:
        with shoal.Serial([SentinelEnv, Terminated]) as vec:
            vec.reset(seed=0)
            with pytest.raises(SystemExit, match="3"):
                vec.step([0, 0])
    finally:
        signal.signal(signal.SIGUSR1, before)


@needs_workers
def test_36_it_is_a_failure_to_restart_from():
    class Once(SentinelEnv):
        def step(self, action):
            if action == 999:
                sys.exit(4)
            return super().step(action)

    with shoal.Multiprocessing([partial(Once, i, LONG) for i in range(2)], on_error="restart") as vec:
        vec.reset(seed=0)
        with pytest.warns(RestartWarning, match=r"is restarted .*EnvError: env 1 called sys\.exit\(4\)"):
            *_, truncations, infos = vec.step([0, 999])
        assert truncations[1]
        assert infos["restarted"][1]


SCRIPT = """
import sys, shoal
from shoal.testing import SentinelEnv

class Leaving(SentinelEnv):
    def step(self, action):
        sys.exit(4)

vec = shoal.{}
vec.reset(seed=0)
vec.step([0, 0])
"""


@pytest.mark.parametrize(
    "made",
    ["Serial(Leaving, 2)", pytest.param("Multiprocessing(Leaving, 2, num_workers=1)", marks=needs_workers)],
)
def test_36_an_uncaught_exit_is_a_traceback_and_exit_code_1(made):
    done = run_script(SCRIPT.format(made))
    assert done.returncode == 1
    assert "EnvError: env 0 called sys.exit(4) in step(). Let" in done.stderr.splitlines()[-1]
    assert "in step\n" in done.stderr  # the place in the env
