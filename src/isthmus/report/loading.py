"""Result folders, read and combined for the report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, model_validator

from isthmus import result_files, store
from isthmus.data.description import CutDescription
from isthmus.errors import IsthmusError, path_of, similar_path, writes_flags
from isthmus.report import wording
from isthmus.result_files import COORDINATES, HISTORY, LEDGER, RESULTS, SET_UP, STATE, STUDY, AuditRecord, Search
from isthmus.tasks.metrics import METRICS, metric_of

_WITHOUT_CHOICE = ("graph-clustering",)
"""Tasks in which nothing chooses between rounds. By name, because a report only reads files."""

LARGEST_CLASS = 1 << 20
"""A graph whose nodes have this class, or a larger one, is not read: it would need too much memory."""


class OverParties(BaseModel):
    """A metric over the parties of a run: the mean, plain and weighted by size, and the worst party."""

    mean: float | None
    weighted: float | None
    worst: float | None
    worst_party: str
    worst_items: int | None = None
    parties: int = 0


class Turnout(BaseModel):
    """Who counted in the rounds from `first` to `last`, and of who did not the reason."""

    first: int
    last: int
    counted: list[str]
    missing: dict[str, str]


class Head(BaseModel):
    """How many lines a party's ledger had, and the hash of the last one."""

    entries: int
    hash: str


class Reconciled(BaseModel):
    """How a federation's ledger and the parties' own differ, a line each, and where theirs ended."""

    differences: list[str] = []
    heads: dict[str, Head] = {}


class RunSummary(BaseModel):
    """One run, as `results.json` has it."""

    method: str
    seed: int
    rounds: int = 0
    chosen_round: int | None = None
    seconds: float | None = None
    metric: str = ""
    select_by: str = ""
    metrics: dict[str, float | None] = {}
    by_label: dict[str, dict[str, float | None]] = {}
    parties: dict[str, dict[str, float | None]] = {}
    over_parties: dict[str, OverParties] = {}
    evaluated: str = ""
    majority_score: float | None = None
    privacy: dict[str, Any] = {}
    groups: dict[str, list[str]] = {}
    reconciled: Reconciled | None = None
    turnout: list[Turnout] = []
    stopped: str = ""
    under_way: bool = False
    """The metrics are those of its last round so far; the chosen round and the ledger are not known yet."""


class Score(BaseModel):
    """A metric of a method over seeds."""

    method: str
    metric: str
    mean: float | None
    std: float | None = None
    seeds: int = 1

    @property
    def text(self) -> str:
        """The mean, with the standard deviation if there are several seeds."""
        return wording.mean_and_std(self.mean, self.std if self.seeds > 1 else None, self.metric)


class Cut(BaseModel):
    """What the parties held in the runs with these seeds."""

    seeds: list[int]
    description: CutDescription

    @model_validator(mode="before")
    @classmethod
    def _of_one_group(cls, value: Any) -> Any:
        return {**value, "description": value} if isinstance(value, Mapping) else value


class About(BaseModel):
    """What a method declares: its role, what its own fields are, and how it chooses a round."""

    name: str = ""
    role: str = "federated"
    nouns: dict[str, str] = {}
    select: str = ""


class Fingerprint(BaseModel):
    """The digest of the data that the parties held with one seed."""

    seed: int
    digest: str


class ResultsFile(BaseModel):
    """`results.json`."""

    isthmus: str = ""
    created: str = ""
    versions: dict[str, Any] = {}
    study: dict[str, Any]
    methods: dict[str, About] = {}
    runs: list[RunSummary]
    summary: list[Score]
    notes: list[str] = []
    """What a reader must know first."""
    search: Search | None = None
    fingerprint: Fingerprint | None = None
    code: dict[str, dict[str, str]] = {}
    """By `module:Class` the source hash and the package of the study's own code."""
    cuts: list[Cut] = []
    """Empty for a federation, whose parties are not described."""

    @property
    def seeds(self) -> str:
        return ", ".join(map(str, sorted({run.seed for run in self.runs})))


@dataclass(frozen=True)
class GraphSize:
    """The size of a graph that one run made; `classes` has the nodes of each class."""

    nodes: int
    edges: int
    features: int
    classes: tuple[int, ...]


