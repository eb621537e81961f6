"""The report's section on who saw what: the ledger, action by action, in a table and in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from isthmus.report import page, svg, wording
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


_COUNTS = ("calls", "parties", "sent", "received")


class _Row(NamedTuple):
    """What left parties, without the counts: methods with equal rows are listed together.

    Attributes:
        cells: the first cells, as HTML; empty for a remark.
        said: a sentence.
    """

    action: str
    cells: str
    said: str


def section(findings: Findings, party: str = "") -> str:
    """The section's HTML: what several methods share once, and then what each has of its own; of one party if named."""
    bodies = []
    if before := entries(findings.set_up, party).get("set-up"):
        rows = [_entry_row(entry, len(findings.folders), {}) for entry in before]
        bodies.append(
            _body("Before any method: the set-up", [_row_html(findings, row, {"": counts}) for row, counts in rows])
        )
    found: dict[_Row, dict[str, str]] = {}
    actions = entries(findings.ledger, party)
    for method in findings.methods:
        for row, counts in _method_rows(findings, method, actions.get(method, [])):
            found.setdefault(row, {})[method] = counts
    groups: dict[tuple[str, ...], list[_Row]] = {}
    for row, counted in found.items():
        groups.setdefault(tuple(counted), []).append(row)
    for methods, own in sorted(groups.items(), key=lambda each: -len(each[0])):
        names = "".join(f"<span>{_name(findings, method)}</span>" for method in methods)
        texts = [_row_html(findings, row, found[row]) for row in own]
        shared = dict.fromkeys(
            row.action for row, of in found.items() if row.action and methods[0] in of and len(of) > 1
        )
        if len(methods) == 1 and shared:
            texts.append(_text_row(f"And, as above: {wording.join_words(list(shared))}."))
        bodies.append(_body(names, texts))
    head = f"<tr>{page.heads(('Action', 'Who sees it', 'What left the party'))}"
    head += f"{page.heads((each.capitalize() for each in _COUNTS), 'n')}</tr>"
    note = f"Calls and bytes are those of one run (mean over seeds), of {party or 'all parties together'}."
    return page.table(head, "".join(bodies), note, kind="flows ledger") + _failures(findings, party)


def _method_rows(findings: Findings, method: str, actions: Sequence[Mapping[str, Any]]) -> Iterator[tuple[_Row, str]]:
    """The rows of one method, and the counts of each."""
    if findings.is_unfinished(method):
        yield _Row("", "", "Shown once a run has finished."), ""
        return
    pooled = findings.reference(method) == wording.POOLED
    if pooled:
        text = "All data were pooled before, which the ledger does not record. Here one party holds all of them."
        yield _Row("", "", text), ""
    elif not actions:
        yield _Row("", "", "Nothing left any party."), ""
    runs = len(findings.finished_runs(method)) or 1
    for entry in actions:
        yield _entry_row(entry, runs, findings.about[method].nouns)
    if privacy := findings.privacy(method):
        yield _Row("", "", f"What leaves follows from data in which {wording.describe_privacy(privacy)}."), ""


def _body(title: str, rows: Sequence[str]) -> str:
    return f"<tbody><tr><th class=method scope=rowgroup colspan=7>{title}</th></tr>{''.join(rows)}</tbody>"


def _name(findings: Findings, method: str) -> str:
    return f'<b class="s{svg.slot(findings.style(method))}"><i></i>{escape(method)}</b>'


def _row_html(findings: Findings, row: _Row, counts: Mapping[str, str]) -> str:
    """A row with its sentence; counts that methods do not share follow in rows of their own."""
    said = _text_row(row.said)
    if not row.cells:
        return said
    if len(set(counts.values())) == 1:
        return f"<tr>{row.cells}{next(iter(counts.values()))}</tr>{said}"
    each = (f"<tr><td class=of colspan=3>{_name(findings, of)}</td>{own}</tr>" for of, own in counts.items())
    return f"<tr>{row.cells}<td colspan=4></td></tr>{said}{''.join(each)}"


