"""What a table's runs show beside numbers, as a page by itself: curves by round, and where items stand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from statistics import fmean

from isthmus.papers.kept import Kept, Runs
from isthmus.papers.plan import Table
from isthmus.study import page
from isthmus.study.charts import Curve, clouds, line_chart, scatter

ABOUT_CURVES = "Lines: mean over seeds. Bands: lowest to highest seed."
ABOUT_PICTURES = (
    "Embeddings in two dimensions by t-SNE, which keeps neighbours together, of the first seed. How far apart groups "
    "are, and how large, says little. Labels only colour the dots."
)


def drawn_page(table: Table, kept: Kept) -> str:
    """A chart for each curve and each combination of all axes but the last, whose values are its lines; and the
    same of pictures; nothing where no run has either."""
    curves = [(title, f"<figure>{chart}</figure>") for title, chart in _charts(table, kept)]
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
