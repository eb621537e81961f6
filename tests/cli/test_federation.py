"""Commands for federations that need no other process; tests/deploy/test_flare.py has the others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import Isthmus
from isthmus.data.folder.limits import Limits
from isthmus.deploy.approval import Approvals, Proposal
from isthmus.errors import IsthmusError
from isthmus.federation.ledger import PartyStanding
from isthmus.study.config import Study, read_toml
from isthmus.study.run import Watcher

STUDY = """
parties = 3
unlabelled = "idle"

[data]
name = "banks"
nodes = 120

[protect]
total = "none"

[[methods]]
name = "fedavg"
rounds = 20
"""


def test_preview_lists_what_leaves_the_parties(isthmus: Isthmus, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    done = isthmus("federation", "preview", "study.toml", "--json")
    assert (done.code, done.err) == (0, "")
    (train,) = (each for each in json.loads(done.out) if each["action"] == "train")
    assert (train["parties"], train["times"], train["eyes"]) == (3, 20, "server sees the sum")
    assert train["sent"] >= train["most_sent"] >= train["largest"] * 20 > 0
    shown = isthmus("federation", "preview", "study.toml").out
    assert "Sizes are those of 'banks' with 3 parties in place of the federation's data" in shown


def test_what_a_party_approves_is_what_was_previewed(isthmus: Isthmus, tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    (tmp_path / "study.toml").write_text(STUDY)
    assert isthmus("federation", "new", "study.toml", "--parties", "a,b", "--server", "h:1", "--out", "kits").code == 0
    hashed = isthmus("federation", "preview", "study.toml", "--parties", "a,b").out.splitlines()[-1].split()[1]
    done = isthmus("federation", "approve", "kits/a", "study.toml")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[:3] == [f"study {hashed}", "purpose: none is stated", "parties: a, b"]
    assert lines[-1] == "approved by a"
    assert "  train: at most 20 times in a run; the server reads the sum over parties" in lines
    assert isthmus("federation", "approve", "kits/a", hashed).out.splitlines()[-1] == "approved by a, 2 times by now"
    assert isthmus("federation", "approve", "kits/b").out == "no study waits for an approval\n"
    for names, says in (("a,a", "no party, or one twice"), ("a,süd", "party 'süd': use the letters a to z")):
        wrong = isthmus("federation", "preview", "study.toml", "--parties", names)
        assert (wrong.code, wrong.out, wrong.err.count("\n")) == (2, "", 1)
        assert says in wrong.err
    unknown = isthmus("federation", "approve", "kits/b", hashed)
    assert (unknown.code, unknown.err.count("\n")) == (2, 1)
    assert "is the hash of no known study" in unknown.err
    study = Study.of(read_toml(tmp_path / "study.toml"))
    with pytest.raises(IsthmusError, match="not approved"):
        Approvals(tmp_path / "kits" / "b" / "state" / "studies").permit(Proposal(study, ("a", "b")), Limits(), ())
    assert (
        f"to approve it: isthmus federation approve kits/b {hashed}" in isthmus("federation", "approve", "kits/b").out
    )


def test_preview_says_what_parties_would_refuse(isthmus: Isthmus, tmp_path: Path) -> None:
    """Parties take evaluations as sums, and sums over two at least, unless their party.toml says something else."""
    (tmp_path / "ask.toml").write_text(f'{STUDY}evaluate_by = "ask"\n')
    (tmp_path / "one.toml").write_text(f"{STUDY}fraction = 0.3\n")
    for file, why in (
        ("ask.toml", "refused: method 'fedavg' evaluates by 'ask', limits.evaluate_by accepts total"),
        ("one.toml", "refused: a total of 1, limits.min_contributors is 2, action 'train'"),
    ):
        done = isthmus("federation", "preview", file)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert why in done.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("new", "study.toml", "--parties", "a,b", "--server", "here", "--out", "kits"), "--server is 'here': give"),
        (("new", "pooled.toml", "--parties", "a,b", "--server", "h:1", "--out", "kits"), "needs all data in one place"),
        (("status", "kit"), "kit is no start-up kit: make new kits"),
        (("serve", "kit"), "kit is no start-up kit: make new kits"),
        (("join", "kit", "--data", "."), "kit is no start-up kit: make new kits"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(words: tuple[str, ...], says: str, isthmus: Isthmus, tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "pooled.toml").write_text(STUDY.replace("fedavg", "centralized"))
    done = isthmus("federation", *words)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert says in done.err
    assert not (tmp_path / "kits").exists()


class FakeAdmin:
    """An administrator whose server says one thing after the other."""

    says: Iterator[dict[str, Any]]

    def __init__(self, kit: Path) -> None:
        pass

    def __enter__(self) -> FakeAdmin:
        return self

    def __exit__(self, *reason: object) -> None:
        pass

    def look(self) -> dict[str, Any]:
        return next(self.says)

    def is_lost(self, job: str, listed: list[str]) -> bool:
        return job not in listed


def seen(state: str, at: int, jobs: tuple[str, ...] = ("j1",)) -> dict[str, Any]:
    line = {"method": "fedavg", "seed": 0, "at": at, "rounds": 30, "metrics": {}}
    party = {"round": at, "seconds": 2.0, "sent": 80, "received": 72, "seen": "", "asked": "", "absent": ""}
    study = {
        "name": "0" * 32, "job": "j1", "methods": ["fedavg"], "started": "2026-05-04T09:30:00.000+00:00",
        "state": state, "why": "", "lines": [line], "fetched": True, "left": None, "parties": {"north": party},
    }  # fmt: skip
    return {"parties": {"north": True}, "refused": {}, "jobs": list(jobs), "studies": [study]}


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> type[FakeAdmin]:
    pytest.importorskip("nvflare")
    monkeypatch.setattr("isthmus.deploy.admin.Admin", FakeAdmin)
    monkeypatch.setattr("isthmus.cli.federation.LOOK_SECONDS", 0.0)
    return FakeAdmin


def test_status_shows_the_parties_of_a_running_study(isthmus: Isthmus, admin: type[FakeAdmin]) -> None:
    admin.says = iter([seen("running", 3)])
    done = isthmus("federation", "status", "kit")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[:3] == [
        "north: connected", "2026-05-04T09:30:00  fedavg: running", "  fedavg, seed 0: round 3 of 30"
    ]  # fmt: skip
    assert ["north", "round", "3", "2", "s", "80", "B", "72", "B", "-"] in map(str.split, done.out.splitlines())


def test_status_as_json_says_which_study_is_lost(isthmus: Isthmus, admin: type[FakeAdmin]) -> None:
    admin.says = iter([seen("running", 3, jobs=())])
    found = json.loads(isthmus("federation", "status", "kit", "--json").out)
    assert [study["state"] for study in found["studies"]] == ["lost"]
    assert found["studies"][0]["parties"]["north"]["sent"] == 80


@pytest.mark.parametrize(
    ("says", "end"),
    [
        ([seen("running", 3), seen("running", 4), seen("finished", 30)], "fedavg: finished"),
        ([seen("running", 3), seen("running", 3, jobs=())], "its job or server was killed"),
        ([{**seen("running", 3), "studies": []}], ""),
    ],
)
def test_a_study_is_followed_until_it_has_ended(
    says: list[dict[str, Any]], end: str, isthmus: Isthmus, admin: type[FakeAdmin]
) -> None:
    admin.says = iter(says)
    done = isthmus("federation", "status", "kit", "--watch")
    assert (done.code, done.err) == (0, "")
    assert end in done.out
    assert next(admin.says, None) is None, "it looked until the end"


def test_watching_and_json_exclude_each_other(isthmus: Isthmus, admin: type[FakeAdmin]) -> None:
    done = isthmus("federation", "status", "kit", "--watch", "--json")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "leave one of them out" in done.err


def test_a_run_writes_the_page_that_it_was_asked_for(
    isthmus: Isthmus, admin: type[FakeAdmin], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "study.toml").write_text(STUDY)

    def refuse(admin: FakeAdmin, study: Study, out: Path, *, watcher: Watcher, **options: Any) -> None:
        watcher.parties_seen({"north": PartyStanding(absent="no answer within 60 s")})
        raise IsthmusError("too few")

    monkeypatch.setattr("isthmus.deploy.launch.run_federation", refuse)
    done = isthmus("federation", "run", "kit", "study.toml", "--out", "out", "--page", "live.html")
    assert (done.code, done.err.splitlines()[-1]) == (2, "isthmus: too few")
    assert "out: no answer within 60 s" in (tmp_path / "live.html").read_text()
