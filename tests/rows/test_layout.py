import gymnasium.spaces as sp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal
from shoal.errors import ArgumentError, ObservationError, ObservationTypeError, SpaceError
from shoal.rows.fields import Kind
from shoal.testing import SPACES, UNSIZED_SPACES, random_space
from shoal.testing.contract import difference

pytestmark = [pytest.mark.core, pytest.mark.twins]

seeds = st.integers(0, 2**32 - 1)


@given(seeds)
def test_round_trip_is_exact_for_any_space(seed):
    space = random_space(seed)
    layout = shoal.layout(space)
    for _ in range(3):
        value = space.sample()
        row = layout.pack(value)
        assert difference(layout.value(row), value) is None
        assert row in layout.flat_space


@given(seeds)
def test_fields_are_aligned_and_never_overlap(seed):
    layout = shoal.layout(random_space(seed))
    end = 0
    for field in layout.fields:
        assert field.offset % field.dtype.itemsize == 0
        assert field.offset >= end
        end = field.offset + field.nbytes
    assert end <= layout.nbytes
    assert all(layout.nbytes % field.dtype.itemsize == 0 for field in layout.fields)


@given(seeds)
def test_unpacking_is_a_view(seed):
    space = random_space(seed)
    layout = shoal.layout(space)
    rows = np.stack([layout.pack(space.sample()) for _ in range(4)])
    for leaf in leaves(layout.unpack(rows)):
        assert leaf.shape[0] == 4
        assert leaf.size == 0 or np.shares_memory(leaf, rows)


@given(seeds)
def test_structured_dtype_is_a_view_of_the_same_fields(seed):
    space = random_space(seed)
    layout = shoal.layout(space)
    rows = layout.rows(np.stack([layout.pack(space.sample()) for _ in range(3)]))
    record = np.ascontiguousarray(rows).view(layout.dtype)[:, 0]
    columns = layout.columns(rows)
    assert np.shares_memory(record, np.ascontiguousarray(rows)) or record.size == 0
    for field, column in zip(layout.fields, columns, strict=True):
        part = record
        for key in field.path:
            part = part[str(key)]
        if field.kind is Kind.CHOICE:
            part = part["index"]
        elif not field.path:
            part = part["value"]
        np.testing.assert_array_equal(part, column)


def leaves(nested):
    if isinstance(nested, np.ndarray):
        return [nested]
    parts = nested.values() if isinstance(nested, dict) else nested
    return [leaf for part in parts for leaf in leaves(part)]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_round_trip_of_each_kind_of_space(space):
    layout = shoal.layout(space)
    for _ in range(5):
        value = space.sample()
        assert difference(layout.value(layout.pack(value)), value) is None


def test_a_plain_box_keeps_its_shape_and_bounds():
    space = sp.Box(0, 255, (84, 84, 4), np.uint8)
    layout = shoal.layout(space)
    assert layout.flat_space is space
    assert layout.nbytes == 84 * 84 * 4


def test_one_dtype_becomes_a_box_of_that_dtype():
    space = sp.Dict({"a": sp.Box(-1, 1, (2,)), "b": sp.Tuple((sp.Box(0, 5, (2, 2)),))})
    flat = shoal.layout(space).flat_space
    assert flat.dtype == np.float32
    np.testing.assert_array_equal(flat.low, [-1, -1, 0, 0, 0, 0])
    np.testing.assert_array_equal(flat.high, [1, 1, 5, 5, 5, 5])


def test_mixed_dtypes_become_bytes():
    layout = shoal.layout(sp.Dict({"map": sp.Box(0, 255, (3,), np.uint8), "hp": sp.Discrete(9)}))
    assert layout.flat_space == sp.Box(0, 255, (16,), np.uint8)
    # Dict sorts its keys, so hp comes first; three bytes of map follow, then padding.
    assert [(field.path, field.offset) for field in layout.fields] == [(("hp",), 0), (("map",), 8)]


