"""The report's section on privacy that noise spends, method by method."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from isthmus.report import page, wording
from isthmus.report.loading import Findings
from isthmus.result_files import shown_epsilon


def section(findings: Findings) -> str:
    """The section's HTML: for each method the run that spent most; empty if no party adds noise."""
    rows, without = [], []
    audited = any(record.lower_bounds for record in findings.audits)
    for method in (each for each in findings.methods if not findings.is_unfinished(each)):
        if spent := findings.privacy(method):
            rows += [_row(findings, method, each, audited) for each in (spent, *spent.get("others", ()))]
        else:
            without.append(method)
    if not rows:
        return ""
    names = ("Method", "What is hidden", "Releases")
    counts = ("ε, added up", "δ", "ε, composed", "δ", "Best chance", *(["ε, shown by an audit"] if audited else []))
    head = f"<tr>{page.heads(names)}{page.heads(counts, 'n')}</tr>"
    note = (
        "The bounds hold for a reader of everything that left the parties: with or without one such unit, the chance "
        "of what the reader sees differs by a factor of at most e to the ε, plus δ. Added up, releases spend the sum "
        "of their ε; composition gives a smaller bound if there are many small ones. The best chance is the most that "
        "an attacker can know, but for the probability δ, who took even odds on whether the unit is in the data. Of "
        "several seeds the one that spent most is shown."
    )
    if audited:
        note += " The last column is what guesses in an audit contradict, with 95 % confidence: it must be below the ε."
    if without:
        note += f" No noise in {', '.join(without)}."
    return page.table(head, "".join(rows), note)


def _row(findings: Findings, method: str, spent: Mapping[str, Any], audited: bool) -> str:
    releases = "; ".join(map(_release, spent.get("releases", [])))
    figures = [f"{spent[way][name]:.6g}" for way in ("basic", "advanced") for name in ("epsilon", "delta")]
    figures.append(wording.format_chance(spent))
    if audited:
        shown = shown_epsilon(findings.audits, method, str(spent.get("of", "")))
        figures.append("–" if shown is None else f"at least {shown.shown:.2f}")
    cells = "".join(f"<td class=n>{each}</td>" for each in figures)
    return (
        f"<tr>{page.method_head(findings, method)}<td>{escape(str(spent['unit']))}</td>"
        f"<td>{escape(releases) or '–'}</td>{cells}</tr>"
    )


def _release(release: Mapping[str, Any]) -> str:
    """What was released how often, with which noise."""
    what = f" ({release['what']})" if release.get("what") else ""
    if "multiplier" not in release:
        return f"{release['times']:,} of ε = {release['epsilon']:.4g}{what}"
    sampled = f", of a share of {release['sampled']:.3g}" if release["sampled"] < 1 else ""
    return f"{release['times']:,} with Gaussian noise of {release['multiplier']:.4g} times the change{sampled}{what}"
