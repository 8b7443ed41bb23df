"""Kernels on disk: found again, and never out of date."""

import contextlib
import fcntl
import importlib
import io
import linecache
import os
import random
import signal
import stat
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import shoal

# One process of pytest's, so that each kernel is compiled and loaded once.
pytestmark = [
    pytest.mark.xdist_group("kernels on disk"),
    pytest.mark.skipif(shoal._core.NAME != "native", reason="needs the compiled core"),
]

ENV = """
import numpy as np
import shoal
from gymnasium.spaces import Box, Discrete
import tables

FACTOR = 2.0

def worth(place):
    return place * FACTOR + tables.BONUS

class Walk(shoal.NativeEnv):
    observation_space = Box(-np.inf, np.inf, (1,), np.float64)
    action_space = Discrete(3)
    state = np.dtype([("place", np.float64)])
    constants = {"step_size": 1.0}

    @staticmethod
    def reset(obs):
        obs[0] = 0.0

    @staticmethod
    def step(state, action, obs, config):
        state.place += config.step_size
        obs[0] = state.place
        return worth(state.place), False
"""

RUN = """
import numpy as np, shoal, sys
from walk import Walk
from shoal.native import compiling
with shoal.make(Walk, 2, **eval(sys.argv[1])) as vec:
    vec.reset(seed=0)
    rewards = vec.step(np.zeros(2, np.int64))[1]
    print(rewards[0], vec._engine.kernel.was_cached)
"""


