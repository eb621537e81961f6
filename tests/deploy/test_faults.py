"""What goes wrong in the world, each with real processes: a server, three parties, an administrator."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import textwrap
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from tests.deploy.real import Federation, free_port, isthmus, parties_in, redirect, rows_of, until, until_round, written
from tests.federation.by_hand import at_folders
from tests.federation.equal import check_equal

from isthmus.study.config import Study

pytest.importorskip("nvflare")
from isthmus.deploy.kits import Kit

SUBSET = 3
"""Exit code of a run in which not all parties counted in all rounds."""
PLAIN: dict[str, Any] = {"protect": {"total": "none"}}
"""Without masks, a federation gives the numbers of the study in one process to the bit."""
ROUNDS = 120
"""Enough for a test to meddle with a run."""
ENDLESS = 100_000
"""More than there is time for, so that the time a test takes depends on the fault alone."""
pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(600)]
BANKS = Study.of({"data": {"name": "banks", "nodes": 300}, "unlabelled": "idle"})


def study_at(folder: Path, **more: Any) -> Study:
    return Study.of({"unlabelled": "idle", "data": {"name": "folder", "path": str(folder)}, **more})


def fedavg(rounds: int, quorum: float = 0.5) -> list[dict[str, Any]]:
    return [{"name": "fedavg", "rounds": rounds, "patience": 0, "quorum": quorum}]


def failed_in(out: Path) -> list[dict[str, Any]]:
    return [row for row in rows_of(out) if row["status"] == "failed"]


@pytest.fixture
def still(tmp_path: Path) -> Iterator[Federation]:
    """A federation whose processes do not run yet."""
    at_folders(BANKS, tmp_path / "data")
    made = Federation(tmp_path, written(tmp_path / "any.toml"), parties_in(tmp_path / "data"))
    yield made
    made.close()


@pytest.fixture
def fragile(still: Federation) -> Federation:
    still.start()
    return still


def stop_when_back(federation: Federation, party: str) -> None:
    """Stop the study that runs once this party, which was out, counts again."""
    from isthmus.deploy.admin import Admin

    with Admin(federation.kits / "admin") as admin:
        (study,) = admin.look()["studies"]
        (at,) = (line["at"] for line in study["lines"])
        until(f"{party} is back", lambda: (admin.look()["studies"][0]["parties"][party]["round"] or 0) > at, 120)
        admin.stop(study["job"])


# ---- processes


def test_a_killed_party_is_named_and_then_a_killed_server_goes_on(fragile: Federation, tmp_path: Path) -> None:
    slow: dict[str, Any] = {**PLAIN, "federation": {"seconds": 15.0}, "methods": fedavg(ROUNDS)}
    study = written(tmp_path / "s.toml", **slow)
    run = fragile.watch(study, tmp_path / "out")
    until_round(fragile, 3)
    for pid in fragile.job_of("party-1"):
        os.kill(pid, signal.SIGKILL)
    assert run.wait(180) == SUBSET
    failed = failed_in(tmp_path / "out")
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
    check_equal(tmp_path / "again", study_at(tmp_path / "data", methods=slow["methods"]))


# ---- whole machines


@pytest.mark.parametrize("back", [False, True], ids=["for good", "for a while"])
def test_a_party_whose_machine_dies_costs_no_result(back: bool, fragile: Federation, tmp_path: Path) -> None:
    study: dict[str, Any] = {"federation": {"seconds": 8.0}, "methods": fedavg(ROUNDS)}
    run = fragile.watch(written(tmp_path / "s.toml", **study), tmp_path / "out")
    until_round(fragile, 3)
    fragile.kill("party-1")
    if back:
        time.sleep(3)
        fragile.join("party-1")
    assert run.wait(180) == SUBSET
    assert {row["party"] for row in failed_in(tmp_path / "out")} == {"party-1"}
    assert max(row["round"] for row in rows_of(tmp_path / "out")) == ROUNDS


def test_a_party_whose_own_process_dies_but_not_its_job_costs_no_result(fragile: Federation, tmp_path: Path) -> None:
    study: dict[str, Any] = {"federation": {"seconds": 8.0}, "methods": fedavg(ROUNDS)}
    run = fragile.watch(written(tmp_path / "s.toml", **study), tmp_path / "out")
    until_round(fragile, 3)
    fragile.processes["party-1"].kill()
    assert run.wait(240) == SUBSET
    assert {row["party"] for row in failed_in(tmp_path / "out")} == {"party-1"}
    assert max(row["round"] for row in rows_of(tmp_path / "out")) == ROUNDS


def test_one_party_after_another_dies_and_each_is_named_with_its_own_rounds(tmp_path: Path) -> None:
    at_folders(BANKS, tmp_path / "data", parties=4)
    federation = Federation(tmp_path, written(tmp_path / "any.toml"), parties_in(tmp_path / "data"))
    try:
        federation.start()
        told = {"federation": {"seconds": 6.0}, "methods": fedavg(ROUNDS)}
        run = federation.watch(written(tmp_path / "s.toml", **told), tmp_path / "out")
        until_round(federation, 3)
        federation.kill("party-1")
        federation.join("party-1")
        until_round(federation, 20)
        federation.kill("party-2")
        assert run.wait(240) == SUBSET
    finally:
        federation.close()
    failed = failed_in(tmp_path / "out")
    first = {row["party"]: row["round"] for row in reversed(failed)}
    assert first.keys() == {"party-1", "party-2"}
    assert first["party-1"] < 20 <= first["party-2"]
    assert max(row["round"] for row in rows_of(tmp_path / "out")) == ROUNDS


def test_a_party_joins_late_and_two_studies_that_wait_for_it_run_at_once(still: Federation, tmp_path: Path) -> None:
    still.serve()
    late = "party-2"
    for party in still.data.keys() - {late}:
        still.join(party)
    studies = {
        f"{rounds}": written(tmp_path / f"{rounds}.toml", **PLAIN, methods=fedavg(rounds)) for rounds in (20, 21)
    }
    runs = [still.watch(study, tmp_path / rounds) for rounds, study in studies.items()]
    until("both wait", lambda: all(late in still.log(f"run-{at}") for at in (3, 4)), 90)
    still.join(late)
    assert [run.wait(240) for run in runs] == [0, 0]
    for rounds in studies:
        check_equal(tmp_path / rounds, study_at(tmp_path / "data", methods=fedavg(int(rounds))))


def test_a_refusal_where_all_parties_are_needed_stops_the_study_with_its_reason(
    fragile: Federation, tmp_path: Path
) -> None:
    with (fragile.data["party-1"] / "party.toml").open("a") as file:
        file.write("\n[limits]\nrounds = 3\n")
    done = fragile.run(written(tmp_path / "s.toml", methods=fedavg(5)), tmp_path / "out")
    assert done.returncode == 2
    assert "party-1 (refused: " in done.stderr
    assert "fedavg: stopped" in isthmus("federation", "status", fragile.kits / "admin").stdout


STUCK = """
    def lie(remote):
        import pathlib, time
        handle = remote.PartySide.handle

        def stuck(self, message):
            if {when!r} in (message.get("do"), message.get("action")):
                (pathlib.Path(__file__).parent / "asked").touch()
                time.sleep(600)
            return handle(self, message)

        remote.PartySide.handle = stuck
