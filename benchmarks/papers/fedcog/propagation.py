"""Compare FedCog's propagation over a large coupled graph with the same two products on the pooled graph.

    OMP_NUM_THREADS=1 python benchmarks/papers/fedcog/propagation.py            # the table
    OMP_NUM_THREADS=1 python benchmarks/papers/fedcog/propagation.py --write    # and into results/propagation.json

A graph is drawn and cut once. Then one process after another loads it and propagates two hops: over 100 parties,
through a federation in this process (propagate, propagate, settle); and over the pooled graph, whose matrix D^-1/2 (A +
I) D^-1/2 is built from its edges and multiplied twice, by scipy as in FedCog or by torch. Times are computing times of
each process, in one thread, from its input to its result. The pooled graph's nodes are in the order of the parties: any
other order makes the pooled products slower.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is loaded

import argparse
import datetime
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_array, diags_array, eye_array
from torch_geometric.data import Data

from isthmus.data.partition.cut import cut_into_parties
from isthmus.data.party import Party
from isthmus.federation.verbs import Federation
from isthmus.methods.base import Method, Model, State
from isthmus.methods.fedcog import FedCog
from isthmus.nn.decoupled import Sgc
from isthmus.nn.diffusion import Diffusion
from isthmus.papers.measures.costs import Clocked
from isthmus.study.results import versions
from isthmus.study.setup import module_for
from isthmus.tasks.classification import NodeClassification

HERE = Path(__file__).parent
FOUND = HERE / "results" / "propagation.json"
EVERY = 997
"""Of every so manieth node the result is compared."""


# ---- the graph


def drawn(nodes: int, edges: int, features: int, parties: int, crossing: float, seed: int) -> tuple[Party, list[Party]]:
    """A pooled graph and its parties: edges between two nodes of one party, and a share between nodes of any two."""
    draw = np.random.default_rng(seed)
    ends = np.linspace(0, nodes, parties + 1).astype(np.int64)
    owner = np.repeat(np.arange(parties), np.diff(ends))
    start, size = ends[owner], np.diff(ends)[owner]  # of the party that a node is with
    crosses = round(crossing * edges)
    within = _pairs(edges - crosses, nodes, draw, lambda u: start[u] + draw.integers(size[u]))
    across = _pairs(crosses, nodes, draw, lambda u: (start[u] + size[u] + draw.integers(nodes - size[u])) % nodes)
    one_way = torch.from_numpy(np.concatenate([within, across], axis=1))
    graph = Data(
        x=torch.from_numpy(draw.standard_normal((nodes, features), dtype=np.float32)),
        edge_index=torch.cat([one_way, one_way.flip(0)], dim=1),
        y=torch.from_numpy(draw.integers(2, size=nodes)),
        train_mask=torch.ones(nodes, dtype=torch.bool),
    )
    pooled = Party.of_graph("pooled", graph)
    members = torch.arange(nodes).split(np.diff(ends).tolist())
    return pooled, cut_into_parties(pooled, members, [f"party-{at}" for at in range(parties)], coupled=True)


def _pairs(count: int, nodes: int, draw: np.random.Generator, other: Callable[[Any], Any]) -> Any:
    """So many different pairs of two nodes, each once."""
    first = draw.integers(nodes, size=count + count // 20 + 100)
    both = np.sort(np.stack([first, other(first)]), axis=0)
    keys = np.unique((both[0] * nodes + both[1])[both[0] != both[1]])
    return np.stack(np.divmod(draw.permutation(keys)[:count], nodes))


# ---- a process that propagates


def federated(parties: list[Party]) -> tuple[Any, dict[str, float]]:
    """Two hops over the parties; what every party has in the end, and where the time went."""
    start = time.process_time()
    task, method = NodeClassification(classes=2), FedCog()
    module = module_for(Sgc(), parties, task, 0)
    site = method.site(parties, task, module)
    transport, made = Clocked([site]), time.process_time() - start
    next(method.server(Federation(transport), Model(module), State()))
    rest = time.process_time() - start - made - sum(transport.seconds.values())
    steps = {"parties side by side": made, **transport.seconds, "messages": rest}
    with site.asked():
        return [part["rows"] for part in site.kept.each("prepared")], steps


def by_scipy(party: Party) -> tuple[Any, dict[str, float]]:
    start = time.process_time()
    nodes, x = party.nodes, party.graph.x.numpy()
    source, target = party.graph.edge_index.numpy()
    adjacency = coo_array((np.ones(source.size, x.dtype), (target, source)), shape=(nodes, nodes)).tocsr()
    adjacency = adjacency + eye_array(nodes, dtype=x.dtype, format="csr")
    scale = diags_array(adjacency.sum(1) ** -0.5)
    matrix = (scale @ adjacency @ scale).tocsr()
    del adjacency
    made = time.process_time()
    h = matrix @ (matrix @ x)
    return [torch.from_numpy(h)], {"matrix": made - start, "products": time.process_time() - made}


def by_torch(party: Party) -> tuple[Any, dict[str, float]]:
    start = time.process_time()
    diffusion, x = Diffusion(hops=2), party.graph.x
    matrix = diffusion.matrix(party.graph.edge_index, None, party.nodes, x.dtype)
    made = time.process_time()
    h = matrix @ (matrix @ x)
    return [h], {"matrix": made - start, "products": time.process_time() - made}


SIDES: dict[str, tuple[str, Callable[[Any], tuple[Any, dict[str, float]]]]] = {
    "fedcog": ("parties", federated),
    "pooled, scipy": ("pooled", by_scipy),
    "pooled, torch": ("pooled", by_torch),
}


def say_alone(side: str, folder: Path) -> None:
    """Propagate and say what it took."""
    kind, propagate = SIDES[side]
    bare = memory_mb("VmRSS")
    held = torch.load(folder / f"{kind}.pt", weights_only=False)
    Method.known()  # they are looked for once in a process
    before = memory_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    start = time.process_time()
    parts, steps = propagate(held)
    seconds = time.process_time() - start
    found = {"side": side, "seconds": seconds, "bare_mb": bare, "before_mb": before, "peak_mb": memory_mb("VmHWM")}
    np.save(folder / f"{side}.npy", torch.cat(parts)[::EVERY].numpy())
    print(json.dumps(found | {"steps": {name: round(took, 4) for name, took in steps.items()}}))


def memory_mb(name: str) -> float:
    """Memory of this process, as Linux tells it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 2**10


