"""FedCog's benchmarks run, on small data and without looking at the clock."""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from isthmus.study.config import Study


@pytest.fixture
def scripts(scripts_of):
    return scripts_of("fedcog", "accuracy", "propagation", "costs", "baselines")


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
    monkeypatch.setattr(costs, "study", lambda *settings: Study.of(plan))
    found = costs.measured("banks", "given", 3, repeats=1)
    party = Study.of(plan).load(0).parties[0]
    weights = 4 * 2 * (party.features + 1)
    assert 2 * 3 * weights < found["update_mb"] * costs.MB < 2 * 3 * (weights + 600)
    assert found["wide_mb"] > found["update_mb"]
    assert found["fedcog_mb"] > 0
    assert 0 < found["crossing"] < 1
    assert np.isfinite([found[side] for side in ("fedcog", "alone", "pooled", "update")]).all()
    assert costs.table([found | {"data": "dblp"}]).count("\n") == 3


@pytest.mark.parametrize(
    ("task", "method"), [("nodes", "fedgcn, hops 1"), ("nodes", "fedcog-gcn"), ("links", "fedcog")]
)
def test_baselines_keep_what_is_found(scripts, call, tmp_path, monkeypatch, capsys, task, method):
    baselines = scripts["baselines"]
    monkeypatch.setattr(baselines, "FOUND", tmp_path / "results" / "baselines.json")
    options = ["--data", "banks", "--task", task, "--cut", "metis", "--parties", "3", "--method", method]
    call(baselines, *options, "--rounds", 2, "--write", "--seeds", 1)
    (cell,) = json.loads(baselines.FOUND.read_text())["cells"]
    assert (cell["task"], cell["method"], cell["parties"]) == (task, method, 3)
    assert len(cell[baselines.METRICS[task][0]]) == 1
    assert "| 3 | metis | 2 | " in capsys.readouterr().out
    monkeypatch.setattr(baselines, "chosen_rate", None)  # it goes on from what is kept
    call(baselines, *options, "--rounds", 2, "--write", "--seeds", 2)
    (more,) = json.loads(baselines.FOUND.read_text())["cells"]
    for name in baselines.METRICS[task]:
        assert more[name][:1] == cell[name]
        assert len(more[name]) == 2


def test_every_baseline_makes_a_study(scripts):
    baselines = scripts["baselines"]
    args = argparse.Namespace(
        parties=(10,), cut=("k-means",), task=("nodes", "links"), method=None, data="cora", rounds=200
    )
    for cell in baselines.cells(args):
        (method,) = baselines.study(cell, 0.01, [0]).method_list()
        assert (method.rounds, method.select) == (200, "last")
