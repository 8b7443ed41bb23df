"""MiniGrid and BabyAI by name: the package's own observations, with a mission that has bytes."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Dict, Discrete, Text

import shoal
from shoal import _core
from shoal.envs import minigrid
from shoal.testing.contract import difference

needs_processes = pytest.mark.skipif(_core.NAME != "native", reason="there are no workers without the core")


def steps_of(vec, count, seed=0):
    """Observations, as a list with one for each env, rewards and flags of a reset and `count` steps."""
    layout = vec.observation_layout

    def values(obs):
        if vec.flat:
            return [layout.value(row) for row in obs]
        return [{key: part[env] for key, part in obs.items()} for env in range(vec.num_envs)]

    vec.action_space.seed(seed)
    trace = [(values(vec.reset(seed=seed)[0]),)]
    for _ in range(count):
        obs, *rest, infos = vec.step(vec.action_space.sample())
        assert infos == {}
        trace.append((values(obs), *(each.tolist() for each in rest)))
    return trace


def steps_of_bare(names, action_space, count, seed=0):
    """The same from Gymnasium's envs, each in a loop of its own."""
    action_space.seed(seed)
    actions = [action_space.sample() for _ in range(count)]
    columns = []
    for number, name in enumerate(names):
        env = gymnasium.make(name)
        column, done = [(env.reset(seed=seed + number)[0],)], False
        for each in actions:
            if done:
                column.append((env.reset()[0], 0.0, False, False))
            else:
                column.append(env.step(each[number])[:4])
            done = any(column[-1][2:])
        env.close()
        columns.append(column)
    return [tuple(map(list, zip(*row, strict=True))) for row in zip(*columns, strict=True)]


IDS = {
    "doorkey-5x5": "MiniGrid-DoorKey-5x5-v0",
    "fetch-5x5-n2": "MiniGrid-Fetch-5x5-N2-v0",
    "babyai-gotolocals5n2": "BabyAI-GoToLocalS5N2-v0",
    "babyai-minibosslevel": "BabyAI-MiniBossLevel-v0",
}


@pytest.mark.parametrize(
    ("name", "flat"),
    [*((name, False) for name in IDS), ("doorkey-5x5", True), ("babyai-minibosslevel", True)],
)
def test_an_env_is_as_gymnasium_makes_it(name, flat):
    with shoal.make(f"minigrid-{name}", num_envs=3, backend="serial", flat=flat) as vec:
        trace = steps_of(vec, 300)
        expected = steps_of_bare([IDS[name]] * 3, vec.action_space, 300)
    assert difference(trace, expected) is None
    assert any(any(map(any, rest[1:])) for _, *rest in trace), "an episode must end for this to test anything"


def test_the_mission_is_a_text_with_room_for_the_longest_one():
    with shoal.make("minigrid-doorkey-5x5", backend="serial") as vec:
        space = vec.single_observation_space
        (mission,) = vec.reset(seed=0)[0]["mission"]
    assert isinstance(space, Dict)
    assert type(space["mission"]) is Text
    assert space["direction"] == Discrete(4)
    assert mission == "use the key to open the door and then get to the goal"
    assert space["mission"] == Text(min_length=0, max_length=len(mission), charset=minigrid.CHARSET)


PUT_NEXT = "put the yellow object in front of you next to the yellow object in front of you"


@pytest.mark.parametrize(
    ("name", "longest"),
    [
        ("fetch-8x8-n3", "you must fetch a yellow ball"),
        ("putnear-8x8-n3", "put the yellow ball near the yellow ball"),
        ("playground", ""),
        ("babyai-goto", f"{PUT_NEXT} and {PUT_NEXT} after you {PUT_NEXT} and {PUT_NEXT}"),
    ],
)
def test_the_room_comes_from_the_words_that_a_mission_is_made_of(name, longest):
    with shoal.make(f"minigrid-{name}", backend="serial") as vec:
        assert vec.single_observation_space["mission"].max_length == len(longest)


def test_every_name_is_an_env_whose_missions_fit():
    names = minigrid.names()
    assert len(set(names)) == len(names) > 150
    assert {"doorkey-5x5", "babyai-goto", "dynamic-obstacles-5x5", "multiroom-n4-s5"} <= set(names)
    for name in names:
        with shoal.make(f"minigrid-{name}", num_envs=1, backend="serial", flat=True) as vec:
            for seed in range(3):
                obs, infos = vec.reset(seed=seed)
                assert infos == {}
                mission = vec.observation_layout.value(obs[0])["mission"]
                assert mission == vec.get_attr("mission")[0]
            vec.step(vec.action_space.sample())


def test_the_newest_version_has_the_name():
    with shoal.make("minigrid-multiroom-n4-s5", backend="serial") as vec:
        assert vec.get_attr("spec")[0].id == "MiniGrid-MultiRoom-N4-S5-v1"


