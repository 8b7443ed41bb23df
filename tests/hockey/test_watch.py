"""`shoal hockey watch`: players, games, and the videos of them."""

import numpy as np
import pytest
from PIL import Image

from shoal import _core
from shoal.errors import ArgumentError, MissingExtra
from shoal.hockey.drawing import COLORS
from shoal.hockey.play.match import Match, opponents_with
from shoal.hockey.players import make_player
from shoal.hockey.watch import HELD, count_frames, frames_of, play_games, write_video
from shoal.learn import PPO, PPOConfig
from shoal.video import check_path
from tests.cli.running import in_process

pytestmark = pytest.mark.skipif(_core.NAME != "native", reason="there are no compiled envs without the core")
SHORT = {"mode": "TRAIN_SHOOTING"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs that have learned nothing: with and without an LSTM, and on another env."""
    folder = tmp_path_factory.mktemp("runs")
    for name, env, lstm in (
        ("plain", "shoal/HockeyOne-v0", False),
        ("lstm", "shoal/HockeyOne-v0", True),
        ("cartpole", "shoal/CartPole-v1", False),
    ):
        (folder / name).mkdir()
        with PPO(env, PPOConfig(num_envs=2, lstm=lstm, seed=1)) as ppo:
            ppo.save(folder / name)
    return folder


def test_the_same_seeds_play_the_same_games():
    def games():
        return play_games(make_player("strong", 1), make_player("weak", 2), 2, seed=5)

    first, again = games(), games()
    for one, other in zip(first, again, strict=True):
        assert one.winner == other.winner
        np.testing.assert_array_equal(one.observations, other.observations)
    assert not np.array_equal(first[0].observations[0], first[1].observations[0])


def test_bots_play_both_sides_as_the_compiled_ones():
    games = play_games(make_player("strong", 1), make_player("weak", 2), 40, seed=1)
    back = play_games(make_player("weak", 1), make_player("strong", 2), 40, seed=1)
    won = sum(game.winner == 1 for game in games) + sum(game.winner == -1 for game in back)
    lost = sum(game.winner == -1 for game in games) + sum(game.winner == 1 for game in back)
    assert won > lost  # 42 % and 14 % are expected
    assert all(game.steps == 251 for game in games if game.winner == 0)


@pytest.mark.parametrize("name", ["plain", "lstm"])
def test_a_run_plays(runs, name):
    player = make_player(str(runs / name))
    assert player.name == name
    one, again = (play_games(player, make_player("none"), **SHORT)[0] for _ in range(2))
    np.testing.assert_array_equal(one.observations, again.observations)  # the LSTM begins anew
    assert np.abs(np.diff(one.observations[:, 0])).max() > 1e-4  # its racket moves


@pytest.mark.parametrize("name", ["plain", "lstm"])
def test_a_run_is_an_opponent_of_a_person(runs, name):
    offered, first = opponents_with(str(runs / name))
    assert (first, list(offered)) == (f"run {name}", ["none", "weak", "strong", f"run {name}"])
    with Match(offered, first, seed=0) as match:
        match.obey({"paused": False})
        for _ in range(10):
            match.step()
        assert match.tell()["state"][9:12] != [0.0, 0.0, 0.0]  # its racket moves


def test_players_that_there_are_not(runs, tmp_path):
    with pytest.raises(
        ArgumentError,
        match="expected none, weak, strong, the folder of a run or the file of a policy, got 'best'",
    ):
        make_player("best")
    with pytest.raises(ArgumentError, match=r"has no policy\.safetensors"):
        make_player(str(tmp_path))
    with pytest.raises(
        ArgumentError, match=r"expected a run on shoal/HockeyOne-v0.* got one on shoal/CartPole"
    ):
        make_player(str(runs / "cartpole"))


@pytest.mark.parametrize("ending", ["gif", "mp4"])
def test_a_video_has_all_frames(tmp_path, ending):
    games = play_games(make_player("weak", 0), make_player("none"), **SHORT)
    games[0].observations.resize((12, 18))
    path = tmp_path / "new" / f"game.{ending}"
    write_video(path, frames_of(games))
    assert count_frames(games) == 12 + HELD
    if ending == "gif":
        with Image.open(path) as image:
            milliseconds = 0
            for number in range(image.n_frames):
                image.seek(number)
                milliseconds += image.info["duration"]
            colors = np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0)
        assert milliseconds == 20 * count_frames(games)  # frames that are alike may be one
        assert {tuple(color) for color in colors.tolist()} <= set(COLORS)
    else:
        import imageio.v2 as imageio

        with imageio.get_reader(path) as reader:
            assert reader.get_meta_data()["fps"] == 50
            assert reader.get_data(0).shape == (480, 600, 3)


def test_outputs_that_cannot_be_written(tmp_path, monkeypatch):
    with pytest.raises(ArgumentError, match=r"expected a file\.gif or a file\.mp4, got .*game\.avi"):
        check_path(tmp_path / "game.avi", "out")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r'game\.mp4 needs imageio: pip install "shoal\[video\]"'):
        check_path(tmp_path / "game.mp4", "out")


def test_colours_differ_in_blue():
    assert len({blue for _, _, blue in COLORS}) == len(COLORS)  # the GIF writer relies on it


def test_the_command_writes_games_and_prints_who_won(runs, tmp_path, capsys):
    path = tmp_path / "game.gif"
    options = ("--games", 2, "--mode", "TRAIN_DEFENSE", "--out", path, "--seed", 4)
    done = in_process(capsys, "hockey", "watch", runs / "plain", "strong", *options)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for number in (1, 2):
        assert lines[number - 1].startswith(f"game {number}: ")
        assert lines[number - 1].endswith(" steps")
    assert lines[2].startswith("plain (left) ")
    assert lines[3] == f"video: {path}"
    assert path.read_bytes().startswith(b"GIF89a")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            ("weak", "best"),
            "expected none, weak, strong, the folder of a run or the file of a policy, got 'best'",
        ),
        (("weak", "weak", "--out", "game.avi"), "expected a file.gif or a file.mp4"),
        (("weak", "weak", "--mode", "FUN"), "mode: expected one of NORMAL (0)"),
        (("weak", "weak", "--games", "0"), "games: expected at least 1, got 0"),
        (("weak", "weak", "--seed", "-1"), "seed: expected 0 or more, got -1"),
    ],
)
def test_mistakes_are_told(capsys, options, error):
    done = in_process(capsys, "hockey", "watch", *options)
    assert done.returncode == 2
    assert error in done.stderr
    assert "Traceback" not in done.stderr
