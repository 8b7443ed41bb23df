"""Names of envs, and what they stand for."""

import subprocess
import sys
import textwrap

import gymnasium
import pytest
from gymnasium.spaces import Discrete

import shoal
from shoal import _core, registry
from shoal.errors import ArgumentError, ArgumentTypeError, MissingExtra, UnknownEnv
from shoal.testing import SampleEnv

needs_processes = pytest.mark.skipif(_core.NAME != "native", reason="needs the compiled core")


@pytest.fixture(autouse=True)
def _names_are_forgotten(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})


@pytest.fixture
def missing(monkeypatch):
    """Pretend that a family's package is not installed."""

    def hide(*modules):
        find = registry.importlib.util.find_spec
        monkeypatch.setattr(
            registry.importlib.util, "find_spec", lambda name: None if name in modules else find(name)
        )

    return hide


def doors():
    return SampleEnv(Discrete(2), Discrete(2))


def test_a_gymnasium_id_is_gymnasiums_own():
    env = registry.find("CartPole-v1").create()
    assert env.spec.id == "CartPole-v1"
    assert type(env) is type(gymnasium.make("CartPole-v1"))


def test_gymnasiums_module_and_id():
    assert registry.find("gymnasium.envs:CartPole-v1").create().spec.id == "CartPole-v1"


def test_ids_of_packages_need_no_import():
    run = "import shoal; print(shoal.make('MiniGrid-Empty-5x5-v0').single_action_space)"
    assert subprocess.check_output([sys.executable, "-c", run], text=True) == "Discrete(7)\n"


def test_a_family_is_no_env():
    with pytest.raises(UnknownEnv, match=r"'atari' is a family of envs: .* `shoal envs atari-` lists"):
        shoal.make("atari")


def test_a_file_is_no_env():
    with pytest.raises(UnknownEnv, match=r"expected a class or function in that file too, .*'maze.py:MyEnv'"):
        shoal.make("maze.py")


def test_a_dict_is_no_list_of_names():
    with pytest.raises(ArgumentTypeError, match=r"expected a creator or a list of creators, got \{"):
        shoal.make({"env": "CartPole-v1"})


def test_registered_names():
    shoal.register("two-doors", doors)
    shoal.register("two-doors", doors)  # the same again
    assert registry.find("two-doors").create is doors


@pytest.mark.parametrize("name", ["CartPole-v1", "atari-anything", "two-doors"])
def test_a_taken_name(name):
    shoal.register("two-doors", doors)
    with pytest.raises(ArgumentError, match=f"'{name}' is taken"):
        shoal.register(name, lambda: None)


def test_what_cannot_be_registered():
    with pytest.raises(ArgumentTypeError, match="a class or a function that makes envs, got SampleEnv"):
        shoal.register("made-already", doors())
    for wrong in ("", "maze:v2", 3):
        with pytest.raises(ArgumentError, match="a string that is not empty and has no colon"):
            shoal.register(wrong, doors)


def test_an_id_that_gymnasium_knows_needs_no_family(missing, monkeypatch):
    spec = gymnasium.spec("CartPole-v1")
    monkeypatch.setitem(gymnasium.registry, "NetHackMine-v0", spec)
    missing("nle", "cv2")
    assert registry.find("NetHackMine-v0").gymnasium_id == "NetHackMine-v0"
    assert registry.find("ALE/Pong-v5").gymnasium_id == "ALE/Pong-v5"


@pytest.mark.parametrize(
    ("wrong", "near"),
    [("cartpole-v1", "CartPole-v1"), ("classic-cartpol", "classic-cartpole"), ("to-doors", "two-doors")],
)
def test_an_unknown_name_suggests_the_nearest(wrong, near):
    shoal.register("two-doors", doors)
    with pytest.raises(UnknownEnv, match=f"no env is called '{wrong}'. Did you mean '{near}'"):
        registry.find(wrong)


def test_a_name_like_no_other():
    with pytest.raises(UnknownEnv, match=r"Expected a Gymnasium id, one of classic, .*file\.py:Class"):
        registry.find("zzzzzz")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rooms:Room-v0", "the package 'rooms' was imported, but does not register 'Room-v0': Env"),
        (
            "rooms:Room",
            r"does not register 'Room': .* of rooms\.Room, pass the class itself instead of its name",
        ),
        ("halls:Room-v0", "there is no package 'halls'"),
        ("rooms.halls:Room-v0", r"there is no package 'rooms\.halls'"),
        ("cellar:Room-v0", "No module named 'ladder', in the import of the package 'cellar'"),
        (":Room-v0", "there is no package ''"),
        (".rooms:Room-v0", r"there is no package '\.rooms'"),
    ],
)
def test_a_package_and_an_id_that_is_not_there(name, text, tmp_path, monkeypatch):
    (tmp_path / "rooms.py").write_text("class Room: pass")
    (tmp_path / "cellar.py").write_text("import ladder")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnknownEnv, match=f"Gymnasium does not know '{name}': .*{text}"):
        registry.find(name)
    sys.modules.pop("rooms", None)


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("atari-breakout", "ale_py", "atari"),
        ("ALE/Breakout-v5", "ale_py", "atari"),
        ("ale-breakout", "ale_py", "atari"),
        ("box2d-lunarlander", "Box2D", "box2d"),
        ("LunarLander-v3", "Box2D", "box2d"),
        ("mujoco-ant", "mujoco", "mujoco"),
        ("HalfCheetah-v5", "mujoco", "mujoco"),
        ("minigrid-empty-5x5", "minigrid", "minigrid"),
        ("nethack-score", "nle", "nethack"),
        ("minihack-room-5x5", "minihack", "nethack"),
    ],
)
def test_a_missing_extra_says_how_to_install_it(missing, monkeypatch, name, module, extra):
    missing(module)
    if name.startswith("ALE/"):
        monkeypatch.delitem(gymnasium.registry, name, raising=False)  # from another test
    with pytest.raises(MissingExtra, match=rf'pip install "shoal\[{extra}\]"'):
        shoal.make(name)


