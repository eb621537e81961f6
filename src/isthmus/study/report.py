"""One HTML file that tells what a study found, what it cost in traffic, and who saw what.

The page needs nothing else: no network, no script, no image files. The same results give the same page, byte for byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

from isthmus import store
from isthmus.errors import IsthmusError
from isthmus.study import charts, page, words
from isthmus.study.audited import what_attacks_found
from isthmus.study.compared import compared
from isthmus.study.findings import Findings, Line, Run, Source, read_folders
from isthmus.study.made import what_was_made
from isthmus.study.parties import who_holds_what
from isthmus.study.rounds import round_by_round
from isthmus.study.seen import who_saw_what
from isthmus.study.spending import what_noise_spent
from isthmus.study.words import ALONE, BOUNDS, POOLED

_EQUAL = 1e-9
"""Means that are nearer than this are the same."""


def write_report(folders: Sequence[Path | str], out: Path | str | None = None) -> Path:
    """Writes one self-contained HTML page about one or more result folders.

    A method that stands in more than one folder is named with its folder behind it.

    Arguments:
        folders: result folders, each with study.toml, results.json, history.parquet and ledger.parquet.
        out: the file to write; `report.html` in the first folder if left out.

    Returns:
        The path of the file.
    """
    if not folders:
        raise IsthmusError("report: no result folder given: name at least one")
    findings = read_folders(folders)
    target = Path(folders[0]) / "report.html" if out is None else Path(out)
    store.write(target, _page(findings))
    return target


def _page(findings: Findings) -> str:
    title = _title(findings)
    sections = [
        ("results", "Results", _results(findings)),
        ("parties", "Parties", who_holds_what(findings)),
        ("curves", "Learning curves", round_by_round(findings)),
        ("places", "Embeddings", _places(findings)),
        ("made", "Graphs made", what_was_made(findings.made)),
        ("traffic", "Traffic", _traffic(findings)),
        ("ledger", "Who saw what", who_saw_what(findings)),
        ("privacy", "Privacy", what_noise_spent(findings)),
        ("audits", "Audits", what_attacks_found(findings.audits)),
        ("reproduce", "Reproducibility", _reproduce(findings)),
    ]
    made = sorted({f"Isthmus {s.results.isthmus}, results of {s.results.created}" for s in findings.sources})
    return page.document(title, _headline(findings), [section for section in sections if section[2]], made)


def _title(findings: Findings) -> str:
    studies = [source.results.study for source in findings.sources]
    data = " and ".join(dict.fromkeys(words.described(study.get("data"), brief=True) for study in studies))
    parties = " or ".join(dict.fromkeys(str(study.get("parties", "several")) for study in studies))
    return f"{data} across {parties} {'party' if parties == '1' else 'parties'}"


def _headline(findings: Findings) -> str:
    """A verdict and the facts for every setting: figures from different settings do not belong in one sentence."""
    parts = []
    for name, sources in findings.settings.items():
        if name:
            parts.append(f"<h2 class=setting>{escape(name)}</h2>")
        methods = _methods_of(sources)
        parts += [_verdict(findings, methods), _facts(sources[0].results.study, findings, methods)]
    return "".join(parts)


def _methods_of(sources: Sequence[Source]) -> list[str]:
    return list(dict.fromkeys(method for source in sources for method in source.methods))


def _verdict(findings: Findings, methods: Sequence[str]) -> str:
    metric = findings.main
    ranked = findings.ranked(methods, metric)
    if metric is None or not ranked:
        return "<p class=verdict>No metric was recorded.</p>"
    federated = _federated(findings, ranked)
    best, *others = federated or ranked
    marks = [method for method in ranked if method not in (best, *others)]
    names = _own_names(findings, methods)
    said = [f"{names[method]} {_figure(findings, method, metric)}" for method in others[:3]]
    said += [f"{len(others) - 3} more methods behind"] if len(others) > 3 else []
    said += [
        f"{names[method]} ({BOUNDS[findings.methods[method]]}) {_figure(findings, method, metric)}" for method in marks
    ]
    text = (
        f"<b>{names[best]}</b> reached <b>{_figure(findings, best, metric)}</b> {escape(words.metric_name(metric))}"
        f"{'; ' if said else ''}{', '.join(said)}."
    )
    return f"<p class=verdict>{text}</p><p class=caution>{_caution(findings, [best, *others], metric, names)}</p>"


def _own_names(findings: Findings, methods: Sequence[str]) -> dict[str, str]:
    """Methods without their folder, escaped, where that leaves no two of one name."""
    own = {method: escape(findings.methods[method]) for method in methods}
    return own if len(set(own.values())) == len(own) else {method: escape(method) for method in methods}


def _caution(findings: Findings, ranked: Sequence[str], metric: str, names: Mapping[str, str]) -> str:
    lines = [findings.lines[method, metric] for method in ranked]
    seeds = sorted({line.seeds for line in lines})
    one = "One seed: how much of this is luck is not known."
    text = one if seeds == [1] else f"Mean ± standard deviation over {words.span(seeds)} seeds."
    if len(lines) > 1:
        first, second = (names[method] for method in ranked[:2])
        lead = abs((lines[0].mean or 0.0) - (lines[1].mean or 0.0))
        if lead < _EQUAL:
            text += f" {first} and {second} are equal."
        elif seeds != [1] and lead <= max(words.finite(line.std) or 0.0 for line in lines[:2]):
            text += f" The lead of {first} over {second} is within one standard deviation."
    alone = [method for method in names if BOUNDS.get(findings.methods[method]) == ALONE and method not in ranked]
    if (order := findings.ranked([*alone, ranked[0]], metric)) and order[0] in alone:
        text += f" Parties that train alone are better: {names[order[0]]}."
    return text


def _facts(study: Mapping[str, Any], findings: Findings, methods: Sequence[str]) -> str:
    runs = [run for run in findings.runs if run.method in methods]
    facts = {
        "Data": words.described(study.get("data")),
        **({"Task": words.described(study["task"])} if study.get("task") else {}),
        "Partition": words.described(study.get("partition")),
        "Parties": str(study.get("parties", "not recorded")),
        "Model": words.described(study.get("model")),
        "Seeds": ", ".join(map(str, sorted({run.seed for run in runs}))) or "none",
        "Rounds": words.span(run.rounds for run in runs),
    }
    return f"<dl class=facts>{''.join(f'<div><dt>{k}</dt><dd>{escape(v)}</dd></div>' for k, v in facts.items())}</dl>"


def _results(findings: Findings) -> str:
    metrics = findings.metrics
    groups = Counter(
        "Test" if words.kind(m) == "test" else "Validation" if words.kind(m) == "val" else "Other" for m in metrics
    )
    over = "".join(f'<th scope=colgroup colspan="{count}">{group}</th>' for group, count in groups.items())
    names = "".join(
        page.head(f"{words.metric_name(m, bare=words.kind(m) in ('test', 'val'))}{words.unit(m)}", "n") for m in metrics
    )
    best = {metric: next(iter(_best(findings, metric)), None) for metric in metrics}
    rows = []
    for method in findings.methods:
        cells = [_score(findings.lines.get((method, m)), m, best[m] == method) for m in metrics]
        runs = findings.runs_of(method)
        seconds = [run.seconds for run in runs if run.seconds is not None]
        rows.append(
            f"<tr>{_row_head(method, findings)}{''.join(cells)}<td>{escape(words.span(run.seed for run in runs))}</td>"
            f"<td class=whole>{_chosen(runs)}</td><td class=n>{f'{fmean(seconds):.1f} s' if seconds else '–'}</td></tr>"
        )
    own = page.head("Seeds") + page.head("Round reported") + page.head("Time per run", "n")
    head = f"<tr><td></td>{over}<th scope=colgroup colspan=3>Runs</th></tr><tr>{page.head('Method')}{names}{own}</tr>"
    bold = "Bold: the best mean in a column among federated methods. " if any(best.values()) else ""
    note = f"Mean ± standard deviation over seeds. {bold}{_choice_rule(findings)}"
    lead = compared(findings, findings.main, _contests(findings, findings.main)) if findings.main else ""
    table = page.table(head, "".join(rows), note) + _seed_table(findings)
    return _scores_chart(findings) + table + lead + _by_party(findings)


def _best(findings: Findings, metric: str) -> list[str]:
    """Ranked federated methods; none when the folders differ in their setting, where a best one would mean nothing."""
    if len(findings.settings) > 1:
        return []
    return _federated(findings, findings.ranked(findings.methods, metric))


def _federated(findings: Findings, methods: Sequence[str]) -> list[str]:
    """Those that keep data apart and train together."""
    return [method for method in methods if findings.methods[method] not in BOUNDS]


def _contests(findings: Findings, metric: str) -> dict[str, list[str]]:
    """By setting its methods, the best federated one first; a setting without one is left out."""
    contests = {}
    for name, sources in findings.settings.items():
        ranked = findings.ranked(_methods_of(sources), metric)
        if federated := _federated(findings, ranked):
            contests[name] = [federated[0], *(method for method in ranked if method != federated[0])]
    return contests


def _choice_rule(findings: Findings) -> str:
    chosen = [run for run in findings.runs if run.chosen_round is not None]
    early = {run.method for run in chosen if run.chosen_round != run.rounds}
    last = [method for method in dict.fromkeys(run.method for run in chosen) if method not in early]
    if not chosen:
        return "Which round a run reports was not recorded."
    if not early:
        return "Every run reports its last round."
    text = "A run reports one round, chosen on validation data; test data chose nothing."
    return f"{text} For {words.listed(last)} it was the last." if last else text


def _chosen(runs: Sequence[Run]) -> str:
    chosen = [run.chosen_round for run in runs if run.chosen_round is not None]
    return f"{words.span(chosen)} of {words.span(run.rounds for run in runs)}" if chosen else "–"


def _scores_chart(findings: Findings) -> str:
    metric = findings.main
    rows = []
    for method in findings.methods:
        mean = findings.value(method, metric)
        if metric is None or mean is None:
            continue
        points = [(f"seed {run.seed}", words.finite(run.metrics.get(metric))) for run in findings.runs_of(method)]
        known = [(label, value) for label, value in points if value is not None]
        figure = _figure(findings, method, metric)
        rows.append(charts.Dots(method, findings.style(method), known, mean, figure))
    if metric is None or not rows:
        return ""
    title = f"{words.titled(metric)}: a dot per seed, a stroke at the mean"
    chart = charts.dot_chart(title, "Results per method.", rows, words.shown(metric))
    return f"<figure>{chart}</figure>"


def _seed_table(findings: Findings) -> str:
    """What the dots of the chart of scores stand for."""
    metric, seeds = findings.main, sorted({run.seed for run in findings.runs})
    if metric is None:
        return ""
    rows = []
    for method in findings.methods:
        of = {run.seed: run.metrics.get(metric) for run in findings.runs_of(method)}
        cells = "".join(f"<td class=n>{words.number(of.get(seed), metric)}</td>" for seed in seeds)
        rows.append(f"<tr>{_row_head(method, findings)}{cells}</tr>")
    head = f"<tr>{page.head('Method')}{''.join(page.head(f'seed {seed}', 'n') for seed in seeds)}</tr>"
    note = f"{words.titled(metric)}{words.unit(metric)} of every seed."
    return page.folded("The figures, seed by seed", page.table(head, "".join(rows), note))


def _by_party(findings: Findings) -> str:
    values: dict[str, dict[str, list[float]]] = {}
    metrics = list(dict.fromkeys(m for run in findings.runs for each in run.parties.values() for m in each))
    if not metrics:
        return ""
    metric = findings.main if findings.main in metrics else metrics[0]
    for run in findings.runs:
        for party, each in run.parties.items():
            value = words.finite(each.get(metric or ""))
            if value is not None:
                values.setdefault(run.method, {}).setdefault(party, []).append(value)
    means = {method: {party: fmean(each) for party, each in of.items()} for method, of in values.items()}
    if not means:
        return ""
    gains = _gains(findings, means, metric)
    return f"<h3>Party by party</h3>{gains}{_party_chart(findings, means, metric)}{_party_table(means, metric)}"


def _gains(findings: Findings, means: Mapping[str, Mapping[str, float]], metric: str) -> str:
    """Who gains and who loses against training alone, in each setting where a method trained alone."""
    tables = []
    for name, sources in findings.settings.items():
        if table := _gains_in(findings, {each: means[each] for each in _methods_of(sources) if each in means}, metric):
            tables.append(f"<h4>{escape(name)}</h4>{table}" if name else table)
    return "".join(tables)


def _gains_in(findings: Findings, means: Mapping[str, Mapping[str, float]], metric: str) -> str:
    alone = [method for method in means if BOUNDS.get(findings.methods[method]) == ALONE]
    if len(alone) != 1:
        return ""
    own, sign, rows = means[alone[0]], -1 if findings.smaller_leads(metric) else 1, []
    scale = 100 if words.percent(metric) else 1
    for method, of in means.items():
        gains = {party: sign * scale * (of[party] - own[party]) for party in of if party in own}
        if method == alone[0] or not gains:
            continue
        most, least = (pick(gains, key=gains.__getitem__) for pick in (max, min))
        counts = [sum(gain > 0 for gain in gains.values()), sum(gain < 0 for gain in gains.values())]
        told = [f"{escape(party)} {gains[party]:+.3g}" for party in (most, least)]
        cells = "".join(f"<td class=n>{each}</td>" for each in (*counts, *told))
        rows.append(f"<tr>{_row_head(method, findings)}{cells}</tr>")
    if not rows:
        return ""
    names = ("Gain", "Lose", "Most", "Least")
    head = f"<tr>{page.head('Method')}{''.join(page.head(name, 'n') for name in names)}</tr>"
    note = f"Parties against their own model, trained alone: {words.metric_name(metric)}"
    note += f"{' in points' if scale == 100 else ''}, mean over seeds."
    return page.table(head, "".join(rows), note)


def _party_chart(findings: Findings, means: Mapping[str, Mapping[str, float]], metric: str) -> str:
    show = words.shown(metric)
    rows = []
    for method, of in means.items():
        lowest, highest = (words.number(each(of.values()), metric) for each in (min, max))
        text = f"{lowest} to {highest}{' %' if words.percent(metric) else ''}"
        rows.append(charts.Dots(method, findings.style(method), list(of.items()), fmean(of.values()), text))
    title = f"{words.titled(metric)}: a dot per party (mean over seeds), a stroke at the parties' mean"
    return f"<figure>{charts.dot_chart(title, 'Results per party.', rows, show)}</figure>"


def _party_table(means: Mapping[str, Mapping[str, float]], metric: str) -> str:
    parties = sorted({party for of in means.values() for party in of}, key=words.natural)
    if len(parties) > words.PARTIES_SHOWN:
        return f"<p class=note>{len(parties)} parties: too many for a table, all are in results.json.</p>"
    rows = []
    for party in parties:
        cells = "".join(f"<td class=n>{words.number(of.get(party), metric)}</td>" for of in means.values())
        rows.append(f"<tr><th scope=row>{escape(party)}</th>{cells}</tr>")
    head = f"<tr>{page.head('Party')}{''.join(page.head(method, 'n') for method in means)}</tr>"
    note = f"{words.titled(metric)}{words.unit(metric)} of every party, mean over seeds."
    return page.folded("The figures, party by party", page.table(head, "".join(rows), note))


def _places(findings: Findings) -> str:
    """Where items stand after some rounds, of each method's first seed; nothing where nothing was drawn."""
    pictures: dict[tuple[str, int, int], list[tuple[float, float, int]]] = {}
    for row in findings.places.to_pylist():
        key = row["method"], row["seed"], row["round"]
        pictures.setdefault(key, []).append((row["x"], row["y"], row["class"]))
    parts = []
    for method in findings.methods:
        seeds = [seed for name, seed, _ in pictures if name == method]
        mine = sorted(key for key in pictures if key[:2] == (method, min(seeds, default=0)))
        titles = {f"{method}, seed {key[1]}, round {key[2]}": charts.clouds(pictures[key]) for key in mine}
        figures = [f"<figure>{charts.scatter(title, clouds)}</figure>" for title, clouds in titles.items()]
        if figures:
            parts.append(f"<div class=three>{''.join(figures)}</div>")
    note = (
        "Embeddings of all items by the server's model, in two dimensions by t-SNE, which keeps neighbours together; "
    )
    note += "how far apart groups are, and how large, says little. Labels only colour the dots."
    return f"{''.join(parts)}<p class=note>{escape(note)}</p>" if parts else ""


