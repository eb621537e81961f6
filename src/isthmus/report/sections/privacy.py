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
        if spent := findings.privacy(method):
            rows.append(_row(findings, method, spent))
        else:
            without.append(method)
    if not rows:
        return ""
    names = ("Method", "What is hidden", "Releases")
    counts = ("ε, added up", "δ", "ε, by advanced composition", "δ")
    head = f"<tr>{page.heads(names)}{page.heads(counts, 'n')}</tr>"
    note = (
        "The bounds hold for a reader of everything that left the parties: with or without one such unit, the chance "
        "of what the reader sees differs by a factor of at most e to the ε, plus δ. Added up, releases spend the sum "
        "of their ε; advanced composition gives a smaller bound if there are many small ones. Of several seeds the one "
        "that spent most is shown."
    )
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