"""
"""The party gets this message and does not get further."""


def test_a_party_whose_machine_dies_in_the_set_up_is_named(still: Federation, tmp_path: Path) -> None:
    start_with_liar(still, STUCK.format(when="introduce"), tmp_path / "lies")
    study = written(tmp_path / "s.toml", federation={"seconds": 8.0}, methods=fedavg(5))
    run = still.watch(study, tmp_path / "out")
    until("the set-up", (tmp_path / "lies" / "asked").exists, 120)
    still.kill("party-1")
    assert run.wait(180) == 2
    assert "party-1" in still.log(f"run-{len(still.data) + 1}")
    still.join("party-1")
    done = still.run(study, tmp_path / "out", "--resume", seconds=240)
    assert done.returncode == 0, done.stderr
    assert max(row["round"] for row in rows_of(tmp_path / "out")) == 5


def test_a_party_whose_machine_dies_at_the_end_is_named_and_costs_no_result(still: Federation, tmp_path: Path) -> None:
    start_with_liar(still, STUCK.format(when="end"), tmp_path / "lies")
    study = written(tmp_path / "s.toml", federation={"seconds": 8.0}, methods=fedavg(5))
    run = still.watch(study, tmp_path / "out")
    until("the end", (tmp_path / "lies" / "asked").exists, 120)
    still.kill("party-1")
    assert run.wait(120) == 0
    assert max(row["round"] for row in rows_of(tmp_path / "out")) == 5
    said = isthmus("federation", "status", still.kits / "admin").stdout
    assert "party 'party-1' was not there at the end: " in said


def test_a_study_whose_majority_vanished_can_be_resumed(fragile: Federation, tmp_path: Path) -> None:
    study = written(tmp_path / "s.toml", **PLAIN, federation={"seconds": 5.0}, methods=fedavg(200))
    run = fragile.watch(study, tmp_path / "out")
    until_round(fragile, 20)
    fragile.kill("party-0")
    fragile.kill("party-2")
    assert run.wait(120) == 2
    (stopped,) = json.loads((tmp_path / "out" / "results.json").read_text())["runs"]
    assert 20 <= stopped["rounds"] < 200
    assert "only 1 of 3 parties answered" in stopped["stopped"]
    assert "stopped: fedavg, seed 0: round" in isthmus("federation", "status", fragile.kits / "admin").stdout
    fragile.join("party-0")
    fragile.join("party-2")
    done = fragile.run(study, tmp_path / "out", "--resume", seconds=240)
    assert done.returncode == 0, done.stderr
    check_equal(tmp_path / "out", study_at(tmp_path / "data", methods=fedavg(200)))


def test_a_server_killed_when_a_study_had_ended_still_has_its_results(fragile: Federation, tmp_path: Path) -> None:
    study = written(tmp_path / "s.toml", **PLAIN, methods=fedavg(40))
    run = fragile.watch(study, tmp_path / "out")
    until_round(fragile, 1)
    os.kill(run.pid, signal.SIGSTOP)  # nobody fetches them
    state = fragile.kits / "server" / "state"
    until("the end", lambda: any(state.glob("*/outcome.isthmus")), 120)
    fragile.kill("server")
    os.kill(run.pid, signal.SIGCONT)
    assert run.wait(120) == 2
    fragile.serve()
    done = fragile.run(study, tmp_path / "out", "--resume")
    assert done.returncode == 0, done.stderr
    assert len(list(state.iterdir())) == 1, "the study was run again"
    check_equal(tmp_path / "out", study_at(tmp_path / "data", methods=fedavg(40)))
    assert [file.name for file in state.glob("*/*")] == ["record.json"]


# ---- kits in two places, and new ones


def test_a_copy_of_a_kit_is_refused_and_the_owner_notices_nothing(fragile: Federation, tmp_path: Path) -> None:
    shutil.copytree(fragile.kits / "party-1", fragile.kits / "copy")
    page = tmp_path / "live.html"
    run = fragile.watch(written(tmp_path / "s.toml", methods=fedavg(300)), tmp_path / "out", "--page", str(page))
    until_round(fragile, 3)
    fragile.data["copy"] = fragile.data["party-1"]
    fragile.join("copy")
    running = isthmus("federation", "status", fragile.kits / "admin").stdout
    assert "fedavg: running, about" in running
    standing = {words[0]: words for words in map(str.split, running.splitlines()) if "round" in words[1:2]}
    assert standing.keys() == {"party-0", "party-1", "party-2"}
    assert run.wait(400) == 0
    assert "1 of 1 runs have finished." in page.read_text()
    assert fragile.processes.pop("copy").wait(180) == 2
    assert "another process is connected with the kit of 'party-1'" in fragile.log("copy")
    said = isthmus("federation", "status", fragile.kits / "admin").stdout
    assert "party-1: connected" in said
    assert "refused 'party-1' from" in said
    assert not failed_in(tmp_path / "out")


def test_a_revoked_kit_has_to_leave_and_a_renewed_one_is_in_masked_sums(fragile: Federation, tmp_path: Path) -> None:
    admin, kit = fragile.kits / "admin", fragile.kits / "party-1"
    assert isthmus("federation", "revoke", admin, "party-1").returncode == 0
    assert fragile.processes.pop("party-1").wait(90) == 2
    assert "the kit of 'party-1' was revoked on" in fragile.log("party-1")
    renewed = isthmus("federation", "renew", fragile.kits / "authority", "party-1", "--out", tmp_path / "new")
    assert renewed.returncode == 0, renewed.stderr
    shutil.move(kit, tmp_path / "old")
    shutil.move(tmp_path / "new", kit)
    shutil.copy(kit / "roster.json", admin)
    assert "party-1: not connected" in isthmus("federation", "status", admin).stdout
    fragile.join("party-1")
    done = fragile.run(written(tmp_path / "s.toml", protect={"total": "masks"}, methods=fedavg(5)), tmp_path / "out")
    assert done.returncode == 0, done.stderr
    rosters = [Kit.read(fragile.kits / name, "party").roster() for name in ("party-0", "party-1", "party-2")]
    assert [roster.number for roster in rosters] == [2, 2, 2]
    check_equal(tmp_path / "out", study_at(tmp_path / "data", methods=fedavg(5)), "masks")


def test_a_party_killed_in_the_middle_of_masked_sums_is_counted_out(fragile: Federation, tmp_path: Path) -> None:
    told = {"federation": {"seconds": 15.0}, "protect": {"total": "masks"}, "methods": fedavg(60)}
    run = fragile.watch(written(tmp_path / "s.toml", **told), tmp_path / "out")
    until_round(fragile, 3)
    for pid in fragile.job_of("party-1"):
        os.kill(pid, signal.SIGKILL)
    assert run.wait(240) == SUBSET
    assert {row["party"] for row in failed_in(tmp_path / "out")} == {"party-1"}
    assert max(row["round"] for row in rows_of(tmp_path / "out")) == 60


def test_a_slow_party_is_out_until_it_is_there_again(fragile: Federation, tmp_path: Path) -> None:
    told = {"federation": {"seconds": 6.0}, "methods": fedavg(ENDLESS)}
    run = fragile.watch(written(tmp_path / "s.toml", **told), tmp_path / "out")
    until_round(fragile, 3)
    (job,) = fragile.job_of("party-1")
    os.kill(job, signal.SIGSTOP)
    time.sleep(9)
    os.kill(job, signal.SIGCONT)
    stop_when_back(fragile, "party-1")
    assert run.wait(60) == 2
    failed = failed_in(tmp_path / "out")
    assert {row["party"] for row in failed} == {"party-1"}
    assert "no answer within 6 s" in failed[0]["note"]


# ---- answers that must not be used


WITH_REMOTE = """
    import importlib.abc, importlib.machinery, sys

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name != "isthmus.deploy.party_side":
                return None
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            execute = spec.loader.exec_module

            def then(module):
                execute(module)
                lie(module)

            spec.loader.exec_module = then
            return spec

    sys.meta_path.insert(0, Finder())