def _traffic(findings: Findings) -> str:
    flows = {method: _flow(findings, method, rows) for method, rows in _bytes_by_round(findings).items()}
    rows = []
    for method, flow in flows.items():
        cells = "".join(f"<td class=n>{page.amount(value)}</td>" for each in flow.values() for value in each)
        rows.append(f"<tr>{_row_head(method, findings)}{cells}</tr>")
    over = "".join(f"<th scope=colgroup colspan=2>{name}</th>" for name in flows[next(iter(flows))]) if flows else ""
    names = (page.head("sent", "n") + page.head("received", "n")) * 3
    note = "Bytes that left the parties (sent) and came to them (received): all parties together, mean over seeds."
    if findings.set_up.num_rows:
        before = sum(findings.set_up["sent"].to_pylist())
        note += (
            f" Before any method the parties of a federation sent {page.amount(before)} to settle what they have alike."
        )
    pooled = [name for name, own in findings.methods.items() if BOUNDS.get(own) == POOLED]
    if pooled:
        note += f" In {words.listed(pooled)} one party holds all data: what pooling them would move is not counted."
    figures = []
    for title in ("Per round", "In all"):
        groups = [charts.Bars(method, findings.style(method), flow[title]) for method, flow in flows.items()]
        figures.append(f"<figure>{charts.bar_chart(title, ('sent', 'received'), groups, words.size)}</figure>")
    table = page.table(f"<tr><td></td>{over}</tr><tr>{page.head('Method')}{names}</tr>", "".join(rows), note)
    return f"<div class=pair>{''.join(figures)}</div>{table}"


