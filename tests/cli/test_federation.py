"""Commands for federations that need no other process; tests/deploy/test_flare.py has the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import Isthmus

STUDY = """
parties = 3
unlabelled = "idle"

[data]
name = "banks"
nodes = 120

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
