"""Arrow columns as the plain arrays that are checked and computed with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from isthmus.data.folder.problems import Mask

Floats = NDArray[np.float64]


def named(kind: pa.DataType) -> str:
    """An Arrow type in a message."""
    return f"values of type {kind}"


def is_numeric(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def is_listed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def one(values: Any) -> Any:
    """A column as one array."""
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def plain(values: Any) -> Any:
    """A column without dictionary encoding, texts of one type."""
    values = one(values)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return values.cast(pa.string()) if pa.types.is_large_string(values.type) else values


def filled(values: Any) -> Any:
    """A column without dictionary encoding, where an empty text is no value: so do tables that know no missing ones."""
    values = plain(values)
    if not pa.types.is_string(values.type):
        return values
    return pc.if_else(pc.equal(values, ""), pa.scalar(None, pa.string()), values)


def texts(values: Any) -> Any:
    return plain(values).cast(pa.string())


def mask_of(values: Any) -> Mask:
    return np.asarray(values.fill_null(False).to_numpy(zero_copy_only=False), dtype=bool)


def numbers_of(values: Any) -> Floats:
    """As 64-bit floats, NaN where there is none."""
    return np.asarray(one(values).cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)


def lengths_of(values: Any) -> NDArray[np.int64]:
    """Lengths of lists, -1 where there is none."""
    return np.asarray(pc.list_value_length(values).fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)
