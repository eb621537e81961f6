"""A study of a model of one's own runs again as this model, or not at all."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn
from torch_geometric import nn as gnn

import isthmus
from helpers import make_node_parties
from isthmus.errors import IsthmusError
from isthmus.own_code import import_files, object_at
from isthmus.report.wording import describe
from isthmus.study.config import Study, read_toml
from isthmus.study.own_models import OwnModel, named_encoder
from isthmus.study.run import run_study

WIDE = """
from torch import nn
from torch_geometric import nn as gnn
from isthmus.nn.encoders import Gcn

class Wide(nn.Module):
    def __init__(self, features, outputs, width=7):
        super().__init__()
        self.lift, self.conv = nn.Linear(features, width), gnn.GCNConv(width, outputs)

    def forward(self, x, edge_index):
        return self.conv(self.lift(x).relu(), edge_index)

class Unnamed(Gcn):
    ...

number = 3
"""
DATA = {"name": "banks", "nodes": 80, "parties": 2}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "own_wide.py"
    path.write_text(WIDE)
    yield path
    sys.modules.pop("own_wide", None)


def of_file(file: Path, **model: Any) -> Study:
    table = {"encoder": "own_wide:Wide", **model}
    return Study.of({"import": [str(file)], "data": DATA, "training": {"rounds": 2}, "model": table})


def make(features: int, outputs: int) -> nn.Module:
    return gnn.GraphSAGE(features, 4, 1, outputs)


@pytest.mark.parametrize("model", [make, lambda features, outputs: make(features, outputs), gnn.GraphSAGE(16, 4, 1, 4)])
def test_an_own_model_never_runs_again_as_another(tmp_path: Path, model: Callable[..., nn.Module]) -> None:
    isthmus.run("fedavg", model=model, rounds=1, out=tmp_path / "out")
    recorded = read_toml(tmp_path / "out" / "study.toml")
    if model is make:
        encoder = Study.of(recorded).encoder()
        assert isinstance(encoder, OwnModel)
        assert encoder.make is make
        return
    with pytest.raises(
        IsthmusError, match="an object made in Python, which a file cannot make again: run it from Python"
    ):
        Study.of(recorded)
    assert Study.of({**recorded, "model": {**recorded["model"], "encoder": "sage"}}).encoder().name == "sage"


def test_the_report_says_which_model_it_was(tmp_path: Path) -> None:
    results = isthmus.run("fedavg", model=gnn.GraphSAGE(16, 4, 1, 4), rounds=1, out=tmp_path / "out")
    assert describe(results.study["model"]) == "torch_geometric.nn.models.basic_gnn:GraphSAGE"
    isthmus.write_report([tmp_path / "out"])
    assert "torch_geometric.nn.models.basic_gnn:GraphSAGE" in (tmp_path / "out" / "report.html").read_text()


def test_results_record_class_source_and_package(file: Path, tmp_path: Path) -> None:
    first = run_study(of_file(file), tmp_path / "out")
    own = json.loads((tmp_path / "out" / "results.json").read_text())["code"]
    assert own == first.code
    assert set(own["own_wide:Wide"]) == {"source", "package"}
    again = run_study(Study.of(tomllib.loads((tmp_path / "out" / "study.toml").read_text())))
    assert again.metrics == first.metrics
    isthmus.run("fedavg", model=gnn.GraphSAGE(16, 4, 1, 4), rounds=1, out=tmp_path / "given")
    (found,) = json.loads((tmp_path / "given" / "results.json").read_text())["code"].values()
    assert found["package"].startswith("torch")


def test_changed_code_is_refused(file: Path) -> None:
    recorded = of_file(file).resolved()
    Study.of(recorded)
    file.write_text(WIDE + "# changed\n")
    with pytest.raises(IsthmusError, match=r"the source of 'own_wide:Wide' is not the one that this study ran with"):
        Study.of(recorded)
    Study.of({**recorded, "code": {}})


def test_options_of_the_model_are_arguments(file: Path) -> None:
    encoder = of_file(file, width=3).encoder()
    assert isinstance(encoder, OwnModel)
    assert encoder(5, 2).lift.out_features == 3  # type: ignore[union-attr]
    with pytest.raises(IsthmusError, match="encoder 'own_wide:Wide': unknown option 'wdth': did you mean 'width'\\?"):
        of_file(file, wdth=3)


def test_an_encoder_may_have_no_name(file: Path) -> None:
    import_files([file])
    assert named_encoder("own_wide:Unnamed", {"hidden": 5}) == object_at("own_wide:Unnamed")(hidden=5)


@pytest.mark.parametrize("name", ["own_wide:number", "pathlib:Path"])
def test_what_is_no_model_is_refused(file: Path, name: str) -> None:
    import_files([file])
    with pytest.raises(IsthmusError, match=f"encoder '{name}' is no model"):
        named_encoder(name, {})


@pytest.mark.slow
def test_processes_run_own_models(file: Path) -> None:
    study = of_file(file).model_copy(update={"seeds": [0, 1]})
    assert [run.metrics for run in run_study(study, jobs=2).runs] == [run.metrics for run in run_study(study).runs]


def test_a_federation_runs_no_code_from_a_study(file: Path) -> None:
    for study in ({"import": [str(file)]}, {"model": {"encoder": "own_wide:Wide"}}):
        with pytest.raises(IsthmusError, match="a federation runs no code from a study: install the package"):
            Study.of_federation(study)
    assert "own_wide" not in sys.modules
    assert Study.of_federation({"model": {"encoder": "sage"}}).encoder().name == "sage"


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (lambda h: (h, h), "a tuple"),
        (lambda h: None, "a NoneType"),
        (lambda h: h.long(), "numbers of type int64"),
        (lambda h: h[:2], "2 rows"),
    ],
)
def test_a_forward_that_does_not_return_rows_of_numbers_is_one_line(
    returned: Callable[[Tensor], Any], says: str
) -> None:
    class Odd(nn.Linear):
        def forward(self, x: Tensor, edge_index: Tensor) -> Any:
            return returned(super().forward(x))

    with pytest.raises(IsthmusError, match=f"model Odd: its forward returns {says}: return a tensor of real numbers"):
        isthmus.run("fedavg", make_node_parties(), model=Odd, rounds=1)


def test_a_default_in_the_place_of_the_outputs_is_refused() -> None:
    """It would get their number as its value, without a word."""
    with pytest.raises(IsthmusError, match=r"gets the number of outputs as 'width', which has a default: make its"):
        OwnModel("mine:make", lambda features, width=64: nn.Linear(features, width), {})
