"""One HTML file that tells what a study found, what it cost in traffic, and who saw what.

The page needs nothing else: no network, no script, no image files. The same results give the same page, byte for byte.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import BaseModel, ValidationError

from isthmus import store
from isthmus.errors import IsthmusError
from isthmus.study import charts

HISTORY = {"method": "string", "seed": "int64", "round": "int64", "metric": "string", "value": "float64"}
"""Columns of history.parquet, with their types."""

LEDGER = {
    **dict.fromkeys(("method", "verb", "action", "party", "eyes", "fields", "protection", "status", "note"), "string"),
    **dict.fromkeys(("seed", "round", "call", "sent", "received"), "int64"),
}
"""Columns of ledger.parquet, with their types."""

BOUNDS = {"centralized": "all data pooled", "local": "every party alone"}
"""Methods that are no federation but the marks to measure one against."""

_EXPOSURE = {
    "server sees each answer": "each",
    "server sees the sum": "sum",
    "parties see the sum": "parties",
    "the addressed party": "parties",
}
"""How the page marks the ledger's eyes; what it does not know it marks as the widest."""

_SMALLER_IS_BETTER = ("loss", "error", "mae", "mse", "rmse")
_FAILURES_SHOWN = 100
_PARTIES_SHOWN = 50


class _Run(BaseModel):
    method: str
    seed: int
    rounds: int = 0
    chosen_round: int | None = None
    seconds: float | None = None
    metrics: dict[str, float | None] = {}
    parties: dict[str, dict[str, float | None]] = {}


class _Line(BaseModel):
    method: str
    metric: str
    mean: float | None
    std: float | None = None
    seeds: int = 1


class _Results(BaseModel):
    isthmus: str = ""
    created: str = ""
    versions: dict[str, Any] = {}
    study: dict[str, Any]
    runs: list[_Run]
    summary: list[_Line]


@dataclass(frozen=True)
class _Source:
    """One result folder; its methods already carry the names that the page gives them."""

    name: str
    results: _Results
    toml: str
    history: Any
    ledger: Any

    @property
    def setting(self) -> str:
        """What must be equal for figures to be comparable."""
        study = self.results.study
        return json.dumps([study.get(part) for part in ("data", "partition", "parties", "model")], sort_keys=True)

    @property
    def methods(self) -> list[str]:
        """Every method that is spoken of anywhere: what only the ledger knows left a party too."""
        lines: list[_Line | _Run] = [*self.results.runs, *self.results.summary]
        tables = [*self.history["method"].unique().to_pylist(), *self.ledger["method"].unique().to_pylist()]
        return list(dict.fromkeys([*(line.method for line in lines), *(each or "unnamed" for each in tables)]))


@dataclass(frozen=True)
class _Findings:
    """All folders together; `methods` maps the name on the page to the method's own name."""

    sources: list[_Source]
    methods: dict[str, str]
    runs: list[_Run]
    lines: dict[tuple[str, str], _Line]
    history: Any
    ledger: Any

    @property
    def metrics(self) -> list[str]:
        """Test metrics first, then validation, then the rest; accuracy leads where there is one."""
        metrics = dict.fromkeys(metric for _, metric in self.lines)
        kinds = {"test": 0, "val": 1}
        return sorted(metrics, key=lambda metric: (kinds.get(_kind(metric), 2), not metric.endswith("_accuracy")))

    @property
    def main(self) -> str | None:
        """The metric that the headline speaks of."""
        return next(iter(self.metrics), None)

    def style(self, method: str) -> int:
        return list(self.methods).index(method)

    def runs_of(self, method: str) -> list[_Run]:
        return [run for run in self.runs if run.method == method]

    def value(self, method: str, metric: str | None) -> float | None:
        line = self.lines.get((method, metric or ""))
        return _finite(line.mean) if line else None


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
    findings = _combined([_read(Path(folder)) for folder in dict.fromkeys(folders)])
    target = Path(folders[0]) / "report.html" if out is None else Path(out)
    store.write(target, _page(findings))
    return target


# Reading


def _read(folder: Path) -> _Source:
    for name in ("study.toml", "results.json", "history.parquet", "ledger.parquet"):
        if not (folder / name).is_file():
            raise IsthmusError(f"no {name} in '{folder}': name a folder that a finished study has written")
    return _Source(
        name=folder.resolve().name,
        results=_read_results(folder / "results.json"),
        toml=_read_text(folder / "study.toml"),
        history=_read_table(folder / "history.parquet", HISTORY),
        ledger=_read_table(folder / "ledger.parquet", LEDGER),
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error


def _read_results(path: Path) -> _Results:
    try:
        results = _Results.model_validate(json.loads(_read_text(path)))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise _unreadable(path, f"{where}: {first['msg']}") from error
    except ValueError as error:
        raise _unreadable(path, error) from error
    if not results.runs:
        raise _unreadable(path, "it holds no run")
    return results


def _read_table(path: Path, columns: Mapping[str, str]) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns.items()])
    try:
        with pq.ParquetFile(path) as file:
            table = file.read()
        missing = [name for name in columns if name not in table.column_names]
        if missing:
            raise _unreadable(path, f"column '{missing[0]}' is missing")
        return table.select(list(columns)).cast(schema)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, reason: object) -> IsthmusError:
    text = " ".join(str(reason).split())[:200]
    return IsthmusError(f"cannot read '{path}': {text}: run the study again, or restore the file")


