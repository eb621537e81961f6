"""Read dates: moments in a column, or in a setting of `party.toml`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from isthmus.data.folder.arrow import blank_to_null, is_present, is_text, positions_in, to_array
from isthmus.data.folder.problems import Mask, Problem, at_rows

Moments = NDArray[np.int64]
"""Microseconds since 1970."""
UNKNOWN = np.iinfo(np.int64).min
"""The moment of a date that is missing or cannot be read."""
DAY = 86_400_000_000
"""Microseconds of a day."""
READABLE = "write it as 2024-06-30 or 2024-06-30 12:00:00"


def is_date(kind: pa.DataType) -> bool:
    """Whether a column of this type can hold dates: real ones, texts, or nothing."""
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind) or is_text(kind))


def read_dates(values: Any) -> tuple[Moments, Mask]:
    """Return the moments in a column, `UNKNOWN` where there is none, and a mask of the texts that are no dates.

    Times with a zone are converted to UTC.

    >>> moments, wrong = read_dates(pa.array(["1970-01-02", None, "1970-13-01"]))
    >>> (moments[0] / DAY).tolist(), (moments[1:] == UNKNOWN).tolist(), wrong.tolist()
    (1.0, [True, True], [False, False, True])
    """
    values = blank_to_null(values)
    if is_text(values.type):
        moments = _read_texts(values)
        return moments, (moments == UNKNOWN) & is_present(values)
    plain = to_array(values.cast(pa.timestamp("us", None if pa.types.is_date(values.type) else values.type.tz)))
    moments = np.asarray(plain.cast(pa.int64()).fill_null(UNKNOWN).to_numpy(zero_copy_only=False), dtype=np.int64)
    return moments, np.zeros(len(moments), dtype=bool)


def notes_on_dates_to_come(file: str, column: str, moments: Moments) -> Iterator[Problem]:
    """Yield a note on the moments of a column that are a day from now or later."""
    what = f"column '{column}' has a date that is still to come: correct it if it is a mistake"
    return at_rows(file, what, moments > (time.time() / 86_400 + 1) * DAY, severe=False)


def moment_of(text: str) -> int:
    """Return the moment that a setting names.

    >>> moment_of("1970-01-02") == moment_of("1970-01-02T02:00:00+02:00") == DAY
    True
    """
    found = datetime.fromisoformat(text.strip())
    known = found if found.tzinfo else found.replace(tzinfo=UTC)
    return round((known - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1e6)


def text_of(moment: int) -> str:
    """Return a moment as a text: the day alone if it is the start of one.

    >>> text_of(DAY), text_of(DAY + 1_000_000)
    ('1970-01-02', '1970-01-02 00:00:01')
    """
    text = str(np.datetime64(int(moment), "us"))
    day, _, clock = text.partition("T")
    return day if not int(moment) % DAY else f"{day} {clock.removesuffix('.000000')}"


def setting_text(value: Any) -> Any:
    """Return a date that TOML has read as a text; texts stay, and one that is no date is an error."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, str):
        try:
            moment_of(value)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"give a date, such as {READABLE.removeprefix('write it as ')}") from error
    return value


def _read_texts(values: Any) -> Moments:
    try:
        plain = values.cast(pa.string()).cast(pa.timestamp("us"))
        return np.asarray(plain.cast(pa.int64()).fill_null(UNKNOWN).to_numpy(zero_copy_only=False), dtype=np.int64)
    except pa.ArrowException:  # some text is no date, or has a zone
        different = pc.unique(values.drop_null())
        moments = [_moment_or_unknown(text) for text in different.to_pylist()]
        return np.array([*moments, UNKNOWN], dtype=np.int64)[positions_in(values, different)]


def _moment_or_unknown(text: str) -> int:
    try:
        return moment_of(text)
    except (ValueError, OverflowError):
        return int(UNKNOWN)
