"""The report's section on privacy that noise spends, method by method."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from isthmus.report import page
from isthmus.report.loading import Findings


def section(findings: Findings) -> str:
    """The section's HTML: for each method the run that spent most; empty if no party adds noise."""
    rows, without = [], []
    for method in (each for each in findings.methods if not findings.is_unfinished(each)):
        spent = [run.privacy for run in findings.runs_of(method) if run.privacy]
        if spent:
            rows.append(_row(findings, method, max(spent, key=lambda each: each["basic"]["epsilon"])))
        else:
            without.append(method)
    if not rows:
        return ""
    names = ("Method", "What is hidden", "Releases")
    counts = ("ε, added up", "δ", "ε, by advanced composition", "δ")
    head = f"<tr>{page.heads(names)}{page.heads(counts, 'n')}</tr>"
    note = "Whoever sees all that left the parties learns hardly more about one such unit than these bounds allow: the "
    note += (
        "chance of whatever they see changes by a factor of e to the ε at most, but for δ. Added up, releases spend "
    )
    note += "the sum of what each spends; advanced composition says less where there are many small ones. Of several "
    note += "seeds, the one that spent most."
    if without:
        note += f" No noise in {', '.join(without)}."
    return page.table(head, "".join(rows), note)


def _row(findings: Findings, method: str, spent: Mapping[str, Any]) -> str:
    releases = "; ".join(f"{each['times']:,} of ε = {each['epsilon']:.4g}" for each in spent.get("releases", []))
    figures = [f"{spent[way][name]:.4g}" for way in ("basic", "advanced") for name in ("epsilon", "delta")]
    cells = "".join(f"<td class=n>{each}</td>" for each in figures)
    return (
        f"<tr>{page.method_head(findings, method)}<td>{escape(str(spent['unit']))}</td>"
        f"<td>{escape(releases) or '–'}</td>{cells}</tr>"
    )