def _combined(sources: list[_Source]) -> _Findings:
    import pyarrow as pa

    homes = Counter(method for source in sources for method in source.methods)
    folders = Counter(source.name for source in sources)
    methods: dict[str, str] = {}
    named = []
    for order, source in enumerate(sources, 1):
        folder = source.name if folders[source.name] == 1 else f"{source.name} #{order}"
        names = {each: each if homes[each] == 1 else f"{each} ({folder})" for each in source.methods}
        methods |= {name: each for each, name in names.items()}
        named.append(_renamed(source, folder, names))
    return _Findings(
        sources=named,
        methods=methods,
        runs=[run for source in named for run in source.results.runs],
        lines={(line.method, line.metric): line for source in named for line in source.results.summary},
        history=pa.concat_tables([source.history for source in named]),
        ledger=pa.concat_tables([source.ledger for source in named]),
    )


def _renamed(source: _Source, folder: str, names: Mapping[str, str]) -> _Source:
    import pyarrow as pa

    def table(old: Any) -> Any:
        column = [names[each or "unnamed"] for each in old["method"].to_pylist()]
        return old.set_column(old.column_names.index("method"), "method", pa.array(column, pa.string()))

    results = source.results.model_copy(
        update={
            "runs": [run.model_copy(update={"method": names[run.method]}) for run in source.results.runs],
            "summary": [line.model_copy(update={"method": names[line.method]}) for line in source.results.summary],
        }
    )
    return _Source(folder, results, source.toml, table(source.history), table(source.ledger))


# Sections


def _page(findings: _Findings) -> str:
    title = _title(findings)
    sections = [
        ("results", "Results", _results(findings)),
        ("curves", "Learning curves", _curves(findings)),
        ("traffic", "Traffic", _traffic(findings)),
        ("ledger", "Who saw what", _ledger(findings)),
        ("reproduce", "Reproducibility", _reproduce(findings)),
    ]
    links = " ".join(f'<a href="#{key}">{name}</a>' for key, name, _ in sections)
    bodies = "".join(f'<section id="{key}"><h2>{name}</h2>{body}</section>' for key, name, body in sections)
    made = sorted({f"Isthmus {s.results.isthmus}, results of {s.results.created}" for s in findings.sources})
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)} · Isthmus</title><style>{_STYLE}{charts.STYLE}</style></head><body>"
        f"<header><p class=kicker>Federated graph study</p><h1>{escape(title)}</h1>{_headline(findings)}"
        f"<nav aria-label=Sections>{links}</nav></header><main>{bodies}</main>"
        f"<footer>{'<br>'.join(map(escape, made))}</footer></body></html>\n"
    )


def _title(findings: _Findings) -> str:
    studies = [source.results.study for source in findings.sources]
    data = " and ".join(dict.fromkeys(_described(study.get("data"), brief=True) for study in studies))
    parties = " or ".join(dict.fromkeys(str(study.get("parties", "several")) for study in studies))
    return f"{data} across {parties} {'party' if parties == '1' else 'parties'}"


def _headline(findings: _Findings) -> str:
    """A verdict and the facts for every setting: figures from different settings do not belong in one sentence."""
    settings: dict[str, list[_Source]] = {}
    for source in findings.sources:
        settings.setdefault(source.setting, []).append(source)
    parts = []
    for sources in settings.values():
        if len(settings) > 1:
            parts.append(f"<h2 class=setting>{escape(', '.join(source.name for source in sources))}</h2>")
        methods = list(dict.fromkeys(method for source in sources for method in source.methods))
        parts += [_verdict(findings, methods), _facts(sources[0].results.study, findings, methods)]
    return "".join(parts)


def _verdict(findings: _Findings, methods: Sequence[str]) -> str:
    metric = findings.main
    ranked = _ranked(findings, methods, metric)
    if metric is None or not ranked:
        return "<p class=verdict>No metric was recorded.</p>"
    federated = [method for method in ranked if findings.methods[method] not in BOUNDS]
    best, *others = federated or ranked
    marks = [method for method in ranked if method not in (best, *others)]
    names = _own_names(findings, methods)
    said = [f"{names[method]} {_figure(findings, method, metric)}" for method in others[:3]]
    said += [f"{len(others) - 3} more methods behind"] if len(others) > 3 else []
    said += [
        f"{names[method]} ({BOUNDS[findings.methods[method]]}) {_figure(findings, method, metric)}" for method in marks
    ]
    text = (
        f"<b>{names[best]}</b> reached <b>{_figure(findings, best, metric)}</b> {escape(_metric_name(metric))}"
        f"{'; ' if said else ''}{', '.join(said)}."
    )
    return f"<p class=verdict>{text}</p><p class=caution>{_caution(findings, [best, *others], metric, names)}</p>"


