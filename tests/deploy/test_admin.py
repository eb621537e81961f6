"""The administrator's session, without a server: what follows from what the server says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from isthmus import store
from isthmus.deploy import admin as module
from isthmus.deploy.admin import LOADED, Admin, write_job
from isthmus.deploy.kits import AUTHORITY, ROSTER, renew_kit
from isthmus.deploy.records import OUTCOME
from isthmus.errors import IsthmusError

NAME = "0" * 32


class Session:
    """A session with a server that says what a test has written down."""

    def __init__(self, **said: Any) -> None:
        self.said = said
        self.commands: list[tuple[str, Any]] = []

    def _do_command(self, command: str, enforce_meta: bool, props: Any) -> dict[str, Any]:
        self.commands.append((command, props))
        said = self.said[command.split()[0]]
        return said if "meta" in said else {"data": [{"type": "string"}, {"type": "dict", "data": said}]}


def admin_of(kits: Path, **said: Any) -> Admin:
    admin = Admin(kits / "admin")
    admin.session = Session(**said)  # type: ignore[assignment]
    return admin


def seen(state: str = "running", jobs: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    record = {"name": NAME, "job": "j1", "state": state, "why": "", "lines": [{"at": 3}], **more}
    return {"parties": {"north": True, "south": False}, "jobs": list(jobs), "studies": [record], "roster": 1}


@pytest.mark.parametrize(
    ("said", "job", "state"),
    [
        (seen(jobs=("j1",)), "j1", "running"),
        (seen("finished", jobs=("j1",)), "j1", "done"),  # FLARE still waits for a party's end
        (seen("finished"), "j1", "done"),
        (seen("stopped", why="too few"), "j1", "done"),
        (seen("finished"), "j2", "lost"),  # the record is of the job before
        (seen(), "j1", "lost"),  # its process was killed
        (seen(jobs=("j2",)), "j2", "running"),  # it waits, or starts
    ],
)
def test_the_servers_record_says_how_a_study_stands(
    said: dict[str, Any], job: str, state: str, kits_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passing = iter(range(0, 10_000, 20))
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(passing)))
    admin = admin_of(kits_folder, isthmus_look=said)
    admin.follow(NAME, job)  # a job may be listed nowhere for a moment
    standing = admin.follow(NAME, job)
    assert standing.state == state
    assert standing.lines == ([{"at": 3}] if job == "j1" else [])
    assert standing.why == {"lost": "the job or its server was stopped"}.get(state, said["studies"][0]["why"])


def test_a_job_that_is_listed_nowhere_is_lost_after_a_while_only(kits_folder: Path) -> None:
    assert admin_of(kits_folder, isthmus_look=seen()).follow(NAME, "j1").state == "running"


def test_who_is_missing_and_how_kits_are_revoked(kits_folder: Path) -> None:
    admin = admin_of(kits_folder, isthmus_look=seen(), isthmus_revoke={"done": True})
    assert admin.missing() == ["south"]
    admin.revoke("admin")
    assert admin.session.commands[-1][0] == "isthmus_revoke admin@isthmus.local"  # type: ignore[union-attr]
    with pytest.raises(IsthmusError, match="'west' is not in this federation: it has north, south"):
        admin_of(kits_folder, isthmus_revoke={"done": False}).revoke("west")


def test_a_newer_roster_in_the_kit_is_given_to_the_server(kits_folder: Path, tmp_path: Path) -> None:
    admin = admin_of(kits_folder, isthmus_look=seen(), isthmus_roster={"done": True, "why": ""})
    admin._announce_roster()
    assert [command for command, _ in admin.session.commands] == ["isthmus_look"]  # type: ignore[union-attr]
    new = renew_kit(kits_folder / AUTHORITY, "north", tmp_path / "new")
    (kits_folder / "admin" / ROSTER).write_text(new.roster_text())
    admin._announce_roster()
    assert admin.session.commands[-1] == ("isthmus_roster", {"text": new.roster_text()})  # type: ignore[union-attr]


def test_an_outcome_is_read_from_the_file_that_was_downloaded(kits_folder: Path, tmp_path: Path) -> None:
    store.save(tmp_path / "down" / OUTCOME, {"wrong": ""})
    said = {"meta": {"location": str(tmp_path / "down")}}
    assert admin_of(kits_folder, isthmus_fetch=said).outcome(NAME) == {"wrong": ""}
    assert not (tmp_path / "down").exists()
    with pytest.raises(IsthmusError, match="the server has no results of study"):
        admin_of(kits_folder, isthmus_fetch={"meta": {"status": "error"}}).outcome(NAME)


def test_a_job_is_the_text_of_a_study_and_nothing_else(tmp_path: Path) -> None:
    write_job(tmp_path / "job", {"methods": [{"name": "fedavg"}]}, NAME, ["north"], "{}")
    assert all(file.suffix == ".json" for file in (tmp_path / "job").rglob("*") if file.is_file())
    server = json.loads((tmp_path / "job/app/config/config_fed_server.json").read_text())
    assert [each["path"] for each in (*server["workflows"], *server["components"])] == [LOADED[0], LOADED[2]]


def test_an_administrators_command_loads_no_torch() -> None:
    code = "import sys, isthmus.deploy.admin; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120).stdout == "False\n"
