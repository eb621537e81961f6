"""Kits, the roster that says whose keys are whose, and new kits in place of lost ones."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from isthmus.deploy import kits
from isthmus.deploy.flare import take_part
from isthmus.deploy.kits import AUTHORITY, ROSTER, Kit, Roster, make_kits, renew_kit
from isthmus.errors import IsthmusError


def test_every_kit_has_the_roster_and_only_its_own_keys(kits_folder: Path) -> None:
    roster = Kit.read(kits_folder / "north", "party").roster()
    assert (roster.number, sorted(roster.seals)) == (1, ["north", "south"])
    assert len(set(roster.certificates.values())) == 4
    for name, role in (("server", "server"), ("admin", "admin"), ("north", "party"), ("south", "party")):
        kit = Kit.read(kits_folder / name, role)  # type: ignore[arg-type]
        assert kit.roster() == roster
        assert (kits_folder / name / "seal.key").exists() == (role == "party")
        assert not list((kits_folder / name).rglob("root.key"))
        assert all(file.stat().st_mode & 0o077 == 0 for file in (kits_folder / name).rglob("*.key"))
    assert (kits_folder / AUTHORITY).stat().st_mode & 0o077 == 0
    assert (kits_folder / AUTHORITY / "root.key").stat().st_mode & 0o077 == 0


def test_a_kit_that_flare_would_fail_with_says_what_is_wrong(kits_folder: Path, tmp_path: Path) -> None:
    spaced = shutil.copytree(kits_folder / "north", tmp_path / "two words")
    with pytest.raises(IsthmusError, match="two words: NVIDIA FLARE cannot run jobs in a path with spaces: move"):
        take_part(spaced, tmp_path)
    for file, content in {
        "startup/client.key": (kits_folder / "south" / "startup" / "client.key").read_bytes(),
        "startup/fed_client.json": b"{",
        "local/resources.json.default": b"",
        "startup/client.crt": b"",
    }.items():
        kit = shutil.copytree(kits_folder / "north", tmp_path / Path(file).name)
        (kit / file).write_bytes(content)
        with pytest.raises(IsthmusError, match=rf"{file} is .*: copy the kit again from whoever made it$"):
            take_part(kit, tmp_path)


def test_a_renewed_kit_has_new_keys_that_the_others_learn_from_the_roster(kits_folder: Path, tmp_path: Path) -> None:
    old, south = Kit.read(kits_folder / "north", "party"), Kit.read(kits_folder / "south", "party")
    new = renew_kit(kits_folder / AUTHORITY, "north", tmp_path / "new")
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
    again = renew_kit(kits_folder / AUTHORITY, "admin", tmp_path / "admin")
    assert (again.role, again.roster().number, again.roster().seals) == ("admin", 3, new.roster().seals)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda text: "{}", "not signed by the authority"),
        (lambda text: "[" * 100_000, "not signed by the authority"),
        (lambda text: text.replace("8", "9"), "not signed by the authority"),
    ],
)
def test_a_roster_that_the_authority_did_not_sign_is_refused(kits_folder: Path, change: Any, why: str) -> None:
    kit = Kit.read(kits_folder / "north", "party")
    before = kit.roster_text()
    with pytest.raises(IsthmusError, match=why):
        kit.adopt(change(before))
    assert kit.roster_text() == before


def test_a_roster_of_another_authority_or_federation_or_an_older_one_is_refused(
    kits_folder: Path, tmp_path: Path
) -> None:
    kit = Kit.read(kits_folder / "north", "party")
    make_kits("fed", ["north", "south"], "localhost", 8002, tmp_path / "others")
    with pytest.raises(IsthmusError, match="not signed by the authority"):
        kit.adopt((tmp_path / "others" / "north" / ROSTER).read_text())
    key = kits.load_private_key((kits_folder / AUTHORITY / "root.key").read_text())
    with pytest.raises(IsthmusError, match="of another federation, 'other'"):
        kit.adopt(Roster("other", 7, {}, {}).sign(key))
    first = kit.roster_text()
    new = renew_kit(kits_folder / AUTHORITY, "south", tmp_path / "new")
    assert kit.adopt(new.roster_text())
    assert not kit.adopt(first)
    assert kit.roster().number == 2


def test_mistakes_with_the_authority_leave_nothing_behind(kits_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(IsthmusError, match="no kit of 'west' can be renewed: this federation has admin, north, south"):
        renew_kit(kits_folder / AUTHORITY, "west", tmp_path / "new")
    with pytest.raises(IsthmusError, match="is not the folder of an authority"):
        renew_kit(kits_folder / "north", "north", tmp_path / "new")
    with pytest.raises(IsthmusError, match="is not empty: choose another folder"):
        renew_kit(kits_folder / AUTHORITY, "north", kits_folder / "north")
    (kits_folder / AUTHORITY / "root.key").write_text("x")
    with pytest.raises(IsthmusError, match="is not the folder of an authority"):
        renew_kit(kits_folder / AUTHORITY, "north", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert json.loads((kits_folder / "north" / ROSTER).read_text())