def _own_names(findings: _Findings, methods: Sequence[str]) -> dict[str, str]:
    """Methods without their folder, escaped, where that leaves no two of one name."""
    own = {method: escape(findings.methods[method]) for method in methods}
    return own if len(set(own.values())) == len(own) else {method: escape(method) for method in methods}


def _caution(findings: _Findings, ranked: Sequence[str], metric: str, names: Mapping[str, str]) -> str:
    lines = [findings.lines[method, metric] for method in ranked]
    seeds = sorted({line.seeds for line in lines})
    if seeds == [1]:
        return "One seed: how much of this is luck is not known."
    text = f"Mean ± standard deviation over {_span(seeds)} seeds."
    if len(lines) > 1:
        lead = abs((lines[0].mean or 0.0) - (lines[1].mean or 0.0))
        if lead <= max(_finite(line.std) or 0.0 for line in lines[:2]):
            text += f" The lead of {names[ranked[0]]} over {names[ranked[1]]} is within one standard deviation."
    return text


def _facts(study: Mapping[str, Any], findings: _Findings, methods: Sequence[str]) -> str:
    runs = [run for run in findings.runs if run.method in methods]
    facts = {
        "Data": _described(study.get("data")),
        "Partition": _described(study.get("partition")),
        "Parties": str(study.get("parties", "not recorded")),
        "Model": _described(study.get("model")),
        "Seeds": ", ".join(map(str, sorted({run.seed for run in runs}))) or "none",
        "Rounds": _span(run.rounds for run in runs),
    }
    return f"<dl class=facts>{''.join(f'<div><dt>{k}</dt><dd>{escape(v)}</dd></div>' for k, v in facts.items())}</dl>"


def _results(findings: _Findings) -> str:
    metrics = findings.metrics
    groups = Counter("Test" if _kind(m) == "test" else "Validation" if _kind(m) == "val" else "Other" for m in metrics)
    over = "".join(f'<th scope=colgroup colspan="{count}">{group}</th>' for group, count in groups.items())
    names = "".join(_head(f"{_metric_name(m, bare=_kind(m) in ('test', 'val'))}{_unit(m)}", "n") for m in metrics)
    best = {metric: next(iter(_best(findings, metric)), None) for metric in metrics}
    rows = []
    for method in findings.methods:
        cells = [_score(findings.lines.get((method, m)), m, best[m] == method) for m in metrics]
        runs = findings.runs_of(method)
        seconds = [run.seconds for run in runs if run.seconds is not None]
        rows.append(
            f"<tr>{_row_head(method, findings)}{''.join(cells)}<td>{escape(_span(run.seed for run in runs))}</td>"
            f"<td class=whole>{_chosen(runs)}</td><td class=n>{f'{fmean(seconds):.1f} s' if seconds else '–'}</td></tr>"
        )
    head = (
        f"<tr><td></td>{over}<th scope=colgroup colspan=3>Runs</th></tr>"
        f"<tr>{_head('Method')}{names}{_head('Seeds')}{_head('Round reported')}{_head('Time per run', 'n')}</tr>"
    )
    note = (
        "Mean ± standard deviation over seeds. Bold: the best mean in a column among methods that keep the data apart. "
        f"{_choice_rule(findings)}"
    )
    return _scores_chart(findings) + _table(head, "".join(rows), note) + _by_party(findings)


def _best(findings: _Findings, metric: str) -> list[str]:
    """Ranked federated methods; none when the folders differ in their setting, where a best one would mean nothing."""
    if len({source.setting for source in findings.sources}) > 1:
        return []
    return _ranked(findings, [each for each, own in findings.methods.items() if own not in BOUNDS], metric)


def _choice_rule(findings: _Findings) -> str:
    chosen = [run for run in findings.runs if run.chosen_round is not None]
    early = {run.method for run in chosen if run.chosen_round != run.rounds}
    last = [method for method in dict.fromkeys(run.method for run in chosen) if method not in early]
    if not chosen:
        return "Which round a run reports was not recorded."
    if not early:
        return "Every run reports its last round."
    text = "A run reports one round, chosen on validation data; test data chose nothing."
    return f"{text} For {_listed(last)} it was the last." if last else text


def _chosen(runs: Sequence[_Run]) -> str:
    chosen = [run.chosen_round for run in runs if run.chosen_round is not None]
    return f"{_span(chosen)} of {_span(run.rounds for run in runs)}" if chosen else "–"


