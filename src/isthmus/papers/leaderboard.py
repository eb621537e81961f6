"""A leaderboard: methods at one place of a table, best first, with intervals and paired differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from isthmus.paired import Difference, difference, interval
from isthmus.papers.plan import Table
from isthmus.papers.results import Runs, TableResults

BySeed = Mapping[int, float]


@dataclass(frozen=True)
class Row:
    """A method of a leaderboard.

    Attributes:
        values: by figure of the table our values by seed, scaled for display; empty if it was not run.
    """

    method: str
    values: Mapping[str, BySeed]

    def mean(self, figure: str) -> float:
        """Over seeds; minus infinity without runs."""
        values = self.values.get(figure, {}).values()
        return statistics.fmean(values) if values else -math.inf

    def lead(self, other: Row, figure: str) -> Difference | None:
        """How much better it is than another, paired over seeds; none with fewer than three shared seeds."""
        return difference(self.values.get(figure, {}), other.values.get(figure, {}))


def leaderboard(table: Table, results: TableResults, place: Mapping[str, str]) -> list[Row]:
    """All methods at a place, the best mean of the first figure first; at the end, what was not run.

    Arguments:
        place: a value of every axis but the last, which has the methods.
    """
    figures = list(table.figures)
    rows = []
    for cell in table.cells():
        *axes, (_, method) = cell.place.items()
        if dict(axes) == dict(place):
            runs = results.runs(cell)
            rows.append(Row(method, {name: _by_seed(table, runs, name) for name in figures} if runs else {}))
    return ranked(rows, figures[0])


def ranked(rows: Iterable[Row], figure: str) -> list[Row]:
    """Rows by the mean of a figure, the largest first; those without runs stay in order at the end."""
    return sorted(rows, key=lambda row: -row.mean(figure))


def _by_seed(table: Table, runs: Runs, figure: str) -> dict[int, float]:
    times = table.figures[figure].times
    return {run["seed"]: times * run["figures"][figure] for run in runs if figure in run["figures"]}


def mean_text(values: Sequence[float], digits: int) -> str:
    """A mean and half of its 95 % interval.

    >>> mean_text([79.0, 80.0, 81.0], 1), mean_text([79.0], 1), mean_text([], 1)
    ('80.0 ± 2.5', '79.0', '')
    """
    if not values:
        return ""
    half = interval(values)
    return f"{statistics.fmean(values):.{digits}f}{'' if half is None else f' ± {half:.{digits}f}'}"


def lead_text(found: Difference | None, digits: int) -> str:
    """A paired difference with its interval and p value; empty without one.

    >>> lead_text(difference({0: 82.0, 1: 83.0, 2: 81.5}, {0: 80.0, 1: 80.5, 2: 80.0}), 1)
    '+2.0 (0.8 to 3.2), p = 0.020'
    """
    if found is None:
        return ""
    mean, low, high = (round(value, digits) + 0.0 for value in (found.mean, found.low, found.high))
    return f"{mean:+.{digits}f} ({low:.{digits}f} to {high:.{digits}f}), {found.p_text}"


def board_lines(table: Table, rows: Sequence[Row], against: Sequence[str], more: Mapping[str, str]) -> list[list[str]]:
    """The cells of a leaderboard: its head, and a line per method that was run.

    Figures on the scale of the first have intervals, the others are means.

    Arguments:
        against: methods with which each is compared.
        more: by method what stands in a last column; without any there is no such column.
    """
    figures, by_name = list(table.figures.items()), {row.method: row for row in rows}
    first, digits = figures[0][0], figures[0][1].digits
    others = [by_name[name] for name in against if name in by_name]
    head = ["method", "seeds", *(figure.title or name for name, figure in figures)]
    lines = [[*head, *(f"lead over {row.method}" for row in others), *(["leaves a party"] if more else [])]]
    for row in rows:
        if row.values:
            shown = [_shown(table, row, name) for name, _ in figures]
            leads = ["" if row is other else lead_text(row.lead(other, first), digits) for other in others]
            named = [more.get(row.method, "")] if more else []
            seeds = max(map(len, row.values.values()))
            lines.append([row.method, str(seeds), *shown, *leads, *named])
    return lines


def _shown(table: Table, row: Row, figure: str) -> str:
    """A mean, with an interval where the figure is on the scale of the first; empty if the method has none."""
    values, of = [*row.values[figure].values()], table.figures[figure]
    scores = of.times == next(iter(table.figures.values())).times
    return mean_text(values if scores else [statistics.fmean(values)], of.digits) if values else ""


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells as columns of equal width.

    >>> print(aligned([["method", "seeds"], ["local", "5"]]))
    method  seeds
    local   5
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