def test_an_empty_space_has_a_row():
    layout = shoal.layout(sp.Dict({}))
    assert layout.value(layout.pack({})) == {}
    layout = shoal.layout(sp.Box(0, 1, (0, 3)))
    assert layout.value(layout.pack(np.zeros((0, 3), np.float32))).shape == (0, 3)


@pytest.mark.parametrize("space", UNSIZED_SPACES, ids=str)
def test_spaces_without_a_size_are_refused_with_advice(space):
    with pytest.raises(SpaceError, match=r"no fixed size.*Wrap the env"):
        shoal.layout(space)


def test_the_error_says_where_the_space_is():
    space = sp.Dict({"bag": sp.Tuple((sp.Discrete(2), sp.Sequence(sp.Discrete(3))))})
    with pytest.raises(SpaceError, match=r'space\["bag"\]\[1\]: a Sequence'):
        shoal.layout(space)


def test_a_custom_space_is_refused_with_advice():
    class Colour(sp.Space):
        pass

    with pytest.raises(SpaceError, match=r'space\["c"\]: Colour is not a space Shoal knows'):
        shoal.layout(sp.Dict({"c": Colour()}))


def test_what_is_no_space_is_refused():
    with pytest.raises(SpaceError, match=r"expected a gymnasium.Space, got int"):
        shoal.layout(3)


nested = sp.Dict(
    {
        "map": sp.Tuple((sp.Box(0, 1, (3,)), sp.Discrete(4))),
        "name": sp.Text(3, charset="abc"),
        "way": sp.OneOf([sp.Discrete(2), sp.Box(0, 1, (2,))]),
        "small": sp.Box(0, 255, (), np.uint8),
    }
)


def good():
    return {
        "map": (np.zeros(3, np.float32), 1),
        "name": "ab",
        "way": (1, np.zeros(2, np.float32)),
        "small": 7,
    }


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (
            {"map": (np.zeros(4, np.float32), 1)},
            ObservationError,
            r'value\["map"\]\[0\]: expected shape \(3,\)',
        ),
        ({"map": (np.zeros((3, 1), np.float32), 1)}, ObservationError, r"got an array of shape \(3, 1\)"),
        ({"map": (np.zeros(3, complex), 1)}, ObservationTypeError, r"dtype float32, got .* complex128"),
        ({"map": ([0, 0, "x"], 1)}, ObservationTypeError, r'value\["map"\]\[0\]'),
        ({"map": ([0, [0], 0], 1)}, ObservationError, r'value\["map"\]\[0\]'),
        ({"map": (np.zeros(3, np.float32), 1.5)}, ObservationTypeError, r'value\["map"\]\[1\]: .*int64'),
        ({"map": (np.zeros(3, np.float32),)}, IndexError, r'value\["map"\]: expected a tuple of 2, got 1'),
        ({"map": None}, ObservationTypeError, r'value\["map"\]: expected a tuple of 2, got a NoneType'),
        ({"name": "abca"}, ObservationError, r'value\["name"\]: expected at most 3 characters, got 4'),
        ({"name": "xyz"}, ObservationError, r"expected characters of its charset, got 'x'"),
        ({"name": 3}, ObservationTypeError, r'value\["name"\]: expected a string, got 3 \(int\)'),
        ({"way": 3}, ObservationTypeError, r'value\["way"\]: expected a pair'),
        ({"way": (2, 0)}, ObservationError, r"expected an index below 2, got 2"),
        ({"way": ("a", 0)}, ObservationTypeError, r"expected an index, got 'a'"),
        ({"way": (1, np.zeros(3, np.float32))}, ObservationError, r'value\["way"\]\[1\]: expected shape'),
        ({"small": 300}, ObservationError, r"expected numbers that fit dtype uint8, got 300"),
        ({"small": np.int64(3)}, ObservationTypeError, r"dtype uint8, got .*int64"),
    ],
)
def test_values_that_do_not_fit_say_where_and_why(change, error, text):
    layout = shoal.layout(nested)
    with pytest.raises(error, match=text):
        layout.pack(good() | change)


