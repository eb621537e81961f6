"""Which place of which table a method of one's own is set beside."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.papers.a_paper import written

from isthmus.errors import IsthmusError
from isthmus.papers import shelf
from isthmus.papers.bench import find_board, own_method
from isthmus.papers.results import TableResults

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
    with pytest.raises(IsthmusError, match=r"methods in protocol 'fed-pub': choose another --protocol \(openfgl\)$"):
        find_board(found, "fed-pub", {})


def test_of_several_tables_the_one_with_the_most_methods_is_meant(tmp_path: Path) -> None:
    more = TABLE + 'values.fedavg.method.name = "fedavg"\n'
    found = shelf.entries(written(tmp_path, few=TABLE, many=more, one_cut=more + "values.moon.method.name = 'moon'\n"))
    fixed = tmp_path / "papers" / "mine" / "one_cut.toml"
    fixed.write_text(
        fixed.read_text().replace('study.protocol = "openfgl"', 'study = {protocol = "openfgl", data_seed = 0}')
    )
    assert find_board(found, "openfgl", {}).name == "mine/many: as it is"


def test_a_cut_is_found_by_its_name_whatever_its_options(tmp_path: Path) -> None:
    text = TABLE.replace('"as it is" = {}', '"as it is".partition = { name = "louvain", delta = 7 }')
    board = find_board(entries(tmp_path, text), "openfgl", {"partition": {"name": "louvain"}})
    assert board.name == "mine/nodes: as it is"


def test_an_error_names_places_where_methods_were_run(tmp_path: Path) -> None:
    found = entries(tmp_path)
    results = TableResults()
    (cell,) = (cell for cell in found[0].plan.cells() if cell.place["change"] == "raw")
    results.add(cell, {"seed": 0, "figures": {"accuracy": 0.5}})
    results.write(tmp_path / "papers" / "mine" / "results" / "nodes.json")
    with pytest.raises(IsthmusError, match=r"those of one of: mine/nodes: raw$"):
        find_board(shelf.entries(tmp_path / "papers"), "openfgl", {"parties": 4})


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
