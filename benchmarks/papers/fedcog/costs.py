"""FedCog's tables III and IV: what propagation costs, in time and bytes, against one round of training after it.

`python benchmarks/papers/fedcog/costs.py --write` measures what is not in the table yet and keeps it beside this file.
A 2-layer SGC, FedAvg as the trainer with SGD and 5 epochs a round, as in `figure3.toml`. Times are what the parties
compute, in one thread, the sum over all parties as in the paper, medians over repeats: "alone" are the same parties
without their borders (the paper's FedAvg), "pooled" is the whole graph with one party. Bytes are the ledger's: of
propagation all that parties send each other, of an update the weights to the parties and back. The paper's update has
the size of a model with 100 outputs, whatever the number of classes; such a one is given too.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from propagation import Clocked

from isthmus.data.party import Party, pool
from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.federation.ledger import Ledger
from isthmus.federation.verbs import Federation
from isthmus.methods.base import Model, State
from isthmus.methods.fedcog import FedCog
from isthmus.nn.encoders import Sgc
from isthmus.nn.per_party import initial_weights
from isthmus.papers.plan import Cell, Table
from isthmus.study.engine import module_for
from isthmus.study.results import versions
from isthmus.tasks.base import Task

HERE = Path(__file__).parent
FOUND = HERE / "results" / "costs.json"
PARTIES = (100, 10)
ROUNDS = 3
MB = 2**20
TABLES = {"k-means": Table.of_file(HERE / "figure3.toml"), "metis": Table.of_file(HERE / "figure4.toml")}
CUTS = tuple(TABLES)
SETS = tuple(TABLES["k-means"].axes[0].changes())
PAPER: dict[str, dict[str, float]] = {
    "dblp": {"fedcog": 1470, "alone": 522, "pooled": 2144, "update": 938, "fedcog_mb": 8.3, "update_mb": 125.4},
    "coauthor-physics": {
        "fedcog": 9746, "alone": 2168, "pooled": 13183, "update": 1040, "fedcog_mb": 253.5, "update_mb": 642.5,
    },
    "flickr-7575": {
        "fedcog": 4178, "alone": 449, "pooled": 1996, "update": 878, "fedcog_mb": 4064.6, "update_mb": 919.9,
    },
    "amazon-computers": {
        "fedcog": 1436, "alone": 283, "pooled": 825, "update": 431, "fedcog_mb": 463.5, "update_mb": 59.4,
    },
}  # fmt: skip
"""Milliseconds and megabytes with 100 parties; the paper does not say of which cut."""


# ---- what is measured


def cell_of(data: str, cut: str, parties: int) -> Cell:
    """FedCog's, in the figure of that cut."""
    place = {"data": data, "parties": str(parties), "method": "FedCog"}
    (found,) = (each for each in TABLES[cut].cells() if each.place == place)
    return found


def propagated(parties: Sequence[Party], task: Task, method: FedCog, apart: bool) -> tuple[float, Ledger, list[float]]:
    """Seconds that parties propagate, the ledger, and seconds of each round of training after it.

    Arguments:
        apart: each party by itself, which takes half the memory, and more time.
    """
    module = module_for(Sgc(), parties, task, 0)
    groups = [[party] for party in parties] if apart else [parties]
    transport, state = Clocked([method.site(group, task, module) for group in groups]), State()
    federation = Federation(transport, clock=lambda: int(state.round))
    run = method.server(federation, Model(module), state)
    next(run)
    seconds = sum(transport.seconds.values())
    rounds = [transport.seconds.pop("train") for _ in run]
    return seconds, federation.ledger, rounds


