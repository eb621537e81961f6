"""A table as Markdown, with the paper's numbers and differences below each line; a bar while one runs."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

from isthmus import store
from isthmus.errors import IsthmusError
from isthmus.papers.claims import FIGURES, Comparison, Verdict
from isthmus.papers.plan import Cell, Choice, Place, Table, only_numbers
from isthmus.papers.results import Runs, TableResults, by_seed, count_older, count_runs, early_runs, figure_values
from isthmus.papers.running import Progress
from isthmus.progress.terminal import ProgressBars
from isthmus.report import wording

NAMED = 6
"""How many cells without a run are named one by one."""


def markdown(table: Table, results: TableResults, name: str) -> str:
    """Write a table: the setting, all figures, and below them the choices and claims.

    Arguments:
        name: the table's, whose file of results has the trials; empty if they are not kept.
    """
    parts = [" ".join(table.setting.split())]
    for title, columns in _tables(table):
        if lines := list(_lines(table, results, columns)):
            parts += [f"{title}:"] if title else []
            parts.append("\n".join(lines))
    parts.append(missing_runs(table, results) if count_runs(table, results)[0] else "Not run yet.")
    if older := count_older(table, results):
        parts.append(f"Older code made {older:,} of these runs; it drew or added numbers in another order.")
    file = name and f"[{name}.json](results/{name}.json)"
    parts.append(trials_text(table, results, file))
    parts += [choice_text(each, table, results, file) for each in table.choices]
    if checked := verdicts(table, results):
        parts.append("\n".join(f"- {verdict_text(each)}" for each in checked))
    return "\n\n".join(part for part in parts if part)


def missing_runs(table: Table, results: TableResults) -> str:
    """Say in a sentence what was not run; empty if everything was."""
    runs, total = count_runs(table, results)
    if runs == total:
        return ""
    done = {tuple(cell.place.values()): bool(results.runs(cell)) for cell in table.cells()}
    begun = [set(values) for values in zip(*(place for place, run in done.items() if run), strict=True)]
    missing = []
    for axis, values in zip(table.axes, begun, strict=False):
        if never := [f"`{value}`" for value in axis.changes() if value not in values]:
            missing.append(f"{axis.name} {', '.join(never)}")
    other = [place for place, run in done.items() if not run and all(map(set.__contains__, begun, place))]
    missing += [f"`{', '.join(place)}`" for place in other[:NAMED]]
    if more := len(other[NAMED:]):
        missing.append(f"{more} other cell{'s' * (more > 1)}")
    nothing = f"; nothing yet of {'; '.join(missing)}" if missing else ""
    return f"Run so far: {runs:,} of {total:,}{nothing}."


def choice_text(choice: Choice, table: Table, results: TableResults, file: str) -> str:
    """Say what validation chooses for all cells, by the means over the runs that all candidates have, and in which file
    these are; empty without such runs."""
    values = _candidates(choice, table, results)
    shared = set.intersection(*map(set, values.values()))
    if not shared:
        return ""
    means = {each: statistics.fmean(of[run] for run in shared) for each, of in values.items()}
    best = max(means, key=means.__getitem__)
    told = ", ".join(f"{each} {mean:.1f}" for each, mean in means.items())
    return (
        f"{choice.says}: validation chooses **{best}** for all cells (mean of {len(shared):,} "
        f"run{'s' * (len(shared) > 1)} each: {told}{f'; all are in {file}' * bool(file)})."
    )


def _candidates(
    choice: Choice, table: Table, results: TableResults
) -> dict[str, dict[tuple[tuple[str, ...], int], float]]:
    """By candidate the figure that decides, of each place (but for the axis that is chosen along) and seed."""
    axes = [axis.name for axis in table.axes]
    named: dict[str, tuple[str, dict[str, str]]]
    if choice.along == FIGURES:
        named = {each: (figure, {}) for each, figure in choice.figures.items()}
    else:
        along = table.axes[axes.index(choice.along)].changes()
        named = {each: (choice.figure, {choice.along: each}) for each in choice.at.get(choice.along, along)}
    found: dict[str, dict[tuple[tuple[str, ...], int], float]] = {each: {} for each in named}
    for each, (figure, value) in named.items():
        for values, runs in by_seed(table, results, figure).items():
            place = dict(zip(axes, values, strict=True))
            rest = tuple(place[axis] for axis in axes if axis != choice.along)
            if value.items() <= place.items() and all(place[axis] in allowed for axis, allowed in choice.at.items()):
                found[each] |= {(rest, seed): number for seed, number in runs.items()}
    return found


def trials_text(table: Table, results: TableResults, file: str) -> str:
    """Say what validation chose for each cell, in which file its trials are, and how often the choice is at an end of
    what was tried; empty if nothing was chosen."""
    tuned = [
        (cell.tune, results.tuned(cell), run[0]["chosen"])
        for cell in table.cells()
        if (run := results.runs(cell)) and cell.tune
    ]
    if not tuned:
        return ""
    names = ", ".join(f"`{name}`" for name in dict.fromkeys(name for tune, _, _ in tuned for name in tune.options))
    kept = sum(bool(trials) for _, trials, _ in tuned)
    at_end = sum(
        any(_at_an_end(chosen[name], [*values, *_tried(trials, name)]) for name, values in tune.options.items())
        for tune, trials, chosen in tuned
    )
    return (
        f"Validation chose {names} for {len(tuned):,} cell{'s' * (len(tuned) > 1)}, in {at_end:,} at an end of what "
        f"was tried." + f" Trials of {kept:,} cell{'s' * (kept != 1)} are in {file}." * bool(file)
    )


def _tried(trials: Mapping[str, object], name: str) -> list[object]:
    """The values of an option in trials, whose names are their options as JSON."""
    return [json.loads(trial)[name] for trial in trials]


def _at_an_end(chosen: object, tried: Sequence[object]) -> bool:
    """Whether a larger or smaller number might have been better."""
    known = only_numbers(tried)
    return len(set(known)) > 1 and chosen in (min(known), max(known))


def verdicts(table: Table, results: TableResults) -> list[Verdict]:
    """Check every claim of a table."""
    axes = {axis.name: list(axis.changes()) for axis in table.axes}
    runs = {figure: by_seed(table, results, figure) for figure in table.figures}
    cells = {tuple(cell.place.values()): cell for cell in table.cells()}

    def cell_at(place: Place) -> Cell | None:
        return cells.get(tuple(place.get(axis, "") for axis in axes))

    def runs_at(place: Place) -> Runs:
        cell = cell_at(place)
        return results.runs(cell) if cell is not None else []

    def early(place: Place) -> list[bool]:
        return early_runs(table, runs_at(place))

    def older(place: Place) -> list[int]:
        return [run["seed"] for run in runs_at(place) if results.is_older(run)]

    def data_of(place: Place) -> str:
        cell = cell_at(place)
        return str(cell.study.get("data", {}).get("name", "")) if cell is not None else ", ".join(place.values())

    checked = []
    for claim in table.claims:
        figure = claim.figure or next(iter(table.figures))
        along = {**axes, FIGURES: list(runs)} if claim.along == FIGURES else axes
        values = partial(_values_at, table, runs, figure)
        checked.append(claim.judge(along, values, partial(table.published_value, figure), early, older, data_of))
    return checked


def _values_at(
    table: Table, runs: Mapping[str, Mapping[tuple[str, ...], Mapping[int, float]]], figure: str, place: Place
) -> Mapping[int, float]:
    """Values by seed at a place, its axes in any order, of the figure that the place names or else of `figure`."""
    return runs[place.get(FIGURES, figure)].get(tuple(place[axis.name] for axis in table.axes), {})


def verdict_text(verdict: Verdict) -> str:
    """A claim and its verdict: with one place the means, with several the places where it does not hold."""
    against = [f"{each.place} ({_means(each)})" for each in verdict.places if not each.holds]
    where = f": not {', '.join(against)}" if 0 < len(against) < len(verdict.places) else ""
    if len(verdict.places) == 1:
        where = f": {_means(verdict.places[0])}"
    if verdict.claim.over:
        where = f": {'; '.join(_pooled_text(each) for each in verdict.places)}" if verdict.places else ""
    basis = f" ({verdict.basis}{_p_text(verdict)})" if verdict.places else ""
    early = f"; left out, as validation chose a first round: {', '.join(verdict.left_out)}" if verdict.left_out else ""
    return f"{verdict.claim.says}: **{verdict.word}**{where}{basis}{early}"


def _pooled_text(comparison: Comparison) -> str:
    """A place, its means, and the p value of the paired test."""
    p = "" if comparison.p is None else f", p = {comparison.p:.2g}"
    return f"{comparison.place} {_means(comparison)}{p}"


def _p_text(verdict: Verdict) -> str:
    if verdict.claim.over and len(verdict.places) == 1:
        return ""  # it stands beside the means
    p = verdict.places[0].p if len(verdict.places) == 1 else verdict.p
    return "" if p is None else f", paired p = {p:.2g}"


def _means(comparison: Comparison) -> str:
    return " / ".join(f"{mean:.4g}" for mean in comparison.means)


@dataclass(frozen=True)
class TableColumn:
    """A column: a figure, at one value of the last axis unless columns are figures."""

    head: str
    figure: str
    value: tuple[str, ...] = ()


def _tables(table: Table) -> Iterator[tuple[str, list[TableColumn]]]:
    """Yield the title and the columns of each table."""
    if table.columns == "figures":
        yield "", [TableColumn(figure.title or name, name) for name, figure in table.figures.items()]
        return
    last = table.axes[-1]
    for name, figure in table.figures.items():
        yield figure.title, [TableColumn(value, name, (value,)) for value in last.changes()]


def _lines(table: Table, results: TableResults, columns: Sequence[TableColumn]) -> Iterator[str]:
    """Yield a line per combination of the other axes that was run, and the comparison below it; columns without runs
    are left out."""
    cells = {tuple(cell.place.values()): cell for cell in table.cells()}
    axes = table.axes[: len(table.axes) - len(columns[0].value)]
    last = table.axes[-1]

    def values_of(key: tuple[str, ...], column: TableColumn) -> list[float]:
        cell = cells.get((*key, *column.value))
        return [] if cell is None else figure_values(table, results.runs(cell), column.figure)

    def early_text(key: tuple[str, ...], column: TableColumn) -> str:
        cell = cells.get((*key, *column.value))
        headline = column.figure == next(iter(table.figures))
        early = early_runs(table, results.runs(cell)) if cell is not None and headline else []
        return f" ({sum(early)} of {len(early)} early)" if any(early) else ""

    keys = list(itertools.product(*(axis.changes() for axis in axes)))
    shown = [column for column in columns if any(values_of(key, column) for key in keys)]
    if not shown:
        return
    heads = [column.head for column in shown]
    if last.option and shown[0].value:
        heads[0] = f"{last.name} = {heads[0]}"
    yield f"| {' | '.join([*(axis.name for axis in axes), 'seeds', *heads])} |"
    yield f"|{' --- |' * len(axes)}{' ---: |' * (1 + len(shown))}"
    for key in keys:
        own = [values_of(key, column) for column in shown]
        if not any(own):
            continue
        counts = sorted({len(values) for values in own if values})
        seeds = "-".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
        texts = [
            _mean_text(table, values, column.figure) + early_text(key, column)
            for values, column in zip(own, shown, strict=True)
        ]
        yield f"| {' | '.join([*key, seeds, *texts])} |"
        yield from _comparison_lines(table, key, shown, own)


def _comparison_lines(
    table: Table, key: tuple[str, ...], columns: Sequence[TableColumn], own: Sequence[Sequence[float]]
) -> Iterator[str]:
    """Yield the paper's numbers, and our differences from them."""
    paper, differences = [], []
    for column, values in zip(columns, own, strict=True):
        place = {axis.name: value for axis, value in zip(table.axes, (*key, *column.value), strict=True)}
        number, digits = table.published_value(column.figure, place), table.figures[column.figure].digits
        paper.append("" if number is None else f"{number:.{digits}f}")
        differences.append("" if number is None or not values else signed(statistics.fmean(values) - number, digits))
    for name, texts in (("paper", paper), ("difference", differences)):
        if any(texts):
            yield f"| {' | '.join([f'*{name}*', *[''] * len(key), *texts])} |"


