"""FedCog's benchmarks run, on small data and without looking at the clock."""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from isthmus.papers.plan import Cell
from isthmus.study.config import Study


@pytest.fixture
def scripts(scripts_of):
    return scripts_of("fedcog", "propagation", "costs")


def test_every_side_of_the_propagation_comes_to_the_same(scripts):
    propagation = scripts["propagation"]
    pooled, parties = propagation.drawn(nodes=600, edges=3000, features=4, parties=6, crossing=0.1, seed=0)
    assert pooled.edges == 6000
    assert sum(len(party.border) for party in parties) == 600
    held = {"pooled": pooled, "parties": parties}
    results = [torch.cat(propagate(held[kind])[0]) for kind, propagate in propagation.SIDES.values()]
    for each in results:
        torch.testing.assert_close(each, results[0], rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read as Linux tells it")
def test_propagation_tells_what_it_measured(scripts, tmp_path, monkeypatch, capsys):
    propagation = scripts["propagation"]
    args = argparse.Namespace(
        nodes=600, edges=3000, features=4, parties=6, crossing=0.1, seed=0, repeats=1, folder=tmp_path
    )

    def alone(options):
        propagation.draw_into(Path(options[1]), args) if options[0] == "--draw" else propagation.say_alone(
            options[1], Path(options[2])
        )
        return capsys.readouterr().out

    monkeypatch.setattr(propagation, "alone", alone)
    found = json.loads(json.dumps(propagation.measured(args)))
    assert (found["edges_drawn"], found["edges_crossing"]) == (3000, 300)
    assert found["difference"] < 1e-5
    assert {"propagate 1", "propagate 2", "settle"} <= found["sides"]["fedcog"]["steps"].keys()
    assert all(0 < row["before_mb"] <= row["peak_mb"] for row in found["sides"].values())
    assert "| pooled, torch |" in propagation.table([found])


def test_costs_are_those_of_the_ledger(scripts, monkeypatch):
    costs = scripts["costs"]
    plan = {"parties": 3, "model": {"encoder": "sgc"}, "methods": [{"name": "fedcog", "rounds": 2}]}
    cell = Cell({}, {"parties": 3, "model": {"encoder": "sgc"}, "method": {"name": "fedcog"}}, None, {})
    monkeypatch.setattr(costs, "cell_of", lambda *place: cell)
    found = costs.measured("banks", "given", 3, repeats=1)
    party = Study.of(plan).load(0).parties[0]
    weights = 4 * 2 * (party.features + 1)
    assert 2 * 3 * weights < found["update_mb"] * costs.MB < 2 * 3 * (weights + 600)
    assert found["wide_mb"] > found["update_mb"]
    assert found["fedcog_mb"] > 0
    assert 0 < found["crossing"] < 1
    assert np.isfinite([found[side] for side in ("fedcog", "alone", "pooled", "update")]).all()
    assert costs.table([found | {"data": "dblp"}]).count("\n") == 3


def test_costs_are_of_the_figures_cells(scripts):
    costs = scripts["costs"]
    assert len(costs.SETS) == 12
    plan = costs.cell_of("flickr-7575", "metis", 100).planned(0)
    assert (plan.partition, plan.parties, plan.data["train_per_class"]) == ({"name": "metis"}, 100, 30)
    assert costs.cell_of("flickr-7575", "metis", 100).measure["side_by_side"] is False
