"""A small paper of our own: two tables on generated data."""

from __future__ import annotations

from pathlib import Path

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


def written(base: Path, **tables: str) -> Path:
    """A folder of papers with this one in it."""
    folder = base / "papers"
    (folder / "mine").mkdir(parents=True)
    for name, text in ({"table1": TABLE1, "table2": TABLE2} | tables).items():
        (folder / "mine" / f"{name}.toml").write_text(text)
    (folder / "mine" / "README.md").write_text(PAGE)
    return folder