def signed(value: float, digits: int) -> str:
    """A difference with its sign.

    >>> signed(1.25, 1), signed(-0.04, 1)
    ('+1.2', '+0.0')
    """
    return f"{round(value, digits) + 0.0:+.{digits}f}"  # adding 0.0 turns -0.0 into 0.0


def _mean_text(table: Table, values: Sequence[float], figure: str) -> str:
    digits = table.figures[figure].digits
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    text = f"{mean} ± {statistics.stdev(values):.{digits}f}"
    if table.spread == "range":
        return f"{text} ({min(values):.{digits}f} to {max(values):.{digits}f})"
    return text


def marks(name: str) -> tuple[str, str]:
    """Return the two comments that a table stands between in a page."""
    return f"<!-- {name}: written by isthmus papers page -->", f"<!-- end of {name} -->"


def fill_page(page: str, name: str, text: str) -> str:
    """Put a text between a table's marks; a page without them stays unchanged."""
    begin, end = marks(name)
    before, mark, rest = page.partition(begin)
    if not mark:
        return page
    _, closed, after = rest.partition(end)
    if not closed:
        raise IsthmusError(f"'{begin}' has no '{end}' after it: add it")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def write_page(path: Path, texts: Sequence[tuple[str, str]]) -> list[str]:
    """Put tables, by name, between their marks in a page; return the names without marks."""
    page = path.read_text(encoding="utf-8") if path.exists() else ""
    missing = [name for name, _ in texts if marks(name)[0] not in page]
    for name, text in texts:
        page = fill_page(page, name, text)
    if len(missing) < len(texts):
        store.write(path, page)
    return missing


class Bar(ProgressBars):
    """A bar with the time left, on a terminal, and a line for every finished run."""

    def __init__(self, console: Console) -> None:
        left = TextColumn("{task.fields[left]}")
        super().__init__(console, BarColumn(), MofNCompleteColumn(), TextColumn("runs"), TimeElapsedColumn(), left)
        self._bar = self._progress.add_task("", total=None, left="")

    def update(self, progress: Progress) -> None:
        """Show the progress."""
        left = "" if progress.left is None else f"about {wording.format_time(progress.left)} left"
        self._progress.update(self._bar, completed=progress.done, total=progress.total, left=left)
        if progress.line:
            rest = "" if self._console.is_terminal or not left else f" ({progress.done} of {progress.total}, {left})"
            self._console.print(f"{progress.line}{rest}", markup=False, highlight=False, soft_wrap=True)
