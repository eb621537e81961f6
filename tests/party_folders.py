"""Small party folders as plain values, which a test can change before it writes them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from pyarrow import parquet
from torch import Tensor

from isthmus import toml
from isthmus.data.datasets.folder import PartyFolders
from isthmus.data.folder.problems import Problem
from isthmus.data.folder.reading import Contents, check_folder
from isthmus.data.folder.settings import FILE
from isthmus.data.folder.table import EDGES, GRAPHS, NODES
from isthmus.data.ids import PLAIN, Hashing
from isthmus.data.party import SPLITS, Party
from isthmus.data.pool import Pool

WORDS = 5
COLUMNS = {
    "age": {"kind": "number"},
    "kind": {"kind": "category"},
    "near": {"kind": "vector", "width": 2},
    "words": {"kind": "bag", "width": WORDS},
}


@dataclass
class Draft:
    """A party folder before it is written: what `party.toml` says, and each table's columns."""

    settings: dict[str, Any]
    tables: dict[str, dict[str, Any]]
    files: dict[str, bytes] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).write_text(toml.dumps(self.settings), encoding="utf-8")
        for file, columns in self.tables.items():
            parquet.write_table(pa.table(columns), folder / file)
        for file, content in self.files.items():
            (folder / file).write_bytes(content)
        return folder

    def put(self, column: str, values: Any, file: str = NODES) -> Draft:
        """Return the draft with other values in a column."""
        changed = copy.deepcopy(self)
        changed.tables[file][column] = values
        return changed

    def without(self, column: str, file: str = NODES) -> Draft:
        changed = copy.deepcopy(self)
        del changed.tables[file][column]
        return changed

    def with_settings(self, **settings: Any) -> Draft:
        """Return the draft with other settings."""
        changed = copy.deepcopy(self)
        changed.settings |= settings
        return changed


def features(count: int) -> dict[str, list[Any]]:
    """One column of each kind."""
    return {
        "age": [float(3 * at % 7) for at in range(count)],
        "kind": ["ab"[at % 2] for at in range(count)],
        "near": [[at / 2, -1.0 - at] for at in range(count)],
        "words.at": [[at % WORDS] if at % 2 else [0, 1 + at % (WORDS - 1)] for at in range(count)],
        "words.value": [[0.5] if at % 2 else [1.0, 2.0] for at in range(count)],
    }


def graph_draft(
    name: str = "north", partner: str | None = "south", first: int = 0, ids: Callable[[int], Any] = int
) -> Draft:
    """Eight nodes in a ring, each with a label, in all splits; one edge from a partner's node and one to another."""
    count, other = 8, 100 - first
    names = [ids(first + at) for at in range(count)]
    ring = {"source": names, "target": names[1:] + names[:1], "owner": [None] * count}
    across = {"source": [ids(other), names[3]], "target": [names[1], ids(other + 2)], "owner": [partner, partner]}
    if first > other:  # the same edges, seen from the other side
        across |= {"source": [names[0], ids(other + 3)], "target": [ids(other + 1), names[2]]}
    edges = {key: ring[key] + (across[key] if partner else []) for key in ring}
    edges["weight"] = [1.0 + at / 4 for at in range(len(edges["source"]))]
    settings: dict[str, Any] = {"name": name, "labels": ["low", "high"], "columns": copy.deepcopy(COLUMNS)}
    if partner:
        settings["partners"] = [partner]
    else:
        del edges["owner"]
    labels = {
        "label": ["low", "high"] * 4,
        "split": ["train", "train", "train", "val", "val", "test", "test", None],
    }
    return Draft(settings, {NODES: {"id": names, **features(count), **labels}, EDGES: edges})


def two_drafts(**options: Any) -> tuple[Draft, Draft]:
    """Two parties with edges between them."""
    return graph_draft("north", "south", 0, **options), graph_draft("south", "north", 100, **options)


