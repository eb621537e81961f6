"""What is wrong with a party folder: all of it at once, each with the rows that it is about."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
SHOWN = 8
"""Rows that a problem names; the others are counted."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Arguments:
        file: the file inside the folder.
        what: what is wrong and what to do.
        rows: the first rows that it is about, the first row of a file being 1.
        count: how many rows it is about.
        severe: whether the folder cannot be used like this.
    """

    file: str
    what: str
    rows: tuple[int, ...] = ()
    count: int = 0
    severe: bool = True

    def __str__(self) -> str:
        if not self.rows:
            return f"{self.file}: {self.what}"
        rest = f" and {self.count - len(self.rows):,} more" if self.count > len(self.rows) else ""
        word = "row" if self.count == 1 else "rows"
        return f"{self.file}, {word} {', '.join(map(str, self.rows))}{rest}: {self.what}"


def at_rows(file: str, what: str, wrong: Mask, *, severe: bool = True) -> Iterator[Problem]:
    """The problem of the rows where the mask is set; none where it is nowhere."""
    rows = np.flatnonzero(wrong)
    if rows.size:
        yield Problem(file, what, tuple((rows[:SHOWN] + 1).tolist()), int(rows.size), severe)
