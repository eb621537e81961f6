"""The report's section on settings that a grid or tuning tried: their validation metric, and which options mattered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from html import escape

from isthmus.report import page, wording
from isthmus.report.loading import Findings, ResultFolder
from isthmus.result_files import Search

_NOTE = (
    "Ranked by validation data, which alone chose the setting of each method (bold); all other parts of this page show "
    "that setting only. Test figures chose nothing."
)


def section(findings: Findings) -> str:
    """The section's HTML: a table for each folder whose study tried several settings."""
    found = [(folder, folder.results.search) for folder in findings.folders if folder.results.search is not None]
    return "".join(
        (page.heading(folder.name, "h3") if len(found) > 1 else "")
        + _table(folder, search)
        + (_importance(search.importance) if search.importance else "")
        for folder, search in found
    )


def _table(folder: ResultFolder, search: Search) -> str:
    tests = search.test_metrics(run.metric for run in folder.results.runs)
    scores = {(score.method, score.metric): score.text for score in folder.results.summary}
    rows = []
    for each in search.tried:
        figure = wording.validation(search.metric, each)
        cells = [figure, *(scores.get((each.label, test), "–") if each.chosen else "" for test in tests)]
        setting = escape(wording.setting(each.values))
        if each.chosen:
            cells, setting = [f"<b>{cell}</b>" for cell in cells], f"<b>{setting}</b>"
        rows.append(page.row(page.row_head(each.of), cells, f"<td>{setting}</td>"))
    heads = page.heads((f"{wording.metric_title(m)}{wording.unit(m)}" for m in (search.metric, *tests)), "n")
    counts = Counter(each.of for each in search.tried)
    tried = f"Settings tried: {', '.join(f'{of} {count}' for of, count in counts.items())}."
    return page.table(f"<tr>{page.head('Method')}{heads}{page.head('Setting')}</tr>", "".join(rows), f"{_NOTE} {tried}")


def _importance(importance: Mapping[str, Mapping[str, float]]) -> str:
    rows = "".join(
        page.row(page.row_head(f"{of}: {option}"), [f"{share:.2f}"])
        for of, shares in importance.items()
        for option, share in shares.items()
    )
    note = (
        "The share of the differences in the validation metric that each option accounts for (functional ANOVA on a "
        "random forest of the trials that came to their end). With few trials it is rough."
    )
    head = f"<tr>{page.head('Option')}{page.head('Importance', 'n')}</tr>"
    return f"<h3>Which options mattered</h3>{page.table(head, rows, note)}"
