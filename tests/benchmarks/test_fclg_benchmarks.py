"""FCLG's benchmarks run, on a few generated graphs and without looking at the clock."""

import heapq
import json

import pytest
import torch
from tests.benchmarks.conftest import PAPERS

from isthmus.data.cohort import Cohort
from isthmus.nn.draws import draws_of
from isthmus.nn.encoders import Encoder
from isthmus.papers.plan import Cell, Table
from isthmus.study.config import Study
from isthmus.testing import check_method, small_parties

FAMILIES = {
    "infograph": ("infograph-fedavg", "infograph-fedprox"),
    "mvgrl": ("mvgrl-fedavg", "mvgrl-fedprox"),
    "fclg": ("fclg", "fclg, as printed", "fclg-h", "intra-fedavg", "intra-kl", "intra-mse"),
}


@pytest.fixture
def scripts(scripts_of, monkeypatch, tmp_path):
    """The folder's scripts by name, on generated graphs instead of the paper's sets; results go elsewhere."""
    found = scripts_of("fclg", "contrast", "search", "speed")
    planned = Cell.study_for

    def small(cell, *rest):
        whole = planned(cell, *rest).model_dump()
        task, cut = {**whole["task"], "probe": 2}, {**whole["partition"], "emd": 0.5}
        return Study.of({**whole, "data": {"name": "motifs", "graphs": 60}, "task": task, "partition": cut})

    monkeypatch.setattr(Cell, "study_for", small)
    monkeypatch.setattr(found["search"], "SEARCH", tmp_path / "results" / "search.json")
    monkeypatch.setattr(found["contrast"], "TRIALS", tmp_path / "results" / "contrast.json")
    return found


@pytest.mark.slow
def test_the_search_keeps_what_validation_graphs_say(scripts, call, capsys, monkeypatch):
    search = scripts["search"]
    monkeypatch.setattr(search, "EVERY", 1)
    monkeypatch.setattr(search, "RATES", (1e-3, 1e-2))
    monkeypatch.setattr(search, "ENCODERS", {name: own[:1] for name, own in search.ENCODERS.items()})
    call(search, "--data", "proteins", "--rounds", 2, "--write")
    cells = json.loads(search.SEARCH.read_text())["cells"]
    assert [cell["family"] for cell in cells] == ["fclg", "fclg", "infograph", "infograph", "mvgrl", "mvgrl"]
    assert all(run["val"].keys() == {"1", "2"} for cell in cells for run in cell["runs"])
    best = max(search.score(cell["runs"], at, search.SCALE) for cell in cells[:2] for at in ("1", "2"))
    setting = search.chosen("proteins", "fclg")
    (picked,) = (cell for cell in cells if cell["family"] == "fclg" and cell["setting"] == setting)
    assert max(search.score(picked["runs"], at, search.SCALE) for at in ("1", "2")) == best
    assert "| proteins | mvgrl |" in capsys.readouterr().out


@pytest.mark.slow
def test_trials_of_other_contrasts_keep_what_validation_graphs_say(scripts, call, capsys, monkeypatch):
    contrast = scripts["contrast"]
    monkeypatch.setattr(contrast, "FOLDS", 2)
    monkeypatch.setattr(contrast, "RATES", (1e-2,))
    call(contrast, "--data", "dhfr", "--seeds", 1, "--rounds", 1, "--write")
    cells = json.loads(contrast.TRIALS.read_text())["cells"]
    assert [cell["method"] for cell in cells] == ["untrained", "untrained", *contrast.METHODS]
    found = [cell["runs"][0]["val"] for cell in cells]
    assert all(found[0].keys() == each.keys() for each in found)
    assert "| dhfr | bgrl | 0.01 | 1 |" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["GraphCL", "SimGRACE", "BGRL"])
@pytest.mark.slow
def test_other_contrasts_are_the_same_for_a_party_alone(scripts_of, kind):
    local = {"epochs": 2, "batch_size": 5, "optimizer": "sgd", "lr": 0.05}
    method = getattr(scripts_of("fclg", "contrast")["contrast"], kind).read({"rounds": 2, "local": local}, kind)
    check_method(method, small_parties("graph"), encoder=Encoder.named("gin")(hidden=4), checks=["cohort_law"])