def _scores_chart(findings: _Findings) -> str:
    metric = findings.main
    rows = []
    for method in findings.methods:
        mean = findings.value(method, metric)
        if metric is None or mean is None:
            continue
        points = [(f"seed {run.seed}", _finite(run.metrics.get(metric))) for run in findings.runs_of(method)]
        known = [(label, value) for label, value in points if value is not None]
        figure = _figure(findings, method, metric)
        rows.append(charts.Dots(method, findings.style(method), known, mean, figure))
    if metric is None or not rows:
        return ""
    title = f"{_titled(metric)}: a dot per seed, a stroke at the mean"
    return f"<figure>{charts.dot_chart(title, 'Results per method.', rows, _shown(metric))}</figure>"


def _by_party(findings: _Findings) -> str:
    values: dict[str, dict[str, list[float]]] = {}
    metrics = list(dict.fromkeys(m for run in findings.runs for each in run.parties.values() for m in each))
    if not metrics:
        return ""
    metric = findings.main if findings.main in metrics else metrics[0]
    for run in findings.runs:
        for party, each in run.parties.items():
            value = _finite(each.get(metric or ""))
            if value is not None:
                values.setdefault(run.method, {}).setdefault(party, []).append(value)
    means = {method: {party: fmean(each) for party, each in of.items()} for method, of in values.items()}
    return (
        f"<h3>Party by party</h3>{_party_chart(findings, means, metric)}{_party_table(means, metric)}" if means else ""
    )


def _party_chart(findings: _Findings, means: Mapping[str, Mapping[str, float]], metric: str) -> str:
    show = _shown(metric)
    rows = []
    for method, of in means.items():
        lowest, highest = (_number(each(of.values()), metric) for each in (min, max))
        text = f"{lowest} to {highest}{' %' if _percent(metric) else ''}"
        rows.append(charts.Dots(method, findings.style(method), list(of.items()), fmean(of.values()), text))
    title = f"{_titled(metric)}: a dot per party (mean over seeds), a stroke at the parties' mean"
    return f"<figure>{charts.dot_chart(title, 'Results per party.', rows, show)}</figure>"


def _party_table(means: Mapping[str, Mapping[str, float]], metric: str) -> str:
    parties = sorted({party for of in means.values() for party in of}, key=_natural)
    if len(parties) > _PARTIES_SHOWN:
        return f"<p class=note>{len(parties)} parties: too many for a table, all are in results.json.</p>"
    rows = []
    for party in parties:
        cells = "".join(f"<td class=n>{_number(of.get(party), metric)}</td>" for of in means.values())
        rows.append(f"<tr><th scope=row>{escape(party)}</th>{cells}</tr>")
    head = f"<tr>{_head('Party')}{''.join(_head(method, 'n') for method in means)}</tr>"
    note = f"{_titled(metric)}{_unit(metric)} of every party, mean over seeds."
    return f"<details><summary>The figures, party by party</summary>{_table(head, ''.join(rows), note)}</details>"


def _curves(findings: _Findings) -> str:
    drawn = _history(findings)
    bases = list(dict.fromkeys(_base(metric) for metric in [*findings.metrics, *drawn]))
    parts: list[str] = []
    for base in bases:
        metrics = [metric for metric in (f"val_{base}", f"test_{base}", f"train_{base}", base) if metric in drawn]
        if not metrics:
            continue
        # One value axis for both, so that validation and test can be compared by eye.
        ranges = [charts.value_range(drawn[metric]) for metric in metrics]
        bounds = min(low for low, _ in ranges), max(high for _, high in ranges)
        pair = "".join(
            f"<figure>{charts.line_chart(_titled(m), drawn[m], _shown(m), bounds)}</figure>" for m in metrics
        )
        pair = f"<div class=pair>{pair}</div>"
        name = _titled(base)
        parts.append(f"<details><summary>{escape(name)}</summary>{pair}</details>" if parts else pair)
    bare = [method for method in findings.methods if not any(c.name == method for each in drawn.values() for c in each)]
    note = "Lines: mean over seeds. Bands: lowest to highest seed. Test curves are for reading; they choose no round."
    if bare:
        note += f" No value per round was recorded for {_listed(bare)}."
    return f"{''.join(parts)}<p class=note>{escape(note)}</p>"


def _history(findings: _Findings) -> dict[str, list[charts.Curve]]:
    """Curves by metric, in the page's order of methods."""
    import pyarrow.compute as pc

    known = findings.history.filter(pc.is_finite(findings.history["value"]))
    spans = known.group_by(["metric", "method", "round"], use_threads=False)
    spans = spans.aggregate([("value", "mean"), ("value", "min"), ("value", "max")]).sort_by("round")
    points: dict[tuple[str, str], list[tuple[int, float, float, float]]] = {}
    for row in spans.to_pylist():
        point = (row["round"], row["value_mean"], row["value_min"], row["value_max"])
        points.setdefault((row["metric"], row["method"]), []).append(point)
    curves: dict[str, list[charts.Curve]] = {}
    for metric in dict.fromkeys(metric for metric, _ in points):
        for method in findings.methods:
            if (metric, method) in points:
                rounds, *values = zip(*points[metric, method], strict=True)
                curves.setdefault(metric, []).append(charts.Curve(method, findings.style(method), rounds, *values))
    return curves


