"""The report's section on parties' scores: over all of them, against training alone, and one by one."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from statistics import fmean

from isthmus.data.description import few_names
from isthmus.report import charts, page, wording
from isthmus.report.loading import Findings, OverParties, Setting

Means = Mapping[str, Mapping[str, float]]
"""By method and party, over seeds."""

_EVALUATED = {
    "sent": "the model that the server sent",
    "trained": "the model that its own training made of it",
    "own": "a model of its own",
}


def section(findings: Findings) -> str:
    """The section's HTML; empty where no run has scores of single parties."""
    parts = []
    for setting in findings.settings:
        metric = _metric(setting)
        if not metric:
            continue
        body = _over_parties(findings, setting, metric)
        if means := _party_means(setting, metric):
            body += _gains(findings, setting, means, metric)
            body += _chart(findings, means, metric) + _party_table(means, metric)
        parts.append(page.heading(setting.name, "h4") + body)
    return f"<h3>Party by party</h3>{''.join(parts)}" if parts else ""


def _metric(setting: Setting) -> str:
    """The setting's main metric, or another one if parties do not have it."""
    metrics = [metric for run in setting.runs for scores in run.parties.values() for metric in scores]
    metrics += [metric for run in setting.runs for metric in run.over_parties]
    main = setting.main_metric
    return main if main is not None and main in metrics else next(iter(metrics), "")


def _over_parties(findings: Findings, setting: Setting, metric: str) -> str:
    """The pooled score beside the means over parties and the worst party."""
    rows = []
    for method in setting.methods:
        runs = [run for run in findings.runs_of(method) if metric in run.over_parties]
        if not runs:
            continue
        each = [run.over_parties[metric] for run in runs]
        columns = [
            [run.metrics.get(metric) for run in runs],
            [scores.mean for scores in each],
            [scores.weighted for scores in each],
            [scores.worst for scores in each],
        ]
        texts = [wording.mean_and_std_of(values, metric) for values in columns]
        worst = ", ".join(sorted({_worst(scores) for scores in each}, key=wording.natural_key))
        rows.append(page.row(page.method_head(findings, method), texts, f"<td class=fields>{escape(worst)}</td>"))
    if not rows:
        return ""
    names = ("Pooled", "Mean over parties", "Mean weighted by size", "Worst party")
    heads = page.heads((name + wording.unit(metric) for name in names), "n")
    head = f"<tr>{page.head('Method')}{heads}{page.head('Which is worst')}</tr>"
    note = (
        f"{wording.metric_title(metric)}, mean ± standard deviation over seeds. Pooled: the test items of all parties "
    )
    note += f"together. A party's size: its test items. {_evaluated_note(findings, setting)}"
    every = [run for method in setting.methods for run in findings.runs_of(method) if metric in run.over_parties]
    counts = [(len(run.parties), run.over_parties[metric].parties) for run in every]
    if left_out := {known - scored for known, scored in counts if known > scored > 0}:
        parties = "party is" if left_out == {1} else "parties are"
        note += f" {wording.number_range(left_out, ' or ')} {parties} left out, whose test items give no such score."
    return page.table(head, "".join(rows), note)


def _worst(scores: OverParties) -> str:
    """The worst party, with the number of its test items."""
    if scores.worst_items is None:
        return scores.worst_party
    return f"{scores.worst_party} ({scores.worst_items:,} test item{'s' * (scores.worst_items != 1)})"


def _evaluated_note(findings: Findings, setting: Setting) -> str:
    """Which model was evaluated; to a party of a reference no server sends any."""
    methods: dict[str, list[str]] = {}
    for method in findings.federated(setting.methods):
        for evaluated in sorted({run.evaluated for run in findings.runs_of(method) if run.evaluated}):
            methods.setdefault(evaluated, []).append(method)
    texts = {which: _EVALUATED.get(which, f"the model '{which}'") for which in methods}
    if len(texts) == 1 and set(findings.federated(setting.methods)) == set(setting.methods):
        return f"At each party, {next(iter(texts.values()))} was evaluated."
    each = [f"{texts[which]} ({', '.join(names)})" for which, names in methods.items()]
    return f"At each party was evaluated: {'; '.join(each)}." if each else ""


def _party_means(setting: Setting, metric: str) -> Means:
    values: dict[str, dict[str, list[float]]] = {}
    for run in setting.runs:
        for party, scores in run.parties.items():
            value = wording.finite(scores.get(metric))
            if value is not None:
                values.setdefault(run.method, {}).setdefault(party, []).append(value)
    return {method: {party: fmean(each) for party, each in own.items()} for method, own in values.items()}


def _gains(findings: Findings, setting: Setting, means: Means, metric: str) -> str:
    """Who gains and who loses against training alone, if exactly one method trained alone."""
    alone = [method for method in means if findings.reference(method) == wording.ALONE]
    if len(alone) != 1:
        return ""
    own, sign, rows = means[alone[0]], -1 if findings.smaller_is_better(metric) else 1, []
    cuts = [cut.description for folder in setting.folders for cut in folder.results.cuts]
    untrained = {party.name for cut in cuts for party in cut.parties if not party.train}
    trained = own.keys() - untrained
    scale = 100 if wording.percent(metric) else 1
    for method, scores in means.items():
        gains = {party: sign * scale * (scores[party] - own[party]) for party in scores if party in trained}
        if method == alone[0] or not gains:
            continue
        extremes = [pick(gains, key=gains.__getitem__) for pick in (max, min)]
        counts = [sum(gain > 0 for gain in gains.values()), sum(gain < 0 for gain in gains.values())]
        texts = [f"{escape(party)} {gains[party]:+.3g}" for party in extremes]
        rows.append(page.row(page.method_head(findings, method), (*counts, *texts)))
    if not rows:
        return ""
    names = ("Gain", "Lose", "Most", "Least")
    head = f"<tr>{page.head('Method')}{page.heads(names, 'n')}</tr>"
    note = f"Parties against their own model, trained alone: {wording.metric_name(metric)}"
    note += f"{' in points' if scale == 100 else ''}, mean over seeds."
    if left_out := sorted(untrained & own.keys(), key=wording.natural_key):
        note += f" Without {escape(few_names(left_out))}: no training item, so nothing was trained there."
    return page.table(head, "".join(rows), note)


def _chart(findings: Findings, means: Means, metric: str) -> str:
    rows = []
    for method, scores in means.items():
        lowest, highest = (wording.format_number(pick(scores.values()), metric) for pick in (min, max))
        text = f"{lowest} to {highest}{' %' if wording.percent(metric) else ''}"
        rows.append(charts.Dots(method, findings.style(method), list(scores.items()), fmean(scores.values()), text))
    title = f"{wording.metric_title(metric)}: a dot per party, a stroke at their mean"
    return f"<figure>{charts.dot_chart(title, 'Results per party.', rows, wording.formatter(metric))}</figure>"


def _party_table(means: Means, metric: str) -> str:
    parties = sorted({party for scores in means.values() for party in scores}, key=wording.natural_key)
    if len(parties) > wording.MAX_PARTIES:
        return f"<p class=note>{len(parties)} parties: too many for a table, all are in results.json.</p>"
    rows = []
    for party in parties:
        values = (wording.format_number(scores.get(party), metric) for scores in means.values())
        rows.append(page.row(page.row_head(party), values))
    head = f"<tr>{page.head('Party')}{page.heads(means, 'n name')}</tr>"
    note = f"{wording.metric_title(metric)}{wording.unit(metric)} of every party, mean over seeds."
    return page.folded("The figures, party by party", page.table(head, "".join(rows), note))
