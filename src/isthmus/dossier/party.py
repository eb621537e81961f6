"""A party's own dossier of a federation, made offline from its kit: its ledger, its approvals, its models.

With the result folder at hand, which the administrator hands out, it also compares both sides of the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isthmus import result_files
from isthmus.deploy.approval import Approvals, Proposal, describe_proposal
from isthmus.deploy.logs import printable
from isthmus.deploy.party_ledger import FILE as LEDGER_FILE
from isthmus.deploy.party_ledger import Line, Totals, check_head, read_ledger
from isthmus.deploy.reconciling import differences, of_party, of_server
from isthmus.dossier.checking import Facts
from isthmus.dossier.contents import Content, action_row, content_of_run, finished, head, model_entry, stated_purpose
from isthmus.errors import IsthmusError
from isthmus.privacy.account import UNITS
from isthmus.report.ledger_text import Share
from isthmus.report.loading import RunSummary, read_results
from isthmus.result_files import LEDGER, SET_UP
from isthmus.study.results import versions
from isthmus.version import VERSION

STATE, STUDIES = Path("state"), "studies"
"""The folder of a kit with what a party keeps, and the one in it with the studies that it knows."""
SET_UP_RUN = "set-up"


def content_of_party(
    kit: Path,
    party: str,
    made: str,
    *,
    run: Path | None = None,
    study: str = "",
    data: Path | None = None,
    purpose: str = "",
) -> Content:
    """Return a party's dossier of a study.

    Arguments:
        party: whose kit it is.
        run: the result folder, if the party has it: then both sides of the ledger are compared.
        study: without a result folder, how the study's hash begins; may be empty if the ledger knows one study.
        data: the party folder, to count what the party holds.
    """
    path = kit / STATE / LEDGER_FILE
    if not path.exists():
        raise IsthmusError(f"no ledger in {kit}: give the kit of a party that has joined a federation")
    lines, _ = read_ledger(path)
    runs = [] if run is None else read_results(run).runs
    names = [_run_name(lines, each, party, path) for each in runs]
    began = {name.partition("/")[0] for name in names if name}
    if run is None:
        chosen = _study_of(lines, study)
        own = [line for line in lines if line.get("study") == chosen]
    else:
        own = [line for line in lines if str(line.get("run", "")).partition("/")[0] in began]
        if not own:
            raise IsthmusError(
                f"the ledger in {kit} knows no run of {run}: give the results of a study it took part in"
            )
        chosen = str(own[0]["study"])
    approved, times = Approvals(kit / STATE / STUDIES).approved(chosen)
    content = _of_lines(kit, party, made, chosen, own, approved)
    content["approval"] = _approval(chosen, approved, times)
    content["files"] = [_ledger_entry(lines), *([] if approved is None else [_study_entry(chosen)])]
    content["data"] = _data(own, data)
    if run is not None:
        compared = _compared(run, names, runs, own, party)
        content = _joined(content, content_of_run(run, made, party=party), compared)
    content["purpose"] = stated_purpose(content["purpose"], purpose)
    cuts = [] if data is None else [_counted(data, party, approved)]
    return finished(content, Facts(cuts, len(content["study"]["parties"]), apart=True))


def _joined(ours: Content, theirs: Content, compared: Sequence[str]) -> Content:
    """The party's content with what the result folder adds, and the differences of both sides."""
    sides = {**theirs["sent"]["sides"], "compared": True, "own": ours["sent"]["sides"]["own"]}
    sides["note"] = "This party's own ledger was compared with the one of the server."
    sides["differences"] = list(dict.fromkeys([*compared, *theirs["sent"]["sides"]["differences"]]))
    more = {"sent": {**theirs["sent"], "sides": sides}, "purpose": ours["purpose"] or theirs["purpose"]}
    more |= {key: [*theirs[key], *ours[key]] for key in ("files", "models")}
    return {**theirs, **{key: ours[key] for key in ("limits", "approval", "refused", "data", "protections")}, **more}


