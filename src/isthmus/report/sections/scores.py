"""The report's section on results: what each method reached, whether its lead is more than luck, and party by party.

Every setting has its own part, by the metric that its own task is judged by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from statistics import fmean

from isthmus.report import charts, page, wording
from isthmus.report.loading import Findings, RunSummary, Score, Setting
from isthmus.report.sections.comparison import Contest, compared
from isthmus.report.wording import ALONE

COLUMNS = 6
"""Metrics that stand in one table."""
_KINDS = {"test": "Test", "val": "Validation"}

Means = Mapping[str, Mapping[str, float]]
"""By method and party."""


def how_methods_did(findings: Findings) -> str:
    """The section's HTML."""
    settings = findings.settings
    parts = [f"{_named(setting, 'h3')}{_results(findings, setting)}" for setting in settings]
    contests = [each for setting in settings if (each := contest(findings, setting)) is not None]
    return "".join(parts) + compared(findings, contests) + _by_party(findings)


def contest(findings: Findings, setting: Setting) -> Contest | None:
    """The best federated method of a setting against all others; none where no federated one has the main metric."""
    if (metric := setting.main_metric) is None:
        return None
    ranked = findings.ranked(setting.methods, metric)
    if not (federated := findings.federated(ranked)):
        return None
    return Contest(setting.name, metric, [federated[0], *(method for method in ranked if method != federated[0])])


def row_head(findings: Findings, method: str) -> str:
    """The head of a method's row, with its colour."""
    aside = findings.reference(method)
    note = f" <small>{aside}</small>" if aside else ""
    return f'<th scope=row class="s{findings.style(method) % 8}"><i></i>{escape(method)}{note}</th>'


def _named(setting: Setting, tag: str) -> str:
    return f"<{tag}>{escape(setting.name)}</{tag}>" if setting.name else ""


def _results(findings: Findings, setting: Setting) -> str:
    return _chart(findings, setting) + _tables(findings, setting) + _seed_table(findings, setting)


def _tables(findings: Findings, setting: Setting) -> str:
    """One table of all metrics; of many, as paper is narrow, one for each kind, those after the first folded."""
    first, *others = _split(setting.metrics)
    text = _table(findings, setting, first, runs=True)
    for metrics in others:
        text += page.folded(f"More figures: {_kind(metrics[0]).lower()}", _table(findings, setting, metrics))
    return text


def _split(metrics: Sequence[str]) -> list[Sequence[str]]:
    if len(metrics) <= COLUMNS:
        return [metrics]
    kinds = [list(of) for _, of in groupby(metrics, _kind)]
    return [of[start : start + COLUMNS] for of in kinds for start in range(0, len(of), COLUMNS)]


def _kind(metric: str) -> str:
    return _KINDS.get(wording.split(metric), "Other")


def _table(findings: Findings, setting: Setting, metrics: Sequence[str], runs: bool = False) -> str:
    """Methods by metrics; with what is known of their runs, if that is wanted."""
    best = {metric: _best(findings, setting, metric) for metric in metrics}
    rows = []
    for method in setting.methods:
        cells = "".join(_score(findings.scores.get((method, m)), m, best[m] == method) for m in metrics)
        own = _of_runs(findings.runs_of(method)) if runs else ""
        rows.append(f"<tr>{row_head(findings, method)}{cells}{own}</tr>")
    bold = " Bold: the best mean in a column among federated methods." if any(best.values()) else ""
    rule = f" {_choice_rule(findings, setting)}" if runs else ""
    return page.table(_head(metrics, runs), "".join(rows), f"Mean ± standard deviation over seeds.{bold}{rule}")


def _of_runs(runs: Sequence[RunSummary]) -> str:
    seconds = [run.seconds for run in runs if run.seconds is not None]
    seeds, time = wording.number_range(run.seed for run in runs), f"{fmean(seconds):.1f} s" if seconds else "–"
    return f"<td>{escape(seeds)}</td><td class=whole>{_chosen(runs)}</td><td class=n>{time}</td>"


