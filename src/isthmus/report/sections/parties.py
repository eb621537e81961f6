"""The report's section on parties: what each of them holds, and how much they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from statistics import median

from isthmus.data.description import CutDescription, PartyDescription
from isthmus.report import charts, page, wording
from isthmus.report.loading import Findings

_MAX_BARS = 24
"""Bars in one chart; more parties, or more classes than colours, get a heat map."""
_MAX_CELLS = 50_000
"""Cells in one heat map; above that there is no chart."""
_MAX_UNFOLDED = 12
"""Parties in a table that is not folded."""

_Cuts = tuple[tuple[tuple[int, ...], CutDescription], ...]
"""Seeds, and what the parties held in the runs with them."""


def section(findings: Findings) -> str:
    """The section's HTML; empty if no folder describes its parties. Folders with the same cuts share a part."""
    folders: dict[_Cuts, list[str]] = {}
    for folder in findings.folders:
        if folder.results.cuts:
            cuts = tuple((tuple(cut.seeds), cut.description) for cut in folder.results.cuts)
            folders.setdefault(cuts, []).append(folder.name)
    several = len(findings.folders) > 1
    return "".join(
        page.heading(wording.join_words(names) if several else "", "h3") + _part(cuts)
        for cuts, names in folders.items()
    )


def _part(cuts: _Cuts) -> str:
    """The first seed's parties one by one, and how much the cuts of all seeds differ."""
    seeds, cut = cuts[0]
    text = wording.describe_cut([each for seeds, each in cuts for _ in seeds])
    if len(cuts) > 1:
        text += f" Each seed has a cut of its own: single parties are shown as seed {seeds[0]} has them."
    note = f"<p>{escape(cut.note)}</p>" if cut.note else ""
    return f"{note}<p>{escape(text)}</p>{_chart(cut)}{_table(cut)}"


def _chart(cut: CutDescription) -> str:
    width = max(len(party.labels) for party in cut.parties)
    if not 0 < width * len(cut.parties) <= _MAX_CELLS:
        return ""
    stacked = cut.kind == "class" and width <= wording.MAX_LABEL_COLUMNS and len(cut.parties) <= _MAX_BARS
    if stacked:
        return f"<figure>{_stacks(cut, width)}</figure>"
    return f"<figure class=scroll>{_heat_map(cut, width)}</figure>"


def _stacks(cut: CutDescription, classes: int) -> str:
    whole = [sum(counts) for counts in zip(*(party.labels for party in cut.parties), strict=True)]
    bars: list[tuple[str, Sequence[int]]] = [("all", whole)] if len(cut.parties) > 1 else []
    bars += [(party.name, party.labels) for party in cut.parties]
    title = f"Labels of each party: labelled {cut.level}s, and shares of the classes"
    rows = [charts.Stack(name, counts, f"{sum(counts):,}") for name, counts in bars]
    return charts.stack_chart(title, [cut.label(at) for at in range(classes)], rows)


def _heat_map(cut: CutDescription, width: int) -> str:
    """Parties by classes, or by tasks; the longer side lies along the page."""
    yes_no = cut.kind == "yes-no"
    parties = [party.name for party in cut.parties]
    kinds = [cut.label(at) for at in range(width)]
    shares = [_shares(party) for party in cut.parties]
    what = "share of yes among its labels of each task" if yes_no else "share of each class among its labels"
    sides = (parties, kinds, shares)
    if len(parties) > width:
        sides = (kinds, parties, [list(line) for line in zip(*shares, strict=True)])
    return charts.heat_map(f"Labels of each party: {what}", *sides, lambda share: f"{100 * share:.0f} %")


def _shares(party: PartyDescription) -> list[float]:
    totals = party.labelled or [sum(party.labels)] * len(party.labels)
    return [count / max(1, total) for count, total in zip(party.labels, totals, strict=True)]


def _table(cut: CutDescription) -> str:
    counts = wording.count_columns(cut)
    heads, labels = wording.label_columns(cut)
    note = "Edges are directed, as they are stored: one that runs both ways counts twice. Train, val and test are "
    note += f"{cut.level}s in each split."
    if "cross" in counts:
        note += " Cross edges reach a party's nodes from other parties' nodes; they are not among its edges."
    if "shared" in counts:
        note += " Shared nodes are with other parties too."
    if cut.kind == "yes-no":
        note += " Labels: how many say yes, of how many."
    if cut.kind == "value":
        note += " Labels: their mean."
    if len(cut.parties) > wording.MAX_PARTIES:
        return _quantiles(counts, note)
    rows = []
    for at, party in enumerate(cut.parties):
        cells = [*(f"{column[at]:,}" for column in counts.values()), *labels[at]]
        rows.append(page.row(page.row_head(party.name), map(escape, cells)))
    head = page.heads(counts, "n") + page.heads(heads, "n name")
    table = page.table(f"<tr>{page.head('Party')}{head}</tr>", "".join(rows), note)
    if len(cut.parties) <= _MAX_UNFOLDED:
        return table
    return page.folded("The figures, party by party", table)


def _quantiles(counts: Mapping[str, Sequence[int]], note: str) -> str:
    """Fewest, median and most of each count, if there are too many parties for a row each."""
    rows = [
        page.row(page.row_head(name), [f"{pick(each):,.0f}" for each in counts.values()])
        for name, pick in (("fewest", min), ("median", median), ("most", max))
    ]
    note = f"{len(next(iter(counts.values()))):,} parties: too many for a line each, all are in results.json. {note}"
    return page.table(f"<tr>{page.head('Of all parties')}{page.heads(counts, 'n')}</tr>", "".join(rows), note)
