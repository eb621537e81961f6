"""Compare rounds of FedAvg over many small parties in one process and on Ray workers of this machine.

OMP_NUM_THREADS=1 python benchmarks/speed/cluster.py            # the tables
OMP_NUM_THREADS=1 python benchmarks/speed/cluster.py --write    # the same, into results/cluster.json and the README
OMP_NUM_THREADS=1 python benchmarks/speed/cluster.py --json     # the figures as JSON and nothing else
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is loaded

import argparse
import itertools
import json
import pickle
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1]))  # figures.py is there
from figures import keep, markdown, named, of_process, origin, peak_mb, print_table
from isthmus.study.config import Study
from isthmus.study.run import build_run

HERE = Path(__file__).parent
RESULTS, README = HERE / "results" / "cluster.json", HERE / "README.md"
MARKS = ("<!-- figures: written by cluster.py --write -->", "<!-- end of figures of cluster.py -->")
NODES = 20
"""Nodes of a party, on average."""
WORKERS = (0, 1, 2, 3)
"""0 stands for one process without Ray."""
WARM_UP = 2
FEW, MANY, MANY_ROUNDS = 100, 100_000, 3
"""Below the first, four times as many rounds; from the second on, fewer of them, and one turn."""
MESSAGES = 300
"""Parties of which nearly each has a message for each other one."""


def study_of(parties: int, method: str, rounds: int) -> Study:
    options = {"select": "last"} if method == "fedavg" else {}
    return Study.of(
        {
            "parties": parties,
            "data": {"name": "banks", "nodes": NODES * parties},
            "model": {"encoder": "gcn" if method == "fedavg" else "sgc"},
            "training": {"rounds": rounds + WARM_UP},
            "methods": [{"name": method, **options}],
            "unlabelled": "idle",
        }
    )


def say_alone(parties: int, method: str, workers: int, rounds: int) -> None:
    """Run one side, and print what it took as JSON."""
    study = study_of(parties, method, rounds)
    began = time.perf_counter()
    if not workers:
        loaded = study.load(0)
        found = timed(study, loaded, began, {})
        print(json.dumps({**found, "driver_mb": peak_mb()}))
        return
    from isthmus.deploy.cluster import Cluster, ray

    with Cluster(workers=workers) as cluster:
        loaded = cluster.load(study, 0)
        began = time.perf_counter()
        transport = cluster.transport(study, study.method_list()[0], 0, loaded)
        held = time.perf_counter() - began
        found = timed(study, loaded, began, {"transport": transport})
        pids = ray.get([worker.pid.remote() for worker in cluster.workers])
        found |= {"driver_mb": peak_mb(), "worker_mb": max(peak_mb_of(pid) for pid in pids), "ship_s": held}
        if method == "fedavg":
            found["kb"] = kilobytes_of_a_round(study, cluster, loaded)
    print(json.dumps(found))


def timed(study: Study, loaded: Any, began: float, options: dict[str, Any]) -> dict[str, float]:
    """Milliseconds of a round in the middle, and seconds until the first one has ended."""
    stamps: list[float] = []
    run = build_run(
        study, study.method_list()[0], 0, loaded, on_round=lambda *_: stamps.append(time.perf_counter()), **options
    )
    began = time.perf_counter()
    run.go()
    ms = [1000 * (after - before) for before, after in itertools.pairwise(stamps)][WARM_UP - 1 :]
    return {"ms": statistics.median(ms), "first_s": stamps[0] - began}


def kilobytes_of_a_round(study: Study, cluster: Any, loaded: Any) -> float:
    """What goes to and from all workers in a round, as if each were on a machine of its own."""
    totals = []
    for rounds in (1, 3):
        plan = study.model_copy(update={"training": {"rounds": rounds}})
        transport = cluster.transport(plan, plan.method_list()[0], 0, loaded)
        counter = Counter()
        transport.workers = [Counted(worker, counter) for worker in transport.workers]
        build_run(plan, plan.method_list()[0], 0, loaded, transport=transport).go()
        totals.append(counter.total())
    return (totals[1] - totals[0]) / 2 / 1000


class Counter:
    """Counts bytes of what is sent and of what comes back."""

    def __init__(self) -> None:
        self.sent, self.came = 0, []

    def total(self) -> int:
        from isthmus.deploy.cluster import ray

        return self.sent + sum(size(ray.get(each)) for each in self.came)


class Counted:
    """A worker whose calls are counted."""

    def __init__(self, worker: Any, counter: Counter) -> None:
        self._worker, self._counter = worker, counter

    def __getattr__(self, name: str) -> Any:
        return _Call(getattr(self._worker, name), self._counter)


class _Call:
    def __init__(self, call: Any, counter: Counter) -> None:
        self._call, self._counter = call, counter

    def remote(self, *arguments: Any) -> Any:
        from isthmus.deploy.cluster import ray

        for each in arguments:
            self._counter.sent += size(ray.get(each) if isinstance(each, ray.ObjectRef) else each)
        self._counter.came.append(self._call.remote(*arguments))
        return self._counter.came[-1]


def size(value: Any) -> int:
    return len(pickle.dumps(value, protocol=5))


def peak_mb_of(pid: int) -> float:
    """The most memory that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def measure(parties: int, method: str, rounds: int, repeats: int) -> list[dict[str, Any]]:
    """One process and each number of workers in turns, each turn a fresh process; a ratio is taken within a turn."""
    known = [workers for workers in WORKERS if workers <= parties]
    turns = [
        {
            workers: of_process(__file__, ["--alone", str(parties), method, str(workers), "--rounds", str(rounds)])
            for workers in known
        }
        for _ in range(repeats)
    ]

    def middle(workers: int, figure: str) -> float | None:
        return statistics.median(turn[workers][figure] for turn in turns) if figure in turns[0][workers] else None

    rows = []
    for workers in known:
        row: dict[str, Any] = {"parties": parties, "workers": workers, "ms": middle(workers, "ms")}
        row["over_ms"] = statistics.median(turn[workers]["ms"] - turn[0]["ms"] for turn in turns) if workers else None
        row["ratio"] = statistics.median(turn[workers]["ms"] / turn[0]["ms"] for turn in turns) if workers else None
        row |= {name: middle(workers, name) for name in ("first_s", "ship_s", "kb", "driver_mb", "worker_mb")}
        rows.append({name: value if value is None else round(value, 3) for name, value in row.items()})
    return rows


