"""What is wrong with a party folder: all of it at once, each with the rows that it is about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
SHOWN = 8
"""Rows, or names, that a problem lists; the others are counted."""


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
        """One line, whatever names the files hold."""
        where = self.file
        if self.rows:
            rest = f" and {self.count - len(self.rows):,} more" if self.count > len(self.rows) else ""
            word = "row" if self.count == 1 else "rows"
            where = f"{self.file}, {word} {', '.join(map(str, self.rows))}{rest}"
        return printable(f"{where}: {self.what}")


def at_rows(file: str, what: str, wrong: Mask, *, severe: bool = True) -> Iterator[Problem]:
    """The problem of the rows where the mask is set; none where it is nowhere."""
    rows = np.flatnonzero(wrong)
    if rows.size:
        yield Problem(file, what, tuple((rows[:SHOWN] + 1).tolist()), int(rows.size), severe)


def listed(names: Iterable[object]) -> str:
    """Names in a message, the first of them where there are many.

    >>> listed(range(10))
    '0, 1, 2, 3, 4, 5, 6, 7 and 2 more'
    """
    words = [str(name) for name in names]
    rest = f" and {len(words) - SHOWN:,} more" if len(words) > SHOWN else ""
    return ", ".join(words[:SHOWN]) + rest


def printable(text: str) -> str:
    r"""A text on one line: what is no letter, sign or space is spelled out.

    >>> printable("a\nb")
    'a\\nb'
    """
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
