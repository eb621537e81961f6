"""Whatever is changed in a dossier or in what it names is one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from isthmus.dossier.verifying import verify_dossier
from isthmus.dossier.writing import write_dossier
from isthmus.errors import IsthmusError

DAY = "2026-05-04"


def faults(*args: object, **more: object) -> list[str]:
    with pytest.raises(IsthmusError) as found:
        verify_dossier(*args, **more)  # type: ignore[arg-type]
    return [str(each) for each in getattr(found.value, "errors", [found.value])]


def test_what_is_right_passes_and_what_was_not_checked_is_said(run: Path) -> None:
    first, page, files = verify_dossier(run)
    assert first.startswith("signature: none, so nothing shows who made it; SHA-256 ")
    assert page == "page: it is what the JSON gives"
    assert files == "files: 9 are those that it names"
    (run / "dossier.html").unlink()
    (run / "weights" / "fedper-0" / "party-1.safetensors").unlink()
    assert verify_dossier(run / "dossier.html")[1:] == [
        "page: dossier.html is not at hand",
        "files: 8 are those that it names",
        "not at hand, so not checked: weights/fedper-0/party-1.safetensors",
    ]


def flip(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))


def reworded(path: Path) -> None:
    path.write_text(path.read_text().replace("Nothing was", "Something was").replace("no noise", "much noise"))


CHANGED: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "the JSON": ("dossier.json", reworded, "it is not the page of dossier.json: it states another hash"),
    "the page": ("dossier.html", reworded, "it was changed: it is not what its JSON gives"),
    "the study": ("study.toml", flip, "study.toml: it is not the study that the dossier names: it has another hash"),
    "the ledger": ("ledger.parquet", flip, "ledger.parquet: it is not the ledger that the dossier names"),
    "a model": ("weights/fedavg-0.safetensors", flip, "fedavg-0.safetensors: it is not the model that the dossier"),
}


@pytest.mark.parametrize("what", CHANGED)
def test_a_change_is_one_line(what: str, run: Path) -> None:
    name, change, line = CHANGED[what]
    change(run / name)
    (fault,) = faults(run)
    assert line in fault


def test_every_fault_has_its_line(run: Path) -> None:
    for name, change, _ in CHANGED.values():
        if not name.endswith("json"):
            change(run / name)
    assert len(faults(run)) == len(CHANGED) - 1


def test_a_signature_is_due_where_somebody_asks_for_one(run: Path, federation: Path) -> None:
    kit = federation / "kits" / "party-0"
    (fault,) = faults(run, kit=kit)
    assert "it is not signed" in fault
    write_dossier(run, kit=federation / "kits" / "admin", made=DAY)
    assert verify_dossier(run, kit=kit)[0] == "signature: of admin@isthmus.local"
    assert "whose it is, only --kit or --certificate shows" in verify_dossier(run)[0]
    content = (run / "dossier.json").read_text()
    (run / "dossier.json").write_text(content.replace('"made": "2026', '"made": "2025'))
    lines = faults(run)
    assert "the signature is not of this dossier" in lines[0]
    (run / "dossier.json").write_text(content)
    (run / "dossier.sig").unlink()
    (fault,) = faults(run)
    assert "the signature is missing" in fault


def test_a_partys_ledger_study_and_model_are_checked(federation: Path) -> None:
    kits = federation / "kits"
    path, ledger = write_dossier(kits / "party-0", made=DAY), kits / "party-0" / "state" / "ledger.jsonl"
    assert verify_dossier(path, kit=kits / "party-1")[-1] == "files: 4 are those that it names"
    shutil.copytree(path.parent, federation / "sent", ignore=shutil.ignore_patterns("state", "startup", "local"))
    sent = verify_dossier(federation / "sent" / path.name, kit=kits / "party-1")  # which has another ledger
    assert sent[-1].startswith("not at hand, so not checked: state/ledger.jsonl")
    content = json.loads(path.read_text())
    lines = ledger.read_text()
    ledger.write_text(lines.replace('"sent": ', '"sent": 1', 1))
    (study,) = (each for each in content["files"] if "study" in each)
    file = kits / "party-0" / study["file"]
    file.write_text(file.read_text().replace("fraud", "guilt"))
    model = kits / "party-0" / content["models"][0]["file"]
    flip(model)
    found = faults(path, kit=kits / "party-1")
    assert ["was changed" in found[0], "is damaged" in found[1], "not the model" in found[2]] == [True] * 3
    ledger.write_text("".join(lines.splitlines(keepends=True)[:-2]))
    assert "its end is cut off" in faults(path)[0]


def test_a_ledger_that_has_grown_since_is_no_fault(federation: Path) -> None:
    from isthmus.deploy.party_ledger import PartyLedger

    path = write_dossier(federation / "kits" / "party-0", made=DAY)
    PartyLedger(federation / "kits" / "party-0" / "state" / "ledger.jsonl").append("refusal", why="enough")
    verify_dossier(path)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("no JSON", "cannot read"),
        ("{}", "no format number"),
        ('{"format": 1}', "its content is not what isthmus writes"),
        ('{"format": 1, "files": [{"file": "a"}], "models": []}', "a file without its hash|not what isthmus writes"),
    ],
)
def test_what_is_no_dossier_is_one_line(text: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "dossier.json").write_text(text)
    with pytest.raises(IsthmusError, match=line):
        verify_dossier(tmp_path)
    with pytest.raises(IsthmusError, match=r"none\.json does not exist: give a dossier"):
        verify_dossier(tmp_path / "none.json")


def test_no_file_outside_the_folder_is_read(run: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    path = run / "dossier.json"
    path.write_text(path.read_text().replace('"study.toml"', '"../secret"'))
    (run / "dossier.html").unlink()
    (fault,) = faults(run)
    assert "a link that leaves its folder" in fault


def test_an_audit_after_the_dossier_is_named(run: Path) -> None:
    (run / "audits").mkdir()
    (run / "audits" / "members-fedavg.json").write_text("{}")
    assert verify_dossier(run)[-1] == (
        "not in it, because it is older: audits/members-fedavg.json; isthmus dossier writes it again"
    )


def test_a_dossier_that_does_not_exist_is_called_what_was_given(tmp_path: Path) -> None:
    assert faults(tmp_path / "nope") == [f"{tmp_path / 'nope'} does not exist: give a dossier, or the folder with it"]
