"""FedGL's benchmarks run, on small data and without looking at the clock."""

import json

import pytest

from isthmus.study.config import Study


@pytest.fixture
def scripts(scripts_of, monkeypatch):
    """The folder's scripts by name, on the parties of a small generated graph instead of the paper's sets."""
    found = scripts_of("fedgl", "tables", "sweeps", "pictures", "scale")
    study = found["tables"].study

    def small(data, *rest):
        plan = study(data, *rest).model_dump()
        whole = {"name": "banks", "nodes": 120}
        return Study.of({**plan, "data": whole, "partition": {**plan["partition"]}})

    for name in ("tables", "pictures"):
        monkeypatch.setattr(found[name], "study", small)
    return found


@pytest.mark.parametrize(
    ("table", "data", "lines"), [(2, "cora", 1), (3, "acm", 3), (4, "wiki", 4), (5, "citeseer", 4)]
)
def test_tables_are_made_seed_by_seed_and_go_on(scripts, tmp_path, monkeypatch, call, capsys, table, data, lines):
    tables = scripts["tables"]
    monkeypatch.setattr(tables, "FOUND", tmp_path / "results" / "tables.json")
    options = ("--table", table, "--data", data, "--methods", "federated", "fedgl", "--rounds", 2, "--write", "--seeds")
    call(tables, *options, 1)
    first = json.loads(tables.FOUND.read_text())["cells"]
    assert len(first) == 2 * lines
    assert all(0 < cell["runs"][0]["global"] <= 100 and cell["runs"][0]["rounds"] == 2 for cell in first)
    capsys.readouterr()
    call(tables, *options, 2)
    told = capsys.readouterr().out
    again = json.loads(tables.FOUND.read_text())["cells"]
    assert [cell["runs"][:1] for cell in again] == [cell["runs"] for cell in first]
    assert all(len(cell["runs"]) == 2 for cell in again)
    assert told.count("'seed': 1") == 2 * lines
    assert told.count("'seed': 0") == 0
    assert told.count(f"\n| {data} |") == 2 * lines  # both goals


def test_settings_are_the_papers(scripts_of):
    tables = scripts_of("fedgl", "tables")["tables"]
    plan = tables.study("wiki", tables.METHODS["fedgl"], 3, {})
    (method,) = plan.method_list()
    assert (method.threshold, method.alpha, method.beta, method.neighbours) == (0.1, 0.1, 1.0, 100)
    assert (method.rounds, method.patience, method.local.epochs, method.local.optimizer) == (300, 30, 10, "adam")
    assert plan.partition == {"name": "overlap"}
    assert plan.data == {"name": "wiki", "train_per_class": 20, "val": 500, "test": 1000}
    few = tables.study("cora", tables.METHODS["federated"], 0, {"labels": 5})
    assert few.data == {"name": "cora", "train_per_class": 5, "val": 500, "test": 1000, "split": "random"}


def test_sweeps_go_over_the_papers_ranges(scripts, tmp_path, monkeypatch, call, capsys):
    sweeps = scripts["sweeps"]
    monkeypatch.setattr(sweeps, "FOUND", tmp_path / "sweeps.json")
    monkeypatch.setitem(sweeps.RANGES, "beta", (0.0, 0.5))
    call(sweeps, "--parameters", "beta", "--data", "cora", "--seeds", 1, "--rounds", 2, "--write")
    assert "beta = 0.0 | 0.5 |" in capsys.readouterr().out
    assert [cell["value"] for cell in json.loads(sweeps.FOUND.read_text())["cells"]] == [0.0, 0.5]


def test_pictures_have_a_panel_for_each_method(scripts, tmp_path, monkeypatch, call, capsys):
    pictures = scripts["pictures"]
    monkeypatch.setattr(pictures, "HERE", tmp_path)
    call(pictures, "--data", "cora", "--rounds", 1, "--write")
    drawn = (tmp_path / "pictures-cora.svg").read_text()
    assert drawn.count("<text") == len(pictures.SHOWN)
    assert drawn.count("<circle") % len(pictures.SHOWN) == 0
    assert capsys.readouterr().out.count("silhouette") == len(pictures.SHOWN)


@pytest.mark.parametrize("what", ["exact", "approximate", "rounds"])
def test_scale_tells_what_it_measured(scripts, monkeypatch, capsys, what):
    scale = scripts["scale"]
    scale.say_alone(what, 200, 5)
    row = json.loads(capsys.readouterr().out)
    assert row["edges"] == (0 if what == "rounds" else 1000)
    assert 0 < row["before_mb"] <= row["peak_mb"]
    assert scale.lines_of([row])[0][1:3] == ["200", "5"]
