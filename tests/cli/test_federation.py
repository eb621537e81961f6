"""Commands for federations that need no other process; tests/deploy/test_flare.py has the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import Isthmus
from isthmus.data.folder.limits import Limits
from isthmus.deploy.approval import Approvals, Proposal
from isthmus.errors import IsthmusError
from isthmus.study.config import Study, read_toml

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
    assert (lines[0], lines[1], lines[-1]) == (f"study {hashed}", "parties: a, b", "approved by a")
    assert "  train: at most 20 times in a run; the server reads the sum over parties" in lines
    assert isthmus("federation", "approve", "kits/a", hashed).out.splitlines()[-1] == "approved by a, 2 times by now"
    assert isthmus("federation", "approve", "kits/b").out == "no study waits for an approval\n"
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
