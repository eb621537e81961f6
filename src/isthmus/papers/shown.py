"""A table of ours with the paper's numbers and differences below each line, as Markdown; how far one is that runs."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from isthmus import store
from isthmus.errors import IsthmusError
from isthmus.papers.claims import FIGURES, Judged, Verdict
from isthmus.papers.kept import Kept, by_seed, counted, values_of
from isthmus.papers.plan import Place, Table
from isthmus.papers.running import Standing
from isthmus.progress.terminal import Bars
from isthmus.report import wording

NAMED = 6
"""Cells without a run that are named one by one."""


def markdown(table: Table, kept: Kept) -> str:
    """The setting, all figures, the claims below them."""
    parts = [" ".join(table.setting.split())]
    for title, columns in _tables(table):
        if lines := list(_lines(table, kept, columns)):
            parts += [f"{title}:"] if title else []
            parts.append("\n".join(lines))
    parts.append(left(table, kept) if counted(table, kept)[0] else "Not run yet.")
    if judged := verdicts(table, kept):
        parts.append("\n".join(f"- {said(each)}" for each in judged))
    return "\n\n".join(part for part in parts if part)


def left(table: Table, kept: Kept) -> str:
    """What was not run, in a sentence; nothing where all was."""
    runs, of = counted(table, kept)
    if runs == of:
        return ""
    there = {tuple(cell.place.values()): bool(kept.runs(cell)) for cell in table.cells()}
    begun = [set(values) for values in zip(*(place for place, run in there.items() if run), strict=True)]
    told = []
    for axis, values in zip(table.axes, begun, strict=False):
        if never := [f"`{value}`" for value in axis.changes() if value not in values]:
            told.append(f"{axis.name} {', '.join(never)}")
    other = [place for place, run in there.items() if not run and all(map(set.__contains__, begun, place))]
    told += [f"`{', '.join(place)}`" for place in other[:NAMED]]
    if more := len(other[NAMED:]):
        told.append(f"{more} other cell{'s' * (more > 1)}")
    nothing = f"; nothing yet of {'; '.join(told)}" if told else ""
    return f"Run so far: {runs:,} of {of:,}{nothing}."


def verdicts(table: Table, kept: Kept) -> list[Verdict]:
    """Of every claim."""
    axes = {axis.name: list(axis.changes()) for axis in table.axes}
    runs = {figure: by_seed(table, kept, figure) for figure in table.figures}
    found = []
    for claim in table.claims:
        figure = claim.figure or next(iter(table.figures))
        over = {**axes, FIGURES: list(runs)} if claim.along == FIGURES else axes
        found.append(claim.judged(over, partial(_at, table, runs, figure), partial(table.paper, figure)))
    return found


def _at(
    table: Table, runs: Mapping[str, Mapping[tuple[str, ...], Mapping[int, float]]], figure: str, place: Place
) -> Mapping[int, float]:
    """What there is at a place, whatever the order of its axes, of the figure that the place names or of this one."""
    return runs[place.get(FIGURES, figure)].get(tuple(place[axis.name] for axis in table.axes), {})


def said(verdict: Verdict) -> str:
    """A claim and what our numbers say of it: of one place the means, of several those that say otherwise."""
    against = [f"{each.place} ({_means(each)})" for each in verdict.places if not each.holds]
    where = f": not {', '.join(against)}" if 0 < len(against) < len(verdict.places) else ""
    if len(verdict.places) == 1:
        where = f": {_means(verdict.places[0])}"
    rests = f" ({verdict.rests})" if verdict.places else ""
    return f"{verdict.claim.says}: **{verdict.word}**{where}{rests}"


def _means(judged: Judged) -> str:
    return " / ".join(f"{mean:.4g}" for mean in judged.means)


@dataclass(frozen=True)
class Column:
    """One column: a figure, of a value of the last axis or of none."""

    head: str
    figure: str
    value: tuple[str, ...] = ()


def _tables(table: Table) -> Iterator[tuple[str, list[Column]]]:
    """Title and columns of each."""
    if table.columns == "figures":
        yield "", [Column(figure.title or name, name) for name, figure in table.figures.items()]
        return
    last = table.axes[-1]
    for name, figure in table.figures.items():
        yield figure.title, [Column(value, name, (value,)) for value in last.changes()]


def _lines(table: Table, kept: Kept, columns: Sequence[Column]) -> Iterator[str]:
    """A line for each combination of the other axes that was run, what compares below; only columns that were run."""
    cells = {tuple(cell.place.values()): cell for cell in table.cells()}
    axes = table.axes[: len(table.axes) - len(columns[0].value)]
    last = table.axes[-1]

    def found(key: tuple[str, ...], column: Column) -> list[float]:
        cell = cells.get((*key, *column.value))
        return [] if cell is None else values_of(table, kept.runs(cell), column.figure)

    keys = list(itertools.product(*(axis.changes() for axis in axes)))
    shown = [column for column in columns if any(found(key, column) for key in keys)]
    if not shown:
        return
    heads = [column.head for column in shown]
    if last.option and shown[0].value:
        heads[0] = f"{last.name} = {heads[0]}"
    yield f"| {' | '.join([*(axis.name for axis in axes), 'seeds', *heads])} |"
    yield f"|{' --- |' * len(axes)}{' ---: |' * (1 + len(shown))}"
    for key in keys:
        own = [found(key, column) for column in shown]
        if not any(own):
            continue
        counts = sorted({len(values) for values in own if values})
        seeds = "-".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
        told = [_told(table, values, column.figure) for values, column in zip(own, shown, strict=True)]
        yield f"| {' | '.join([*key, seeds, *told])} |"
        yield from _beside(table, key, shown, own)


def _beside(
    table: Table, key: tuple[str, ...], columns: Sequence[Column], own: Sequence[Sequence[float]]
) -> Iterator[str]:
    """The paper's line, and how far ours is above it."""
    paper, above = [], []
    for column, values in zip(columns, own, strict=True):
        place = {axis.name: value for axis, value in zip(table.axes, (*key, *column.value), strict=True)}
        number, digits = table.paper(column.figure, place), table.figures[column.figure].digits
        paper.append("" if number is None else f"{number:.{digits}f}")
        above.append("" if number is None or not values else signed(statistics.fmean(values) - number, digits))
    for name, told in (("paper", paper), ("difference", above)):
        if any(told):
            yield f"| {' | '.join([f'*{name}*', *[''] * len(key), *told])} |"


