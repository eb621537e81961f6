"""FedGL's benchmarks run, on small data and without looking at the clock."""

import json

import pytest
from tests.benchmarks.conftest import PAPERS

from isthmus.papers.plan import Cell, Table
from isthmus.study.config import Study


@pytest.fixture
def scripts(scripts_of, monkeypatch):
    """The folder's scripts by name, on the parties of a small generated graph instead of the paper's sets."""
    planned = Cell.study_for

    def small(cell, *rest):
        return Study.of({**planned(cell, *rest).model_dump(), "data": {"name": "banks", "nodes": 120}})

    monkeypatch.setattr(Cell, "study_for", small)
    return scripts_of("fedgl", "scale")


def planned(table, **place):
    (cell,) = (each for each in Table.of_file(PAPERS / "fedgl" / f"{table}.toml").cells() if each.place == place)
    return cell.study_for(3)


def test_settings_are_the_papers():
    plan = planned("table2", data="wiki", method="fedgl")
    (method,) = plan.method_list()
    assert (method.threshold, method.alpha, method.beta, method.neighbours) == (0.1, 0.1, 1.0, 100)
    assert (method.rounds, method.patience, method.local.epochs, method.local.optimizer) == (300, 30, 10, "adam")
    assert plan.partition == {"name": "overlap"}
    assert plan.data == {"name": "wiki", "train_per_class": 20, "val": 500, "test": 1000}
    few = planned("table3", data="cora", labels="5", method="federated")
    assert few.data == {"name": "cora", "train_per_class": 5, "val": 500, "test": 1000, "split": "random"}
    assert planned("table4", data="cora", share="0.3", method="fedgl").method_list()[0].fraction == 0.3
    uneven = planned("table5", data="acm", parties="0.2 0.4 0.6", method="fedgl")
    assert uneven.named_partition().proportions == [0.2, 0.4, 0.6]
    assert planned("table6", data="acm", shared="0.1", method="fedgl").named_partition().shared == 0.1
    swept = planned("figure11", data="citeseer", method="fedgl", threshold="0.7").method_list()[0]
    assert (swept.threshold, swept.alpha, swept.rounds, swept.pseudo_graph) == (0.7, 0.2, 300, True)


@pytest.mark.parametrize("what", ["exact", "approximate", "rounds"])
def test_scale_tells_what_it_measured(scripts, monkeypatch, capsys, what):
    scale = scripts["scale"]
    scale.say_alone(what, 200, 5)
    row = json.loads(capsys.readouterr().out)
    assert row["edges"] == (0 if what == "rounds" else 1000)
    assert 0 < row["before_mb"] <= row["peak_mb"]
    assert scale.lines_of([row])[0][1:3] == ["200", "5"]
