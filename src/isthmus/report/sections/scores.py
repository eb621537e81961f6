"""The report's section on scores: for each setting a chart and tables of what every method reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape
from itertools import groupby
from statistics import fmean

from isthmus.report import charts, page, wording
from isthmus.report.loading import Findings, RunSummary, Score, Setting

_MAX_METRICS = 6
"""Metrics in one table."""
_SPLITS = {"test": "Test", "val": "Validation", "pooled_test": "Pooled test", "pooled_val": "Pooled validation"}


def section(findings: Findings) -> str:
    """The section's HTML; each setting has a part of its own, led by the metric that its task is judged by."""
    return "".join(
        page.heading(setting.name, "h3")
        + _chart(findings, setting)
        + _tables(findings, setting)
        + _label_tables(findings, setting)
        + _seed_table(findings, setting)
        for setting in findings.settings
    )


def _tables(findings: Findings, setting: Setting) -> str:
    """One table of all metrics. Many metrics get a table for each split, as paper is narrow; the first one is open."""
    first, *others = _split_metrics(setting.metrics)
    text = _table(findings, setting, first, with_runs=True)
    names: Counter[str] = Counter()
    for metrics in others:
        name = _split_title(metrics[0]).lower()
        names[name] += 1
        more = f", part {names[name]}" if names[name] > 1 else ""
        text += page.folded(f"More figures: {name}{more}", _table(findings, setting, metrics))
    return text


def _split_metrics(metrics: Sequence[str]) -> list[Sequence[str]]:
    if len(metrics) <= _MAX_METRICS:
        return [metrics]
    groups = [list(group) for _, group in groupby(metrics, _split_title)]
    return [group[start : start + _MAX_METRICS] for group in groups for start in range(0, len(group), _MAX_METRICS)]


def _split(metric: str) -> str:
    return next((split for split in _SPLITS if metric.startswith(f"{split}_")), "")


def _split_title(metric: str) -> str:
    return _SPLITS.get(_split(metric), "Other")


def _table(findings: Findings, setting: Setting, metrics: Sequence[str], with_runs: bool = False) -> str:
    """Methods by metrics, with columns about their runs if wanted."""
    best = {metric: _best(findings, setting, metric) for metric in metrics}
    rows = []
    for method in setting.methods:
        texts = (_text(findings.scores.get((method, m)), best[m] == method) for m in metrics)
        runs = _run_cells(findings.runs_of(method)) if with_runs else ""
        rows.append(page.row(page.method_head(findings, method), texts, runs, map(_short, metrics)))
    bold = " Bold: the best mean in a column among federated methods." if any(best.values()) else ""
    rule = f" {_round_note(findings, setting)}" if with_runs else ""
    note = f"Mean ± standard deviation over seeds.{bold}{rule}"
    return page.table(_head(metrics, with_runs), "".join(rows), note, "flows scores")


def _run_cells(runs: Sequence[RunSummary]) -> str:
    seconds = [run.seconds for run in runs if run.seconds is not None]
    seeds, time = wording.number_range(run.seed for run in runs), f"{fmean(seconds):.1f} s" if seconds else "–"
    rounds = f"<td class=whole data-of=round>{_chosen_rounds(runs)}</td>"
    return f'<td data-of=seeds>{escape(seeds)}</td>{rounds}<td class=n data-of="time per run">{time}</td>'


def _short(metric: str) -> str:
    """A metric's name where no head of a table says its split."""
    split = _split(metric)
    return f"{_SPLITS.get(split, '').lower()} {wording.metric_name(metric.removeprefix(f'{split}_'))}".strip()


def _head(metrics: Sequence[str], with_runs: bool) -> str:
    groups = Counter(map(_split_title, metrics))
    over = "".join(f'<th scope=colgroup colspan="{count}">{group}</th>' for group, count in groups.items())
    names = "".join(
        page.head(f"{wording.metric_name(m.removeprefix(f'{_split(m)}_'))}{wording.unit(m)}", "n") for m in metrics
    )
    if with_runs:
        over += "<th scope=colgroup colspan=3>Runs</th>"
        names += page.head("Seeds") + page.head("Round reported") + page.head("Time per run", "n")
    return f"<tr><td></td>{over}</tr><tr>{page.head('Method')}{names}</tr>"


def _best(findings: Findings, setting: Setting, metric: str) -> str | None:
    """The best federated method, if there are several."""
    ranked = findings.federated(findings.ranked(setting.methods, metric))
    return ranked[0] if len(ranked) > 1 else None