def _head(metrics: Sequence[str], runs: bool) -> str:
    groups = Counter(map(_kind, metrics))
    over = "".join(f'<th scope=colgroup colspan="{count}">{group}</th>' for group, count in groups.items())
    names = "".join(
        page.head(f"{wording.metric_name(m, bare=wording.split(m) in _KINDS)}{wording.unit(m)}", "n") for m in metrics
    )
    if runs:
        over += "<th scope=colgroup colspan=3>Runs</th>"
        names += page.head("Seeds") + page.head("Round reported") + page.head("Time per run", "n")
    return f"<tr><td></td>{over}</tr><tr>{page.head('Method')}{names}</tr>"


def _best(findings: Findings, setting: Setting, metric: str) -> str | None:
    """The best federated method, where it is best of several."""
    ranked = findings.federated(findings.ranked(setting.methods, metric))
    return ranked[0] if len(ranked) > 1 else None


def _choice_rule(findings: Findings, setting: Setting) -> str:
    rules = {method: findings.round_choice(method) for method in setting.methods if findings.runs_of(method)}
    if not any(rules.values()):
        return "Which round a run reports was not recorded."
    text = "Every run reports its last round."
    if "validation" in rules.values():
        text = "A run reports one round, chosen on validation data; test data chose nothing."
        ended = [run for run in setting.runs if run.chosen_round is not None]
        early = {run.method for run in ended if run.chosen_round != run.rounds}
        last = [method for method in dict.fromkeys(run.method for run in ended) if method not in early]
        text += f" For {wording.join_words(last)} it was the last." if last else ""
    if any(run.under_way for run in setting.runs):
        text += " One that is under way shows its last round so far."
    return text


def _chosen(runs: Sequence[RunSummary]) -> str:
    ended = [(run.chosen_round, run.rounds) for run in runs if run.chosen_round is not None]
    chosen, rounds = zip(*ended, strict=True) if ended else ((), ())
    return f"{wording.number_range(chosen)} of {wording.number_range(rounds)}" if ended else "–"


def _score(score: Score | None, metric: str, best: bool) -> str:
    text = score.text if score else "–"
    return f"<td class=n>{f'<b>{text}</b>' if best else text}</td>"


def _chart(findings: Findings, setting: Setting) -> str:
    metric = setting.main_metric
    rows = []
    for method in setting.methods:
        mean = findings.mean(method, metric)
        if metric is None or mean is None:
            continue
        points = [(f"seed {run.seed}", wording.finite(run.metrics.get(metric))) for run in findings.runs_of(method)]
        known = [(label, value) for label, value in points if value is not None]
        figure = findings.score_text(method, metric)
        rows.append(charts.Dots(method, findings.style(method), known, mean, figure))
    if metric is None or not rows:
        return ""
    title = f"{wording.metric_title(metric)}: a dot per seed, a stroke at the mean"
    chart = charts.dot_chart(title, "Results per method.", rows, wording.formatter(metric))
    return f"<figure>{chart}</figure>"


def _seed_table(findings: Findings, setting: Setting) -> str:
    """What the dots of the chart stand for."""
    metric, seeds = setting.main_metric, sorted({run.seed for run in setting.runs})
    if metric is None:
        return ""
    rows = []
    for method in setting.methods:
        of = {run.seed: run.metrics.get(metric) for run in findings.runs_of(method)}
        cells = "".join(f"<td class=n>{wording.format_number(of.get(seed), metric)}</td>" for seed in seeds)
        rows.append(f"<tr>{row_head(findings, method)}{cells}</tr>")
    head = f"<tr>{page.head('Method')}{''.join(page.head(f'seed {seed}', 'n') for seed in seeds)}</tr>"
    note = f"{wording.metric_title(metric)}{wording.unit(metric)} of every seed."
    return page.folded("The figures, seed by seed", page.table(head, "".join(rows), note))


# ---- party by party


