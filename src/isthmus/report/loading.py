"""What result folders hold, read and put together for the report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError, model_validator

from isthmus.data.describe import CutDescription
from isthmus.errors import IsthmusError
from isthmus.report import wording
from isthmus.report.sections.audits import Audited, read_audits
from isthmus.report.sections.graphs import Made, read_made
from isthmus.study.results import PLACES, load_summary
from isthmus.tasks.metrics import LEADING, metric_of

HISTORY = {"method": "string", "seed": "int64", "round": "int64", "metric": "string", "value": "float64"}
"""Columns of history.parquet, with their types."""

LEDGER = {
    **dict.fromkeys(("method", "verb", "action", "party", "eyes", "fields", "protection", "status", "note"), "string"),
    **dict.fromkeys(("seed", "round", "call", "rows", "sent", "received"), "int64"),
}
"""Columns of ledger.parquet, with their types."""

_ADDED = ("rows",)
"""Columns that older results do not have: 0 there."""
_WITHOUT_CHOICE = ("graph-clustering",)
"""Tasks in which nothing chooses between rounds. By name, for a report reads files alone."""


class Run(BaseModel):
    method: str
    seed: int
    rounds: int = 0
    chosen_round: int | None = None
    seconds: float | None = None
    metrics: dict[str, float | None] = {}
    parties: dict[str, dict[str, float | None]] = {}
    privacy: dict[str, Any] = {}
    under_way: bool = False
    """Its figures are of its last round so far; which round it will report, and what left parties, is not known."""


class Line(BaseModel):
    method: str
    metric: str
    mean: float | None
    std: float | None = None
    seeds: int = 1

    @property
    def said(self) -> str:
        """The mean, and the deviation where there are several seeds."""
        return wording.spread(self.mean, self.std if self.seeds > 1 else None, self.metric)


class Cut(BaseModel):
    """What the parties held in the runs with these seeds."""

    seeds: list[int]
    described: CutDescription

    @model_validator(mode="before")
    @classmethod
    def _of_one_group(cls, value: Any) -> Any:
        return {**value, "described": value} if isinstance(value, Mapping) else value


class ResultsFile(BaseModel):
    isthmus: str = ""
    created: str = ""
    versions: dict[str, Any] = {}
    study: dict[str, Any]
    runs: list[Run]
    summary: list[Line]
    cuts: list[Cut] = []
    """Empty in results of versions that did not describe them."""

    @property
    def seeds(self) -> str:
        return ", ".join(map(str, sorted({run.seed for run in self.runs})))


@dataclass(frozen=True)
class Source:
    """One result folder; its methods already carry the names that the page gives them."""

    name: str
    results: ResultsFile
    toml: str
    history: Any
    ledger: Any
    places: Any
    set_up: Any
    audits: list[Audited]
    made: Mapping[tuple[str, int], Made]

    @property
    def setting(self) -> str:
        """What must be equal for figures to be comparable."""
        study = self.results.study
        parts = ("data", "partition", "parties", "task", "model")
        return json.dumps([study.get(part) or None for part in parts], sort_keys=True)

    @property
    def methods(self) -> list[str]:
        """Every method that is spoken of anywhere: what only the ledger knows left a party too."""
        lines: list[Line | Run] = [*self.results.runs, *self.results.summary]
        tables = [*self.history["method"].unique().to_pylist(), *self.ledger["method"].unique().to_pylist()]
        return list(dict.fromkeys([*(line.method for line in lines), *(each or "unnamed" for each in tables)]))


@dataclass(frozen=True)
class Setting:
    """Folders whose figures are comparable: on one data set and cut, with one task and model."""

    name: str
    sources: list[Source]

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(method for source in self.sources for method in source.methods))

    @property
    def runs(self) -> list[Run]:
        return [run for source in self.sources for run in source.results.runs]

    @property
    def metrics(self) -> list[str]:
        """Test metrics first, then validation, then the rest; what a task is judged by leads."""
        metrics = dict.fromkeys(line.metric for source in self.sources for line in source.results.summary)
        kinds = {"test": 0, "val": 1}
        leading = {name: at for at, name in enumerate(LEADING)}

        def rank(metric: str) -> tuple[int, int]:
            return kinds.get(wording.kind(metric), 2), leading.get(metric.partition("_")[2], len(leading))

        return sorted(metrics, key=rank)

    @property
    def main(self) -> str | None:
        """The metric that the headline speaks of; another setting, of another task, has another."""
        return next(iter(self.metrics), None)


@dataclass(frozen=True)
class Findings:
    """All folders together; `methods` maps the name on the page to the method's own name."""

    sources: list[Source]
    methods: dict[str, str]
    runs: list[Run]
    lines: dict[tuple[str, str], Line]
    history: Any
    ledger: Any
    places: Any
    set_up: Any
    """What left parties on machines of their own before any method ran, in the form of a ledger."""
    audits: list[Audited]
    made: Mapping[tuple[str, int], Made]
    """Graphs that methods made, by method and seed."""

    @property
    def settings(self) -> list[Setting]:
        """Folders whose figures are comparable, each with a name; without one where all are."""
        groups: dict[str, list[Source]] = {}
        for source in self.sources:
            groups.setdefault(source.setting, []).append(source)
        if len(groups) == 1:
            return [Setting("", self.sources)]
        return [Setting(", ".join(source.name for source in sources), sources) for sources in groups.values()]

    def style(self, method: str) -> int:
        return list(self.methods).index(method)

    def runs_of(self, method: str) -> list[Run]:
        return [run for run in self.runs if run.method == method]

    def ended(self, method: str) -> list[Run]:
        return [run for run in self.runs_of(method) if not run.under_way]

    def is_open(self, method: str) -> bool:
        """Whether none of its runs has ended."""
        return bool(self.runs_of(method)) and not self.ended(method)

    def chosen_by(self, method: str) -> str:
        """What chooses the round that its runs report: `validation` or `last`; nothing where that is not recorded."""
        runs = self.runs_of(method)
        if any(run.chosen_round not in (None, run.rounds) for run in runs):
            return "validation"
        study = next(source.results.study for source in self.sources if method in source.methods)
        options = {each.get("name"): each.get("select") for each in study.get("methods", [])}
        select = str(options.get(self.methods[method]) or ("last" if any(run.chosen_round for run in runs) else ""))
        chooses = any(wording.kind(metric) == "val" for run in runs for metric in run.metrics)
        labelled = (study.get("task") or {}).get("name") not in _WITHOUT_CHOICE
        return select if chooses and labelled else select and "last"

    def value(self, method: str, metric: str | None) -> float | None:
        line = self.lines.get((method, metric or ""))
        return wording.finite(line.mean) if line else None

    def figure(self, method: str, metric: str) -> str:
        """Mean and deviation with their unit, not to be broken over lines."""
        text = self.lines[method, metric].said + (" %" if wording.percent(metric) else "")
        return text.replace(" ", "\N{NO-BREAK SPACE}")

    def federated(self, methods: Iterable[str]) -> list[str]:
        """Those that keep data apart and train together."""
        return [method for method in methods if self.methods[method] not in wording.BOUNDS]

    def smaller_leads(self, metric: str | None) -> bool:
        """Whether less of a metric is better."""
        return metric_of(metric or "").smaller_is_better

    def ranked(self, methods: Iterable[str], metric: str | None) -> list[str]:
        """Methods that have the metric, best mean first."""
        values = {method: self.value(method, metric) for method in methods}
        sign = 1 if self.smaller_leads(metric) else -1
        known = {method: sign * value for method, value in values.items() if value is not None}
        return sorted(known, key=lambda method: known[method])


