"""Curves of a table's runs, round by round, as a page by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from statistics import fmean

from isthmus.papers.kept import Kept, Runs
from isthmus.papers.plan import Table
from isthmus.study import page
from isthmus.study.charts import Curve, line_chart


def curves_page(table: Table, kept: Kept) -> str:
    """A chart for each curve and each combination of all axes but the last, whose values are its lines; nothing where
    no run has curves."""
    charts = list(_charts(table, kept))
    if not charts:
        return ""
    sections = [
        (f"curves-{at}", escape(title), f"<figure>{chart}</figure>") for at, (title, chart) in enumerate(charts)
    ]
    note = "<p>Lines: mean over seeds. Bands: lowest to highest seed.</p>"
    return page.document(
        table.title, note, sections, [", ".join(f"{k} {v}" for k, v in versions.items()) for versions in kept.versions]
    )


def _charts(table: Table, kept: Kept) -> Iterator[tuple[str, str]]:
    groups: dict[tuple[str, ...], dict[str, Runs]] = {}
    for cell in table.cells():
        *first, last = cell.place.values()
        if runs := [run for run in kept.runs(cell) if run.get("curves")]:
            groups.setdefault(tuple(first), {})[last] = runs
    for key, lines in groups.items():
        for name in dict.fromkeys(name for runs in lines.values() for run in runs for name in run["curves"]):
            title = ", ".join([*key, name])
            drawn = [
                _curve(at, value, [dict(map(tuple, run["curves"][name])) for run in runs if name in run["curves"]])
                for at, (value, runs) in enumerate(lines.items())
                if any(name in run["curves"] for run in runs)
            ]
            yield title, line_chart(title, drawn, "{:.3g}".format)


def _curve(style: int, value: str, points: Sequence[dict[int, float]]) -> Curve:
    """Over the rounds that all seeds have."""
    rounds = sorted(set.intersection(*map(set, points)))
    values = [[each[at] for each in points] for at in rounds]
    return Curve(value, style, rounds, [fmean(v) for v in values], [min(v) for v in values], [max(v) for v in values])
