"""The report's section on who saw what: the ledger, action by action, in a table and in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from isthmus.report import page, wording
from isthmus.report.ledger_text import ActionSummary, Share, Span, describe_action, merge_spans, parse_fields
from isthmus.report.loading import Findings

_EXPOSURE = {
    "server sees each answer": "each",
    "server sees the sum": "sum",
    "parties see the sum": "parties",
    "the addressed party": "parties",
}
"""The style of each kind of eyes; an unknown kind gets the widest one."""

_KEYS = ["method", "action", "verb", "eyes", "protection"]
"""Columns that distinguish actions."""
_MAX_FAILURES = 100


def section(findings: Findings) -> str:
    """The section's HTML."""
    bodies = []
    if before := _entries(findings.set_up).get("set-up"):
        rows = [_entry_rows(entry, len(findings.folders), {}) for entry in before]
        bodies.append(_body("Before any method: the set-up", "", rows))
    entries = _entries(findings.ledger)
    for method in findings.methods:
        if findings.is_unfinished(method):
            bodies.append(
                _body(method, f"s{findings.style(method) % 8}", [_text_row("Shown once a run has finished.")])
            )
            continue
        runs = len(findings.finished_runs(method)) or 1
        rows = [_entry_rows(entry, runs, findings.about[method].nouns) for entry in entries.get(method, [])]
        if findings.reference(method) == wording.POOLED:
            pooled = "All data were pooled before, which the ledger does not record. Here one party holds all of them."
            rows.insert(0, _text_row(pooled))
        elif not rows:
            rows = [_text_row("Nothing left any party.")]
        if privacy := findings.privacy(method):
            rows.append(_text_row(f"What leaves follows from data in which {wording.describe_privacy(privacy)}."))
        bodies.append(_body(method, f"s{findings.style(method) % 8}", rows))
    names = ("Action", "Verb", "Who sees it", "What left the party", "Protection")
    counts = ("Calls", "Parties", "Sent", "Received")
    head = f"<tr>{page.heads(names)}{page.heads(counts, 'n')}</tr>"
    note = "Calls and bytes are those of one run (mean over seeds), all parties together."
    return page.table(head, "".join(bodies), note, grouped=True) + _failures(findings)


def _body(title: str, style: str, rows: Sequence[str]) -> str:
    head = f"<tr><th class=method scope=rowgroup colspan=9><i></i>{escape(title)}</th></tr>"
    return f'<tbody class="{style}">{head}{"".join(rows)}</tbody>'


def _entries(ledger: Any) -> dict[str, list[dict[str, Any]]]:
    """The actions of each method: how many parties answered each call, and the share of each party."""
    import pyarrow.compute as pc

    rows = ledger.group_by(_KEYS, use_threads=False).aggregate(
        [("fields", "distinct"), ("party", "distinct"), ("sent", "sum"), ("received", "sum")]
    )
    answered = pc.cast(pc.equal(ledger["status"], "answered"), "int64")
    calls = ledger.append_column("answered", answered).group_by([*_KEYS, "seed", "round", "call"])
    answers: dict[tuple[str, ...], list[int]] = {}
    for call in calls.aggregate([("answered", "sum")]).to_pylist():
        answers.setdefault(_key(call), []).append(call["answered_sum"] or 0)
    shares = _shares(ledger.filter(pc.equal(ledger["status"], "answered")))
    entries: dict[str, list[dict[str, Any]]] = {}
    for row in rows.to_pylist():
        row |= {"answers": answers[_key(row)], "shares": shares.get(_key(row), {})}
        entries.setdefault(row["method"], []).append(row)
    return entries


def _shares(answered: Any) -> dict[tuple[str, ...], dict[str, Share]]:
    """By action and party: in how many calls of a run it answered, and with how many rows."""
    each = answered.group_by([*_KEYS, "party", "seed"], use_threads=False)
    found = each.aggregate([("call", "count"), ("rows", "min"), ("rows", "max")]).to_pylist()
    times: dict[tuple[str, ...], list[tuple[str, Span]]] = {}
    rows: dict[tuple[str, ...], list[tuple[str, Span]]] = {}
    for row in found:
        party, count = row["party"] or "unnamed", row["call_count"]
        times.setdefault(_key(row), []).append((party, (count, count)))
        rows.setdefault(_key(row), []).append((party, (row["rows_min"] or 0, row["rows_max"] or 0)))
    shares = {}
    for key, pairs in times.items():
        held = merge_spans(rows[key])
        shares[key] = {party: Share(span, held[party]) for party, span in merge_spans(pairs).items()}
    return shares