def nearest(start, edges, lengths):
    """The nodes that a walk from `start` reaches, with the length of the shortest way."""
    found, seen = [(0.0, start)], {}
    while found:
        far, node = heapq.heappop(found)
        if node not in seen:
            seen[node] = far
            for (a, b), length in zip(edges, lengths, strict=True):
                if a == node:
                    heapq.heappush(found, (far + length, b))
    return seen


def test_each_graph_gets_one_change_of_a_fifth_of_it(scripts_of):
    contrast = scripts_of("fclg", "contrast")["contrast"]
    party = max(small_parties("graph"), key=lambda each: each.items)
    block = Cohort((party,)).graphs_of(torch.arange(party.items).repeat_interleave(4))
    draws = draws_of("test")
    found = contrast.changed(block, draws)
    x, edges, per_edge = block.x.to_dense(), block.edge_index.T.tolist(), (block.edge_index.size(1),)
    kinds = (draws.of("kind").uniform(block.graphs) * 4).long().tolist()
    key = {name: draws.of(name).uniform(block.sizes).tolist() for name in ("nodes", "features", "start")}
    cut_key, lengths = (draws.of(name).uniform(per_edge).tolist() for name in ("edges", "walk"))
    assert set(kinds) == {0, 1, 2, 3}
    first_node = 0
    for graph, kind in enumerate(kinds):
        nodes = (block.batch == graph).nonzero().flatten().tolist()
        own = [at for at, (a, _) in enumerate(edges) if a in nodes]
        out, cut, some = set(), set(), len(nodes) // 5
        if kind in (0, 2):
            out = set(sorted(nodes, key=key["nodes" if kind == 0 else "features"].__getitem__)[:some])
        if kind == 1:
            cut = set(sorted(own, key=cut_key.__getitem__)[: len(own) // 5])
        if kind == 3:
            start = min(nodes, key=key["start"].__getitem__)
            way = nearest(start, [edges[at] for at in own], [lengths[at] + 0.05 for at in own])
            out = set(sorted(nodes, key=lambda node: -way.get(node, 1e6))[:some])
        kept = [node for node in nodes if kind == 2 or node not in out]
        due = torch.stack([x[node] * (kind != 2 or node not in out) for node in kept])
        place = {node: first_node + at for at, node in enumerate(kept)}
        left = sorted([place[a], place[b]] for at in own if at not in cut for a, b in [edges[at]] if {a, b} <= {*kept})
        mine = (found.batch == graph).nonzero().flatten()
        assert torch.equal(found.x[mine], due)
        assert sorted(each for each in found.edge_index.T.tolist() if each[0] in mine.tolist()) == left
        first_node += len(kept)


@pytest.mark.parametrize("name", ["table2", "table3", "figure2", "figure3", "figure4a", "figure4b", "figure5"])
def test_tables_have_what_the_search_has_found(scripts_of, name):
    search = scripts_of("fclg", "search")["search"]
    family = {row: family for family, rows in FAMILIES.items() for row in rows}
    cells = list(Table.of_file(PAPERS / "fclg" / f"{name}.toml").cells())
    assert {cell.place["method"] for cell in cells} & set(family)
    for cell in cells:
        if cell.place["method"] not in family:
            continue  # it is not trained
        setting = search.chosen(cell.place.get("data", "proteins"), family[cell.place["method"]])
        plan = cell.study_for(0)
        (method,) = plan.method_list()
        encoder = plan.encoder()
        assert (method.local.lr, method.rounds, encoder.name) == (setting["lr"], 20, setting["encoder"])
        assert "norm" not in setting or (encoder.norm, encoder.weighted) == (setting["norm"], True)


def test_settings_are_the_papers():
    cells = {cell.name: cell for cell in Table.of_file(PAPERS / "fclg" / "table2.toml").cells()}
    plan = cells["mvgrl-fedprox, enzymes"].study_for(3)
    (method,) = plan.method_list()
    assert (plan.parties, plan.partition) == (6, {"name": "label-skew", "emd": 1.2667})
    assert (method.local.optimizer, method.local.epochs, method.training().mu) == ("adamw", 5, 0.01)


def test_both_sides_of_the_speed_hold_the_same_graphs(scripts, call, capsys):
    six, one = scripts["speed"].sites("proteins", "fclg")
    assert (len(six.hosted), len(one.hosted)) == (6, 1)
    assert sum(six.hosted.items) == sum(one.hosted.items) == 60
    call(scripts["speed"], "--methods", "fclg", "--repeats", 1)
    assert "fclg" in capsys.readouterr().out
