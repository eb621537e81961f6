"""What a study gave: runs, their summary, and the folder that holds them."""

from __future__ import annotations

import datetime
import json
import math
import platform
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from safetensors.torch import save

from isthmus import __version__, store, toml
from isthmus.data.describe import CutDescription
from isthmus.errors import IsthmusError
from isthmus.federation import ledger, wire
from isthmus.study.graphs import write_graph
from isthmus.study.loop import RunResult

FORMAT = 1
"""Format number of a result folder. Raise it when reports can no longer read older folders."""


@dataclass
class Results:
    """Runs of one study, as the command line writes them and `isthmus.run` gives them.

    Attributes:
        study: the study with all its options spelled out.
        runs: one entry per method and seed.
        cuts: for each seed what the parties held.
        set_up: what left parties on machines of their own before any method ran.
    """

    study: Mapping[str, Any] = field(repr=False)
    runs: list[RunResult] = field(default_factory=list)
    cuts: Mapping[int, CutDescription] = field(default_factory=dict, repr=False)
    set_up: ledger.Ledger | None = field(default=None, repr=False)

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the only run; with several, see `summary`."""
        if len(self.runs) != 1:
            raise IsthmusError(f"there are {len(self.runs)} runs: read their means from summary()")
        return self.runs[0].metrics

    def summary(self) -> list[dict[str, Any]]:
        """Mean and standard deviation over seeds (of the sample; 0 with one seed), per method and metric."""
        lines = []
        for method in dict.fromkeys(run.method for run in self.runs):
            runs = [run for run in self.runs if run.method == method]
            for metric in dict.fromkeys(name for run in runs for name in run.metrics):
                values = [run.metrics[metric] for run in runs if metric in run.metrics]
                std = statistics.stdev(values) if len(values) > 1 else 0.0
                mean = math.fsum(values) / len(values)
                lines.append({"method": method, "metric": metric, "mean": mean, "std": std, "seeds": len(values)})
        return lines

    def to_dict(self) -> dict[str, Any]:
        """`{"runs": [...], "summary": [...], "cuts": [...]}`; cuts that are described alike are one entry."""
        cuts: dict[CutDescription, list[int]] = {}
        for seed, cut in self.cuts.items():
            cuts.setdefault(cut, []).append(seed)
        return {
            "runs": [run.summary() for run in self.runs],
            "summary": self.summary(),
            "cuts": [{"seeds": seeds, **cut.to_dict()} for cut, seeds in cuts.items()],
        }

    def save(self, folder: Path | str) -> None:
        """Write the result folder: each file whole or not at all."""
        import pyarrow as pa
        from pyarrow import parquet

        folder = Path(folder)
        for run in self.runs:
            for name, weights in _weight_files(run):
                store.write(folder / "weights" / f"{name}.safetensors", save(dict(weights)))
            if run.graph:
                write_graph(folder / "graphs" / f"{run.method}-{run.seed}", run.graph)
        tables = [("history", list(self._history()), _HISTORY), ("ledger", list(self._ledger()), _LEDGER)]
        if any(run.places for run in self.runs):
            tables.append(("places", list(self._places()), PLACES))
        if self.set_up is not None:
            rows = [{"method": "set-up", "seed": -1, **row} for row in self.set_up.rows()]
            tables.append(("set-up", rows, _LEDGER))
        for name, rows, columns in tables:
            schema = pa.schema([(column, getattr(pa, kind)()) for column, kind in columns.items()])
            table = pa.Table.from_pylist(rows, schema=schema)
            store.write_with(folder / f"{name}.parquet", partial(parquet.write_table, table))
        store.write(folder / "study.toml", toml.dumps(self.study))
        created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        head = {"format": FORMAT, "isthmus": __version__, "created": created, "versions": versions()}
        content = {**head, "study": self.study, **self.to_dict()}
        store.write(folder / "results.json", _readable(content) + "\n")

    def _history(self) -> Iterator[dict[str, Any]]:
        for run in self.runs:
            for at, metric, value in run.history:
                yield {"method": run.method, "seed": run.seed, "round": at, "metric": metric, "value": value}

    def _places(self) -> Iterator[dict[str, Any]]:
        for run in self.runs:
            for at, places in run.places.items():
                for x, y, kind in places.tolist():
                    row = {"x": x, "y": y, "class": int(kind)}
                    yield {"method": run.method, "seed": run.seed, "round": int(at), **row}

    def _ledger(self) -> Iterator[dict[str, Any]]:
        for run in self.runs:
            for row in run.ledger.rows():
                yield {"method": run.method, "seed": run.seed, **row}


PLACES = {"method": "string", "seed": "int64", "round": "int64", "x": "float64", "y": "float64", "class": "int64"}
"""Columns of places.parquet: where items stand after some rounds, in two dimensions, and their class, -1 unknown."""

_HISTORY = {"method": "string", "seed": "int64", "round": "int64", "metric": "string", "value": "float64"}
_NUMBERS = ("round", "call", "rows", "sent", "received")
_LEDGER = {"method": "string", "seed": "int64"} | {
    name: "int64" if name in _NUMBERS else "string" for name in ledger.COLUMNS
}


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
    return any(isinstance(each, Mapping) or _holds_groups(each) for each in inside)


def _weight_files(run: RunResult) -> Iterator[tuple[str, dict[str, Any]]]:
    """Weights by file: one for the server's, one per party where parties keep their own."""
    name = f"{run.method}-{run.seed}"
    groups = {key: value for key, value in run.weights.items() if isinstance(value, Mapping)}
    if groups:
        for party, weights in groups.items():
            yield f"{name}/{party}", _contiguous(weights)
    elif run.weights:
        yield name, _contiguous(run.weights)


def _contiguous(weights: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.detach().cpu().contiguous().clone() for name, value in wire.flatten(weights)}


def versions() -> dict[str, str]:
    """Versions of what the figures depend on."""
    found = {"python": platform.python_version()}
    for package in ("isthmus", "torch", "torch_geometric", "numpy", "scipy", "scikit-learn", "pyarrow"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "unknown"
    return found


def load_summary(folder: Path, *, any_format: bool = False) -> dict[str, Any]:
    """Read `results.json` of a folder; another format number is an error, unless `any_format` is set."""
    path = folder / "results.json"
    try:
        content = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise IsthmusError(f"no readable results.json in {folder}: give a folder that isthmus run wrote") from error
    if not any_format:
        store.check_format(path, content, FORMAT)
    return content


def ordered(runs: Sequence[RunResult], methods: Sequence[str]) -> list[RunResult]:
    """Runs in the order of the study's methods, then by seed."""
    return sorted(runs, key=lambda run: (methods.index(run.method), run.seed))
