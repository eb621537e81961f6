"""Federations of local processes: seconds a round, bytes on the wire, start-up; and masks for 1,000 parties simulated.

OMP_NUM_THREADS=1 python benchmarks/speed/federation.py                     # FedAvg on Cora over NVIDIA FLARE
OMP_NUM_THREADS=1 python benchmarks/speed/federation.py --large             # and a payload of 100 MB
OMP_NUM_THREADS=1 python benchmarks/speed/federation.py --simulate          # masked sums alone, without processes
OMP_NUM_THREADS=1 python benchmarks/speed/federation.py --write             # kept in results/federation.json

A round is one local epoch of a GCN and the evaluation of the averaged model: two totals. Times are wall time per round
at the coordinator, without the start of the job. CPU time is that of all processes together. The difference between
two runs of different length gives CPU time and bytes per round without the job's fixed cost. Bytes on the wire are
those of the TCP connections between parties and server, with TLS; a process in between counts them, so they come from
runs of their own, which are not timed.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is loaded

import argparse
import datetime
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import numpy as np
import torch
from pyarrow import parquet

sys.path.append(str(Path(__file__).parents[1]))  # figures.py is there
from figures import machine, named, print_table
from isthmus import toml
from isthmus.federation import wire
from isthmus.federation.answers import Answer, Reply
from isthmus.federation.transport import TotalRequest
from isthmus.protect.base import Message
from isthmus.protect.masks import MaskedSums, MaskingGuard
from isthmus.protect.sealing import Channel, generate_keyrings
from isthmus.study.results import versions

RESULTS = Path(__file__).parent / "results" / "federation.json"
COMMAND = (sys.executable, "-m", "isthmus")
TOTALS = ("none", "masks", "ckks")
ROUNDS, COUNTED_ROUNDS = (20, 60), (2, 6)


class Counted(Thread):
    """Carries what parties and the server say to each other, and counts its bytes."""

    def __init__(self, to: int) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port, self.to, self.bytes, self.lock = self.listener.getsockname()[1], to, 0, Lock()

    def run(self) -> None:
        while True:
            near, _ = self.listener.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self.to))
            except OSError:  # the server has not started yet
                near.close()
                continue
            for one, other in ((near, far), (far, near)):
                Thread(target=self.carry, args=(one, other), daemon=True).start()

    def carry(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError), one, other:
            while data := one.recv(1 << 18):
                with self.lock:
                    self.bytes += len(data)
                other.sendall(data)


class CpuTime(Thread):
    """Adds up the CPU time of all processes whose command line has some text in it, those that have ended included."""

    def __init__(self, text: str) -> None:
        super().__init__(daemon=True)
        self.text, self.seconds = text.encode(), dict[int, float]()

    def run(self) -> None:
        while True:
            for each in Path("/proc").iterdir():
                with suppress(OSError):
                    if each.name.isdigit() and self.text in (each / "cmdline").read_bytes():
                        used = (each / "stat").read_text().rpartition(")")[2].split()[11:13]
                        self.seconds[int(each.name)] = sum(map(int, used)) / os.sysconf("SC_CLK_TCK")
            time.sleep(0.1)

    def total(self) -> float:
        return sum(list(self.seconds.values()))


class Federation:
    """A server and parties, each a process of its own."""

    def __init__(self, base: Path, parties: int, data: dict[str, Any], counts: bool) -> None:
        self.base, self.kits, self.data = base, base / "kits", data
        names = [f"party-{at}" for at in range(parties)]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        name, *options = data.values()
        more = [f"--set=data.{key}={value}" for key, value in zip(list(data)[1:], options, strict=True)]
        self.isthmus("party", "export", "--data", name, "--parties", parties, *more, base / "data")
        study = self.study("any", {})
        place = f"localhost:{port}"
        self.isthmus("federation", "new", study, "--parties", ",".join(names), "--server", place, "--out", self.kits)
        self.wire, self.cpu = Counted(port) if counts else None, CpuTime(str(self.kits))
        if self.wire:
            self.wire.start()
        self.cpu.start()
        self.processes = [self.begin("serve", self.kits / "server")]
        for name in names:
            for file in (self.kits / name).rglob("*.json") if self.wire else ():
                file.write_text(file.read_text().replace(str(port), str(self.wire.port)))
            self.processes.append(self.begin("join", self.kits / name, "--data", base / "data" / name))

    def study(self, name: str, more: dict[str, Any]) -> Path:
        path = self.base / f"{name}.toml"
        path.write_text(toml.dumps({"unlabelled": "idle", "data": self.data, **more}))
        return path

    def isthmus(self, *words: object) -> None:
        subprocess.run([*COMMAND, *map(str, words)], check=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)

    def begin(self, *words: object) -> subprocess.Popen[bytes]:
        quiet = subprocess.DEVNULL
        return subprocess.Popen([*COMMAND, "federation", *map(str, words)], stdout=quiet, stderr=quiet, stdin=quiet)

    def run(self, name: str, rounds: int, hidden: int, total: str, layers: int = 2) -> dict[str, float]:
        """One job: seconds a round, seconds beside its rounds, CPU seconds, bytes on the wire and in the ledger."""
        study = self.study(name, {
            "model": {"encoder": "gcn", "hidden": hidden, "layers": layers},
            "protect": {"total": total},
            "methods": [{"name": "fedavg", "rounds": rounds, "patience": 0, "local": {"epochs": 1}}],
        })  # fmt: skip
        out, before = self.base / name, self.wire.bytes if self.wire else 0
        began, used = time.perf_counter(), self.cpu.total()
        self.isthmus("federation", "run", self.kits / "admin", study, "--out", out)
        passed = time.perf_counter() - began
        (run,) = json.loads((out / "results.json").read_text())["runs"]
        rows = parquet.read_table(out / "ledger.parquet").to_pylist()
        ledger = sum(row["sent"] + row["received"] for row in rows)
        return {
            "round_s": run["seconds"] / rounds,
            "beside_s": passed - run["seconds"],
            "cpu_s": self.cpu.total() - used,
            "wire": self.wire.bytes - before if self.wire else 0,
            "ledger": ledger,
        }

    def close(self) -> None:
        for each in Path("/proc").iterdir():  # processes of jobs have the command line of the one they are forked off
            with suppress(OSError):
                if each.name.isdigit() and str(self.kits).encode() in (each / "cmdline").read_bytes():
                    os.kill(int(each.name), signal.SIGKILL)
        for process in self.processes:
            process.wait()


@contextmanager
def federation(parties: int, *, counts: bool, **data: Any) -> Iterator[Federation]:
    with tempfile.TemporaryDirectory() as aside:
        made = Federation(Path(aside), parties, data or {"name": "cora"}, counts)
        try:
            yield made
        finally:
            made.close()


def rounds_of(parties: int, repeats: int, totals: Sequence[str]) -> list[dict[str, Any]]:
    """Plain, masks and CKKS take turns; of each figure there is the median."""
    found: dict[str, list[dict[str, float]]] = {total: [] for total in totals}
    with federation(parties, counts=False) as here:
        here.run("warm", 2, 64, "none")
        for at in range(repeats):
            for total in totals:
                few, many = (here.run(f"{total}-{rounds}-{at}", rounds, 64, total) for rounds in ROUNDS)
                found[total].append({
                    "round_s": many["round_s"],
                    "beside_s": many["beside_s"],
                    "round_cpu_s": (many["cpu_s"] - few["cpu_s"]) / (ROUNDS[1] - ROUNDS[0]),
                    "beside_cpu_s": few["cpu_s"] - (many["cpu_s"] - few["cpu_s"]) * ROUNDS[0] / (ROUNDS[1] - ROUNDS[0]),
                })  # fmt: skip
                print(parties, total, found[total][-1], file=sys.stderr, flush=True)
    with federation(parties, counts=True) as here:
        counted = {total: bytes_of(here, total, COUNTED_ROUNDS, 64) for total in totals}
    return [
        {
            "parties": parties,
            "total": total,
            **{key: float(np.median([run[key] for run in runs])) for key in runs[0]},
            **counted[total],
        }
        for total, runs in found.items()
    ]


def bytes_of(here: Federation, total: str, rounds: tuple[int, int], hidden: int, layers: int = 2) -> dict[str, float]:
    """Bytes of a round, on the wire and in the ledger."""
    few, many = (here.run(f"bytes-{total}-{each}", each, hidden, total, layers) for each in rounds)
    return {key: (many[key] - few[key]) / (rounds[1] - rounds[0]) for key in ("wire", "ledger")}


def large(hidden: int) -> dict[str, Any]:
    """Rounds with payloads of 100 MB each way, two parties with a few nodes each, plain totals."""
    with federation(2, counts=False, name="banks", nodes=60) as here:
        few, many = (here.run(f"large-{rounds}", rounds, hidden, "none", layers=3) for rounds in (1, 4))
    with federation(2, counts=True, name="banks", nodes=60) as here:
        counted = bytes_of(here, "none", (1, 2), hidden, layers=3)
    without_first = {"round_s": 4 * many["round_s"] - few["round_s"], "round_cpu_s": many["cpu_s"] - few["cpu_s"]}
    return {"hidden": hidden, **{name: value / 3 for name, value in without_first.items()}, **counted}


# ---- masks for many, simulated


class Room:
    """Parties in this process, whose steps are timed one by one."""

    def __init__(self, parties: int, weights: int, gone: float) -> None:
        self.parties, self.limit = tuple(f"p{at}" for at in range(parties)), wire.LIMIT
        channels = {name: Channel(ring, "run") for name, ring in generate_keyrings(self.parties).items()}
        sessions = {name: each.session for name, each in channels.items()}
        for name, channel in channels.items():
            channel.set_sessions({other: session for other, session in sessions.items() if other != name})
        self.guards = {name: MaskingGuard(32, channel, 1) for name, channel in channels.items()}
        self.gone = set(self.parties[:: round(1 / gone)]) if gone else set()
        self.weights, self.out = weights, set[str]()
        self.times: dict[str, list[float]] = {}
        self.sent, self.got = 0, 0
        self.peak = 0.0

    def value(self, party: str) -> torch.Tensor:
        draw = torch.Generator().manual_seed(int(party[1:]))
        return torch.randn(self.weights, generator=draw)

    def reachable(self, asked: Any) -> tuple[str, ...]:
        return tuple(asked)

    def unreachable(self, asked: Any) -> dict[str, str]:
        return {}

    def send_step(self, action: str, messages: dict[str, Message]) -> tuple[dict[str, Message], dict[str, str]]:
        found: dict[str, Message] = {}
        missing: dict[str, str] = {}
        for party, message in messages.items():
            step = message.get("step", message["do"])
            if party in self.gone and step == "call":
                missing[party] = "gone"
                continue
            before, began = memory(), time.perf_counter()
            if step == "call":
                reply = Reply.of((party,), Answer({"w": self.value(party).unsqueeze(0)}, torch.ones(1)))
                found[party] = self.guards[party].close_answer(reply, message, self.limit)
            else:
                found[party] = self.guards[party].answer_step(message)
            self.times.setdefault(step, []).append(time.perf_counter() - began)
            if step == "call":
                self.peak = max(self.peak, memory() - before)
        return found, missing


def memory() -> float:
    """Resident megabytes now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def simulated(parties: int, weights: int, gone: float) -> dict[str, Any]:
    """One masked sum; the server's time is what is not a party's."""
    room = Room(parties, weights, gone)
    sums = MaskedSums(32, 0.5, room, lambda total, request: "", 1)  # type: ignore[arg-type]
    before, began = memory(), time.perf_counter()
    made = sums.total(TotalRequest("train", {}, room.parties))
    passed = time.perf_counter() - began
    held = memory() - before
    party = {step: float(np.mean(each)) for step, each in room.times.items()}
    there = [name for name in room.parties if name not in room.gone]
    due = sum(room.value(name).double() for name in there)
    wrong = float((made.total.sum("w").double() - due).abs().max())
    one = there[-1]
    return {
        "parties": parties, "weights": weights, "gone": len(room.gone), "error": wrong,
        "server_s": passed - sum(map(sum, room.times.values())), "server_mb": held,
        "party_s": sum(party.values()), "party_steps_s": party, "party_mb": room.peak,
        "party_sent_mb": made.sent[one] / 1e6, "party_got_mb": made.received[one] / 1e6,
    }  # fmt: skip


