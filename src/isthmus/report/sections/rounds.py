"""The report's section on learning curves: each metric round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from isthmus.report import charts, page, wording
from isthmus.report.loading import Findings, Setting

_MAX_COLUMNS = 10
"""Curves in one table."""
_ABOUT_ROUNDS = 20
"""Rounds in a table, roughly."""


def section(findings: Findings) -> str:
    """The section's HTML: in every setting validation beside test for each metric, the first one open."""
    note = "Lines: mean over seeds. Bands: lowest to highest seed. Test curves are for reading; they choose no round."
    parts, drawn = [], _curves(findings)
    for setting in findings.settings:
        methods = setting.methods
        own = {metric: [curve for curve in curves if curve.name in methods] for metric, curves in drawn.items()}
        parts.append(page.heading(setting.name, "h3"))
        parts.append(_part(setting, {metric: curves for metric, curves in own.items() if curves}))
    known = {curve.name for curves in drawn.values() for curve in curves}
    if without := [method for method in findings.methods if method not in known]:
        note += f" No value per round was recorded for {wording.join_words(without)}."
    return f"{''.join(parts)}<p class=note>{escape(note)}</p>"


def _part(setting: Setting, drawn: Mapping[str, Sequence[charts.Curve]]) -> str:
    parts: list[str] = []
    for base in dict.fromkeys(wording.without_split(metric) for metric in [*setting.metrics, *drawn]):
        metrics = [metric for metric in (f"val_{base}", f"test_{base}", f"train_{base}", base) if metric in drawn]
        if not metrics:
            continue
        # One value axis for both, so that validation and test can be compared by eye.
        ranges = [charts.value_range(drawn[metric]) for metric in metrics]
        bounds = min(low for low, _ in ranges), max(high for _, high in ranges)
        pair = "".join(
            f"<figure>{charts.line_chart(wording.metric_title(m), drawn[m], wording.formatter(m), bounds)}</figure>"
            for m in metrics
        )
        shown = f"<div class=pair>{pair}</div>{_tables(drawn, metrics)}"
        parts.append(page.folded(wording.metric_title(base), shown) if parts else shown)
    return "".join(parts)


def _curves(findings: Findings) -> dict[str, list[charts.Curve]]:
    """Curves by metric, in the page's order of methods."""
    import pyarrow.compute as pc

    known = findings.history.filter(pc.is_finite(findings.history["value"]))
    spans = known.group_by(["metric", "method", "round"], use_threads=False)
    spans = spans.aggregate([("value", "mean"), ("value", "min"), ("value", "max")]).sort_by("round")
    points: dict[tuple[str, str], list[tuple[int, float, float, float]]] = {}
    for row in spans.to_pylist():
        point = (row["round"], row["value_mean"], row["value_min"], row["value_max"])
        points.setdefault((row["metric"], row["method"]), []).append(point)
    curves: dict[str, list[charts.Curve]] = {}
    for metric in dict.fromkeys(metric for metric, _ in points):
        for method in findings.methods:
            if (metric, method) in points:
                rounds, *values = zip(*points[metric, method], strict=True)
                curves.setdefault(metric, []).append(charts.Curve(method, findings.style(method), rounds, *values))
    return curves


def _tables(drawn: Mapping[str, Sequence[charts.Curve]], metrics: Sequence[str]) -> str:
    """The means of the curves; many curves get a table for each metric, as paper is narrow."""
    if sum(len(drawn[metric]) for metric in metrics) <= _MAX_COLUMNS:
        return page.folded("The figures, round by round", _table(drawn, metrics))
    return page.folded("The figures, round by round", "".join(_table(drawn, [metric]) for metric in metrics))


def _table(drawn: Mapping[str, Sequence[charts.Curve]], metrics: Sequence[str]) -> str:
    """Means in some rounds, a column for each curve."""
    means = {
        (metric, curve.name): dict(zip(curve.rounds, curve.mean, strict=True))
        for metric in metrics
        for curve in drawn[metric]
    }
    every = sorted({at for values in means.values() for at in values})
    skip = max(1, (len(every) - 1) // _ABOUT_ROUNDS)
    listed = sorted({*every[::skip], every[-1]})
    rows = []
    for at in listed:
        values = (wording.format_number(by_round.get(at), metric) for (metric, _), by_round in means.items())
        rows.append(page.row(page.row_head(str(at)), values))
    over = "".join(
        f'<th scope=colgroup colspan="{len(drawn[metric])}">'
        f"{escape(wording.metric_title(metric) + wording.unit(metric))}</th>"
        for metric in metrics
    )
    names = page.heads((name for _, name in means), "n name")
    head = f"<tr><td></td>{over}</tr><tr>{page.head('Round')}{names}</tr>"
    note = "Mean over seeds" + ("." if len(listed) == len(every) else f", in {len(listed)} of {len(every)} rounds.")
    return page.table(head, "".join(rows), note)
