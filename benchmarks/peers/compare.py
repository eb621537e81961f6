"""Compare rounds of Isthmus with those of other packages, and with a plain loop, on the same parties in one run.

OMP_NUM_THREADS=1 python benchmarks/peers/compare.py            # the table
OMP_NUM_THREADS=1 python benchmarks/peers/compare.py --write    # the same, into results/compare.json and docs/speed.md
OMP_NUM_THREADS=1 python benchmarks/peers/compare.py --json     # the figures as JSON and nothing else

Each peer gets a virtual environment in `--environments` (default: ~/.cache/isthmus/peers), which is made in the first
run. A peer that pip cannot install is named in the results, with the reason.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is loaded

import argparse
import json
import statistics
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch_geometric

sys.path.append(str(Path(__file__).parents[1]))  # figures.py is there
sys.path.append(str(Path(__file__).parents[1] / "speed"))  # rounds.py is there
from environments import PEERS, NotInstalled, Peer, build, installed_version
from rounds import LR, Bench, Plain, check_same
from side import Side

from figures import keep, markdown, named, origin, print_table
from isthmus.data import rows
from isthmus.data.datasets.citations import Cora
from isthmus.data.partition import Partition
from isthmus.data.party import SPLITS, Party
from isthmus.data.pool import Pool

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "compare.json"
PAGE = HERE.parents[1] / "docs" / "speed.md"
MARKS = ("<!-- figures: written by benchmarks/peers/compare.py --write -->", "<!-- end of figures of compare.py -->")
LABELS = 78
"""Training nodes per class. With the 20 of the public split, most of 100 parties would have none."""
SEEDS = 10
"""Splits that are tried until every party has nodes of all three."""
MARGIN, LEAST = 0.1, 0.5
"""How far apart test accuracies may be, and what each must reach; Cora's largest class has 0.3 of the nodes."""


# ---- what is trained on


@dataclass(frozen=True)
class Setting:
    """A cut of Cora into parties.

    Arguments:
        every: every party has training, validation and test nodes.
    """

    cut: str
    parties: int
    pool: Pool
    every: bool


def setting_of(cut: str, parties: int) -> Setting:
    """The first split with which every party trains and is evaluated; where none does, the first."""
    pools = (Cora(split="random", train_per_class=LABELS, normalize=False).load(seed) for seed in range(SEEDS))
    first = None
    for pool in pools:
        if has_all_splits(Partition.named(cut)().cut(pool, parties, 0)):
            return Setting(cut, parties, pool, True)
        first = first or pool
    assert first is not None
    return Setting(cut, parties, first, False)


def has_all_splits(parties: Sequence[Party]) -> bool:
    return all(bool(getattr(party, split).any()) for party in parties for split in SPLITS)


def save_parties(parties: Sequence[Party], classes: int, path: Path) -> None:
    """Write the parties for the peers: plain tensors, features dense as PyG's datasets give them."""
    torch.save(
        {
            "classes": classes,
            "parties": [
                {
                    "x": rows.to_dense(party.graph.x),
                    "edge_index": party.graph.edge_index,
                    "y": party.graph.y,
                    "ids": party.ids,
                    **{split: getattr(party, split) for split in SPLITS},
                }
                for party in parties
            ],
        },
        path,
    )


# ---- the sides


class Isthmus:
    """`isthmus.study.loop.Run`, as a study drives it."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def learn(self, rounds: int) -> float:
        return float(self.bench.run(rounds).go().metrics["test_accuracy"])

    def turn(self, rounds: int) -> list[float]:
        return self.bench.isthmus(rounds)

    def close(self) -> None:
        pass


class Loop:
    """The plain loop over parties of `rounds.py`; `check_same` compares its weights with those of Isthmus."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.plain = bench, Plain(bench, cached=False)

    def learn(self, rounds: int) -> float:
        torch.manual_seed(0)
        plain, tested = Plain(self.bench, cached=False), sum(int(party.test.sum()) for party in self.bench.parties)
        for _ in range(rounds):
            plain.train()
        return plain.evaluate()[1] / tested

    def turn(self, rounds: int) -> list[float]:
        return self.bench.loop(self.plain.round, rounds)

    def close(self) -> None:
        pass


def peer_side(peer: Peer, python: Path, bench: Bench, saved: Path) -> Side:
    options = {
        "epochs": 1, "hidden": bench.hidden, "dropout": bench.dropout, "lr": LR, "seed": 0,
        "raw": str(Cora().raw_folder()),
    }  # fmt: skip
    return Side(python, HERE / peer.script, saved, options, peer.environment)


# ---- measuring


def check_learning(accuracies: dict[str, float], where: str) -> None:
    """Refuse to time a side that learns nothing, or sides that learn different things."""
    best = max(accuracies.values())
    for side, accuracy in accuracies.items():
        if not accuracy >= max(LEAST, best - MARGIN):
            raise SystemExit(
                f"{where}: {side} reaches a test accuracy of {accuracy:.3f}, the best side {best:.3f}: all must reach "
                f"{LEAST} and be within {MARGIN} of the best"
            )


