"""The files of a result folder, which a study writes and the report reads: names, columns, the format number."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from isthmus import store
from isthmus.errors import IsthmusError, missing_extra, path_of, similar_path
from isthmus.federation import ledger
from isthmus.parquet_files import CHECKSUMS, check_rows, open_parquet

if TYPE_CHECKING:  # a list of result folders needs neither, and they take seconds
    from torch import Tensor
    from torch_geometric.data import Data

FORMAT = 1
"""Format number of a result folder. Raise it when reports can no longer read older folders."""

STUDY, RESULTS = "study.toml", "results.json"
HISTORY, LEDGER, SET_UP, COORDINATES = "history.parquet", "ledger.parquet", "set-up.parquet", "places.parquet"
STATE = ".state"
"""Folder inside the result folder with what a killed study needs to resume; deleted when the study is done."""
DOSSIER = "dossier.json"
"""The document on a run, which `isthmus dossier` writes: in its result folder, or in a party's kit."""
_NODES, _EDGES = "nodes.safetensors", "edges.parquet"

_RUN = {"method": "string", "seed": "int64"}
_INTEGERS = ("round", "call", "rows", "sent", "received")
_LEDGER_COLUMNS = _RUN | {name: "int64" if name in _INTEGERS else "string" for name in ledger.COLUMNS}
COLUMNS: Mapping[str, Mapping[str, str]] = {
    HISTORY: _RUN | {"round": "int64", "metric": "string", "value": "float64"},
    LEDGER: _LEDGER_COLUMNS,
    SET_UP: _LEDGER_COLUMNS,
    COORDINATES: _RUN | {"round": "int64", "x": "float64", "y": "float64", "class": "int64"},
}
"""Columns of each table, with their types. Class -1 of a drawn item: unknown."""
RESTORE = "run the study again, or restore the file"
"""What to do about a file of a result folder that cannot be used."""
SUMMARY = 1 << 30
"""Bytes of the largest `results.json` that is read."""
GROUP = 1 << 18
"""Rows of a table that are written together: what is in memory of the table at a time."""


@dataclass(frozen=True)
class Tried:
    """A setting that was tried, and how it did on validation data. Test data are not in here.

    Attributes:
        of: the label of the method that it is a setting of.
        values: the options that vary.
        mean, std: of the validation metric over seeds; None if it did not come to its end.
        seeds: how many.
        label: what results call its runs; empty if they are not kept.
        pruned: it was stopped early, as others were better by then.
        chosen: it is the best of its method.
    """

    of: str
    values: Mapping[str, Any]
    mean: float | None
    std: float = 0.0
    seeds: int = 1
    label: str = ""
    pruned: bool = False
    chosen: bool = False

    @classmethod
    def of_values(cls, of: str, values: Mapping[str, Any], scores: Sequence[float], label: str = "") -> Tried:
        """From the validation metric of every seed; a setting with a seed that diverged has no mean."""
        if not scores or not all(map(math.isfinite, scores)):
            return cls(of, values, None, seeds=len(scores), label=label)
        std = statistics.stdev(scores) if len(scores) > 1 else 0.0
        return cls(of, values, statistics.fmean(scores), std, len(scores), label)

    @property
    def diverged(self) -> bool:
        """It ran and has no mean, and was not stopped early."""
        return self.mean is None and self.seeds > 0 and not self.pruned


@dataclass(frozen=True)
class Search:
    """All settings that were tried, best first.

    Attributes:
        metric: the validation metric that ranks them.
        tried: the settings of all methods.
        importance: by method and option, the share of the differences between settings that is the option's.
    """

    metric: str
    tried: Sequence[Tried]
    importance: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "tried": [vars(each) for each in self.tried],
            **({"importance": self.importance} if self.importance else {}),
        }

    def test_metrics(self, judged_by: Iterable[str]) -> list[str]:
        """Test metrics to show: those that judge the task, or that of the ranking where nothing else is known."""
        found = [f"test_{name}" for name in dict.fromkeys(judged_by) if name]
        return found or [self.metric.replace("val_", "test_", 1)]

    def chosen_label(self, of: str) -> str:
        """What results call the runs of a method's chosen setting; empty if it was not searched."""
        return next((each.label for each in self.tried if each.chosen and each.of == of), "")

    @classmethod
    def of_dict(cls, saved: Mapping[str, Any]) -> Search:
        """What `to_dict` gave."""
        return cls(saved["metric"], [Tried(**each) for each in saved["tried"]], saved.get("importance", {}))

    @property
    def unchosen(self) -> set[str]:
        """The labels of runs with settings that are not the best of their method on validation data."""
        return {each.label for each in self.tried if not each.chosen}