"""
"""Calls `lie` with the module that answers for a party, in every process that imports it."""

LIES = """
    def lie(remote):
        import torch
        from safetensors.torch import load, save
        called = remote.PartySide._answer
        state = {"calls": 0}

        def changed(tensors, change):
            return {name: change(each) if each.is_floating_point() else each for name, each in tensors.items()}

        LIES = {
            2: lambda t: save(changed(t, lambda each: each * float("nan"))),
            4: lambda t: save(changed(t, lambda each: each.reshape(-1)[:1].clone())),
            6: lambda t: save({n: e * 10_000 if "weights/" in n else e for n, e in t.items()}),
            8: lambda t: b"garbage",
        }

        def lying(self, present, message):
            reply = called(self, present, message)
            if message["action"] == "train" and "answers" in reply:
                state["calls"] += 1
                if state["calls"] in LIES:
                    reply["answers"] = [LIES[state["calls"]](load(each)) for each in reply["answers"]]
            return reply

        remote.PartySide._answer = lying
"""

CLOSED_LIES = """
    def lie(remote):
        closed = remote.PartySide._close_part
        state = {"calls": 0}

        def lying(self, action, reply, request, message, binding, states):
            state["calls"] += action == "train"
            if action != "train" or state["calls"] < 3:
                return closed(self, action, reply, request, message, binding, states)
            for name in reply.columns:
                if name.startswith("weights/"):
                    reply.columns[name] = reply.columns[name] * 1e6
            bounds = (binding.least, int(binding.contributors), states)
            return self.guard.close_answer(reply, message, self.limit, *bounds)

        remote.PartySide._close_part = lying