def measure(
    setting: Setting, peers: dict[str, tuple[Peer, Path]], hidden: int, rounds: int, repeats: int, learn: int
) -> dict[str, Any]:
    """All figures of a setting; the sides take turns."""
    device = torch.device("cpu")
    check_same(setting.pool, setting.parties, setting.cut, hidden, device)
    bench = Bench(setting.pool, setting.parties, hidden=hidden, device=device, cut=setting.cut)
    sides: dict[str, Isthmus | Loop | Side] = {"isthmus": Isthmus(bench), "plain": Loop(bench)}
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "parties.pt"
        save_parties(bench.parties, setting.pool.classes, saved)
        if setting.every:  # the mean loss over no training node is NaN, and so would be the average of all parties
            sides |= {key: peer_side(peer, python, bench, saved) for key, (peer, python) in peers.items()}
        try:
            accuracies = {name: side.learn(learn) for name, side in sides.items()}
            check_learning(accuracies, f"{setting.cut}, {setting.parties} parties")
            turns = [
                {name: statistics.median(side.turn(rounds)) for name, side in sides.items()} for _ in range(repeats)
            ]
        finally:
            for side in sides.values():
                side.close()
    found: dict[str, Any] = {
        "parties": setting.parties,
        "cut": setting.cut,
        "hidden": hidden,
        "training": sum(bool(party.train.any()) for party in bench.parties),
    }
    for name in sides:
        ratio = statistics.median(turn[name] / turn["isthmus"] for turn in turns)  # within a turn, see `rounds.row_of`
        found[f"{name}_ms"] = round(statistics.median(turn[name] for turn in turns), 2)
        found[f"{name}_accuracy"] = round(accuracies[name], 3)
        if name != "isthmus":
            found[f"{name}_ratio"] = round(ratio, 2)
    return found


def figures_of(options: argparse.Namespace) -> dict[str, Any]:
    peers: dict[str, tuple[Peer, Path]] = {}
    versions, missing = {}, {}
    for peer in PEERS:
        try:
            python = build(peer, options.environments)
        except NotInstalled as error:
            missing[peer.name] = str(error)
            continue
        versions[peer.name] = installed_version(python, peer.packages[0].partition("==")[0])
        if peer.script:
            peers[peer.key] = peer, python
        else:
            missing[peer.name] = "it installs, but nobody has written how to drive its rounds"
    found = origin(torch, torch_geometric)
    return {
        **found,
        "versions": found["versions"] | versions,
        "threads": torch.get_num_threads(),
        "missing": missing,
        "learn": options.learn,
        "rows": [
            measure(setting_of(cut, parties), peers, options.hidden, options.rounds, options.repeats, options.learn)
            for cut in options.cut
            for parties in options.parties
        ],
    }


# ---- what is said


def lines_of(figures: dict[str, Any]) -> list[list[str]]:
    """The head and a line per figure, a column per setting; a side that did not run there has no figure."""
    found = figures["rows"]
    names = {"plain": "plain loop", **{peer.key: peer.name for peer in PEERS}}
    names = {key: name for key, name in names.items() if any(f"{key}_ms" in row for row in found)}
    forms: list[tuple[str, str, str]] = [
        ("parties", "parties", "{}"), ("cut", "cut", "{}"), ("training", "of them with training nodes", "{}"),
        ("isthmus_ms", "Isthmus, ms a round", "{:.1f}"),
    ]  # fmt: skip
    for key, name in names.items():
        forms += [(f"{key}_ms", f"{name}, ms a round", "{:.1f}"), (f"{key}_ratio", f"**{name} / Isthmus**", "{:.1f}")]
    for key, name in {"isthmus": "Isthmus", **names}.items():
        forms.append((f"{key}_accuracy", f"test accuracy after {figures['learn']} rounds, {name}", "{:.3f}"))
    return [
        [title, *(form.format(row[key]) if key in row else "" for row in found)]  #
        for key, title, form in forms
    ]


def write(figures: dict[str, Any]) -> None:
    hidden = figures["rows"][0]["hidden"]
    told = (
        f"Measured on {figures['date']}: Cora, {LABELS} labels per class, FedAvg, GCN {hidden} wide, one thread; "
        f"{figures['machine']}; {named(figures['versions'])}."
    )
    head, *body = lines_of(figures)
    missing = [f"{name} is not in the table: `{why}`" for name, why in figures["missing"].items()]
    keep(figures, RESULTS, PAGE, MARKS, [told, markdown(head, body), *missing])


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parties", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--cut", nargs="+", default=["metis", "random", "louvain"], help="ways to cut the graph")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds per turn")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each side")
    parser.add_argument("--learn", type=int, default=150, help="rounds before the accuracies are compared")
    parser.add_argument("--environments", type=Path, default=Path.home() / ".cache" / "isthmus" / "peers")
    parser.add_argument("--write", action="store_true", help="save the figures in results/ and docs/speed.md")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
    return parser.parse_args()


def main() -> None:
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    torch.set_num_threads(1)
    options = parsed()
    figures = figures_of(options)
    if options.write:
        write(figures)
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    head, *body = lines_of(figures)
    print_table("FedAvg on Cora, one thread", head, [[line[0].strip("*"), *line[1:]] for line in body])
    for name, why in figures["missing"].items():
        print(f"{name} is missing: {why}")


if __name__ == "__main__":
    main()