@dataclass(frozen=True)
class ResultFolder:
    """One result folder; its methods already have the names that they have on the page."""

    name: str
    results: ResultsFile
    toml: str
    history: Any
    ledger: Any
    coordinates: Any
    set_up: Any
    audits: list[AuditRecord]
    graphs: Mapping[tuple[str, int], GraphSize]

    @property
    def comparison_key(self) -> str:
        """The parts of the study that must be equal for scores to be comparable."""
        study = self.results.study
        parts = ("data", "partition", "parties", "task", "model")
        return json.dumps([study.get(part) or None for part in parts], sort_keys=True)

    @property
    def methods(self) -> list[str]:
        """Every method that occurs anywhere, also one that only the ledger knows."""
        entries: list[Score | RunSummary] = [*self.results.runs, *self.results.summary]
        tables = [*self.history["method"].unique().to_pylist(), *self.ledger["method"].unique().to_pylist()]
        return list(dict.fromkeys([*(entry.method for entry in entries), *(name or "unnamed" for name in tables)]))


@dataclass(frozen=True)
class Setting:
    """Folders with comparable scores: one data set, cut, task and model."""

    name: str
    folders: list[ResultFolder]

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(method for folder in self.folders for method in folder.methods))

    @property
    def runs(self) -> list[RunSummary]:
        return [run for folder in self.folders for run in folder.results.runs]

    @property
    def metrics(self) -> list[str]:
        """Test metrics first, then validation, then the rest; in each group the metric that judges the task leads."""
        metrics = dict.fromkeys(score.metric for folder in self.folders for score in folder.results.summary)
        splits = {"test": 0, "val": 1}
        judging = [run.metric for run in self.runs]
        order = {name: at for at, name in enumerate(dict.fromkeys([*filter(None, judging), *METRICS]))}

        def rank(metric: str) -> tuple[int, int]:
            return splits.get(wording.split(metric), 2), order.get(metric.partition("_")[2], len(order))

        return sorted(metrics, key=rank)

    @property
    def main_metric(self) -> str | None:
        """The metric of the headline. Settings with different tasks have different ones."""
        return next(iter(self.metrics), None)


@dataclass(frozen=True)
class Findings:
    """All result folders together.

    Attributes:
        methods: for each method's name on the page its own name.
        about: what its class declares, by its name on the page.
        set_up: what left parties on machines of their own before any method ran, in the form of a ledger.
        graphs: the sizes of graphs that runs made, by method and seed.
    """

    folders: list[ResultFolder]
    methods: dict[str, str]
    about: dict[str, About]
    runs: list[RunSummary]
    scores: dict[tuple[str, str], Score]
    history: Any
    ledger: Any
    coordinates: Any
    set_up: Any
    audits: list[AuditRecord]
    graphs: Mapping[tuple[str, int], GraphSize]

    @property
    def settings(self) -> list[Setting]:
        """Groups of comparable folders, each with a name; a single group has none."""
        groups: dict[str, list[ResultFolder]] = {}
        for folder in self.folders:
            groups.setdefault(folder.comparison_key, []).append(folder)
        if len(groups) == 1:
            return [Setting("", self.folders)]
        return [Setting(", ".join(folder.name for folder in folders), folders) for folders in groups.values()]

    def style(self, method: str) -> int:
        """What chooses a method's colour: its position among methods proper, or below zero the kind of reference."""
        role, kinds = self.about[method].role, list(wording.REFERENCES)
        return kinds.index(role) - len(kinds) if role in kinds else self.federated(self.methods).index(method)

    def runs_of(self, method: str) -> list[RunSummary]:
        return [run for run in self.runs if run.method == method]

    def finished_runs(self, method: str) -> list[RunSummary]:
        return [run for run in self.runs_of(method) if not run.under_way]

    def privacy(self, method: str) -> dict[str, Any]:
        """The account of its run that spent most; empty without noise."""
        accounts = [run.privacy for run in self.runs_of(method) if run.privacy]
        return max(accounts, key=lambda each: float(each["basic"]["epsilon"]), default={})

    def is_unfinished(self, method: str) -> bool:
        """Whether none of its runs has finished."""
        return bool(self.runs_of(method)) and not self.finished_runs(method)

    def round_choice(self, method: str) -> str:
        """How its runs choose the round that they report: `validation`, `last`, or nothing if that is not recorded."""
        runs = self.runs_of(method)
        if any(run.chosen_round not in (None, run.rounds) for run in runs):
            return "validation"
        select = self.about[method].select or ("last" if any(run.chosen_round for run in runs) else "")
        chooses = any(wording.split(metric) == "val" for run in runs for metric in run.metrics)
        study = next(folder.results.study for folder in self.folders if method in folder.methods)
        labelled = (study.get("task") or {}).get("name") not in _WITHOUT_CHOICE
        return select if chooses and labelled else select and "last"

    def mean(self, method: str, metric: str | None) -> float | None:
        score = self.scores.get((method, metric or ""))
        return wording.finite(score.mean) if score else None

    def score_text(self, method: str, metric: str) -> str:
        """Mean and standard deviation with their unit, without spaces that a line could break at."""
        text = self.scores[method, metric].text + (" %" if wording.percent(metric) else "")
        return text.replace(" ", "\N{NO-BREAK SPACE}")

    def reference(self, method: str) -> str:
        """What the page calls a method that only sets the scale; empty for a method proper."""
        return wording.REFERENCES.get(self.about[method].role, "")

    def remark(self, method: str) -> str:
        """What a reader must know of a method beside its name; empty for most."""
        one = metric_of(self.runs_of(method)[0].metric).one_answer if self.is_majority(method) else ""
        return "; ".join(filter(None, (self.reference(method), one and f"no better than {one}")))

    def is_majority(self, method: str) -> bool:
        """Whether a method proper is no better than one answer for all, by the mean of the metric that judges it."""
        runs = self.runs_of(method)
        pairs = [(run.metrics.get(f"test_{run.metric}"), run.majority_score) for run in runs]
        return bool(runs) and self.about[method].role != "constant" and metric_of(runs[0].metric).no_better(pairs)

    def federated(self, methods: Iterable[str]) -> list[str]:
        """The methods that keep data apart and train together."""
        return [method for method in methods if not self.reference(method)]

    def smaller_is_better(self, metric: str | None) -> bool:
        return metric_of(metric or "").smaller_is_better

    def ranked(self, methods: Iterable[str], metric: str | None) -> list[str]:
        """The methods that have the metric, best mean first."""
        return best_first({method: self.mean(method, metric) for method in methods}, metric or "")

    def chosen(self, methods: Sequence[str], metric: str | None) -> list[str]:
        """The methods that have a test metric, best on validation data first; test data rank those without any."""
        ranked = self.ranked(methods, metric)
        judged = f"val_{(metric or '').removeprefix('test_')}"
        validated = self.ranked([each for each in methods if each in ranked], judged)
        return [*validated, *(method for method in ranked if method not in validated)]


