"""A federation of real processes on this machine: a server, parties, and an administrator's commands."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyarrow import parquet

from isthmus import toml
from isthmus.deploy.approval import Approvals, Proposal
from isthmus.deploy.forks import NAME
from isthmus.deploy.logs import ENGINE_LOG
from isthmus.deploy.member import APPROVALS
from isthmus.study.config import Study, read_toml

COMMAND = (sys.executable, "-m", "isthmus")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(what: str, true: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something, with a limit."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.2)


def isthmus(*words: object, seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, words)], capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL
    )


class Federation:
    """Processes of one federation.

    Arguments:
        base: folder for kits and outputs.
        study: file with any study, for the kits.
        data: by party its folder.
    """

    def __init__(
        self, base: Path, study: Path, data: Mapping[str, Path], host: str = "localhost", port: int | None = None
    ) -> None:
        self.base, self.data, self.port = base, dict(data), port or free_port()
        self.kits = base / "kits"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        place = f"{host}:{self.port}"
        made = isthmus("federation", "new", study, "--parties", ",".join(data), "--server", place, "--out", self.kits)
        assert made.returncode == 0, made.stderr

    def start(self) -> None:
        self.serve()
        for party in self.data:
            self.join(party)

    def starts(self) -> int:
        """How often the server has started."""
        log = self.kits / "server" / ENGINE_LOG
        return log.read_text().count("Server started") if log.exists() else 0

    def serve(self) -> None:
        before = self.starts()
        self.begin("server", ["serve", self.kits / "server"])
        until("the server's start", lambda: self.starts() > before, 120)

    def join(self, party: str, **environment: str) -> None:
        self.begin(party, ["join", self.kits / party, "--data", self.data[party]], **environment)

    def approve(self, study: Path) -> None:
        """As `isthmus federation approve` at every party, without a process for each."""
        proposal = Proposal(Study.of(read_toml(study)), tuple(self.data))
        for party in self.data:
            Approvals(self.kits / party / "state" / APPROVALS).approve(proposal)

    def run(self, study: Path, out: Path, *more: str, seconds: float = 180.0) -> subprocess.CompletedProcess[str]:
        if "--resume" not in more:
            self.approve(study)
        return isthmus("federation", "run", self.kits / "admin", study, "--out", out, *more, seconds=seconds)

    def watch(self, study: Path, out: Path, *more: str) -> subprocess.Popen[bytes]:
        """As `run`, beside whatever a test does meanwhile."""
        if "--resume" not in more:
            self.approve(study)
        words = ["run", self.kits / "admin", study, "--out", out, *more]
        return self.begin(f"run-{len(self.processes)}", words)

    def job_of(self, party: str) -> list[int]:
        """The process that a job has at this party, or at the server."""
        found = []
        for each in Path("/proc").iterdir():
            if each.name.isdigit():
                try:
                    name = (each / "comm").read_text().strip()
                    words = (
                        (each / "cmdline").read_bytes().decode().split("\0")
                    )  # those of the process it is forked off
                except OSError:
                    continue
                if name == NAME and str(self.kits / party) in words:
                    found.append(int(each.name))
        return found

    def kill(self, name: str) -> None:
        """The process and all that it started, without a word."""
        with_children = [self.processes[name].pid, *self.job_of(name)]
        for pid in with_children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.processes.pop(name).wait()

    def log(self, name: str) -> str:
        """What a process has printed and logged."""
        files = [
            self.base / f"{name}.out",
            *(self.kits / name).glob("**/log.txt"),
            *(self.kits / name).glob(f"**/{ENGINE_LOG}"),
        ]
        return "\n".join(file.read_text(errors="replace") for file in files if file.exists())

    def place_of(self, name: str) -> tuple[str, ...]:
        """Words before a command that runs somewhere else than here."""
        return ()

    def close(self) -> None:
        for name in list(self.processes):
            self.kill(name)

    def begin(self, name: str, words: Sequence[object], **environment: str) -> subprocess.Popen[bytes]:
        """Start a process with these words after `isthmus federation`."""
        with (self.base / f"{name}.out").open("ab") as out:
            process = subprocess.Popen(
                [*self.place_of(name), *COMMAND, "federation", *map(str, words)],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **environment},
            )
        self.processes[name] = process
        return process


def redirect(kit: Path, port: int, to: int) -> None:
    """Let a kit name another port of the server."""
    for file in kit.rglob("*.json"):
        content = json.loads(file.read_text().replace(str(port), str(to)))
        content.pop("sha256", None)  # a checksum of what it was
        file.write_text(json.dumps(content))


def written(path: Path, **study: Any) -> Path:
    path.write_text(toml.dumps({"unlabelled": "idle", "federation": {"seconds": 20.0}, **study}))
    return path


def rows_of(folder: Path, name: str = "ledger") -> list[dict[str, Any]]:
    return parquet.read_table(folder / f"{name}.parquet").to_pylist()


def parties_in(folder: Path) -> dict[str, Path]:
    return {each.name: each for each in sorted(folder.iterdir())}


def until_round(federation: Federation, rounds: int) -> None:
    """Wait until the run has come so far."""
    from isthmus.deploy.admin import Admin

    def there() -> bool:
        running = [study for study in admin.look()["studies"] if study["state"] == "running"]
        return any(line["at"] >= rounds for study in running for line in study["lines"])

    with Admin(federation.kits / "admin") as admin:
        until(f"round {rounds}", there, 240)
