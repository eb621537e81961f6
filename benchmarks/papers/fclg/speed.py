"""Compare one round of six parties side by side with the same round of one party that holds all graphs.

    OMP_NUM_THREADS=1 python benchmarks/papers/fclg/speed.py            # the table
    OMP_NUM_THREADS=1 python benchmarks/papers/fclg/speed.py --write    # and into results/speed.json and README.md

Five epochs in batches of 128 per party, PROTEINS, models as in table II except for normalisation. Rounds of both
alternate. Figures are medians of the process's computing seconds, in one thread. Diffusion happens once and is not part
of a round.
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
from isthmus.nn.weights import initial_weights
from isthmus.study.results import versions
from isthmus.study.setup import extended, module_for

sys.path.append(str(Path(__file__).parents[2]))  # figures.py is there
from search import study

from figures import keep, machine, markdown, named, print_table

PAGE = Path(__file__).parent / "README.md"
MARKS = ("<!-- figures: written by speed.py --write -->", "<!-- end of figures of speed.py -->")
HEAD = ("method", "six parties, s", "pooled, s", "six parties / pooled", "aim")
ASKED = {"fclg": 1.5}
PLAIN = {"encoder": "gin", "norm": False, "lr": 1e-3}
ROWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fclg": ({"name": "fclg"}, PLAIN),
    "fclg-h": ({"name": "fclg", "inter_on": "nodes"}, PLAIN),
    "infograph-fedavg": ({"name": "infograph"}, PLAIN),
    "mvgrl-fedavg": ({"name": "mvgrl"}, {"encoder": "gcn", "lr": 1e-3}),
}
"""By line the method, and its model and learning rate."""


def sites(data: str, row: str) -> tuple[Site, Site]:
    """Six parties, and one that holds what they hold."""
    told, setting = ROWS[row]
    plan = study(data, setting, {**told, "rounds": 1}, 0)
    loaded = plan.load(0)
    (method,) = plan.method_list()
    module = extended(method, module_for(plan.encoder(), loaded.parties, loaded.task, 0), 0)
    both = (loaded.parties, [pool_parties(loaded.parties)])
    six, one = (method.site(parties, loaded.task, module) for parties in both)
    return six, one


def one_round(site: Site) -> float:
    """Seconds that it computes."""
    began = time.process_time()
    site.answer("train", {"weights": initial_weights(site.model.module)}, site.hosted.names)
    return time.process_time() - began


def measured(data: str, row: str, repeats: int) -> dict[str, Any]:
    both = sites(data, row)
    for site in both:
        one_round(site)
    turns = [[one_round(site) for site in both] for _ in range(repeats)]
    six, pooled = (statistics.median(each) for each in zip(*turns, strict=True))
    return {"method": row, "six": six, "pooled": pooled, "ratio": six / pooled}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="proteins")
    parser.add_argument("--methods", nargs="*", default=list(ROWS), choices=ROWS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="save the figures in results/ and README.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measured(args.data, row, args.repeats) for row in args.methods]
    lines = [
        (row["method"], f"{row['six']:.2f}", f"{row['pooled']:.2f}", f"{row['ratio']:.2f}x",
         f"at most {ASKED[row['method']]}x" if row["method"] in ASKED else "")
        for row in rows
    ]  # fmt: skip
    print_table(f"One round, {args.data}", HEAD, lines)
    if args.write:
        date = datetime.date.today().isoformat()
        figures = {"date": date, "machine": machine(), "versions": versions(), "data": args.data, "rows": rows}
        told = [f"Measured {date} on {machine()}, {named(versions())}:", markdown(HEAD, lines)]
        keep(figures, PAGE.parent / "results" / "speed.json", PAGE, MARKS, told)


if __name__ == "__main__":
    main()
