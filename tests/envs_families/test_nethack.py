"""NetHack and MiniHack by name: nle's own games, decided by the seed, with infos where an episode ends."""

import subprocess
import sys
import tempfile

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import load_env_creator
from gymnasium.spaces import Box

import shoal
from shoal import _core
from shoal.envs import minihack, nethack
from shoal.testing.contract import difference

needs_processes = pytest.mark.skipif(_core.NAME != "native", reason="there are no workers without the core")

KEYS = (
    "glyphs", "chars", "colors", "specials", "blstats", "message", "inv_glyphs", "inv_strs", "inv_letters",
    "inv_oclasses", "tty_chars", "tty_colors", "tty_cursor",
)  # fmt: skip

# What our names stand for: the id, and the arguments that make the same of it.
BARE = {
    "nethack-score": ("NetHackScore-v0", {"observation_keys": KEYS}),
    "nethack-gold": ("NetHackGold-v0", {"observation_keys": KEYS}),
    "nethack-eat": ("NetHackEat-v0", {"observation_keys": KEYS}),
    "nethack-scout": ("NetHackScout-v0", {"observation_keys": KEYS}),
    "minihack-room-ultimate-5x5": ("MiniHack-Room-Ultimate-5x5-v0", {}),
    "minihack-sokoban1a": ("MiniHack-Sokoban1a-v1", {}),  # its reward compares whole screens
}

# Each of them, and flat rows of one of each package.
CASES = [*((name, False) for name in BARE), ("nethack-score", True), ("minihack-sokoban1a", True)]


def steps_of(vec, count, seed=0):
    """What a reset and `count` steps return. An env gets the same actions, however many are beside it."""
    actions = np.random.default_rng(seed).integers(vec.single_action_space.n, size=(count, 8))
    return [vec.reset(seed=seed), *(vec.step(row[: vec.num_envs]) for row in actions)]


class Bare:
    """nle's env itself, seeded the way nle is."""

    def __init__(self, name, limit, seeds):
        gymnasium_id, arguments = BARE[name]
        spec = gymnasium.spec(gymnasium_id)
        kwargs = {**spec.kwargs, **arguments, "fix_moon_phase": True, "max_episode_steps": limit}
        self.env = load_env_creator(spec.entry_point)(**kwargs)
        self.env._quit_game = lambda *_: None  # which would leave an empty screen
        self.reset(seeds)

    def reset(self, seeds):
        self.env.seed(*seeds)
        self.obs = self.env.reset()[0]

    def step(self, action):
        self.obs, *rest = self.env.step(action)
        return rest


@pytest.mark.parametrize(("name", "flat"), CASES)
def test_an_env_is_as_nle_makes_it(name, flat):
    options = {"backend": "serial", "flat": flat, "env_kwargs": {"max_episode_steps": 40}}
    statuses = []
    with shoal.make(name, num_envs=2, **options) as vec:
        obs, infos = vec.reset(seed=7)
        assert infos == {}
        vec.action_space.seed(7)
        bare = [Bare(name, 40, seeds) for seeds in vec.call("get_seeds")]
        ended = np.zeros(2, bool)
        for _ in range(150):
            nested = vec.observation_layout.unpack(obs) if flat else obs
            for row, each in enumerate(bare):
                assert nested.keys() == each.obs.keys()
                assert all(np.array_equal(nested[key][row], part) for key, part in each.obs.items())
            actions = vec.action_space.sample()
            obs, rewards, terminations, truncations, infos = vec.step(actions)
            for row, each in enumerate(bare):
                if ended[row]:
                    each.reset(vec.call("get_seeds")[row])
                    assert (terminations[row], truncations[row]) == (False, False)
                    continue
                reward, ends, _, info = each.step(actions[row])
                cut = ends and info["end_status"].name == "ABORTED"  # which nle calls terminated
                assert not cut or each.obs["blstats"].any()
                assert (rewards[row], terminations[row], truncations[row]) == (reward, ends and not cut, cut)
                if ends:
                    statuses.append(info["end_status"].name)
                    assert infos["end_status"][row] == info["end_status"]
                    assert infos["is_ascended"][row] == info["is_ascended"]
            ended = terminations | truncations
            if ended.any():
                assert infos["_end_status"].tolist() == infos["_is_ascended"].tolist() == ended.tolist()
                assert infos["end_status"].dtype.kind == "i"
            else:
                assert infos == {}
        for each in bare:
            each.env.close()
    assert len(statuses) > 4
    assert "ABORTED" in statuses


@pytest.mark.parametrize("size", [3, 9])
def test_a_crop_is_as_minihack_cuts_it(size):
    env = minihack.create("room-5x5", obs_crop_h=size, obs_crop_w=size, obs_crop_pad=7)
    game = env.unwrapped
    screen = np.random.default_rng(0).integers(20, 99, (21, 79), dtype=np.int16)
    for center in [(0, 0), (78, 20), (1, 20), (78, 0), (40, 10), (3, 2), (75, 18)]:
        expected = type(game)._crop_observation(game, screen, center)
        found = game._crop_observation(screen, center)
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)
    env.close()