def test_families_that_are_not_installed_suggest_nothing(missing):
    missing("ale_py")
    with pytest.raises(UnknownEnv, match="no env is called 'breakout'"):
        registry.find("breakout")


@pytest.mark.parametrize("family", registry.FAMILIES)
def test_names_of_a_family_are_its_own(family):
    names = registry.FAMILIES[family].names()
    assert len(names) == len(set(names)) > 4
    assert all(name.startswith(f"{family}-") and name == name.casefold() for name in names)


def test_all_extras_exist():
    import tomllib
    from pathlib import Path

    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    extras = {family.extra for family in registry.FAMILIES.values()} - {""}
    assert extras <= set(project["optional-dependencies"])


# -- envs in files -----------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "maze.py"
    text = """
        import gymnasium
        import neighbour
        from gymnasium.spaces import Discrete

        class Maze(gymnasium.Env):
            observation_space = action_space = Discrete(4)

            def __init__(self, size=3):
                self.size = size

            @classmethod
            def sized_by(cls, path, attribute):
                return cls(neighbour.SIZE)

            def reset(self, seed=None, options=None):
                return 0, {}

            def step(self, action):
                return action, float(self.size), False, False, {}

        made = Maze()
        sized_by = Maze.sized_by
    """
    (tmp_path / "neighbour.py").write_text("SIZE = 7")
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.delitem(sys.modules, "neighbour", raising=False)
    path.write_text(textwrap.dedent(text))
    return path


def test_other_peoples_modules_are_not_imported_to_find_a_name(monkeypatch):
    before = dict(gymnasium.registry)
    gymnasium.register("Told-v0", entry_point="gymnasium.no_such_module:Env")
    assert registry.find("Told-v0").native is None
    gymnasium.register("Broken-v0", entry_point="tests.no_such_module:Env")
    assert registry.find("Broken-v0").native is None  # gymnasium.make says what is wrong
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


@pytest.mark.parametrize("backend", ["serial", "auto"])
def test_an_env_in_a_file(file, backend):
    with shoal.make(f"{file}:Maze", num_envs=2, env_kwargs={"size": 5}, backend=backend) as vec:
        vec.reset(seed=0)
        obs, rewards, *_ = vec.step([1, 3])
    assert obs.tolist() == [1, 3]
    assert rewards.tolist() == [5, 5]


def test_arguments_of_any_name(file):
    with shoal.make(f"{file}:sized_by", env_kwargs={"path": "x", "attribute": "y"}) as vec:
        assert vec.envs[0].size == 7


def test_a_file_relative_to_here(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    with shoal.make("maze.py:Maze") as vec:
        assert vec.single_action_space == Discrete(4)


def test_a_file_whose_name_begins_like_a_family(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    file.rename("classic-maze.py")
    with shoal.make("classic-maze.py:Maze") as vec:
        assert vec.single_action_space == Discrete(4)


def test_files_that_have_no_env(file):
    with pytest.raises(UnknownEnv, match=r"there is no file .*nowhere\.py"):
        registry.find(f"{file.parent}/nowhere.py:Maze")
    with pytest.raises(UnknownEnv, match=r"maze\.py has no 'Labyrinth'"):
        registry.find(f"{file}:Labyrinth")
    with pytest.raises(ArgumentTypeError, match=r"expected a class or a function in .*maze\.py"):
        registry.find(f"{file}:made")


def test_a_file_that_raises_is_tried_again(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("1 / 0")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="division by zero"):
            registry.find(f"{path}:Maze")


def test_gymnasiums_make_vec():
    vec = gymnasium.make_vec("shoal/Foragers-v0", num_envs=2, num_agents=3, backend="serial", flat=True)
    assert (vec.num_rows, vec.agents_per_env, vec.flat) == (6, 3, True)
    assert vec.spec.id == "shoal/Foragers-v0"
    vec.reset(seed=0)
    vec.close()
    with gymnasium.make_vec("shoal/make", num_envs=2, env="CartPole-v1", backend="serial") as vec:
        assert repr(vec) == "Serial(CartPole-v1, num_envs=2)"
    with pytest.raises(UnknownEnv, match="no env is called 'shoal/make'"):
        shoal.make("shoal/make")


@pytest.mark.parametrize("backend", ["serial", pytest.param("multiprocessing", marks=needs_processes)])
def test_an_env_of_shoals_own(backend):
    with shoal.make("shoal/Foragers-v0", 2, env_kwargs={"num_agents": 4}, backend=backend) as vec:
        vec.reset(seed=0)
        assert vec.step(vec.action_space.sample())[1].shape == (8,)
