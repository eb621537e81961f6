"""Exported programs give the numbers of the model, for graphs of any size."""

from __future__ import annotations

import hashlib
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import isthmus
from isthmus.data.level import Level
from isthmus.data.party import Party
from isthmus.errors import IsthmusError
from isthmus.study.config import Study
from isthmus.study.export import DOSSIER, KEY, export_model
from isthmus.study.models import TrainedModel
from isthmus.study.run import run_study
from isthmus.testing import small_parties
from party_folders import graph_draft


def trained(data: str, encoder: str, method: str = "fedavg") -> tuple[TrainedModel, Party]:
    table: dict[str, Any] = {"data": {"name": data}, "model": {"encoder": encoder}, "methods": [{"name": method}]}
    study = Study.of({**table, "training": {"rounds": 1}})
    party = study.load(0).parties[0]
    return run_study(study).model(party=party.name), party


def inputs(party: Party) -> tuple[Tensor, ...]:
    graph = party.graph
    x = graph.x.to_dense() if graph.x.layout == torch.sparse_csr else graph.x
    weight = torch.ones(party.edges) if graph.get("edge_weight") is None else graph.edge_weight
    return (x, graph.edge_index, weight) + ((graph.batch,) if party.level == "graph" else ())


@pytest.mark.parametrize(
    ("data", "encoder", "method"),
    [
        ("banks", "gcn", "fedavg"),
        pytest.param("banks", "sgc", "fedavg", marks=pytest.mark.slow),
        pytest.param("banks", "gap", "fedavg", marks=pytest.mark.slow),
        pytest.param("banks", "gat", "fedavg", marks=pytest.mark.slow),
        ("motifs", "gin", "fedavg"),
        pytest.param("banks", "gcn", "fedpub", marks=pytest.mark.slow),
        pytest.param("banks", "gcn", "fedaux", marks=pytest.mark.slow),
        pytest.param("banks", "gcn", "adafgl", marks=pytest.mark.slow),
        ("banks", "gamlp", "fedgta"),
    ],
)
@pytest.mark.thinned(3)
def test_a_torch_program_gives_equal_numbers(data: str, encoder: str, method: str, tmp_path: Path) -> None:
    model, party = trained(data, encoder, method)
    export_model(model, tmp_path / "model.pt2")
    extra = {KEY: ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=extra).module()
    with torch.no_grad():
        assert torch.allclose(program(*inputs(party)), model.outputs(party), atol=1e-5)
    assert json.loads(extra[KEY])["features"] == party.features
    assert "feature_names" not in json.loads(extra[KEY])


def test_a_program_says_which_column_each_feature_is(tmp_path: Path) -> None:
    folder = graph_draft(partner=None).write(tmp_path / "north")
    model = isthmus.run("fedavg", folder, model="sgc", rounds=1).model("fedavg")
    export_model(model, tmp_path / "model.pt2")
    extra = {KEY: ""}
    torch.export.load(tmp_path / "model.pt2", extra_files=extra)
    about = json.loads(extra[KEY])
    assert len(about["feature_names"]) == about["features"]
    assert "age" in about["feature_names"]


ONNX = [("gcn", "fedavg"), ("gap", "fedavg"), ("gcn", "fedaux"), ("gcn", "adafgl")]


