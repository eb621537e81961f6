"""Problems of a party folder, each with the rows that have it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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
        largest: the largest value that is too large, if the problem is one.
        minor: whether only `isthmus party new` and `isthmus party check` say it, and no run does.
    """

    file: str
    what: str
    rows: tuple[int, ...] = ()
    count: int = 0
    severe: bool = True
    largest: int | None = None
    minor: bool = False

    def __str__(self) -> str:
        """Return the problem on one line, even if names in the files hold line breaks."""
        where = self.file
        if self.rows:
            rest = f" and {self.count - len(self.rows):,} more" if self.count > len(self.rows) else ""
            word = "row" if self.count == 1 else "rows"
            where = f"{self.file}, {word} {', '.join(map(str, self.rows))}{rest}"
        largest = "" if self.largest is None else f"; the largest is {self.largest:,}"
        return printable(f"{where}: {self.what}{largest}")

    def shifted(self, rows: int) -> Problem:
        """Return the problem of a block of rows that begins after so many rows of the file."""
        return replace(self, rows=tuple(row + rows for row in self.rows)) if rows else self

    def placed(self, rows: NDArray[np.int64]) -> Problem:
        """Return the problem of some rows of a file, of which `rows` are the positions in the file."""
        return replace(self, rows=tuple(int(rows[row - 1]) + 1 for row in self.rows))


def merge(problems: list[Problem], new: Problem) -> None:
    """Add a problem of later rows to a list; the same problem of earlier rows becomes one with it.

    >>> problems = [Problem("a", "wrong", (1,), 1)]
    >>> merge(problems, Problem("a", "wrong", (7, 9), 2))
    >>> [str(each) for each in problems]
    ['a, rows 1, 7, 9: wrong']
    """
    for at, old in enumerate(problems):
        if (old.file, old.what, old.severe) == (new.file, new.what, new.severe):
            rows = (*old.rows, *new.rows)[:MAX_LISTED]
            largest = max((each for each in (old.largest, new.largest) if each is not None), default=None)
            problems[at] = replace(old, rows=rows, count=old.count + new.count, largest=largest)
            return
    problems.append(new)


def at_rows(file: str, what: str, wrong: Mask, *, severe: bool = True) -> Iterator[Problem]:
    """Yield one problem of the rows where the mask is set, or nothing if it is set nowhere."""
    rows = np.flatnonzero(wrong)
    if rows.size:
        yield Problem(file, what, tuple((rows[:MAX_LISTED] + 1).tolist()), int(rows.size), severe)


def summarize_notes(problems: Mapping[str, Sequence[Problem]]) -> list[str]:
    """Return a line for each different problem that is not severe, however many parties have it.

    >>> twice = {"north": [Problem("a", "odd", (1,), 1, False)], "south": [Problem("a", "odd", (4, 7), 2, False)]}
    >>> summarize_notes(twice)
    ['2 parties (north and others): a, 3 rows: odd']
    """
    alike: dict[tuple[str, str], list[tuple[str, Problem]]] = {}
    for name, found in problems.items():
        for each in found:
            if not each.severe:
                alike.setdefault((each.file, each.what), []).append((name, each))
    lines = []
    for (file, what), notes in alike.items():
        names = dict.fromkeys(name for name, _ in notes)
        if len(names) == 1:
            lines += [f"{name}: {note}" for name, note in notes]
            continue
        rows = sum(note.count for _, note in notes)
        counted = f", {rows:,} rows" if rows else ""
        lines.append(printable(f"{len(names):,} parties ({next(iter(names))} and others): {file}{counted}: {what}"))
    return lines


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
