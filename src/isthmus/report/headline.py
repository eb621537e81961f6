"""The head of the report: for each setting a verdict, how certain it is, and the facts of the study."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from isthmus.paired import ahead_over_parties, alone_is_best, best_was_last
from isthmus.report import wording
from isthmus.report.differences import differences
from isthmus.report.loading import Findings, Setting
from isthmus.report.wording import ALONE

_MAX_ABSENCES = 12
"""Lines on parties that did not always count."""
_EQUAL = 1e-9
"""Means that differ by less than this are equal."""


def title(studies: Iterable[Mapping[str, Any]]) -> str:
    """What was studied, as text."""
    studies = list(studies)
    data = wording.join_words(list(dict.fromkeys(wording.data_name(study.get("data")) for study in studies)))
    parties = " or ".join(dict.fromkeys(str(study["parties"]) for study in studies if study.get("parties")))
    return f"{data} across {parties} {'party' if parties == '1' else 'parties'}" if parties else data


def headline(findings: Findings) -> str:
    """A verdict and the facts for each setting, as scores from different settings are not comparable."""
    parts = []
    for setting in findings.settings:
        if setting.name:
            parts.append(f"<h2 class=setting>{escape(setting.name)}</h2>")
        parts += [_subset(setting), _verdict(findings, setting), _facts(setting)]
    return "".join(parts)


def _subset(setting: Setting) -> str:
    """Whose data are not, or not always, in these figures."""
    lines = [f"{run.method}, seed {run.seed}: stopped early. {run.stopped}" for run in setting.runs if run.stopped]
    for run in setting.runs:
        spans = [(span.first, span.last, span.missing) for span in run.turnout]
        lines += wording.absences(f"{run.method}, seed {run.seed}", run.rounds, spans)
    if not lines:
        return ""
    more = [f"… and {len(lines) - _MAX_ABSENCES} more; all are in the ledger."] if len(lines) > _MAX_ABSENCES else []
    items = "".join(f"<li>{escape(line)}</li>" for line in [*lines[:_MAX_ABSENCES], *more])
    return f"<div class=subset role=alert><b>{wording.SUBSET}</b><ul>{items}</ul></div>"


def _verdict(findings: Findings, setting: Setting) -> str:
    metric, methods = setting.main_metric, setting.methods
    ranked = findings.chosen(methods, metric)
    if metric is None or not ranked:
        return "<p class=verdict>No metric was recorded.</p>"
    federated = findings.federated(ranked)
    best, *others = federated or ranked
    references = [method for method in ranked if method not in (best, *others)]
    names = _own_names(findings, methods)
    remarks = {method: f" ({remark})" if (remark := findings.remark(method)) else "" for method in ranked}
    scores = {method: findings.score_text(method, metric) for method in ranked}
    texts = [f"{names[method]}{remarks[method]} {scores[method]}" for method in others[:3]]
    texts += [f"{len(others) - 3} more methods behind"] if len(others) > 3 else []
    texts += [f"{names[method]}{remarks[method]} {scores[method]}" for method in references]
    text = (
        f"<b>{names[best]}</b>{remarks[best]} reached <b>{scores[best]}</b> {escape(wording.metric_name(metric))}"
        f"{_when(findings, ranked)}{'; ' if texts else ''}{', '.join(texts)}."
    )
    tested = findings.ranked(methods, metric)
    first_tested = next(method for method in tested if method in (best, *others))
    if abs((findings.mean(first_tested, metric) or 0.0) - (findings.mean(best, metric) or 0.0)) >= _EQUAL:
        text += (
            f" Validation data prefer {names[best]}; on test data, which choose nothing, {names[first_tested]} is best."
        )
    alone = next(each for each in tested if each == first_tested or findings.reference(each) == ALONE)
    shown = [wording.format_number(findings.mean(method, metric), metric) for method in (alone, first_tested)]
    comparison = ""  # over the folders together; the note of a folder compares its own methods
    if federated and shown[0] != shown[1]:
        rising = {
            names[method]: max(run.rounds for run in findings.runs_of(method))
            for method in findings.federated(methods)
            if findings.about[method].select == "validation" and best_was_last(findings.runs_of(method))
        }
        lead = differences(findings, metric, alone, [first_tested]).get(first_tested)
        of_parties = {
            names[method]: [
                (over.mean, over.worst)
                for run in findings.runs_of(method)
                if (over := run.over_parties.get(metric)) and over.mean is not None and over.worst is not None
            ]
            for method in (alone, *findings.federated(methods))
        }
        ahead = ahead_over_parties(names[alone], of_parties, smaller=findings.smaller_is_better(metric))
        comparison = alone_is_best(names[alone], rising, lead, ahead)
    first = "".join(f"<p class=verdict><b>{head}:</b> {note}.</p>" for head, note in _notes(setting, comparison))
    return (
        f"<p class=verdict>{text}</p>{first}<p class=caution>{_caution(findings, [best, *others], metric, names)}</p>"
    )


def _notes(setting: Setting, comparison: str) -> list[tuple[str, str]]:
    """The notes in the result folders and the comparison, each after its head, which names folders where it must."""
    folders: dict[str, list[str]] = {}
    for folder in setting.folders:
        for note in folder.results.notes:
            folders.setdefault(escape(note), []).append(escape(folder.name))
    folders.pop(comparison, None)
    one = len(setting.folders) == 1
    notes = [("Note" if one else f"Note on {wording.join_words(names)}", note) for note, names in folders.items()]
    return [*notes, ("Note", comparison)] if comparison else notes


def _when(findings: Findings, methods: Sequence[str]) -> str:
    """Which round the scores are of, in a few words."""
    if any(run.under_way for method in methods for run in findings.runs_of(method)):
        return " so far"
    words = {"validation": "at the round that validation chose", "last": "at the last round"}
    rules = {rule for method in methods if (rule := findings.round_choice(method)) in words}
    return f" {' or '.join(words[rule] for rule in sorted(rules, reverse=True))}" if rules else ""


def _own_names(findings: Findings, methods: Sequence[str]) -> dict[str, str]:
    """Methods without their folder, escaped, unless two would have the same name."""
    own = {method: escape(findings.methods[method]) for method in methods}
    return own if len(set(own.values())) == len(own) else {method: escape(method) for method in methods}


def _caution(findings: Findings, ranked: Sequence[str], metric: str, names: Mapping[str, str]) -> str:
    scores = [findings.scores[method, metric] for method in ranked]
    seeds = sorted({score.seeds for score in scores})
    one = "One seed: how much of this is luck is not known."
    text = one if seeds == [1] else f"Mean ± standard deviation over {wording.number_range(seeds, ' or ')} seeds."
    if len(scores) > 1:
        pair = findings.ranked(ranked[:2], metric)  # a lead is one on test data
        first, second = (names[method] for method in pair)
        lead = abs((scores[0].mean or 0.0) - (scores[1].mean or 0.0))
        near = lead <= max(wording.finite(score.std) or 0.0 for score in scores[:2])
        found = differences(findings, metric, pair[0], pair[1:]).get(pair[1])
        if lead < _EQUAL:
            text += f" {first} and {second} are equal."
        elif found is not None and found.p is not None:
            text += f" The lead of {first} over {second} {found.luck_text}."
        elif seeds != [1] and near:
            text += f" The lead of {first} over {second} is within one standard deviation"
            text += "." if found is None else ", and the same for every seed."
    return text


def _facts(setting: Setting) -> str:
    study, runs = setting.folders[0].results.study, setting.runs
    planned = [int(seed) for folder in setting.folders for seed in folder.results.study.get("seeds") or ()]
    rounds = wording.number_range(run.rounds for run in runs)
    under_way = any(run.under_way for run in runs)
    return facts(study, sorted({*planned, *(run.seed for run in runs)}), f"{rounds} so far" if under_way else rounds)


def facts(study: Mapping[str, Any], seeds: Iterable[int], rounds: str) -> str:
    """The known facts of a study."""
    known = {
        "Data": wording.describe(study.get("data")),
        "Task": wording.describe(study.get("task") or ""),
        "Partition": wording.describe(study.get("partition") or ""),
        "Parties": str(study.get("parties") or ""),
        "Model": wording.describe(study.get("model")),
        "Seeds": ", ".join(map(str, seeds)) or "none",
        "Rounds": rounds,
    }
    parts = (f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in known.items() if value)
    return f"<dl class=facts>{''.join(parts)}</dl>"
