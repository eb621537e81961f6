"""What a dossier of a result folder says: of a study, of a federation, or of one party alone.

The content is plain values; the page is made from it. A party's dossier has the party's own rows, its own models and
what all parties share, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from isthmus import result_files, store
from isthmus.data.description import CutDescription
from isthmus.dossier.checking import Facts, known_limits, output_checks
from isthmus.errors import IsthmusError, did_you_mean
from isthmus.paired import interval
from isthmus.report import wording
from isthmus.report.headline import title
from isthmus.report.ledger_text import describe_action, parse_fields
from isthmus.report.loading import ResultFolder, ResultsFile, RunSummary, read_folder, read_results
from isthmus.report.sections import ledger
from isthmus.result_files import HISTORY, LEDGER, RESULTS, SET_UP, STUDY, AuditRecord
from isthmus.study.model_card import interval_of
from isthmus.version import VERSION

FORMAT = 1
"""Format number of a dossier. Raise it when older ones can no longer be read."""
SEEDS = 3
"""Seeds from which on an interval is over seeds."""

Content = dict[str, Any]


def content_of_run(folder: Path, made: str, *, party: str = "", purpose: str = "") -> Content:
    """Return the dossier of a result folder.

    Arguments:
        made: the day on which it is made; nothing else in it depends on the clock.
        party: the party that it is for; empty for a dossier on all.
        purpose: what the run was for, if the study does not say it.
    """
    shown, whole = read_folder(folder), read_results(folder)  # of a grid, the report leaves out what was not chosen
    tables = {name: result_files.read_table(folder, name, optional=name == SET_UP) for name in (LEDGER, SET_UP)}
    known = _parties(whole, tables[LEDGER])
    if party and party not in known:
        raise IsthmusError(f"--party: the results have no party '{party}': {did_you_mean(party, known)}")
    study = whole.study
    protect, apart = study.get("protect"), bool(tables[SET_UP].num_rows)
    cuts = [_own(cut.description, party) for cut in whole.cuts]
    actions = [*_actions(tables[SET_UP], whole, party), *_actions(tables[LEDGER], whole, party)]
    models = list(_models(folder, whole.runs, party))
    privacy = [each for run in whole.runs for each in privacy_of(run, shown.audits)]
    metrics = list(_metrics(shown, party))
    more = [name for name in ("places.parquet", "graphs") if (folder / name).exists()]
    content: Content = {
        **head("party" if party else "federation" if apart else "study", made, party),
        "title": title([study]),
        "purpose": stated_purpose(str(study.get("purpose") or ""), purpose),
        "study": {
            "hash": store.hash_file(folder / STUDY),
            "what": _study_in_words(study),
            "parties": known,
            "results_of": whole.created,
        },
        "code": {"isthmus": whole.isthmus, "versions": whole.versions, "own": whole.code},
        "data": _data(whole, apart, party),
        "files": _files(folder, party),
        "models": models,
        "counted": [_turnout(run, party) for run in whole.runs],
        "sent": {
            "actions": actions,
            "failures": _failures([tables[SET_UP], tables[LEDGER]], party),
            "sides": _sides(whole.runs, apart, party),
        },
        "protections": dict(protect or {}) if apart else {},
        "limits": {},
        "privacy": privacy,
        "audits": [] if party else [_audit(each) for each in shown.audits],
        "metrics": metrics,
    }
    return finished(content, Facts(cuts, len(known), apart, more, bool(shown.audits)))


def head(of: str, made: str, party: str) -> Content:
    """The beginning of every dossier; `signed_by` is filled in by who signs."""
    return {"format": FORMAT, "isthmus": VERSION, "made": made, "of": of, "party": party, "signed_by": None}


def stated_purpose(of_study: str, given: str) -> str:
    """The purpose that the study states, or who makes the dossier; a person may have approved the study's."""
    if of_study and given not in ("", of_study):
        raise IsthmusError(f"--purpose: the study states another one, '{of_study}': leave it out")
    return of_study or given


def finished(content: Content, facts: Facts) -> Content:
    """The content with what follows from it: the questions of output checking, and the known limits."""
    return {**content, "checks": output_checks(content, facts), "known_limits": known_limits(content, facts)}


def privacy_of(run: RunSummary, audits: Sequence[AuditRecord] = ()) -> list[Content]:
    """What a run spends of privacy, an entry for each protected unit; nothing else reads the accounts of results.

    Arguments:
        audits: of the same study; what they show of an epsilon stands beside it.
    """
    where = {"method": run.method, "seed": run.seed}
    if not run.privacy:
        return [{**where, "unit": "", "epsilon": None, "delta": None, "said": "no noise was added"}]
    found = []
    for account in (run.privacy, *run.privacy.get("others", ())):
        spent = min((account["basic"], account["advanced"]), key=lambda each: float(each["epsilon"]))
        entry = {**where, "unit": str(account["unit"]), "epsilon": spent["epsilon"], "delta": spent["delta"]}
        said = wording.describe_privacy({**account, "others": ()})
        bound = result_files.shown_epsilon(audits, run.method, str(account.get("of", "")))
        shown = {} if bound is None else {"shown": {"epsilon": bound.shown, "said": bound.said}}
        found.append({**entry, "releases": account.get("releases", []), "said": said, **shown})
    return found


