"""Write parties as party folders, all or nothing."""

from __future__ import annotations

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
from isthmus.data.folder.reading import EDGES, GRAPHS, NODES
from isthmus.data.folder.settings import FILE, FORMAT
from isthmus.data.party import SPLITS, Party
from isthmus.errors import IsthmusError

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
    """Write one party folder; loading it gives the same party, bit for bit."""
    if party.level == "pair":
        raise IsthmusError(
            f"party '{party.name}' holds pairs, which no folder can hold: write it before pairs are drawn"
        )
    folder.mkdir(parents=True)
    ids = torch.arange(party.nodes) if party.ids is None else party.ids
    labels = _label_columns(party)
    features, declared = _feature_columns(party.graph.x)
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
    nodes: dict[str, Any] = {"id": pa.array(ids.numpy()), **features}
    if party.level == "graph":
        write_table(folder / GRAPHS, pa.table({"id": pa.array(np.arange(party.items)), **labels}))
        nodes = {"graph": pa.array(party.graph.batch.numpy()), **nodes}
    else:
        nodes |= labels
    write_table(folder / NODES, pa.table(nodes))
    write_table(folder / EDGES, pa.table(_edge_columns(party, ids)))
    store.write(folder / FILE, toml.dumps(settings))


@contextmanager
def atomic_folder(folder: Path, *, force: bool = False) -> Iterator[Path]:
    """Yield an empty temporary folder that replaces `folder` at the end, or disappears after an error."""
    try:
        folder = Path(os.path.realpath(folder))
        _check_free(folder, force)
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
        _replace(folder, new, temporary / "old")
    except OSError as error:
        raise IsthmusError(f"cannot write {folder}: {error.strerror or error}; make room or choose another") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        with suppress(OSError):  # the parents that were created and are still empty
            for each in missing:
                each.rmdir()


def _check_free(folder: Path, force: bool) -> None:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not force:
        raise IsthmusError(f"{folder} exists: choose another folder, or replace it with --force")
    if not folder.is_dir() or not (_is_party_folder(folder) or all(map(_is_party_folder, folder.iterdir()))):
        raise IsthmusError(f"{folder} holds other files than party folders: choose another folder")


def _is_party_folder(folder: Path) -> bool:
    """Whether this is a party folder without any other files."""
    files = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    return FILE in files and {FILE, NODES, EDGES, GRAPHS, MOLECULES}.issuperset(files)


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

    store.write_with(path, partial(csv.write_csv if path.suffix == ".csv" else parquet.write_table, table))


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


def _feature_columns(x: Tensor) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the features as one column of lists, or two if they are sparse, and their declaration in `party.toml`."""
    width = int(x.size(1))
    if rows.is_sparse(x):
        crow = x.crow_indices().numpy()
        offsets = pa.array(crow, pa.int64())
        at = pa.LargeListArray.from_arrays(offsets, pa.array(x.col_indices().numpy().astype(np.int32)))
        value = pa.LargeListArray.from_arrays(offsets, pa.array(x.values().numpy()))
        return {"x.at": at, "x.value": value}, {"kind": "bag", "width": width}
    offsets = pa.array(np.arange(x.size(0) + 1) * width, pa.int64())
    values = pa.LargeListArray.from_arrays(offsets, pa.array(x.contiguous().view(-1).numpy()))
    return {"x": values}, {"kind": "vector", "width": width}


def _edge_columns(party: Party, ids: Tensor) -> dict[str, Any]:
    """Return columns with the edges within the party, followed by those across its border."""
    inner, border = ids[party.graph.edge_index], party.border
    weight = getattr(party.graph, "edge_weight", None)
    count = inner.size(1)
    if border is None:
        columns = {"source": pa.array(inner[0].numpy()), "target": pa.array(inner[1].numpy())}
        return columns if weight is None else {**columns, "weight": pa.array(weight.numpy())}
    names = np.array([*border.owners, None], dtype=object)
    owner = np.concatenate([np.full(count, -1), border.owner.numpy()])
    columns = {
        "source": pa.array(torch.cat([inner[0], border.outer]).numpy()),
        "target": pa.array(torch.cat([inner[1], ids[border.inner]]).numpy()),
        "owner": pa.array(names[owner], pa.string()),
    }
    if weight is not None or border.weight is not None:
        parts = [(weight, count), (border.weight, len(border))]
        known = np.concatenate([np.full(n, each is not None) for each, n in parts])
        values = torch.cat([torch.zeros(n) if each is None else each for each, n in parts])
        columns["weight"] = pa.array(values.numpy(), mask=~known)
    return columns