def best_first(means: Mapping[str, float | None], metric: str) -> list[str]:
    """The names that have a mean of the metric, the best first; equal ones stay in order.

    >>> best_first({"fedavg": 0.8, "local": None, "fedprox": 0.9}, "val_accuracy")
    ['fedprox', 'fedavg']
    """
    sign = 1 if metric_of(metric).smaller_is_better else -1
    known = {name: sign * mean for name, mean in means.items() if mean is not None}
    return sorted(known, key=lambda name: known[name])


def read_folders(folders: Iterable[Path | str]) -> Findings:
    """Read result folders and combine them; a folder that is given twice counts once."""
    found = [read_folder(path_of(folder, "report: folder")) for folder in dict.fromkeys(folders)]
    with expected_results(folders):
        return _combine(found)


def default_folder(folders: Iterable[Path | str]) -> Path:
    """Where a page goes by default: the result folder that it is about, which must be the only one."""
    first, *others = dict.fromkeys(map(Path, folders))
    if others:
        out = "--out" if writes_flags() else "out"
        raise IsthmusError(f"report: {len(others) + 1} folders share a page: say where to write it with {out}")
    return first


def expected_results(folders: Iterable[Path | str]) -> AbstractContextManager[None]:
    """Turn any error of a `with` block that uses the content of result folders into one line."""
    return store.expected_content(", ".join(map(str, dict.fromkeys(folders))), result_files.RESTORE)


def read_folder(folder: Path) -> ResultFolder:
    """Read one result folder."""
    for name in (STUDY, RESULTS, HISTORY, LEDGER):
        if not (folder / name).exists():
            begun = ": its study has not finished; go on with --resume" if (folder / STATE).exists() else ""
            remedy = begun or similar_path(folder) or ": name a folder that a finished study has written"
            raise IsthmusError(f"no {name} in '{folder}'{remedy}")
    results = read_results(folder)
    try:
        toml = store.read_text(folder / STUDY, within=folder)
        store.check_sum(folder, STUDY)
    except (OSError, ValueError) as error:
        raise result_files.unreadable(folder / STUDY, getattr(error, "strerror", None) or error) from error
    graphs = {(run.method, run.seed): result_files.graph_folder(folder, run.method, run.seed) for run in results.runs}
    whole = ResultFolder(
        name=folder.resolve().name,
        results=results,
        toml=toml,
        history=result_files.read_table(folder, HISTORY),
        ledger=result_files.read_table(folder, LEDGER),
        coordinates=result_files.read_table(folder, COORDINATES, optional=True),
        set_up=result_files.read_table(folder, SET_UP, optional=True),
        audits=result_files.read_audits(folder, toml),
        graphs={run: _graph_size(path) for run, path in graphs.items() if path.is_dir()},
    )
    return whole if results.search is None else _without(whole, results.search.unchosen)


