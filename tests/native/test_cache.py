"""Kernels on disk: found again, and never out of date."""

import fcntl
import os
import random
import signal
import stat
import subprocess
import sys
import textwrap
from enum import IntEnum

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import shoal

pytestmark = pytest.mark.skipif(shoal._core.NAME != "native", reason="needs the compiled core")

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
    print(rewards[0], vec._kernel.was_cached)
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


@pytest.mark.slow
@pytest.mark.timeout(400)  # each of its processes compiles
def test_an_edited_env_is_compiled_anew(project):
    assert project() == (2.5, False)
    assert project() == (2.5, True)
    walk = project.folder / "walk.py"
    edits = [
        (walk, "state.place += config.step_size", "state.place += 3 * config.step_size", 6.5),
        (walk, "place * FACTOR", "place * FACTOR * 10", 60.5),  # a function that it calls
        (walk, "FACTOR = 2.0", "FACTOR = 4.0", 120.5),  # a number that function reads
        (project.folder / "tables.py", "0.5", "0.25", 120.25),  # in another file
    ]
    for path, old, new, reward in edits:
        change(path, old, new)
        assert project() == (reward, False)
    assert project() == (reward, True)
    change(walk, "\nclass Walk", "\n# A word.\nclass Walk")  # says nothing new
    assert project() == (reward, True)
    assert project("{'env_kwargs': {'step_size': 2.0}}") == (240.25, False)


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


@pytest.fixture
def kept(tmp_path, monkeypatch, capsys):
    """Make an env whose kernel is kept in an empty folder: whether it was there, and what was said."""
    from shoal.native import compiling

    folder = tmp_path / "deep" / "cache"
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(folder))
    monkeypatch.setattr(compiling, "SLOW", 0.0)

    def run():
        compiling._made.clear()
        with shoal.make(Kept, 2) as vec:
            vec.reset(seed=0)
            assert vec.step([0, 0])[1].tolist() == [1.0, 1.0]
            return vec._kernel.was_cached, capsys.readouterr().err

    run.folder = folder
    run.file = lambda: next(iter(folder.glob("*.kernel")))
    return run


def test_any_flipped_bit_is_noticed_before_anything_is_unpickled(kept, monkeypatch):
    from numba.core.registry import cpu_target

    from shoal.native import cache

    assert kept()[0] is False
    assert kept() == (True, "")
    file, context = kept.file(), cpu_target.target_context
    whole = file.read_bytes()
    store = cache.Store(file.stem, lambda: None)
    assert store._load(context) is not None
    loads = cache.pickle.loads
    monkeypatch.setattr(cache.pickle, "loads", lambda data: pytest.fail("unpickled"))
    choose = random.Random(0)
    for bit in [*range(0, 8 * 64, 3), *(choose.randrange(8 * len(whole)) for _ in range(300))]:
        wrong = bytearray(whole)
        wrong[bit // 8] ^= 1 << bit % 8
        file.write_bytes(wrong)
        assert store._load(context) is None
    for wrong in (b"", whole[:20], whole[:-1], whole + b"0"):
        file.write_bytes(wrong)
        assert store._load(context) is None
    monkeypatch.setattr(cache.pickle, "loads", loads)
    assert kept()[0] is False  # compiled anew, and kept
    assert kept()[0] is True


def test_a_kernel_under_the_name_of_another_is_not_used(kept):
    assert kept()[0] is False
    file = kept.file()
    with shoal.make(Kept, 2, env_kwargs={"max_episode_steps": 3}):
        (other,) = (path for path in kept.folder.glob("*.kernel") if path != file)
    other.replace(file)
    assert kept()[0] is False


def test_the_folder_is_for_this_user_alone(kept):
    before = os.umask(0)
    try:
        assert kept()[0] is False
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (kept.folder.parent, kept.folder, kept.file())] == [
        0o700,
        0o700,
        0o600,
    ]


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o722])
def test_what_others_may_write_is_neither_read_nor_written(kept, mode):
    assert kept()[0] is False
    file = kept.file()
    file.chmod(mode)
    assert kept()[0] is False
    assert stat.S_IMODE(kept.file().stat().st_mode) == 0o600  # made anew
    kept.folder.chmod(mode)
    before = kept.file().stat().st_mtime_ns
    cached, said = kept()
    assert cached is False
    why = f"other users may write to it, mode {mode:o}: chmod 700 it, or delete it"
    assert f"each process compiles it anew ({kept.folder}: {why})" in said
    assert kept.file().stat().st_mtime_ns == before
    kept.folder.chmod(0o700)
    assert kept()[0] is True


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_is_another_users_is_not_read(kept, what):
    assert kept()[0] is False
    os.chown(kept.file() if what == "file" else kept.folder, 12345, 12345)
    cached, said = kept()
    assert cached is False
    assert ("owned by another user, 12345" in said) == (what == "folder")


def test_links_and_pipes_are_no_kernels(kept, tmp_path):
    assert kept()[0] is False
    file = kept.file()
    file.replace(tmp_path / "moved")
    file.symlink_to(tmp_path / "moved")
    assert kept()[0] is False
    kept.file().unlink()
    os.mkfifo(file)
    assert kept()[0] is False


def test_where_nothing_can_be_written_it_does_not_say_so(kept):
    kept.folder.parent.mkdir()
    kept.folder.write_text("a file, no folder")
    cached, said = kept()
    assert cached is False
    assert f"each process compiles it anew ({kept.folder}: Not a directory)" in said
    kept.folder.unlink()
    assert "; the next time it is found on disk" in kept()[1]


def test_a_process_that_was_killed_keeps_no_lock(kept):
    assert kept()[0] is False
    key = kept.file().stem
    kept.file().unlink()
    lock = kept.folder / f"{key}.lock"
    text = f"import fcntl; f = open({str(lock)!r}, 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(1); input()"
    with subprocess.Popen(
        [sys.executable, "-u", "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "1\n"
        with lock.open() as file, pytest.raises(BlockingIOError, match="temporarily unavailable"):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert kept()[0] is False
    assert not lock.exists()


def test_a_process_that_holds_its_lock_for_too_long_is_not_waited_for(kept, monkeypatch):
    from shoal.native import cache

    assert kept()[0] is False
    lock = kept.file().with_suffix(".lock")
    kept.file().unlink()
    monkeypatch.setattr(cache, "PATIENCE", 0.1)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert kept()[0] is False
    assert kept()[0] is True  # it was kept all the same


def test_a_lock_whose_name_is_gone_is_not_waited_for(kept, monkeypatch):
    """As a child has it that was forked during the compilation: it inherits the lock."""
    from shoal.native import cache

    assert kept()[0] is False
    lock = kept.file().with_suffix(".lock")
    kept.file().unlink()
    looks = []

    def sleep(seconds):
        looks.append(seconds)
        lock.unlink(missing_ok=True)  # as the process does that has compiled
        assert len(looks) < 5

    monkeypatch.setattr(cache.time, "sleep", sleep)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert kept()[0] is False
    assert len(looks) == 1


def test_a_class_is_compiled_at_its_first_use(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    text = textwrap.dedent("""
        import sys, shoal, shoal.envs.snake, shoal.testing.native_envs
        print("numba" in sys.modules)
    """)
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout == "False\n"
    assert not (tmp_path / "cache").exists()


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
