"""The page of a dossier, made from its content and from nothing else: the same content gives the same page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from isthmus.report import page, wording
from isthmus.report.page import bytes_html

Content = Mapping[str, Any]

KINDS = {
    "study": "a study in one process",
    "federation": "a federation, as its server knows it",
    "party": "one party alone",
}
HASH = '<code id="sha256">{}</code>'
"""How the page states the hash of the content that it was made from."""


def render(content: Content, sha256: str) -> str:
    """Return the page of a dossier.

    Arguments:
        sha256: of the file with the content.
    """
    sections = [
        ("purpose", "Purpose", _purpose(content)),
        ("identity", "What it is about", _identity(content)),
        ("counted", "Who counted", _counted(content)),
        ("sent", "What was sent to whom", _sent(content)),
        ("protections", "Protections and limits", _protections(content)),
        ("privacy", "Privacy account", _privacy(content)),
        ("audits", "Audits", _audits(content)),
        ("metrics", "Metrics", _metrics(content)),
        ("checks", "Questions of output checking", _checks(content)),
        ("limits", "Known limits", _list(content["known_limits"])),
        ("files", "Files", _files(content)),
    ]
    lead = f"<p class=verdict>Dossier of {escape(_kind(content))}, made on {escape(content['made'])}.</p>"
    lead += f"<p class=caution>{_signature(content)} SHA-256 of its JSON: {HASH.format(escape(sha256))}</p>"
    title = f"Dossier: {content['title']}"
    return page.document(title, lead, [each for each in sections if each[2]], [f"Isthmus {content['isthmus']}"])


def _kind(content: Content) -> str:
    return KINDS[content["of"]] + (f": {content['party']}" if content["party"] else "")


def _signature(content: Content) -> str:
    by = content["signed_by"]
    if by is None:
        return "It is not signed, for no kit was at hand: nothing shows who made it."
    return escape(f"Signed by {by['subject']} ({by['role']} of {by['federation']}); isthmus dossier verify checks it.")


def _purpose(content: Content) -> str:
    text = content["purpose"] or "No purpose was stated, neither by the study nor by who made this document."
    return f"<p>{escape(text)}</p>"


def _identity(content: Content) -> str:
    study, code = content["study"], content["code"]
    rows = [(name.capitalize(), _text(value)) for name, value in study["what"].items() if value]
    rows += [("Parties", ", ".join(study["parties"])), ("Hash of the study", study["hash"])]
    rows += [("Results of", study["results_of"])] if study["results_of"] else []
    rows.append(("Isthmus", code["isthmus"]))
    rows.append(("Packages", ", ".join(f"{name} {version}" for name, version in code["versions"].items())))
    own = [
        f"{name}: {each.get('package') or 'no package'}, source {each['source']}" for name, each in code["own"].items()
    ]
    rows.append(("Code of its own", "; ".join(own) or "none"))
    rows += [(f"Data, {each['what']}", each["digest"]) for each in content["data"]["fingerprints"]]
    if "approval" in content:
        approval = content["approval"]
        how = {0: "by a standing approval", 1: "once"}.get(approval["times"], f"{approval['times']} times")
        rows.append(("Approved here", f"{approval['hash']}, {how}"))
    return _pairs(rows, content["data"]["note"]) + _approved(content)


def _approved(content: Content) -> str:
    text = content.get("approval", {}).get("text")
    return page.folded("What was approved", _list(text)) if text else ""


def _counted(content: Content) -> str:
    rows = []
    for run in content["counted"]:
        name = run["method"] if run["seed"] is None else f"{run['method']}, seed {run['seed']}"
        for span in run["spans"]:
            when = "set-up" if span["last"] == 0 else f"rounds {span['first']} to {span['last']}"
            missing = "; ".join(f"{party}: {why}" for party, why in span["missing"].items())
            rows.append([name, when, ", ".join(span["counted"]) or "nobody", missing or "nobody"])
        if not run["spans"]:
            answers = f"answered {run['answers']:,} calls" if "answers" in run else "everybody, in every round"
            rows.append([name, "", answers, ""])
        if run["stopped"]:
            rows.append([name, "stopped", run["stopped"], ""])
    failures = content["sent"]["failures"]
    note = f"A party counts in a round in which it answered every call. Calls without an answer: {failures:,}."
    return _table(("Run", "When", "Counted", "Missing"), rows, note)


def _sent(content: Content) -> str:
    rows = ""
    for each in content["sent"]["actions"]:
        few, most = each["parties"]
        over = f"{few:,}" if few == most else f"{few:,} to {most:,}"
        sizes = [bytes_html(each["sent"]), "–" if each["received"] is None else bytes_html(each["received"])]
        what = f"{escape(each['action'])} <small>{escape(each['method'])}, {escape(each['verb'])}</small>"
        seen = f"{escape(each['eyes'])} <small>protection: {escape(each['protection'])}</small>"
        rows += page.row(f"<th scope=row>{what}</th><td>{seen}</td>", [f"{each['calls']:,}", over, *sizes])
        rows += f"<tr><td class=said colspan=6><span>{escape(each['said'])}</span></td></tr>"
    head = (
        f"<tr>{page.heads(('Action', 'Who sees it'))}{page.heads(('Calls', 'Parties', 'Sent', 'Received'), 'n')}</tr>"
    )
    table = (
        page.table(head, rows, "Calls and bytes of all runs together.") if rows else "<p>Nothing left any party.</p>"
    )
    return table + _sides(content["sent"]["sides"]) + _refused(content)


def _sides(sides: Content) -> str:
    found = "<p><b>Both sides agree.</b></p>" if sides["compared"] else ""
    if sides["differences"]:
        found = f"<h3>Differences</h3>{_list(sides['differences'])}"
    own = sides.get("own")
    more = ""
    if own:
        more = (
            f"This party helped to open {own['sums_opened']:,} sums, the smallest over {own['smallest_sum']} parties; "
        )
        more = f"<p>{more}{own['sent_again']:,} parts left again under other masks.</p>"
    heads = [[each["run"], each["party"], f"{each['entries']:,}", each["hash"]] for each in sides.get("heads", [])]
    names = ("After", "Party", "Lines", "Hash of the last one")
    table = _table(names, heads, "Heads of the parties' own ledgers, as they sent them.") if heads else ""
    return f"<p class=note>{escape(sides['note'])}</p>{found}{more}{table}"


def _refused(content: Content) -> str:
    lines = [f"{each['why']} (times: {each['times']:,})" for each in content.get("refused", [])]
    return f"<h3>Refused</h3>{_list(lines)}" if lines else ""


def _protections(content: Content) -> str:
    of = [(f"protect.{name}", _text(value)) for name, value in content["protections"].items()]
    limits = [(f"limits.{name}", _text(value)) for name, value in content["limits"].items()]
    if not of and not limits:
        return "<p>None: one process held all parties, and limits are those of a federation's parties.</p>"
    note = "The limits are those of this party when the last run began." if limits else (
        "Limits are each party's own: they are in its own dossier."
    )  # fmt: skip
    return _pairs([*of, *limits], note)


def _privacy(content: Content) -> str:
    rows = []
    for each in content["privacy"]:
        shown = each.get("shown", {}).get("said", "")
        rows.append([f"{each['method']}, seed {each['seed']}", "; ".join(filter(None, (each["said"], shown)))])
    return _table(("Run", "What it spends"), rows, "Of all that left the parties in this run.") if rows else ""


def _audits(content: Content) -> str:
    if not content["audits"]:
        whole = "Findings of audits are in the dossier on all parties, if any was run."
        return f"<p>{whole if content['party'] else 'No audit was run.'}</p>"
    text = ""
    for each in content["audits"]:
        text += page.heading(f"{each['method']}, seed {each['seed']}: {each['audit']['name']}", "h3")
        rows = [[title, *cells] for section in each["sections"] for title, cells in section]
        note = "; ".join([*each["notes"], wording.describe_audit(each["audit"])])
        text += _table((each["corner"], *each["columns"]), rows, f"{note}.")
    return text


def _metrics(content: Content) -> str:
    rows = []
    for each in content["metrics"]:
        metric, interval, worst = each["metric"], "–", "–"
        if each["interval"]:
            low, high = (wording.format_number(value, metric) for value in each["interval"])
            interval = f"{low} to {high} <small>{escape(each['interval_of'])}</small>"
        last = each.get("worst") or ({"mean": each["own"], "parties": ["this party"]} if "own" in each else None)
        if last:
            worst = f"{wording.format_number(last['mean'], metric)} <small>{escape(', '.join(last['parties']))}</small>"
        name = f"<td>{escape(each['title'] + wording.unit(metric))}</td>"
        mean = wording.mean_and_std(each["mean"], each["std"], metric)
        rows.append(page.row(page.row_head(each["method"]) + name, [mean, interval, worst]))
    if not rows:
        return "<p>No metric is at hand.</p>"
    last_name = "Own" if content["party"] else "Worst party"
    heads = page.heads(("Mean ± std", "Interval of 95 %", last_name), "n")
    head = f"<tr>{page.heads(('Method', 'Metric'))}{heads}</tr>"
    return page.table(head, "".join(rows), "Of test items. Items of a graph are not independent, as intervals assume.")


def _checks(content: Content) -> str:
    marks = {True: "look at it", False: "", None: "not known"}
    rows = [[each["question"], each["answer"], marks[each["look"]]] for each in content["checks"]]
    return _table(("Question", "Answer", ""), rows, "After the questions of output checking (SATRE, safe outputs).")


def _files(content: Content) -> str:
    rows = []
    for each in [*content["files"], *content["models"]]:
        about = f"{each['what']} of {each['owner']}, {each['numbers']:,} numbers" if "owner" in each else each["what"]
        digest = each.get("sha256") or each.get("study") or f"line {each['entries']:,}: {each['hash']}"
        rows.append([each["file"], about, digest])
    return _table(("File", "What", "SHA-256"), rows, "isthmus dossier verify compares those that are at hand.")


def _table(names: Sequence[str], rows: Iterable[Sequence[str]], note: str) -> str:
    body = "".join(
        f"<tr>{page.row_head(row[0])}{''.join(f'<td class=name>{escape(each)}</td>' for each in row[1:])}</tr>"
        for row in rows
    )
    return page.table(f"<tr>{page.heads(names)}</tr>", body, note)


def _pairs(rows: Iterable[tuple[str, str]], note: str) -> str:
    body = "".join(f"<tr>{page.row_head(name)}<td class=name>{escape(value)}</td></tr>" for name, value in rows)
    return page.table("", body, note)


def _list(items: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(each)}</li>' for each in items)}</ul>"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    if isinstance(value, Mapping):
        return wording.describe(value)
    return "not limited" if value is None else str(value)
