"""Arrow columns as the plain arrays that are checked and computed with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from isthmus.data.folder.problems import Mask

Floats = NDArray[np.float64]
LARGEST = float(np.finfo(np.float32).max)
"""Numbers beyond it are infinite to a model."""


def named(kind: pa.DataType) -> str:
    """An Arrow type in a message."""
    return f"values of type {kind}"


def is_numeric(kind: pa.DataType) -> bool:
    """Numbers, yes or no among them; also the type of a column that has no value at all."""
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_null)
    return any(test(kind) for test in kinds)


def is_text(kind: pa.DataType) -> bool:
    """Texts; also the type of a column that has no value at all."""
    return bool(pa.types.is_string(kind) or pa.types.is_null(kind))


def is_listed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def one(values: Any) -> Any:
    """A column as one array."""
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def plain(values: Any) -> Any:
    """A column as one array without dictionary encoding, texts of one type."""
    values = one(values)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    other_texts = pa.types.is_large_string(values.type) or pa.types.is_string_view(values.type)
    return values.cast(pa.string()) if other_texts else values


def filled(values: Any) -> Any:
    """As `plain`, where an empty text is no value: so do tables that know no missing ones."""
    values = plain(values)
    if not pa.types.is_string(values.type):
        return values
    return pc.if_else(pc.equal(values, ""), pa.scalar(None, pa.string()), values)


def texts(values: Any) -> Any:
    return filled(values).cast(pa.string())


def mask_of(values: Any) -> Mask:
    return np.asarray(values.fill_null(False).to_numpy(zero_copy_only=False), dtype=bool)


def there(values: Any) -> Mask:
    """Where there is a value."""
    return mask_of(pc.is_valid(values))


def numbers_of(values: Any) -> Floats:
    """As 64-bit floats, NaN where there is none."""
    return np.asarray(plain(values).cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)


def is_beyond(numbers: Floats) -> Mask:
    """Where a number is infinite, or would be in single precision."""
    return np.asarray(np.abs(numbers) > LARGEST)


def lengths_of(values: Any) -> NDArray[np.int64]:
    """Lengths of lists, -1 where there is none."""
    return np.asarray(pc.list_value_length(values).fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)


def found(values: Any, among: Any) -> NDArray[np.int64]:
    """For every value its position in `among`, -1 where it is none of these, or missing."""
    if values.null_count == len(values):  # of any type then: a column without values has none of its own
        return np.full(len(values), -1)
    at = one(pc.index_in(values, value_set=among, skip_nulls=True))
    return np.asarray(at.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)