def measured(data: str, cut: str, parties: int, repeats: int) -> dict[str, Any]:
    cell = cell_of(data, cut, parties)
    apart = not cell.measure.get("side_by_side", True)
    plan = cell.planned(0, {"method": {"rounds": ROUNDS, "every": ROUNDS, "local": {"lr": 0.1}}})
    (method,) = plan.method_list()
    assert isinstance(method, FedCog)
    loaded = plan.load(0)
    held, task = loaded.parties, loaded.task
    sides = {"fedcog": held, "alone": [replace(party, border=None) for party in held], "pooled": [pool(held)]}
    first = method.model_copy(update={"rounds": 1})
    times: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(repeats):
        for side, each in sides.items():
            seconds, ledger, rounds = propagated(each, task, method if side == "fedcog" else first, apart)
            times[side].append(seconds)
            if side == "fedcog":
                times.setdefault("update", []).extend(rounds[1:])  # in the first round things are laid out once
                booked = booked_mb(ledger)
            gc.collect()
    wide = {"weights": initial_weights(Sgc().build(held[0].features, 100, "node"))}
    crossing = sum(len(party.border) for party in held if party.border is not None)
    return {
        "data": data, "cut": cut, "parties": parties, "repeats": repeats,
        "crossing": crossing / (crossing + sum(party.edges for party in held)),
        **{side: round(1000 * statistics.median(found), 1) for side, found in times.items()},
        **booked, "wide_mb": 2 * len(held) * wire.size(wide) / MB, "date": datetime.date.today().isoformat(),
    }  # fmt: skip


def booked_mb(ledger: Ledger) -> dict[str, float]:
    """Megabytes of the whole propagation, and of the weights of one round to the parties and back."""
    rows = list(ledger.rows())
    sent = sum(row["sent"] for row in rows if row["action"] == "propagate")
    update = sum(row["sent"] + row["received"] for row in rows if row["action"] == "train" and row["round"] == 1)
    return {"fedcog_mb": sent / MB, "update_mb": update / MB}


# ---- what is said


def table(found: list[dict[str, Any]]) -> str:
    head = (
        "set", "parties", "cut", "edges crossing", "FedCog, ms", "alone, ms", "pooled, ms", "update, ms",
        "FedCog / pooled", "FedCog / update", "FedCog, MB", "update, MB", "FedCog / update",
        "update of 100 outputs, MB", "FedCog / it",
    )  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for data in SETS:
        mine = sorted((each for each in found if each["data"] == data), key=lambda each: -each["parties"])
        if data in PAPER and mine:
            lines.append(_line(data, 100, "*paper*", PAPER[data]))
        lines += [_line(data, each["parties"], each["cut"], each) for each in mine]
    return "\n".join(lines)


def _line(data: str, parties: int, cut: str, row: dict[str, Any]) -> str:
    own = "fedcog" in row and "wide_mb" in row
    wide = row["wide_mb"] if own else row["update_mb"]
    cells = [
        f"{row['crossing']:.0%}" if own else "",
        *(f"{row[name]:,.0f}" for name in ("fedcog", "alone", "pooled", "update")),
        f"{row['fedcog'] / row['pooled']:.2f}", f"{row['fedcog'] / row['update']:.2f}", f"{row['fedcog_mb']:,.1f}",
        *((f"{row['update_mb']:,.1f}", f"{row['fedcog_mb'] / row['update_mb']:.2f}") if own else ("", "")),
        f"{wide:,.1f}", f"{row['fedcog_mb'] / wide:.2f}",
    ]  # fmt: skip
    return f"| {data} | {parties} | {cut} | {' | '.join(cells)} |"


def cells(args: Any) -> Iterator[tuple[str, str, int]]:
    for parties in args.parties:
        for data in args.data:
            for cut in args.cut:
                yield data, cut, parties


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="*", default=SETS, choices=SETS)
    parser.add_argument("--cut", nargs="*", default=CUTS, choices=CUTS)
    parser.add_argument("--parties", nargs="*", type=int, default=PARTIES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="keep what is found, and go on from what is kept")
    args = parser.parse_args()
    torch.set_num_threads(1)
    kept = json.loads(FOUND.read_text())["cells"] if args.write and FOUND.exists() else []
    for data, cut, parties in cells(args):
        if any((each["data"], each["cut"], each["parties"]) == (data, cut, parties) for each in kept):
            continue
        try:
            kept.append(measured(data, cut, parties, args.repeats))
        except (IsthmusError, MemoryError) as error:  # without its files, or with too little memory
            print(data, cut, parties, f"left out: {error}", flush=True)
            continue
        print(_line(data, parties, cut, kept[-1]), flush=True)
        if args.write:
            FOUND.parent.mkdir(exist_ok=True)
            FOUND.write_text(
                json.dumps({"versions": versions(), "threads": 1, "seed": 0, "cells": kept}, indent=1) + "\n"
            )
    print(table(kept))


if __name__ == "__main__":
    main()
