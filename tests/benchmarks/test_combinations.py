"""What two systems do together, on a small generated graph."""

import json
import math

import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from torch_geometric.utils import to_dense_adj

from isthmus.data.datasets.banks import Banks
from isthmus.data.rows import to_dense


class Small(Banks):
    name = ""
    parties: int = 1
    nodes: int = 60


@pytest.fixture
def combinations(scripts_of, monkeypatch):
    script = scripts_of("guide", "combinations")["combinations"]
    monkeypatch.setattr(script, "SETS", {"cora": Small})
    return script


@pytest.mark.parametrize(("epsilon", "releases"), [(8.0, 1), (1.0, 10)])
def test_noise_spends_what_it_says(combinations, epsilon, releases):
    accountant = PLDAccountant()
    accountant.compose(dp_event.GaussianDpEvent(combinations.noise(epsilon, releases)), releases)
    assert accountant.get_epsilon(combinations.DELTA) == pytest.approx(epsilon, rel=0.01)


def test_features_are_propagated_in_the_pool(combinations):
    graph, found = (kind.load(0).party.graph for kind in (Small(), combinations.Propagated(hops=2)))
    adjacency = to_dense_adj(graph.edge_index, max_num_nodes=60)[0].clamp(max=1) + torch.eye(60)
    scale = adjacency.sum(1).rsqrt()
    matrix = scale.unsqueeze(1) * adjacency * scale
    torch.testing.assert_close(found.x, matrix @ matrix @ to_dense(graph.x), rtol=1e-4, atol=1e-5)
    assert torch.equal(found.y, graph.y)


def test_a_node_moves_a_sum_by_no_more_than_its_sensitivity(combinations):
    private = combinations.Private("cora", 0, 0.0, 1)
    weight = torch.randn(private.classes, private.x.size(1), generator=torch.Generator().manual_seed(0))
    whole = private.gradients(weight)
    for node in private.masks["train"].nonzero().flatten()[:10]:
        private.masks["train"][node] = False
        assert float((whole - private.gradients(weight)).norm()) <= math.sqrt(2) + 1e-5
        private.masks["train"][node] = True


@pytest.mark.parametrize("name", ["class means", "linear model", "condensed graph"])
def test_without_noise_each_model_is_better_than_chance(combinations, name):
    more = {} if name == "class means" else {"releases": 50, "lr": 0.1}
    found = combinations.measured({"private": name, "data": "cora", "epsilon": 0.0, **more}, 0)
    noisy = combinations.measured({"private": name, "data": "cora", "epsilon": 0.01, **more}, 0)
    assert found["test"] > max(0.6, noisy["test"])
    assert set(found) == {"val", "test"}


def test_validation_chooses_and_what_is_known_is_not_run_again(combinations, monkeypatch, tmp_path, call):
    calls = []

    def measured(setting, seed):
        calls.append((setting["data"], seed))
        return {"val": setting["data"], "test": 10 * setting["data"] + seed}

    monkeypatch.setattr(combinations, "measured", measured)
    found = combinations.row([{"data": 1}, {"data": 3}, {"data": 2}], {})
    assert (found["chosen"], found["trials"], found["mean"]) == ({"data": 3}, [1, 3, 2], 32)
    assert calls == [(1, 1000), (3, 1000), (2, 1000), *((3, seed) for seed in range(5))]
    calls.clear()
    assert combinations.row([{"data": 1}, {"data": 3}, {"data": 2}], found) == found
    assert not calls

    monkeypatch.setattr(combinations, "RESULTS", tmp_path / "combinations.json")
    for name in ("private", "overlapping", "condensed"):
        monkeypatch.setattr(combinations, name, lambda data: {"a": [{"data": 1}]})
        getattr(combinations, name).__name__ = name
    call(combinations, "--write")
    rows = json.loads(combinations.RESULTS.read_text())["rows"]
    assert {name: each["mean"] for name, each in rows.items()} == dict.fromkeys(
        ("private, cora, a", "overlapping, cora, a", "condensed, cora, a"), 12
    )
