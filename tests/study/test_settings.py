"""A grid gives every method all combinations that apply to it, and validation data alone rank them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from torch_geometric import nn as gnn

import isthmus
from isthmus.errors import IsthmusError
from isthmus.nn.encoders import Gcn
from isthmus.result_files import Tried
from isthmus.study.config import Study, read_toml
from isthmus.study.loop import RunResult
from isthmus.study.model_files import load_model
from isthmus.study.own_models import model_table
from isthmus.study.run import run_study
from isthmus.study.settings import budget_notes, combine, rank, search_of_grid
from isthmus.testing import small_parties

SMALL = {"data": {"name": "banks", "nodes": 120}, "training": {"rounds": 2}}


def study_of(*methods: dict[str, Any], **grid: Any) -> Study:
    return Study.of({**SMALL, "methods": list(methods), "grid": grid})


def test_every_method_has_every_combination_of_the_options_that_it_has() -> None:
    study = study_of(
        {"name": "fedprox", "fraction": 0.5}, {"name": "fedavg"}, {"name": "majority"},
        local={"lr": [0.1, 1]}, mu=[0.5],
    )  # fmt: skip
    found = [(each.of, dict(each.values), each.method.label) for each in study.settings()]
    assert found == [
        ("fedprox", {"local.lr": 0.1, "mu": 0.5}, "fedprox local.lr=0.1 mu=0.5"),
        ("fedprox", {"local.lr": 1, "mu": 0.5}, "fedprox local.lr=1 mu=0.5"),
        ("fedavg", {"local.lr": 0.1}, "fedavg local.lr=0.1"),
        ("fedavg", {"local.lr": 1}, "fedavg local.lr=1"),
        ("majority", {}, "majority"),
    ]
    first = study.settings()[0].method.model_dump()
    assert (first["local"]["lr"], first["mu"], first["fraction"], first["rounds"]) == (0.1, 0.5, 0.5, 2)
    assert budget_notes(study.settings()) == [
        "majority ran with 1 of up to 2 settings: the grid does not vary 'local.lr', 'mu' for it"
    ]


def test_values_for_one_method_alone_replace_those_for_all() -> None:
    study = study_of(
        {"name": "fedprox"}, {"name": "fedavg"}, **{"local.lr": [0.1], "fedprox": {"local": {"lr": [1, 2]}}}
    )
    assert [each.method.label for each in study.settings()] == [
        "fedprox local.lr=1", "fedprox local.lr=2", "fedavg local.lr=0.1",
    ]  # fmt: skip


def test_lists_and_tables_are_values_too() -> None:
    found = study_of({"name": "fedavg"}, aggregate=["median", {"name": "krum"}], local={"fan_out": [[5, 5]]}).settings()
    assert [each.method.label for each in found] == [
        "fedavg aggregate=median local.fan_out=5,5", "fedavg aggregate=name-krum local.fan_out=5,5".replace("-", "="),
    ]  # fmt: skip
    assert [each.method.model_dump()["aggregate"]["name"] for each in found] == ["median", "krum"]


@pytest.mark.parametrize(
    ("grid", "line"),
    [
        ({"lr": [0.1]}, "did you mean 'local.lr'?"),
        ({"local": {"lr": 0.1}}, "'local.lr' is 0.1: give a list of values"),
        ({"local": {"lr": []}}, "give a list of values"),
        ({"local": {"lr": [0.1, 0.1]}}, "'local.lr' lists a value twice"),
        ({"local": {"lr": [-1]}}, "option 'local.lr' is -1: give more than 0"),
        ({"label": ["a", "b"]}, "no method of the study has an option 'label'"),
        ({"weighting": ["x" * 200]}, "option 'label'"),
        ({"model": {"hiden": [4]}}, "encoder 'gcn': unknown option 'hiden': did you mean 'hidden'?"),
        ({"model": {"hidden": [0]}}, "encoder 'gcn': option 'hidden' is 0"),
        ({"model": {"encoder": ["gcn", "gcnn"]}}, "unknown encoder 'gcnn': did you mean 'gcn'?"),
        ({"fedprox": {"model": {"hidden": [4]}}}, "'fedprox.model.hidden': method 'fedprox' is not in this study"),
        ({"data": {"train": [0.3]}}, "grid: 'data.train' has one value in each study: only options of methods"),
        ({"data_seed": [0, 1]}, "grid: 'data_seed' has one value in each study"),
        ({"data": {"trian": [0.3]}}, "did you mean data.train, which has one value in each study?"),
        ({"fedprox": {"mu": [1]}}, "add it with { name = 'fedprox' } in [[methods]]"),
        ({"fedavg": {"fractoin": [1]}}, "'fedavg' has no option 'fractoin': did you mean 'fedavg.fraction'?"),
        ({"local": {"lr": ["0.01..0.1"]}}, "'local.lr' is the range 0.01..0.1: a grid lists values"),
        ({"local": {"lr": "0.01..0.1"}}, "'local.lr' is the range 0.01..0.1: a grid lists values"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(grid: dict[str, Any], line: str) -> None:
    with pytest.raises(IsthmusError) as error:
        study_of({"name": "fedavg"}, **grid)
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_a_value_that_the_grid_replaces_is_refused_unless_a_protocol_sets_it() -> None:
    varied = {**SMALL, "training": {"local": {"epochs": 2}}, "grid": {"local": {"epochs": [1, 2]}}}
    with pytest.raises(IsthmusError, match=r"'local.epochs' has a value of its own and values in the grid"):
        Study.of(varied)
    with pytest.raises(IsthmusError, match=r"run: 'local\.epochs' has a value of its own"):
        isthmus.run("fedavg", local={"epochs": 2}, grid={"local.epochs": [1, 2]})
    by_protocol = Study.of({"protocol": "fed-pub", "grid": {"local": {"epochs": [1, 2]}}})
    assert by_protocol.training["local"]["epochs"]
    assert Study.of(by_protocol.model_dump()) == by_protocol  # as a process that does its runs reads it


def test_a_grid_over_the_model_trains_every_method_that_has_one_with_each_value(tmp_path: Path) -> None:
    study = study_of({"name": "fedavg"}, {"name": "majority"}, **{"model.hidden": [4, 8], "local.epochs": [1]})
    results = run_study(study, tmp_path / "grid")
    labels = [f"fedavg model.hidden={hidden} local.epochs=1" for hidden in (4, 8)]
    assert [run.method for run in results.runs] == [*labels, "majority"]
    for hidden, run in zip((4, 8), results.runs, strict=False):
        plain = {"methods": [{"name": "fedavg", "local": {"epochs": 1}}], "model": {"encoder": "gcn", "hidden": hidden}}
        (due,) = run_study(Study.of({**SMALL, **plain})).runs
        assert run.history == due.history
        model = load_model(tmp_path / "grid", method=run.method)
        assert model.description["model"]["hidden"] == hidden
    assert results.search is not None
    assert {each.values.get("model.hidden") for each in results.search.tried} == {4, 8, None}
    again = run_study(Study.of(read_toml(tmp_path / "grid" / "study.toml")))
    assert [run.history for run in again.runs] == [run.history for run in results.runs]


def test_a_grid_compares_encoders_and_keeps_what_is_set_for_all() -> None:
    study = Study.of({**SMALL, "model": {"encoder": "gat", "hidden": 8, "heads": 4}, "grid": {
        "model.encoder": ["gat", "gin"], "fedprox": {"model": {"hidden": [4]}},
    }, "methods": [{"name": "fedavg"}, {"name": "fedprox"}]})  # fmt: skip
    for again in (study, Study.of(study.resolved())):
        found = {method.label: model_table(again.encoder(method)) for method in again.method_list()}
        assert {label: (table["encoder"], table["hidden"], table["pool"]) for label, table in found.items()} == {
            "fedavg model.encoder=gat": ("gat", 8, "mean"),
            "fedavg model.encoder=gin": ("gin", 8, "sum"),
            "fedprox model.encoder=gat model.hidden=4": ("gat", 4, "mean"),
            "fedprox model.encoder=gin model.hidden=4": ("gin", 4, "sum"),
        }


def test_a_grid_over_a_model_that_is_an_object_is_refused_or_read_by_name() -> None:
    parties = small_parties("node")
    results = isthmus.run("fedavg", parties, model=Gcn(layers=1), rounds=1, grid={"model.hidden": [4, 8]})
    assert [run.method for run in results.runs] == ["fedavg model.hidden=4", "fedavg model.hidden=8"]
    with pytest.raises(IsthmusError, match="object made in Python, which has no options: leave model"):
        isthmus.run("fedavg", parties, model=gnn.GCN(16, 8, 2, 4), rounds=1, grid={"model.hidden": [4, 8]})


def test_one_method_may_stand_in_a_study_twice_with_a_label() -> None:
    named = {"name": "fedavg", "label": "one epoch", "local": {"epochs": 1}}
    assert [each.label for each in study_of({"name": "fedavg"}, named).method_list()] == ["fedavg", "one epoch"]
    with pytest.raises(IsthmusError, match="method 'fedavg' is listed twice: give each a label"):
        study_of({"name": "fedavg"}, {"name": "fedavg", "label": "FedAvg"})
    with pytest.raises(IsthmusError, match="option 'label' is"):
        study_of({"name": "fedavg", "label": "../up"})


def test_a_federation_runs_each_method_once() -> None:
    with pytest.raises(IsthmusError, match="a federation runs each method once"):
        Study.of_federation({"grid": {"local": {"lr": [0.1, 1]}}})


def run(method: str, val: float, test: float, seed: int = 0) -> RunResult:
    return RunResult(method, seed, 1, 1, 0.0, {"val_accuracy": val, "test_accuracy": test}, [], None)  # type: ignore[arg-type]


def test_validation_ranks_whatever_test_data_say() -> None:
    settings = study_of({"name": "fedavg"}, {"name": "local"}, local={"lr": [0.1, 1]}).settings()
    scores = {
        "fedavg local.lr=0.1": 0.7, "fedavg local.lr=1": 0.5, "local local.lr=0.1": math.nan, "local local.lr=1": 0.6,
    }  # fmt: skip
    runs = [run(label, val, 1 - val) for label, val in scores.items()]
    search = search_of_grid(settings, runs, "accuracy")
    assert search.metric == "val_accuracy"
    assert [(each.label, each.chosen) for each in search.tried] == [
        ("fedavg local.lr=0.1", True), ("local local.lr=1", True), ("fedavg local.lr=1", False),
        ("local local.lr=0.1", False),
    ]  # fmt: skip


def test_a_loss_is_ranked_from_below() -> None:
    tried = [Tried.of_values("fedavg", {"mu": mu}, [value]) for mu, value in ((1, 0.3), (2, 0.1), (3, 0.2))]
    assert [each.values["mu"] for each in rank(tried, "val_rmse")] == [2, 3, 1]


def test_without_a_grid_every_method_stands_once() -> None:
    methods = study_of({"name": "fedavg"}, {"name": "local"}).listed_methods()
    assert [each.method for each in combine(methods, {})] == methods


def test_results_of_a_grid_rank_its_settings_and_note_what_lacks_options() -> None:
    study = study_of({"name": "fedavg"}, {"name": "majority"}, local={"lr": [0.0001, 0.05]})
    results = run_study(study)
    assert [run.method for run in results.runs] == ["fedavg local.lr=0.0001", "fedavg local.lr=0.05", "majority"]
    assert results.search is not None
    means = [each.mean for each in results.search.tried]
    assert means == sorted(means, reverse=True)
    assert {each.of for each in results.search.tried if each.chosen} == {"fedavg", "majority"}
    assert any(note.startswith("majority ran with 1 of up to 2 settings") for note in results.notes)
    saved = results.to_dict()["search"]
    assert [each["label"] for each in saved["tried"]] == [each.label for each in results.search.tried]
    assert all("test" not in key for each in saved["tried"] for key in each)
    again = Study.of(results.study)
    assert [each.label for each in again.method_list()] == [run.method for run in results.runs]


def test_options_that_change_nothing_are_noted() -> None:
    grid = {"local": {"lr": [0.001, 0.05]}, "model": {"hidden": [16, 32]}}
    of_sgc = Study.of({"methods": [{"name": "fedavg", "rounds": 2}], "model": {"encoder": "sgc"}, "grid": grid})
    notes = [note for note in run_study(of_sgc).notes if "no effect" in note]
    same = "fedavg local.lr=0.001 model.hidden=16 and fedavg local.lr=0.001 model.hidden=32"
    assert notes == [f"{same} are the same in every round: 'model.hidden' has no effect there"]
    of_gcn = Study.of({"methods": [{"name": "fedavg", "rounds": 2}], "grid": grid})
    assert not any("no effect" in note for note in run_study(of_gcn).notes)


def test_a_search_by_another_metric_shows_the_judging_one_on_test_data() -> None:
    found = search_of_grid([], [], "loss")
    assert found.test_metrics(["accuracy", "accuracy"]) == ["test_accuracy"]
    assert found.test_metrics([""]) == ["test_loss"]