def collection_draft(name: str = "lab", graphs: int = 6, first: int = 0) -> Draft:
    """Graphs of two or three nodes, a path each."""
    sizes = [2 + at % 2 for at in range(graphs)]
    graph = [f"g{first + at}" for at, size in enumerate(sizes) for _ in range(size)]
    names = [f"g{first + at}-{inner}" for at, size in enumerate(sizes) for inner in range(size)]
    pairs = [(one, two) for one, two, a, b in zip(names, names[1:], graph, graph[1:], strict=False) if a == b]
    return Draft(
        {"name": name, "level": "graph", "labels": ["low", "high"], "columns": copy.deepcopy(COLUMNS)},
        {
            GRAPHS: {
                "id": [f"g{first + at}" for at in range(graphs)],
                "label": ["low", "high"] * (graphs // 2) + ["low"] * (graphs % 2),
                "split": (["train", "val", "test"] * graphs)[:graphs],
            },
            NODES: {"graph": graph, "id": names, **features(len(names))},
            EDGES: {"source": [one for one, _ in pairs], "target": [two for _, two in pairs]},
        },
    )


def read(draft: Draft, folder: Path, hashing: Hashing = PLAIN) -> Contents:
    """Return the contents of a draft that must be usable."""
    contents, problems = check_folder(draft.write(folder), hashing)
    assert contents is not None, [str(each) for each in problems]
    return contents


def load_folders(root: Path, key: bytes | None = None, *, seed: int = 0, **options: Any) -> Pool:
    """Load all folders at a path as a study does; a key goes into a file beside them."""
    if key is not None:
        (root.parent / "some.key").write_bytes(key)
        options["key"] = str(root.parent / "some.key")
    return PartyFolders(path=str(root), **options).load(seed)


def report(draft: Draft, folder: Path) -> list[str]:
    """Return all problems of a draft; one that is not severe begins with 'note:'."""
    contents, problems = check_folder(draft.write(folder))
    assert (contents is None) == any(each.severe for each in problems)
    return lines(problems)


def lines(problems: Sequence[Problem]) -> list[str]:
    found = [f"{'' if each.severe else 'note: '}{each}" for each in problems]
    assert not any("\n" in line for line in found)
    return found


def same(found: Any, due: Any, where: str = "") -> None:
    """Check that tensors are equal bit for bit, in type and in layout, and that other values are equal."""
    assert type(found) is type(due), (where, type(found), type(due))
    if isinstance(due, Tensor):
        assert (found.dtype, found.layout, found.shape) == (due.dtype, due.layout, due.shape), where
        if due.layout == torch.sparse_csr:
            for part in ("crow_indices", "col_indices", "values"):
                same(getattr(found, part)(), getattr(due, part)(), f"{where}.{part}")
            return
        bits = {torch.float32: torch.int32, torch.float64: torch.int64}.get(due.dtype, due.dtype)
        assert torch.equal(found.contiguous().view(bits), due.contiguous().view(bits)), where
    elif isinstance(due, Mapping):
        assert found.keys() == due.keys(), where
        for key in due:
            same(found[key], due[key], f"{where}.{key}")
    else:
        assert found == due, where


def parts(party: Party) -> dict[str, Any]:
    """Return everything that a party holds."""
    graph, border = party.graph, party.border
    return {
        "name": party.name,
        "level": party.level,
        "items": party.items,
        "x": graph.x,
        "edge_index": graph.edge_index,
        "y": graph.y,
        "edge_weight": graph.get("edge_weight"),
        "batch": graph.get("batch"),
        "num_nodes": graph.num_nodes,
        "ids": party.ids,
        **{split: getattr(party, split) for split in SPLITS},
        "border": None if border is None else vars(border),
    }


def assert_same_parties(found: Sequence[Party], due: Sequence[Party]) -> None:
    assert [party.name for party in found] == [party.name for party in due]
    for one, two in zip(found, due, strict=True):
        same(parts(one), parts(two), two.name)