"""
"""From the third round on what is closed into a sum is a million times too large, and nobody at the party looks."""


def start_with_liar(federation: Federation, lies: str, folder: Path) -> None:
    """The processes of a federation; the installed code of party-1 is not ours."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(textwrap.dedent(lies) + textwrap.dedent(WITH_REMOTE))
    federation.serve()
    found_first = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    for party in federation.data:
        federation.join(party, **({"PYTHONPATH": found_first} if party == "party-1" else {}))


def test_answers_that_must_not_be_used_are_dropped_and_named(still: Federation, tmp_path: Path) -> None:
    """Not a number, other shapes, 10,000 times as large, garbage."""
    start_with_liar(still, LIES, tmp_path / "lies")
    done = still.run(written(tmp_path / "s.toml", methods=fedavg(10), **PLAIN), tmp_path / "out")
    assert done.returncode == SUBSET, done.stderr
    failed = failed_in(tmp_path / "out")
    assert {row["party"] for row in failed} == {"party-1"}
    notes = {row["round"]: row["note"] for row in failed if row["action"] == "train"}
    assert "NaN" in notes[2]
    assert "expected is" in notes[4] or "differs from the others" in notes[4]
    assert "more than 100 times as large" in notes[6]
    assert "no payload" in notes[8]
    assert sorted(notes) == [2, 4, 6, 8]