# ---- what is measured


def measured(args: Any) -> dict[str, Any]:
    sizes = {name: getattr(args, name) for name in ("nodes", "edges", "features", "parties", "crossing", "seed")}
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        alone(["--draw", str(folder), *(f"--{key}={value}" for key, value in sizes.items())])
        rounds = [
            {side: json.loads(alone(["--alone", side, str(folder)])) for side in SIDES} for _ in range(args.repeats)
        ]
        results = [np.load(folder / f"{side}.npy") for side in SIDES]
        drawn_as = json.loads((folder / "graph.json").read_text())
    rows = {side: _medians([each[side] for each in rounds]) for side in SIDES}
    return {
        **sizes, **drawn_as, "repeats": args.repeats, "date": datetime.date.today().isoformat(), "sides": rows,
        "difference": max(float(abs(results[0] - other).max()) for other in results[1:]),
    }  # fmt: skip


def alone(options: list[str]) -> str:
    return subprocess.run([sys.executable, __file__, *options], stdout=subprocess.PIPE, text=True, check=True).stdout


def _medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    names = ("seconds", "bare_mb", "before_mb", "peak_mb")
    found = {name: round(statistics.median(run[name] for run in runs), 4) for name in names}
    return found | {"steps": {s: statistics.median(run["steps"][s] for run in runs) for s in runs[0]["steps"]}}


def draw_into(folder: Path, args: Any) -> None:
    pooled, parties = drawn(args.nodes, args.edges, args.features, args.parties, args.crossing, args.seed)
    torch.save(pooled, folder / "pooled.pt")
    torch.save(parties, folder / "parties.pt")
    crossing = sum(len(party.border) for party in parties if party.border is not None) / 2
    found = {"edges_drawn": pooled.edges // 2, "edges_crossing": int(crossing)}
    (folder / "graph.json").write_text(json.dumps(found))


def table(found: list[dict[str, Any]]) -> str:
    lines = []
    for graph in found:
        lines += [
            f"{graph['nodes']:,} nodes, {graph['edges_drawn']:,} edges ({2 * graph['edges_drawn']:,} entries), "
            f"{graph['edges_crossing'] / graph['edges_drawn']:.0%} of them crossing, {graph['features']} features, "
            f"{graph['parties']} parties, medians of {graph['repeats']}; "
            f"largest difference {graph['difference']:.0e}:\n",
            "| | seconds | of these | input, MB | peak, MB | FedCog's time | to the products alone | FedCog's peak "
            "| its memory above the input |",
            "| --- " * 9 + "|",
        ]
        ours = graph["sides"]["fedcog"]
        for side, row in graph["sides"].items():
            steps = ", ".join(f"{name} {seconds:.1f}" for name, seconds in row["steps"].items())
            above = [each["peak_mb"] - each["before_mb"] for each in (ours, row)]
            alone = _times(ours["seconds"], row["steps"].get("products", 0.0))
            lines.append(
                f"| {side} | {row['seconds']:.1f} | {steps} | {row['before_mb'] - row['bare_mb']:,.0f} | "
                f"{row['peak_mb']:,.0f} | {_times(ours['seconds'], row['seconds'])} | {alone} | "
                f"{_times(ours['peak_mb'], row['peak_mb'])} | {_times(*above)} |"
            )
        lines.append("")
    return "\n".join(lines)


def _times(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.2f}x" if theirs else ""


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=10_000_000, help="each counted once; two entries of the matrix")
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--parties", type=int, default=100)
    parser.add_argument("--crossing", type=float, default=0.1, help="share of the edges between two parties")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=3, help="processes of each side, alternating")
    parser.add_argument("--folder", type=Path, help="folder for the graph during the run")
    parser.add_argument("--write", action="store_true", help="save the figures")
    parser.add_argument("--draw", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    args = parsed()
    torch.set_num_threads(1)
    if args.alone:
        return say_alone(args.alone[0], Path(args.alone[1]))
    if args.draw:
        return draw_into(args.draw, args)
    found = measured(args)
    print(table([found]))
    if args.write:
        kept = json.loads(FOUND.read_text())["graphs"] if FOUND.exists() else []
        kept = [each for each in kept if (each["nodes"], each["edges"]) != (found["nodes"], found["edges"])] + [found]
        FOUND.parent.mkdir(exist_ok=True)
        FOUND.write_text(json.dumps({"versions": versions(), "threads": 1, "graphs": kept}, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