def _of_lines(kit: Path, party: str, made: str, study: str, own: Sequence[Line], approved: Proposal | None) -> Content:
    """The content that follows from the lines of one study."""
    plan = None if approved is None else approved.study
    begun = [line for line in own if line["event"] == "begin"]
    runs = list(dict.fromkeys(str(line["run"]) for line in begun))
    refusals = [line for line in own if line["event"] == "refusal"]
    refused = [{"why": printable(line.get("why", "")), "times": line.get("times", 1)} for line in refusals]
    failures = sum(each["times"] for each in refused)
    return {
        **head("party", made, party),
        "title": f"{party} in study {study}",
        "purpose": "" if plan is None else plan.purpose,
        "study": {"hash": study, "what": {}, "parties": _parties(own), "results_of": ""},
        "code": {"isthmus": VERSION, "versions": versions(), "own": {}},
        "models": _models(kit, study),
        "counted": [_counted_run(run, own) for run in runs],
        "sent": {"actions": _actions(own, party), "failures": failures, "sides": _own_side(own)},
        "refused": refused,
        "protections": {} if plan is None else plan.protect.model_dump(),
        "limits": next((line["limits"] for line in reversed(begun) if "limits" in line), {}),
        "privacy": [_spent(run, own, plan) for run in runs if not run.endswith(f"/{SET_UP_RUN}")],
        "audits": [],
        "metrics": [],
    }


def _approval(study: str, approved: Proposal | None, times: int) -> Content:
    """What a person there approved, or that a standing approval let it run."""
    text = [] if approved is None else [printable(line.strip()) for line in describe_proposal(approved)]
    return {"hash": study, "times": times, "text": text}


def _study_of(lines: Sequence[Line], prefix: str) -> str:
    known = list(dict.fromkeys(str(line["study"]) for line in lines if line.get("study") and line["event"] == "begin"))
    found = [each for each in known if each.startswith(prefix.lower())]
    if len(found) != 1:
        what = f"begins no study's hash that the ledger knows ({', '.join(known) or 'none'})"
        several = f"the ledger knows {len(found)} studies: choose one, --study {' or '.join(found)}"
        raise IsthmusError(several if found else f"'{prefix}' {what}" if prefix else "the ledger knows no study yet")
    return found[0]


def _ledger_entry(lines: Sequence[Line]) -> Content:
    head = {"entries": len(lines), "hash": lines[-1]["hash"]}
    return {"file": f"{STATE}/{LEDGER_FILE}", "what": "own ledger", **head}


def _study_entry(study: str) -> Content:
    return {"file": f"{STATE}/{STUDIES}/{study}.json", "what": "study as approved", "study": study}


def _parties(own: Sequence[Line]) -> list[str]:
    """The parties of the study, as the server said when the runs began."""
    return sorted({printable(party) for line in own if line["event"] == "begin" for party in line.get("parties", ())})


def _own_side(own: Sequence[Line]) -> Content:
    opened = [line for line in own if line["event"] == "sum"]
    smallest = min((len(line["parties"]) for line in opened), default=0)
    again = sum(line["event"] == "again" for line in own)
    side = {"sums_opened": len(opened), "smallest_sum": smallest, "sent_again": again}
    note = "From this party's own ledger alone. With the results of the run, both sides can be compared."
    return {"compared": False, "note": note, "differences": [], "own": side}


def _actions(own: Sequence[Line], party: str) -> list[Content]:
    """What the party sent to whom, from its own ledger, in the form of the report's."""
    from isthmus.methods.base import Method

    parties: dict[str, int] = {}
    found: dict[tuple[str, ...], Content] = {}
    for line in own:
        run = str(line.get("run", ""))
        if line["event"] == "begin":
            parties[run] = len(line.get("parties", ()))
        if line["event"] != "answer":
            continue
        key = tuple(str(line.get(name, "")) for name in ("method", "action", "verb", "eyes", "protection"))
        entry = found.setdefault(key, {"fields_distinct": [], "sent_sum": 0, "received_sum": None, "answers": [],
                                       "calls": {}})  # fmt: skip
        entry["fields_distinct"].append(str(line.get("fields", "")))
        entry["sent_sum"] += line.get("sent", 0)
        entry["answers"].append(parties.get(run, 0))
        entry["calls"].setdefault(run, []).append(line.get("rows", 0))
    rows = []
    for (method, action, verb, eyes, protection), entry in found.items():
        times = [len(each) for each in entry["calls"].values()]
        held = [rows_held for each in entry["calls"].values() for rows_held in each]
        share = Share((min(times), max(times)), (min(held), max(held)))
        entry |= {"action": action, "verb": verb, "eyes": eyes, "protection": protection, "shares": {party: share}}
        nouns = Method.known()[method].nouns if method in Method.known() else {}
        rows.append(action_row(method, entry, nouns))
    return rows


def _counted_run(run: str, own: Sequence[Line]) -> Content:
    """How often the party answered in a run; its ledger has no rounds."""
    method, _, seed = run.partition("/")[2].rpartition("-")
    answers = sum(line["event"] == "answer" and line["run"] == run for line in own)
    of = {"method": method, "seed": int(seed)} if method and seed.isdecimal() else {"method": SET_UP_RUN, "seed": None}
    return {**of, "rounds": None, "stopped": "", "answers": answers, "spans": []}


