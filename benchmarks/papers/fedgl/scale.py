"""FedGL's pseudo graph of a large union: time and memory of the search, and of whole rounds, each in its own process.

OMP_NUM_THREADS=1 python benchmarks/papers/fedgl/scale.py            # the table
OMP_NUM_THREADS=1 python benchmarks/papers/fedgl/scale.py --write    # and into results/scale.json and README.md

The search finds the `s` most similar of M rows with 16 columns, unit vectors around 8 centres. Rounds are FedGL's on
the generated `hospitals` with M patients at two hospitals each, with defaults except for s and a pseudo graph from the
first round on.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is loaded

import argparse
import datetime
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from isthmus import Study, run_study
from isthmus.data import similar
from isthmus.study.results import versions

sys.path.append(str(Path(__file__).parents[2]))  # figures.py is there
from figures import keep, machine, markdown, named, of_process, peak_mb, print_table

HERE = Path(__file__).parent
RESULTS, README = HERE / "results" / "scale.json", HERE / "README.md"
MARKS = ("<!-- figures: written by scale.py --write -->", "<!-- end of figures of scale.py -->")
NODES = (10_000, 30_000, 100_000)
HEAD = ("what", "nodes", "s", "seconds", "memory before, MB", "peak memory, MB", "edges found")


def say_alone(what: str, nodes: int, s: int) -> None:
    """What one search, or one run, takes in this process."""
    if what == "rounds":
        found = rounds(nodes, s)
    else:
        generator = torch.Generator().manual_seed(0)
        centres = F.normalize(torch.randn(8, 16, generator=generator))
        at = torch.randint(8, (nodes,), generator=generator)
        h = F.normalize(centres[at] + 0.3 * torch.randn(nodes, 16, generator=generator))
        found = {"before_mb": round(peak_mb()), "began": time.process_time()}
        found["edges"] = similar.SEARCHES[what](h, s).nnz
    seconds = time.process_time() - found.pop("began")
    row = {"what": what, "nodes": nodes, "s": s, "seconds": round(seconds, 1), "peak_mb": round(peak_mb())}
    print(json.dumps(row | found))


def rounds(nodes: int, s: int, count: int = 3) -> dict[str, Any]:
    """Rounds of FedGL, evaluation and the pooled graph included."""
    study = Study.of(
        {
            "data": {"name": "hospitals", "nodes": nodes, "overlap": 1.0},
            "methods": [{"name": "fedgl", "rounds": count, "neighbours": s, "min_confident": 0, "max_changed": 1}],
        }
    )
    study.load(0)
    found: dict[str, Any] = {"before_mb": round(peak_mb()), "began": time.process_time(), "edges": 0}
    run_study(study)
    return found


def lines_of(rows: list[dict[str, Any]]) -> list[list[str]]:
    told = []
    for row in rows:
        what = "3 rounds of FedGL" if row["what"] == "rounds" else f"{row['what']} search"
        numbers = [f"{row[name]:,}" for name in ("nodes", "s", "seconds", "before_mb", "peak_mb")]
        told.append([what, *numbers, f"{row['edges']:,}" if row["edges"] else ""])
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="*", default=NODES)
    parser.add_argument("--neighbours", type=int, default=20)
    parser.add_argument("--write", action="store_true", help="save the figures in results/ and the README")
    parser.add_argument("--alone", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.alone:
        what, nodes, s = options.alone
        say_alone(what, int(nodes), int(s))
        return
    rows = [
        of_process(__file__, ["--alone", what, str(nodes), str(options.neighbours)])
        for what in ("exact", "approximate", "rounds")
        for nodes in options.nodes
    ]
    if options.write:
        figures = {
            "versions": versions(), "date": datetime.date.today().isoformat(), "machine": machine(), "threads": 1,
            "seed": 0, "rows": rows,
        }  # fmt: skip
        told = f"Measured on {figures['date']}, seed 0, one thread; {figures['machine']}; {named(figures['versions'])}."
        keep(figures, RESULTS, README, MARKS, [told, markdown(HEAD, lines_of(rows))])
    print_table("FedGL's pseudo graph, one thread", HEAD, lines_of(rows))


if __name__ == "__main__":
    main()
