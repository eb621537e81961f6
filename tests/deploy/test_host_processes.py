"""A study of 60 parties over three hosts, each a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pyarrow import parquet
from safetensors.torch import load_file
from tests.deploy.real import COMMAND, isthmus, until
from tests.deploy.test_hosts import in_one_process
from tests.docs.test_blocks import blocks, commands

from isthmus import toml
from isthmus.deploy.tls import new_key
from isthmus.federation import wire
from isthmus.study.config import Study, read_toml
from isthmus.study.run import run_study

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]
BASE: dict[str, Any] = {"parties": 60, "unlabelled": "idle", "federation": {"seconds": 60.0}}
BANKS = {**BASE, "data": {"name": "banks", "nodes": 3000}}
STUDIES: dict[str, dict[str, Any]] = {
    "fedavg": {**BANKS, "methods": [{"name": "fedavg", "rounds": 10}]},
    "fedcog": {**BANKS, "model": {"encoder": "sgc"}, "methods": [{"name": "fedcog", "rounds": 3}]},
    "fedgl": {**BASE, "data": {"name": "hospitals"}, "methods": [{"name": "fedgl", "rounds": 3}]},
}


class Machines:
    """Three hosts on this machine."""

    def __init__(self, base: Path) -> None:
        self.base, self.key = base, base / "hosts.key"
        new_key(self.key, 1)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.places: list[str] = []
        for at in range(3):
            self.begin(at, "127.0.0.1:0")

    def begin(self, at: int, place: str) -> None:
        """Start a host; it says where it listens."""
        out = self.base / f"{at}.out"
        with out.open("wb") as file:
            process = subprocess.Popen(
                [*COMMAND, "host", "serve", "--listen", place, "--key", self.key], stdout=file, stderr=file
            )
        until("a host", lambda: out.read_bytes().endswith(b"\n"))
        self.processes[at:], self.places[at:] = (
            [process, *self.processes[at + 1 :]],
            [out.read_text().split()[-1], *self.places[at + 1 :]],
        )

    def words(self, study: Path, out: Path, *more: str) -> list[object]:
        return ["run", study, "--out", out, "--hosts", ",".join(self.places), "--key", self.key, *more]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    made = Machines(tmp_path_factory.mktemp("hosts"))
    yield made
    made.close()


def written(path: Path, study: dict[str, Any]) -> Path:
    path.write_text(toml.dumps(study))
    return path


def rows_of(folder: Path, name: str) -> list[dict[str, Any]]:
    return parquet.read_table(folder / f"{name}.parquet").to_pylist()


def assert_equal(out: Path, study: Study) -> None:
    """To the bit what three sites in one process give; the ledger row for row."""
    (method,) = study.methods
    name = method["name"]
    here = in_one_process(study, 3)
    weights = load_file(out / "weights" / f"{name}-0.safetensors")
    mine = dict(wire.flatten(here.weights))
    assert mine.keys() == weights.keys()
    assert all(torch.equal(mine[path], weights[path]) for path in mine)
    assert history_of(out) == here.history
    assert rows_of(out, "ledger") == [{"method": name, "seed": 0, **row} for row in here.ledger.rows()]


def assert_close(out: Path, study: Study) -> None:
    """To rounding what one site of all parties gives; the ledger row for row."""
    here = run_study(study).runs[0]
    assert [each[:2] for each in history_of(out)] == [each[:2] for each in here.history]
    values = [value for _, _, value in here.history]
    assert [value for _, _, value in history_of(out)] == pytest.approx(values, abs=1e-6)
    assert rows_of(out, "ledger") == [{"method": here.method, "seed": 0, **row} for row in here.ledger.rows()]


def history_of(out: Path) -> list[tuple[int, str, float]]:
    return [(row["round"], row["metric"], row["value"]) for row in rows_of(out, "history")]


def test_the_page_is_followed_word_by_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hosts: list[subprocess.Popen[bytes]] = []
    page = blocks("docs/hosts.md")
    for block in page:
        if block.title:
            Path(block.title).write_text(block.text)
    words = [line.split()[1:] for block in page if block.language == "console" for line in commands(block, all=True)]
    assert [each[:2] for each in words] == [["host", "key"], *[["host", "serve"]] * 3, ["run", "many.toml"]]
    try:
        for each in words:
            if each[:2] == ["host", "serve"]:
                hosts.append(subprocess.Popen([*COMMAND, *each]))
                continue
            done = isthmus(*each, seconds=300)
            assert done.returncode == 0, done.stderr
    finally:
        for host in hosts:
            host.kill()
            host.wait()
    assert_equal(tmp_path / "runs" / "many", Study.of(read_toml(tmp_path / "many.toml")))


@pytest.mark.parametrize("name", STUDIES)
def test_numbers_and_ledger_are_those_of_one_process(name: str, machines: Machines, tmp_path: Path) -> None:
    study = written(tmp_path / "s.toml", STUDIES[name])
    done = isthmus(*machines.words(study, tmp_path / "out"), seconds=300)
    assert done.returncode == 0, done.stderr
    assert_equal(tmp_path / "out", Study.of(STUDIES[name]))
    assert_close(tmp_path / "out", Study.of(STUDIES[name]))


def test_a_killed_host_is_named_and_the_run_goes_on_when_it_is_back(machines: Machines, tmp_path: Path) -> None:
    long = {**BANKS, "methods": [{"name": "fedavg", "rounds": 150}]}
    study, out = written(tmp_path / "s.toml", long), tmp_path / "out"
    with (tmp_path / "err").open("wb") as err:
        run = subprocess.Popen([*COMMAND, *map(str, machines.words(study, out))], stdout=err, stderr=err)
    checkpoint = out / ".state" / "fedavg-0.checkpoint"
    until("a checkpoint", checkpoint.exists)
    os.kill(machines.processes[1].pid, signal.SIGKILL)
    began = time.monotonic()
    assert run.wait(60) == 2
    assert time.monotonic() - began < 10
    lines = (tmp_path / "err").read_text().splitlines()
    assert lines[-1].startswith(f"isthmus: host '{machines.places[1]}' is lost: "), lines
    assert "--resume" in lines[-1]
    machines.begin(1, machines.places[1])
    done = isthmus(*machines.words(study, out, "--resume"), seconds=300)
    assert done.returncode == 0, done.stderr
    assert_equal(out, Study.of(long))