def read_folders(folders: Iterable[Path | str]) -> Findings:
    """All result folders together, each once.

    Arguments:
        folders: each with study.toml, results.json, history.parquet and ledger.parquet.
    """
    return _combined([read_folder(Path(folder)) for folder in dict.fromkeys(folders)])


def read_folder(folder: Path) -> Source:
    for name in ("study.toml", "results.json", "history.parquet", "ledger.parquet"):
        if not (folder / name).is_file():
            raise IsthmusError(f"no {name} in '{folder}': name a folder that a finished study has written")
    results = _read_results(folder)
    toml = _read_text(folder / "study.toml")
    graphs = {(run.method, run.seed): folder / "graphs" / f"{run.method}-{run.seed}" for run in results.runs}
    return Source(
        name=folder.resolve().name,
        results=results,
        toml=toml,
        history=_read_table(folder / "history.parquet", HISTORY),
        ledger=_read_table(folder / "ledger.parquet", LEDGER),
        places=_read_table(folder / "places.parquet", PLACES, needed=False),
        set_up=_read_table(folder / "set-up.parquet", LEDGER, needed=False),
        audits=read_audits(folder, toml),
        made={run: read_made(path) for run, path in graphs.items() if path.is_dir()},
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error


def _read_results(folder: Path) -> ResultsFile:
    path = folder / "results.json"
    try:
        results = ResultsFile.model_validate(load_summary(folder))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise _unreadable(path, f"{where}: {first['msg']}") from error
    if not results.runs:
        raise _unreadable(path, "it holds no run")
    return results


def _read_table(path: Path, columns: Mapping[str, str], *, needed: bool = True) -> Any:
    """The table with these columns; one that is not needed may not be there, and is empty then."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns.items()])
    if not needed and not path.exists():
        return schema.empty_table()
    try:
        with pq.ParquetFile(path) as file:
            table = file.read()
        for name in set(_ADDED) & set(columns) - set(table.column_names):
            table = table.append_column(name, pa.array([0] * table.num_rows, pa.int64()))
        missing = [name for name in columns if name not in table.column_names]
        if missing:
            raise _unreadable(path, f"column '{missing[0]}' is missing")
        return table.select(list(columns)).cast(schema)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, reason: object) -> IsthmusError:
    text = " ".join(str(reason).split())[:200]
    return IsthmusError(f"cannot read '{path}': {text}: run the study again, or restore the file")


def _combined(sources: list[Source]) -> Findings:
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
    return Findings(
        sources=named,
        methods=methods,
        runs=[run for source in named for run in source.results.runs],
        lines={(line.method, line.metric): line for source in named for line in source.results.summary},
        history=pa.concat_tables([source.history for source in named]),
        ledger=pa.concat_tables([source.ledger for source in named]),
        places=pa.concat_tables([source.places for source in named]),
        set_up=pa.concat_tables([source.set_up for source in named]),
        audits=[each for source in named for each in source.audits],
        made={run: made for source in named for run, made in source.made.items()},
    )


def _renamed(source: Source, folder: str, names: Mapping[str, str]) -> Source:
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
    history, ledger, places = (table(each) for each in (source.history, source.ledger, source.places))
    audits = [each.model_copy(update={"method": names.get(each.method, each.method)}) for each in source.audits]
    made = {(names[method], seed): each for (method, seed), each in source.made.items()}
    return Source(folder, results, source.toml, history, ledger, places, source.set_up, audits, made)
