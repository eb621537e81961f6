"""FedGC's benchmarks run, on small generated banks and without looking at the clock."""

import json

import pytest

from isthmus.study.config import Study

QUICK = {"teaching": 1, "transforming": {"epochs": 2}, "target": {"epochs": 3}, "rounds": 2, "every": 1, "ratio": 0.1}


@pytest.fixture
def scripts(scripts_of, monkeypatch):
    """The folder's scripts by name, on generated banks and with few rounds."""
    found = scripts_of("fedgc", "tables", "scale")
    tables = found["tables"]
    study = tables.study_of

    def small(*plan):
        whole = study(*plan).model_dump()
        (method,) = whole["methods"]
        kept = QUICK if method["name"] == "fedgc" else {key: QUICK[key] for key in ("rounds",)}
        data, model = {"name": "banks", "nodes": 240}, {"encoder": "gcn", "hidden": 8}
        return Study.of({**whole, "data": data, "parties": 4, "methods": [{**method, **kept}], "model": model})

    monkeypatch.setattr(tables, "study_of", small)
    audit = tables.Membership
    monkeypatch.setattr(tables, "Membership", lambda: audit(shadows=2, others=30, shadow={"epochs": 3}))
    return found


def test_the_table_is_made_seed_by_seed_and_goes_on(scripts, call, tmp_path, monkeypatch, capsys):
    tables = scripts["tables"]
    monkeypatch.setattr(tables, "FOUND", tmp_path / "results" / "tables.json")
    options = ("--study", "table", "--data", "cora", "--rows", "GCN", "FedAvg", "FedGC", "--write", "--seeds")
    call(tables, *options, 1)
    first = json.loads(tables.FOUND.read_text())["cells"]
    assert [cell["row"] for cell in first] == ["GCN", "FedAvg", "FedGC"]
    capsys.readouterr()
    call(tables, *options, 2)
    told = capsys.readouterr().out
    again = json.loads(tables.FOUND.read_text())["cells"]
    assert [cell["runs"][:1] for cell in again] == [cell["runs"] for cell in first]
    assert (told.count("'seed': 1"), told.count("'seed': 0")) == (3, 0)
    assert "| cora, r = 2.6 % | seeds | accuracy | paper |" in told
    assert told.splitlines()[-2].endswith("| 80.8 |")


def test_the_ablation_measures_members_by_round_and_is_drawn(scripts, call, tmp_path, monkeypatch, capsys):
    tables = scripts["tables"]
    monkeypatch.setattr(tables, "FOUND", tmp_path / "results" / "tables.json")
    call(tables, "--study", "ablation", "--data", "cora", "--rows", "FedGC", "- ib", "--seeds", 1, "--write")
    cells = json.loads(tables.FOUND.read_text())["cells"]
    assert [cell["row"] for cell in cells] == ["FedGC", "- ib"]
    for cell in cells:
        assert [line[0] for line in cell["runs"][0]["by round"]] == [1, 2]
        assert all(0 <= cell["runs"][0][figure] <= 1 for figure in ("auc", "f1", "likelihood", "tpr"))
    page = (tables.FOUND.parent / "sweeps.html").read_text()
    assert "cora, FedGC, by round: MIA AUC" in page
    assert "MIA AUC" in capsys.readouterr().out


def test_other_models_are_trained_on_the_condensed_graph(scripts, call, capsys):
    call(scripts["tables"], "--study", "models", "--data", "cora", "--seeds", 1)
    told = capsys.readouterr().out
    assert [line.split(" | ")[0].strip("| ") for line in told.splitlines()[-7:-1]] == list(scripts["tables"].MODELS)


def test_settings_are_the_papers(scripts_of):
    tables = scripts_of("fedgc", "tables")["tables"]
    plan = tables.study_of("table", "cora", tables.METHODS["FedGC"], 0.026, 3)
    (method,) = plan.method_list()
    assert (plan.parties, plan.partition) == (10, {"name": "label-dirichlet", "beta": 1.0})
    assert (plan.model["hidden"], method.ratio, method.hops, method.distance) == (256, 0.026, 2, "mse")
    assert (
        tables.study_of("ablation", "cora", tables.PARTS["- com"] | {"name": "fedgc"}, 0.026, 0).partition["beta"]
        == 100
    )
    assert tables.study_of("table", "ogbn-arxiv", tables.METHODS["FedGC"], 0.0025, 0).parties == 5
    kinds = {name: options["name"] for name, options in tables.METHODS.items()}
    assert set(kinds.values()) >= {"gcond", "doscond", "sfgc", "fedgcn", "fedsage-plus", "bds-gcn", "centralized"}


def test_the_large_graph_is_condensed(scripts, call, capsys):
    call(scripts["scale"], "--nodes", 600, "--edges", 2000, "--classes", 3, "--features", 8, "--rounds", 2)
    found = json.loads(capsys.readouterr().out)
    assert (found["nodes"], found["synthetic"], found["rounds"]) == (600, 3, 2)
    assert found["peak MB"] > 0
