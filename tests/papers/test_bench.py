"""Which place of which table a method of one's own is set beside."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.papers.a_paper import written

from isthmus.errors import IsthmusError
from isthmus.papers import shelf
from isthmus.papers.bench import find_board, own_method

TABLE = """
title = "Who is ahead"
study.protocol = "openfgl"
figures.accuracy.metric = "test_accuracy"

[[axes]]
name = "change"

[axes.values]
"more steps".method.local.epochs = 9
"as it is" = {}
raw = { parties = 3, model.hidden = 16 }

[[axes]]
name = "method"
values.local.method.name = "local"
"""
TUNED = TABLE + '\n[tune]\noptions = { "method.local.lr" = [0.1, 0.01] }\n'


def entries(base: Path, text: str = TABLE) -> list[shelf.ShelfEntry]:
    return shelf.entries(written(base, nodes=text))


def test_a_place_has_the_protocols_own_training(tmp_path: Path) -> None:
    board = find_board(entries(tmp_path), "openfgl", {})
    assert board.name == "mine/nodes: as it is"
    assert [row.method for row in board.rows()] == ["local"]


def test_data_cut_and_model_must_be_those_asked_for(tmp_path: Path) -> None:
    found = entries(tmp_path)
    assert find_board(found, "OpenFGL", {"parties": 3, "model": {"hidden": 16}}).place == {"change": "raw"}
    with pytest.raises(IsthmusError, match=r"those of one of: mine/nodes: as it is; mine/nodes: raw$"):
        find_board(found, "openfgl", {"parties": 3})
    with pytest.raises(IsthmusError, match="methods in protocol 'fed-pub': choose another"):
        find_board(found, "fed-pub", {})


@pytest.mark.parametrize(
    ("name", "tuned", "trials"), [("fedavg", True, 2), ("fedavg", False, 0), ("majority", True, 0)]
)
def test_an_added_method_has_the_trials_of_the_table(tmp_path: Path, name: str, tuned: bool, trials: int) -> None:
    board = find_board(entries(tmp_path, TUNED.replace("local.method", "fedprox.method")), "openfgl", {})
    table = board.with_method("own", tmp_path / "own.py", {"name": name}, tuned=tuned)
    cell = board.cell(table, "own")
    assert len(cell.trials()) == trials
    assert cell.study["import"] == [str(tmp_path / "own.py")]


def test_one_of_several_methods_is_named(tmp_path: Path) -> None:
    file = tmp_path / "two_methods.py"
    one = 'class {0}(FedAvg):\n    """{0}."""\n\n    name = "{1}"\n'
    several = one.format("First", "first-of-two") + one.format("Second", "second-of-two")
    file.write_text("from isthmus.methods.fedavg import FedAvg\n\n" + several)
    with pytest.raises(IsthmusError, match=r"defines first-of-two, second-of-two: choose one with --method"):
        own_method(file, None)
    assert own_method(file, "second-of-two") == "second-of-two"
