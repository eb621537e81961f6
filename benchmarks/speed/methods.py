"""Compare rounds of each method in Isthmus with a plain loop over parties of the same method, in one run.

OMP_NUM_THREADS=1 python benchmarks/speed/methods.py                    # the table
OMP_NUM_THREADS=1 python benchmarks/speed/methods.py --only moon gcfl   # some methods
OMP_NUM_THREADS=1 python benchmarks/speed/methods.py --write            # into results/methods.json and docs/speed.md
OMP_NUM_THREADS=1 python benchmarks/speed/methods.py --json             # the figures as JSON and nothing else
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is loaded

import argparse
import copy
import json
import statistics
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch_geometric
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parents[1]))  # figures.py is there
sys.path.append(str(Path(__file__).parents[1] / "peers"))  # compare.py is there
import loops
from compare import LABELS, setting_of
from rounds import LR, PAGE, WARM_UP, WEIGHT_DECAY, Bench, PlainGCN, between

from figures import keep, markdown, named, origin, print_table
from isthmus.data.datasets.citations import PubMed
from isthmus.data.datasets.tu import Proteins
from isthmus.data.partition import Partition
from isthmus.data.party import Party
from isthmus.methods.base import Method
from isthmus.nn.decoupled import Gamlp
from isthmus.nn.encoders import Encoder, Gcn, Gin, TwoChannel
from isthmus.study.loop import Run, RunResult
from isthmus.study.setup import extended, module_for, task_for

RESULTS = Path(__file__).parent / "results" / "methods.json"
MARKS = ("<!-- figures: written by benchmarks/speed/methods.py --write -->", "<!-- end of figures of methods.py -->")
LOCAL = {"epochs": 1, "optimizer": "adamw", "lr": LR, "weight_decay": WEIGHT_DECAY}
OWN = {"optimizer": "adam", "lr": LR, "keep_optimizer": True}
VIEWS = ("strong_edges", "strong_features", "weak_edges", "weak_features")


@dataclass(frozen=True)
class Case:
    """A method, its plain loop, and what both train.

    Attributes:
        name: of the method.
        data: Cora, PubMed or PROTEINS.
        options: of the method.
        same: options without what both sides draw differently, for the comparison of weights.
        first: rounds that are not counted.
        note: what the table says beside the name.
    """

    name: str
    loop: type[loops.Loop]
    encoder: type[Encoder] = Gcn
    model: Mapping[str, Any] = field(default_factory=dict)
    data: str = "Cora"
    options: Mapping[str, Any] = field(default_factory=lambda: {"local": LOCAL})
    same: Mapping[str, Any] = field(default_factory=dict)
    first: int = WARM_UP
    note: str = ""

    @property
    def title(self) -> str:
        return f"{self.name} ({self.note})" if self.note else self.name


def of_graphs(name: str, loop: type[loops.Loop], **options: Any) -> Case:
    return Case(name, loop, Gin, {"layers": 3}, "PROTEINS", **options)


ADAFGL = {"local": LOCAL, "personal": {"epochs": 10, **OWN}, "personal_rounds": 10**6}
SHORT = {"dropout": 0.0, "personal": {"epochs": 2, **OWN}}
OPFGL = {"steps": 50, "target": {"epochs": 50, "optimizer": "adam", "lr": LR}}
"""Options of its set-up, which is not timed, made short."""
ONE = {"local": LOCAL, "warm_up": 0, "eps1": 1e9, "eps2": 1e9}
"""A cluster that may be split in every round, and is not."""
SPLIT = {**ONE, "eps2": 0.0}
"""Clusters that are split until none has more than two parties."""
CASES = (
    Case("fedavg", loops.Loop),
    Case("fedbn", loops.FedBN, Gin, {"norm": True}),
    Case("fedper", loops.FedPer),
    Case("fedrep", loops.FedRep),
    Case("ditto", loops.Ditto, options={"local": LOCAL, "personal": LOCAL}),
    Case("fedproto", loops.FedProto),
    Case("moon", loops.Moon),
    Case("fedpub", loops.FedPub),
    Case("fedgta", loops.FedGta),
    Case("fedgta", loops.FedGta, Gamlp, note="GAMLP"),
    Case("adafgl", loops.AdaFgl, options=ADAFGL, same=SHORT, note="personal rounds"),
    Case("fedtad", loops.FedTad),
    Case("fgssl", loops.Fgssl, same=dict.fromkeys(VIEWS, 0.0)),
    Case("fedaux", loops.FedAux, model={"linear_head": True}),
    Case("fedaux", loops.FedAux, model={"linear_head": True}, data="PubMed"),
    Case("o-pfgl", loops.OpFgl, options={**OPFGL, "tuning": {"epochs": 10, "weight_decay": 0.0, **OWN}}),
    of_graphs("fedavg", loops.GraphLoop),
    of_graphs("gcfl", loops.Gcfl, options=ONE),
    of_graphs("gcfl", loops.Gcfl, options=SPLIT, same={"width": 0}, first=8, note="split"),
    of_graphs("gcfl-plus", loops.GcflPlus, options=ONE),
    Case("fedstar", loops.FedStar, TwoChannel, {"layers": 3}, "PROTEINS"),
)


# ---- both sides on one setting


@cache
def parties_of(data: str, parties: int) -> tuple[Sequence[Party], int]:
    """The parties, and the number of classes."""
    if data == "PROTEINS":
        pool = Proteins(attributes=False).load(0)
        return Partition.named("random")().cut(pool, parties, 0), pool.classes
    if data == "PubMed":
        pool = PubMed(split="random", train_per_class=LABELS, normalize=False).load(0)
    else:
        pool = setting_of("metis", parties).pool
    return Partition.named("metis")().cut(pool, parties, 0), pool.classes


def in_double(party: Party) -> Party:
    graph = copy.copy(party.graph)
    graph.x = graph.x.double()
    return replace(party, graph=graph)


class MethodBench(Bench):
    """A method and a number of parties: the same cut, model and options for both sides."""

    def __init__(self, case: Case, parties: int, *, dropout: float = 0.5, exact: bool = False) -> None:
        self.case, self.device, self.hidden, self.dropout = case, torch.device("cpu"), 64, dropout
        self.parties, classes = parties_of(case.data, parties)
        if exact:
            self.parties = [in_double(party) for party in self.parties]
        self.task = task_for(self.parties, classes)
        encoder = case.encoder(hidden=self.hidden, dropout=dropout, **case.model)
        self.options = {"select": "last", **case.options, **(case.same if exact else {})}
        self.method = Method.named(case.name)(**self.options)
        self.given = module_for(encoder, self.parties, self.task, 0)
        self.module = extended(self.method, self.given, 0)
        self.own = type(encoder) is Gcn and self.module is self.given and not encoder.linear_head

    def plain_model(self, cached: bool) -> nn.Module:
        """`PlainGCN` where it is the model; of others a copy, which is made of PyG's layers."""
        if self.own:
            return PlainGCN(self.parties[0].features, self.hidden, self.task.outputs, self.dropout, cached)
        return copy.deepcopy(self.module)

    def run(self, rounds: int, **options: Any) -> Run:
        method = self.method.model_copy(update={"rounds": rounds})
        return Run(method, self.parties, self.task, self.given, **options)

    def isthmus(self, rounds: int) -> list[float]:
        """Milliseconds of whole rounds of a run, the first ones left out."""
        stamps: list[float] = []
        self.run(rounds + self.case.first, on_round=lambda at, metrics: stamps.append(self.now())).go()
        return between(stamps[self.case.first - WARM_UP :])