def test_all_but_the_largest_part_is_observed():
    with shoal.make("nethack-score", backend="serial") as vec:
        assert set(vec.single_observation_space) == set(KEYS)
        assert vec.single_observation_space["glyphs"] == Box(0, 5976, (21, 79), np.int16)
        assert vec.observation_layout.nbytes < 20_000
    with shoal.make("nethack-challenge", backend="serial") as vec:
        assert set(vec.single_observation_space) == {*KEYS, "misc"}
    keys = {"screen_descriptions", "blstats"}
    with shoal.make("nethack-score", backend="serial", env_kwargs={"observation_keys": keys}) as vec:
        assert vec.reset(seed=0)[0].keys() == keys
        assert vec.observation_layout.nbytes > 130_000


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("nethack-score", "NextStep"),
        ("nethack-score", "SameStep"),
        ("minihack-room-ultimate-5x5", "NextStep"),
        ("minihack-multiroom-n2", "SameStep"),
    ],
)
def test_a_seed_decides_all_games_that_follow(name, mode):
    """Whatever was played before or is played beside, to the scores on their last screens."""
    keys = ["tty_chars", "glyphs", "blstats", "message"]
    options = {
        "backend": "serial",
        "autoreset_mode": mode,
        "env_kwargs": {"max_episode_steps": 25, "observation_keys": keys},
    }
    with shoal.make(name, num_envs=3, **options) as vec:
        first, other, again = (steps_of(vec, 70, seed) for seed in (3, 8, 3))
    with shoal.make(name, num_envs=1, **options) as vec:
        alone = steps_of(vec, 70, 3)
    assert difference(again, first) is None
    assert difference(other[0], first[0]) is not None
    for step, beside in zip(alone, first, strict=True):
        assert all(np.array_equal(step[0][key], beside[0][key][:1]) for key in keys)
    ends = sum(int(terminations[0] | truncations[0]) for _, _, terminations, truncations, _ in first[1:])
    assert ends >= 2
    games = [obs["glyphs"][row].tobytes() for obs in (first[0][0], other[0][0]) for row in range(3)]
    assert len(set(games)) > 4  # small rooms may look alike


def test_the_last_observation_of_a_game_stays_when_the_next_begins():
    """nle writes all its observations into the same arrays."""
    finals = {}
    for mode in ("SameStep", "NextStep"):
        options = {"autoreset_mode": mode, "env_kwargs": {"max_episode_steps": 9}}
        with shoal.make("minihack-room-15x15", num_envs=2, backend="serial", **options) as vec:
            last = steps_of(vec, 9, seed=1)[-1]
        finals[mode] = [last[4]["final_obs"][row] for row in range(2)] if mode == "SameStep" else last[0]
    for row, final in enumerate(finals["SameStep"]):
        assert all(np.array_equal(final[key], part[row]) for key, part in finals["NextStep"].items())


def test_the_moon_follows_the_seed_and_not_the_clock():
    with shoal.make("nethack-score", num_envs=40, backend="serial") as vec:
        greetings = [bytes(message) for message in vec.reset(seed=0)[0]["message"]]
    moons = {b"Full moon tonight" in each for each in greetings}
    assert moons == {True, False}


def test_without_a_seed_every_game_is_another():
    with shoal.make("nethack-score", num_envs=2, backend="serial") as vec:
        games = [game.tobytes() for _ in range(3) for game in vec.reset()[0]["glyphs"]]
        assert len(set(games)) == 6
        vec.call("seed", 1, 2)  # nle's own way
        one, two = vec.reset()[0]["glyphs"]
        assert np.array_equal(one, two)


def test_what_minihack_draws_by_itself_follows_the_seed():
    options = {"backend": "serial", "env_kwargs": {"seeds": list(range(50)), "max_episode_steps": 10}}
    with shoal.make("minihack-room-random-15x15", num_envs=2, **options) as vec:
        first = steps_of(vec, 60, 4)
        levels = vec.call("get_seeds")
        again = steps_of(vec, 60, 4)
    assert difference(again, first) is None
    assert all(core == display and core in range(50) for core, display, *_ in levels)


def test_the_challenge_allows_no_seeds():
    with shoal.make("nethack-challenge", backend="serial") as vec:
        with pytest.warns(UserWarning, match="NetHackChallenge allows no seeds: it was not seeded"):
            first = vec.reset(seed=0)[0]
        second = vec.reset(seed=0)[0]  # warns no more
        assert difference(second, first) is not None


def test_names():
    assert nethack.names() == [
        "base", "challenge", "eat", "gold", "oracle", "score", "scout", "staircase", "staircasepet"
    ]  # fmt: skip
    names = minihack.names()
    assert len(set(names)) == len(names) > 140
    assert {"room-5x5", "keyroom-dark-s15", "sokoban4a", "skill-custom"} <= set(names)