def _spent(run: str, own: Sequence[Line], plan: Any) -> Content:
    """What a run may spend of privacy at most, as the party wrote when it began."""
    spent = next((line["epsilon"] for line in own if line["run"] == run and "epsilon" in line), None)
    of = {key: value for key, value in _counted_run(run, own).items() if key in ("method", "seed")}
    if spent is None:
        return {**of, "unit": "", "epsilon": None, "delta": None, "said": "no noise was added"}
    private = None if plan is None else plan.named_privacy()
    unit = f"what the noise of {of['method']} protects" if private is None else UNITS[private.name]
    delta = None if private is None else private.delta
    more = "" if delta is None else f", delta = {delta:g}"
    return {**of, "unit": unit, "epsilon": spent, "delta": delta, "said": f"{unit}: at most epsilon = {spent:g}{more}"}


def _models(kit: Path, study: str) -> list[Content]:
    """The models that the party keeps of a study."""
    found, folder = [], kit / STATE / "weights"
    for path in sorted(folder.glob(f"{study}-*.safetensors")):
        name = path.stem.removeprefix(f"{study}-")
        context = name.endswith(".context")
        method, _, seed = name.removesuffix(".context").rpartition("-")
        of = {"method": method, "seed": int(seed)}
        found.append(model_entry(kit, path, "context" if context else "model", of, "this party"))
    return found


def _data(own: Sequence[Line], data: Path | None) -> Content:
    """The fingerprint of the party's tables when runs began, and of those in the folder now."""
    from isthmus.data.fingerprint import digest_of_tables

    known = list(dict.fromkeys(str(line["data"]) for line in own if line["event"] == "begin" and "data" in line))
    prints = [{"what": "when the runs began", "digest": each} for each in known]
    note = "Of the tables in this party's own folder." if known else "The ledger was written without a fingerprint."
    if data is not None:
        now = digest_of_tables(data)
        prints.append({"what": "in the folder now", "digest": now})
        note += "" if known == [now] else " The folder has changed since, or during the runs."
    return {"fingerprints": prints, "note": note}


def _counted(data: Path, party: str, approved: Proposal | None) -> Any:
    """What the party's folder holds, with the splits that the study draws."""
    from isthmus.data.datasets.folder import PartyFolders
    from isthmus.data.describe import describe
    from isthmus.deploy.approval import split_shares

    shares = {} if approved is None else split_shares(approved.study)
    seed = 0 if approved is None else approved.study.draw_of(approved.study.seeds[0])
    pool = PartyFolders(path=str(data), **shares).load(seed)
    held = list(pool.parties or ())
    if [each.name for each in held] != [party]:
        raise IsthmusError(f"--data {data} is not the folder of party '{party}': give the one that it joins with")
    return describe(held, pool.classes, labels=pool.labels)


def _run_name(lines: Sequence[Line], run: RunSummary, party: str, path: Path) -> str:
    """What the party's ledger calls a run of the results: the last of its method and seed before the run's head.

    Empty if the results have no head of this ledger.
    """
    known = None if run.reconciled is None else run.reconciled.heads.get(party)
    if known is None:
        return ""
    check_head(lines, known.entries, known.hash, path)
    before = [str(line["run"]) for line in lines[: known.entries] if line["event"] == "begin"]
    return next((name for name in reversed(before) if name.endswith(f"/{run.method}-{run.seed}")), "")


def _compared(
    folder: Path, names: Sequence[str], runs: Sequence[RunSummary], own: Sequence[Line], party: str
) -> list[str]:
    """The differences between the server's ledger in a result folder and the party's, of the set-up and of each run."""
    totals: dict[str, Totals] = {}
    for line in own:
        name = str(line.get("run", ""))
        totals.setdefault(SET_UP_RUN if name.endswith(f"/{SET_UP_RUN}") else name, Totals()).add(line)
    set_up, rows = (result_files.read_table(folder, name).to_pylist() for name in (SET_UP, LEDGER))
    sides = [(SET_UP_RUN, SET_UP_RUN, set_up)]
    for name, run in zip(names, runs, strict=True):
        if not name:  # the server has no account of this run, which is among the differences that it lists
            continue
        of = [row for row in rows if (row["method"], row["seed"]) == (run.method, run.seed)]
        sides.append((f"{run.method}, seed {run.seed}", name, of))
    return [
        f"{about}: party '{party}', {each}"
        for about, name, of in sides
        for each in differences(of_server(of, party), of_party(totals.get(name, Totals()).rows()))
    ]
