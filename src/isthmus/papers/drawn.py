"""What a table's runs show beside numbers, as a page by itself: curves by round, and where items stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from statistics import fmean

from isthmus.papers.kept import Kept, Runs
from isthmus.papers.plan import Table
from isthmus.report import page, wording
from isthmus.report.charts import Curve, clouds, line_chart, scatter

ABOUT_CURVES = "Lines: mean over seeds. Bands: lowest to highest seed."
ROUNDS_TOLD = 6
"""Rounds of a chart that stand in its table."""
ABOUT_PICTURES = (
    "Embeddings in two dimensions by t-SNE, which keeps neighbours together, of the first seed. How far apart groups "
    "are, and how large, says little. Labels only colour the dots."
)


def drawn_page(table: Table, kept: Kept) -> str:
    """A chart for each curve and each combination of all axes but the last, whose values are its lines; and the
    same of pictures; nothing where no run has either."""
    curves = list(_charts(table, kept))
    pictures = list(_pictures(table, kept))
    if not curves and not pictures:
        return ""
    sections = [
        (f"{kind}-{at}", escape(title), drawn)
        for kind, group in (("curves", curves), ("pictures", pictures))
        for at, (title, drawn) in enumerate(group)
    ]
    notes = [ABOUT_CURVES] * bool(curves) + [ABOUT_PICTURES] * bool(pictures)
    made = [", ".join(f"{k} {v}" for k, v in versions.items()) for versions in kept.versions]
    return page.document(table.title, "".join(f"<p>{note}</p>" for note in notes), sections, made)


def _pictures(table: Table, kept: Kept) -> Iterator[tuple[str, str]]:
    """Of every cell its first run's pictures; cells that differ in the last axis alone stand side by side."""
    groups: dict[str, list[str]] = {}
    for cell in table.cells():
        *first, last = cell.place.values()
        runs = [run for run in kept.runs(cell) if run.get("pictures")]
        for title, items in runs[0]["pictures"].items() if runs else ():
            drawn = scatter(", ".join([*first, last, title]), clouds(items))
            groups.setdefault(", ".join(first) or table.title, []).append(f"<figure>{drawn}</figure>")
    for title, figures in groups.items():
        yield title, f"<div class=three>{''.join(figures)}</div>"


def _charts(table: Table, kept: Kept) -> Iterator[tuple[str, str]]:
    groups: dict[tuple[str, ...], dict[str, Runs]] = {}
    for cell in table.cells():
        *first, last = cell.place.values()
        if runs := [run for run in kept.runs(cell) if run.get("curves")]:
            groups.setdefault(tuple(first), {})[last] = runs
    for key, lines in groups.items():
        where = ", ".join(f"{axis.name}: {value}" for axis, value in zip(table.axes, key, strict=False)) or table.title
        names = dict.fromkeys(name for runs in lines.values() for run in runs for name in run["curves"])
        drawn = [(_title(table, name), _curves(lines, name)) for name in names]
        figures = "".join(f"<figure>{line_chart(title, curves, '{:.3g}'.format)}</figure>" for title, curves in drawn)
        tables = "".join(_in_figures(title, curves) for title, curves in drawn)
        yield where, f"<div class=pair>{figures}</div>{page.folded('The figures, by round', tables)}"


def _title(table: Table, curve: str) -> str:
    """What a curve is called: as the figure that the table tells of it, where there is one."""
    named = (figure.title for figure in table.figures.values() if figure.metric == curve)
    return next(named, "") or wording.titled(curve)


def _curves(lines: Mapping[str, Runs], name: str) -> list[Curve]:
    return [
        _curve(at, value, [dict(map(tuple, run["curves"][name])) for run in runs if name in run["curves"]])
        for at, (value, runs) in enumerate(lines.items())
        if any(name in run["curves"] for run in runs)
    ]


def _in_figures(title: str, curves: Sequence[Curve]) -> str:
    """Means at some rounds, the first and the last among them."""
    rounds = sorted({at for curve in curves for at in curve.rounds})
    steps = min(ROUNDS_TOLD, len(rounds)) - 1
    told = [rounds[round(step * (len(rounds) - 1) / max(steps, 1))] for step in range(steps + 1)]
    rows = []
    for curve in curves:
        means = dict(zip(curve.rounds, curve.mean, strict=True))
        cells = "".join(f"<td class=n>{means[at]:.3g}</td>" if at in means else "<td class=n>–</td>" for at in told)
        rows.append(f"<tr><th scope=row>{escape(curve.name)}</th>{cells}</tr>")
    head = f"<tr>{page.head(title)}{''.join(page.head(f'round {at}', 'n') for at in told)}</tr>"
    return page.table(head, "".join(rows), "Means over seeds.")


def _curve(style: int, value: str, points: Sequence[dict[int, float]]) -> Curve:
    """Over the rounds that all seeds have."""
    rounds = sorted(set.intersection(*map(set, points)))
    values = [[each[at] for each in points] for at in rounds]
    return Curve(value, style, rounds, [fmean(v) for v in values], [min(v) for v in values], [max(v) for v in values])
