"""Envs that fail, hang, wait, fork or tell where they live, and pools of them.

Workers import this module, so it imports nothing that only tests need: the import of pytest takes longer than
all the rest of a worker's start.
"""

import asyncio
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import gymnasium
import gymnasium.spaces as sp
import numpy as np
from tests.envs import Fragile, Turns

import shoal
from shoal.testing import CrashEnv, HangEnv, SentinelEnv

LONG = 10**6  # longer than any test


# -- pools -------------------------------------------------------------------------------------------------


def envs(*odd, count=4):
    """Sentinels that never end, some of them replaced by `(env_id, creator)`."""
    creators = [partial(SentinelEnv, i, LONG) for i in range(count)]
    for env_id, creator in odd:
        creators[env_id] = creator
    return creators


def crash(env_id, at, how):
    return env_id, partial(CrashEnv, env_id, at, how, max_length=LONG)


def hang(env_id, at):
    return env_id, partial(HangEnv, env_id, at, max_length=LONG)


def pool(*odd, **options):
    return shoal.Multiprocessing(envs(*odd), **{"num_workers": 2, **options})


def pids(**options):
    """Two workers with two envs each, which tell the number of their process."""
    return shoal.Multiprocessing([partial(Pid, i, LONG) for i in range(4)], num_workers=2, **options)


def still_works(vec):
    """Reset all four envs and step them: every row is that of its own env."""
    obs, _ = vec.reset(seed=5)
    assert obs[:, 4].tolist() == [5, 6, 7, 8]
    for count in (1, 2):
        obs, *_ = vec.step([10, 11, 12, 13])
        assert obs[:, 0].tolist() == [0, 1, 2, 3]
        assert obs[:, 2].tolist() == [count] * 4
        assert obs[:, 3].tolist() == [10, 11, 12, 13]


@contextmanager
def limited(vec, seconds):
    """Give a vec another timeout for its waits, but not for the start of workers, which takes any time."""
    before = vec._engine._calls.timeout
    vec._engine._calls.timeout = seconds
    try:
        yield
    finally:
        vec._engine._calls.timeout = before


# -- events ------------------------------------------------------------------------------------------------


def sleeps(pid):
    """Whether the first thread of a process sleeps: a worker does so only until it is called."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def running(pid):
    """Whether a process runs. A zombie does not: it only waits for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Gate:
    """Where an env waits until the test opens it.

    Args:
        folder: Where the gate keeps its files.
        name: Differs between the gates of a folder.
    """

    def __init__(self, folder, name="gate"):
        self.folder, self.name = Path(folder), name

    def wait(self):
        """Say that an env is here, and wait."""
        (self.folder / f"{self.name}-reached-{os.getpid()}").touch()
        while not (self.folder / f"{self.name}-open").exists():
            time.sleep(0.001)

    def reached(self, processes=1):
        """Whether envs of so many processes have come here."""
        return len(list(self.folder.glob(f"{self.name}-reached-*"))) >= processes

    def open(self):
        (self.folder / f"{self.name}-open").touch()


class Gated(Fragile):
    """Waits at a gate at every step whose action is 998; 999 waits there, too, and fails then.

    Args:
        env_id: As for `SentinelEnv`.
        gate: Where to wait.
        how: To fail.
    """

    def __init__(self, env_id, gate, how="kill"):
        super().__init__(env_id, how)
        self.gate = gate

    def pid(self):
        return os.getpid()

    def wait(self):
        self.gate.wait()

    def step(self, action):
        if action >= 998:
            self.gate.wait()
        return super().step(action)


class Signalling(SentinelEnv):
    """Sends SIGUSR1 to the test in the verb it is told, once the test waits for it, and waits at a gate.

    Args:
        env_id: As for `SentinelEnv`.
        test: The process to signal.
        gate: Where to wait; None for ever.
        verb: In which verb; None for never.
    """

    def __init__(self, env_id, test, gate=None, verb=None):
        super().__init__(env_id, LONG)
        self.test, self.gate, self.verb = test, gate, verb

    def pid(self):
        return os.getpid()

    def signal(self, verb):
        if verb != self.verb:
            return
        self.verb = None
        while not sleeps(self.test):
            time.sleep(0.001)
        os.kill(self.test, signal.SIGUSR1)
        if self.gate is None:
            time.sleep(3600)
        self.gate.wait()

    def reset(self, **kwargs):
        self.signal("reset")
        return super().reset(**kwargs)

    def step(self, action):
        self.signal("step")
        return super().step(action)

    def call(self):
        self.signal("call")


