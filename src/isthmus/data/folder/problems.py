"""Problems of a party folder, each with the rows that have it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
MAX_LISTED = 8
"""A problem lists at most this many rows or names and counts the others."""


@dataclass(frozen=True)
class Problem:
    """One problem of a party folder.

    Arguments:
        file: the file inside the folder.
        what: what is wrong and what to do.
        rows: the first rows that have the problem, counted from 1.
        count: how many rows have it.
        severe: whether the folder is unusable until this is fixed.
    """

    file: str
    what: str
    rows: tuple[int, ...] = ()
    count: int = 0
    severe: bool = True

    def __str__(self) -> str:
        """Return the problem on one line, even if names in the files hold line breaks."""
        where = self.file
        if self.rows:
            rest = f" and {self.count - len(self.rows):,} more" if self.count > len(self.rows) else ""
            word = "row" if self.count == 1 else "rows"
            where = f"{self.file}, {word} {', '.join(map(str, self.rows))}{rest}"
        return printable(f"{where}: {self.what}")


def at_rows(file: str, what: str, wrong: Mask, *, severe: bool = True) -> Iterator[Problem]:
    """Yield one problem of the rows where the mask is set, or nothing if it is set nowhere."""
    rows = np.flatnonzero(wrong)
    if rows.size:
        yield Problem(file, what, tuple((rows[:MAX_LISTED] + 1).tolist()), int(rows.size), severe)


def join_names(names: Iterable[object]) -> str:
    """Return names for a message; of many, only the first.

    >>> join_names(range(10))
    '0, 1, 2, 3, 4, 5, 6, 7 and 2 more'
    """
    words = [str(name) for name in names]
    rest = f" and {len(words) - MAX_LISTED:,} more" if len(words) > MAX_LISTED else ""
    return ", ".join(words[:MAX_LISTED]) + rest


def printable(text: str) -> str:
    r"""Return a text on one line, with control characters escaped.

    >>> printable("a\nb")
    'a\\nb'
    """
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
