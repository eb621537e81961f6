"""FGCL's benchmarks run, on small generated molecules and without looking at the clock."""

import json

import pytest
from tests.benchmarks.conftest import PAPERS

from isthmus.papers.plan import Cell, Table
from isthmus.study.config import Study


@pytest.fixture
def scripts(scripts_of, monkeypatch):
    """The folder's scripts by name, on generated molecules instead of the paper's sets."""
    planned = Cell.study_for

    def small(cell, *rest):
        small = {"name": "molecules", "graphs": 80, "tasks": 2}
        return Study.of({**planned(cell, *rest).model_dump(), "data": small})

    monkeypatch.setattr(Cell, "study_for", small)
    return scripts_of("fgcl", "speed")


def cells_of(name):
    return {cell.name: cell.study_for(3) for cell in Table.of_file(PAPERS / "fgcl" / f"{name}.toml").cells()}


def test_what_is_compared_spends_what_it_says():
    cells = cells_of("table3")
    views = {
        name: cells[f"gcn, bace, {name} 1"].method_list()[0].epsilons for name in ("noise", "fgcl", "fgcl, in all")
    }
    assert views == {"noise": [1.0], "fgcl": [1.0, 1.0], "fgcl, in all": [0.5, 0.5]}


def test_settings_are_the_papers_and_its_frameworks():
    plan = cells_of("table3")["lightgcn, tox21, fgcl 1"]
    (method,) = plan.method_list()
    assert (plan.parties, plan.partition) == (8, {"name": "quantity-dirichlet", "beta": 0.5})
    assert (method.rounds, method.local.epochs, method.stack, method.temperature) == (100, 1, 100, 0.1)
    assert (plan.data["split"], plan.data["features"], plan.model["hidden"]) == ("random", "no-bonds", 64)
    assert {cell.data["split"] for cell in cells_of("table3-scaffold").values()} == {"scaffold"}


@pytest.mark.parametrize(
    ("data", "beta", "rounds", "spent"),
    [("sider", 0.2, 20, 42), ("bace", 0.5, 50, 102), ("bbbp", 2.0, 50, 102), ("tox21", 3.0, 50, 102)],
)
def test_the_literal_form_is_algorithm_1_in_its_frameworks_setting(data, beta, rounds, spent):
    plan = cells_of("literal")[f"{data}, fgcl 1"]
    (method,) = plan.method_list()
    assert (plan.partition["beta"], method.rounds) == (beta, rounds)
    assert (method.redraw, method.post.clamp, method.epsilons) == ("epoch", False, [1.0, 1.0])
    assert (method.local.batch_size, method.local.epochs, method.local.lr) == (1, 1, 0.0015)
    assert (method.local.weight_decay, plan.model["dropout"], plan.model["hidden"]) == (0.001, 0.3, 64)
    assert method.most_spent() == spent


def test_controls_differ_from_fgcl_in_what_they_are_for():
    cells = {cell.name: cell for cell in Table.of_file(PAPERS / "fgcl" / "controls.toml").cells()}

    def of(name, split=0):
        return cells[f"bace, {split}, {name}"].study_for(3)

    options = {name: of(name).method_list()[0].model_dump() for name in ("fgcl 1", "two views", "noise 1", "noise 2")}
    whole = options["fgcl 1"]
    assert options["two views"] == {**whole, "gamma": 0.0}
    assert options["noise 1"] == {**whole, "epsilons": [1.0]}
    assert options["noise 2"] == {**whole, "epsilons": [2.0]}
    even, usual = (of(name).method_list()[0] for name in ("federated, even", "federated"))
    assert (even.weighting, usual.weighting, whole["weighting"]) == ("even", "train", "even")
    pair = cells["bace, 0, two models"]
    assert (dict(pair.measure), pair.study_for(3)) == ({"name": "ensemble", "models": 2}, of("noise 1"))
    assert [of("fgcl 1", split).data["split_seed"] for split in range(5)] == [0, 1, 2, 3, 4]


def test_every_way_spends_the_epsilon_of_its_line():
    for name, plan in cells_of("budgets").items():
        (method,) = plan.method_list()
        _, _, epsilon, way = name.split(", ", 3)
        free = way in ("no noise", "deep sets", "counts")
        assert method.most_spent() == (None if free else float(epsilon))


def test_pairs_of_budgets_are_the_papers_ten():
    budgets = [
        plan.method_list()[0].epsilons for name, plan in cells_of("figure6").items() if name.startswith("gcn, bace")
    ]
    assert sorted(map(len, budgets)) == [1] * 4 + [2] * 10


def test_speed_is_told_and_kept(scripts, call, tmp_path, monkeypatch, capsys):
    speed = scripts["speed"]
    monkeypatch.setattr(speed, "HERE", tmp_path)
    (tmp_path / "README.md").write_text("\n".join(("# FGCL", *speed.MARKS)))
    call(speed, "--batch-sizes", 128, 8, "--repeats", 1, "--write")
    rows = json.loads((tmp_path / "results" / "speed.json").read_text())["rows"]
    assert [row["batch size"] for row in rows] == [128, 8]
    assert all(row["ratio"] == pytest.approx(row["fgcl"] / row["supervised"]) for row in rows)
    assert "at most 5x" in (tmp_path / "README.md").read_text()


def test_both_sides_of_the_speed_see_the_same_graphs(scripts):
    contrast, plain = scripts["speed"].sites("bace", 16, 3)
    graphs = plain.cohort.items[0]
    views = contrast.cohort_of((0,))
    assert views.items == (2 * graphs,)
    assert bool((plain.cohort.masks["train"] == views.masks["train"][:graphs]).all())
    assert plain.cohort.block.edge_index.size(1) == views.block.edge_index[0].lt(plain.cohort.block.nodes).sum()