# ---- what is said


COLUMNS = {
    "parties": "parties",
    "workers": "workers",
    "ms": "ms a round",
    "over_ms": "more than in one process, ms",
    "ratio": "**to one process**",
    "first_s": "first round, s",
    "ship_s": "to give workers their parties, s",
    "kb": "kB a round, all workers",
    "driver_mb": "peak memory of the driver, MB",
    "worker_mb": "peak memory of a worker, MB",
}
HEAD = list(COLUMNS.values())


def cells(rows: list[dict[str, Any]]) -> list[list[str]]:
    return [[said(name, row[name]) for name in COLUMNS] for row in rows]


def said(name: str, value: float | None) -> str:
    if name == "workers" and not value:
        return "one process"
    if value is None:
        return ""
    return f"{value:,.2f}" if name == "ratio" else f"{value:,.1f}" if name.endswith(("_s", "ms")) else f"{value:,.0f}"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parties", type=int, nargs="*", default=[60, 1_000, 10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="save the figures in results/ and the README")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
    parser.add_argument("--alone", nargs=3, metavar=("PARTIES", "METHOD", "WORKERS"), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    torch.set_num_threads(1)
    options = parsed()
    if options.alone:
        say_alone(int(options.alone[0]), options.alone[1], int(options.alone[2]), options.rounds)
        return
    import ray

    rows = []
    for parties in options.parties:
        few, many = parties < FEW, parties >= MANY
        rounds = 4 * options.rounds if few else MANY_ROUNDS if many else options.rounds
        rows += measure(parties, "fedavg", rounds, 1 if many else options.repeats)
    letters = measure(MESSAGES, "fedcog", 3, options.repeats)
    figures = {**origin(torch, ray), "rounds": options.rounds, "rows": rows, "letters": letters}
    titles = (
        f"FedAvg, generated banks with {NODES} nodes per party, GCN 64; medians of {options.repeats} turns, "
        "of 100,000 parties one",
        f"FedCog, {MESSAGES} such parties, SGC: the first round has the set-up, in which parties send each other "
        "diffused features",
    )
    if options.write:
        told = f"Measured on {figures['date']}, seed 0; {figures['machine']}; {named(figures['versions'])}."
        parts = [told, titles[0] + ":", markdown(HEAD, cells(rows)), titles[1] + ":", markdown(HEAD, cells(letters))]
        keep(figures, RESULTS, README, MARKS, parts)
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        print_table(titles[0], HEAD, cells(rows))
        print_table(titles[1], HEAD, cells(letters))


if __name__ == "__main__":
    main()
