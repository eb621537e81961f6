"""A page for each party, with its own rows: what it holds, what each method gave it, what it sent and received.

A page is made from result folders alone: in a federation it has what the coordinator knows of the party, and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from html import escape
from pathlib import Path
from urllib.parse import quote

from isthmus import store
from isthmus.errors import IsthmusError
from isthmus.report import page, wording
from isthmus.report.headline import title
from isthmus.report.loading import Findings, default_folder, read_folders
from isthmus.report.sections import ledger, parties, traffic

MAX_PAGES = 50
"""Pages that one call writes at most."""


def write_party_pages(folders: Sequence[Path | str], names: Sequence[str], out: Path | str | None = None) -> list[Path]:
    """Write a page for each party of the results whose name fits; each page is for that party alone.

    Arguments:
        folders: result folders, as for `write_report`.
        names: names of parties; `*` stands for any letters.
        out: the folder to write to; `parties` in the result folder if left out. Pages on several folders need it.

    Returns:
        The paths of the files.
    """
    findings = read_folders(folders)
    known = _known_parties(findings)
    fitting = {name: {party for party in known if party == name or fnmatchcase(party, name)} for name in names}
    for name in (each for each, found in fitting.items() if not found):
        listed = ", ".join([*known[:5], *(["..."] if len(known) > 5 else [])])
        raise IsthmusError(f"--party: no party '{name}' in these results; they have {listed or 'none'}")
    chosen = [party for party in known if any(party in found for found in fitting.values())]
    if len(chosen) > MAX_PAGES:
        raise IsthmusError(f"--party: {len(chosen):,} parties fit; name at most {MAX_PAGES} at a time, a page each")
    folder = default_folder(folders) / "parties" if out is None else Path(out)
    pages = {folder / f"{quote(party, safe='')}.html": party for party in chosen}
    for path, party in pages.items():
        store.write(path, _page(findings, party))
    return list(pages)


def _known_parties(findings: Findings) -> list[str]:
    """Every party of the results, without the one that stands for pooled data."""
    described = [cut.description for folder in findings.folders for cut in folder.results.cuts]
    held = [party.name for cut in described for party in cut.parties]
    scored = [party for run in findings.runs for party in run.parties]
    pooled = {method for method in findings.methods if findings.reference(method) == wording.POOLED}
    pairs = findings.ledger.group_by(["method", "party"], use_threads=False).aggregate([]).to_pylist()
    asked = [row["party"] for row in pairs if row["party"] and row["method"] not in pooled]
    return sorted({*held, *scored, *asked}, key=wording.natural_key)


def _page(findings: Findings, party: str) -> str:
    own = _of_party(findings, party)
    sections = [
        ("results", "Results", _results(findings, party)),
        ("parties", "Data", parties.section(own)),
        ("traffic", "Traffic", traffic.section(own, "this party")),
        ("ledger", "Who saw what", ledger.section(findings, party)),
    ]
    study = title(folder.results.study for folder in findings.folders)
    note = f"<p class=verdict>This page is for {escape(party)} alone: what it holds, reached, sent and received.</p>"
    return page.document(f"{party} in {study}", note, [each for each in sections if each[2]], [])


def _of_party(findings: Findings, party: str) -> Findings:
    """The findings with this party's rows of the ledger, and its part of each cut."""
    import pyarrow.compute as pc

    folders = []
    for folder in findings.folders:
        cuts = []
        for cut in folder.results.cuts:
            for held in (each for each in cut.description.parties if each.name == party):
                described = replace(  # the note is on all parties' data, and may name others
                    cut.description, parties=(held,), nodes=held.nodes, edges=held.edges, cross=0, emd=None, note=""
                )
                cuts.append(cut.model_copy(update={"description": described}))
        folders.append(replace(folder, results=folder.results.model_copy(update={"cuts": cuts})))
    tables = {name: getattr(findings, name) for name in ("ledger", "set_up")}
    own = {name: table.filter(pc.equal(table["party"], party)) for name, table in tables.items()}
    return replace(findings, folders=folders, **own)


def _results(findings: Findings, party: str) -> str:
    """Its own metrics of each method."""
    text = ""
    for setting in findings.settings:
        rows, runs = [], [run for run in setting.runs if party in run.parties]
        metrics = [name for name in setting.metrics if any(name in run.parties[party] for run in runs)]
        for method in dict.fromkeys(run.method for run in runs):
            own = [run.parties[party] for run in runs if run.method == method]
            values = (wording.mean_and_std_of([each.get(name) for each in own], name) for name in metrics)
            rows.append(page.row(page.method_head(findings, method), values))
        if rows:
            heads = page.heads((wording.metric_title(name) + wording.unit(name) for name in metrics), "n")
            head = f"<tr>{page.head('Method')}{heads}</tr>"
            note = "Of this party's own items, mean ± standard deviation over seeds."
            text += page.heading(setting.name, "h3") + page.table(head, "".join(rows), note)
    none = (
        "No metrics of single parties are recorded. In a federation only a party itself knows its own, unless a method "
    )
    return text or f'<p>{none}has evaluate_by = "ask".</p>'
