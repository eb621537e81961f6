"""Exported programs give the numbers of the model, for graphs of any size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import isthmus
from isthmus.data.party import Party
from isthmus.errors import IsthmusError
from isthmus.study.config import Study
from isthmus.study.export import KEY, export_model
from isthmus.study.models import TrainedModel
from isthmus.study.run import run_study


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
        pytest.param("banks", "gat", "fedavg", marks=pytest.mark.slow),
        ("motifs", "gin", "fedavg"),
        pytest.param("banks", "gcn", "fedpub", marks=pytest.mark.slow),
        pytest.param("banks", "gcn", "fedaux", marks=pytest.mark.slow),
        pytest.param("banks", "gcn", "adafgl", marks=pytest.mark.slow),
        ("banks", "gamlp", "fedgta"),
    ],
)
def test_a_torch_program_gives_equal_numbers(data: str, encoder: str, method: str, tmp_path: Path) -> None:
    model, party = trained(data, encoder, method)
    export_model(model, tmp_path / "model.pt2")
    extra = {KEY: ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=extra).module()
    with torch.no_grad():
        assert torch.allclose(program(*inputs(party)), model.outputs(party), atol=1e-5)
    assert json.loads(extra[KEY])["features"] == party.features


@pytest.mark.parametrize(("data", "encoder"), [("banks", "gcn"), ("motifs", "gin")])
def test_an_onnx_program_gives_equal_numbers(data: str, encoder: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    model, party = trained(data, encoder)
    export_model(model, tmp_path / "model.onnx", "onnx")
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"))
    names = [each.name for each in session.get_inputs()]
    assert names == ["x", "edge_index", "edge_weight", "batch"][: len(names)]
    given = {name: value.numpy() for name, value in zip(names, inputs(party), strict=True)}
    (found,) = session.run(None, given)
    assert torch.allclose(torch.from_numpy(found), model.outputs(party), atol=1e-5)
    assert json.loads(session.get_modelmeta().custom_metadata_map[KEY])["features"] == party.features


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
