"""Write parties as party folders, all or nothing."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from isthmus import store, toml
from isthmus.data import rows
from isthmus.data.folder.edges import ROWS as EDGE_ROWS
from isthmus.data.folder.limits import SUGGESTED
from isthmus.data.folder.problems import join_names
from isthmus.data.folder.settings import FILE, FORMAT, read_settings
from isthmus.data.folder.table import EDGES, GRAPHS, NODES
from isthmus.data.party import SPLITS, Party
from isthmus.errors import IsthmusError, format_option
from isthmus.parquet_files import CHECKSUMS, ROWS

MOLECULES = "molecules.csv"


def write_parties(folder: Path, parties: Sequence[Party], classes: int, *, force: bool = False) -> None:
    """Write a folder with one party folder per party; `isthmus run --data FOLDER` loads the same parties from it.

    Arguments:
        classes: the number of classes (or tasks) of the labels.
        force: replace party folders that exist already.
    """
    names = [party.name for party in parties]
    width = len(str(len(names) - 1))
    if names != sorted(names):  # folders are read sorted by name
        names = [f"{at:0{width}d}-{name}" for at, name in enumerate(names)]
    with atomic_folder(folder, force=force) as new_folder:
        for name, party in zip(names, parties, strict=True):
            write_party(new_folder / name, party, classes)


def write_party(folder: Path, party: Party, classes: int) -> None:
    """Write one party folder; loading it gives the same party, bit for bit. Graphs without ids get numbers from 0."""
    if party.level == "pair":
        raise IsthmusError(
            f"party '{party.name}' holds pairs, which no folder can hold: write it before pairs are drawn"
        )
    if party.level == "edge":
        raise IsthmusError(
            f"party '{party.name}' holds labelled edges, which are not exported: keep it in Python, or make a folder "
            "of your tables (isthmus party new --tables FOLDER --as-edges TABLE)"
        )
    if party.schema is not None or party.edge_width:
        raise IsthmusError(
            f"party '{party.name}' has {'types' if party.schema else 'features'} of edges, which no party folder "
            "of one table of nodes holds: keep it in Python, or make one of your tables (isthmus party new --tables)"
        )
    folder.mkdir(parents=True)
    ids = torch.arange(party.nodes) if party.ids is None or party.level == "graph" else party.ids
    labels = _label_columns(party)
    declared = _declaration(party.graph.x)
    if party.structural is not None and party.structural.numel():
        all_features = party.structural.numel() == party.features
        declared["structural"] = all_features or party.structural.tolist()
    settings: dict[str, Any] = {
        "format": FORMAT,
        "name": party.name,
        "level": party.level,
        "classes": classes if "label" in labels else None,
        "tasks": [name for name in labels if name.startswith("task")] or None,
        "directed": True,
        "ids": "shared" if party.level == "graph" or party.ids is not None else "own",
        "partners": None if party.border is None or party.ids is None else list(party.border.owners),
        "columns": {"x": declared},
    }
    if party.level == "graph":
        write_table(folder / GRAPHS, pa.table({"id": pa.array(_graph_ids(party).numpy()), **labels}))
    _write_blocks(folder / NODES, _node_blocks(party, ids, {} if party.level == "graph" else labels))
    _write_blocks(folder / EDGES, _edge_blocks(party, ids))
    store.write(folder / FILE, toml.dumps(settings) + SUGGESTED)


@contextmanager
def atomic_folder(folder: Path, *, force: bool = False) -> Iterator[Path]:
    """Yield an empty temporary folder that replaces `folder` at the end, or disappears after an error."""
    try:
        folder = Path(os.path.realpath(folder))
        check_free(folder, force)
        missing = [each for each in folder.parents if not each.exists()]
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name[:100]}-", dir=folder.parent))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise IsthmusError(f"cannot write to {folder.parent}: {reason}; choose another folder") from error
    try:
        new = temporary / "new"
        new.mkdir()
        yield new
        _check_none_lost(folder, new)
        _replace(folder, new, temporary / "old")
    except OSError as error:
        raise IsthmusError(f"cannot write {folder}: {error.strerror or error}; make room or choose another") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        with suppress(OSError):  # the parents that were created and are still empty
            for each in missing:
                each.rmdir()


def check_free(folder: Path, force: bool) -> None:
    """Refuse a folder that exists, unless it is empty or a party folder that may be replaced."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not force:
        raise IsthmusError(f"{folder} exists: choose another folder, or replace it with {format_option('force', True)}")
    if not folder.is_dir() or not (_is_party_folder(folder) or all(map(_is_party_folder, folder.iterdir()))):
        raise IsthmusError(f"{folder} holds other files than party folders: choose another folder")


def _check_none_lost(folder: Path, new: Path) -> None:
    """Refuse to replace party folders inside a folder that are not among the new ones."""
    inside = {each.name for each in folder.iterdir() if each.is_dir()} if folder.is_dir() else set()
    if lost := sorted(inside - {each.name for each in new.iterdir()}):
        raise IsthmusError(
            f"{folder} also holds the party folders {join_names(lost)}, which this would delete: delete them yourself, "
            "or choose another folder"
        )


