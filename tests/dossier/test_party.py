"""A party's own dossier comes from its kit, and from nothing of another party."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from tests.dossier.federations import PARTIES, PURPOSE

from isthmus.data.fingerprint import digest_of_tables
from isthmus.deploy.party_ledger import PartyLedger, read_ledger
from isthmus.dossier.party import content_of_party
from isthmus.errors import IsthmusError

DAY = "2026-05-04"
NAME = "party-0"


def test_it_says_what_the_ledger_says(federation: Path) -> None:
    kit = federation / "kits" / NAME
    content = content_of_party(kit, NAME, DAY)
    lines, _ = read_ledger(kit / "state" / "ledger.jsonl")
    answers = [line for line in lines if line["event"] == "answer"]
    assert sum(each["calls"] for each in content["sent"]["actions"]) == len(answers)
    assert sum(each["sent"] for each in content["sent"]["actions"]) == sum(line["sent"] for line in answers)
    assert {each["eyes"] for each in content["sent"]["actions"]} == {line["eyes"] for line in answers}
    assert content["purpose"] == PURPOSE
    assert content["approval"]["times"] == 1
    assert f"purpose: {PURPOSE}" in content["approval"]["text"]
    assert content["limits"]["min_contributors"] == 2
    assert content["study"]["parties"] == [*PARTIES]
    assert [each["digest"] for each in content["data"]["fingerprints"]] == [
        digest_of_tables(federation / "data" / NAME)
    ]
    (ledger, _) = content["files"]
    assert (ledger["entries"], ledger["hash"]) == (len(lines), lines[-1]["hash"])


def test_it_needs_neither_server_nor_other_parties(federation: Path, tmp_path: Path) -> None:
    before = content_of_party(federation / "kits" / NAME, NAME, DAY)
    alone = shutil.copytree(federation / "kits" / NAME, tmp_path / "alone")
    shutil.rmtree(federation)
    assert content_of_party(alone, NAME, DAY) == before


def test_the_party_folder_tells_what_it_holds_and_whether_it_has_changed(federation: Path) -> None:
    kit, data = federation / "kits" / NAME, federation / "data" / NAME
    content = content_of_party(kit, NAME, DAY, data=data)
    assert f"{NAME} has " in content["checks"][0]["answer"]
    assert len({each["digest"] for each in content["data"]["fingerprints"]}) == 1
    (data / "more.csv").write_text("id\n1\n")
    assert "The folder has changed since" in content_of_party(kit, NAME, DAY, data=data)["data"]["note"]
    with pytest.raises(IsthmusError, match="is not the folder of party 'party-0'"):
        content_of_party(kit, NAME, DAY, data=federation / "data" / "party-1")


def test_with_the_results_both_sides_are_compared(federation: Path) -> None:
    kit = federation / "kits" / NAME
    content = content_of_party(kit, NAME, DAY, run=federation / "run")
    sides = content["sent"]["sides"]
    assert sides["compared"]
    assert sides["differences"] == []
    assert {each["party"] for each in sides["heads"]} == {NAME}
    assert [each["method"] for each in content["counted"]] == ["fedavg", "fedper"]
    assert all(set(span["counted"]) == {NAME} for each in content["counted"] for span in each["spans"])
    text = json.dumps({key: value for key, value in content.items() if key not in ("study", "approval")})
    assert "party-1" not in text
    assert "party-2" not in text


def test_what_only_the_party_has_written_is_a_difference(federation: Path) -> None:
    kit, ledger = federation / "kits" / NAME, federation / "kits" / NAME / "state" / "ledger.jsonl"
    (begun, *_) = (line for line in read_ledger(ledger)[0] if line["run"].endswith("fedper-0"))
    what = {"verb": "ask", "action": "peek", "eyes": "server sees each answer", "sent": 5, "protection": "none"}
    PartyLedger(ledger).append("answer", study=begun["study"], run=begun["run"], method="fedper", **what)
    content = content_of_party(kit, NAME, DAY, run=federation / "run")
    assert content["sent"]["sides"]["differences"] == [
        "fedper, seed 0: party 'party-0', peek (ask, server sees each answer): answered 1 times by its own ledger, "
        "0 times by the server's"
    ]
    assert any("two sides of the ledger differ" in each for each in content["known_limits"])


def test_results_that_its_ledger_does_not_know_are_refused(federation: Path, untouched_run: Path) -> None:
    kit = federation / "kits" / NAME
    with pytest.raises(IsthmusError, match="another hash than the head"):
        content_of_party(federation / "kits" / "party-1", NAME, DAY, run=federation / "run")
    shutil.rmtree(kit / "state")
    with pytest.raises(IsthmusError, match=r"no ledger in .*: give the kit of a party that has joined a federation"):
        content_of_party(kit, NAME, DAY)


def test_one_of_several_studies_is_chosen_by_its_hash(federation: Path) -> None:
    kit = federation / "kits" / NAME
    known = content_of_party(kit, NAME, DAY)["study"]["hash"]
    PartyLedger(kit / "state" / "ledger.jsonl").append("begin", study="f" * 32, run="t/set-up", parties=[NAME, "b"])
    with pytest.raises(IsthmusError, match=f"the ledger knows 2 studies: choose one, --study {known} or ffff"):
        content_of_party(kit, NAME, DAY)
    assert content_of_party(kit, NAME, DAY, study=known[:6])["study"]["hash"] == known
    other = content_of_party(kit, NAME, DAY, study="ffff")
    assert (other["sent"]["actions"], other["approval"]["times"], other["purpose"]) == ([], 0, "")
    with pytest.raises(IsthmusError, match="'00' begins no study's hash that the ledger knows"):
        content_of_party(kit, NAME, DAY, study="00")


def test_what_a_run_may_spend_is_what_the_ledger_says(federation: Path) -> None:
    kit = federation / "kits" / NAME
    first = content_of_party(kit, NAME, DAY)
    assert {each["said"] for each in first["privacy"]} == {"no noise was added"}
    ledger = PartyLedger(kit / "state" / "ledger.jsonl")
    what = {"study": first["study"]["hash"], "run": "t/some-7", "method": "some", "epsilon": 1.5}
    ledger.append("begin", parties=[*PARTIES], **what)
    (spent,) = (each for each in content_of_party(kit, NAME, DAY)["privacy"] if each["epsilon"] is not None)
    assert (spent["method"], spent["seed"], spent["epsilon"]) == ("some", 7, 1.5)
    assert spent["said"] == "what the noise of some protects: at most epsilon = 1.5"