def test_missions_come_back_from_their_codes():
    with shoal.make("minigrid-babyai-bosslevel", num_envs=4, backend="serial", flat=True) as vec:
        lengths = set()
        for seed in range(0, 40, 4):
            obs, _ = vec.reset(seed=seed)
            parts = vec.observation_layout.unpack(obs)
            assert parts["image"].shape == (4, 7, 7, 3)
            letters = np.array([0, *map(ord, sorted(minigrid.CHARSET))])
            for codes, mission in zip(parts["mission"], vec.get_attr("mission"), strict=True):
                assert bytes(letters[codes].tolist()).rstrip(b"\0").decode() == mission
                lengths.add(len(mission))
    assert len(lengths) > 10


def test_a_mission_that_is_too_long_says_so():
    options = {"mission_length": 20}
    with (
        shoal.make("minigrid-doorkey-5x5", backend="serial", env_kwargs=options) as vec,
        pytest.raises(
            shoal.errors.ObservationError, match=r"expected at most 20 characters, got 53: 'use the key"
        ),
    ):
        vec.reset(seed=0)


def test_envs_with_different_missions_share_a_vec():
    names = ["minigrid-empty-5x5", "minigrid-doorkey-5x5"]
    with pytest.raises(shoal.errors.SpaceMismatch, match="mission"):
        shoal.make(names, backend="serial")
    with shoal.make(names, backend="serial", env_kwargs={"mission_length": 60}) as vec:
        trace = steps_of(vec, 50)
        ids = ["MiniGrid-Empty-5x5-v0", "MiniGrid-DoorKey-5x5-v0"]
        assert difference(trace, steps_of_bare(ids, vec.action_space, 50)) is None


def test_arguments_reach_the_env():
    options = {"agent_view_size": 5, "max_steps": 3}
    with shoal.make(
        "minigrid-empty-5x5", backend="serial", env_kwargs=options, render_mode="rgb_array"
    ) as vec:
        obs, _ = vec.reset(seed=0)
        assert obs["image"].shape == (1, 5, 5, 3)
        assert [vec.step([0])[3].tolist() for _ in range(3)] == [[False], [False], [True]]
        (frame,) = vec.render()
        assert frame.dtype == np.uint8
        assert frame.ndim == 3


def test_what_babyai_rejects_is_not_printed(capsys):
    env = gymnasium.make("BabyAI-GoToObjDoor-v0")
    for seed in range(20):
        env.reset(seed=seed)
    env.close()
    assert "Sampling rejected" in capsys.readouterr().out
    with shoal.make("minigrid-babyai-gotoobjdoor", backend="serial") as vec:
        for seed in range(20):
            vec.reset(seed=seed)
        print("still here")
    assert capsys.readouterr().out == "still here\n"


@needs_processes
def test_workers_give_the_same():
    traces = []
    for options in ({"backend": "serial"}, {"num_workers": 2}):
        with shoal.make("minigrid-babyai-gotolocals5n2", num_envs=3, flat=True, **options) as vec:
            traces.append(steps_of(vec, 200, seed=5))
    assert difference(*traces) is None
    assert len({obs[0]["mission"] for obs, *_ in traces[0]}) > 1, (
        "an episode must end for this to test anything"
    )


def test_a_gymnasium_id_needs_no_import():
    code = """
import sys, shoal
assert "minigrid" not in sys.modules
with shoal.make("MiniGrid-DoorKey-5x5-v0", num_envs=2, backend="serial") as vec:
    obs, _ = vec.reset(seed=0)
    print(vec, vec.spec.id, obs["image"].shape, obs["mission"][1])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "Serial(MiniGrid-DoorKey-5x5-v0, num_envs=2) MiniGrid-DoorKey-5x5-v0 (2, 7, 7, 3) "
        "use the key to open the door and then get to the goal\n"
    )


@needs_processes
def test_a_gymnasium_id_has_the_space_that_has_no_bytes():
    def run(**options):
        with shoal.make("MiniGrid-GoToDoor-5x5-v0", num_envs=4, **options) as vec:
            moments = [vec.reset(seed=3)]
            moments += [vec.step(np.full(4, step % 3)) for step in range(40)]
        return moments

    serial = run(backend="serial")
    assert all("go to the" in mission for mission in serial[0][0]["mission"])
    assert len(set(serial[0][0]["mission"])) > 1
    assert difference(run(num_workers=2), serial) is None
    match = r'space\["mission"\]: MissionSpace is not a space Shoal knows the bytes of'
    with pytest.raises(shoal.errors.SpaceError, match=match):
        shoal.make("MiniGrid-DoorKey-5x5-v0", backend="serial", flat=True)
