"""Time and memory to load and check a large party folder.

OMP_NUM_THREADS=1 python benchmarks/data/folders.py            # the table, for a million nodes and five million edges
OMP_NUM_THREADS=1 python benchmarks/data/folders.py --write    # the same, into results/folders.json and README.md
OMP_NUM_THREADS=1 python benchmarks/data/folders.py --json     # the figures as JSON and nothing else
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is loaded

import argparse
import json
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet

sys.path.append(str(Path(__file__).parents[1]))  # figures.py is there
from figures import keep, markdown, named, of_process, origin, peak_mb, print_table
from isthmus import toml
from isthmus.data.datasets.folder import PartyFolders
from isthmus.data.folder.loading import check_folders
from isthmus.data.folder.settings import FILE
from isthmus.data.folder.table import EDGES, NODES
from isthmus.data.ids import read_hashing, write_key

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "folders.json"
README = HERE / "README.md"
MARKS = BEGIN, END = "<!-- figures: written by folders.py --write -->", "<!-- end of figures of folders.py -->"
NUMBERS, LABELS, PARTNERS = 16, ("low", "middle", "high"), ("east", "south", "west")
SEED = 0
LIMITS = {"load_s": 20.0, "peak_mb": 3_000.0}
"""What a million nodes and five million edges must stay under."""


# ---- what is loaded


def generate(folder: Path, nodes: int, edges: int, *, texts: bool) -> None:
    """A bank's folder: numbers and categories, labels and splits with gaps, weights, one edge of ten to another bank.

    Arguments:
        texts: ids are texts such as `account-0000123` instead of whole numbers.
    """
    draw = np.random.default_rng(SEED)
    folder.mkdir(parents=True)
    everybody = np.arange(2 * nodes)  # the second half is with the partners
    names = pa.array([f"account-{at:07d}" for at in everybody.tolist()]) if texts else pa.array(everybody * 7)
    ids = names.slice(0, nodes)
    columns = {f"x{at:02d}": pa.array(draw.normal(at, 1 + at, nodes)) for at in range(NUMBERS)}
    label = draw.integers(len(LABELS), size=nodes)
    known = draw.random(nodes) < 0.9
    split = np.where(known, draw.integers(3, size=nodes), -1)
    table = {
        "id": ids,
        **columns,
        "sector": among([f"sector {at}" for at in range(8)], draw.integers(8, size=nodes)),
        "region": among([f"region {at}" for at in range(20)], draw.integers(-1, 20, size=nodes)),
        "label": among(LABELS, np.where(known, label, -1)),
        "split": among(("train", "val", "test"), split),
    }
    parquet.write_table(pa.table(table), folder / NODES)
    across = draw.random(edges) < 0.1
    source, target = draw.integers(nodes, size=edges), draw.integers(nodes, size=edges)
    arrives = across & (draw.random(edges) < 0.5)
    source[arrives] += nodes
    target[across & ~arrives] += nodes
    owner = np.where(across, draw.integers(len(PARTNERS), size=edges), -1)
    ends = {"source": names.take(pa.array(source)), "target": names.take(pa.array(target))}
    more = {"weight": pa.array(draw.random(edges)), "owner": among(PARTNERS, owner)}
    parquet.write_table(pa.table({**ends, **more}), folder / EDGES)
    said = {
        "name": "north",
        "labels": list(LABELS),
        "partners": list(PARTNERS),
        "columns": {
            **{name: {"kind": "number"} for name in columns},
            "sector": {"kind": "category", "values": [f"sector {at}" for at in range(8)]},
            "region": {"kind": "category"},
        },
    }
    (folder / FILE).write_text(toml.dumps(said))


def among(values: tuple[str, ...] | list[str], at: np.ndarray) -> pa.Array:
    """The values at these positions, none where it is -1."""
    return pa.array(values).take(pa.array(at, mask=at < 0))


# ---- a process that loads and does nothing else


def say_alone(folder: Path, key: Path | None) -> None:
    """Load the folder as a study does, and tell what it took; after that what the check alone takes.

    Seconds are those that the process had the CPU, which with one thread on an idle machine are those that pass.
    """
    before, began = peak_mb(), time.process_time()
    (party,) = PartyFolders(path=str(folder), key=None if key is None else str(key)).load(SEED).parties or ()
    found = {
        "nodes": party.nodes,
        "edges": party.edges,
        "border": len(party.border) if party.border is not None else 0,
        "features": party.features,
        "load_s": round(time.process_time() - began, 2),
        "before_mb": round(before),
        "peak_mb": round(peak_mb()),
    }
    del party
    began = time.process_time()
    check_folders(folder, read_hashing(key))
    print(json.dumps(found | {"check_s": round(time.process_time() - began, 2)}))


def alone(folder: Path, key: Path | None) -> dict[str, Any]:
    """What a fresh process says of itself."""
    return of_process(__file__, ["--alone", str(folder), *([] if key is None else ["--key", str(key)])])


def measure(root: Path, nodes: int, edges: int) -> list[dict[str, Any]]:
    """Both kinds of ids, without a key and with one."""
    write_key(root / "key")
    rows = []
    for ids in ("numbers", "texts"):
        folder = root / ids
        generate(folder, nodes, edges, texts=ids == "texts")
        size = sum(each.stat().st_size for each in folder.iterdir()) / 2**20
        for key in (None, root / "key"):
            found = {"ids": ids, "key": "no" if key is None else "yes", "files_mb": round(size)}
            rows.append(found | alone(folder, key))
    return rows


# ---- what is said


COLUMNS = {
    "ids": "ids",
    "key": "key",
    "files_mb": "files, MB",
    "load_s": "**check and load, s**",
    "check_s": "of that check, s",
    "before_mb": "memory before, MB",
    "peak_mb": "**peak memory, MB**",
}
HEAD = list(COLUMNS.values())


def cells(rows: list[dict[str, Any]]) -> list[list[str]]:
    return [[f"{row[name]:,.1f}" if name.endswith("_s") else f"{row[name]}" for name in COLUMNS] for row in rows]


def title_of(figures: dict[str, Any]) -> str:
    row = figures["rows"][0]
    return (
        f"{row['nodes']:,} nodes with {row['features']} features, {figures['lines']:,} lines of edges "
        f"({row['edges']:,} edges both ways, {row['border']:,} across the border), one thread"
    )


def write(figures: dict[str, Any]) -> None:
    told = f"Measured on {figures['date']}: {title_of(figures)}, seed {SEED}; {figures['machine']}; "
    told += f"{named(figures['versions'])}."
    keep(figures, RESULTS, README, MARKS, [told, markdown(HEAD, cells(figures["rows"]), left=2)])


def figures_of(nodes: int, edges: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="isthmus-folders-") as root:
        rows = measure(Path(root), nodes, edges)
    return {
        **origin(pa, torch, np),
        "seed": SEED,
        "lines": edges,
        "limits": LIMITS,
        "rows": rows,
    }


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=5_000_000, help="lines of edges.parquet")
    parser.add_argument("--write", action="store_true", help="save the figures in results/ and the README")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--key", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    options = parsed()
    if options.alone:
        say_alone(options.alone, options.key)
        return
    figures = figures_of(options.nodes, options.edges)
    if options.write:
        write(figures)
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    print_table(title_of(figures), HEAD, cells(figures["rows"]), left=0)
    over = [(row, name) for row in figures["rows"] for name, limit in LIMITS.items() if row[name] > limit]
    if over:
        raise SystemExit(f"over the limits {LIMITS}: {over}")


if __name__ == "__main__":
    main()
