"""The results of a study: runs, their summary, and the folder that holds them."""

from __future__ import annotations

import datetime
import json
import math
import platform
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from operator import ne
from pathlib import Path
from typing import Any, TypeAlias

from isthmus import result_files, store, toml
from isthmus.data.description import CutDescription
from isthmus.errors import IsthmusError, path_of
from isthmus.federation import ledger
from isthmus.methods.base import Method
from isthmus.result_files import Search
from isthmus.study.loop import RunResult
from isthmus.study.model_card import model_card
from isthmus.study.model_files import (
    check_party,
    choose_model,
    choose_run,
    chosen_setting,
    shared_beside_own,
    shared_by_all,
    write_models,
)
from isthmus.study.models import TrainedModel
from isthmus.study.notes import result_notes
from isthmus.study.settings import Setting, budget_notes, combine, effect_notes, search_of_grid
from isthmus.tasks.metrics import metric_of
from isthmus.version import LAWS, VERSION

_Columns: TypeAlias = Mapping[str, Sequence[Any]]

SHOWN = 10
"""Methods that the text of results shows at most."""


@dataclass(repr=False)
class Results:
    """Runs of one study, as the command line writes them and `isthmus.run` gives them.

    Attributes:
        study: the study with all its options spelled out.
        runs: one entry per method and seed.
        cuts: what the parties held, for each seed.
        set_up: the ledger of a federation's set-up.
        notes: what a reader of the results must know first, a line each.
        code: by `module:Class` the source hash and the package of your own code that ran.
        own_models: by method, the model of your own that it trained, or the class or function that makes it.
        search: the settings that a grid or tuning tried, ranked by validation data; None if each method had one.
        fingerprint: the first seed, and the digest of the data that the parties held with it; empty in a federation.
    """

    study: Mapping[str, Any]
    runs: list[RunResult] = field(default_factory=list)
    cuts: Mapping[int, CutDescription] = field(default_factory=dict)
    set_up: ledger.Ledger | None = None
    notes: list[str] = field(default_factory=list)
    code: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    search: Search | None = None
    own_models: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """The metric of the headline, a line for each method, and the notes."""
        hidden = set() if self.search is None else self.search.unchosen
        shown = [line for line in self.summary() if line["headline"] and line["method"] not in hidden]
        lines = [f"Results of {len(self.runs)} run{'' if len(self.runs) == 1 else 's'}"]
        for line in shown[:SHOWN]:
            metric = metric_of(line["metric"])
            many = line["seeds"] > 1
            spread = f" ± {metric.shown(line['std'])}" if many else ""
            unit, seeds = " %" if metric.percent else "", f", {line['seeds']} seeds" if many else ""
            lines.append(f"  {line['method']}: {metric.shown(line['mean'])}{spread}{unit} test {metric.title}{seeds}")
        lines += [f"  and {len(shown) - SHOWN} more methods: see summary()"] if len(shown) > SHOWN else []
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def compare_settings(
        self, settings: Sequence[Setting], judged_by: str, selected_by: str, diverged: Set[str] = frozenset()
    ) -> None:
        """Rank the settings of a grid, and add what a reader must know first of the best of each method.

        Arguments:
            judged_by: the metric that judges the task.
            selected_by: the one by which rounds are chosen.
            diverged: labels of settings that diverged with some seed; their runs with other seeds are dropped.
        """
        self.runs = [run for run in self.runs if run.method not in diverged]
        if any(each.values for each in settings):
            self.search = search_of_grid(settings, self.runs, selected_by, diverged)
            self.notes += [*budget_notes(settings), *effect_notes(settings, self.runs)]
        hidden = set() if self.search is None else self.search.unchosen
        shown = [each.method for each in settings if each.method.label not in hidden]
        self.notes += result_notes(shown, self.runs, judged_by)

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the only run; for several runs, see `summary`."""
        if len(self.runs) != 1:
            raise IsthmusError(f"there are {len(self.runs)} runs: read their means from summary()")
        return self.runs[0].metrics

    def summary(self) -> list[dict[str, Any]]:
        """Mean and standard deviation over seeds (of the sample; 0 with one seed), per method and metric.

        The metric that judges the methods stands first of each method, and only its `headline` is true.
        """
        lines = []
        for method in dict.fromkeys(run.method for run in self.runs):
            runs = [run for run in self.runs if run.method == method]
            headline = f"test_{runs[0].metric}"
            known = dict.fromkeys(name for run in runs for name in run.metrics)
            for metric in sorted(known, key=partial(ne, headline)):
                values = [run.metrics[metric] for run in runs if metric in run.metrics]
                std = statistics.stdev(values) if len(values) > 1 else 0.0
                mean = math.fsum(values) / len(values)
                line = {"method": method, "metric": metric, "mean": mean, "std": std, "seeds": len(values)}
                lines.append({**line, "headline": metric == headline})
        return lines

    def frame(self) -> Any:
        """A pandas data frame with a row per run: method, seed, rounds, seconds, and a column for each metric."""
        keys = ("method", "seed", "rounds", "chosen_round", "seconds")
        rows = [{**{key: getattr(run, key) for key in keys}, **run.metrics} for run in self.runs]
        return result_files.data_frame(rows)

    def history(self) -> Any:
        """A pandas data frame with a row per evaluated round and metric: method, seed, round, metric, value."""
        names = ("method", "seed", "round", "metric", "value")
        rows = [(run.method, run.seed, *each) for run in self.runs for each in run.history]
        return result_files.data_frame([dict(zip(names, row, strict=True)) for row in rows])

    def to_dict(self) -> dict[str, Any]:
        """`{"runs": [...], "summary": [...], "cuts": [...]}`; cuts with equal descriptions are one entry."""
        cuts: dict[CutDescription, list[int]] = {}
        for seed, cut in self.cuts.items():
            cuts.setdefault(cut, []).append(seed)
        return {
            **({} if self.search is None else {"search": self.search.to_dict()}),
            "runs": [run.summary() for run in self.runs],
            "summary": self.summary(),
            "cuts": [{"seeds": seeds, **cut.to_dict()} for cut, seeds in cuts.items()],
        }

    def on_subset(self) -> bool:
        """Return whether some party did not count in some round."""
        return any(span.missing for run in self.runs for span in run.ledger.turnout())

    def methods(self) -> dict[str, dict[str, Any]]:
        """What the report has to know of each method: its role, what its own fields are, how it chooses rounds."""
        return {
            method.label: {
                "name": method.name,
                "role": method.role,
                "nouns": dict(method.field_nouns()),
                "select": method.select,
            }
            for method in methods_of(self.study)
        }

    def model(
        self, method: str | None = None, seed: int | None = None, *, party: str | None = None, module: Any = None
    ) -> TrainedModel:
        """A trained model, ready for new data; the arguments are those of `isthmus.load_model`.

        A model of your own need not be given again if these results come from `isthmus.run`.
        """
        runs = {(run.method, run.seed): run for run in self.runs}
        method, about = chosen_setting(method, self.search)
        run = runs[choose_run(runs, method, seed, "the results hold")]
        models = run.models
        weights = choose_model(
            models.get("shared"), models.get("groups", {}), models.get("parties", {}), run.groups, party, run.method
        )
        if party is not None and weights is models.get("shared"):
            if run.seed in self.cuts:
                check_party(party, [each.name for each in self.cuts[run.seed].parties])
            about.append(shared_by_all(party))
            party = None  # it is nobody's own
        elif party is None and weights is models.get("shared"):
            about += shared_beside_own(run.method, models.get("parties", {}))
        module = self.own_models.get(run.method) if module is None else module
        more: dict[str, Any] = {"module": module, "party": party or "", "others": models.get("parties", {})}
        model = TrainedModel(run.description, weights or {}, models.get("context"), **more)
        model.about = about
        return model

    def save(self, folder: Path | str) -> None:
        """Write the result folder; each file is written completely or not at all."""
        folder = path_of(folder, "save: folder")
        (folder / store.SUMS).unlink(missing_ok=True)  # those of older files
        written = [result_files.HISTORY, result_files.LEDGER, result_files.STUDY, result_files.RESULTS]
        for run in self.runs:
            name = f"{run.method}-{run.seed}"
            card = model_card(run, self.study, self.cuts.get(run.seed), self.summary()) if run.description else ""
            write_models(folder / "weights", name, run.models, run.description, run.groups, card=card)
            if run.graph:
                result_files.write_graph(result_files.graph_folder(folder, run.method, run.seed), run.graph)
        result_files.write_table(folder, result_files.HISTORY, self._history())
        result_files.write_table(folder, result_files.LEDGER, self._ledger())
        if any(run.coordinates for run in self.runs):
            written.append(result_files.COORDINATES)
            result_files.write_table(folder, result_files.COORDINATES, self._coordinates())
        if self.set_up is not None:
            written.append(result_files.SET_UP)
            result_files.write_table(folder, result_files.SET_UP, _of_run("set-up", -1, self.set_up.columns()))
        store.write(folder / result_files.STUDY, toml.dumps(self.study))
        created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        head = {"format": result_files.FORMAT, "isthmus": VERSION, "created": created, "versions": versions()}
        own: dict[str, Any] = {"code": self.code} if self.code else {}
        own |= {"notes": self.notes} if self.notes else {}
        own |= {"fingerprint": self.fingerprint} if self.fingerprint else {}
        content = {**head, **own, "study": self.study, "methods": self.methods(), **self.to_dict()}
        store.write(folder / result_files.RESULTS, _readable(content) + "\n")
        written += [str(path.relative_to(folder)) for path in sorted((folder / "weights").rglob("*")) if path.is_file()]
        store.write_sums(folder, written)

    def _history(self) -> Iterator[_Columns]:
        for run in self.runs:
            if run.history:
                columns = zip(("round", "metric", "value"), zip(*run.history, strict=True), strict=True)
                yield from _of_run(run.method, run.seed, [dict(columns)])

    def _coordinates(self) -> Iterator[_Columns]:
        for run in self.runs:
            for at, items in run.coordinates.items():
                x, y, kind = items.t()
                columns = {"x": x.tolist(), "y": y.tolist(), "class": kind.long().tolist()}
                yield from _of_run(run.method, run.seed, [{"round": [int(at)] * len(items), **columns}])

    def _ledger(self) -> Iterator[_Columns]:
        for run in self.runs:
            yield from _of_run(run.method, run.seed, run.ledger.columns())


def _of_run(method: str, seed: int, parts: Iterable[_Columns]) -> Iterator[_Columns]:
    """Columns of a table with the run that their rows are of."""
    for columns in parts:
        count = len(columns["round"])
        yield {"method": [method] * count, "seed": [seed] * count, **columns}


def _readable(value: Any, margin: str = "") -> str:
    """JSON with a line for each innermost group: a party of a cut, a line of the summary, the metrics of a run."""
    if not _holds_groups(value):
        return json.dumps(value)
    inner = f"{margin}  "
    if isinstance(value, Mapping):
        brackets, lines = "{}", [f"{json.dumps(str(key))}: {_readable(each, inner)}" for key, each in value.items()]
    else:
        brackets, lines = "[]", [_readable(each, inner) for each in value]
    return f"{brackets[0]}\n{inner}" + f",\n{inner}".join(lines) + f"\n{margin}{brackets[1]}"


def _holds_groups(value: Any) -> bool:
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return any(
        isinstance(each, Mapping) or _holds_groups(each)
        for each in inside
        if not isinstance(each, str | int | float)  # most values: to call for each would take long
    )


def versions() -> dict[str, str]:
    """Versions of what the figures depend on."""
    found = {"python": platform.python_version(), "laws": str(LAWS)}
    for package in ("isthmus", "torch", "torch_geometric", "numpy", "scipy", "scikit-learn", "pyarrow"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "unknown"
    return found


def methods_of(study: Mapping[str, Any]) -> list[Method]:
    """What a study runs, from its tables with all options."""
    listed = [
        Method.named(table["name"]).read({key: table[key] for key in table if key != "name"}, table["name"])
        for table in study.get("methods", [])
    ]
    return [setting.method for setting in combine(listed, study.get("grid", {}))]


def sort_runs(runs: Sequence[RunResult], methods: Sequence[str]) -> list[RunResult]:
    """Runs in the order of the study's methods, then by seed."""
    return sorted(runs, key=lambda run: (methods.index(run.method), run.seed))