def check_same(case: Case, parties: int) -> None:
    """Both sides compute the same thing: without dropout the parties' models agree after some rounds.

    In double precision: Adam's first steps have the size of the learning rate whatever the gradient, rounding included.
    """
    torch.set_default_dtype(torch.float64)
    bench = MethodBench(case, parties, dropout=0.0, exact=True)
    found, loop = bench.run(case.first).go(), case.loop(bench)
    for _ in range(case.first):
        loop.round()
    torch.set_default_dtype(torch.float32)
    for party, theirs in zip(bench.parties, loop.models(), strict=True):
        ours = model_of(found, party.name)
        for name, value in theirs.items():
            apart = float((ours[name] - value.detach()).abs().max()) if value.is_floating_point() else 0.0
            if not apart <= 1e-4:
                raise SystemExit(f"{case.title}: weight '{name}' of party '{party.name}' is {apart:.2g} apart")


def model_of(found: RunResult, party: str) -> dict[str, Tensor]:
    """The weights of a party's model after a run."""
    groups = [found.models["groups"][name] for name, members in found.groups.items() if party in members]
    shared = groups[0] if groups else found.weights
    return {**shared, **found.models.get("parties", {}).get(party, {})}


def measure(case: Case, parties: int, rounds: int, repeats: int) -> dict[str, Any]:
    """Milliseconds and ratio of a method; the two sides take turns."""
    bench = MethodBench(case, parties)
    check_same(case, parties)
    loop = case.loop(bench)
    for _ in range(case.first - WARM_UP):
        loop.round()
    turns = [
        {
            "plain_ms": statistics.median(bench.loop(loop.round, rounds)),
            "isthmus_ms": statistics.median(bench.isthmus(rounds)),
        }
        for _ in range(repeats)
    ]
    ms = {name: round(statistics.median(turn[name] for turn in turns), 1) for name in turns[0]}
    ratios = sorted(turn["plain_ms"] / turn["isthmus_ms"] for turn in turns)
    return {
        "method": case.title,
        "data": case.data,
        "encoder": case.encoder.name,
        "parties": parties,
        **ms,
        "ratio": round(statistics.median(ratios), 2),
        "least": round(ratios[0], 2),
        "most": round(ratios[-1], 2),
    }


