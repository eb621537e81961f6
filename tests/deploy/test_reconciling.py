"""The coordinator's ledger and those of the parties: equal where all is well, and differences are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.deploy.federated_studies import NEED_PROTECTION, STUDIES, federated, study_of
from tests.federation.by_hand import ByHand, at_folders, members_of

from isthmus.deploy.coordinator import coordinate
from isthmus.deploy.party_ledger import FILE, read_ledger
from isthmus.deploy.party_side import Message


@pytest.mark.parametrize("total", ["none", "masks"])
@pytest.mark.parametrize("name", ["fedavg", "fedgl", "fedcog", "fedgcn", "fedproto"])
@pytest.mark.thinned(6)
def test_both_sides_count_the_same_answers_and_bytes(name: str, total: str, tmp_path: Path) -> None:
    if total == "none" and name in NEED_PROTECTION:
        pytest.skip("needs protection")
    protect = {**STUDIES[name].get("protect", {}), "total": total}
    study = at_folders(study_of(name, rounds=2, protect=protect), tmp_path / "data")
    run = federated(study, tmp_path).runs[0]
    assert run.reconciled["differences"] == []
    for party, head in run.reconciled["heads"].items():
        lines, _ = read_ledger(tmp_path / "parties" / party / FILE)
        assert lines[head["entries"] - 1]["hash"] == head["hash"]
    assert len(run.reconciled["heads"]) == 3
    assert run.summary()["reconciled"] == run.reconciled


def test_an_answer_that_the_server_asks_for_beside_its_ledger_is_named(tmp_path: Path) -> None:
    """It asks one party twice, and keeps the second answer from its ledger."""
    study = at_folders(study_of("fedavg", rounds=2), tmp_path / "data")
    members = members_of(tmp_path / "data", tmp_path / "parties", study)

    extra = dict.fromkeys(members, 0)

    def twice(party: str, message: Message) -> Message:
        reply = {**members[party].handle(message)}
        if "answered" in reply:
            reply["answered"] -= extra[party]
        if (party, message.get("action")) in (("party-1", "encode"), ("party-2", "train")):
            members[party].handle(message)
            extra[party] += 1
        if message["do"] == "begin":
            extra[party] = 0
        return reply

    run = coordinate(study, ByHand(members, twice), "s", tmp_path / "server").runs[0]
    found = run.reconciled["differences"]
    again = "by its own ledger, 1 times by the server's"
    assert found[0] == f"set-up: party 'party-1', encode (ask, server sees each answer): answered 2 times {again}"
    assert any(line.startswith("fedavg, seed 0: party 'party-2', train (total, ") for line in found)
    assert not any("party-0" in line for line in found)


@pytest.mark.parametrize(
    ("account", "why"),
    [
        ("gone", "no account of the ledger of party 'party-1' (gone)"),
        ({}, "party 'party-1' sent an account of its ledger that cannot be read"),
        ({"totals": 3, "head": {}}, "sent an account of its ledger that cannot be read"),
        ({"totals": [{"answers": "x"}], "head": {}}, "no account of the ledger of party 'party-1' (invalid literal"),
        ({"totals": [], "head": {"entries": 0, "hash": ""}}, "train (total, server sees the sum): answered 0 times by"),
    ],
)
@pytest.mark.thinned(3)
def test_an_account_that_is_none_is_named(account: Any, why: str, tmp_path: Path) -> None:
    study = at_folders(study_of("fedavg", rounds=2), tmp_path / "data")
    members = members_of(tmp_path / "data", tmp_path / "parties", study)

    def lie(party: str, message: Message) -> Any:
        return account if party == "party-1" and message["do"] == "account" else None

    run = coordinate(study, ByHand(members, lie), "s", tmp_path / "server").runs[0]
    assert any(why in line for line in run.reconciled["differences"])
    assert not any("party-0" in line for line in run.reconciled["differences"])
