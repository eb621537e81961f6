"""The report's section on differences between methods: whether a lead is more than luck."""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.paired import MIN_SEEDS
from isthmus.report import page, wording
from isthmus.report.differences import differences
from isthmus.report.loading import Findings, Setting


def section(findings: Findings) -> str:
    """The section's HTML: for each setting a table of its best federated method against all others.

    Settings are kept apart: a lead on one data set says nothing about another one.
    """
    parts = []
    for setting in findings.settings:
        ranked = findings.chosen(setting.methods, setting.main_metric)
        federated = findings.federated(ranked)
        if setting.main_metric and federated and len(ranked) > 1:
            others = [method for method in ranked if method != federated[0]]
            parts.append(page.heading(setting.name, "h4") + _table(findings, setting, federated[0], others))
    return f"<h3>Is the lead more than luck?</h3>{''.join(parts)}" if parts else ""


def _table(findings: Findings, setting: Setting, best: str, others: Sequence[str]) -> str:
    metric = setting.main_metric or ""
    found = differences(findings, metric, best, others)
    if not found:
        return f"<p class=note>That takes {MIN_SEEDS} seeds at least which two methods have in common.</p>"
    scale, unit = (100.0, ", in points") if wording.percent(metric) else (1.0, "")
    rows = []
    for method, each in found.items():
        interval = f"{scale * each.low:+.3g} to {scale * each.high:+.3g}"
        p = each.p_text.removeprefix("p ").removeprefix("= ")
        rows.append(page.row(page.row_head(method), (f"{scale * each.mean:+.3g}", interval, p, each.seeds)))
    names = (f"Gain of {best}", "95 % interval", "p", "Seeds")
    head = f"<tr>{page.head('Against')}{page.heads(names, 'n')}</tr>"
    many = "a comparison" if len(found) == 1 else f"{len(found)} comparisons"
    note = (
        f"{wording.metric_title(metric)}{unit}: differences seed by seed; paired t-test, two-sided, "
        f"not corrected for {many}. Below zero is a loss; where the interval has zero in it, the order may be luck."
    )
    return page.table(head, "".join(rows), note)