def _traffic(findings: _Findings) -> str:
    flows = {method: _flow(findings, method, rows) for method, rows in _bytes_by_round(findings).items()}
    rows = []
    for method, flow in flows.items():
        cells = "".join(f"<td class=n>{_bytes(value)}</td>" for each in flow.values() for value in each)
        rows.append(f"<tr>{_row_head(method, findings)}{cells}</tr>")
    over = "".join(f"<th scope=colgroup colspan=2>{name}</th>" for name in flows[next(iter(flows))]) if flows else ""
    names = (_head("sent", "n") + _head("received", "n")) * 3
    note = "Bytes that left the parties (sent) and came to them (received): all parties together, mean over seeds."
    pooled = [name for name, own in findings.methods.items() if own == "centralized"]
    if pooled:
        note += f" In {_listed(pooled)} one party holds all data: what pooling them would move is not counted."
    figures = []
    for title in ("Per round", "In all"):
        groups = [charts.Bars(method, findings.style(method), flow[title]) for method, flow in flows.items()]
        figures.append(f"<figure>{charts.bar_chart(title, ('sent', 'received'), groups, _bytes_text)}</figure>")
    table = _table(f"<tr><td></td>{over}</tr><tr>{_head('Method')}{names}</tr>", "".join(rows), note)
    return f"<div class=pair>{''.join(figures)}</div>{table}"


def _bytes_by_round(findings: _Findings) -> dict[str, list[dict[str, Any]]]:
    sums = findings.ledger.group_by(["method", "seed", "round"], use_threads=False)
    rows: dict[str, list[dict[str, Any]]] = {method: [] for method in findings.methods}
    for row in sums.aggregate([("sent", "sum"), ("received", "sum")]).to_pylist():
        rows.setdefault(row["method"], []).append(row)
    return {method: rows[method] for method in findings.methods}