def graph_folder(folder: Path, method: str, seed: int) -> Path:
    """The folder of the graph that a run made."""
    return folder / "graphs" / f"{method}-{seed}"


def load_summary(folder: Path, *, any_format: bool = False) -> dict[str, Any]:
    """Read `results.json` of a folder; another format number is an error, unless `any_format` is set."""
    path = folder / RESULTS
    try:
        content = dict(store.parse_json(store.read(path, limit=SUMMARY, within=folder)))
        store.check_sum(folder, RESULTS)
    except (OSError, ValueError, TypeError) as error:
        reason = getattr(error, "strerror", None) or error
        remedy = similar_path(folder) or ": give a folder that isthmus run wrote"
        raise IsthmusError(f"no readable {RESULTS} in {folder} ({reason}){remedy}") from error
    if not any_format:
        store.check_format(path, content, FORMAT)
    return content


def write_table(folder: Path, name: str, parts: Iterable[Mapping[str, Sequence[Any]]]) -> None:
    """Write a table of `COLUMNS`, a row group after the other.

    Arguments:
        parts: by column the values of some rows, then of the rows that follow.
    """
    import pyarrow as pa
    from pyarrow import parquet

    schema = _schema(name)

    def write_to(path: Path) -> None:
        with parquet.ParquetWriter(path, schema, **CHECKSUMS) as file:
            for columns in _row_groups(parts):
                file.write_table(pa.table(columns, schema=schema))

    store.write_with(folder / name, write_to)


def read_table(folder: Path, name: str, *, optional: bool = False) -> Any:
    """Read a table of `COLUMNS`; an optional one that is missing is empty."""
    from pyarrow import ArrowException

    path, schema = folder / name, _schema(name)
    if optional and not path.exists():
        return schema.empty_table()
    try:
        store.check_sum(folder, name)
        with open_parquet(path, within=folder) as file:
            table = check_rows(file, file.read())
            table.validate(full=True)
        if missing := [column for column in schema.names if column not in table.column_names]:
            raise unreadable(path, f"column '{missing[0]}' is missing")
        return table.select(schema.names).cast(schema)
    except (OSError, ValueError, MemoryError, ArrowException) as error:
        raise unreadable(path, getattr(error, "strerror", None) or error) from error


def unreadable(path: Path, reason: object) -> IsthmusError:
    """An error about a file of a result folder."""
    text = " ".join(str(reason).split())[:200]
    return IsthmusError(f"cannot read '{path}': {text}: {RESTORE}")


def _row_groups(parts: Iterable[Mapping[str, Sequence[Any]]]) -> Iterator[dict[str, list[Any]]]:
    """Parts of a table put together to row groups of about `GROUP` rows."""
    columns: dict[str, list[Any]] = {}
    for part in parts:
        for name, values in part.items():
            columns.setdefault(name, []).extend(values)
        if columns and len(next(iter(columns.values()))) >= GROUP:
            yield columns
            columns = {}
    if columns:
        yield columns


def _schema(name: str) -> Any:
    import pyarrow as pa

    return pa.schema([(column, pa.type_for_alias(kind)) for column, kind in COLUMNS[name].items()])


def data_frame(rows: Sequence[Mapping[str, Any]] | Mapping[str, Sequence[Any]]) -> Any:
    """A pandas data frame of rows, or of columns."""
    try:
        import pandas
    except ImportError as error:
        raise missing_extra("pandas", "frames", "a data frame") from error
    return pandas.DataFrame(rows)


class ShownEpsilon(BaseModel):
    """An epsilon that an audit shows beside the claimed one.

    Attributes:
        of: the unit, a key of `isthmus.privacy.account.UNITS`.
        said: both in a sentence, with confidence and canaries.
    """

    of: str
    claimed: float
    shown: float
    said: str


class AuditRecord(BaseModel):
    """The result of one audit of one method.

    Attributes:
        study: `study.toml` of the study that was attacked.
        audit: its name and its options.
        seed: whose cut and first model were attacked.
        corner, columns, sections, notes: the table, as `isthmus.audit.base.AuditTable` has it.
        curves: ROC curves by title, each as false and true positive rates.
        protections: all figures, for each column.
        lower_bounds: epsilons that it shows.
    """

    study: str
    audit: dict[str, Any]
    method: str
    seed: int
    corner: str
    columns: list[str]
    sections: list[list[tuple[str, list[str]]]]
    notes: list[str]
    curves: dict[str, list[tuple[float, float]]] = {}
    protections: list[dict[str, Any]]
    lower_bounds: list[ShownEpsilon] = []


