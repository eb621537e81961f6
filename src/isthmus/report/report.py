"""One HTML file that tells what a study found, what it cost in traffic, and who saw what.

The page needs nothing else: no network, no script, no image files. The same results give the same page, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from isthmus import store
from isthmus.errors import IsthmusError
from isthmus.report import charts, page, wording
from isthmus.report.headline import facts, headline, title
from isthmus.report.loading import Findings, read_folders
from isthmus.report.sections.audits import what_attacks_found
from isthmus.report.sections.embeddings import where_items_stand
from isthmus.report.sections.graphs import what_was_made
from isthmus.report.sections.ledger import who_saw_what
from isthmus.report.sections.parties import who_holds_what
from isthmus.report.sections.privacy import what_noise_spent
from isthmus.report.sections.rounds import round_by_round
from isthmus.report.sections.scores import how_methods_did, row_head
from isthmus.report.wording import POOLED


def write_report(folders: Sequence[Path | str], out: Path | str | None = None) -> Path:
    """Writes one self-contained HTML page about one or more result folders.

    A method that stands in more than one folder is named with its folder behind it.

    Arguments:
        folders: result folders, each with study.toml, results.json, history.parquet and ledger.parquet.
        out: the file to write; `report.html` in the first folder if left out.

    Returns:
        The path of the file.
    """
    if not folders:
        raise IsthmusError("report: no result folder given: name at least one")
    findings = read_folders(folders)
    target = Path(folders[0]) / "report.html" if out is None else Path(out)
    store.write(target, _page(findings))
    return target


def announced(study: Mapping[str, Any]) -> str:
    """A page about a study of which no round is known yet.

    Arguments:
        study: as far as it is known.
    """
    rounds = [int(each["rounds"]) for each in study.get("methods", []) if "rounds" in each]
    note = "<p class=verdict>No round has been evaluated yet.</p>"
    known = facts(study, study.get("seeds") or (), f"at most {max(rounds)}" if rounds else "")
    return page.document(title([study]), note + known, [], [])


def _page(findings: Findings) -> str:
    name = title(folder.results.study for folder in findings.folders)
    sections = [
        ("results", "Results", how_methods_did(findings)),
        ("parties", "Parties", who_holds_what(findings)),
        ("curves", "Learning curves", round_by_round(findings)),
        ("places", "Embeddings", where_items_stand(findings)),
        ("made", "Graphs made", what_was_made(findings.graphs)),
        ("traffic", "Traffic", _traffic(findings)),
        ("ledger", "Who saw what", who_saw_what(findings)),
        ("privacy", "Privacy", what_noise_spent(findings)),
        ("audits", "Audits", what_attacks_found(findings.audits)),
        ("reproduce", "Reproducibility", _reproduce(findings)),
    ]
    made = sorted({f"Isthmus {s.results.isthmus}, results of {s.results.created}" for s in findings.folders})
    return page.document(name, headline(findings), [section for section in sections if section[2]], made)


def _traffic(findings: Findings) -> str:
    by_round = _bytes_by_round(findings)
    flows = {each: _flow(findings, each, rows) for each, rows in by_round.items() if not findings.is_unfinished(each)}
    if not flows:
        return ""
    rows = []
    for method, flow in flows.items():
        cells = "".join(f"<td class=n>{page.amount(value)}</td>" for each in flow.values() for value in each)
        rows.append(f"<tr>{row_head(findings, method)}{cells}</tr>")
    over = "".join(f"<th scope=colgroup colspan=2>{name}</th>" for name in flows[next(iter(flows))])
    names = (page.head("sent", "n") + page.head("received", "n")) * 3
    note = "Bytes that left the parties (sent) and came to them (received): all parties together, mean over seeds."
    if findings.set_up.num_rows:
        before = sum(findings.set_up["sent"].to_pylist())
        note += (
            f" Before any method the parties of a federation sent {page.amount(before)} to settle what they have alike."
        )
    pooled = [name for name in findings.methods if findings.reference(name) == POOLED]
    if pooled:
        note += (
            f" In {wording.join_words(pooled)} one party holds all data: what pooling them would move is not counted."
        )
    figures = []
    for span in ("Per round", "In all"):
        groups = [charts.Bars(method, findings.style(method), flow[span]) for method, flow in flows.items()]
        figures.append(f"<figure>{charts.bar_chart(span, ('sent', 'received'), groups, wording.format_bytes)}</figure>")
    table = page.table(f"<tr><td></td>{over}</tr><tr>{page.head('Method')}{names}</tr>", "".join(rows), note)
    return f"<div class=pair>{''.join(figures)}</div>{table}"


def _bytes_by_round(findings: Findings) -> dict[str, list[dict[str, Any]]]:
    sums = findings.ledger.group_by(["method", "seed", "round"], use_threads=False)
    rows: dict[str, list[dict[str, Any]]] = {method: [] for method in findings.methods}
    for row in sums.aggregate([("sent", "sum"), ("received", "sum")]).to_pylist():
        rows.setdefault(row["method"], []).append(row)
    return {method: rows[method] for method in findings.methods}


def _flow(findings: Findings, method: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """Bytes sent and received: at set-up, per round and in all, each as a mean over the method's runs."""
    runs = findings.finished_runs(method)
    seeds = len(runs) or 1
    rounds = sum(run.rounds for run in runs) or len({(row["seed"], row["round"]) for row in rows if row["round"]}) or 1

    def total(of: Callable[[int], bool], share: int) -> tuple[float, float]:
        chosen = [row for row in rows if of(row["round"])]
        return sum(row["sent_sum"] for row in chosen) / share, sum(row["received_sum"] for row in chosen) / share

    return {
        "Set-up": total(lambda round_: round_ == 0, seeds),
        "Per round": total(lambda round_: round_ > 0, rounds),
        "In all": total(lambda _: True, seeds),
    }


def _reproduce(findings: Findings) -> str:
    folders = findings.folders
    packages = list(dict.fromkeys(name for folder in folders for name in folder.results.versions))
    rows = [(name, [str(folder.results.versions.get(name, "–")) for folder in folders]) for name in packages]
    rows.append(("results of", [folder.results.created for folder in folders]))
    rows.append(("seeds", [folder.results.seeds for folder in folders]))
    body = "".join(
        f"<tr><th scope=row>{escape(name)}</th>{''.join(f'<td class=name>{escape(each)}</td>' for each in values)}</tr>"
        for name, values in rows
    )
    head = f"<tr>{page.head('')}{''.join(page.head(folder.name, 'name') for folder in folders)}</tr>"
    studies = "".join(
        f"<h3>{escape(folder.name)}/study.toml</h3><pre><code>{escape(folder.toml)}</code></pre>" for folder in folders
    )
    return (
        f"{page.table(head, body, 'The same study with the same versions and seeds gives the same figures.')}{studies}"
    )