class TakesTime(gymnasium.Env):
    """Takes its time, ends now and then, and has an info now and then."""

    observation_space, action_space = sp.Box(0, 9, (1,)), sp.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        time.sleep(0.0002)
        return np.zeros(1, np.float32), 0.0, self.steps == 7, False, {"a": 1} if self.steps % 3 == 0 else {}


# -- envs that raise ---------------------------------------------------------------------------------------


class Awkward(Exception):
    """Takes other arguments than it passes on, and has one that must be given."""

    def __init__(self, code, *, text):
        super().__init__(f"{text} ({code})")
        self.code = code


class LockedError(Exception):
    def __init__(self):
        super().__init__("held", threading.Lock())


class Raising(SentinelEnv):
    """Raises what `error` gives, which a test may set."""

    def __init__(self, env_id, error=None):
        super().__init__(env_id, LONG)
        self.error = error

    def step(self, action):
        if self.error is not None:
            raise self.error()
        return super().step(action)


class FailsAtReset(SentinelEnv):
    """Fails the first resets with the seeds it is given."""

    def reset(self, *, seed=None, options=None):
        if seed is not None and seed < 100:
            raise ValueError(f"seed {seed} is bad")
        return super().reset(seed=seed, options=options)


class Unborn(Fragile):
    """After a failure, its reset fails as often as its file says."""

    def __init__(self, env_id, file):
        super().__init__(env_id, "raise")
        self.file = file

    def reset(self, **kwargs):
        left = int(self.file.read_text())
        if left and self.env_id == 3:
            self.file.write_text(str(left - 1))
            raise ValueError("not yet")
        return super().reset(**kwargs)


class Moody(SentinelEnv):
    """Fails now and then, as its own random stream has it."""

    def step(self, action):
        if self.np_random.random() < 0.02:
            raise ValueError("not today")
        return super().step(action)


class Custom(BaseException):
    pass


ENDS = {
    "exit": lambda: SystemExit(4),
    "cancelled": lambda: asyncio.CancelledError("x"),
    "generator": lambda: GeneratorExit("x"),
    "custom": lambda: Custom("x"),
}


class Leaving(SentinelEnv):
    """Raises in one verb what would end a process. A test may set `verb` and `what`."""

    def __init__(self, env_id=0, verb="", what="exit"):
        super().__init__(env_id, LONG)
        self.verb, self.what = verb, what
        self.leave("creator")

    def leave(self, verb):
        if verb == self.verb:
            raise ENDS[self.what]()

    def reset(self, **kwargs):
        self.leave("reset")
        return super().reset(**kwargs)

    def step(self, action):
        self.leave("step")
        return super().step(action)

    def render(self):
        self.leave("render")

    def method(self):
        self.leave("method")

    @property
    def level(self):
        return 0

    @level.setter
    def level(self, value):
        self.leave("set_attr")

    def __getstate__(self):
        self.leave("snapshot")
        return vars(self)

    def close(self):
        self.leave("close")


# -- envs that end their worker ----------------------------------------------------------------------------


class Pid(SentinelEnv):
    def pid(self):
        return os.getpid()


class Silent(Fragile):
    """Has no infos."""

    def reset(self, **kwargs):
        return super().reset(**kwargs)[0], {}

    def step(self, action):
        return (*super().step(action)[:4], {})

    def die(self):
        if self.env_id == 2:
            os._exit(1)


class Deadly(SentinelEnv):
    def die(self):
        if self.env_id == 2:
            os._exit(1)


class FragileTurns(Turns):
    def step(self, actions):
        if actions[1]:
            os.kill(os.getpid(), signal.SIGKILL)
        super().step(actions)


# -- envs that send what cannot be sent --------------------------------------------------------------------


