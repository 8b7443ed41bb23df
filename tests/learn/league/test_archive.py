"""The archive of a league, and matchmaking."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import shoal
from shoal.errors import ArgumentError, RunError
from shoal.learn import QPolicy
from shoal.learn.league import Archive, Matchmaking

pytest.importorskip("openskill")


def policy(seed=0):
    torch.manual_seed(seed)
    return QPolicy(shoal.layout(Box(-1, 1, (3,))), Discrete(4), hidden=(8,))


def test_members_are_kept_on_disk(tmp_path):
    archive = Archive(tmp_path)
    one = policy(1)
    archive.add(one, 500)
    archive.add(policy(2), 1000, "second")
    archive.add_bot("weak")
    archive.record("second", 1.0)
    archive.save()
    again = Archive(tmp_path)
    assert again.members == archive.members
    assert list(again.members) == ["learner", "steps-000000500", "second", "weak"]
    assert [member.id for member in again.policies] == ["steps-000000500", "second"]
    obs = np.random.default_rng(0).uniform(-1, 1, (5, 3)).astype(np.float32)
    found = again.policy("steps-000000500")
    np.testing.assert_array_equal(found.act_batch(obs, True), one.act_batch(obs, True))


def test_ratings_follow_results(tmp_path):
    archive = Archive(tmp_path)
    for name in ("easy", "even", "hard"):
        archive.add(policy(), 1, name)
    for _ in range(40):
        for name, result in (("easy", 1.0), ("even", 0.5), ("hard", 0.0)):
            archive.record(name, result)
    table = [member.id for member in archive.table()]
    assert table.index("hard") < table.index("even") < table.index("easy")
    assert archive.members["learner"].games == 120
    assert archive.members["easy"].beaten == pytest.approx(1 - 0.5 * 0.95**40)
    assert archive.members["even"].beaten == pytest.approx(0.5)
    before = archive.members["learner"].mu
    archive.record("learner", 1.0)  # a game against itself
    assert archive.members["learner"].mu == before


def test_ids_are_names_of_new_files(tmp_path):
    archive = Archive(tmp_path)
    archive.add(policy(), 1, "one")
    for name in ("one", "../evil", "", "learner"):
        with pytest.raises(ArgumentError, match="member_id: expected a new name of letters"):
            archive.add(policy(), 1, name)


@pytest.mark.parametrize(
    "change",
    [
        lambda saved: "{",
        lambda saved: "[]",
        lambda saved: json.dumps({"members": [{**saved["members"][0], "id": "../evil"}]}),
        lambda saved: json.dumps({"members": [{**saved["members"][0], "mu": "high"}]}),
        lambda saved: json.dumps({"members": [{"id": "one"}]}),
    ],
    ids=["cut off", "a list", "a path", "no number", "no rating"],
)
def test_a_damaged_registry_is_named(tmp_path, change):
    Archive(tmp_path).save()
    path = tmp_path / "registry.json"
    path.write_text(change(json.loads(path.read_text())))
    with pytest.raises(RunError, match=r"registry\.json: is damaged: .*Remove it to begin a new archive"):
        Archive(tmp_path)


# -- matchmaking -----------------------------------------------------------------------------------------


def chosen(archive, draws=2000, **weights):
    ways = {"pfsp": 0, "random": 0, "baseline": 0, **weights}
    random = np.random.default_rng(0)
    return Counter(Matchmaking(**ways).choose(archive, random) for _ in range(draws))


def test_ways_to_choose(tmp_path):
    archive = Archive(tmp_path)
    assert set(chosen(archive, 5, random=1)) == {"learner"}  # nobody else is there
    for name in ("easy", "even", "hard"):
        archive.add(policy(), 1, name)
    archive.add_bot("strong")
    archive.members["easy"].beaten, archive.members["hard"].beaten = 0.9, 0.1
    archive.members["hard"].mu = 90.0
    assert set(chosen(archive, baseline=1)) == {"strong"}
    assert set(chosen(archive, latest=1)) == {"hard"}
    assert set(chosen(archive, skill=1, skill_range=50)) == {"easy", "even"}
    uniform = chosen(archive, random=1)
    assert all(uniform[name] == pytest.approx(2000 / 3, rel=0.15) for name in ("easy", "even", "hard"))
    pfsp = chosen(archive, pfsp=1)  # 0.09, 0.25, 0.09 of 0.43
    assert pfsp["even"] == pytest.approx(2000 * 0.25 / 0.43, rel=0.1)
    assert pfsp["easy"] == pytest.approx(2000 * 0.09 / 0.43, rel=0.2)
    mixed = chosen(archive, random=0.75, baseline=0.25)
    assert mixed["strong"] == pytest.approx(500, rel=0.2)


def test_weights_that_make_no_sense():
    with pytest.raises(ArgumentError, match="matchmaking: expected weights of 0 or more, not all 0"):
        Matchmaking(pfsp=0, random=0, baseline=0)
    with pytest.raises(ArgumentError, match="matchmaking: expected weights of 0 or more"):
        Matchmaking(pfsp=-1)