def line(row: dict[str, Any]) -> list[str]:
    ratio = row["wire"] / row["ledger"]
    spent = [f"{1000 * row['round_s']:.0f}", f"{1000 * row['round_cpu_s']:.0f}"]
    sizes = [f"{row['wire'] / 1e6:.2f}", f"{ratio:.3f}"]
    return [str(row["parties"]), row["total"], *spent, *sizes, f"{row['beside_s']:.1f}", f"{row['beside_cpu_s']:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parties", nargs="*", type=int, default=[2, 10])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--totals", nargs="*", default=TOTALS)
    parser.add_argument("--large", action="store_true", help="also time rounds with payloads of 100 MB")
    parser.add_argument("--simulate", action="store_true", help="only masked sums of simulated parties")
    parser.add_argument("--many", type=int, default=1000)
    parser.add_argument("--weights", type=int, default=100_000)
    parser.add_argument("--write", action="store_true", help="save the figures in results/federation.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if args.simulate:
        kept["simulated"] = simulated(args.many, args.weights, 0.1)
        print(json.dumps(kept["simulated"], indent=1))
    else:
        found = [row for parties in args.parties for row in rounds_of(parties, args.repeats, args.totals)]
        kept["rounds"] = found or kept["rounds"]
        head = ["parties", "totals", "ms a round", "CPU ms", "MB a round", "wire / ledger", "start and end, s", "CPU s"]
        print_table("FedAvg, Cora", head, map(line, kept["rounds"]), left=2)
        if args.large:
            kept["large"] = large(5000)
            print(json.dumps(kept["large"], indent=1))
    if args.write:
        about = {"date": datetime.date.today().isoformat(), "machine": machine(), "versions": versions()}
        RESULTS.write_text(json.dumps({**kept, **about}, indent=1) + "\n")
    print(named(versions()), file=sys.stderr)


if __name__ == "__main__":
    main()
