"""Runs whose opponents are policies: themselves, what they have saved, and a league."""

import pytest

from shoal.hockey import resume_run
from shoal.learn.league import Archive
from tests.hockey.training.small import config, phase, train, without_plots

pytest.importorskip("openskill")

MIXTURE = [
    {"type": "self_play", "weight": 0.2},
    {"type": "self_play", "checkpoint": "latest", "weight": 0.2, "deterministic": False},
    {"type": "archive", "weight": 0.3, "distribution": {"pfsp": 0.5, "random": 0.3, "baseline": 0.2}},
    {"type": "run_checkpoints", "weight": 0.1},
    {"type": "basic_strong", "weight": 0.2},
]


def against(opponent, episodes=12):
    made = phase("rivals", episodes, "NORMAL")
    made["opponent"] = opponent
    return made


def test_a_league(tmp_path):
    content = config(against({"type": "weighted_mixture", "opponents": MIXTURE}, 24))
    content["training"]["checkpoint_save_freq"] = 4
    found = train(tmp_path, content, num_envs=4)
    assert found["total_episodes"] == 24
    archive = Archive(tmp_path / "run" / "archive")
    saved = [f"games-{games:06d}" for games in (4, 8, 12, 16, 20, 24)]
    assert [member.id for member in archive.policies] == saved
    assert {"weak", "strong", "learner"} < set(archive.members)
    played = sum(member.games for member in archive.members.values() if member.id != "learner")
    assert 0 < played == archive.members["learner"].games <= 24
    with without_plots():
        assert resume_run(tmp_path / "run", verbose=False)["total_episodes"] == 24  # it was done already


def test_a_phase_with_rivals_follows_one_with_bots(tmp_path):
    content = config(phase("bots", 4, "NORMAL", "basic_weak"), against({"type": "self_play"}, 4))
    found = train(tmp_path, content, num_envs=2)
    assert found["total_episodes"] == 8
    assert not (tmp_path / "run" / "archive").exists()  # nothing needs one