def entries(ledger: Any, party: str) -> dict[str, list[dict[str, Any]]]:
    """By method its actions: how many parties answered each call, the share of each party, or of one, and the bytes.

    Arguments:
        ledger: a table of a result folder.
        party: whose rows alone are counted; empty for all.
    """
    import pyarrow.compute as pc

    own = _rows_of(ledger, party)
    rows = own.group_by(_KEYS, use_threads=False).aggregate(
        [("fields", "distinct"), ("party", "distinct"), ("sent", "sum"), ("received", "sum")]
    )
    answered = pc.cast(pc.equal(ledger["status"], "answered"), "int64")
    calls = ledger.append_column("answered", answered).group_by([*_KEYS, "seed", "round", "call"])
    answers: dict[tuple[str, ...], list[int]] = {}
    for call in calls.aggregate([("answered", "sum")]).to_pylist():
        answers.setdefault(_key(call), []).append(call["answered_sum"] or 0)
    shares = _shares(own.filter(pc.equal(own["status"], "answered")))
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows.to_pylist():
        row |= {"answers": answers[_key(row)], "shares": shares.get(_key(row), {})}
        found.setdefault(row["method"], []).append(row)
    return found


def _rows_of(ledger: Any, party: str) -> Any:
    import pyarrow.compute as pc

    return ledger.filter(pc.equal(ledger["party"], party)) if party else ledger


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


def summary_of(entry: Mapping[str, Any], nouns: Mapping[str, str]) -> ActionSummary:
    """One of `entries` as the sentences need it; `nouns` are the method's."""
    shares = dict(sorted(entry["shares"].items(), key=lambda each: wording.natural_key(each[0])))
    fields, eyes, protection = (
        parse_fields(entry["fields_distinct"]),
        entry["eyes"] or "",
        entry["protection"] or "none",
    )
    return ActionSummary(entry["action"] or "", eyes, protection, list(fields), entry["answers"], shares, nouns)


def _entry_row(entry: Mapping[str, Any], runs: int, nouns: Mapping[str, str]) -> tuple[_Row, str]:
    fields = parse_fields(entry["fields_distinct"])
    listed = escape(", ".join(_grouped(fields)) or "nothing")
    if fields:
        listed = f"<details><summary>{listed}</summary>{escape(_with_shapes(fields))}</details>"
    eyes, action, protection = entry["eyes"] or "not recorded", entry["action"] or "", entry["protection"] or "none"
    counts = [f"{len(entry['answers']) / runs:.4g}", str(len(entry["party_distinct"]))]
    counts += [page.bytes_html(entry[flow] / runs) for flow in ("sent_sum", "received_sum")]
    cells = (
        f"<th scope=row>{escape(action)} <small>{escape(entry['verb'] or '')}</small></th>"
        f'<td><span class="eyes {_EXPOSURE.get(eyes, "each")}">{escape(eyes)}</span> '
        f"<small>protection: {escape(protection)}</small></td><td class=fields>{listed}</td>"
    )
    numbers = "".join(f"<td class=n data-of={of}>{count}</td>" for of, count in zip(_COUNTS, counts, strict=True))
    return _Row(action, cells, describe_action(summary_of(entry, nouns))), numbers


def _text_row(text: str) -> str:
    return f"<tr><td class=said colspan=7><span>{escape(text)}</span></td></tr>"


def _failures(findings: Findings, party: str) -> str:
    import pyarrow as pa
    import pyarrow.compute as pc

    ledger = _rows_of(pa.concat_tables([findings.set_up, findings.ledger]), party)
    failed = ledger.filter(pc.not_equal(pc.fill_null(ledger["status"], "not recorded"), "answered"))
    if not failed.num_rows:
        text = f"{party or 'Every party'} answered every time ({ledger.num_rows:,} answers)." if ledger.num_rows else ""
        return f"<p class=note>{escape(text)}</p>"
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
