"""A small paper of our own: two tables on generated data."""

from __future__ import annotations

from pathlib import Path

import pytest

from in_this_process import InThisProcess
from isthmus.papers import running
from isthmus.papers.plan import Table
from isthmus.study.config import Study

NEVER = Path("never")
"""A folder for checkpoints that must not be made."""
TABLE1 = """
title = "Who learns what"
seeds = 2
quick = { method.rounds = 1 }

[study]
data = { name = "banks", nodes = 120 }
model.hidden = 8
unlabelled = "idle"
method.rounds = 3

[figures.test]
title = "Accuracy"
metric = "test_accuracy"

[figures.val]
metric = "val_accuracy"
times = 1
digits = 3

[[axes]]
name = "size"
option = "data.nodes"
values = [120, 160]

[[axes]]
name = "method"

[axes.values]
fedavg.method.name = "fedavg"
fedprox.method = { name = "fedprox", mu = 0.1 }

[[where]]
at = { size = ["160"], method = ["fedprox"] }
study.method.mu = 0.5

[published.test.120]
fedavg = 70.0
fedprox = 80

[[claims]]
says = "FedProx is not much worse than FedAvg"
along = "method"
order = ["fedprox", "fedavg"]
by = -100

[[claims]]
says = "Both are as in the paper"
near = 0.001
"""

TABLE2 = """
title = "The same, tuned"
like = "table1"
where = []
tune = { options = { "method.local.lr" = [0.1, 0.01], "model.hidden" = [4] }, seeds = [100, 101] }

[[axes]]
name = "method"
values.fedavg.method.name = "fedavg"
"""

PAGE = """# A paper

<!-- table1: written by isthmus papers page -->
old
<!-- end of table1 -->

Words of ours.
"""

QUICK = {
    "name": "fedgc", "teaching": 1, "transforming": {"epochs": 2}, "target": {"epochs": 3}, "rounds": 2, "every": 1,
    "ratio": 0.1,
}  # fmt: skip
FEDGC = Study.of(
    {"data": {"name": "banks", "nodes": 240}, "methods": [QUICK], "model": {"hidden": 8}, "unlabelled": "idle"}
)
FEDAVG = FEDGC.model_copy(update={"methods": [{"name": "fedavg", "rounds": 2}]})
"""Studies of one quick method."""


def written(base: Path, **tables: str) -> Path:
    """A folder of papers with this one in it."""
    folder = base / "papers"
    (folder / "mine").mkdir(parents=True)
    for name, text in ({"table1": TABLE1, "table2": TABLE2} | tables).items():
        (folder / "mine" / f"{name}.toml").write_text(text)
    (folder / "mine" / "README.md").write_text(PAGE)
    return folder


def table(base: Path, name: str = "table1", **tables: str) -> Table:
    return Table.of_file(written(base, **tables) / "mine" / f"{name}.toml")


def run_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tables run in this process."""
    monkeypatch.setattr(running, "Processes", InThisProcess)
