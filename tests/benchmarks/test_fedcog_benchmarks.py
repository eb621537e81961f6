"""FedCog's benchmarks run, on small data and without looking at the clock."""

import argparse
import json
import sys
from pathlib import Path

import pytest
import torch
from tests.benchmarks.conftest import PAPERS

from isthmus.papers.plan import Table

FEDCOG = PAPERS / "fedcog"


@pytest.fixture
def scripts(scripts_of):
    return scripts_of("fedcog", "propagation")


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


def test_costs_are_of_the_figures_cells():
    """Of both cuts, on the sets of figure 3 as they are there."""
    due = {cell.place["data"]: cell for cell in Table.of_file(FEDCOG / "figure3.toml").cells()}
    cells = list(Table.of_file(FEDCOG / "table3.toml").cells())
    assert len(cells) == 12 * 2 * 2
    for cell in cells:
        plan, (method,) = cell.study_for(0), cell.study_for(0).method_list()
        assert plan.data == due[cell.place["data"]].study_for(0).data
        assert (plan.partition, plan.parties) == ({"name": cell.place["cut"]}, int(cell.place["parties"]))
        huge = (cell.place["data"], cell.place["parties"], cell.place["cut"]) == ("flickr-7575", "100", "metis")
        assert cell.measure.get("side_by_side", True) is not huge, "all at once takes more than 20 GB there"
        assert (method.name, method.lnnc, method.local.epochs, method.local.optimizer) == ("fedcog", True, 5, "sgd")