def write_audit(folder: Path, record: AuditRecord) -> Path:
    """Write `audits/AUDIT-METHOD.json` over one with the same options; beside one with others, with a number."""
    name = f"{record.audit['name']}-{record.method}"
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    paths = (folder / "audits" / f"{each}.json" for each in names)
    path = next(path for path in paths if not path.exists() or _is_replaced(path, record))
    store.write_json(path, record.model_dump(mode="json"))
    return path


def _is_replaced(path: Path, record: AuditRecord) -> bool:
    """Whether a file is of the same audit, of a study that was in the folder before, or cannot be read."""
    try:
        content = store.read_json(path)
        same = (content["method"], content["audit"]) == (record.method, record.audit)
        return bool(content["study"] != record.study or same)
    except (OSError, ValueError, KeyError, TypeError):
        return True


def audits_in(folder: Path) -> list[str]:
    """The files in a result folder that audits have written."""
    return [path.relative_to(folder).as_posix() for path in sorted((folder / "audits").glob("*.json"))]


def read_audits(folder: Path, study: str) -> list[AuditRecord]:
    """All audits of this study in a result folder; audits of a study that was in the folder before are left out."""
    records = []
    for path in (folder / name for name in audits_in(folder)):
        remedy = "run the audit again, or remove the file"
        try:
            content = store.read_json(path, within=folder)
        except (OSError, ValueError) as error:
            text = getattr(error, "strerror", None) or error
            raise IsthmusError(f"cannot read '{path}': {text}: {remedy}") from error
        with store.expected_content(path, remedy):
            records.append(AuditRecord.model_validate(content))
    return [each for each in records if each.study == study]


def shown_epsilon(audits: Iterable[AuditRecord], method: str, unit: str) -> ShownEpsilon | None:
    """The largest epsilon that audits of a method show for a unit; None if no audit looked for one."""
    shown = [each for record in audits if record.method == method for each in record.lower_bounds if each.of == unit]
    return max(shown, key=lambda each: each.shown, default=None)


def write_graph(folder: Path, graph: Mapping[str, Tensor]) -> None:
    """Write a graph that a method made: features and classes of its nodes, and its weighted edges."""
    import pyarrow as pa
    from pyarrow import parquet
    from safetensors.torch import save

    source, target = graph["edge_index"].tolist()
    columns = {"source": source, "target": target, "weight": graph["edge_weight"].tolist()}
    kinds = {"source": pa.int64(), "target": pa.int64(), "weight": pa.float32()}
    table = pa.table({name: pa.array(values, kinds[name]) for name, values in columns.items()})
    store.write(folder / _NODES, save({name: graph[name].detach().cpu().contiguous() for name in ("x", "y")}))
    store.write_with(folder / _EDGES, partial(parquet.write_table, table, **CHECKSUMS))
    store.write_sums(folder, (_NODES, _EDGES))


def load_graph(folder: Path | str) -> Data:
    """Read a graph that a method made, `graphs/METHOD-SEED` of a result folder, for any PyG model.

    >>> import tempfile, torch
    >>> graph = {"x": torch.eye(2), "y": torch.tensor([0, 1]), "edge_index": torch.tensor([[0], [1]])}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_graph(Path(folder), {**graph, "edge_weight": torch.tensor([0.5])})
    ...     load_graph(folder)
    Data(x=[2, 2], edge_index=[2, 1], y=[2], edge_weight=[1])
    """
    import torch
    from safetensors.torch import load_file
    from torch_geometric.data import Data

    folder = path_of(folder, "load_graph: folder")
    try:
        for name in (_NODES, _EDGES):
            store.check_file(folder / name, within=folder)
            store.check_sum(folder, name)
        store.check_memory(folder / _NODES, 2 * (folder / _NODES).stat().st_size)
        nodes: dict[str, Any] = load_file(folder / _NODES)
        with open_parquet(folder / _EDGES) as file:
            edges = file.read(columns=["source", "target", "weight"]).to_pydict()
        index = torch.tensor([edges["source"], edges["target"]], dtype=torch.long)
        weight = torch.tensor(edges["weight"], dtype=torch.float32)
        graph = Data(x=nodes["x"], edge_index=index, y=nodes["y"], edge_weight=weight)
        graph.validate()
        return graph
    except Exception as error:  # a damaged file can raise almost anything in a library
        reason = " ".join(str(getattr(error, "strerror", None) or error or type(error).__name__).split())[:200]
        raise IsthmusError(
            f"no readable graph in {folder} ({reason}): give graphs/METHOD-SEED of a folder that isthmus run wrote"
        ) from error
