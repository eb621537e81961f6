"""The administrator's session, without a server: what follows from what the server says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare")

from nvflare.fuel.f3.cellnet.defs import ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.hci.client.file_transfer import FileTransferModule
from nvflare.fuel.hci.file_transfer_defs import PULL_FOLDER_FQN

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
    record = {"name": NAME, "job": "j1", "state": state, "why": "", "lines": [{"at": 3}], "parties": {}, **more}
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


NORTH = {"round": 3, "seconds": 1.5, "sent": 80, "received": 72, "seen": "now", "asked": "", "absent": "gone\x1b[2J"}


def test_what_a_server_says_is_fit_to_print(kits_folder: Path) -> None:
    admin = admin_of(kits_folder, isthmus_look=seen(parties={"north\n": NORTH}, why="a\x1b[31mb"))
    (study,) = admin.look()["studies"]
    assert study["why"] == "a [31mb"
    standing = admin.follow(NAME, "j1").parties["north"]
    assert (standing.round, standing.sent, standing.absent) == (3, 80, "gone [2J")


@pytest.mark.parametrize("parties", [None, [], {"north": {}}, {"north": {**NORTH, "sent": "much"}}])
def test_a_record_of_another_version_is_one_line(kits_folder: Path, parties: Any) -> None:
    with pytest.raises(IsthmusError, match="cannot be read: run the same version of isthmus everywhere"):
        admin_of(kits_folder, isthmus_look=seen(parties=parties)).follow(NAME, "j1")


class Server:
    """Sends a file as FLARE's server does, in parts."""

    def __init__(self, content: bytes, **payload: Any) -> None:
        self.content, self.payload, self.asked = content, payload, list[dict[str, Any]]()

    def register_request_cb(self, **_: Any) -> None:
        """FLARE would let this session send files, too."""

    def send_request(self, channel: str, topic: str, target: str, request: Any, **_: Any) -> Any:
        self.asked.append(request.payload)
        at = (request.payload.get("state") or {}).get("received_bytes", 0)
        part = self.content[at : at + 100]
        said = {"status": "ok" if part else "eof", "data": part, "state": {"received_bytes": at + len(part)}}
        return make_reply(ReturnCode.OK, body=said | self.payload)


def fetching(kits: Path, server: Server, meta: dict[str, Any]) -> Admin:
    admin = admin_of(kits, isthmus_fetch={"meta": meta})
    api = SimpleNamespace(cell=server, file_download_progress_timeout=5.0, session_abort_signal=None)
    admin.session.api = api  # type: ignore[union-attr]
    return admin


def sent(*files: str) -> dict[str, Any]:
    return {"files": [[file, f"r-{file}"] for file in files], "source_fqcn": "server", "tx_id": "../../t"}


def test_an_outcome_is_downloaded_and_leaves_nothing(kits_folder: Path, tmp_path: Path) -> None:
    store.save(tmp_path / "saved", {"wrong": ""})
    server = Server((tmp_path / "saved").read_bytes())
    before = sorted(kits_folder.rglob("*"))
    assert fetching(kits_folder, server, sent("../../evil", OUTCOME)).outcome(NAME) == {"wrong": ""}
    assert {each["ref_id"] for each in server.asked} == {f"r-{OUTCOME}"}
    assert sorted(kits_folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("meta", "error"),
    [
        ({"status": "error"}, "the server has no results of study"),
        ({"location": "/"}, "the server has no results of study"),
        (sent("../../evil", f"x/{OUTCOME}", "/etc/evil.zip"), "the server has no results of study"),
        ({"files": [[OUTCOME, "r"]]}, "cannot be downloaded"),
        ({"files": 7}, "cannot be downloaded"),
        ({"files": [7]}, "cannot be downloaded"),
    ],
)
def test_a_server_chooses_no_file_of_the_administrator(kits_folder: Path, meta: dict[str, Any], error: str) -> None:
    server, before = Server(b""), sorted(kits_folder.rglob("*"))
    with pytest.raises(IsthmusError, match=error) as caught:
        fetching(kits_folder, server, meta).outcome(NAME)
    assert "\n" not in str(caught.value)
    assert not server.asked
    assert sorted(kits_folder.rglob("*")) == before


def test_flares_own_download_is_out_of_use(kits_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FLARE's client would do it at the server's wish, whatever command it was sent."""
    monkeypatch.setattr(FileTransferModule, "pull_folder", FileTransferModule.pull_folder)  # restored afterwards
    monkeypatch.setattr(module.socket, "create_connection", lambda *_, **__: SimpleNamespace(close=lambda: None))

    def connect(*_: Any, **__: Any) -> Session:
        handler = FileTransferModule(str(tmp_path), str(tmp_path)).cmd_handlers[PULL_FOLDER_FQN]
        assert handler([], None) == {"data": []}
        return Session(isthmus_look=seen())

    monkeypatch.setattr(module, "new_secure_session", connect)
    assert Admin(kits_folder / "admin").__enter__().missing() == ["south"]


def test_an_outcome_that_memory_cannot_hold_or_that_breaks_off_is_one_line(
    kits_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(kits_folder.rglob("*"))
    with pytest.raises(IsthmusError, match=r"cannot be downloaded .*error"):
        fetching(kits_folder, Server(b"x" * 999, status="error"), sent(OUTCOME)).outcome(NAME)
    monkeypatch.setattr(store, "free_memory", lambda: 500)
    server = Server(b"x" * 999)
    with pytest.raises(IsthmusError, match=r"cannot be downloaded .*more than the 0\.0 GiB of memory that are free"):
        fetching(kits_folder, server, sent(OUTCOME)).outcome(NAME)
    assert len(server.asked) == 6
    assert sorted(kits_folder.rglob("*")) == before


def test_a_job_is_the_text_of_a_study_and_nothing_else(tmp_path: Path) -> None:
    write_job(tmp_path / "job", {"methods": [{"name": "fedavg"}]}, NAME, ["north"], "{}")
    assert all(file.suffix == ".json" for file in (tmp_path / "job").rglob("*") if file.is_file())
    server = json.loads((tmp_path / "job/app/config/config_fed_server.json").read_text())
    assert [each["path"] for each in (*server["workflows"], *server["components"])] == [LOADED[0], LOADED[2]]


def test_an_administrators_command_loads_no_torch() -> None:
    code = "import sys, isthmus.deploy.admin; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120).stdout == "False\n"
