"""Kits, the roster that says whose keys are whose, and new kits in place of lost ones."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from isthmus.deploy import kits
from isthmus.deploy.kits import AUTHORITY, ROSTER, Kit, Roster, make_kits, renew_kit
from isthmus.errors import IsthmusError


@pytest.fixture
def made(tmp_path: Path) -> Path:
    make_kits("fed", ["north", "south"], "localhost", 8002, tmp_path / "kits")
    return tmp_path / "kits"


def test_every_kit_has_the_roster_and_only_its_own_keys(made: Path) -> None:
    roster = Kit.read(made / "north", "party").roster()
    assert (roster.number, sorted(roster.seals)) == (1, ["north", "south"])
    assert len(set(roster.certificates.values())) == 4
    for name, role in (("server", "server"), ("admin", "admin"), ("north", "party"), ("south", "party")):
        kit = Kit.read(made / name, role)  # type: ignore[arg-type]
        assert kit.roster() == roster
        assert (made / name / "seal.key").exists() == (role == "party")
        assert not list((made / name).rglob("root.key"))
        assert all(file.stat().st_mode & 0o077 == 0 for file in (made / name).rglob("*.key"))
    assert (made / AUTHORITY).stat().st_mode & 0o077 == 0
    assert (made / AUTHORITY / "root.key").stat().st_mode & 0o077 == 0


def test_a_renewed_kit_has_new_keys_that_the_others_learn_from_the_roster(made: Path, tmp_path: Path) -> None:
    old, south = Kit.read(made / "north", "party"), Kit.read(made / "south", "party")
    new = renew_kit(made / AUTHORITY, "north", tmp_path / "new")
    assert new.roster().number == 2
    assert new.ring().public_keys["north"] != old.ring().public_keys["north"]
    assert new.roster().certificates["north"] != old.roster().certificates["north"]
    assert new.roster().certificates["south"] == old.roster().certificates["south"]
    assert [south.adopt(new.roster_text()), south.adopt(new.roster_text())] == [True, False]
    assert south.ring().public_keys == new.ring().public_keys
    chain = [
        "openssl",
        "verify",
        "-CAfile",
        str(south.folder / "startup/rootCA.pem"),
        str(new.folder / "startup/client.crt"),
    ]
    assert subprocess.run(chain, capture_output=True).returncode == 0
    old.adopt(new.roster_text())
    with pytest.raises(IsthmusError, match="use its newest kit"):
        old.ring()
    again = renew_kit(made / AUTHORITY, "admin", tmp_path / "admin")
    assert (again.role, again.roster().number, again.roster().seals) == ("admin", 3, new.roster().seals)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda text: "{}", "not signed by the authority"),
        (lambda text: "[" * 100_000, "not signed by the authority"),
        (lambda text: text.replace("8", "9"), "not signed by the authority"),
    ],
)
def test_a_roster_that_the_authority_did_not_sign_is_refused(made: Path, change: Any, why: str) -> None:
    kit = Kit.read(made / "north", "party")
    before = kit.roster_text()
    with pytest.raises(IsthmusError, match=why):
        kit.adopt(change(before))
    assert kit.roster_text() == before


def test_a_roster_of_another_authority_or_federation_or_an_older_one_is_refused(made: Path, tmp_path: Path) -> None:
    kit = Kit.read(made / "north", "party")
    make_kits("fed", ["north", "south"], "localhost", 8002, tmp_path / "others")
    with pytest.raises(IsthmusError, match="not signed by the authority"):
        kit.adopt((tmp_path / "others" / "north" / ROSTER).read_text())
    key = kits.load_private_key((made / AUTHORITY / "root.key").read_text())
    with pytest.raises(IsthmusError, match="of another federation, 'other'"):
        kit.adopt(Roster("other", 7, {}, {}).sign(key))
    first = kit.roster_text()
    new = renew_kit(made / AUTHORITY, "south", tmp_path / "new")
    assert kit.adopt(new.roster_text())
    assert not kit.adopt(first)
    assert kit.roster().number == 2


def test_mistakes_with_the_authority_leave_nothing_behind(made: Path, tmp_path: Path) -> None:
    with pytest.raises(IsthmusError, match="no kit of 'west' can be renewed: this federation has admin, north, south"):
        renew_kit(made / AUTHORITY, "west", tmp_path / "new")
    with pytest.raises(IsthmusError, match="is not the folder of an authority"):
        renew_kit(made / "north", "north", tmp_path / "new")
    with pytest.raises(IsthmusError, match="is not empty: choose another folder"):
        renew_kit(made / AUTHORITY, "north", made / "north")
    (made / AUTHORITY / "root.key").write_text("x")
    with pytest.raises(IsthmusError, match="is not the folder of an authority"):
        renew_kit(made / AUTHORITY, "north", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert json.loads((made / "north" / ROSTER).read_text())
