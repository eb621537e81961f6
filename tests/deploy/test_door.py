"""Who may connect to the server: one process for each kit, and no kit that was replaced or revoked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from isthmus.deploy.door import REVOKED, Door
from isthmus.deploy.kits import AUTHORITY, Kit, make_kits, renew_kit


class Refused(Exception):  # noqa: N818
    pass


class Call:
    """A connection, as gRPC has it."""

    def __init__(self) -> None:
        self.ended = False

    def abort(self, code: Any, why: str) -> None:
        raise Refused(code.name, why)

    def cancel(self) -> None:
        self.ended = True


@pytest.fixture
def door(kits_folder: Path) -> Door:
    return Door(Kit.read(kits_folder / "server", "server"))


def certificate(folder: Path) -> bytes:
    return (folder / "startup" / "client.crt").read_bytes()


def test_the_connections_of_one_process_get_in_and_another_process_does_not(kits_folder: Path, door: Door) -> None:
    north = certificate(kits_folder / "north")
    with door.visit(north, "p1", "10.0.0.1", Call()):
        with (
            door.visit(north, "p1", "10.0.0.1", Call()),
            door.visit(certificate(kits_folder / "south"), "p2", "x", Call()),
        ):
            assert set(door.connected()) == {"north", "south"}
        with pytest.raises(Refused, match=r"ALREADY_EXISTS.*another process is connected with the kit of 'north'"):
            door.visit(north, "p9", "10.0.0.9", Call()).__enter__()
        assert set(door.connected()) == {"north"}
    assert door.refused["north"]["place"] == "10.0.0.9"
    with door.visit(north, "p9", "10.0.0.9", Call()):  # once the first one has gone
        assert set(door.connected()) == {"north"}
    assert door.connected() == {}


def test_an_administrator_may_have_several_connections(kits_folder: Path, door: Door) -> None:
    with (
        door.visit(certificate(kits_folder / "admin"), "", "a", Call()),
        door.visit(certificate(kits_folder / "admin"), "x", "b", Call()),
    ):
        pass


def test_a_revoked_kit_has_to_leave_and_stays_out_when_the_server_starts_again(kits_folder: Path, door: Door) -> None:
    north, call = certificate(kits_folder / "north"), Call()
    with door.visit(north, "p1", "10.0.0.1", call):
        assert not door.revoke("west")
        assert door.revoke("north")
        assert call.ended
    for each in (door, Door(Kit.read(kits_folder / "server", "server"))):
        with pytest.raises(Refused, match=r"PERMISSION_DENIED.*the kit of 'north' was revoked on 20"):
            each.visit(north, "p1", "10.0.0.1", Call()).__enter__()
    assert list(json.loads((kits_folder / "server" / REVOKED).read_text())) == [door.roster.certificates["north"]]


def test_a_renewed_kit_gets_in_when_the_roster_is_there_and_the_old_one_has_to_leave(
    kits_folder: Path, door: Door, tmp_path: Path
) -> None:
    door.revoke("north")
    new = renew_kit(kits_folder / AUTHORITY, "north", tmp_path / "new")
    with pytest.raises(Refused, match=r"have the administrator copy its roster\.json"):
        door.visit(certificate(new.folder), "p2", "10.0.0.2", Call()).__enter__()
    assert door.adopt(new.roster_text())
    assert not door.adopt(new.roster_text())
    with door.visit(certificate(new.folder), "p2", "10.0.0.2", Call()):
        pass
    south = renew_kit(kits_folder / AUTHORITY, "south", tmp_path / "south")
    call = Call()
    with door.visit(certificate(kits_folder / "south"), "p3", "10.0.0.3", call):
        door.adopt(south.roster_text())
        assert call.ended
    assert Kit.read(kits_folder / "server", "server").roster().number == 3
    with pytest.raises(Refused, match="not the kit of 'south' that the server knows"):
        door.visit(certificate(kits_folder / "south"), "p3", "10.0.0.3", Call()).__enter__()


def test_who_is_not_on_the_roster_is_nobody(kits_folder: Path, door: Door, tmp_path: Path) -> None:
    make_kits("fed", ["west"], "localhost", 8002, tmp_path / "others")
    with pytest.raises(Refused, match="'west' is not in this federation"):
        door.visit(certificate(tmp_path / "others" / "west"), "p", "x", Call()).__enter__()