def _round_note(findings: Findings, setting: Setting) -> str:
    choices = {each: findings.round_choice(each) for each in setting.methods if findings.runs_of(each)}
    if not any(choices.values()):
        return "Which round a run reports was not recorded."
    text = "Every run reports its last round."
    if "validation" in choices.values():
        finished = [run for run in setting.runs if run.chosen_round is not None]
        early = {run.method for run in finished if run.chosen_round != run.rounds}
        late = [method for method in dict.fromkeys(run.method for run in finished) if method not in early]
        unchosen = [method for method in late if choices[method] == "last"]
        chosen = [method for method in late if method not in unchosen]
        text = "A run reports one round, chosen on validation data; test data chose nothing."
        if unchosen:
            others = "all other runs report one chosen on validation data; test data chose nothing."
            text = f"Runs of {wording.join_words(unchosen)} report their last round; {others}"
        text += f" For {wording.join_words(chosen)} validation data chose the last round." if chosen else ""
    if any(run.under_way for run in setting.runs):
        text += " One that is under way shows its last round so far."
    return text


def _chosen_rounds(runs: Sequence[RunSummary]) -> str:
    finished = [(run.chosen_round, run.rounds) for run in runs if run.chosen_round is not None]
    chosen, rounds = zip(*finished, strict=True) if finished else ((), ())
    return f"{wording.number_range(chosen)} of {wording.number_range(rounds)}" if finished else "–"


def _text(score: Score | None, best: bool) -> str:
    text = score.text if score else "–"
    return f"<b>{text}</b>" if best else text


def _chart(findings: Findings, setting: Setting) -> str:
    metric = setting.main_metric
    rows = []
    for method in setting.methods:
        mean = findings.mean(method, metric)
        if metric is None or mean is None:
            continue
        points = [(f"seed {run.seed}", wording.finite(run.metrics.get(metric))) for run in findings.runs_of(method)]
        known = [(label, value) for label, value in points if value is not None]
        text = findings.score_text(method, metric)
        rows.append(charts.Dots(method, findings.style(method), known, mean, text))
    if metric is None or not rows:
        return ""
    title = f"{wording.metric_title(metric)}: a dot per seed, a stroke at the mean"
    return f"<figure>{charts.dot_chart(title, 'Results per method.', rows, wording.formatter(metric))}</figure>"


def _label_tables(findings: Findings, setting: Setting) -> str:
    """Figures of each class, or of each of several tasks: a table for each figure, folded together."""
    by_label = [run.by_label for run in setting.runs if run.by_label]
    if not by_label:
        return ""
    labels = list(dict.fromkeys(label for each in by_label for label in each))
    figures = dict.fromkeys(figure for each in by_label for own in each.values() for figure in own)
    figures.pop("items", None)
    text = "".join(_label_table(findings, setting, figure, labels) for figure in figures)
    return page.folded("The figures, label by label", text)


def _label_table(findings: Findings, setting: Setting, figure: str, labels: Sequence[str]) -> str:
    methods = [method for method in setting.methods if any(run.by_label for run in findings.runs_of(method))]
    rows = []
    for label in labels:
        found = [run.by_label[label] for run in setting.runs if label in run.by_label]
        items = wording.number_range(int(own.get("items") or 0) for own in found)
        texts = []
        for method in methods:
            values = [run.by_label.get(label, {}).get(figure) for run in findings.runs_of(method)]
            texts.append(wording.mean_and_std_of(values, figure))
        rows.append(page.row(page.row_head(label), [items, *texts]))
    head = f"<tr>{page.head('Label')}{page.head('Test items', 'n')}{page.heads(methods, 'n name')}</tr>"
    title = f"{wording.metric_title(figure)}{wording.unit(figure)}"
    note = f"{title} of the test items, mean ± standard deviation over seeds."
    return page.table(head, "".join(rows), note)


def _seed_table(findings: Findings, setting: Setting) -> str:
    """The values of the chart's dots."""
    metric, seeds = setting.main_metric, sorted({run.seed for run in setting.runs})
    if metric is None:
        return ""
    rows = []
    for method in setting.methods:
        values = {run.seed: run.metrics.get(metric) for run in findings.runs_of(method)}
        texts = (wording.format_number(values.get(seed), metric) for seed in seeds)
        rows.append(page.row(page.method_head(findings, method), texts))
    head = f"<tr>{page.head('Method')}{page.heads((f'seed {seed}' for seed in seeds), 'n')}</tr>"
    note = f"{wording.metric_title(metric)}{wording.unit(metric)} of every seed."
    return page.folded("The figures, seed by seed", page.table(head, "".join(rows), note))