def _bytes_by_round(findings: Findings) -> dict[str, list[dict[str, Any]]]:
    sums = findings.ledger.group_by(["method", "seed", "round"], use_threads=False)
    rows: dict[str, list[dict[str, Any]]] = {method: [] for method in findings.methods}
    for row in sums.aggregate([("sent", "sum"), ("received", "sum")]).to_pylist():
        rows.setdefault(row["method"], []).append(row)
    return {method: rows[method] for method in findings.methods}


def _flow(findings: Findings, method: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """Bytes sent and received: at set-up, per round and in all, each as a mean over the method's runs."""
    runs = findings.runs_of(method)
    seeds = len(runs) or 1
    rounds = sum(run.rounds for run in runs) or len({(row["seed"], row["round"]) for row in rows if row["round"]}) or 1

    def total(of: Callable[[int], bool], share: int) -> tuple[float, float]:
        chosen = [row for row in rows if of(row["round"])]
        return sum(row["sent_sum"] for row in chosen) / share, sum(row["received_sum"] for row in chosen) / share

    return {
        "Set-up": total(lambda round_: round_ == 0, seeds),
        "Per round": total(lambda round_: round_ > 0, rounds),
        "In all": total(lambda _: True, seeds),
    }


def _reproduce(findings: Findings) -> str:
    sources = findings.sources
    packages = list(dict.fromkeys(name for source in sources for name in source.results.versions))
    rows = [(name, [str(source.results.versions.get(name, "–")) for source in sources]) for name in packages]
    rows.append(("results of", [source.results.created for source in sources]))
    rows.append(("seeds", [source.results.seeds for source in sources]))
    body = "".join(
        f"<tr><th scope=row>{escape(name)}</th>{''.join(f'<td>{escape(each)}</td>' for each in values)}</tr>"
        for name, values in rows
    )
    head = f"<tr>{page.head('')}{''.join(page.head(source.name) for source in sources)}</tr>"
    studies = "".join(
        f"<h3>{escape(source.name)}/study.toml</h3><pre><code>{escape(source.toml)}</code></pre>" for source in sources
    )
    return (
        f"{page.table(head, body, 'The same study with the same versions and seeds gives the same figures.')}{studies}"
    )


def _with_spread(line: Line, metric: str) -> str:
    alone = line.seeds < 2 or words.finite(line.std) is None
    return (
        words.number(line.mean, metric)
        if alone
        else f"{words.number(line.mean, metric)} ± {words.number(line.std, metric)}"
    )


def _figure(findings: Findings, method: str, metric: str) -> str:
    text = _with_spread(findings.lines[method, metric], metric) + (" %" if words.percent(metric) else "")
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _score(line: Line | None, metric: str, best: bool) -> str:
    text = _with_spread(line, metric) if line else "–"
    return f"<td class=n>{f'<b>{text}</b>' if best else text}</td>"


def _row_head(method: str, findings: Findings) -> str:
    aside = BOUNDS.get(findings.methods[method])
    note = f" <small>{aside}</small>" if aside else ""
    return f'<th scope=row class="s{findings.style(method) % 8}"><i></i>{escape(method)}{note}</th>'