def test_a_missing_key_is_named():
    value = good()
    del value["name"]
    with pytest.raises(KeyError, match=r'^value\["name"\]: missing; got the keys'):
        shoal.layout(nested).pack(value)
    with pytest.raises(ObservationTypeError, match=r"value: expected a dict, got a list"):
        shoal.layout(nested).pack([1, 2])


def test_values_are_cast_to_the_same_kind():
    layout = shoal.layout(sp.Dict({"x": sp.Box(0, 9, (2,), np.float32), "n": sp.Discrete(5)}))
    value = layout.value(layout.pack({"x": [1, 2.5], "n": np.int32(3)}))
    assert difference(value, {"n": np.int64(3), "x": np.array([1, 2.5], np.float32)}) is None


def test_a_choice_not_taken_is_zero():
    layout = shoal.layout(sp.OneOf([sp.Discrete(5), sp.Box(1, 2, (2,), np.float64)]))
    row = np.zeros((1, layout.nbytes), np.uint8)
    from shoal._core import Packer

    packer = Packer(layout, row)
    packer.write(0, (1, np.array([1.5, 2.0])))
    packer.write(0, (0, 3))
    index, (number, box) = layout.root.views(layout.columns(row))
    assert (index[0], number[0], box[0].tolist()) == (0, 3, [0, 0])


def test_rows_of_another_layout_are_refused():
    layout = shoal.layout(sp.Dict({"a": sp.Box(0, 1, (2,)), "b": sp.Box(0, 1, (2,))}))
    with pytest.raises(ArgumentError, match=r"expected flat rows of dtype float32"):
        layout.unpack(np.zeros((3, 5), np.float32))
    with pytest.raises(ArgumentError, match=r"got an array of shape \(3, 4\) and dtype float64"):
        layout.unpack(np.zeros((3, 4)))


def test_a_text_may_hold_any_character_of_its_charset():
    layout = shoal.layout(sp.Text(5, min_length=0, charset="\0ab\u4e2d"))
    for text in ("", "\0", "a\0", "\0\0\u4e2dba"):
        assert layout.value(layout.pack(text)) == text


def test_a_large_charset_needs_wider_codes():
    layout = shoal.layout(sp.Text(3, charset="".join(map(chr, range(32, 600)))))
    assert layout.flat_dtype == np.uint16
    assert layout.value(layout.pack(chr(599))) == chr(599)


def test_rows_are_in_the_byte_order_of_the_machine():
    space = sp.Dict(
        {"a": sp.Box(-1, 1, (2,), np.dtype(">f4")), "n": sp.MultiDiscrete([300, 300], dtype=np.dtype(">i4"))}
    )
    layout = shoal.layout(space)
    value = layout.value(layout.pack({"a": np.array([0.5, -1], ">f4"), "n": np.array([258, 1], ">i4")}))
    assert (value["a"].tolist(), value["n"].tolist()) == ([0.5, -1], [258, 1])
    assert all(field.dtype.isnative for field in layout.fields)


def test_rows_need_not_be_contiguous():
    layout = shoal.layout(sp.Tuple((sp.Box(0, 9, (2,)), sp.Box(0, 9, (1,)))))
    rows = np.arange(12, dtype=np.float32).reshape(3, 4).T
    assert layout.unpack(rows)[0][1].tolist() == [1, 5]


def test_value_takes_one_row():
    layout = shoal.layout(sp.Dict({"a": sp.Text(3), "b": sp.Discrete(2)}))
    rows = np.stack([layout.pack(layout.space.sample()) for _ in range(3)])
    with pytest.raises(ArgumentError, match=r"expected one flat row .* call value\(\) for each row"):
        layout.value(rows)


def test_repr_shows_every_field():
    assert 'value["map"][0]: array float32[3] at byte 0' in repr(shoal.layout(nested))
