"""Arrow columns become plain arrays, whatever type they have."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from isthmus.data.folder import arrow

TEXTS = pa.array(["a", "", None, "a"])


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())], ids=str
)
def test_texts_of_every_type_become_one_type(kind):
    assert arrow.to_plain(TEXTS.cast(kind)).equals(TEXTS)
    assert arrow.blank_to_null(TEXTS.cast(kind)).to_pylist() == ["a", None, None, "a"]
    assert arrow.is_text(arrow.to_plain(TEXTS.cast(kind)).type)


def test_chunks_become_one_array():
    pieces = pa.chunked_array([[1, 2], [], [3]])
    assert arrow.to_array(pieces).to_pylist() == [1, 2, 3]
    assert arrow.to_array(pa.chunked_array([], pa.int64())).to_pylist() == []


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, None, 3], pa.uint8()),
        pa.array([1.0, None, 3.0], pa.float16()),
        pa.array([Decimal("1.00"), None, Decimal("3.00")]),
        pa.array([1, None, 3], pa.int64()).dictionary_encode(),
        pa.chunked_array([[1], [None, 3]], pa.int32()),
    ],
    ids=lambda values: str(values.type),
)
def test_numbers_of_every_type_become_floats(values):
    np.testing.assert_array_equal(arrow.to_floats(values), [1.0, np.nan, 3.0])
    assert arrow.is_numeric(arrow.to_plain(values).type)


def test_booleans_are_numbers():
    np.testing.assert_array_equal(arrow.to_floats(pa.array([True, False, None])), [1.0, 0.0, np.nan])
    assert arrow.is_numeric(pa.bool_())


def test_column_without_values_has_any_type():
    nothing = pa.nulls(2)
    assert arrow.is_numeric(nothing.type)
    assert arrow.is_text(nothing.type)
    assert np.isnan(arrow.to_floats(nothing)).all()
    assert arrow.positions_in(nothing, pa.array(["a"])).tolist() == [-1, -1]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.binary(), pa.timestamp("s"), pa.date32(), pa.list_(pa.int8())], ids=str
)
def test_other_types_are_not_numeric(kind):
    assert not arrow.is_numeric(kind)


def test_numbers_beyond_single_precision_are_marked():
    numbers = np.array([np.inf, -np.inf, 3.5e38, -1e300, 3.4e38, np.nan, 0.0])
    assert arrow.exceeds_float32(numbers).tolist() == [True, True, True, True, False, False, False]
    assert np.isfinite(numbers[4].astype(np.float32))


@pytest.mark.parametrize("kind", [pa.list_(pa.int8()), pa.large_list(pa.int8()), pa.list_(pa.int8(), 2)], ids=str)
def test_lengths_of_lists(kind):
    assert arrow.is_list(kind)
    assert arrow.list_lengths(pa.array([[1, 2], None, [None, 3]], kind)).tolist() == [2, -1, 2]


def test_positions_of_values():
    assert arrow.positions_in(pa.array(["b", None, "x", "a"]), pa.array(["a", None, "b", "a"])).tolist() == [
        2,
        -1,
        -1,
        0,
    ]
