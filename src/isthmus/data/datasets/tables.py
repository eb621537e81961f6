"""Reads published tables: CSV files with a header, checked by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from isthmus.data.matrices import Ints


def read_table(
    path: Path, header: Sequence[str], types: Mapping[int, pa.DataType], rest: pa.DataType | None = None
) -> pa.Table:
    """A CSV file whose header begins with these names; columns are numbered, because names may be repeated.

    Raises a ValueError that names the file if the header or a field is another.

    Arguments:
        types: types of columns by position.
        rest: type of the columns that follow those of `header`; none if there must be no others.
    """
    from pyarrow import csv

    with path.open(encoding="utf-8-sig") as file:
        found = [name.strip().strip('"') for name in file.readline().rstrip("\r\n").split(",")]
    if found[: len(header)] != list(header) or (rest is None and len(found) != len(header)):
        raise ValueError(f"{path.name} has columns {', '.join(found[:20])}; expected {', '.join(header)}")
    names = [str(at) for at in range(len(found))]
    kinds = {str(at): types.get(at, rest if at >= len(header) and rest else pa.string()) for at in range(len(found))}
    try:
        return csv.read_csv(
            path,
            read_options=csv.ReadOptions(column_names=names, skip_rows=1),
            convert_options=csv.ConvertOptions(
                column_types=kinds, timestamp_parsers=["%Y/%m/%d %H:%M", "%Y-%m-%d %H:%M"]
            ),
        )
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path.name}: {error}") from error


def numbers(table: pa.Table, first: int, path: Path) -> Any:
    """The columns from `first` on as real numbers, `[rows, columns]`, 0 where a field is empty."""
    values = np.empty((table.num_rows, table.num_columns - first), dtype=np.float32)
    for at in range(first, table.num_columns):
        values[:, at - first] = np.nan_to_num(table.column(at).to_numpy(), nan=0.0, posinf=np.inf, neginf=-np.inf)
    if not np.isfinite(values).all():
        raise ValueError(f"{path.name}: a field is not a finite number")
    return values


def rows_of(keys: pa.ChunkedArray, known: Any, path: Path) -> Ints:
    """The row of each key among known keys; raises a ValueError that names the file if one is not known."""
    import pyarrow.compute as pc

    found = pc.index_in(keys, value_set=known)
    if found.null_count:
        first = keys.filter(pc.is_null(found))[0].as_py()
        raise ValueError(f"{path.name} names {first}, which has no features")
    rows: Ints = found.to_numpy().astype(np.int64)
    return rows
