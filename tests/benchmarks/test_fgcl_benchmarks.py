"""FGCL's benchmarks run, on small generated molecules and without looking at the clock."""

import json

import pytest

from isthmus.study.config import Study


@pytest.fixture
def scripts(scripts_of, monkeypatch):
    """The folder's scripts by name, on generated molecules instead of the paper's sets."""
    found = scripts_of("fgcl", "tables", "sweeps", "speed")
    study = found["tables"].study

    def small(*plan):
        small = {"name": "molecules", "graphs": 80, "tasks": 2}
        return Study.of({**study(*plan).model_dump(), "data": small})

    for name in ("tables", "speed"):
        monkeypatch.setattr(found[name], "study", small)
    return found


def test_the_table_is_made_seed_by_seed_and_goes_on(scripts, call, tmp_path, monkeypatch, capsys):
    tables = scripts["tables"]
    monkeypatch.setattr(tables, "FOUND", tmp_path / "results" / "tables.json")
    options = ("--data", "bace", "--encoders", "gcn", "tag", "--epsilons", 1, "--rounds", 2, "--write", "--seeds")
    call(tables, *options, 1)
    first = json.loads(tables.FOUND.read_text())["cells"]
    assert [cell["method"] for cell in first[:5]] == ["centralized", "federated", "noise 1", "fgcl 1", "fgcl, in all 1"]
    assert all(0 < cell["runs"][0]["test"] <= 100 for cell in first)
    capsys.readouterr()
    call(tables, *options, 2)
    told = capsys.readouterr().out
    again = json.loads(tables.FOUND.read_text())["cells"]
    assert [cell["runs"][:1] for cell in again] == [cell["runs"] for cell in first]
    assert (told.count("'seed': 1"), told.count("'seed': 0")) == (10, 0)
    assert "| gcn | bace | 2 |" in told
    assert "| *paper* | | | 81.5 | 63.7 | 62.5 | 66.6 |  |" in told


def test_what_is_compared_spends_what_it_says(scripts):
    tables = scripts["tables"]
    views = {name: tables.method_of(name, 1.0)["epsilons"] for name in tables.NOISY}
    assert views == {"noise": [1.0], "fgcl": [1.0, 1.0], "fgcl, in all": [0.5, 0.5]}


def test_settings_are_the_papers_and_its_frameworks(scripts_of):
    tables = scripts_of("fgcl", "tables")["tables"]
    plan = tables.study("tox21", "lightgcn", "scaffold", tables.method_of("fgcl", 1.0), 100, 3)
    (method,) = plan.method_list()
    assert (plan.parties, plan.partition) == (8, {"name": "quantity-dirichlet", "beta": 0.5})
    assert (method.rounds, method.local.epochs, method.stack, method.temperature) == (100, 1, 100, 1.0)
    assert (plan.data["split"], plan.data["features"], plan.model["hidden"]) == ("scaffold", "no-bonds", 64)


def test_sweeps_go_on_and_are_drawn(scripts, call, tmp_path, monkeypatch, capsys):
    sweeps = scripts["sweeps"]
    monkeypatch.setattr(sweeps, "FOUND", tmp_path / "results" / "sweeps.json")
    options = ("--data", "bace", "--parameters", "gamma", "post", "--rounds", 1, "--write", "--seeds")
    call(sweeps, *options, 1)
    cells = json.loads(sweeps.FOUND.read_text())["cells"]
    assert len(cells) == 5 + 2 * 5  # one view has post-processing too
    capsys.readouterr()
    call(sweeps, *options, 2)
    told = capsys.readouterr().out
    assert (told.count("'seed': 1"), told.count("'seed': 0")) == (15, 0)
    assert told.count("\n| threshold 0.5 | 2 |") == 1
    page = sweeps.FOUND.with_suffix(".html").read_text()
    assert page.count("<svg") == 2
    assert "bace, gcn: gamma" in page


def test_pairs_of_budgets_are_the_papers_ten(scripts):
    assert len(scripts["sweeps"].RANGES["epsilons"]) == 10


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