@pytest.mark.parametrize("name", nethack.names())
def test_every_task_of_nle(name):
    with shoal.make(f"nethack-{name}", backend="serial") as vec:
        vec.reset()
        assert vec.step(vec.action_space.sample())[4] == {}


@pytest.mark.parametrize(
    "name",
    [
        "corridor-r2",
        "eat",
        "keyroom-s5",
        "mazewalk-9x9",
        "memento-f2",
        "quest-easy",
        "sokoban4a",
        "wod-easy-full",
    ],
)
def test_tasks_of_minihack(name):
    with shoal.make(f"minihack-{name}", backend="serial", flat=True) as vec:
        steps_of(vec, 5)
        assert vec.step(vec.action_space.sample())[0] in vec.observation_space


def test_a_level_of_ones_own():
    from minihack import LevelGenerator  # only now: our file keeps its import quiet

    level = LevelGenerator(w=5, h=5)
    level.add_goal_pos((0, 0))
    level.set_start_pos((1, 1))
    with shoal.make(
        "minihack-navigation-custom", backend="serial", env_kwargs={"des_file": level.get_des()}
    ) as vec:
        vec.reset(seed=0)
        north_west = vec.get_attr("actions")[0].index(ord("y"))
        _, rewards, terminations, _, infos = vec.step([north_west])
        assert (rewards[0], terminations[0], infos["end_status"][0]) == (1.0, True, 2)


def test_arguments_reach_the_env():
    options = {"env_kwargs": {"character": "val-dwa-law-fem"}, "render_mode": "ansi"}
    with shoal.make("nethack-score", backend="serial", **options) as vec:
        vec.reset(seed=0)
        assert vec.get_attr("character") == ("val-dwa-law-fem",)
        (screen,) = vec.render()
        assert "@" in screen


@pytest.mark.parametrize("name", ["nethack-score", "minihack-room-5x5"])
@pytest.mark.parametrize(
    "options", [{"backend": "serial"}, pytest.param({"num_workers": 2}, marks=needs_processes)]
)
def test_closing_removes_the_files(name, options, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with shoal.make(name, num_envs=4, **options) as vec:
        steps_of(vec, 3)
        assert len(list(tmp_path.iterdir())) == 4
    assert list(tmp_path.iterdir()) == []


@needs_processes
@pytest.mark.parametrize(
    ("name", "flat"),
    [("nethack-score", True), ("minihack-room-ultimate-5x5", False), ("minihack-sokoban1a", True)],
)
def test_workers_give_the_same(name, flat):
    traces = []
    for options in ({"backend": "serial"}, {"num_workers": 2}):
        with shoal.make(name, num_envs=3, flat=flat, env_kwargs={"max_episode_steps": 40}, **options) as vec:
            traces.append(steps_of(vec, 100, seed=5))
    assert difference(*traces) is None
    assert any((step[2] | step[3]).any() for step in traces[0][1:])


ASK = """
import sys, shoal
def ask(name, backend):
    with shoal.make(name, num_envs=2, backend=backend) as vec:
        obs, _ = vec.reset(seed=0)
        infos = vec.step(vec.action_space.sample())[4]
        print(vec.env_name, vec.spec.id, obs["glyphs"].shape, infos["end_status"])

assert not {"nle", "minihack"} & set(sys.modules)
if "workers" in sys.argv:
    ask("NetHackScore-v0", "multiprocessing")
ask("NetHackScore-v0", "serial")
assert "minihack" not in sys.modules
ask("MiniHack-Room-5x5-v0", "serial")
"""


def run(*arguments):
    return subprocess.run([sys.executable, "-c", *arguments], capture_output=True, text=True, timeout=100)


def test_a_gymnasium_id_needs_no_import():
    has_workers = _core.NAME == "native"
    done = run(ASK, *["workers"] * has_workers)
    assert done.returncode == 0, done.stderr
    names = [*["NetHackScore-v0"] * (1 + has_workers), "MiniHack-Room-5x5-v0"]
    for line, name in zip(done.stdout.splitlines(), names, strict=True):
        assert line.startswith(f"{name} {name} (2, 21, 79) [<StepStatus.RUNNING: 0>")
    assert "pkg_resources" not in done.stderr


def test_minihack_is_imported_without_what_it_has_no_use_for():
    done = run("import sys, shoal.envs.minihack; print('inflect' in sys.modules)")
    assert done.stdout == "False\n", done.stderr


def test_minihack_without_pkg_resources_says_what_helps():
    done = run('import shoal, sys; sys.modules["pkg_resources"] = None; shoal.make("minihack-room-5x5")')
    assert done.returncode == 1
    assert done.stderr.endswith(
        "shoal.errors.MissingExtra: MiniHack needs pkg_resources, which newer setuptools do not have: "
        'pip install "setuptools<80"\n'
    )
