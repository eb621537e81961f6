"""Federations of real processes over NVIDIA FLARE: a server, three parties, an administrator."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from pyarrow import parquet
from safetensors.torch import load_file
from tests.docs.test_blocks import blocks, commands
from tests.federation.by_hand import at_folders
from tests.federation.real import Federation, isthmus, until
from tests.study.test_federated import in_one_process, study_of

from isthmus import toml
from isthmus.federation import wire
from isthmus.study.config import Study

pytest.importorskip("nvflare")
ROUNDS = 120
"""Enough for a test to meddle with a run."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
BANKS = Study.of({"data": {"name": "banks", "nodes": 300}, "unlabelled": "idle"})


def written(path: Path, **study: Any) -> Path:
    path.write_text(toml.dumps({"unlabelled": "idle", "federation": {"seconds": 20.0}, **study}))
    return path


def rows_of(folder: Path, name: str = "ledger") -> list[dict[str, Any]]:
    return parquet.read_table(folder / f"{name}.parquet").to_pylist()


def parties_in(folder: Path) -> dict[str, Path]:
    return {each.name: each for each in sorted(folder.iterdir())}


def check_equal(out: Path, study: Study) -> None:
    """Every run of a federation is that of the study in one process: weights, history, ledger."""
    for method in study.methods:
        name = method["name"]
        here = in_one_process(study.model_copy(update={"methods": [method]}))
        weights = load_file(out / "weights" / f"{name}-0.safetensors")
        mine = dict(wire.flatten(here.weights))
        assert mine.keys() == weights.keys()
        assert all(torch.equal(mine[path], weights[path]) for path in mine), name
        found = {(at, metric): value for at, metric, value in here.history}
        history = [row for row in rows_of(out, "history") if row["method"] == name]
        assert history
        assert all(found[row["round"], row["metric"]] == row["value"] for row in history), name
        ledger = [row for row in rows_of(out) if row["method"] == name]
        assert ledger == [{"method": name, "seed": 0, **row} for row in here.ledger.rows()], name


# ---- the way through it


def test_the_page_is_followed_word_by_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that differs is the port, which must be free."""
    monkeypatch.chdir(tmp_path)
    page = blocks("docs/federation.md")
    for block in page:
        if block.title:
            Path(block.title).write_text(block.text)
    words = [line.split()[1:] for block in page if block.language == "console" for line in commands(block, all=True)]
    assert [each[1] for each in words if each[0] == "federation"] == [
        "preview", "new", "serve", "join", "join", "join", "run", "status"
    ]  # fmt: skip
    here = Federation.__new__(Federation)
    here.base, here.kits, here.processes = tmp_path, tmp_path / "kits", {}
    try:
        for each in words:
            if each[:2] in (["federation", "serve"], ["federation", "join"]):
                here.begin(Path(each[2]).name, each[1:])
                continue
            done = isthmus(*each, seconds=300)
            assert done.returncode == 0, done.stderr
            if each[1] == "preview":
                assert "server sees the sum" in done.stdout
            if each[1] == "status":
                assert [f"party-{at}: there" for at in range(3)] == done.stdout.splitlines()[:3]
        assert listening(here) == {"127.0.0.1"}
    finally:
        here.close()
    study = Study.of({"unlabelled": "idle", "data": {"name": "folder", "path": "data"}, "methods": [
        {"name": "fedavg", "rounds": 30}
    ]})  # fmt: skip
    check_equal(tmp_path / "runs" / "fraud", study)
    said = {(row["verb"], row["action"]) for row in rows_of(tmp_path / "runs" / "fraud", "set-up")}
    assert said == {("ask", "introduce"), ("ask", "encode")}
    assert (tmp_path / "runs" / "fraud" / "report.html").exists()


def listening(federation: Federation) -> set[str]:
    """Addresses that the federation's processes listen on."""
    inodes = set()
    for name in federation.processes:
        for pid in (federation.processes[name].pid, *federation.job_of(name)):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                target = os.readlink(link) if link.exists() else ""
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            parts = line.split()
            if parts[3] == "0A" and parts[9] in inodes:
                raw = bytes.fromhex(parts[1].split(":")[0][-8:])[::-1]  # of a mapped address the last four bytes
                found.add(".".join(map(str, raw)))
    return found


# ---- one federation for what leaves it as it was


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    base = tmp_path_factory.mktemp("federation")
    at_folders(BANKS, base / "data")
    made = Federation(base, written(base / "any.toml"), parties_in(base / "data"))
    made.start()
    yield made
    made.close()


EQUAL: Mapping[str, tuple[str, ...]] = {
    "fedavg": ("fedavg", "fedcog-gcn", "fedgc", "fedgl"),
    "fedcog": ("fedcog",),
    "fgcl": ("fgcl",),
    "fclg": ("fclg",),
}
"""By a study of tests/study/test_federated.py whose data are taken, the methods that run on them in one job."""


@pytest.mark.processes
@pytest.mark.parametrize("name", EQUAL)
def test_numbers_and_ledger_are_those_of_the_study(name: str, federation: Federation, tmp_path: Path) -> None:
    base = study_of(name, rounds=2)
    methods = [{"name": each, **({"ratio": 0.1} if each == "fedgc" else {})} for each in EQUAL[name]]
    folder = federation.base / "data"
    shutil.rmtree(folder)
    study = at_folders(base.model_copy(update={"methods": methods}), folder)
    done = federation.run(written(tmp_path / "s.toml", **study.resolved()), tmp_path / "out")
    assert done.returncode == 0, done.stderr + federation.log("server")
    check_equal(tmp_path / "out", study)


