import numpy as np
import pytest
from gymnasium.vector import VectorEnv
from hypothesis import given
from hypothesis import strategies as st
from tests.vector.faulty import DEEP_INFOS, ENDLESS_INFOS, Tells

import shoal
from shoal import _core
from shoal.errors import EnvError
from shoal.testing.contract import difference
from shoal.vector.infos import merge_infos, split_infos

pytestmark = pytest.mark.core

numbers = st.one_of(st.integers(-(2**40), 2**40), st.floats(allow_nan=False), st.booleans())
leaves = st.one_of(numbers, st.none(), st.text(max_size=3), st.just(np.arange(3)), st.just(np.float32(1.5)))
infos = st.dictionaries(
    st.sampled_from("abc"), st.one_of(leaves, st.dictionaries(st.sampled_from("xy"), leaves)), max_size=3
)


@given(st.lists(infos, min_size=1, max_size=5))
def test_nothing_is_lost(each):
    merged = merge_infos(enumerate(each), len(each))
    back = dict(split_infos(merged, len(each)))
    for row, info in enumerate(each):
        got = back.get(row, {})
        assert got.keys() == info.keys()
        for key, value in info.items():
            assert same(got[key], value), (key, got[key], value)


def same(got, value):
    if isinstance(value, dict):
        return got.keys() == value.keys() and all(same(got[k], value[k]) for k in value)
    if isinstance(value, np.ndarray):
        return np.array_equal(got, value)
    return got == value and isinstance(got, (bool, np.bool_)) == isinstance(value, bool)


@pytest.mark.parametrize(
    "each",
    [
        [{"a": 1}, {"a": 2}],
        [{"a": 1.5}, {}],
        [{"a": True}, {"a": False}],
        [{"a": np.float32(1)}, {"a": np.float32(2)}],
        [{"a": np.bool_(1)}, {}],
        [{"a": np.arange(3)}, {"a": np.arange(3)}],
        [{"a": "text"}, {"a": None}],
        [{"a": {"b": 1, "c": {"d": 2.5}}}, {"a": {"b": 3}}],
        [{"a": {}}, {}],
        [{"final_obs": np.zeros(2), "final_info": {"k": 1}}, {}],
        [{"a": [1, 2]}, {"a": (3,)}],
    ],
    ids=repr,
)
def test_what_gymnasium_merges_well_is_merged_the_same(each):
    vec = VectorEnv()
    vec.num_envs = len(each)
    theirs = {}
    for row, info in enumerate(each):
        theirs = vec._add_info(theirs, info, row)
    assert difference(merge_infos(enumerate(each), len(each)), theirs) is None


def test_integers_too_large_for_an_array_are_kept():
    merged = merge_infos([(0, {"n": 2**70}), (1, {"n": 1})], 2)
    assert merged["n"].tolist() == [2**70, 1]
    merged = merge_infos([(0, {"n": 2**60 + 1}), (1, {"n": 0.5})], 2)
    assert merged["n"].tolist() == [2**60 + 1, 0.5]
    merged = merge_infos([(0, {"n": np.uint64(2**63 + 1)}), (1, {"n": 1})], 2)
    assert merged["n"].tolist() == [2**63 + 1, 1]


def test_a_dict_said_twice_is_merged():
    pairs = [(0, {"final_info": {"x": 2}}), (0, {"final_info": {"q": 1}})]
    merged = merge_infos(pairs, 1)["final_info"]
    assert (merged["x"].tolist(), merged["q"].tolist()) == ([2], [1])


def test_infos_without_masks_belong_to_every_row():
    infos = {"lives": np.array([3, 2]), "whole": "engine"}
    assert split_infos(infos, 2) == [(0, {"lives": 3, "whole": "engine"}), (1, {"lives": 2})]


# -- infos without an end ------------------------------------------------------------------------------------


def tell(vec, info, when):
    """Let env 1 give an info of this name."""
    vec.set_attr("when", when)
    vec.set_attr("info", ["", info])
    vec.reset(seed=0)
    vec.step([0, 0])
    vec.step([0, 0])


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("when", ["reset", "step", "end"])
@pytest.mark.parametrize("info", ENDLESS_INFOS)
def test_an_info_without_an_end_is_an_error_of_its_env(info, when, mode):
    with shoal.Serial(Tells, 2, autoreset_mode=mode) as vec:
        with pytest.raises(RecursionError, match=r"200 dicts inside each other.* contain itself") as caught:
            tell(vec, info, when)
        verb = "reset" if when == "reset" else "step"
        assert caught.value.__notes__ == [f"raised by {verb}() of env 1"]


@pytest.mark.parametrize("when", ["reset", "step", "end"])
@pytest.mark.parametrize("info", DEEP_INFOS)
def test_a_deep_info_is_handed_on(info, when):
    with shoal.Serial(Tells, 2, autoreset_mode="SameStep") as vec:
        tell(vec, info, when)


@pytest.mark.skipif(_core.NAME != "native", reason="needs the compiled core")
@pytest.mark.parametrize("when", ["reset", "step", "end"])
def test_an_info_without_an_end_in_a_worker(when):
    with shoal.Multiprocessing(Tells, 2, num_workers=2, autoreset_mode="SameStep") as vec:
        for info in ENDLESS_INFOS:
            with pytest.raises(RecursionError, match="does it contain itself"):
                tell(vec, info, when)
        with pytest.raises(EnvError, match="an info cannot be pickled"):
            tell(vec, "deep lists", when)
        tell(vec, "a list of itself", when)
