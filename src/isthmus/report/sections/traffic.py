"""The report's section on traffic: the bytes of each method, at set-up, per round and in all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from isthmus.report import charts, page, wording
from isthmus.report.loading import Findings


def section(findings: Findings, whose: str = "all parties together") -> str:
    """The section's HTML; empty while no run has finished."""
    by_round = _bytes_by_round(findings)
    flows = {each: _flow(findings, each, rows) for each, rows in by_round.items() if not findings.is_unfinished(each)}
    if not flows:
        return ""
    rows = []
    for method, flow in flows.items():
        values = (page.bytes_html(value) for pair in flow.values() for value in pair)
        rows.append(page.row(page.method_head(findings, method), values))
    over = "".join(f"<th scope=colgroup colspan=2>{name}</th>" for name in flows[next(iter(flows))])
    names = page.heads(("sent", "received") * 3, "n")
    note = f"Bytes sent and received by {whose}, mean over seeds."
    if findings.set_up.num_rows:
        before = wording.format_bytes(sum(findings.set_up["sent"].to_pylist()))
        note += f" Before any method the parties of a federation sent {before} to agree on the form of their data."
    pooled = [name for name in findings.methods if findings.reference(name) == wording.POOLED]
    if pooled:
        names_of = wording.join_words(pooled)
        note += f" In {names_of} one party holds all data: what pooling them would move is not counted."
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
        rows[row["method"]].append(row)
    return rows


def _flow(findings: Findings, method: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """Bytes sent and received, each as a mean over the method's runs."""
    runs = findings.finished_runs(method)
    seeds = len(runs) or 1
    rounds = sum(run.rounds for run in runs) or len({(row["seed"], row["round"]) for row in rows if row["round"]}) or 1

    def total(counts: Callable[[int], bool], share: int) -> tuple[float, float]:
        chosen = [row for row in rows if counts(row["round"])]
        return sum(row["sent_sum"] for row in chosen) / share, sum(row["received_sum"] for row in chosen) / share

    return {
        "Set-up": total(lambda round_: round_ == 0, seeds),
        "Per round": total(lambda round_: round_ > 0, rounds),
        "In all": total(lambda _: True, seeds),
    }
