"""Convert Arrow columns to plain arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from isthmus.data.folder.problems import MAX_LISTED, Mask, Problem

Floats = NDArray[np.float64]
MAX_FLOAT32 = float(np.finfo(np.float32).max)
"""Larger numbers are infinite in single precision."""
NUMBER = r"^\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\s*$"
"""The form of a text that is a number."""
MAX_WHOLE = 2.0**53
"""From here on a float cannot tell a whole number from the next."""


def wrong_type(file: str, column: str, values: Any, expected: str) -> Problem:
    """Return the problem that a column holds these values instead of those of the expected type.

    Where numbers are expected, and some texts are numbers, the rows are those whose texts are none.
    """
    what = f"column '{column}' holds values of type {values.type}"
    if expected == "numbers" and is_text(values.type):
        texts = to_texts(values)
        odd = pc.invert(pc.match_substring_regex(texts, NUMBER)).fill_null(False).to_numpy(zero_copy_only=False)
        if odd.any():
            rows = np.flatnonzero(odd)
            what += f", such as '{texts[int(rows[0])].as_py()[:40]}'"
            if rows.size < len(texts) - texts.null_count:
                at = tuple((rows[:MAX_LISTED] + 1).tolist())
                return Problem(file, f"{what}: it must hold {expected}", at, int(rows.size))
    return Problem(file, f"{what}: it must hold {expected}")


def is_numeric(kind: pa.DataType) -> bool:
    """Whether the type is a number or boolean, or that of a column without any value."""
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_null)
    return any(test(kind) for test in kinds)


def is_text(kind: pa.DataType) -> bool:
    """Whether the type is a text, or that of a column without any value."""
    return bool(pa.types.is_string(kind) or pa.types.is_null(kind))


def is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def to_array(values: Any) -> Any:
    """Return a column as one array."""
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def to_plain(values: Any) -> Any:
    """Return a column as one array without dictionary encoding, with all texts of one type."""
    values = to_array(values)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    other_texts = pa.types.is_large_string(values.type) or pa.types.is_string_view(values.type)
    return values.cast(pa.string()) if other_texts else values


def blank_to_null(values: Any) -> Any:
    """Return a plain column in which an empty text counts as missing, because CSV files have no other way to say so."""
    values = to_plain(values)
    if not pa.types.is_string(values.type):
        return values
    return pc.if_else(pc.equal(values, ""), pa.scalar(None, pa.string()), values)


def to_texts(values: Any) -> Any:
    return blank_to_null(values).cast(pa.string())


def to_keys(values: Any) -> Any:
    """Return a plain column of keys, in which whole numbers that are written as floats are whole numbers again.

    pandas writes a column of whole numbers as floats if one of them is missing.

    >>> to_keys(pa.array([2.0, None])).to_pylist(), to_keys(pa.array([2.5])).to_pylist()
    ([2, None], [2.5])
    """
    values = blank_to_null(values)
    if not pa.types.is_floating(values.type):
        return values
    numbers = to_floats(values)
    if not (np.isnan(numbers) | ((np.abs(numbers) < MAX_WHOLE) & (numbers == np.round(numbers)))).all():
        return values
    return pa.array(np.nan_to_num(numbers).astype(np.int64), mask=np.isnan(numbers))


def to_mask(values: Any) -> Mask:
    return np.asarray(values.fill_null(False).to_numpy(zero_copy_only=False), dtype=bool)


def is_present(values: Any) -> Mask:
    """Return a mask of the rows that have a value."""
    return to_mask(pc.is_valid(values))


def to_floats(values: Any) -> Floats:
    """Return a column as 64-bit floats, NaN where a value is missing."""
    return np.asarray(to_plain(values).cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)


def exceeds_float32(numbers: Floats) -> Mask:
    """Return a mask of the numbers that are infinite in single precision."""
    return np.asarray(np.abs(numbers) > MAX_FLOAT32)


def list_lengths(values: Any) -> NDArray[np.int64]:
    """Return the length of every list, -1 where the list is missing."""
    return np.asarray(pc.list_value_length(values).fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)


def positions_in(values: Any, among: Any) -> NDArray[np.int64]:
    """Return the position of every value in `among`, -1 where it is missing or not among them."""
    if values.null_count == len(values):  # such a column may have any type
        return np.full(len(values), -1)
    positions = to_array(pc.index_in(values, value_set=among, skip_nulls=True))
    return np.asarray(positions.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)
