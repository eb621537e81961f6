"""FCLG's benchmarks run, on a few generated graphs and without looking at the clock."""

import json

import pytest

from isthmus.study.config import Study


@pytest.fixture
def scripts(scripts_of, monkeypatch, tmp_path):
    """The folder's scripts by name, on generated graphs instead of the paper's sets; results go elsewhere."""
    found = scripts_of("fclg", "tables", "search", "speed", "sweeps", "pictures")
    study = found["tables"].study

    def small(*plan, **more):
        whole = study(*plan, **more).model_dump()
        task = {**whole["task"], "probe": 2}
        return Study.of({**whole, "data": {"name": "motifs", "graphs": 60}, "task": task})

    for script in found.values():
        monkeypatch.setattr(script, "study", small)
    monkeypatch.setattr(found["tables"], "EMD", dict.fromkeys(found["tables"].SETS, 0.5))
    monkeypatch.setattr(found["tables"], "FOUND", tmp_path / "results" / "tables.json")
    for name in ("tables", "search"):
        monkeypatch.setattr(found[name], "SEARCH", tmp_path / "results" / "search.json")
    return found


def test_the_table_takes_what_the_search_has_found(scripts, call, capsys, monkeypatch):
    search, tables = scripts["search"], scripts["tables"]
    monkeypatch.setattr(search, "EVERY", 1)
    monkeypatch.setattr(search, "RATES", (1e-3, 1e-2))
    monkeypatch.setattr(search, "ENCODERS", {name: own[:1] for name, own in search.ENCODERS.items()})
    call(search, "--data", "proteins", "--rounds", 2, "--write")
    cells = json.loads(tables.SEARCH.read_text())["cells"]
    assert [cell["family"] for cell in cells] == ["fclg", "fclg", "infograph", "infograph", "mvgrl", "mvgrl"]
    assert all(run["val"].keys() == {"1", "2"} for cell in cells for run in cell["runs"])
    best = max(tables.score(cell["runs"], at, tables.SCALE) for cell in cells[:2] for at in ("1", "2"))
    setting, rounds = tables.chosen("proteins", "fclg")
    (picked,) = (cell for cell in cells if cell["family"] == "fclg" and cell["setting"] == setting)
    assert tables.score(picked["runs"], str(rounds), tables.SCALE) == best
    assert "| proteins | mvgrl |" in capsys.readouterr().out

    options = ("--data", "proteins", "--cuts", "non-iid", "--rounds", 1, "--write", "--seeds")
    call(tables, *options, 1)
    first = json.loads(tables.FOUND.read_text())["cells"]
    assert [cell["method"] for cell in first] == list(tables.METHODS)
    capsys.readouterr()
    call(tables, *options, 2)
    told = capsys.readouterr().out
    assert (told.count('"seed": 1'), told.count('"seed": 0')) == (9, 0)
    assert "| fclg-h | 2 |" in told


def test_nothing_is_run_before_the_search(scripts, call):
    with pytest.raises(SystemExit, match=r"search.json has nothing for infograph on nci1"):
        call(scripts["tables"], "--data", "nci1")


def test_settings_are_the_papers(scripts_of):
    tables = scripts_of("fclg", "tables")["tables"]
    plan = tables.study("enzymes", "non-iid", {"encoder": "gcn", "lr": 0.01}, {"name": "mvgrl", **tables.PROX}, 20, 3)
    (method,) = plan.method_list()
    assert (plan.parties, plan.partition) == (6, {"name": "label-skew", "emd": 1.2667})
    assert (method.local.optimizer, method.local.epochs, method.training().mu) == ("adamw", 5, 0.01)


@pytest.fixture
def searched(scripts):
    """A search that has found something."""
    tables = scripts["tables"]
    tables.SEARCH.parent.mkdir()
    cells = [
        {
            "data": "proteins",
            "family": family,
            "setting": {"encoder": "gin", "norm": False, "lr": 1e-3},
            "runs": [{"seed": 1000, "val": {"5": {tables.SCALE: {"accuracy": 60.0, "f1": 50.0}}}}],
        }
        for family in ("fclg", "infograph", "mvgrl")
    ]
    tables.SEARCH.write_text(json.dumps({"cells": cells}))
    return scripts


def test_sweeps_go_on_and_are_drawn(searched, call, capsys, monkeypatch, tmp_path):
    sweeps = searched["sweeps"]
    monkeypatch.setattr(sweeps, "FOUND", tmp_path / "results" / "sweeps.json")
    for name in ("emd", "parties"):
        monkeypatch.setitem(sweeps.RANGES, name, dict(list(sweeps.RANGES[name].items())[1:3]))
    options = ("--methods", "fclg", "--rounds", 2, "--write", "--parameters", "rounds", "emd", "parties", "--seeds")
    call(sweeps, *options, 1)
    cells = json.loads(sweeps.FOUND.read_text())["cells"]
    assert [cell["value"] for cell in cells] == ["", "0.2", "0.4", "4", "6"]
    assert len(cells[0]["runs"][0]["by round"]) == 2
    capsys.readouterr()
    call(sweeps, *options, 2)
    assert "| proteins, emd | 0.2 | 0.4 |" in capsys.readouterr().out
    page = sweeps.FOUND.with_suffix(".html").read_text()
    assert "proteins, fclg: parties" in page


def test_embeddings_are_drawn_round_by_round(searched, call, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(searched["pictures"], "HERE", tmp_path)
    call(searched["pictures"], "--rounds", 1, 2, "--write")
    assert capsys.readouterr().out.count("silhouette") == 2
    picture = (tmp_path / "pictures-proteins.svg").read_text()
    assert picture.count("<circle") == 120


def test_both_sides_of_the_speed_hold_the_same_graphs(scripts, call, capsys):
    six, one = scripts["speed"].sites("proteins", "fclg")
    assert (len(six.hosted), len(one.hosted)) == (6, 1)
    assert sum(six.hosted.items) == sum(one.hosted.items) == 60
    call(scripts["speed"], "--methods", "fclg", "--repeats", 1)
    assert "fclg" in capsys.readouterr().out
