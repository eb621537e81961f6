"""How large honest answers are, as a multiple of what was sent: what `federation.norm` must let pass.

OMP_NUM_THREADS=1 python benchmarks/attacks/norms.py            # the largest multiple of every method
OMP_NUM_THREADS=1 python benchmarks/attacks/norms.py --write    # also results/norms.json
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is loaded

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1]))  # figures.py is there
from attacks import read_options
from figures import origin, print_table
from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.federation.answers import Reply
from isthmus.federation.local import LocalTransport
from isthmus.federation.transport import Command, Each
from isthmus.methods.base import Averaging, Method
from isthmus.nn.stacks import slice_of
from isthmus.study.config import Study
from isthmus.study.loop import Run, sites_of
from isthmus.study.setup import module_for

RESULTS = Path(__file__).parent / "results" / "norms.json"
DATA = ("banks", "hospitals", "motifs")


class Measuring(LocalTransport):
    """A transport that keeps the largest ratio of the norm of an answer to 1 and the norm of what was sent."""

    largest, largest_update = 0.0, 0.0

    def send(self, command: Command) -> list[Reply]:
        replies = super().send(replace(command, sum_only=False))
        if command.do == "answer" and not isinstance(command.payload, Each):
            sent = dict(wire.flatten(command.payload))
            for reply in replies:
                self._measure(reply, sent)
        return replies

    def _measure(self, reply: Reply, sent: dict[str, Any]) -> None:
        for at in range(len(reply.parties)):
            own = {path: slice_of(column, at) for path, column in reply.columns.items() if path in sent}
            pairs = [(own[path], sent[path]) for path in own if isinstance(own[path], Tensor)]
            size, before = (
                torch.cat([pair[of].flatten().double() for pair in pairs] or [torch.zeros(1)]) for of in (0, 1)
            )
            scale = 1 + float(before.norm())
            self.largest = max(self.largest, float(size.norm()) / scale)
            self.largest_update = max(self.largest_update, float((size - before).norm()) / scale)


def measured(name: str, data: str, seed: int, rounds: int, lr: float) -> dict[str, Any]:
    options = {"rounds": rounds, "local": {"lr": lr}}
    study = Study.of({"data": {"name": data}, "unlabelled": "idle", "methods": [{"name": name}], "training": options})
    method, loaded = study.method_list()[0], study.load(seed)
    module = module_for(study.encoder(), loaded.parties, loaded.task, seed)
    transport = Measuring(sites_of(method, loaded.parties, loaded.task, module, seed=seed))
    Run(method, loaded.parties, loaded.task, module, seed=seed, transport=transport).go()
    return {"largest": transport.largest, "largest_update": transport.largest_update}


def main() -> None:
    torch.set_num_threads(1)
    options = read_options(__doc__)
    cells = []
    for name, kind in Method.known().items():
        if not issubclass(kind, Averaging):
            continue
        for data in DATA:
            for lr in (0.01, 0.1):
                try:
                    found = [measured(name, data, seed, options.rounds, lr) for seed in range(options.seeds)]
                except IsthmusError:  # a method that is not for these data
                    continue
                largest = {key: max(run[key] for run in found) for key in found[0]}
                cells.append({"method": name, "data": data, "lr": lr, **largest})
                print(cells[-1], flush=True)
    if options.write:
        figures = {**origin(torch), "seeds": options.seeds, "rounds": options.rounds, "cells": cells}
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    lines = [
        [c["method"], c["data"], f"{c['lr']:g}", f"{c['largest']:.2f}", f"{c['largest_update']:.2f}"] for c in cells
    ]
    print_table("Norms of honest answers", ["method", "data", "lr", "answer", "update"], lines, left=3)


if __name__ == "__main__":
    main()
