"""A study over hosts from the command line, and what is wrong in one line."""

from __future__ import annotations

import json
from pathlib import Path
from queue import Queue
from threading import Thread

import pytest

from command_line import Isthmus
from isthmus.deploy import tls
from isthmus.deploy.hosts import Host

SMALL = ("--rounds", "2", "--hidden", "8", "--set", "data.nodes=100")


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "hosts.key"
    tls.new_key(path, 1)
    return path


@pytest.fixture(scope="module")
def hosts(key: Path) -> str:
    """Two hosts in threads of this process."""
    places: Queue[str] = Queue()
    for _ in range(2):
        Thread(target=tls.listen, args=("127.0.0.1:0", key, Host, places.put), daemon=True).start()
    return ",".join(sorted(places.get(timeout=10) for _ in range(2)))


def test_a_study_runs_over_hosts_as_it_does_here(isthmus: Isthmus, tmp_path: Path, hosts: str, key: Path) -> None:
    study = ("run", *SMALL, "--method", "fedavg,local", "--seeds", "0,1")
    there = isthmus(*study, "--out", "there", "--hosts", hosts, "--key", key)
    assert there.code == 0, there.err
    assert there.runs == [(name, seed, "2") for seed in "01" for name in ("fedavg", "local")]
    assert isthmus(*study, "--out", "here").code == 0
    found, due = (json.loads(Path(name, "results.json").read_text())["runs"] for name in ("there", "here"))
    assert [run["metrics"] for run in found] == [pytest.approx(run["metrics"], abs=1e-5) for run in due]
    again = isthmus(*study, "--out", "there", "--hosts", hosts, "--key", key, "--resume")
    assert (
        again.err == "isthmus: there holds a finished study: there is nothing to resume; use --force to run it again\n"
    )


def test_what_a_host_says_is_wrong_is_one_line(
    isthmus: Isthmus, hosts: str, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isthmus.deploy.hosts._load", lambda *given: 1 / 0)
    done = isthmus("run", *SMALL, "--hosts", hosts, "--key", key)
    assert done.code == 2
    assert done.err.splitlines()[-1] == (
        f"isthmus: host '{hosts.split(',')[0]}': ZeroDivisionError: division by zero (the host's own output says more)"
    )


def test_hosts_and_their_key_belong_together(isthmus: Isthmus, key: Path) -> None:
    for words in (("--hosts", "a:1"), ("--key", key)):
        assert isthmus("run", *SMALL, *words).err == (
            "isthmus: --hosts and --key go together: give the machines and their key file\n"
        )


def test_a_key_is_made_once(isthmus: Isthmus, tmp_path: Path) -> None:
    assert isthmus("host", "key", "hosts.key").out.startswith("key in hosts.key: copy it to every host")
    again = isthmus("host", "key", "hosts.key")
    assert (again.code, again.err) == (2, "isthmus: hosts.key exists: choose another file\n")


def test_a_host_needs_a_place_and_a_key(isthmus: Isthmus, key: Path) -> None:
    assert isthmus("host", "serve", "--listen", "8001", "--key", key).err.startswith("isthmus: host '8001': give HOST:")
    assert "cannot read the key" in isthmus("host", "serve", "--listen", "127.0.0.1:0", "--key", "none").err
