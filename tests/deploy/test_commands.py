"""What the server tells and hands over to an administrator."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare")

from tests.deploy.test_door import Call, certificate

from isthmus.deploy.commands import CLEAR, FETCH, LOOK, REVOKE, ROSTER, Commands
from isthmus.deploy.door import Door
from isthmus.deploy.kits import AUTHORITY, Kit, renew_kit
from isthmus.deploy.records import OUTCOME, Records

NAME = "0" * 32


class Connection:
    """An administrator's connection to FLARE's server, with an engine that runs one job and has one waiting."""

    def __init__(self, folder: Path, known: dict[str, float], props: Any = None) -> None:
        clients = {name: SimpleNamespace(last_connect_time=at) for name, at in known.items()}
        jobs = SimpleNamespace(get_jobs_by_status=lambda states, context: [SimpleNamespace(job_id="j2")])
        server = SimpleNamespace(client_manager=SimpleNamespace(name_to_clients=clients))
        self.app_ctx = SimpleNamespace(
            run_processes={"j1": {}}, job_def_manager=jobs, server=server, new_context=self.context
        )
        self.folder, self.props = folder, props
        self.said: Any = None

    @contextmanager
    def context(self) -> Any:
        yield None

    def get_prop(self, name: str, default: Any = None) -> Any:
        return self.props if "cmd" in name.lower() or "props" in name.lower() else str(self.folder)

    def set_prop(self, name: str, value: Any) -> None:
        pass

    def append_dict(self, said: Any, meta: Any) -> None:
        self.said = said

    def append_error(self, said: str, meta: Any) -> None:
        self.said = said


@pytest.fixture
def commands(kits_folder: Path) -> Commands:
    return Commands(Door(Kit.read(kits_folder / "server", "server")), Records(kits_folder / "server" / "state"))


def test_only_the_administrator_may_use_them(commands: Commands) -> None:
    specs = {spec.name: spec for spec in commands.get_spec().cmd_specs}
    assert specs.keys() == {LOOK, FETCH, CLEAR, REVOKE, ROSTER}
    assert all(spec.authz_func == commands.must_be_project_admin for spec in specs.values())


def test_a_party_is_there_if_it_logged_in_since_it_connected(
    commands: Commands, kits_folder: Path, tmp_path: Path
) -> None:
    commands.records.start(NAME, "j1", ["fedavg"])
    north = certificate(kits_folder / "north")
    with commands.door.visit(north, "p", "x", Call()):
        for logged_in, there in ((1e12, True), (0.0, False)):  # FLARE still lists who was there before
            conn = Connection(tmp_path, {"north": logged_in, "south": 1e12})
            commands.look(conn, [LOOK])
            assert conn.said["parties"] == {"north": there, "south": False}
    assert conn.said["jobs"] == ["j1", "j2"]
    assert [study["name"] for study in conn.said["studies"]] == [NAME]


def test_an_outcome_is_handed_over_and_kept_until_it_has_arrived(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed = list[Path]()
    monkeypatch.setattr(
        commands, "download_folder", lambda conn, tx_id, folder_name: handed.append(tmp_path / tx_id / folder_name)
    )
    conn = Connection(tmp_path, {})
    commands.fetch(conn, [FETCH, NAME])
    commands.fetch(conn, [FETCH, "../.."])
    assert "32 hexadecimal digits" in conn.said
    record = commands.records.start(NAME, "j1", ["fedavg"])
    commands.records.end(record, {"wrong": ""})
    commands.fetch(conn, [FETCH, NAME])
    (place,) = handed
    assert (place / OUTCOME).exists()
    assert (commands.records.place(NAME) / OUTCOME).exists()
    commands.clear(conn, [CLEAR, NAME])
    assert not (commands.records.place(NAME) / OUTCOME).exists()


def test_kits_are_revoked_and_rosters_taken(commands: Commands, kits_folder: Path, tmp_path: Path) -> None:
    conn = Connection(tmp_path, {})
    commands.revoke(conn, [REVOKE, "north"])
    assert conn.said == {"done": True}
    new = renew_kit(kits_folder / AUTHORITY, "north", tmp_path / "new")
    for text, done, why in (("{}", False, "not signed"), (new.roster_text(), True, "")):
        conn = Connection(tmp_path, {}, {"text": text})
        commands.roster(conn, [ROSTER])
        assert conn.said["done"] == done
        assert why in conn.said["why"]