@pytest.mark.parametrize(
    ("data", "encoder", "method"),
    [("motifs", "gin", "fedavg"), *(pytest.param("banks", *each, marks=pytest.mark.slow) for each in ONNX)],
)
def test_an_onnx_program_gives_equal_numbers(data: str, encoder: str, method: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    model, party = trained(data, encoder, method)
    export_model(model, tmp_path / "model.onnx", "onnx")
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"))
    names = [each.name for each in session.get_inputs()]
    assert names == ["x", "edge_index", "edge_weight", "batch"][: len(names)]
    given = {name: value.numpy() for name, value in zip(names, inputs(party), strict=True)}
    (found,) = session.run(None, given)
    assert torch.allclose(torch.from_numpy(found), model.outputs(party), atol=1e-5)
    assert json.loads(session.get_modelmeta().custom_metadata_map[KEY])["features"] == party.features


def typed(level: Level, encoder: str, *, types: bool = True) -> tuple[TrainedModel, Party, dict[str, Tensor]]:
    """A model of graphs with types, or labelled edges; one of its parties, and what a program reads beside nodes."""
    parties = small_parties(level, 2, typed=types)
    model = isthmus.run("fedavg", parties, model={"encoder": encoder, "hidden": 8}, rounds=1).model("fedavg")
    graph = parties[1].graph
    names = ("x", "edge_index", "node_type", "edge_type", "edge_attr", "edge_label_index", "edge_label_attr")
    found = {name: graph[name] for name in names if graph.get(name) is not None}
    return model, parties[1], {**found, "edge_weight": torch.ones(parties[1].edges)}


@pytest.mark.parametrize(
    ("level", "encoder", "types"),
    [
        ("edge", "rgcn", True),
        ("edge", "sage", False),
        pytest.param("node", "hetero-sage", True, marks=pytest.mark.slow),
        pytest.param("node", "hgt", True, marks=pytest.mark.slow),
        pytest.param("node", "gcn", True, marks=pytest.mark.slow),  # reads no types, but its output does
    ],
)
def test_a_program_of_types_or_labelled_edges_gives_equal_numbers(
    level: Level, encoder: str, types: bool, tmp_path: Path
) -> None:
    model, party, given = typed(level, encoder, types=types)
    export_model(model, tmp_path / "model.pt2")
    exported = torch.export.load(tmp_path / "model.pt2")
    known = {name: given[name] for name in exported.graph_signature.user_inputs}
    if encoder == "hetero-sage":
        assert known.keys() == given.keys()
    program = exported.module()

    def run(values: dict[str, Tensor]) -> Tensor:
        first, named = list(known)[:3], list(known)[3:]
        output: Tensor = program(*(values[name] for name in first), **{name: values[name] for name in named})
        return output

    with torch.no_grad():
        assert torch.allclose(run(given), model.outputs(party), atol=1e-5)
        if level == "node" and types:  # no edge of the first type, and one node of the labelled type less
            keep = (given["edge_type"] > 0) & (given["edge_index"] > 0).all(0)
            fewer = {name: given[name][keep] for name in ("edge_weight", "edge_type", "edge_attr")}
            fewer |= {"x": given["x"][1:], "node_type": given["node_type"][1:]}
            fewer["edge_index"] = given["edge_index"][:, keep] - 1
            read = {name: fewer[name] for name in inspect.signature(model.module.forward).parameters if name in fewer}
            due = model.module(**read)[fewer["node_type"] == 0]
            assert torch.allclose(run(fewer), due, atol=1e-5)


@pytest.mark.parametrize(
    ("level", "encoder"), [pytest.param(*each, marks=pytest.mark.slow) for each in (("edge", "rgcn"), ("node", "hgt"))]
)
def test_an_onnx_program_of_types_gives_equal_numbers(level: Level, encoder: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    model, party, given = typed(level, encoder)
    export_model(model, tmp_path / "model.onnx")
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"))
    (found,) = session.run(None, {each.name: given[each.name].numpy() for each in session.get_inputs()})
    assert torch.allclose(torch.from_numpy(found), model.outputs(party), atol=1e-5)


def test_what_no_program_can_hold_is_refused(tmp_path: Path) -> None:
    model, _ = trained("banks", "gcn", "fedproto")
    with pytest.raises(IsthmusError, match="'fedproto' predicts with more than its module: use isthmus predict"):
        export_model(model, tmp_path / "model.pt2")
    with pytest.raises(IsthmusError, match=r"unknown format 'onx': .*onnx"):
        export_model(model, tmp_path / "model.pt2", "onx")
    assert not list(tmp_path.iterdir())


def test_the_name_of_the_file_says_the_format(tmp_path: Path) -> None:
    model = isthmus.run("fedavg", rounds=1).model()
    export_model(model, tmp_path / "model.PT2")
    assert torch.export.load(tmp_path / "model.PT2") is not None
    line = "a file of torch.export is called .pt2, one of ONNX .onnx: give it such a name"
    for name, given in (("model.txt", None), ("model.onnx", "torch"), ("model.pt2", "onnx")):
        with pytest.raises(IsthmusError, match=line):
            export_model(model, tmp_path / name, given)
        assert not (tmp_path / name).exists()


@pytest.fixture
def with_dossier(tmp_path: Path) -> Path:
    """A result folder with a dossier that names its model."""
    folder = tmp_path / "run"
    isthmus.run("fedavg", rounds=1, out=folder)
    digest = hashlib.sha256((folder / "weights" / "fedavg-0.safetensors").read_bytes()).hexdigest()
    (folder / "dossier.json").write_text(json.dumps({"models": [{"sha256": digest}]}))
    return folder


def test_a_program_carries_the_hash_of_the_dossier_beside_the_run(with_dossier: Path, tmp_path: Path) -> None:
    model = isthmus.load_model(with_dossier)
    assert not model.about
    export_model(model, tmp_path / "model.pt2")
    extra = {DOSSIER: ""}
    torch.export.load(tmp_path / "model.pt2", extra_files=extra)
    assert extra[DOSSIER] == hashlib.sha256((with_dossier / "dossier.json").read_bytes()).hexdigest()


@pytest.mark.slow
def test_an_onnx_program_carries_it_too(with_dossier: Path, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    model = isthmus.load_model(with_dossier)
    export_model(model, tmp_path / "model.onnx")
    found = {each.key: each.value for each in onnx.load(tmp_path / "model.onnx").metadata_props}
    assert found[DOSSIER] == model.dossier


def test_a_dossier_of_another_model_is_not_carried(with_dossier: Path) -> None:
    path = with_dossier / "dossier.json"
    path.write_text(json.dumps({"models": [{"sha256": "00"}]}))
    model = isthmus.load_model(with_dossier)
    assert (model.dossier, model.about) == ("", [f"{path} is of another model: make it again"])
    path.write_text("{}")
    with pytest.raises(IsthmusError, match="make it again with isthmus dossier"):
        isthmus.load_model(with_dossier)