def _flow(findings: _Findings, method: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
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


def _ledger(findings: _Findings) -> str:
    bodies = []
    entries = _entries(findings)
    for method in findings.methods:
        runs = len(findings.runs_of(method)) or 1
        rows = [_entry_rows(entry, runs) for entry in entries.get(method, [])]
        if findings.methods[method] == "centralized":
            rows.insert(
                0, _said("All data were pooled before; the ledger does not record that. Here one party holds all.")
            )
        elif not rows:
            rows = [_said("Nothing left any party.")]
        bodies.append(
            f'<tbody class="s{findings.style(method) % 8}"><tr><th class=method scope=rowgroup colspan=9>'
            f"<i></i>{escape(method)}</th></tr>{''.join(rows)}</tbody>"
        )
    names = ("Action", "Verb", "Who sees it", "What left the party", "Protection")
    counts = ("Calls", "Parties", "Sent", "Received")
    head = f"<tr>{''.join(map(_head, names))}{''.join(_head(count, 'n') for count in counts)}</tr>"
    note = "Calls and bytes are those of one run (mean over seeds), all parties together."
    return _table(head, "".join(bodies), note, grouped=True) + _failures(findings)


def _entries(findings: _Findings) -> dict[str, list[dict[str, Any]]]:
    """Per method its actions, with the calls and the fewest and most parties that answered one."""
    import pyarrow.compute as pc

    keys = ["method", "action", "verb", "eyes", "protection"]
    rows = findings.ledger.group_by(keys, use_threads=False).aggregate(
        [("fields", "distinct"), ("party", "distinct"), ("sent", "sum"), ("received", "sum")]
    )
    answered = pc.cast(pc.equal(findings.ledger["status"], "answered"), "int64")
    calls = findings.ledger.append_column("answered", answered).group_by([*keys, "seed", "round", "call"])
    answers: dict[tuple[str, ...], list[int]] = {}
    for call in calls.aggregate([("answered", "sum")]).to_pylist():
        answers.setdefault(tuple(call[key] for key in keys), []).append(call["answered_sum"] or 0)
    entries: dict[str, list[dict[str, Any]]] = {}
    for row in rows.to_pylist():
        row["answers"] = answers[tuple(row[key] for key in keys)]
        entries.setdefault(row["method"], []).append(row)
    return entries


def _entry_rows(entry: Mapping[str, Any], runs: int) -> str:
    fields = _fields(entry["fields_distinct"])
    listed = escape(", ".join(_grouped(fields)) or "nothing")
    if fields:
        listed = f"<details><summary>{listed}</summary>{escape(_with_shapes(fields))}</details>"
    eyes = entry["eyes"] or "not recorded"
    counts = [f"{len(entry['answers']) / runs:.4g}", str(len(entry["party_distinct"]))]
    counts += [_bytes(entry[flow] / runs) for flow in ("sent_sum", "received_sum")]
    return (
        f"<tr><th scope=row>{escape(entry['action'] or '')}</th><td>{escape(entry['verb'] or '')}</td>"
        f'<td><span class="eyes {_EXPOSURE.get(eyes, "each")}">{escape(eyes)}</span></td>'
        f"<td class=fields>{listed}</td><td>{escape(entry['protection'] or 'none')}</td>"
        f"{''.join(f'<td class=n>{count}</td>' for count in counts)}</tr>"
        f"{_said(_in_plain_words(entry, fields))}"
    )


def _said(text: str) -> str:
    return f"<tr><td class=said colspan=9>{escape(text)}</td></tr>"


def _in_plain_words(entry: Mapping[str, Any], fields: Mapping[str, Iterable[str]]) -> str:
    """Who saw what in this action, and what it rests on where no protection was on."""
    what = _listed(_grouped(fields))
    answers = [count for count in entry["answers"] if count]
    if not answers:
        return "No party answered."
    if not what:
        return "The parties only said that they were done; no field left them."
    bare = (entry["protection"] or "none") == "none"
    match entry["eyes"]:
        case "server sees each answer":
            return f"The server saw each party's {what}."
        case "server sees the sum":
            if max(answers) == 1:
                return f"The server saw {what} of the only party that answered: a sum over one hides nothing."
            over = " to ".join(map(str, sorted({min(answers), max(answers)})))
            words = f"The server saw only sums of {what}, each over {over} parties."
            if 1 in answers:
                words += f" Sums over one party alone, and so its own: {answers.count(1)}."
            hidden = "The summands were not hidden from whoever operates the server."
        case "parties see the sum":
            words = f"Only the parties saw sums of {what}; the server's side of the method saw nothing of it."
            hidden = "The summands were not hidden from whoever operates the server."
        case "the addressed party":
            words = f"Only the addressed party saw {what}; the server's side of the method learned sizes alone."
            hidden = "The messages were not sealed against whoever operates the server."
        case other:
            return f"Seen by: {other or 'not recorded'}: {what}."
    return f"{words} {hidden}" if bare else f"{words} Protected by {entry['protection']}."


def _failures(findings: _Findings) -> str:
    import pyarrow.compute as pc

    ledger = findings.ledger
    failed = ledger.filter(pc.not_equal(pc.fill_null(ledger["status"], "not recorded"), "answered"))
    if not failed.num_rows:
        said = f"Every party answered every time ({ledger.num_rows:,} answers)." if ledger.num_rows else ""
        return f"<p class=note>{said}</p>"
    rows = []
    for row in failed.slice(0, _FAILURES_SHOWN).to_pylist():
        cells = "".join(f"<td>{escape(str(row[key] or ''))}</td>" for key in ("action", "party", "status", "note"))
        rows.append(
            f"<tr><th scope=row>{escape(row['method'] or '')}</th><td class=n>{row['seed']}</td>"
            f"<td class=n>{row['round']}</td>{cells}</tr>"
        )
    names = ("Method", "Seed", "Round", "Action", "Party", "Status", "Note")
    head = f"<tr>{''.join(_head(name, 'n' if name in ('Seed', 'Round') else '') for name in names)}</tr>"
    note = f"{failed.num_rows:,} of {ledger.num_rows:,} times a party gave no answer."
    if failed.num_rows > _FAILURES_SHOWN:
        note += f" The first {_FAILURES_SHOWN} are listed; all are in ledger.parquet."
    return f"<h3>Failures</h3>{_table(head, ''.join(rows), note)}"


def _reproduce(findings: _Findings) -> str:
    sources = findings.sources
    packages = list(dict.fromkeys(name for source in sources for name in source.results.versions))
    rows = [("isthmus", [source.results.isthmus for source in sources])]
    rows += [(name, [str(source.results.versions.get(name, "–")) for source in sources]) for name in packages]
    rows.append(("results of", [source.results.created for source in sources]))
    rows.append(("seeds", [_seeds(source.results) for source in sources]))
    body = "".join(
        f"<tr><th scope=row>{escape(name)}</th>{''.join(f'<td>{escape(each)}</td>' for each in values)}</tr>"
        for name, values in rows
    )
    head = f"<tr>{_head('')}{''.join(_head(source.name) for source in sources)}</tr>"
    studies = "".join(
        f"<h3>{escape(source.name)}/study.toml</h3><pre><code>{escape(source.toml)}</code></pre>" for source in sources
    )
    return f"{_table(head, body, 'The same study with the same versions and seeds gives the same figures.')}{studies}"


# Words and figures


def _seeds(results: _Results) -> str:
    return ", ".join(map(str, sorted({run.seed for run in results.runs})))


def _ranked(findings: _Findings, methods: Iterable[str], metric: str | None) -> list[str]:
    """Methods that have the metric, best mean first."""
    values = {method: findings.value(method, metric) for method in methods}
    sign = 1 if (metric or "").endswith(_SMALLER_IS_BETTER) else -1
    known = {method: sign * value for method, value in values.items() if value is not None}
    return sorted(known, key=lambda method: known[method])


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _kind(metric: str) -> str:
    return metric.partition("_")[0]


def _base(metric: str) -> str:
    kind, _, rest = metric.partition("_")
    return rest if kind in ("train", "val", "test") and rest else metric


def _metric_name(metric: str, bare: bool = False) -> str:
    words = (_base(metric) if bare else metric).split("_")
    spelled = {"val": "validation", "f1": "F1", "auc": "AUC"}
    return " ".join(spelled.get(word, word) for word in words)


def _titled(metric: str) -> str:
    name = _metric_name(metric)
    return name[:1].upper() + name[1:]


def _percent(metric: str) -> bool:
    return metric.endswith(("accuracy", "f1", "auc"))


def _unit(metric: str) -> str:
    return " (%)" if _percent(metric) else ""


def _shown(metric: str) -> Callable[[float], str]:
    return (lambda value: f"{100 * value:.4g} %") if _percent(metric) else (lambda value: f"{value:.4g}")


def _number(value: float | None, metric: str) -> str:
    known = _finite(value)
    if known is None:
        return "–"
    if _percent(metric):
        return f"{100 * known:.1f}"
    return f"{known:.3f}" if 0.001 <= abs(known) < 1000 or known == 0 else f"{known:.3g}"


def _with_spread(line: _Line, metric: str) -> str:
    alone = line.seeds < 2 or _finite(line.std) is None
    return _number(line.mean, metric) if alone else f"{_number(line.mean, metric)} ± {_number(line.std, metric)}"


def _figure(findings: _Findings, method: str, metric: str) -> str:
    text = _with_spread(findings.lines[method, metric], metric) + (" %" if _percent(metric) else "")
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _score(line: _Line | None, metric: str, best: bool) -> str:
    text = _with_spread(line, metric) if line else "–"
    return f"<td class=n>{f'<b>{text}</b>' if best else text}</td>"


def _bytes_text(count: float) -> str:
    """Bytes in the decimal units that networks are sold in."""
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 999.5:
            break
        size, unit = size / 1000, larger
    return f"{size:.3g} {unit}"


def _bytes(count: float) -> str:
    return f'<data value="{count:.0f}" title="{count:,.0f} bytes">{_bytes_text(count)}</data>'


def _span(numbers: Iterable[int]) -> str:
    known = sorted(set(numbers))
    if not known:
        return "–"
    if len(known) > 2 and known[-1] - known[0] > len(known) - 1:
        return f"{known[0]} to {known[-1]}"
    return str(known[0]) if len(known) == 1 else f"{known[0]}{', ' if len(known) == 2 else ' to '}{known[-1]}"


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _natural(text: str) -> list[tuple[int, str]]:
    """party-2 before party-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


def _described(part: Any, brief: bool = False) -> str:
    """A part of the study in words: its name first, then its options.

    >>> _described({"encoder": "gcn", "hidden": 64})
    'gcn (hidden 64)'
    """
    if not isinstance(part, Mapping):
        return "not recorded" if part is None else str(part)
    options = {key: value for key, value in part.items() if value is not None}
    name = str(options.pop("name", None) or options.pop("encoder", None) or "unnamed")
    said = [f"{key.replace('_', ' ')} {_described(value)}" for key, value in options.items()]
    return name if brief or not said else f"{name} ({', '.join(said)})"


def _fields(texts: Iterable[str | None]) -> dict[str, list[str]]:
    """Every field with the shapes it had, from texts such as `weights/conv1.bias[64], count`."""
    fields: dict[str, list[str]] = {}
    for text in texts:
        for part in re.split(r",\s*(?![^\[\]]*\])", text or ""):
            name, bracket, shape = part.strip().partition("[")
            shapes = fields.setdefault(name, []) if name else []
            if bracket + shape not in shapes:
                shapes.append(bracket + shape)
    return fields


def _with_shapes(fields: Mapping[str, Sequence[str]]) -> str:
    """All fields with the first few shapes of each: a hundred parties may send a hundred different ones."""
    return ", ".join(
        name + ", ".join([*shapes[:3], *(["…"] if len(shapes) > 3 else [])]) for name, shapes in fields.items()
    )


def _grouped(fields: Iterable[str]) -> list[str]:
    """Fields under one name counted together.

    >>> _grouped(["weights/a", "weights/b", "count"])
    ['weights (2 fields)', 'count']
    """
    groups = Counter(name.partition("/")[0] for name in fields)
    return [f"{name} ({count} fields)" if count > 1 else name for name, count in groups.items()]


def _head(text: str, kind: str = "") -> str:
    return f'<th scope=col class="{kind}">{escape(text)}</th>'


def _row_head(method: str, findings: _Findings) -> str:
    aside = BOUNDS.get(findings.methods[method])
    note = f" <small>{aside}</small>" if aside else ""
    return f'<th scope=row class="s{findings.style(method) % 8}"><i></i>{escape(method)}{note}</th>'


def _table(head: str, body: str, note: str, grouped: bool = False) -> str:
    rows = body if grouped else f"<tbody>{body}</tbody>"
    caption = f"<caption><span>{escape(note)}</span></caption>"
    return f"<div class=scroll><table>{caption}<thead>{head}</thead>{rows}</table></div>"


_STYLE = """
:root{--paper:#fff;--ink:#16191d;--soft:#5a636d;--line:#dde1e6;--tint:#f5f7f9;--blue:#0067a5;--warm:#a84300;--cool:#00705a}
@media screen and (prefers-color-scheme:dark){
:root{--paper:#14171a;--ink:#eceff2;--soft:#a3adb8;--line:#333a42;--tint:#1c2126;--blue:#5cb3f0;--warm:#ff9f66;--cool:#3fcfa4}}
*{box-sizing:border-box}html{scroll-behavior:smooth}
body{margin:0 auto;max-width:1120px;padding:40px 24px;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}
.kicker{margin:0;color:var(--soft);font-size:13px;letter-spacing:.08em;text-transform:uppercase}
h1{margin:4px 0 20px;font-size:36px;line-height:1.15;letter-spacing:-.02em;overflow-wrap:anywhere}
h2{margin:56px 0 16px;padding-top:14px;border-top:2px solid var(--ink);font-size:23px;letter-spacing:-.01em}
h2.setting{margin:24px 0 4px;padding:0;border:0;font-size:16px}h3{margin:32px 0 8px;font-size:17px}
.verdict{margin:0 0 6px;max-width:56rem;font-size:22px;line-height:1.4;overflow-wrap:anywhere}
.caution,.note{margin:0 0 16px;color:var(--soft);font-size:14px}.note{margin-top:12px}
.facts{display:flex;flex-wrap:wrap;gap:1px;margin:20px 0;
padding:1px;background:var(--line)}
.facts div{flex:1 1 150px;padding:10px 14px;background:var(--paper)}dt{color:var(--soft);font-size:13px}
dd{margin:0;overflow-wrap:anywhere}
nav{display:flex;flex-wrap:wrap;gap:6px 22px;font-size:15px}a{color:var(--blue);text-underline-offset:3px}
figure{margin:8px 0 20px;overflow-x:auto}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:8px 32px;align-items:start}
.scroll{overflow-x:auto;margin:8px 0 16px}table{width:100%;border-collapse:collapse;font-size:14px;line-height:1.4}
caption{caption-side:bottom;padding-top:10px;color:var(--soft);text-align:left}
caption span{display:inline-block;position:sticky;left:0;max-width:calc(100vw - 32px)}
th,td{padding:8px 16px 8px 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
th:last-child,td:last-child{padding-right:0}thead th{color:var(--soft);font-weight:500;vertical-align:bottom}
thead tr:first-child:not(:last-child)>*{padding-bottom:0;border:0}th[scope=colgroup]{color:var(--ink);font-weight:600}
.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}tbody th{font-weight:600;white-space:nowrap}
.n+:not(.n){padding-left:12px}.whole{white-space:nowrap}
th[scope=colgroup]{text-align:center}small{display:block;color:var(--soft);font-size:12px;font-weight:400}
th i{display:inline-block;width:10px;height:10px;margin-right:8px;border-radius:3px;background:var(--c)}
th.method{padding-top:22px;font-size:15px}.fields{max-width:18rem;overflow-wrap:anywhere}
tr:has(+tr>.said)>*{border-bottom:0}.said{padding-top:0;color:var(--soft)}
.eyes{display:inline-block;padding:1px 9px;border:1px solid;border-radius:9px;font-size:13px}
.each{color:var(--warm)}.sum{color:var(--blue)}.parties{color:var(--cool)}
details{margin:6px 0}td details{margin:0}summary{cursor:pointer}main>section>details>summary{color:var(--blue)}
pre{margin:8px 0;padding:16px;overflow-x:auto;background:var(--tint);border:1px solid var(--line);border-radius:6px;
font:13px/1.5 ui-monospace,"SF Mono",Menlo,Consolas,monospace}
footer{margin-top:56px;padding-top:12px;border-top:1px solid var(--line);color:var(--soft);font-size:13px}
@media screen and (max-width:760px){body{padding:24px 16px}h1{font-size:28px}.verdict{font-size:19px}
.pair{grid-template-columns:1fr}}
@media print{@page{margin:14mm}body{max-width:none;padding:0;font-size:11pt}nav{display:none}h1{font-size:24pt}
h2,h3,tr:has(.method),tr:has(+tr>.said){break-after:avoid}figure,tr,dl{break-inside:avoid}.scroll{overflow:visible}table{font-size:8.5pt}
th,td{padding-right:8px}pre{white-space:pre-wrap}section>details::details-content{content-visibility:visible;block-size:auto}
*{print-color-adjust:exact}}
"""
