"""A study is what a person wrote, checked; what is wrong is named in one line with the nearest right name."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus import toml
from isthmus.errors import IsthmusError
from isthmus.options import merge
from isthmus.study.config import Study, parse_assignments, read_toml

EVERYTHING = """
parties = 3
seeds = [1, 2]
data_seed = 7
unlabelled = "idle"
device = "cpu"
wire = true

[data]
name = "banks"
nodes = 90
cross = 0.2

[partition]
name = "label-dirichlet"
beta = 1.5

[model]
encoder = "gat"
heads = 2

[training]
rounds = 5
fraction = 0.5
local = { epochs = 3 }

[[methods]]
name = "fedavg"

[[methods]]
name = "fedprox"
mu = 0.25
rounds = 9

[[methods]]
name = "scaffold"
local = { lr = 0.3 }

[[methods]]
name = "local"
"""


def everything(**changes: Any) -> Study:
    return Study.of(merge(tomllib.loads(EVERYTHING), changes))


def test_every_table_is_read() -> None:
    study = everything()
    assert (study.parties, study.seeds, study.data_seed, study.unlabelled, study.wire) == (3, [1, 2], 7, "idle", True)
    assert study.data_set().model_dump().items() >= {"nodes": 90, "cross": 0.2, "parties": 3}.items()
    assert study.named_partition() is not None
    assert study.named_partition().model_dump()["beta"] == 1.5
    assert (study.encoder().name, study.encoder().model_dump()["heads"]) == ("gat", 2)
    assert study.torch_device() == torch.device("cpu")


def test_a_task_without_a_name_is_the_one_that_the_labels_ask_for() -> None:
    study = Study.of(
        {"data": {"name": "banks", "nodes": 80}, "task": {"metric": "macro_f1", "class_weights": "balanced"}}
    )
    assert study.named_task() is None
    loaded = study.load(0)
    assert (loaded.task.name, loaded.task.judged_by, loaded.task.selected_by) == (
        "node-classification", "macro_f1", "macro_f1",
    )  # fmt: skip
    assert study.resolved(loaded)["task"] == {
        "name": "node-classification", "metric": "macro_f1", "select_by": "macro_f1", "classes": 4,
        "class_weights": "balanced", "focal_gamma": 0.0, "positive": None, "threshold": 0.5,
        "max_fpr": 0.001, "top_k": 100,
    }  # fmt: skip
    assert Study.of(study.resolved(loaded)).load(0).task == loaded.task


def test_a_number_of_seeds_stands_for_the_first_ones() -> None:
    assert Study.of({"seeds": 3}).seeds == [0, 1, 2]


def test_training_goes_to_the_methods_that_have_the_option() -> None:
    fedavg, fedprox, scaffold, local = everything().method_list()
    assert (fedavg.rounds, scaffold.rounds, local.rounds) == (5, 5, 5)
    assert (fedavg.fraction, fedprox.fraction, scaffold.fraction) == (0.5, 0.5, 0.5)
    assert "fraction" not in type(local).model_fields
    assert {method.local.epochs for method in (fedavg, fedprox, scaffold, local)} == {3}


def test_methods_own_table_goes_over_training() -> None:
    _, fedprox, _, _ = everything().method_list()
    assert (fedprox.rounds, fedprox.mu) == (9, 0.25)


def test_tables_keep_what_they_do_not_name() -> None:
    _, _, scaffold, _ = everything().method_list()
    assert (scaffold.local.optimizer, scaffold.local.lr, scaffold.local.epochs) == ("sgd", 0.3, 3)


@pytest.mark.parametrize("study", [Study(), everything()], ids=["defaults", "everything"])
def test_resolved_is_a_fixed_point(study: Study) -> None:
    resolved = study.resolved()
    assert Study.of(resolved).resolved() == resolved
    assert Study.of(tomllib.loads(toml.dumps(resolved))).resolved() == resolved


def test_resolved_with_parties_tells_the_cut_and_their_number() -> None:
    study = Study.of({"data": {"name": "banks", "nodes": 60, "parties": 3}})
    resolved = study.resolved(study.load(0))
    assert (resolved["parties"], resolved["partition"]["name"]) == (3, "given")
    assert Study.of(resolved).resolved() == resolved


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (3, "study is 3: give a table of options"),
        ({"dat": {}}, "study: unknown option 'dat': did you mean 'data'?"),
        ({"seed": 1}, "study: unknown option 'seed': did you mean 'seeds'?"),
        ({"rounds": 5}, "study: unknown option 'rounds': did you mean 'training.rounds'?"),
        ({"local": {"epochs": 3}}, "study: unknown option 'local': did you mean 'training.local'?"),
        ({"encoder": "gcn"}, "study: unknown option 'encoder': did you mean 'model.encoder'?"),
        ({"data": {"name": "bank"}}, "unknown data set 'bank': did you mean 'banks'?"),
        ({"data": {"nam": "banks"}}, "data: give 'name' (a text); is 'nam' meant to be 'name'?"),
        ({"model": {"name": "gap"}}, "model: give 'encoder' (a text); is 'name' meant to be 'encoder'?"),
        ({"data": {"name": "banks", "nods": 9}}, "data 'banks': unknown option 'nods': did you mean 'nodes'?"),
        ({"data": "banks"}, "study: option 'data' is 'banks': give a table of options"),
        ({"partition": {"name": "louvian"}}, "unknown partition 'louvian': did you mean 'louvain'?"),
        ({"partition": {"name": "louvain", "resolutoin": 1}},
         "partition 'louvain': unknown option 'resolutoin': did you mean 'resolution'?"),
        ({"model": {"encoder": "gcnn"}}, "unknown encoder 'gcnn': did you mean 'gcn'?"),
        ({"model": {"hiden": 8}}, "encoder 'gcn': unknown option 'hiden': did you mean 'hidden'?"),
        ({"training": {"ronds": 3}}, "training: no method of the study has an option 'ronds': did you mean 'rounds'?"),
        ({"training": {"local": {"epoch": 3}}},
         "method 'fedavg': unknown option 'local.epoch': did you mean 'local.epochs'?"),
        ({"training": {"mu": 0.1}}, "training: no method of the study has an option 'mu': methods that have it: fed"),
        ({"training": {"encoder": "sage"}},
         "training: no method of the study has an option 'encoder': did you mean encoder in [model]?"),
        ({"methods": [{"name": "fedprx"}]}, "unknown method 'fedprx': did you mean 'fedprox'?"),
        ({"methods": [{"name": "fedprox", "mue": 1}]}, "method 'fedprox': unknown option 'mue': did you mean 'mu'?"),
        ({"methods": [{"rounds": 1}]}, "methods: give 'name' (a text)"),
        ({"methods": ["fedavg"]}, "study: option 'methods.0' is 'fedavg': give a table of options"),
        ({"methods": []}, "there is no method: name at least one"),
        ({"methods": [{"name": "fedavg"}, {"name": "FedAvg"}]}, "study: method 'fedavg' is listed twice"),
        ({"seeds": []}, "study: option 'seeds' is []: "),
        ({"seeds": [1, 1]}, "study: a seed is listed twice: give each of [1, 1] once"),
        ({"seeds": [-1]}, "study: option 'seeds.0' is -1: give at least 0"),
        ({"data_seed": -1}, "study: option 'data_seed' is -1: give at least 0"),
        ({"parties": 0}, "study: option 'parties' is 0: give at least 1"),
        ({"unlabelled": "idl"}, "study: option 'unlabelled' is 'idl': give 'error' or 'idle'"),
        ({"device": "cpuu"}, "unknown device 'cpuu': did you mean 'cpu'?"),
        ({"wire": "perhaps"}, "study: option 'wire' is 'perhaps': give true or false"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_in_one_line(wrong: Any, text: str) -> None:
    with pytest.raises(IsthmusError) as caught:
        Study.of(wrong)
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(IsthmusError, match="device 'cuda:0' is not at hand on this machine: use cpu"):
        Study.of({"device": "cuda:0"})


def labels(study: Study, seed: int) -> list[Any]:
    return [(party.graph.y.tolist(), party.train.tolist()) for party in study.load(seed).parties]


def test_each_seed_draws_its_own_data() -> None:
    study = Study.of({"data": {"name": "banks", "nodes": 60}})
    assert labels(study, 0) == labels(study, 0)
    assert labels(study, 0) != labels(study, 1)


def test_data_seed_gives_all_seeds_the_same_data() -> None:
    study = Study.of({"data": {"name": "banks", "nodes": 60}, "data_seed": 5})
    assert labels(study, 0) == labels(study, 1)
    assert labels(study, 0) == labels(Study.of({"data": {"name": "banks", "nodes": 60}}), 5)
    assert Study.of({"data_seed": "run"}) == Study.of({})


NO_LABELS = {"data": {"name": "banks", "nodes": 40, "train": 0.045}}


def test_a_range_of_no_option_is_refused_without_a_search_too() -> None:
    with pytest.raises(
        IsthmusError, match=r"^tune: no method of the study has an option 'epochs': did you mean 'local"
    ):
        Study.of({"tune": {"epochs": "1..5"}})


def test_party_without_training_labels_is_an_error_that_names_it() -> None:
    with pytest.raises(
        IsthmusError, match=r"^party 'party-\d' has no training label .* have none\): .*unlabelled='idle'$"
    ):
        Study.of(NO_LABELS).load(0)


def test_party_without_training_labels_may_be_idle() -> None:
    parties = Study.of({**NO_LABELS, "unlabelled": "idle"}).load(0).parties
    assert any(not party.train.any() for party in parties)
    assert any(party.train.any() for party in parties)


@pytest.mark.parametrize(
    ("study", "expected"),
    [
        ({"data": {"name": "banks", "parties": 3, "nodes": 60}}, ("given", 3)),
        ({"data": {"name": "banks", "nodes": 60}, "parties": 5}, ("given", 5)),
        ({"data": {"name": "motifs", "graphs": 40}}, ("random", 4)),
        ({"data": {"name": "motifs", "graphs": 40}, "parties": 2, "partition": {"name": "iid"}}, ("iid", 2)),
    ],
)
def test_cut_and_number_follow_the_data_unless_given(study: dict[str, Any], expected: tuple[str, int]) -> None:
    loaded = Study.of(study).load(0)
    assert (loaded.partition.name, len(loaded.parties)) == expected


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["local.lr=0.1", "local.epochs=3"], {"local": {"lr": 0.1, "epochs": 3}}),
        (["data.name=cora", "a='x = y'", "b=x=y"], {"data": {"name": "cora"}, "a": "x = y", "b": "x=y"}),
        (["wire=true", "seeds=[0, 1]", "x = 5 "], {"wire": True, "seeds": [0, 1], "x": 5}),
        (["empty="], {"empty": ""}),
        ([], {}),
    ],
)
def test_settings_are_read_as_toml_or_as_text(texts: list[str], expected: dict[str, Any]) -> None:
    assert parse_assignments(texts) == expected


@pytest.mark.parametrize("text", ["rounds", "=3", "a..b=3", ".a=3"])
def test_setting_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(IsthmusError, match="write it as key=value"):
        parse_assignments([text])


def test_setting_inside_a_value_is_refused() -> None:
    with pytest.raises(IsthmusError, match="'local' already has a value"):
        parse_assignments(["local=3", "local.lr=0.1"])


def test_merging_goes_table_by_table_and_changes_neither() -> None:
    base, changes = {"a": {"x": 1, "y": 2}, "b": 1, "c": {"z": 1}}, {"a": {"y": 3}, "b": {"w": 2}, "c": 0}
    assert merge(base, changes) == {"a": {"x": 1, "y": 3}, "b": {"w": 2}, "c": 0}
    assert (base["a"], changes["a"]) == ({"x": 1, "y": 2}, {"y": 3})


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "No such file or directory; give the path of a TOML file"),
        (b"\xff\xfe", "not a text file"),
        (b"[data\n", "is not TOML: "),
    ],
)
def test_unreadable_study_is_one_line(tmp_path: Path, content: bytes | None, text: str) -> None:
    file = tmp_path / "study.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(IsthmusError) as caught:
        read_toml(file)
    assert text in str(caught.value)
    assert str(file) in str(caught.value)
