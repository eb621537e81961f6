"""A table's curves by round, and its embeddings, as a page of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from statistics import fmean

from isthmus.papers.plan import Table
from isthmus.papers.results import Runs, TableResults
from isthmus.report import page, wording
from isthmus.report.charts import Curve, clouds, line_chart, scatter

ABOUT_CURVES = "Lines: mean over seeds. Bands: lowest to highest seed."
ROUNDS_LISTED = 6
"""Rounds in the table below a chart."""
ABOUT_PICTURES = (
    "Embeddings in two dimensions by t-SNE, which keeps neighbours together, of the first seed. How far apart groups "
    "are, and how large, says little. Labels only colour the dots."
)


def pictures_page(table: Table, results: TableResults) -> str:
    """Draw curves, and embeddings, for each combination of all axes but the last; empty if no run has either.

    In a chart, the values of the last axis are the lines.
    """
    curves = list(_charts(table, results))
    pictures = list(_pictures(table, results))
    if not curves and not pictures:
        return ""
    sections = [
        (f"{kind}-{position}", escape(title), content)
        for kind, group in (("curves", curves), ("pictures", pictures))
        for position, (title, content) in enumerate(group)
    ]
    notes = [ABOUT_CURVES] * bool(curves) + [ABOUT_PICTURES] * bool(pictures)
    software = [", ".join(f"{k} {v}" for k, v in versions.items()) for versions in results.versions]
    return page.document(table.title, "".join(f"<p>{note}</p>" for note in notes), sections, software)


def _pictures(table: Table, results: TableResults) -> Iterator[tuple[str, str]]:
    """Yield the pictures of each cell's first run; cells that differ only in the last axis stand side by side."""
    groups: dict[str, list[str]] = {}
    for cell in table.cells():
        *first, last = cell.place.values()
        runs = [run for run in results.runs(cell) if run.get("pictures")]
        for title, items in runs[0]["pictures"].items() if runs else ():
            plot = scatter(", ".join([*first, last, title]), clouds(items))
            groups.setdefault(", ".join(first) or table.title, []).append(f"<figure>{plot}</figure>")
    for title, figures in groups.items():
        yield title, f"<div class=three>{''.join(figures)}</div>"


def _charts(table: Table, results: TableResults) -> Iterator[tuple[str, str]]:
    groups: dict[tuple[str, ...], dict[str, Runs]] = {}
    for cell in table.cells():
        *first, last = cell.place.values()
        if runs := [run for run in results.runs(cell) if run.get("curves")]:
            groups.setdefault(tuple(first), {})[last] = runs
    for key, lines in groups.items():
        where = ", ".join(f"{axis.name}: {value}" for axis, value in zip(table.axes, key, strict=False)) or table.title
        names = dict.fromkeys(name for runs in lines.values() for run in runs for name in run["curves"])
        charts = [(_title(table, name), _curves(lines, name)) for name in names]
        figures = "".join(f"<figure>{line_chart(title, curves, '{:.3g}'.format)}</figure>" for title, curves in charts)
        tables = "".join(_value_table(title, curves) for title, curves in charts)
        yield where, f"<div class=pair>{figures}</div>{page.folded('The figures, by round', tables)}"


def _title(table: Table, curve: str) -> str:
    """The title of a curve: that of the figure with the same metric, if there is one."""
    titles = (figure.title for figure in table.figures.values() if figure.metric == curve)
    return next(titles, "") or wording.metric_title(curve)


def _curves(lines: Mapping[str, Runs], name: str) -> list[Curve]:
    """The mean and range over seeds of each line, for the rounds that all its seeds have."""
    curves = []
    for style, (value, runs) in enumerate(lines.items()):
        if points := [dict(map(tuple, run["curves"][name])) for run in runs if name in run["curves"]]:
            rounds = sorted(set.intersection(*map(set, points)))
            of_round = [[each[at] for each in points] for at in rounds]
            mean, low, high = ([each(values) for values in of_round] for each in (fmean, min, max))
            curves.append(Curve(value, style, rounds, mean, low, high))
    return curves


def _value_table(title: str, curves: Sequence[Curve]) -> str:
    """A table of means at some rounds, the first and the last among them."""
    rounds = sorted({at for curve in curves for at in curve.rounds})
    steps = min(ROUNDS_LISTED, len(rounds)) - 1
    listed = [rounds[round(step * (len(rounds) - 1) / max(steps, 1))] for step in range(steps + 1)]
    rows = []
    for curve in curves:
        means = dict(zip(curve.rounds, curve.mean, strict=True))
        cells = "".join(f"<td class=n>{means[at]:.3g}</td>" if at in means else "<td class=n>–</td>" for at in listed)
        rows.append(f"<tr><th scope=row>{escape(curve.name)}</th>{cells}</tr>")
    head = f"<tr>{page.head(title)}{''.join(page.head(f'round {at}', 'n') for at in listed)}</tr>"
    return page.table(head, "".join(rows), "Means over seeds.")
