"""A study starts from a published protocol: all that the preset says is used, and what the study says wins."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.party_folders import two_drafts

import isthmus
from isthmus.cli.common import read_study
from isthmus.errors import IsthmusError
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.training import LocalTraining
from isthmus.study.config import Study
from isthmus.study.protocol import FOLDER, known_protocols, preset_for, protocol_text, read_protocol
from isthmus.study.run import run_study

NAMES = ("fed-pub", "fed-pub-overlap", "fedgta", "gcfl", "openfgl")
SMALL = {"data": {"name": "banks", "nodes": 90}, "partition": {"name": "random"}, "model": {"hidden": 4}}
"""Instead of the data, which may not be here, and of METIS, which may not be installed."""


def leaves(table: Mapping[str, Any], *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from leaves(value, *path, key)
        else:
            yield (*path, key), value


def at(table: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        table = table[key]
    return table


def test_all_are_known_and_say_where_their_values_come_from() -> None:
    assert tuple(known_protocols()) == NAMES
    for name, summary in known_protocols().items():
        text = protocol_text(name.upper())
        assert text.startswith(f"# {summary}\n# Source: github.com/")
        assert summary.endswith(".")
        assert text == (FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    with pytest.raises(IsthmusError, match=r"^unknown protocol 'fedpub': did you mean 'fed-pub'"):
        Study.of({"protocol": "fedpub"})
    with pytest.raises(IsthmusError, match=r"^unknown protocol 'x': known: fed-pub, fed-pub-overlap, fedgta, gcfl, o"):
        read_protocol("x")
    with pytest.raises(IsthmusError, match="option 'protocol' is 3: give a text"):
        Study.of({"protocol": 3})


@pytest.mark.parametrize("name", NAMES)
def test_every_value_of_a_preset_is_in_the_study(name: str) -> None:
    study = Study.of({"protocol": name, "methods": [{"name": "fedavg"}, {"name": "local"}]})
    resolved = study.resolved()
    resolved["training"] = resolved["methods"][0]
    for path, value in leaves(read_protocol(name)):
        if path != ("seeds",):
            found = at(resolved, path)
            assert list(found) == value if isinstance(value, list) else found == value, path
    seeds = read_protocol(name)["seeds"]
    assert study.seeds == (seeds if isinstance(seeds, list) else list(range(seeds)))


@pytest.mark.parametrize("name", NAMES)
def test_a_study_reads_itself_and_its_record_without_the_protocol(name: str) -> None:
    study = Study.of({"protocol": name, "parties": 20, "data": {"name": "banks"}, "training": {"local": {"lr": 0.5}}})
    assert Study.of(study.model_dump()) == study == Study.of(json.loads(study.model_dump_json()))
    again = Study.of(study.resolved())
    assert again.protocol is None
    assert again.resolved() == study.resolved()


def test_what_the_study_says_wins() -> None:
    study = Study.of(
        {
            "protocol": "fed-pub",
            "parties": 20,
            "seeds": [7],
            "data": {"normalize": False},
            "partition": {"split": [0.5, 0.25, 0.25]},
            "model": {"hidden": 16},
            "training": {"rounds": 3, "local": {"lr": 0.5}},
            "methods": [{"name": "fedavg", "weighting": "train"}, {"name": "fedprox", "local": {"epochs": 4}}],
        }
    )
    resolved = study.resolved()
    first, second = study.method_list()
    assert (resolved["parties"], study.seeds) == (20, [7])
    assert (resolved["data"]["name"], resolved["data"]["normalize"], resolved["data"]["largest_component"]) == (
        *("cora", False, True),
    )
    assert (resolved["partition"]["name"], resolved["partition"]["split"]) == ("metis", (0.5, 0.25, 0.25))
    assert (resolved["model"]["hidden"], resolved["model"]["linear_head"]) == (16, True)
    assert (first.rounds, first.weighting, first.local.lr, first.local.epochs) == (3, "train", 0.5, 1)
    assert (second.weighting, second.local.epochs, second.local.keep_optimizer) == ("even", 4, True)


def test_another_data_set_partition_or_encoder_keeps_the_options_that_it_has() -> None:
    given = {
        "protocol": "fed-pub", "data": {"name": "banks"}, "partition": {"name": "Louvain"}, "model": {"encoder": "sage"}
    }  # fmt: skip
    preset = preset_for(given)
    assert preset["data"] == {}
    assert preset["partition"].keys() == {"edges", "split", "split_by", "split_per_class", "split_rounding"}
    assert preset["model"] == {"hidden": 128, "layers": 2, "dropout": 0.5}
    assert Study.of(given).resolved()["partition"]["split_by"] == "global"
    assert preset_for({**given, "data": {"name": "citeseer"}})["data"] == {
        "largest_component": True, "normalize": True, "split": "public"
    }  # fmt: skip
    assert preset_for({**given, "model": {"encoder": "mine:Model"}})["model"] == {}
    assert preset_for({}) == {}


def test_options_that_no_method_has_are_left_out() -> None:
    (local,) = Study.of({"protocol": "fed-pub", "methods": [{"name": "local"}]}).method_list()
    assert (local.rounds, local.select_over, local.local.weight_decay) == (100, "parties", 1e-6)
    assert Study.of({"protocol": "fed-pub", "methods": [{"name": "majority"}]}).method_list()[0].rounds == 100
    with pytest.raises(IsthmusError, match="training: no method of the study has an option 'weighting'"):
        Study.of({"protocol": "fed-pub", "methods": [{"name": "local"}], "training": {"weighting": "even"}})


def test_flags_win_over_a_protocol_of_a_file_or_a_flag(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text('protocol = "openfgl"\n[training]\nrounds = 9\n', encoding="utf-8")
    none: dict[str, Any] = {"parties": None}
    study = read_study(file, ["data.normalize=true", "local.lr=0.5", "model.dropout=0.1"], **none, partition="louvain")
    resolved = study.resolved()
    assert (resolved["data"]["name"], resolved["data"]["normalize"]) == ("cora", True)
    assert (resolved["partition"]["name"], resolved["partition"]["split_rounding"]) == ("louvain", "floor")
    assert (resolved["model"]["dropout"], resolved["model"]["hidden"]) == (0.1, 64)
    method = study.method_list()[0]
    assert (method.rounds, method.local.lr, method.local.epochs) == (9, 0.5, 3)
    study = read_study(
        file, ["data.name=citeseer", "partition.delta=4"], **none, protocol="fedgta", seeds="2", rounds=4
    )
    resolved = study.resolved()
    assert (resolved["data"]["name"], resolved["data"]["normalize"]) == ("citeseer", False)
    assert (resolved["partition"]["delta"], study.seeds, study.method_list()[0].rounds) == (4, [0, 1], 4)
    assert read_study(None, [], parties=3, protocol="gcfl").parties == 3


def test_a_study_says_which_protocol_it_followed(tmp_path: Path) -> None:
    study = Study.of({"protocol": "fed-pub", **SMALL, "parties": 3, "seeds": 1, "training": {"rounds": 2}})
    results = run_study(study, tmp_path / "out")
    note = "options that the study does not set are those of protocol 'fed-pub' (isthmus protocols fed-pub)"
    assert results.notes[0] == note
    assert Study.of({**study.resolved(), "protocol": None}) is not None
    assert "protocol" not in (tmp_path / "out" / "study.toml").read_text(encoding="utf-8")


def test_organisations_stay_the_parties_unless_a_partition_is_named(tmp_path: Path) -> None:
    for draft in two_drafts():
        draft.write(tmp_path / "banks" / draft.settings["name"])
    data = str(tmp_path / "banks") + "/"
    results = isthmus.run("fedavg", data, protocol="openfgl", rounds=1, seed=0, unlabelled="idle", model={"hidden": 4})
    assert [party.name for party in results.cuts[0].parties] == ["north", "south"]
    assert list(results.study["partition"]["split"]) == read_protocol("openfgl")["partition"]["split"]
    assert results.notes[1] == (
        "the parties are those of the data; openfgl cuts a data set by metis into 10, as partition='metis' would"
    )
    whole = {"protocol": "openfgl", "data": {"name": data}}
    assert Study.of(whole).parties is None
    assert Study.of({**whole, "partition": {"name": "louvain"}}).parties == 10


@pytest.mark.parametrize(("name", "stay"), [("ledgers", True), ("ibm-aml", True), ("fedgb", True), ("cora", False)])
def test_data_sets_of_organisations_keep_their_parties(name: str, stay: bool) -> None:
    study = Study.of({"protocol": "openfgl", "data": {"name": name}})
    assert (study.parties, study.resolved()["partition"]["name"]) == ((None, "given") if stay else (10, "metis"))


def test_python_runs_a_protocol_and_arguments_win() -> None:
    results = isthmus.run(
        ["fedavg", "local"], SMALL["data"], partition="random", parties=3, model={"hidden": 4}, seeds=[5],
        protocol="fed-pub", rounds=2, local={"lr": 0.02},
    )  # fmt: skip
    fedavg, local = results.study["methods"]
    assert (fedavg["weighting"], fedavg["rounds"], fedavg["evaluate_with"]) == ("even", 2, "trained")
    assert (local["local"]["lr"], local["local"]["keep_optimizer"], local["select_over"]) == (0.02, True, "parties")
    assert (results.study["model"]["hidden"], results.study["model"]["linear_head"]) == (4, True)
    assert results.study["partition"]["split_by"] == "global"
    assert results.study["seeds"] == [5]
    assert results.notes[0].startswith("options that the study does not set are those of protocol 'fed-pub'")
    with pytest.raises(IsthmusError, match=r"unknown protocol 'fed-pup': did you mean 'fed-pub'"):
        isthmus.run("fedavg", protocol="fed-pup")
    with pytest.raises(IsthmusError, match="run: protocol is 3: give the name of one"):
        isthmus.run("fedavg", protocol=3)  # type: ignore[arg-type]


def test_a_protocol_goes_below_what_a_method_was_made_with() -> None:
    made = FedAvg(weighting="size", rounds=2, local=LocalTraining(lr=0.5))
    results = isthmus.run(made, SMALL["data"], partition="random", parties=2, model={"hidden": 4}, seed=0,
                          protocol="fed-pub")  # fmt: skip
    (method,) = results.study["methods"]
    assert (method["weighting"], method["rounds"], method["local"]["lr"]) == ("size", 2, 0.5)
    assert (method["evaluate_with"], method["local"]["epochs"], method["local"]["weight_decay"]) == ("trained", 1, 1e-6)


def test_a_protocol_trains_parties_given_in_python() -> None:
    study = Study.of({"data": {"name": "banks", "nodes": 90}})
    results = isthmus.run("fedavg", study.load(0).parties, protocol="openfgl", model={"hidden": 4}, rounds=1, seed=0)
    assert (results.study["methods"][0]["local"]["epochs"], results.study["model"]["dropout_features"]) == (3, False)


@pytest.mark.real
def test_parties_of_cora_are_those_of_the_published_comparisons() -> None:
    pytest.importorskip("pymetis", reason="the extra metis is not installed")
    if not (Path(os.environ.get("ISTHMUS_DATA", "")) / "planetoid" / "Cora").is_dir():
        pytest.skip("no Cora under ISTHMUS_DATA")
    sizes = {}
    for name in ("fed-pub", "fed-pub-overlap", "openfgl", "fedgta"):
        parties = Study.of({"protocol": name}).load(0).parties
        assert len(parties) == 10
        assert all(party.border is None for party in parties)
        sizes[name] = [sum(int(mask.sum()) for mask in masks) for masks in zip(
            *((party.graph.y >= 0, party.train, party.val, party.test) for party in parties), strict=True
        )]  # fmt: skip
        if name == "fed-pub-overlap":
            ids = torch.cat([party.ids for party in parties if party.ids is not None])
            assert 1 < ids.numel() / ids.unique().numel() < 5
    assert sizes["fed-pub"] == [2485, 497, 994, 994]
    assert sizes["fed-pub-overlap"][0] in range(10 * 1242 // 2 - 10 * 30, 10 * 1242 // 2 + 10 * 30)
    assert sizes["openfgl"][0] == sizes["fedgta"][0] == 2708
    assert 541 - 10 <= sizes["fedgta"][1] <= 541, "a floor at each party"
    assert sizes["openfgl"][1] < 541 - 10, "a floor for each of its classes"