def action_row(stage: str, entry: Mapping[str, Any], nouns: Mapping[str, str]) -> Content:
    """What an action sent to whom, with the sentence that the report has for it.

    Arguments:
        entry: as `report.sections.ledger.entries` gives it; `received_sum` is None where it is not known.
        nouns: what the method's fields are.
    """
    answers = [count for count in entry["answers"] if count]
    return {
        "method": stage,
        "action": entry["action"] or "",
        "verb": entry["verb"] or "",
        "eyes": entry["eyes"] or "not recorded",
        "protection": entry["protection"] or "none",
        "fields": list(parse_fields(entry["fields_distinct"])),
        "calls": len(entry["answers"]),
        "parties": [min(answers, default=0), max(answers, default=0)],
        "sent": entry["sent_sum"],
        "received": entry["received_sum"],
        "said": describe_action(ledger.summary_of(entry, nouns)),
    }


def model_entry(folder: Path, path: Path, what: str, run: Mapping[str, Any], owner: str) -> Content:
    """A file of weights: its hash, whose it is, and how many numbers it has."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118 - it is no mapping
    except (SafetensorError, OSError) as error:
        raise IsthmusError(f"cannot read {path}: {error}; restore the file, or run the study again") from error
    name = path.relative_to(folder).as_posix()
    hashed = {"file": name, "sha256": store.hash_file(path)}
    return {**hashed, "what": what, **run, "owner": owner, "numbers": sum(map(math.prod, shapes))}


def _actions(table: Any, results: ResultsFile, party: str) -> Iterator[Content]:
    for method, found in ledger.entries(table, party).items():
        about = results.methods.get(method)
        yield from (action_row(method, entry, about.nouns if about else {}) for entry in found)


def _parties(results: ResultsFile, table: Any) -> list[str]:
    """Every party of the results."""
    held = {each.name for cut in results.cuts for each in cut.description.parties}
    scored = {party for run in results.runs for party in run.parties}
    pooled = {name for name, about in results.methods.items() if about.role == "pooled"}
    pairs = table.group_by(["method", "party"], use_threads=False).aggregate([]).to_pylist()
    asked = {each["party"] for each in pairs if each["party"] and each["method"] not in pooled}
    return sorted(held | scored | asked, key=wording.natural_key)


def _own(cut: CutDescription, party: str) -> CutDescription:
    """A cut, or of a party's dossier the party's part of it."""
    from dataclasses import replace

    if not party:
        return cut
    held = tuple(each for each in cut.parties if each.name == party)
    nodes, edges = sum(each.nodes for each in held), sum(each.edges for each in held)
    return replace(cut, parties=held, nodes=nodes, edges=edges, cross=0, emd=None)


def _study_in_words(study: Mapping[str, Any]) -> Content:
    """The parts of a study, without folders of the machine that ran it."""
    data = {key: value for key, value in (study.get("data") or {}).items() if key not in ("path", "key")}
    return {
        "data": wording.data_name(study.get("data")) if "path" in (study.get("data") or {}) else wording.describe(data),
        "task": wording.describe(study.get("task") or ""),
        "partition": wording.describe(study.get("partition") or ""),
        "model": wording.describe(study.get("model")),
        "seeds": list(study.get("seeds") or ()),
        "methods": [wording.describe(each) for each in study.get("methods", [])],
    }


def _data(results: ResultsFile, apart: bool, party: str) -> Content:
    if apart:
        return {"fingerprints": [], "note": "Each party has a fingerprint of its own data only, in its own dossier."}
    if party or results.fingerprint is None:
        none = "No fingerprint of this party's data alone was taken: they lay in one place with those of all parties."
        return {"fingerprints": [], "note": none if party else "The results have no fingerprint of the data."}
    seed, digest = results.fingerprint.seed, results.fingerprint.digest
    note = "Of all parties' data together, with the cut of this seed."
    return {"fingerprints": [{"what": f"seed {seed}", "digest": digest}], "note": note}


def _files(folder: Path, party: str) -> list[Content]:
    names = {STUDY: "study", RESULTS: "results", HISTORY: "metrics by round", LEDGER: "ledger", SET_UP: "ledger"}
    there = {name: what for name, what in names.items() if (folder / name).exists()}
    there |= dict.fromkeys([] if party else result_files.audits_in(folder), "audit")
    return [{"file": name, "sha256": store.hash_file(folder / name), "what": what} for name, what in there.items()]


def _models(folder: Path, runs: Sequence[RunSummary], party: str) -> Iterator[Content]:
    """The models that lie in the folder; for a party, those that it uses."""
    for run in runs:
        of, base = {"method": run.method, "seed": run.seed}, folder / "weights" / f"{run.method}-{run.seed}"
        found = [(base.with_name(f"{base.name}.safetensors"), "model", "all parties")]
        found.append((base.with_name(f"{base.name}.context.safetensors"), "context", "all parties"))
        groups = {group: base / "groups" / f"{group}.safetensors" for group in sorted(run.groups)}
        mine = [group for group in groups if not party or party in run.groups[group]]
        found += [(groups[group], "model", f"group {group}") for group in mine]
        owners = {path.stem: path for path in sorted(base.glob("*.safetensors"))}
        found += [(path, "model", owner) for owner, path in owners.items() if party in ("", owner)]
        graph = result_files.graph_folder(folder, run.method, run.seed)
        found += [(path, "graph", "all parties") for path in sorted(graph.glob("*.safetensors"))]
        yield from (model_entry(folder, path, what, of, owner) for path, what, owner in found if path.exists())


def _turnout(run: RunSummary, party: str) -> Content:
    """Who counted in which rounds; for a party, when it did."""
    spans: list[Content] = []
    for span in run.turnout:
        own = [each for each in span.counted if party in ("", each)]
        missing = {each: why for each, why in span.missing.items() if party in ("", each)}
        if spans and (spans[-1]["counted"], spans[-1]["missing"]) == (own, missing):
            spans[-1]["last"] = span.last
        else:
            spans.append({"first": span.first, "last": span.last, "counted": own, "missing": missing})
    return {"method": run.method, "seed": run.seed, "rounds": run.rounds, "stopped": run.stopped, "spans": spans}


def _failures(tables: Sequence[Any], party: str) -> int:
    """How often a party gave no answer."""
    statuses = [
        (each["party"], each["status"]) for table in tables for each in table.select(["party", "status"]).to_pylist()
    ]
    return sum(status != "answered" for name, status in statuses if party in ("", name))


def _sides(runs: Sequence[RunSummary], apart: bool, party: str) -> Content:
    """How the two sides of a federation's ledger agree."""
    if not apart:
        return {"compared": False, "note": "One process ran all parties, so there is one ledger.", "differences": []}
    known = [run.reconciled for run in runs if run.reconciled is not None]
    lines = [line for each in known for line in each.differences]
    if party:
        lines = [line for line in lines if f"party '{party}'" in line]
    heads = [
        {"run": f"{run.method}, seed {run.seed}", "party": name, "entries": head.entries, "hash": head.hash}
        for run in runs
        for name, head in (run.reconciled.heads if run.reconciled else {}).items()
        if party in ("", name)
    ]
    note = "The server compared its ledger with what each party's own says of it, at the end of each run."
    return {"compared": bool(known), "note": note, "differences": lines, "heads": heads}