def test_a_wrong_masked_sum_is_drawn_again_without_half_of_the_parties(tmp_path: Path) -> None:
    """Nobody can be named under masks: of four parties the two of the half that is wrong are left out."""
    at_folders(BANKS, tmp_path / "data", parties=4)
    federation = Federation(tmp_path, written(tmp_path / "any.toml"), parties_in(tmp_path / "data"))
    try:
        start_with_liar(federation, CLOSED_LIES, tmp_path / "lies")
        told = {"protect": {"total": "masks"}, "methods": fedavg(10)}
        done = federation.run(written(tmp_path / "s.toml", **told), tmp_path / "out", seconds=300)
    finally:
        federation.close()
    assert done.returncode == SUBSET, done.stderr
    failed = [row for row in failed_in(tmp_path / "out") if row["action"] == "train"]
    out = {row["party"] for row in failed}
    assert len(out) == 2
    assert "party-1" in out
    assert {row["round"] for row in failed} == set(range(3, 11))
    assert all("left out" in row["note"] and "of one of" in row["note"] for row in failed)


def test_among_three_parties_a_wrong_masked_sum_ends_the_run(still: Federation, tmp_path: Path) -> None:
    start_with_liar(still, CLOSED_LIES, tmp_path / "lies")
    told = {"protect": {"total": "masks"}, "methods": fedavg(10)}
    done = still.run(written(tmp_path / "s.toml", **told), tmp_path / "out", seconds=300)
    assert done.returncode == 2
    assert "the faulty part of 3 cannot be found without showing others" in done.stderr


# ---- the network


class Wire(Thread):
    """What is between a party and the server; while it is cut nothing goes through, and nobody is told."""

    def __init__(self, to: int) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port, self.to = self.listener.getsockname()[1], to
        self.whole = Event()
        self.whole.set()

    def run(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self.to))
                except OSError:
                    near.close()
                    continue
                for one, other in ((near, far), (far, near)):
                    Thread(target=self.carry, args=(one, other), daemon=True).start()

    def carry(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError), one, other:
            while data := one.recv(65536):
                self.whole.wait()
                other.sendall(data)


def test_the_network_is_cut_for_twenty_seconds_and_comes_back(still: Federation, tmp_path: Path) -> None:
    wire = Wire(still.port)
    wire.start()
    redirect(still.kits / "party-1", still.port, wire.port)
    still.start()
    told = {"federation": {"seconds": 8.0}, "methods": fedavg(ENDLESS)}
    run = still.watch(written(tmp_path / "s.toml", **told), tmp_path / "out")
    until_round(still, 3)
    wire.whole.clear()
    time.sleep(20)
    wire.whole.set()
    stop_when_back(still, "party-1")
    assert run.wait(60) == 2
    (stopped,) = json.loads((tmp_path / "out" / "results.json").read_text())["runs"]
    assert stopped["stopped"] == "fedavg, seed 0: stopped with isthmus federation stop"
    failed = failed_in(tmp_path / "out")
    assert {row["party"] for row in failed} == {"party-1"}
    assert "no answer within 8 s" in failed[0]["note"]