def _is_party_folder(folder: Path) -> bool:
    """Whether this is a party folder without any other files."""
    files = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    if FILE not in files:
        return False
    settings, _ = read_settings(folder)
    tables = [] if settings is None else settings.files
    return {FILE, NODES, EDGES, GRAPHS, MOLECULES, *tables}.issuperset(files)


def _replace(folder: Path, new: Path, old: Path) -> None:
    """Rename `folder`, if it exists, to `old`, and `new` to `folder`; after an error everything is as before."""
    if folder.is_dir():
        folder.rename(old)
    try:
        new.rename(folder)
    except BaseException:
        if old.is_dir():
            old.rename(folder)
        raise


def write_table(path: Path, table: pa.Table) -> None:
    """Write a CSV or Parquet file."""
    from pyarrow import csv, parquet

    write_parquet = partial(parquet.write_table, **CHECKSUMS)
    store.write_with(path, partial(csv.write_csv if path.suffix == ".csv" else write_parquet, table))


def _write_blocks(path: Path, blocks: Iterator[pa.Table]) -> None:
    """Write a Parquet file block by block, so that no copy of the whole is ever in memory."""
    from pyarrow import parquet

    def write_to(temporary: Path) -> None:
        first = next(blocks)
        with parquet.ParquetWriter(temporary, first.schema, **CHECKSUMS) as file:
            for block in itertools.chain([first], blocks):
                file.write_table(block)

    store.write_with(path, write_to)


def _label_columns(party: Party) -> dict[str, Any]:
    """Return columns with labels and splits of the items."""
    y: Tensor = party.graph.y
    split = np.full(party.items, "", dtype=object)
    for name in SPLITS:
        split[getattr(party, name).numpy()] = name
    column = pa.array(split, pa.string(), mask=split == "")
    if y.dim() == 1 and y.is_floating_point():
        y = y.unsqueeze(1)
    if y.dim() == 1:
        return {"label": pa.array(y.numpy(), mask=(y < 0).numpy()), "split": column}
    width = len(str(max(0, y.size(1) - 1)))
    tasks = {f"task-{at:0{width}d}": pa.array(each.numpy(), mask=each.isnan().numpy()) for at, each in enumerate(y.t())}
    return {**tasks, "split": column}


def _graph_ids(party: Party) -> Tensor:
    return torch.arange(party.items) if party.ids is None else party.ids


def _starts(rows: int, block: int) -> range:
    """Where blocks of rows begin; there is at least one block, even if it is empty."""
    return range(0, max(rows, 1), block)


def _node_blocks(party: Party, ids: Tensor, labels: dict[str, Any]) -> Iterator[pa.Table]:
    for start in _starts(party.nodes, ROWS):
        part = slice(start, min(start + ROWS, party.nodes))
        graph = (
            {"graph": pa.array(_graph_ids(party)[party.graph.batch[part]].numpy())} if party.level == "graph" else {}
        )
        features = _feature_columns(rows.slice_rows(party.graph.x, part.start, part.stop))
        given = {name: column.slice(start, part.stop - start) for name, column in labels.items()}
        yield pa.table({**graph, "id": pa.array(ids[part].numpy()), **features, **given})


def _declaration(x: Tensor) -> dict[str, Any]:
    """Return what `party.toml` says of the features."""
    return {"kind": "bag" if rows.is_sparse(x) else "vector", "width": int(x.size(1))}


def _feature_columns(x: Tensor) -> dict[str, Any]:
    """Return the features as one column of lists, or two if they are sparse."""
    if rows.is_sparse(x):
        offsets = pa.array(x.crow_indices().numpy(), pa.int64())
        at = pa.LargeListArray.from_arrays(offsets, pa.array(x.col_indices().numpy().astype(np.int32)))
        value = pa.LargeListArray.from_arrays(offsets, pa.array(x.values().numpy()))
        return {"x.at": at, "x.value": value}
    offsets = pa.array(np.arange(x.size(0) + 1) * x.size(1), pa.int64())
    return {"x": pa.LargeListArray.from_arrays(offsets, pa.array(x.contiguous().view(-1).numpy()))}


def _edge_blocks(party: Party, ids: Tensor) -> Iterator[pa.Table]:
    """Yield the edges within the party, followed by those across its border."""
    edges, border = party.graph.edge_index, party.border
    weight = getattr(party.graph, "edge_weight", None)
    kind = next((each.dtype for each in (weight, None if border is None else border.weight) if each is not None), None)

    def block(source: Tensor, target: Tensor, owner: Any, weight: Tensor | None) -> pa.Table:
        columns = {"source": pa.array(source.numpy()), "target": pa.array(target.numpy())}
        if border is not None:
            columns["owner"] = owner.cast(pa.string())
        if kind is not None:
            known = torch.zeros(source.numel()) if weight is None else weight
            columns["weight"] = pa.array(known.to(kind).numpy(), mask=np.full(source.numel(), weight is None))
        return pa.table(columns)

    for start in _starts(edges.size(1), EDGE_ROWS):
        part = slice(start, start + EDGE_ROWS)
        ends = ids[edges[:, part]]
        yield block(ends[0], ends[1], pa.nulls(ends.size(1)), None if weight is None else weight[part])
    if border is not None and len(border):
        owner = pa.array(border.owners, pa.string()).take(pa.array(border.owner.numpy()))
        yield block(border.outer, ids[border.inner], owner, border.weight)
