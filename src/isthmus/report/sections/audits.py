"""The report's section on audits: what attacks found."""

from __future__ import annotations

from html import escape

from isthmus.report import charts, page, wording
from isthmus.report.loading import Findings
from isthmus.result_files import AuditRecord


def section(findings: Findings) -> str:
    """The section's HTML: a table for each audit, and its ROC curves."""
    return "".join(
        f"<h3>{escape(each.method)}: {escape(each.audit['name'])}</h3>{_table(each)}{_curves(each)}"
        for each in findings.audits
    )


def _curves(record: AuditRecord) -> str:
    if not record.curves:
        return ""
    return f"<figure>{charts.roc_chart('Members found, by others accused', list(record.curves.items()))}</figure>"


def _table(record: AuditRecord) -> str:
    head = f"<tr>{page.head(record.corner)}{page.heads(record.columns, 'n')}</tr>"
    bodies = []
    for section in record.sections:
        rows = ""
        for title, cells in section:
            rows += page.row(page.row_head(title), map(escape, cells))
        bodies.append(f"<tbody>{rows}</tbody>")
    origin = f"the cut and the first model are those of seed {record.seed}"
    note = "; ".join([*record.notes, origin, wording.describe_audit(record.audit)]) + "."
    return page.table(head, "".join(bodies), note)