def _audit(record: Any) -> Content:
    keys = ("method", "seed", "audit", "corner", "columns", "sections", "notes")
    return {key: getattr(record, key) for key in keys}


def _metrics(folder: ResultFolder, party: str) -> Iterator[Content]:
    """Test metrics of each method; for a party its own beside those of all."""
    results = folder.results
    cuts = {seed: cut.description for cut in results.cuts for seed in cut.seeds}
    for score in results.summary:
        if wording.split(score.metric) != "test":
            continue
        runs = [run for run in results.runs if run.method == score.method and score.metric in run.metrics]
        values = [value for run in runs if (value := wording.finite(run.metrics[score.metric])) is not None]
        bounds, of = _interval(score.metric, values, None if party else cuts.get(runs[0].seed if runs else -1))
        row: Content = {
            "method": score.method, "metric": score.metric, "title": wording.metric_title(score.metric),
            "mean": wording.finite(score.mean), "std": wording.finite(score.std) if score.seeds > 1 else None,
            "seeds": score.seeds, "interval": bounds, "interval_of": of,
        }  # fmt: skip
        over = [run.over_parties[score.metric] for run in runs if score.metric in run.over_parties]
        worst = [value for each in over if (value := wording.finite(each.worst)) is not None]
        if worst and not party:
            items = [each.worst_items for each in over if each.worst_items is not None]
            names = sorted({each.worst_party for each in over}, key=wording.natural_key)
            row["worst"] = {"mean": fmean(worst), "parties": names, "items": min(items, default=None)}
        scored = [wording.finite(run.parties.get(party, {}).get(score.metric)) for run in runs]
        own = [value for value in scored if value is not None]
        yield {**row, "own": fmean(own)} if own else row


def _interval(metric: str, values: Sequence[float], cut: CutDescription | None) -> tuple[list[float] | None, str]:
    """An interval of 95 % for the mean of these seeds, or of one seed over its test items; and which of both it is."""
    half = interval(values) if len(values) >= SEEDS else None
    if half is not None:
        low, high = fmean(values) - half, fmean(values) + half
        return [max(0.0, low), min(1.0, high)] if wording.percent(metric) else [low, high], "over seeds (Student's t)"
    found = interval_of(metric, values[0], cut) if len(values) == 1 else None
    return (None, "") if found is None else ([max(0.0, found[0]), min(1.0, found[1])], "over test items (Wilson)")
