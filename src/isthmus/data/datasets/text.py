"""Reads text files of numbers, fast."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def read_numbers(path: Path, kind: type[np.generic] = np.int64) -> NDArray[Any]:
    """The numbers of a comma-separated text file, `[rows, columns]`; a `.gz` file is unpacked.

    Raises a ValueError that names the file if a field is not a number.
    """
    import pyarrow as pa
    from pyarrow import csv

    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        names = [str(at) for at in range(file.readline().count(b",") + 1)]
    types = dict.fromkeys(names, pa.from_numpy_dtype(kind))
    try:
        table = csv.read_csv(
            path,
            read_options=csv.ReadOptions(column_names=names),
            convert_options=csv.ConvertOptions(column_types=types),
        )
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path.name}: {error}") from error
    values = np.empty((table.num_rows, len(names)), dtype=kind)
    for at, column in enumerate(table.columns):
        if column.null_count:
            raise ValueError(f"{path.name}: column {at + 1} has {column.null_count} empty fields")
        values[:, at] = column.to_numpy()
    return values