def hostile(job: Path, kind: str, mark: Path) -> Path:
    """A job that brings code which leaves a mark, or one that has another class loaded than those allowed."""
    from isthmus.federation import flare

    flare._write_job(job, {}, "x", ["party-0", "party-1", "party-2"])
    config = job / "app" / "config" / "config_fed_client.json"
    said = json.loads(config.read_text())
    if kind == "code":
        (job / "app" / "custom").mkdir()
        code = f"class Evil:\n    def __init__(self): open({str(mark)!r}, 'w')\n"
        (job / "app" / "custom" / "evil.py").write_text(code)
    path, arguments = ("evil.Evil", {}) if kind == "code" else ("io.FileIO", {"file": str(mark), "mode": "w"})
    said["components"] += [{"id": "evil", "path": path, "args": arguments}]
    config.write_text(json.dumps(said))
    return job


@pytest.mark.processes
def test_code_that_comes_with_a_job_is_refused(federation: Federation, tmp_path: Path) -> None:
    from isthmus.federation import flare

    mark = tmp_path / "was-here"
    with flare.Admin(federation.kits / "admin") as admin:
        jobs = [str(admin._said("submit_job", str(hostile(tmp_path / kind, kind, mark)))) for kind in ("code", "class")]
        until("the end of the jobs", lambda: all(admin.state(job) != "under way" for job in jobs), 120)
        assert [admin.state(job) for job in jobs] == ["lost", "lost"]
    assert not mark.exists()


def test_the_server_listens_where_it_is_told_to(tmp_path: Path) -> None:
    here = Federation(tmp_path, written(tmp_path / "any.toml"), {"party-0": tmp_path})
    try:
        here.begin("server", ["serve", here.kits / "server", "--bind", "127.0.0.2"])
        until("the listener", lambda: "127.0.0.2" in listening(here), 60)
        assert listening(here) == {"127.0.0.1", "127.0.0.2"}  # within this machine, and for the parties
    finally:
        here.close()


def test_a_party_of_another_federation_does_not_get_in(tmp_path: Path) -> None:
    """Its kit names this server, but its certificate is of another authority."""
    at_folders(BANKS, tmp_path / "data", parties=1)
    folder = tmp_path / "data" / "party-0"
    one, other = (
        Federation(made, written(made / "any.toml"), {"party-0": folder})
        for made in (tmp_path / "one", tmp_path / "other")
        if made.mkdir() is None
    )
    for file in (other.kits / "party-0").rglob("*.json"):
        file.write_text(file.read_text().replace(str(other.port), str(one.port)))
    try:
        one.serve()
        other.join("party-0")
        until("the refusal", lambda: "certificate" in other.log("party-0").lower(), 60)
        assert isthmus("federation", "status", one.kits / "admin").stdout.splitlines()[0] == "party-0: not there"
    finally:
        one.close()
        other.close()


# ---- what goes wrong in the world; each in a federation of its own


@pytest.fixture
def fragile(tmp_path: Path) -> Iterator[Federation]:
    at_folders(BANKS, tmp_path / "data")
    made = Federation(tmp_path, written(tmp_path / "any.toml"), parties_in(tmp_path / "data"))
    made.start()
    yield made
    made.close()


def until_round(federation: Federation, rounds: int) -> None:
    """Wait until the run has come so far."""
    from isthmus.federation import flare

    def there() -> bool:
        jobs = [job["job_id"] for job in admin.jobs() if job["status"] == "RUNNING"]
        return any(line["at"] >= rounds for job in jobs for line in admin.progress(job))

    with flare.Admin(federation.kits / "admin") as admin:
        until(f"round {rounds}", there, 120)


@pytest.mark.processes
def test_a_killed_party_is_named_and_then_a_killed_server_goes_on(fragile: Federation, tmp_path: Path) -> None:
    slow: dict[str, Any] = {"federation": {"seconds": 15.0}, "methods": [{"name": "fedavg", "rounds": ROUNDS}]}
    study = written(tmp_path / "s.toml", **slow)
    run = fragile.watch(study, tmp_path / "out")
    until_round(fragile, 3)
    for pid in fragile.job_of("party-1"):
        os.kill(pid, signal.SIGKILL)
    assert run.wait(180) == 0
    failed = [row for row in rows_of(tmp_path / "out") if row["note"]]
    assert {row["party"] for row in failed} == {"party-1"}
    assert "no answer within 15 s" in failed[0]["note"] or "cannot be reached" in failed[0]["note"]
    assert max(row["round"] for row in rows_of(tmp_path / "out")) == ROUNDS

    again = fragile.watch(study, tmp_path / "again")
    until_round(fragile, 3)
    fragile.kill("server")
    assert again.wait(120) == 2
    fragile.serve()
    done = fragile.run(study, tmp_path / "again", "--resume", seconds=240)
    assert done.returncode == 0, done.stderr
    data = {"name": "folder", "path": str(tmp_path / "data")}
    check_equal(tmp_path / "again", Study.of({"unlabelled": "idle", "data": data, "methods": slow["methods"]}))
