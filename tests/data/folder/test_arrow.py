from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from isthmus.data.folder import arrow

TEXTS = pa.array(["a", "", None, "a"])


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())], ids=str
)
def test_texts_of_every_type_are_alike(kind):
    assert arrow.plain(TEXTS.cast(kind)).equals(TEXTS)
    assert arrow.filled(TEXTS.cast(kind)).to_pylist() == ["a", None, None, "a"]
    assert arrow.is_text(arrow.plain(TEXTS.cast(kind)).type)


def test_pieces_of_a_column_become_one():
    pieces = pa.chunked_array([[1, 2], [], [3]])
    assert arrow.one(pieces).to_pylist() == [1, 2, 3]
    assert arrow.one(pa.chunked_array([], pa.int64())).to_pylist() == []


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
def test_numbers_of_every_type_are_floats_with_nan_where_there_is_none(values):
    np.testing.assert_array_equal(arrow.numbers_of(values), [1.0, np.nan, 3.0])
    assert arrow.is_numeric(arrow.plain(values).type)


def test_yes_and_no_are_numbers():
    np.testing.assert_array_equal(arrow.numbers_of(pa.array([True, False, None])), [1.0, 0.0, np.nan])
    assert arrow.is_numeric(pa.bool_())


def test_a_column_without_any_value_is_of_any_type():
    nothing = pa.nulls(2)
    assert arrow.is_numeric(nothing.type)
    assert arrow.is_text(nothing.type)
    assert np.isnan(arrow.numbers_of(nothing)).all()
    assert arrow.found(nothing, pa.array(["a"])).tolist() == [-1, -1]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.binary(), pa.timestamp("s"), pa.date32(), pa.list_(pa.int8())], ids=str
)
def test_what_is_no_number_is_not_taken_for_one(kind):
    assert not arrow.is_numeric(kind)


def test_what_single_precision_cannot_hold_is_beyond():
    numbers = np.array([np.inf, -np.inf, 3.5e38, -1e300, 3.4e38, np.nan, 0.0])
    assert arrow.is_beyond(numbers).tolist() == [True, True, True, True, False, False, False]
    assert np.isfinite(numbers[4].astype(np.float32))


@pytest.mark.parametrize("kind", [pa.list_(pa.int8()), pa.large_list(pa.int8()), pa.list_(pa.int8(), 2)], ids=str)
def test_lengths_of_lists(kind):
    assert arrow.is_listed(kind)
    assert arrow.lengths_of(pa.array([[1, 2], None, [None, 3]], kind)).tolist() == [2, -1, 2]


def test_positions_of_values():
    assert arrow.found(pa.array(["b", None, "x", "a"]), pa.array(["a", None, "b", "a"])).tolist() == [2, -1, -1, 0]
