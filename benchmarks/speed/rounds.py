"""Compare FedAvg rounds of Isthmus with a plain loop over parties, in one run.

OMP_NUM_THREADS=1 python benchmarks/speed/rounds.py            # the table of ratios
OMP_NUM_THREADS=1 python benchmarks/speed/rounds.py --growth   # and time and memory up to 1000 parties
OMP_NUM_THREADS=1 python benchmarks/speed/rounds.py --write    # both, into results/rounds.json and docs/speed.md
OMP_NUM_THREADS=1 python benchmarks/speed/rounds.py --json     # the figures as JSON and nothing else
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is loaded

import argparse
import itertools
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_geometric
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

sys.path.append(str(Path(__file__).parents[1]))  # figures.py is there
from figures import keep, markdown, named, of_process, origin, peak_mb, print_table
from isthmus.data import rows
from isthmus.data.datasets.citations import Cora
from isthmus.data.datasets.public import node_pool
from isthmus.data.partition import Partition
from isthmus.data.party import Party
from isthmus.data.pool import Pool
from isthmus.federation.verbs import Federation
from isthmus.methods.base import Model, State
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.training import LocalTraining
from isthmus.nn.encoders import Gcn
from isthmus.study.loop import Run
from isthmus.study.setup import module_for, task_for

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "rounds.json"
PAGE = HERE.parents[1] / "docs" / "speed.md"
MARKS = ("<!-- figures: written by benchmarks/speed/rounds.py --write -->", "<!-- end of figures of rounds.py -->")
GROWTH = (10, 30, 100, 300, 1000)
WARM_UP = 2
LR, WEIGHT_DECAY = 0.01, 5e-4


# ---- what is trained on


def load_pool() -> tuple[Pool, str]:
    """Cora with its public split; where its files are absent a generated graph of the same size."""
    raw = Cora().raw_folder()
    if raw.is_dir() and any(raw.iterdir()):
        return Cora().load(0), "Cora"
    return node_pool(generated()), "generated (the size of Cora)"


def generated(nodes: int = 2708, words: int = 1433, classes: int = 7, edges: int = 5278) -> Data:
    """A citation-like graph: 18 words a node, four edges of five within a class, 20 training nodes a class."""
    draw = np.random.default_rng(0)
    y = draw.integers(classes, size=nodes)
    x = np.zeros((nodes, words), dtype=np.float32)
    topics = draw.integers(words, size=(classes, 100))
    at = np.arange(nodes)
    for word in range(18):
        x[at, topics[y, draw.integers(100, size=nodes)] if word < 9 else draw.integers(words, size=nodes)] = 1
    pairs: set[tuple[int, int]] = set()
    members = [np.flatnonzero(y == label) for label in range(classes)]
    while len(pairs) < edges:
        i = int(draw.integers(nodes))
        j = int(draw.choice(members[y[i]])) if draw.random() < 0.8 else int(draw.integers(nodes))
        if i != j:
            pairs.add((min(i, j), max(i, j)))
    one_way = torch.tensor(sorted(pairs)).t()
    data = Data(
        x=torch.from_numpy(x / x.sum(1, keepdims=True)),
        edge_index=torch.cat([one_way, one_way.flip(0)], dim=1),
        y=torch.from_numpy(y),
    )
    return with_split(data, members, draw)


def with_split(data: Data, members: Sequence[np.ndarray], draw: np.random.Generator) -> Data:
    train = np.concatenate([draw.permutation(each)[:20] for each in members])
    rest = draw.permutation(np.setdiff1d(np.arange(data.num_nodes), train))
    for name, chosen in (("train", train), ("val", rest[:500]), ("test", rest[500:1500])):
        mask = torch.zeros(data.num_nodes, dtype=torch.bool)
        mask[torch.from_numpy(chosen)] = True
        data[f"{name}_mask"] = mask
    return data


# ---- the plain loop


class PlainGCN(nn.Module):
    """Two of PyG's GCN layers with dropout before and ReLU between; weights are named as Isthmus names them."""

    def __init__(self, features: int, hidden: int, classes: int, dropout: float, cached: bool) -> None:
        super().__init__()
        widths = ((features, hidden), (hidden, classes))
        self.convs = nn.ModuleList(GCNConv(i, o, cached=cached) for i, o in widths)
        self.dropout = dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.convs[1](self.embed(x, edge_index), edge_index)

    def embed(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """What the last layer reads."""
        x = F.dropout(x, self.dropout, self.training)
        x = self.convs[0](x, edge_index).relu()
        return F.dropout(x, self.dropout, self.training)


class PlainParty:
    """A party's tensors on the device, features dense as PyG's datasets give them, and its model, made once."""

    def __init__(self, party: Party, model: nn.Module, device: torch.device) -> None:
        self.model = model.to(device)
        self.x = rows.to_dense(party.graph.x).to(device)
        self.edge_index, self.y = party.graph.edge_index.to(device), party.graph.y.to(device)
        self.train, self.val, self.test = (each.to(device) for each in (party.train, party.val, party.test))
        self.count = int(party.train.sum())

    def fit(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """One epoch from the global weights with a fresh AdamW."""
        self.model.load_state_dict(weights, strict=False)  # of some methods a party keeps weights of its own
        self.model.train()
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
        self.step(optimizer)
        return self.model.state_dict()

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        self.loss().backward()
        optimizer.step()

    def loss(self) -> Tensor:
        output = self.model(self.x, self.edge_index)
        return F.cross_entropy(output[self.train], self.y[self.train])

    @torch.no_grad()
    def hits(self, model: nn.Module) -> list[Tensor]:
        """Right answers on validation and test nodes."""
        right = model(self.x, self.edge_index).argmax(dim=1) == self.y
        return [right[self.val].sum(), right[self.test].sum()]


class Plain:
    """FedAvg as a loop over parties. Parties without a training node have no weight and are not trained."""

    Party = PlainParty

    def __init__(self, bench: Bench, *, cached: bool) -> None:
        self.cached = cached
        self.weights = {name: value.clone().to(bench.device) for name, value in bench.module.state_dict().items()}
        self.parties = [self.Party(party, bench.plain_model(cached), bench.device) for party in bench.parties]
        self.server = bench.plain_model(cached=False).to(bench.device)

    def train(self) -> None:
        trained = [party for party in self.parties if party.count]
        total = sum(party.count for party in trained)
        found = [(party.fit(self.weights), party.count / total) for party in trained]
        self.weights = {name: sum(state[name] * share for state, share in found) for name in self.weights}

    def evaluate(self) -> tuple[int, int]:
        """Hits over all parties with the averaged model; where normalisation is cached each party's model has its."""
        self.server.load_state_dict(self.weights)
        self.server.eval()
        found = []
        for party in self.parties:
            model = self.server
            if self.cached:
                model = party.model.eval()
                model.load_state_dict(self.weights)
            found.append(torch.stack(party.hits(model)))
        val, test = torch.stack(found).sum(0).tolist()
        return val, test

    def round(self) -> None:
        self.train()
        self.evaluate()


class Centralised:
    """One epoch on the union graph: the floor that a round of full-batch training stands on."""

    def __init__(self, bench: Bench) -> None:
        self.party = PlainParty(bench.pool.party, bench.plain_model(cached=False), bench.device)
        self.optimizer = torch.optim.AdamW(self.party.model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)

    def epoch(self) -> None:
        self.party.model.train()
        self.party.step(self.optimizer)
        self.party.model.eval()
        torch.stack(self.party.hits(self.party.model)).tolist()


# ---- both sides on one setting


class Bench:
    """One number of parties: the same cut, model and options for both sides."""

    def __init__(
        self,
        pool: Pool,
        parties: int,
        *,
        hidden: int,
        device: torch.device,
        dropout: float = 0.5,
        cut: str = "random",
    ) -> None:
        self.pool, self.device, self.hidden, self.dropout = pool, device, hidden, dropout
        self.parties = Partition.named(cut)().cut(pool, parties, 0)
        self.task = task_for(self.parties, pool.classes)
        self.module = module_for(Gcn(hidden=hidden, dropout=dropout), self.parties, self.task, 0)

    def plain_model(self, cached: bool) -> PlainGCN:
        return PlainGCN(self.pool.party.features, self.hidden, self.pool.classes, self.dropout, cached)

    def run(self, rounds: int, **options: Any) -> Run:
        local = LocalTraining(epochs=1, optimizer="adamw", lr=LR, weight_decay=WEIGHT_DECAY)
        method = FedAvg(rounds=rounds, local=local, select="last")
        return Run(method, self.parties, self.task, self.module, device=self.device, **options)

    def now(self) -> float:
        """Seconds: on a CPU those that this process had it, so that other work on the machine counts little."""
        if self.device.type == "cpu":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def isthmus(self, rounds: int) -> list[float]:
        """Milliseconds of whole rounds of a run, the first ones left out."""
        stamps: list[float] = []
        self.run(rounds + WARM_UP, on_round=lambda at, metrics: stamps.append(self.now())).go()
        return between(stamps)

    def isthmus_train(self, rounds: int) -> list[float]:
        """The same without evaluation: the method's server loop, driven bare."""
        run, state = self.run(rounds + WARM_UP), State()
        federation = Federation(run.transport, quorum=run.method.quorum, clock=lambda: int(state.round))
        return between([self.now() for _ in run.method.server(federation, Model(self.module), state)])

    def loop(self, function: Callable[[], object], rounds: int) -> list[float]:
        """Milliseconds of each call, the first ones left out."""
        stamps = []
        for _ in range(rounds + WARM_UP):
            function()
            stamps.append(self.now())
        return between(stamps)


def between(stamps: Sequence[float]) -> list[float]:
    """Milliseconds from one stamp to the next, after the warm-up."""
    kept = stamps[WARM_UP - 1 :]
    return [1000 * (after - before) for before, after in itertools.pairwise(kept)]


def check_same(pool: Pool, parties: int, cut: str, hidden: int, device: torch.device) -> None:
    """Both sides compute the same thing: without dropout their averaged weights agree after three rounds."""
    bench = Bench(pool, parties, cut=cut, hidden=hidden, device=device, dropout=0.0)
    ours = bench.run(3).go().weights
    for cached in (False, True):
        plain = Plain(bench, cached=cached)
        for _ in range(3):
            plain.round()
        for name, theirs in plain.weights.items():
            apart = float((ours[name].to(device) - theirs).abs().max())
            if not apart <= 1e-4:
                raise SystemExit(f"{parties} parties: weight '{name}' is {apart:.2g} apart, cached = {cached}")


def measure(
    pool: Pool, parties: int, cut: str, hidden: int, device: torch.device, rounds: int, repeats: int
) -> dict[str, Any]:
    """All figures of one number of parties; the two sides take turns."""
    check_same(pool, parties, cut, hidden, device)
    bench = Bench(pool, parties, cut=cut, hidden=hidden, device=device)
    plain, cached, centralised = Plain(bench, cached=False), Plain(bench, cached=True), Centralised(bench)
    turns: dict[str, Callable[[], list[float]]] = {
        "plain_ms": lambda: bench.loop(plain.round, rounds),
        "isthmus_ms": lambda: bench.isthmus(rounds),
        "plain_cached_ms": lambda: bench.loop(cached.round, rounds),
        "isthmus_train_ms": lambda: bench.isthmus_train(rounds),
        "plain_train_ms": lambda: bench.loop(plain.train, rounds),
        "floor_ms": lambda: bench.loop(centralised.epoch, rounds),
    }
    ms = [{name: statistics.median(turn()) for name, turn in turns.items()} for _ in range(repeats)]
    memory = alone(parties, cut, hidden, device, rounds)
    return (
        {"cut": cut, "hidden": hidden}
        | row_of(parties, ms)
        | {name: value for name, value in memory.items() if name.startswith("peak")}
    )


def row_of(parties: int, turns: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Medians over the turns. A ratio is taken within a turn, so that a machine that slows down slows both sides."""

    def ratio(above: str, below: str) -> float:
        return statistics.median(turn[above] / turn[below] for turn in turns)

    ratios = {
        "ratio": ratio("plain_ms", "isthmus_ms"),
        "ratio_cached": ratio("plain_cached_ms", "isthmus_ms"),
        "ratio_train": ratio("plain_train_ms", "isthmus_train_ms"),
        "over_floor": ratio("isthmus_ms", "floor_ms"),
    }
    ms = {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
    return {"parties": parties, **{name: round(value, 2) for name, value in (ms | ratios).items()}}


# ---- a process that runs Isthmus alone: its time and its memory


def alone(parties: int, cut: str, hidden: int, device: torch.device, rounds: int) -> dict[str, Any]:
    """What a fresh process that runs nothing but Isthmus says of itself."""
    options = ["--alone", str(parties), "--cut", cut, "--hidden", str(hidden)]
    options += ["--device", device.type, "--rounds", str(rounds)]
    return of_process(__file__, options)


def say_alone(parties: int, cut: str, hidden: int, device: torch.device, rounds: int) -> None:
    pool, _ = load_pool()
    bench = Bench(pool, parties, cut=cut, hidden=hidden, device=device)
    before = peak_mb()
    ms = statistics.median(bench.isthmus(max(rounds, 10)))
    found = {
        "parties": parties,
        "training": sum(bool(party.train.any()) for party in bench.parties),
        "isthmus_ms": round(ms, 2),
        "before_mb": round(before),
        "peak_mb": round(peak_mb()),
    }
    if device.type == "cuda":
        found["peak_device_mb"] = round(torch.cuda.max_memory_allocated() / 2**20)
    print(json.dumps(found))


# ---- what is said


ROWS = {
    "parties": "parties",
    "cut": "cut",
    "hidden": "hidden",
    "isthmus_ms": "Isthmus, ms a round",
    "plain_ms": "plain loop, ms a round",
    "ratio": "**plain / Isthmus**",
    "plain_cached_ms": "plain loop with cached normalisation, ms a round",
    "ratio_cached": "**plain cached / Isthmus**",
    "isthmus_train_ms": "Isthmus without evaluation, ms a round",
    "plain_train_ms": "plain loop without evaluation, ms a round",
    "ratio_train": "**plain / Isthmus, without evaluation**",
    "floor_ms": "one centralised epoch with evaluation, ms",
    "over_floor": "**Isthmus / one centralised epoch**",
    "peak_mb": "peak memory, MB",
    "peak_device_mb": "peak memory on the device, MB",
}
GROWTH_ROWS = {
    "parties": "parties",
    "cut": "cut",
    "hidden": "hidden",
    "training": "of them with training nodes",
    "isthmus_ms": "Isthmus, ms a round",
    "before_mb": "memory before the run, MB",
    "peak_mb": "peak memory, MB",
}


def shown(name: str, value: Any) -> str:
    if name == "cut":
        return str(value)
    if name in ("parties", "training", "hidden") or name.endswith("_mb"):
        return f"{value:.0f}"
    return f"{value:.2f}" if name == "over_floor" else f"{value:.1f}"


def cells(found: Sequence[dict[str, Any]], names: dict[str, str]) -> list[list[str]]:
    """A line per figure, a column per number of parties."""
    return [[title, *(shown(name, row[name]) for row in found)] for name, title in names.items() if name in found[0]]


def table(found: Sequence[dict[str, Any]], names: dict[str, str]) -> str:
    head, *body = cells(found, names)
    return markdown(head, body)


def title_of(figures: dict[str, Any]) -> str:
    return f"{figures['data']}, FedAvg, GCN, {figures['device']}, one thread"


def write(figures: dict[str, Any]) -> None:
    told = f"Measured on {figures['date']}: {title_of(figures)}; {figures['machine']}; {named(figures['versions'])}."
    growth = "Growth, each line a process of its own that runs Isthmus alone:"
    rows = [table(figures["rows"], ROWS), growth, table(figures["growth"], GROWTH_ROWS)]
    keep(figures, RESULTS, PAGE, MARKS, [told, *rows])


def figures_of(options: argparse.Namespace) -> dict[str, Any]:
    pool, data = load_pool()
    device = torch.device(options.device)
    found: dict[str, Any] = {
        **origin(torch, torch_geometric),
        "data": data,
        "threads": torch.get_num_threads(),
        "device": options.device,
        "rows": [
            measure(pool, parties, cut, hidden, device, options.rounds, options.repeats)
            for hidden in options.hidden
            for cut in options.cut
            for parties in options.parties
        ],
    }
    if options.growth or options.write:
        found["growth"] = [
            alone(parties, options.cut[0], options.hidden[0], device, options.rounds) for parties in GROWTH
        ]
    return found


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parties", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--hidden", type=int, nargs="+", default=[64])
    parser.add_argument(
        "--cut", nargs="+", default=["random", "metis", "louvain"], help="ways to cut the graph into parties"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds per turn")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each side")
    parser.add_argument("--growth", action="store_true", help="also measure time and memory from 10 to 1000 parties")
    parser.add_argument("--write", action="store_true", help="save the figures in results/ and docs/speed.md")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
    parser.add_argument("--alone", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    torch.set_num_threads(1)
    options = parsed()
    if options.alone:
        say_alone(options.alone, options.cut[0], options.hidden[0], torch.device(options.device), options.rounds)
        return
    figures = figures_of(options)
    if options.write:
        write(figures)
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for at in range(0, len(figures["rows"]), 4):  # four settings fit a terminal
        head, *body = cells(figures["rows"][at : at + 4], ROWS)
        print_table(title_of(figures), head, [[line[0].strip("*"), *line[1:]] for line in body])
    if "growth" in figures:
        head, *body = cells(figures["growth"], GROWTH_ROWS)
        print_table("Growth: Isthmus alone in a process of its own", head, body)


if __name__ == "__main__":
    main()
