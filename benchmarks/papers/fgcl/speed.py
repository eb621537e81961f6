"""Compare one epoch of FGCL on BACE with a plain supervised epoch on the same fully connected graphs.

    OMP_NUM_THREADS=1 python benchmarks/papers/fgcl/speed.py            # the table
    OMP_NUM_THREADS=1 python benchmarks/papers/fgcl/speed.py --write    # and into results/speed.json and README.md

One party holds all molecules. Both sides train the GCN of table III for one epoch, the plain one with FedAvg on the
first of FGCL's views. Epochs of both alternate. Figures are medians of the process's computing seconds, in one thread.
Drawing the views happens once and is not part of an epoch.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is loaded

import argparse
import datetime
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from isthmus.data.pooled import pool_parties
from isthmus.federation.site import Site
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.fgcl import FGCL
from isthmus.nn.weights import initial_weights
from isthmus.papers.plan import Table
from isthmus.study.results import versions
from isthmus.study.setup import module_for

sys.path.append(str(Path(__file__).parents[2]))  # figures.py is there
from figures import keep, machine, markdown, named, print_table

HERE = Path(__file__).parent
TABLE = Table.of_file(HERE / "table3.toml")
LOCAL: dict[str, Any] = TABLE.study["method"]["local"]
MARKS = ("<!-- figures: written by speed.py --write -->", "<!-- end of figures of speed.py -->")
HEAD = ("batch size", "supervised, s", "FGCL, s", "FGCL / supervised", "aim")
ASKED = {128: 5, 32: None, 1: 15}


def sites(data: str, batch_size: int, negatives: int) -> tuple[Site, Site]:
    """FGCL's with views drawn, and FedAvg's on parties that hold the first of these."""
    local = {**LOCAL, "batch_size": batch_size}
    (cell,) = (each for each in TABLE.cells() if each.name == f"gcn, {data}, fgcl 1")
    plan = cell.study_for(0, {"method": {"negatives": negatives, "local": local}})
    loaded = plan.load(0)
    parties = [pool_parties(loaded.parties)]
    module = module_for(plan.encoder(), parties, loaded.task, 0)
    (method,) = plan.method_list()
    assert isinstance(method, FGCL)
    contrast = method.AtParty(method, parties, loaded.task, module)
    contrast.answer("protect", {}, contrast.hosted.names)
    one = FGCL.read({"epsilons": [method.epsilons[0]], "local": local}, "fgcl")
    viewed = one.AtParty(one, parties, loaded.task, module)
    viewed.answer("protect", {}, viewed.hosted.names)
    plain = FedAvg.read({"local": local}, "fedavg")
    return contrast, plain.AtParty(plain, viewed.cohort_of((0,)).parties, loaded.task, module)


def epoch(site: Site) -> float:
    """Seconds that it computes."""
    began = time.process_time()
    site.answer("train", {"weights": initial_weights(site.model.module)}, site.hosted.names)
    return time.process_time() - began


def measured(data: str, batch_size: int, negatives: int, repeats: int) -> dict[str, Any]:
    both = sites(data, batch_size, negatives)
    for site in both:
        epoch(site)
    turns = [[epoch(site) for site in both] for _ in range(repeats)]
    contrast, plain = (statistics.median(each) for each in zip(*turns, strict=True))
    return {"batch size": batch_size, "supervised": plain, "fgcl": contrast, "ratio": contrast / plain}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="bace")
    parser.add_argument("--batch-sizes", nargs="*", type=int, default=list(ASKED))
    parser.add_argument("--negatives", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="save the figures in results/ and README.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measured(args.data, size, args.negatives, args.repeats) for size in args.batch_sizes]
    lines = [
        (str(row["batch size"]), f"{row['supervised']:.2f}", f"{row['fgcl']:.2f}", f"{row['ratio']:.2f}x",
         f"at most {ASKED[row['batch size']]}x" if ASKED.get(row["batch size"]) else "")
        for row in rows
    ]  # fmt: skip
    print_table(f"One epoch, {args.data}, {args.negatives} negatives", HEAD, lines)
    if args.write:
        date = datetime.date.today().isoformat()
        figures = {"date": date, "machine": machine(), "versions": versions(), "data": args.data, "rows": rows}
        told = [f"Measured {date} on {machine()}, {named(versions())}:", markdown(HEAD, lines)]
        keep(figures, HERE / "results" / "speed.json", HERE / "README.md", MARKS, told)


if __name__ == "__main__":
    main()
