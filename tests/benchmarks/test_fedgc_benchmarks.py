"""FedGC's benchmarks run, on small generated graphs and without looking at the clock."""

import json

import pytest
from tests.benchmarks.conftest import PAPERS

from isthmus.papers.plan import Table


def cells_of(name):
    return {cell.name: cell.study_for(3) for cell in Table.of_file(PAPERS / "fedgc" / f"{name}.toml").cells()}


def test_settings_are_the_papers():
    cells = cells_of("table2")
    plan = cells["cora, 2.6 %, FedGC"]
    (method,) = plan.method_list()
    assert (plan.parties, plan.partition) == (10, {"name": "label-dirichlet", "beta": 1.0})
    assert (plan.model["hidden"], method.ratio, method.hops) == (256, 0.026, 2)
    (literal,) = cells["cora, 2.6 %, FedGC, training"].method_list()
    assert (literal.ratio, literal.condensed, literal.distance) == (0.026, "training", "mse")
    (paper,) = cells["citeseer, 1.8 %, FedGC, paper, training"].method_list()
    assert (paper.backbone, paper.width_matched, paper.start, paper.condensed) == ("gcn", 256, "random", "training")
    assert "ogbn-arxiv, 0.05 %, FedGC, paper" not in cells, "the paper matches an SGC there"
    assert cells["ogbn-arxiv, 0.05 %, FedGC"].method_list()[0].ratio == 0.0005
    assert cells["ogbn-arxiv, 0.25 %, FedGC"].parties == 5
    assert cells["cora, 2.6 %, FedSage+"].model["encoder"] == "sage"
    assert "cora, 1.3 %, FedAvg" not in cells
    kinds = {plan.method_list()[0].name for plan in cells.values()}
    assert kinds >= {"gcond", "doscond", "sfgc", "fedgcn", "fedsage-plus", "bds-gcn", "centralized"}
    published = Table.of_file(PAPERS / "fedgc" / "table3-published.toml")
    assert {cell.read_measure().published for cell in published.cells()} == {True}
    assert {cell.place["method"] for cell in published.cells()} == {"GCond", "DosCond", "SFGC", "FedGC"}
    without = cells_of("figure6")["cora, 2.6 %, all labelled, - com"]
    assert (without.partition["beta"], without.method_list()[0].hops) == (100.0, 0)
    assert cells_of("figure11")["citeseer, 1.8 %, training, 1"].method_list()[0].min_contributors == 1


@pytest.mark.slow
def test_the_large_graph_is_condensed(scripts_of, call, capsys):
    scale = scripts_of("fedgc", "scale")["scale"]
    call(scale, "--nodes", 600, "--edges", 2000, "--classes", 3, "--features", 8, "--rounds", 2)
    found = json.loads(capsys.readouterr().out)
    assert (found["nodes"], found["synthetic"], found["rounds"]) == (600, 3, 2)
    assert found["peak MB"] > 0