@pytest.fixture
def project(tmp_path):
    """A folder with an env, a cache of its own, and what its first use says."""
    (tmp_path / "walk.py").write_text(ENV)
    (tmp_path / "tables.py").write_text("BONUS = 0.5\n")
    (tmp_path / "run.py").write_text(RUN)

    def start(options="{}", cache="cache"):
        environment = {**os.environ, "SHOAL_CACHE_DIR": str(tmp_path / cache), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.Popen(
            [sys.executable, "run.py", options],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(process):
        with process:
            out, error = process.communicate(timeout=100)
        assert process.returncode == 0, error
        reward, cached = out.split()
        return float(reward), cached == "True"

    def run(options="{}", cache="cache"):
        return finish(start(options, cache))

    run.folder, run.start, run.finish = tmp_path, start, finish
    return run


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


EDITS = [
    ("walk.py", "state.place += config.step_size", "state.place += 3 * config.step_size", 6.5),
    ("walk.py", "place * FACTOR", "place * FACTOR * 10", 60.5),  # a function that it calls
    ("walk.py", "FACTOR = 2.0", "FACTOR = 4.0", 120.5),  # a number that function reads
    ("tables.py", "0.5", "0.25", 120.25),  # in another file
]


# Slow: each of its processes compiles. The two tests after it show the same in one process.
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_edited_env_is_compiled_anew(project):
    assert project() == (2.5, False)
    assert project() == (2.5, True)
    for name, old, new, reward in EDITS:
        change(project.folder / name, old, new)
        assert project() == (reward, False)
    assert project() == (reward, True)
    change(project.folder / "walk.py", "\nclass Walk", "\n# A word.\nclass Walk")  # says nothing new
    assert project() == (reward, True)
    assert project("{'env_kwargs': {'step_size': 2.0}}") == (240.25, False)


def test_every_edit_gives_another_key(project, monkeypatch):
    """Without compiling: the key names the file on disk."""
    from shoal.native.cache import key_of
    from shoal.native.fingerprint import fingerprint
    from shoal.native.spec import Spec

    monkeypatch.syspath_prepend(project.folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # or an edit within a second may go unnoticed

    def key(checked=False, **constants):
        for name in ("walk", "tables"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        linecache.checkcache()
        spec = Spec.of(importlib.import_module("walk").Walk, constants)
        return key_of(fingerprint(spec), checked=checked)

    keys = [key()]
    assert key() == keys[0]
    for name, old, new, _ in EDITS:
        change(project.folder / name, old, new)
        keys.append(key())
    change(project.folder / "walk.py", "\nclass Walk", "\n# A word.\nclass Walk")
    assert key() == keys[-1]
    keys += [key(step_size=2.0), key(max_episode_steps=9), key(checked=True)]
    assert len(set(keys)) == 8


@pytest.mark.slow
@pytest.mark.timeout(400)  # each of its processes compiles
def test_a_torn_file_is_made_anew_and_a_cache_that_cannot_be_written_is_done_without(project):
    assert project() == (2.5, False)
    (kernel,) = (project.folder / "cache").glob("*.kernel")
    whole = kernel.read_bytes()
    kernel.write_bytes(whole[: len(whole) // 2])
    assert project() == (2.5, False)
    assert project() == (2.5, True)
    assert [path.suffix for path in (project.folder / "cache").iterdir()] == [".kernel"]
    (project.folder / "no folder").write_text("")
    assert project(cache="no folder") == (2.5, False)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_processes_do_not_compile_the_same_kernel(project):
    together = [project.finish(process) for process in [project.start() for _ in range(3)]]
    assert sorted(together) == [(2.5, False), (2.5, True), (2.5, True)]
    assert [path.suffix for path in (project.folder / "cache").iterdir()] == [".kernel"]


# -- in one process ------------------------------------------------------------------------------------


class Kept(shoal.NativeEnv):
    """Small, and soon compiled."""

    observation_space = Box(0, 1, (1,), np.float32)
    action_space = Discrete(2)

    @staticmethod
    def reset(obs):
        obs[0] = 0.0

    @staticmethod
    def step(obs):
        return 1.0, False


def make_kept(cls=Kept, rewards=(1.0, 1.0)):
    """Use the class as in a new process: whether its kernel was on disk, and what was said."""
    from shoal.native import compiling

    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stderr(io.StringIO()) as said,
    ):
        patch.setattr(compiling, "SLOW", 0.0)
        patch.setattr(compiling, "_made", {})
        with shoal.make(cls, 2) as vec:
            vec.reset(seed=0)
            assert vec.step([0, 1])[1].tolist() == list(rewards)
            return vec._engine.kernel.was_cached, said.getvalue()


@dataclass
class Compiled:
    """A kernel that was compiled once, for all tests of this file.

    Attributes:
        key: Its name.
        result: As Numba gives it to be saved.
        file: Where it was saved.
        said: What was printed meanwhile.
    """

    key: str
    result: Any
    file: Path
    said: str


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    from shoal.native.cache import Store

    results = []
    save = Store.save_overload

    def spy(store, signature, result):
        results.append(result)
        save(store, signature, result)

    folder = tmp_path_factory.mktemp("kernels") / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_CACHE_DIR", str(folder))
        patch.setattr(Store, "save_overload", spy)
        cached, said = make_kept()
    assert cached is False
    (file,), (result,) = folder.iterdir(), results
    return Compiled(file.stem, result, file, said)


@pytest.fixture
def store(compiled, tmp_path, monkeypatch):
    """Load the kernel from a folder, or save it there, as Numba does. It need not be compiled for that.

    Returns whether it was found, and why it was not saved.
    """
    from numba.core.registry import cpu_target

    from shoal.native import cache

    folder = tmp_path / "deep" / "cache"
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(folder))

    def use(key=compiled.key, meanwhile=lambda: None):
        with cache.Store(key, lambda: None) as place:
            found = place.load_overload(None, cpu_target.target_context)
            meanwhile()
            if found is None:
                place.save_overload(None, compiled.result)
            return found is not None, place.refusal

    use.folder = folder
    use.file = folder / f"{compiled.key}.kernel"
    use.lock = folder / f"{compiled.key}.lock"
    return use


def test_a_kernel_is_found_again(compiled, monkeypatch):
    assert compiled.said.startswith("shoal: compiled Kept in ")
    assert compiled.said.endswith("; the next time it is found on disk\n")
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(compiled.file.parent))
    assert make_kept() == (True, "")


def test_a_damaged_kernel_is_compiled_anew(compiled, store):
    """And where nothing can be written, a kernel is compiled all the same."""
    store.file.parent.mkdir(mode=0o700, parents=True)
    store.file.write_bytes(compiled.file.read_bytes()[:-1])
    cached, said = make_kept()
    assert cached is False
    assert "; the next time it is found on disk" in said
    assert make_kept() == (True, "")
    store.folder.chmod(0o770)
    cached, said = make_kept()
    assert cached is False
    why = "other users may write to it, mode 770: chmod 700 it, or delete it"
    assert said.endswith(f"; each process compiles it again ({store.folder}: {why})\n")


RUN_KEPT = """
import sys, shoal, shoal.envs.snake, shoal.testing.native_envs
before = "numba" in sys.modules
from tests.native.test_cache import Kept
with shoal.make(Kept, 2) as vec:
    vec.reset(seed=0)
    print(before, vec.step([0, 0])[1].tolist(), vec._engine.kernel.was_cached)
"""


def test_another_process_finds_it_and_needs_numba_only_then(compiled):
    done = subprocess.run(
        [sys.executable, "-c", RUN_KEPT],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "SHOAL_CACHE_DIR": str(compiled.file.parent)},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert done.stdout == "False [1.0, 1.0] True\n"
    assert done.stderr == ""
    assert list(compiled.file.parent.iterdir()) == [compiled.file]


RUN_UNKNOWN = """
import sys, types, shoal
from pathlib import Path
module = types.ModuleType(sys.argv[1])  # sys.modules does not know it, so it cannot be imported
exec(compile(Path("walk.py").read_text(), "walk.py", "exec"), vars(module))
with shoal.make(module.Walk, 2) as vec:
    vec.reset(seed=0)
    print(vec.step([0, 0])[1][0], vec._engine.kernel.was_cached)
"""


def test_a_kernel_is_found_by_processes_that_cannot_import_its_module(project):
    """As of a file that was loaded by its path: each path gives the module another name."""
    (project.folder / "run.py").write_text(RUN_UNKNOWN)
    assert project("first") == (2.5, False)
    for name in ("first", "second"):
        assert project(name) == (2.5, True)


def _sum_up_to(number):
    return 0.0 if number < 1 else number + _sum_up_to(number - 1)


class Recursive(Kept):
    """Has a function that calls itself."""

    @staticmethod
    def step(obs):
        return _sum_up_to(3), False  # a literal is of another type than what the function calls itself with


def test_a_kernel_with_a_function_that_calls_itself_is_not_kept(tmp_path, monkeypatch):
    """Numba does not find that function in what it loads, and the kernel would crash."""
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    for _ in range(2):
        cached, said = make_kept(Recursive, [6.0, 6.0])
        assert cached is False
        assert said.endswith("; each process compiles it again (a function of it calls itself)\n")


def test_any_flipped_bit_is_noticed_before_anything_is_unpickled(store, monkeypatch):
    from shoal.native import cache

    assert store() == (False, "")
    assert store() == (True, "")
    whole = store.file.read_bytes()
    place = cache.Store(store.file.stem, lambda: None)
    loads = cache.pickle.loads
    monkeypatch.setattr(cache.pickle, "loads", lambda data: pytest.fail("unpickled"))
    choose = random.Random(0)
    for bit in [*range(0, 8 * 64, 3), *(choose.randrange(8 * len(whole)) for _ in range(100))]:
        wrong = bytearray(whole)
        wrong[bit // 8] ^= 1 << bit % 8
        store.file.write_bytes(wrong)
        assert place._load(None) is None
    for wrong in (b"", whole[:20], whole[: len(whole) // 2], whole[:-1], whole + b"0"):
        store.file.write_bytes(wrong)
        assert place._load(None) is None
    monkeypatch.setattr(cache.pickle, "loads", loads)
    assert store() == (False, "")  # saved again
    assert store() == (True, "")


def test_a_kernel_under_the_name_of_another_is_not_used(compiled, store):
    assert store(key="another") == (False, "")
    assert store(key="another") == (True, "")
    (store.folder / "another.kernel").replace(store.file)
    assert store() == (False, "")


def test_the_folder_is_for_this_user_alone(store):
    before = os.umask(0)
    try:
        store()
    finally:
        os.umask(before)
    assert [
        stat.S_IMODE(path.stat().st_mode) for path in (store.folder.parent, store.folder, store.file)
    ] == [0o700, 0o700, 0o600]
    assert list(store.folder.iterdir()) == [store.file]  # neither a draft nor a lock


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o722])
def test_what_others_may_write_is_neither_read_nor_written(store, mode):
    store()
    store.file.chmod(mode)
    assert store() == (False, "")
    assert stat.S_IMODE(store.file.stat().st_mode) == 0o600  # made anew
    store.folder.chmod(mode)
    before = store.file.stat().st_mtime_ns
    why = f"{store.folder}: other users may write to it, mode {mode:o}: chmod 700 it, or delete it"
    assert store() == (False, why)
    assert store.file.stat().st_mtime_ns == before
    store.folder.chmod(0o700)
    assert store() == (True, "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_is_another_users_is_not_read(store):
    store()
    os.chown(store.file, 12345, 12345)
    assert store() == (False, "")
    assert store() == (True, "")
    os.chown(store.folder, 12345, 12345)
    assert store() == (False, f"{store.folder}: owned by another user, 12345")


def test_links_and_pipes_are_no_kernels(store, tmp_path):
    store()
    store.file.replace(tmp_path / "moved")
    store.file.symlink_to(tmp_path / "moved")
    assert store() == (False, "")
    store.file.unlink()
    os.mkfifo(store.file)
    assert store() == (False, "")
    assert store() == (True, "")


def test_a_folder_that_is_a_file_is_done_without(store):
    store.folder.parent.mkdir()
    store.folder.write_text("a file, no folder")
    assert store() == (False, f"{store.folder}: Not a directory")
    store.folder.unlink()
    assert store() == (False, "")


def test_what_is_not_to_be_kept_is_not_saved(compiled, store):
    from shoal.native import cache

    def refuse():
        raise ValueError("not this one")

    with cache.Store(compiled.key, refuse) as place, pytest.raises(ValueError, match="not this one"):
        place.save_overload(None, compiled.result)
    assert not store.folder.exists()


# -- locks ---------------------------------------------------------------------------------------------


def assert_locked(lock):
    with lock.open() as file, pytest.raises(BlockingIOError, match="temporarily unavailable"):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_others_wait_for_the_one_that_compiles_and_find_its_kernel(compiled, store, monkeypatch):
    from numba.core.registry import cpu_target

    from shoal.native import cache

    waits = []

    with contextlib.ExitStack() as first:
        compiles = first.enter_context(cache.Store(compiled.key, lambda: None))
        assert compiles.load_overload(None, cpu_target.target_context) is None
        assert store.lock.exists()

        def sleep(seconds):
            waits.append(seconds)
            assert len(waits) < 5
            if len(waits) == 2:
                compiles.save_overload(None, compiled.result)
                first.close()

        monkeypatch.setattr(cache.time, "sleep", sleep)
        assert store() == (True, "")
    assert len(waits) == 2
    assert list(store.folder.iterdir()) == [store.file]


def test_a_process_that_was_killed_keeps_no_lock(store):
    store.folder.mkdir(mode=0o700, parents=True)
    text = (
        f"import fcntl; f = open({str(store.lock)!r}, 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(1); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-S", "-u", "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "1\n"
        assert_locked(store.lock)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert store(meanwhile=lambda: assert_locked(store.lock)) == (False, "")
    assert not store.lock.exists()


def test_a_process_that_holds_its_lock_for_too_long_is_not_waited_for(store, monkeypatch):
    from shoal.native import cache

    monkeypatch.setattr(cache, "PATIENCE", 0.0)
    store.folder.mkdir(mode=0o700, parents=True)
    with store.lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert store() == (False, "")
        assert store() == (True, "")  # it was kept all the same
        assert store.lock.exists()  # which is not ours


def test_a_lock_whose_name_is_gone_is_not_waited_for(store, monkeypatch):
    """As a child has it that was forked during the compilation: it inherits the lock."""
    from shoal.native import cache

    looks = []

    def sleep(seconds):
        looks.append(seconds)
        store.lock.unlink(missing_ok=True)  # as the process does that has compiled
        assert len(looks) < 5

    monkeypatch.setattr(cache.time, "sleep", sleep)
    store.folder.mkdir(mode=0o700, parents=True)
    with store.lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert store() == (False, "")
    assert len(looks) == 1


# -- the key -------------------------------------------------------------------------------------------


def test_the_fingerprint_tells_apart_what_differs():
    from shoal.native.fingerprint import fingerprint
    from shoal.native.spec import Spec

    def made(factor, table=(1, 2), text=""):
        def worth(place):
            return place * factor + table[0] if isinstance(table[0], float) else 0.0

        namespace = {"shoal": shoal, "worth": worth}
        exec("import numpy as np\nfrom gymnasium.spaces import Box, Discrete\n", namespace)
        source = f"""
        class Walk(Base):
            observation_space = Box(0, 1, (1,), np.float64)
            action_space = Discrete(3)
            {text}
            @staticmethod
            def reset(obs):
                obs[0] = 0.0
            @staticmethod
            def step(obs):
                return worth(1.0), False
        """
        namespace["Base"] = type(
            "Base", (shoal.NativeEnv,), {"__init_subclass__": classmethod(lambda cls: None)}
        )
        exec(textwrap.dedent(source), namespace)
        return fingerprint(Spec.of(namespace["Walk"]))

    plain = made(2.0)
    assert plain == made(2.0)
    assert None not in (plain, made(3.0))
    others = [
        made(3.0),
        made(2.0, (2, 2)),
        made(2.0, text="max_episode_steps = 3"),
        made(2.0, text="num_agents = 1;state = [('x', 'f4')]"),
    ]
    assert len({plain, *others}) == 5
    assert made(object()) is None  # it has no value that could be told
    first, second = (IntEnum("Move", {"UP": number}) for number in (0, 3))
    assert made(first.UP) != made(second.UP)
    assert made(2.0, (first, 1)) != made(2.0, (second, 1))
    assert made(2.0, (type("Mine", (), {}), 1)) is None