def _key(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(row[key] for key in _KEYS)


def _entry_rows(entry: Mapping[str, Any], runs: int, nouns: Mapping[str, str]) -> str:
    fields = parse_fields(entry["fields_distinct"])
    listed = escape(", ".join(_grouped(fields)) or "nothing")
    if fields:
        listed = f"<details><summary>{listed}</summary>{escape(_with_shapes(fields))}</details>"
    eyes, action = entry["eyes"] or "not recorded", entry["action"] or ""
    counts = [f"{len(entry['answers']) / runs:.4g}", str(len(entry["party_distinct"]))]
    counts += [page.bytes_html(entry[flow] / runs) for flow in ("sent_sum", "received_sum")]
    summary = ActionSummary(
        action,
        entry["eyes"] or "",
        entry["protection"] or "none",
        list(fields),
        entry["answers"],
        dict(sorted(entry["shares"].items(), key=lambda each: wording.natural_key(each[0]))),
        nouns,
    )
    return (
        f"<tr><th scope=row>{escape(action)}</th><td>{escape(entry['verb'] or '')}</td>"
        f'<td><span class="eyes {_EXPOSURE.get(eyes, "each")}">{escape(eyes)}</span></td>'
        f"<td class=fields>{listed}</td><td>{escape(entry['protection'] or 'none')}</td>"
        f"{''.join(f'<td class=n>{count}</td>' for count in counts)}</tr>"
        f"{_text_row(describe_action(summary))}"
    )


def _text_row(text: str) -> str:
    return f"<tr><td class=said colspan=9><span>{escape(text)}</span></td></tr>"


def _failures(findings: Findings) -> str:
    import pyarrow as pa
    import pyarrow.compute as pc

    ledger = pa.concat_tables([findings.set_up, findings.ledger])
    failed = ledger.filter(pc.not_equal(pc.fill_null(ledger["status"], "not recorded"), "answered"))
    if not failed.num_rows:
        text = f"Every party answered every time ({ledger.num_rows:,} answers)." if ledger.num_rows else ""
        return f"<p class=note>{text}</p>"
    rows = []
    for row in failed.slice(0, _MAX_FAILURES).to_pylist():
        cells = "".join(f"<td>{escape(str(row[key] or ''))}</td>" for key in ("action", "party", "status", "note"))
        rows.append(
            f"<tr><th scope=row>{escape(row['method'] or '')}</th><td class=n>{row['seed']}</td>"
            f"<td class=n>{row['round']}</td>{cells}</tr>"
        )
    names = ("Method", "Seed", "Round", "Action", "Party", "Status", "Note")
    head = f"<tr>{''.join(page.head(name, 'n' if name in ('Seed', 'Round') else '') for name in names)}</tr>"
    note = f"{failed.num_rows:,} of {ledger.num_rows:,} times a party gave no answer."
    if failed.num_rows > _MAX_FAILURES:
        note += f" The first {_MAX_FAILURES} are listed; all are in ledger.parquet."
    return f"<h3>Failures</h3>{page.table(head, ''.join(rows), note)}"


def _with_shapes(fields: Mapping[str, Sequence[str]]) -> str:
    """All fields with the first few shapes of each; a hundred parties may send a hundred different ones."""
    return ", ".join(
        name + ", ".join([*shapes[:3], *(["…"] if len(shapes) > 3 else [])]) for name, shapes in fields.items()
    )


def _grouped(fields: Iterable[str]) -> list[str]:
    """Fields, counted by the first part of their name.

    >>> _grouped(["weights/a", "weights/b", "count"])
    ['weights (2 fields)', 'count']
    """
    groups = Counter(name.partition("/")[0] for name in fields)
    weights = groups.pop("weight of", 0)
    listed = [f"{name} ({count} fields)" if count > 1 else name for name, count in groups.items()]
    return listed + ["how much each counts"] * bool(weights)
