"""Time and memory to load a party folder with a hundred million edges.

OMP_NUM_THREADS=1 python benchmarks/data/mapped.py            # the table
OMP_NUM_THREADS=1 python benchmarks/data/mapped.py --write    # the same, into results/mapped.json and README.md
OMP_NUM_THREADS=1 python benchmarks/data/mapped.py --json     # the figures as JSON and nothing else
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is loaded

import argparse
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet

sys.path.append(str(Path(__file__).parents[1]))  # figures.py is there
from figures import keep, markdown, named, of_process, origin, peak_mb, print_table, watched
from isthmus import toml
from isthmus.data.datasets.folder import PartyFolders
from isthmus.data.folder.settings import FILE
from isthmus.data.folder.table import EDGES, NODES
from isthmus.data.folder.writing import write_parties

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "mapped.json"
README = HERE / "README.md"
MARKS = "<!-- figures: written by mapped.py --write -->", "<!-- end of figures of mapped.py -->"
SEED, CLASSES, BLOCK = 0, 47, 1 << 20


def generate(folder: Path, nodes: int, features: int, edges: int) -> None:
    """A folder of random edges, each listed once and counted in both directions if it is undirected."""
    draw = np.random.default_rng(SEED)
    folder.mkdir(parents=True)
    schema = pa.schema({"id": pa.int64(), "x": pa.list_(pa.float32()), "label": pa.int64()})
    with parquet.ParquetWriter(folder / NODES, schema) as file:
        for at in range(0, nodes, BLOCK // 8):
            count = min(nodes - at, BLOCK // 8)
            ends = pa.array(np.arange(count + 1, dtype=np.int32) * features)
            x = pa.ListArray.from_arrays(ends, pa.array(draw.random(count * features, dtype=np.float32)))
            file.write_table(
                pa.table([np.arange(at, at + count), x, draw.integers(CLASSES, size=count)], schema=schema)
            )
    schema = pa.schema({"source": pa.int64(), "target": pa.int64()})
    with parquet.ParquetWriter(folder / EDGES, schema) as file:
        for at in range(0, edges, BLOCK):
            ends = draw.integers(nodes, size=(2, min(edges - at, BLOCK)))
            file.write_table(pa.table(list(ends), schema=schema))
    columns = {"x": {"kind": "vector", "width": features}}
    (folder / FILE).write_text(toml.dumps({"name": "north", "classes": CLASSES, "directed": True, "columns": columns}))


# ---- a process that loads and does nothing else


def say_alone(folder: Path, what: str, into: Path) -> None:
    """Do one step and tell what it took."""
    before = peak_mb()
    with watched() as found:
        (party,) = PartyFolders(path=str(folder)).load(SEED).parties or ()
        if what == "export":
            write_parties(into, [party], CLASSES)
    print(json.dumps(found | {"before_mb": before, "peak_mb": peak_mb(), "edges": party.edges}))


def measure(root: Path, nodes: int, features: int, edges: int) -> list[dict[str, Any]]:
    os.environ["ISTHMUS_CACHE"] = str(root / "cache")
    generate(root / "north", nodes, features, edges)
    steps = {"first load": "load", "second load": "load", "load and export": "export"}
    return [
        {"step": step}
        | of_process(__file__, ["--alone", str(root / "north"), "--what", what, "--into", str(root / "to")])
        for step, what in steps.items()
    ]


# ---- what is said


COLUMNS = {
    "step": "step",
    "cpu_s": "CPU, s",
    "wall_s": "wall time, s",
    "before_mb": "memory before, MB",
    "own_mb": "**peak memory without mapped pages, MB**",
    "peak_mb": "peak memory with them, MB",
}
HEAD = list(COLUMNS.values())


def cells(rows: list[dict[str, Any]]) -> list[list[str]]:
    return [
        [row["step"], *(f"{row[name]:,.{1 if name.endswith('_s') else 0}f}" for name in list(COLUMNS)[1:])]
        for row in rows
    ]


def title_of(figures: dict[str, Any]) -> str:
    return (
        f"{figures['nodes']:,} nodes with {figures['features']} features ({figures['x_mb']:,} MB as a tensor), "
        f"{figures['edges']:,} edges ({figures['edges_mb']:,} MB), one thread"
    )


def figures_of(nodes: int, features: int, edges: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="isthmus-mapped-") as root:
        rows = measure(Path(root), nodes, features, edges)
    return {
        **origin(pa, torch, np),
        "nodes": nodes,
        "features": features,
        "edges": edges,
        "x_mb": round(nodes * features * 4 / 2**20),
        "edges_mb": round(edges * 16 / 2**20),
        "rows": rows,
    }


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2_000_000)
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--edges", type=int, default=100_000_000)
    parser.add_argument("--write", action="store_true", help="save the figures in results/ and the README")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--what", help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    options = parsed()
    if options.alone:
        say_alone(options.alone, options.what, options.into)
        return
    figures = figures_of(options.nodes, options.features, options.edges)
    if options.write:
        told = f"Measured on {figures['date']}: {title_of(figures)}, seed {SEED}; {figures['machine']}; "
        told += f"{named(figures['versions'])}."
        keep(figures, RESULTS, README, MARKS, [told, markdown(HEAD, cells(figures["rows"]))])
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        print_table(title_of(figures), HEAD, cells(figures["rows"]))


if __name__ == "__main__":
    main()