def _by_party(findings: Findings) -> str:
    parts = []
    for setting in findings.settings:
        metric, means = _party_means(setting)
        if means:
            drawn = _gains(findings, means, metric) + _party_chart(findings, means, metric)
            parts.append(f"{_named(setting, 'h4')}{drawn}{_party_table(means, metric)}")
    return f"<h3>Party by party</h3>{''.join(parts)}" if parts else ""


def _party_means(setting: Setting) -> tuple[str, Means]:
    """The setting's main metric, or another where parties do not have it; and its means over seeds."""
    metrics = list(dict.fromkeys(m for run in setting.runs for each in run.parties.values() for m in each))
    metric = setting.main_metric if setting.main_metric in metrics else next(iter(metrics), "")
    values: dict[str, dict[str, list[float]]] = {}
    for run in setting.runs:
        for party, each in run.parties.items():
            value = wording.finite(each.get(metric or ""))
            if value is not None:
                values.setdefault(run.method, {}).setdefault(party, []).append(value)
    return metric or "", {method: {party: fmean(each) for party, each in of.items()} for method, of in values.items()}


def _gains(findings: Findings, means: Means, metric: str) -> str:
    """Who gains and who loses against training alone, where one method trained alone."""
    alone = [method for method in means if findings.reference(method) == ALONE]
    if len(alone) != 1:
        return ""
    own, sign, rows = means[alone[0]], -1 if findings.smaller_is_better(metric) else 1, []
    scale = 100 if wording.percent(metric) else 1
    for method, of in means.items():
        gains = {party: sign * scale * (of[party] - own[party]) for party in of if party in own}
        if method == alone[0] or not gains:
            continue
        most, least = (pick(gains, key=gains.__getitem__) for pick in (max, min))
        counts = [sum(gain > 0 for gain in gains.values()), sum(gain < 0 for gain in gains.values())]
        told = [f"{escape(party)} {gains[party]:+.3g}" for party in (most, least)]
        cells = "".join(f"<td class=n>{each}</td>" for each in (*counts, *told))
        rows.append(f"<tr>{row_head(findings, method)}{cells}</tr>")
    if not rows:
        return ""
    names = ("Gain", "Lose", "Most", "Least")
    head = f"<tr>{page.head('Method')}{''.join(page.head(name, 'n') for name in names)}</tr>"
    note = f"Parties against their own model, trained alone: {wording.metric_name(metric)}"
    note += f"{' in points' if scale == 100 else ''}, mean over seeds."
    return page.table(head, "".join(rows), note)


def _party_chart(findings: Findings, means: Means, metric: str) -> str:
    show = wording.formatter(metric)
    rows = []
    for method, of in means.items():
        lowest, highest = (wording.format_number(each(of.values()), metric) for each in (min, max))
        text = f"{lowest} to {highest}{' %' if wording.percent(metric) else ''}"
        rows.append(charts.Dots(method, findings.style(method), list(of.items()), fmean(of.values()), text))
    title = f"{wording.metric_title(metric)}: a dot per party, a stroke at their mean"
    return f"<figure>{charts.dot_chart(title, 'Results per party.', rows, show)}</figure>"


def _party_table(means: Means, metric: str) -> str:
    parties = sorted({party for of in means.values() for party in of}, key=wording.natural_key)
    if len(parties) > wording.MAX_PARTIES:
        return f"<p class=note>{len(parties)} parties: too many for a table, all are in results.json.</p>"
    rows = []
    for party in parties:
        cells = "".join(f"<td class=n>{wording.format_number(of.get(party), metric)}</td>" for of in means.values())
        rows.append(f"<tr><th scope=row>{escape(party)}</th>{cells}</tr>")
    head = f"<tr>{page.head('Party')}{''.join(page.head(method, 'n name') for method in means)}</tr>"
    note = f"{wording.metric_title(metric)}{wording.unit(metric)} of every party, mean over seeds."
    return page.folded("The figures, party by party", page.table(head, "".join(rows), note))