# ---- what is said


HEAD = ("method", "data", "encoder", "parties", "Isthmus, ms a round", "plain loop, ms a round", "**plain / Isthmus**")
LEFT = 3


def lines(found: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    return [
        [
            *(str(row[name]) for name in ("method", "data", "encoder", "parties")),
            f"{row['isthmus_ms']:.1f}",
            f"{row['plain_ms']:.1f}",
            f"{row['ratio']:.1f} ({row['least']:.1f}-{row['most']:.1f})",
        ]
        for row in found
    ]


def write(figures: dict[str, Any]) -> None:
    told = f"Measured on {figures['date']}, one thread; {figures['machine']}; {named(figures['versions'])}."
    keep(figures, RESULTS, PAGE, MARKS, [told, markdown(HEAD, lines(figures["rows"]), LEFT)])


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = list(dict.fromkeys(case.name for case in CASES))
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="METHOD", help=", ".join(names))
    parser.add_argument("--parties", type=int, nargs="+", default=[10])
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds per turn")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each side")
    parser.add_argument("--write", action="store_true", help="save the figures in results/ and docs/speed.md")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
    return parser.parse_args()


def main() -> None:
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    torch.set_num_threads(1)
    options = parsed()
    rows = []
    for parties in options.parties:
        for case in CASES:
            if case.name in options.only:
                rows.append(measure(case, parties, options.rounds, options.repeats))
                print(" ".join(lines(rows[-1:])[0]), file=sys.stderr)
    figures = {**origin(torch, torch_geometric), "threads": torch.get_num_threads(), "rows": rows}
    if options.write:
        write(figures)
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    print_table("Plain loops and Isthmus, one thread", HEAD, lines(rows), LEFT)


if __name__ == "__main__":
    main()