def _without(folder: ResultFolder, methods: Set[str]) -> ResultFolder:
    """The folder without the runs of these: settings that validation data did not choose, which test data must not."""
    import pyarrow as pa
    from pyarrow import compute

    def table(old: Any) -> Any:
        return old.filter(compute.invert(compute.is_in(old["method"], pa.array(methods, pa.string()))))

    results = folder.results
    runs = [run for run in results.runs if run.method not in methods]
    summary = [score for score in results.summary if score.method not in methods]
    return replace(
        folder,
        results=results.model_copy(update={"runs": runs, "summary": summary}),
        history=table(folder.history),
        ledger=table(folder.ledger),
        coordinates=table(folder.coordinates),
        graphs={run: size for run, size in folder.graphs.items() if run[0] not in methods},
    )


def read_results(folder: Path) -> ResultsFile:
    """Read `results.json` of a folder."""
    path = folder / RESULTS
    content = result_files.load_summary(folder)
    with store.expected_content(path, result_files.RESTORE):
        results = ResultsFile.model_validate(content)
    if not results.runs:
        raise result_files.unreadable(path, "it holds no run")
    return results


def _graph_size(folder: Path) -> GraphSize:
    graph = result_files.load_graph(folder)
    with store.expected_content(folder, result_files.RESTORE):
        if graph.y.numel() and int(graph.y.max()) >= LARGEST_CLASS:
            raise ValueError(f"class {int(graph.y.max())}")
        counts = graph.y.bincount().tolist()
    return GraphSize(graph.num_nodes or 0, graph.num_edges, graph.num_node_features, tuple(counts))


def _combine(folders: list[ResultFolder]) -> Findings:
    import pyarrow as pa

    method_uses = Counter(method for folder in folders for method in folder.methods)
    name_uses = Counter(folder.name for folder in folders)
    methods: dict[str, str] = {}
    about: dict[str, About] = {}
    renamed = []
    for order, folder in enumerate(folders, 1):
        name = folder.name if name_uses[folder.name] == 1 else f"{folder.name} #{order}"
        names = {each: each if method_uses[each] == 1 else f"{each} ({name})" for each in folder.methods}
        methods |= {on_page: own for own, on_page in names.items()}
        about |= {on_page: folder.results.methods.get(own, About()) for own, on_page in names.items()}
        renamed.append(_rename_methods(replace(folder, name=name), names))
    return Findings(
        folders=renamed,
        methods=methods,
        about=about,
        runs=[run for folder in renamed for run in folder.results.runs],
        scores={(score.method, score.metric): score for folder in renamed for score in folder.results.summary},
        history=pa.concat_tables([folder.history for folder in renamed]),
        ledger=pa.concat_tables([folder.ledger for folder in renamed]),
        coordinates=pa.concat_tables([folder.coordinates for folder in renamed]),
        set_up=pa.concat_tables([folder.set_up for folder in renamed]),
        audits=[each for folder in renamed for each in folder.audits],
        graphs={run: graph for folder in renamed for run, graph in folder.graphs.items()},
    )


def _rename_methods(folder: ResultFolder, names: Mapping[str, str]) -> ResultFolder:
    import pyarrow as pa

    def table(old: Any) -> Any:
        column = [names[each or "unnamed"] for each in old["method"].to_pylist()]
        return old.set_column(old.column_names.index("method"), "method", pa.array(column, pa.string()))

    def entry(old: Any) -> Any:
        return old.model_copy(update={"method": names.get(old.method, old.method)})

    entries: dict[str, Any] = {name: [*map(entry, getattr(folder.results, name))] for name in ("runs", "summary")}
    if (search := folder.results.search) is not None:
        tried = [replace(each, label=names.get(each.label, each.label)) for each in search.tried]
        entries["search"] = replace(search, tried=tried)
    return replace(
        folder,
        results=folder.results.model_copy(update=entries),
        history=table(folder.history),
        ledger=table(folder.ledger),
        coordinates=table(folder.coordinates),
        audits=[*map(entry, folder.audits)],
        graphs={(names[method], seed): size for (method, seed), size in folder.graphs.items()},
    )