def signed(value: float, digits: int) -> str:
    """A difference, with a plus where it is one.

    >>> signed(1.25, 1), signed(-0.04, 1)
    ('+1.2', '+0.0')
    """
    return f"{round(value, digits) + 0.0:+.{digits}f}"  # the sum makes of -0 a 0


def _told(table: Table, values: Sequence[float], figure: str) -> str:
    digits = table.figures[figure].digits
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    around = f"{mean} ± {statistics.stdev(values):.{digits}f}"
    if table.spread == "range":
        return f"{around} ({min(values):.{digits}f} to {max(values):.{digits}f})"
    return around


def marks(name: str) -> tuple[str, str]:
    """What a table stands between in a page."""
    return f"<!-- {name}: written by isthmus papers page -->", f"<!-- end of {name} -->"


def filled(page: str, name: str, text: str) -> str:
    """The page with this text between the table's marks; as it is where it does not have them."""
    begin, end = marks(name)
    before, found, rest = page.partition(begin)
    if not found:
        return page
    _, closed, after = rest.partition(end)
    if not closed:
        raise IsthmusError(f"'{begin}' has no '{end}' after it: add it")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def write_page(path: Path, texts: Sequence[tuple[str, str]]) -> list[str]:
    """Put tables, by name, between their marks; the names of those that have none come back."""
    page = path.read_text(encoding="utf-8") if path.exists() else ""
    missing = [name for name, _ in texts if marks(name)[0] not in page]
    for name, text in texts:
        page = filled(page, name, text)
    if len(missing) < len(texts):
        store.write(path, page)
    return missing


class Bar(Bars):
    """A bar with the time left, where there is a terminal, and a line for every run that ends."""

    def __init__(self, console: Console) -> None:
        left = TextColumn("{task.fields[left]}")
        super().__init__(console, BarColumn(), MofNCompleteColumn(), TextColumn("runs"), TimeElapsedColumn(), left)
        self._bar = self._progress.add_task("", total=None, left="")

    def told(self, standing: Standing) -> None:
        """Show how far it is."""
        left = "" if standing.left is None else f"about {wording.time_said(standing.left)} left"
        self._progress.update(self._bar, completed=standing.done, total=standing.total, left=left)
        if standing.line:
            rest = "" if self._console.is_terminal or not left else f" ({standing.done} of {standing.total}, {left})"
            self._console.print(f"{standing.line}{rest}", markup=False, highlight=False, soft_wrap=True)
