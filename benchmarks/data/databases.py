"""Time and memory to make, check and load a party folder of several tables.

OMP_NUM_THREADS=1 python benchmarks/data/databases.py            # the table, for 100,000 and a million rows
OMP_NUM_THREADS=1 python benchmarks/data/databases.py --write    # the same, into results/databases.json and README.md
OMP_NUM_THREADS=1 python benchmarks/data/databases.py --json     # the figures as JSON and nothing else
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is loaded

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import torch
from pyarrow import csv

sys.path.append(str(Path(__file__).parents[1]))  # figures.py is there
from figures import keep, markdown, named, origin, peak_mb, print_table
from isthmus.data.datasets.folder import PartyFolders
from isthmus.data.folder.from_database import DatabaseSource, create_databases
from isthmus.data.folder.loading import check_folders

HERE = Path(__file__).parent
RESULTS, README = HERE / "results" / "databases.json", HERE / "README.md"
MARKS = BEGIN, END = "<!-- figures: written by databases.py --write -->", "<!-- end of figures of databases.py -->"
SHARES = {"customers": 0.1, "accounts": 0.2, "transfers": 0.7}
"""By table its part of all rows."""
LABELS = {"customers": "risky", "accounts": "closed", "transfers": "laundering"}
"""By table a column with two classes."""
ALL = "all three"
STEPS = ("new", "check", "load")
SEED, DAYS = 0, 300


# ---- what is read


def generate(folder: Path, rows: int) -> None:
    """Write a bank's three CSV files; dates, missing values and keys are those of an export."""
    draw = np.random.default_rng(SEED)
    folder.mkdir(parents=True)
    customers, accounts, transfers = (round(share * rows) for share in SHARES.values())
    names = {table: keys(table[0].upper(), count) for table, count in zip(SHARES, (customers, accounts), strict=False)}
    minutes = np.sort(draw.integers(0, DAYS * 24 * 60, transfers))
    ends = draw.integers(0, accounts, (2, transfers))
    tables = {
        "customers": {
            "customer": names["customers"],
            "kind": among(("private", "firm", "public"), draw.integers(3, size=customers)),
            "age": pa.array(draw.integers(18, 90, customers), mask=draw.random(customers) < 0.1),
            "since": moments(draw.integers(-3000, 0, customers) * 24 * 60, "%Y-%m-%d"),
            "risky": draw.integers(2, size=customers),
        },
        "accounts": {
            "account": names["accounts"],
            "customer": names["customers"].take(pa.array(draw.integers(0, customers, accounts))),
            "currency": among(("EUR", "USD", "CHF", "GBP"), draw.integers(4, size=accounts)),
            "balance": draw.normal(1000, 300, accounts).round(2),
            "closed": draw.integers(2, size=accounts),
        },
        "transfers": {
            "transfer": keys("T", transfers),
            "time": moments(minutes, "%Y-%m-%d %H:%M:%S"),
            "from_account": names["accounts"].take(pa.array(ends[0])),
            "to_account": names["accounts"].take(pa.array(ends[1])),
            "amount": draw.exponential(200, transfers).round(2),
            "channel": among(("card", "branch", "app", "web"), draw.integers(4, size=transfers)),
            "laundering": (draw.random(transfers) < 0.01).astype(int),
        },
    }
    for name, columns in tables.items():
        csv.write_csv(pa.table(columns), folder / f"{name}.csv")


def keys(letter: str, count: int) -> pa.Array:
    return pa.array([f"{letter}{at:07d}" for at in range(count)])


def among(values: tuple[str, ...], at: np.ndarray) -> pa.Array:
    return pa.array(values).take(pa.array(at))


def moments(minutes: np.ndarray, form: str) -> pa.Array:
    """So many minutes after the start of 2024, as texts."""
    found = np.datetime64("2024-01-01T00:00:00", "s") + minutes * np.timedelta64(60, "s")
    return pa.compute.strftime(pa.array(found), form)


# ---- a process that takes one step and does nothing else


def take(step: str, files: Path, folder: Path, table: str) -> dict[str, Any]:
    """Take one step and tell what it took: seconds are those that the process had a CPU."""
    before, began = peak_mb(), time.process_time()
    found: dict[str, Any] = {}
    if step == "new":
        labelled = "transfers" if table == ALL else table
        paths = [files if table == ALL else files / f"{table}.csv"]
        create_databases(folder, DatabaseSource(paths, label=f"{labelled}.{LABELS[labelled]}"))
    elif step == "check":
        check_folders(folder)
    else:
        (party,) = PartyFolders(path=str(folder)).load(SEED).parties or ()
        found = {"nodes": party.nodes, "edges": party.edges, "features": party.features}
    seconds = round(time.process_time() - began, 2)
    return {**found, "seconds": seconds, "before_mb": round(before), "peak_mb": round(peak_mb())}


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns in a process of its own, which begins with all libraries and without data."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(function, arguments)


def measure(root: Path, rows: int) -> list[dict[str, Any]]:
    """Each table by itself, and all together."""
    files = root / f"files-{rows}"
    alone(generate, files, rows)
    found = []
    for table in (*SHARES, ALL):
        paths = files.iterdir() if table == ALL else [files / f"{table}.csv"]
        row: dict[str, Any] = {"of": rows, "table": table, "rows": round(SHARES.get(table, 1) * rows)}
        row["files_mb"] = round(sum(each.stat().st_size for each in paths) / 2**20, 1)
        for step in STEPS:
            told = alone(take, step, files, root / f"{table.replace(' ', '-')}-{rows}", table)
            row |= {f"{step}_s": told.pop("seconds"), f"{step}_mb": told.pop("peak_mb"), **told}
        found.append(row)
        print(f"{table}, {row['rows']:,} rows", file=sys.stderr, flush=True)
    return found


# ---- what is said


COLUMNS = {
    "table": "table",
    "rows": "rows",
    "files_mb": "CSV, MB",
    "new_s": "`party new`, s",
    "check_s": "`party check`, s",
    "load_s": "**check and load, s**",
    "before_mb": "memory before, MB",
    "new_mb": "peak of `new`, MB",
    "check_mb": "of `check`, MB",
    "load_mb": "**of loading, MB**",
}
HEAD = list(COLUMNS.values())


def cells(rows: list[dict[str, Any]]) -> list[list[str]]:
    return [[f"{row[name]:,}" if name != "table" else row[name] for name in COLUMNS] for row in rows]


def write(figures: dict[str, Any]) -> None:
    whole = [row for row in figures["rows"] if row["table"] == ALL]
    sizes = "; ".join(f"of {row['of']:,} rows {row['nodes']:,} nodes and {row['edges']:,} edges" for row in whole)
    told = f"Measured on {figures['date']}: one bank's three tables ({sizes}), one thread, seed {SEED}; "
    told += f"{figures['machine']}, which had other work to do; {named(figures['versions'])}."
    keep(figures, RESULTS, README, MARKS, [told, markdown(HEAD, cells(figures["rows"]))])


def figures_of(sizes: list[int]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="isthmus-databases-") as root:
        rows = [row for size in sizes for row in measure(Path(root), size)]
    return {**origin(duckdb, pa, torch, np), "seed": SEED, "rows": rows}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000], help="of all three tables")
    parser.add_argument("--write", action="store_true", help="save the figures in results/ and the README")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
    return parser.parse_args()


def main() -> None:
    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    options = parsed()
    figures = figures_of(options.rows)
    if options.write:
        write(figures)
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    print_table("Party folders of several tables, one thread", HEAD, cells(figures["rows"]))


if __name__ == "__main__":
    main()