class Bomb:
    """Raises when it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


class Answers(SentinelEnv):
    def bomb(self):
        return Bomb(divmod, 1, 0)

    def exit(self):
        return Bomb(sys.exit, 4)

    def numbers(self):
        return (n for n in range(self.env_id))

    def adder(self):
        return lambda n: n + self.env_id

    def plus(self, array):
        return array + self.env_id


def itself():
    info = {}
    info["again"] = info
    return info


def nested(depth, wrap):
    info = {}
    for _ in range(depth):
        info = wrap(info)
    return {"deep": info}


ENDLESS_INFOS = {
    "itself": itself,
    "two of each other": lambda: {"other": {"one": itself()}},
    "deep dicts": lambda: nested(100_000, lambda info: {"in": info}),
}
DEEP_INFOS = {  # what is no dict is handed on as it is
    "deep lists": lambda: nested(100_000, lambda info: [info]),
    "lists and dicts": lambda: nested(50_000, lambda info: {"in": [info]}),
    "a list of itself": lambda: {"list": [itself()]},
    "dicts": lambda: nested(150, lambda info: {"in": info}),
}


class Tells(gymnasium.Env):
    """Gives an info of its own in reset, in a step, or at the end; a test may set `info` and `when`."""

    observation_space, action_space = sp.Box(0, 1, (1,)), sp.Discrete(2)

    def __init__(self, info="", when=""):
        self.info, self.when = info, when

    def give(self, when):
        return {**ENDLESS_INFOS, **DEEP_INFOS, "": dict}[self.info]() if when == self.when else {}

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), self.give("reset")

    def step(self, action):
        self.steps += 1
        now = {1: "step", 2: "end"}[self.steps]
        return np.zeros(1, np.float32), 0.0, now == "end", False, self.give(now)


# -- envs that reach for what is not theirs ----------------------------------------------------------------


class Forking(SentinelEnv):
    """Forks in every verb; parent and child go on alike. The child leaves its pid in a folder."""

    def __init__(self, env_id, forks, folder):
        super().__init__(env_id, LONG)
        self.forks, self.folder = forks, folder
        self.fork("creator")

    def fork(self, verb):
        if self.forks and os.fork() == 0:
            (self.folder / f"{verb}-{os.getpid()}").touch()

    def reset(self, **kwargs):
        self.fork("reset")
        return super().reset(**kwargs)

    def step(self, action):
        self.fork("step")
        return super().step(action)

    def method(self):
        self.fork("method")
        return self.env_id

    def fail(self):
        self.fork("fail")
        raise ValueError("as told")

    def close(self):
        self.fork("close")


class Scribbling(shoal.Env):
    """Its forked child writes into the rows that it has inherited."""

    observation_space = sp.Box(0, 100, (2,), np.float32)
    action_space = sp.Discrete(2)

    def reset(self, seed=None, options=None):
        self.observations[:] = 1

    def step(self, actions):
        pid = os.fork()
        if pid == 0:
            self.observations[:] = 99
            self.rewards[:] = 99
            os._exit(int(actions[0]))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == actions[0]  # it has seen them


class ClosesDescriptors(SentinelEnv):
    """An action of 1 closes every descriptor; 2 raises then, 3 hangs then, 4 raises something long."""

    def step(self, action):
        if action:
            os.closerange(3, 1024)
        if action == 2:
            raise FileNotFoundError(2, "No such file", "map.txt")
        if action == 3:
            time.sleep(3600)
        if action == 4:
            raise ValueError("much to say " * 1000)
        return super().step(action)


# -- envs that are closed ----------------------------------------------------------------------------------


class Closing(SentinelEnv):
    """Leaves a file when it is closed."""

    def __init__(self, env_id, folder):
        super().__init__(env_id, LONG)
        self.folder = Path(folder)

    def close(self):
        with (self.folder / str(self.env_id)).open("a") as file:
            file.write("closed\n")


class Unbound(shoal.Env):
    """Cannot be given its rows."""

    observation_space = action_space = sp.Discrete(2)

    def __init__(self, file, fails):
        super().__init__()
        self.file, self.fails = file, fails

    def bind(self, rows, layouts=None):
        if self.fails:
            raise ValueError("no rows, please")
        super().bind(rows, layouts)

    def close(self):
        self.file.touch()
