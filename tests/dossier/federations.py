"""A federation in this process whose parties keep their state in real kits, and the result folder of its study."""

from __future__ import annotations

from pathlib import Path

from tests.federation.by_hand import ByHand, at_folders

from isthmus.deploy.approval import Proposal
from isthmus.deploy.coordinator import coordinate
from isthmus.deploy.kits import Kit, make_kits
from isthmus.deploy.member import Member
from isthmus.study.config import Study
from isthmus.study.results import Results

PARTIES = ("party-0", "party-1", "party-2")
PURPOSE = "Find out whether the banks recognise fraud better together."


def federated_run(base: Path) -> Path:
    """Make kits and party folders, run a study over them, and return the folder with `kits`, `data` and `run`."""
    given = {
        "purpose": PURPOSE,
        "data": {"name": "banks", "nodes": 120},
        "methods": [{"name": "fedavg", "rounds": 2}, {"name": "fedper", "rounds": 1}],
        "unlabelled": "idle",
        "protect": {"total": "masks"},
    }
    study = at_folders(Study.of_federation(given), base / "data", len(PARTIES))
    make_kits("fed", PARTIES, "localhost", 8002, base / "kits")
    members = {}
    for name in PARTIES:
        kit = Kit.read(base / "kits" / name, "party")
        members[name] = Member(base / "data" / name, kit.state, name, ring=kit.ring())
        members[name].approvals.approve(Proposal(study, PARTIES))
    outcome = coordinate(study, ByHand(members), "s", base / "server")
    more = {"protect": study.protect.model_dump(), "federation": study.federation.model_dump()}
    described = {**study.resolved(), **more, "parties": len(PARTIES), "data": {"name": "folder"}}
    Results(described, outcome.runs, set_up=outcome.ledger).save(base / "run")
    return base