# ---- the disk


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[None]:
    """A disk of its own at this place."""
    place.mkdir(exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)]
    if subprocess.run(words, capture_output=True).returncode:
        pytest.skip("a disk of its own cannot be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_at_the_server_is_said_and_the_run_goes_on_when_there_is_room(
    fragile: Federation, tmp_path: Path
) -> None:
    place = fragile.kits / "server" / "state"
    study = written(tmp_path / "s.toml", **PLAIN, methods=fedavg(40))
    with small_disk(place, "4k"):
        done = fragile.run(study, tmp_path / "out")
        assert done.returncode == 2
        assert "No space left on device" in done.stderr
        assert "Traceback" not in done.stderr
        subprocess.run(["mount", "-o", "remount,size=50m", str(place)], check=True)
        done = fragile.run(study, tmp_path / "out", "--resume")
        assert done.returncode == 0, done.stderr
    check_equal(tmp_path / "out", study_at(tmp_path / "data", methods=fedavg(40)))


def test_a_full_disk_at_a_party_is_said_and_the_run_goes_on(still: Federation, tmp_path: Path) -> None:
    """What it cannot write into its ledger it does not answer."""
    state = still.kits / "party-1" / "state"
    with small_disk(state, "1m"):
        still.start()
        run = still.watch(written(tmp_path / "s.toml", methods=fedavg(ROUNDS)), tmp_path / "out")
        until_round(still, 3)
        with suppress(OSError):
            (state / "full").write_bytes(bytes(2 << 20))
        assert run.wait(240) == SUBSET
    assert "No space left on device; make room" in still.log("party-1")
    assert {row["party"] for row in failed_in(tmp_path / "out")} == {"party-1"}
    assert max(row["round"] for row in rows_of(tmp_path / "out")) == ROUNDS


# ---- hosts


class Apart(Federation):
    """A federation whose processes are in network namespaces of their own, with nothing but wires between."""

    namespaces: Mapping[str, str]

    def place_of(self, name: str) -> tuple[str, ...]:
        own = name if name in self.namespaces else "admin"
        return ("ip", "netns", "exec", self.namespaces[own])


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def hosts(server: str, others: list[str]) -> Iterator[dict[str, str]]:
    """A network namespace for the server, called `fed.test`, and for each of the others one with a wire to it."""
    mark = f"isthmus{os.getpid()}"
    spaces = {name: f"{mark}-{at}" for at, name in enumerate([server, *others])}
    hub, made = spaces[server], list[str]()
    try:
        for at, space in enumerate(spaces.values()):
            if subprocess.run(["ip", "netns", "add", space], capture_output=True).returncode:
                pytest.skip("network namespaces are not allowed here")
            made.append(space)
            ip("-n", space, "link", "set", "lo", "up")
            own = Path("/etc/netns") / space
            own.mkdir(parents=True)
            (own / "hosts").write_text("127.0.0.1 localhost\n10.77.0.1 fed.test\n")
            if space == hub:
                ip("-n", hub, "addr", "add", "10.77.0.1/32", "dev", "lo")
                continue
            ip("-n", hub, "link", "add", f"to{at}", "type", "veth", "peer", "name", "wire", "netns", space)
            for end, device, address in ((hub, f"to{at}", 1), (space, "wire", 2)):
                ip("-n", end, "addr", "add", f"10.77.{at}.{address}/30", "dev", device)
                ip("-n", end, "link", "set", device, "up")
            ip("-n", space, "route", "add", "10.77.0.1", "via", f"10.77.{at}.1")
        yield spaces
    finally:
        for space in made:
            subprocess.run(["ip", "netns", "del", space], capture_output=True)
            with suppress(OSError):
                (Path("/etc/netns") / space / "hosts").unlink()
                (Path("/etc/netns") / space).rmdir()


def test_server_and_parties_on_hosts_of_their_own(tmp_path: Path) -> None:
    study = at_folders(BANKS.model_copy(update={"methods": fedavg(5)}), tmp_path / "data")
    parties = parties_in(tmp_path / "data")
    with hosts("server", [*parties, "admin"]) as spaces:
        here = Apart(tmp_path, written(tmp_path / "any.toml"), parties, host="fed.test", port=free_port())
        here.namespaces = spaces
        try:
            here.start()
            toml = written(tmp_path / "s.toml", protect={"total": "masks"}, methods=fedavg(5))
            run = here.watch(toml, tmp_path / "out")
            assert run.wait(240) == 0, here.log("server")
        finally:
            here.close()
    check_equal(tmp_path / "out", study, "masks")
