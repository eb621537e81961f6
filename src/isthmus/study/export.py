"""Exports a trained model as a program that runs without Isthmus."""

from __future__ import annotations

import importlib.util
import inspect
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isthmus import store
from isthmus.data.folder.encoding import Encoding
from isthmus.errors import IsthmusError, did_you_mean, path_of
from isthmus.nn.encoders import uses_edge_features, uses_types
from isthmus.study.models import TrainedModel, inputs_of

FORMATS = {"onnx": ".onnx", "torch": ".pt2"}
"""Formats, and how the names of their files end."""
KEY = "isthmus.json"
"""Name under which a program carries the model's description: the encoding of its columns, the names of its classes."""
DOSSIER = "isthmus.dossier"
"""Name under which it carries the SHA-256 of the run's dossier, if one lies beside the run and is of this model."""
DYNAMIC = torch.export.Dim.DYNAMIC
NODES, EDGES, GRAPHS, ITEMS = 7, 11, 3, 5
"""Sizes of the example that the model is traced with; a program takes any others."""


class Program(nn.Module):
    """A model whose inputs are tensors only: x, edge_index, edge_weight and, by name, what else it reads.

    Arguments:
        labelled: the node type whose rows are the output; none if all rows are.
        left_out: positions of features that were 0 in training.
    """

    left_out: Tensor | None

    def __init__(self, module: nn.Module, labelled: int | None, left_out: Sequence[int] = ()) -> None:
        super().__init__()
        self.module, self.labelled = module, labelled
        self.register_buffer("left_out", torch.tensor(left_out) if left_out else None)
        self.names = inspect.signature(module.forward).parameters.keys()

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor,
        batch: Tensor | None = None,
        node_type: Tensor | None = None,
        edge_type: Tensor | None = None,
        edge_attr: Tensor | None = None,
        edge_label_index: Tensor | None = None,
        edge_label_attr: Tensor | None = None,
    ) -> Tensor:
        given: dict[str, Any] = {
            "edge_weight": edge_weight, "node_type": node_type, "edge_type": edge_type, "edge_attr": edge_attr,
            "edge_label_index": edge_label_index, "edge_label_attr": edge_label_attr,
        }  # fmt: skip
        if batch is not None:
            graphs = (batch.max() + 1).item()
            torch._check(graphs > 0)
            given |= {"batch": batch, "batch_size": graphs, "num_graphs": graphs}
        more = {name: value for name, value in given.items() if value is not None and name in self.names}
        if self.left_out is not None:
            x = x.index_fill(1, self.left_out, 0)
        output: Tensor = self.module(x, edge_index, **more)
        if node_type is None or self.labelled is None:
            return output
        return output[(node_type == self.labelled).nonzero().squeeze(1)]


def export_model(model: TrainedModel, path: Path | str, format: str | None = None) -> None:
    """Write a model as a program: of `torch.export` (load it with `torch.export.load`), or in the ONNX format.

    The file's name says which, `.pt2` or `.onnx`, unless `format` does ("torch" or "onnx").

    Its inputs are `x` `[nodes, features]`, `edge_index` `[2, edges]`, `edge_weight` `[edges]` (ones without weights)
    and, for whole graphs, `batch` `[nodes]`. By name follow, where the model reads them: `node_type` `[nodes]`,
    `edge_type` `[edges]`, `edge_attr` `[edges, columns]`, and of labelled edges `edge_label_index` `[2, items]` and
    `edge_label_attr` `[items, columns]`. Its output is that of `TrainedModel.outputs`. The file also carries the
    model's description as `isthmus.json`, with the `feature_names` of a table's columns, and, if a dossier lies beside
    the run, its SHA-256 as `isthmus.dossier`.
    """
    if not isinstance(model, TrainedModel):
        raise IsthmusError(f"export_model: model is {model!r}: give what isthmus.load_model(RUN) returns")
    path = path_of(path, "export_model: path")
    by_name = next((each for each, ending in FORMATS.items() if path.suffix.lower() == ending), None)
    format = by_name if format is None else format
    if format is None or (by_name is not None and format in FORMATS and by_name != format):
        raise IsthmusError(f"{path}: a file of torch.export is called .pt2, one of ONNX .onnx: give it such a name")
    if format not in FORMATS:
        raise IsthmusError(f"unknown format '{format}': {did_you_mean(format, FORMATS)}")
    if model.context or model.method.unsupervised:
        raise IsthmusError(f"method '{model.method.name}' predicts with more than its module: use isthmus predict")
    about = {
        KEY: json.dumps({**model.description, **_feature_names(model)}),
        **({DOSSIER: model.dossier} if model.dossier else {}),
    }
    with _quiet():
        program = _trace(model)
        if format == "torch":
            store.write_with(path, lambda to: _save(program, to, about))
        else:
            store.write_with(path, lambda to: _save_onnx(program, to, about))


def _feature_names(model: TrainedModel) -> dict[str, list[str]]:
    """What the features are called in the order of `x`, where they are columns of one table."""
    saved = model.description["encoding"]
    if not saved or not saved["columns"] or model.description["schema"] is not None:
        return {}
    return {"feature_names": Encoding.of_dict(saved).feature_names()}


def _trace(model: TrainedModel) -> Any:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(NODES, int(model.description["features"]), generator=draw)
    edges = torch.randint(NODES, (2, EDGES), generator=draw)
    example: tuple[Tensor, ...] = (x, edges, torch.rand(EDGES, generator=draw))
    shapes: tuple[dict[int, Any], ...] = ({0: DYNAMIC}, {1: DYNAMIC}, {0: DYNAMIC})
    if model.task.level == "graph":
        example += (torch.arange(NODES) * GRAPHS // NODES,)
        shapes += ({0: DYNAMIC},)
    more = _more_inputs(model)
    sizes: dict[str, Any] = dict(zip(("x", "edge_index", "edge_weight", "batch"), shapes, strict=False))
    sizes |= {name: {1 if name == "edge_label_index" else 0: DYNAMIC} for name in more}
    schema = inputs_of(model.description).schema
    labelled = None if schema is None or not schema.labelled else schema.node_types.index(schema.labelled)
    program = Program(model.module, labelled, model.left_out).eval()
    try:
        with torch.no_grad():
            return torch.export.export(program, example, more, dynamic_shapes=sizes, strict=False)
    except Exception as error:  # torch's own errors have many types
        name = type(model.module).__name__
        text = str(error).strip().partition("\n")[0][:200]
        raise IsthmusError(
            f"torch cannot export model {name}: {text}; use another encoder, or isthmus predict"
        ) from error


def _more_inputs(model: TrainedModel) -> dict[str, Tensor]:
    """Examples of what a model reads beside nodes, edges and their weights."""
    inputs, more = inputs_of(model.description), {}
    if inputs.schema is not None and (inputs.schema.labelled or uses_types(model.module)):
        more["node_type"] = torch.arange(NODES) % len(inputs.schema.nodes)
    if inputs.schema is not None and uses_types(model.module):
        more["edge_type"] = torch.arange(EDGES) % max(1, len(inputs.schema.edges))
    if inputs.edge_features and uses_edge_features(model.module):
        more["edge_attr"] = torch.zeros(EDGES, inputs.edge_features)
    if model.task.level == "edge":
        more["edge_label_index"] = torch.arange(2 * ITEMS).view(2, ITEMS) % NODES
        if inputs.label_features:
            more["edge_label_attr"] = torch.zeros(ITEMS, inputs.label_features)
    return more


def _save(program: Any, path: Path, about: Mapping[str, str]) -> None:
    with path.open("wb") as file:
        torch.export.save(program, file, extra_files=dict(about))


def _save_onnx(program: Any, path: Path, about: Mapping[str, str]) -> None:
    if missing := [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]:
        raise IsthmusError(f"ONNX needs the package '{missing[0]}': pip install 'isthmus[onnx]'")
    exported = torch.onnx.export(program, dynamo=True, verbose=False, optimize=True)
    assert exported is not None
    exported.model.metadata_props.update(about)
    exported.save(str(path))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporters' progress and warnings off the terminal."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), open(os.devnull, "w") as nowhere:
            warnings.simplefilter("ignore")
            with redirect_stdout(nowhere), redirect_stderr(nowhere):
                yield
    finally:
        logging.disable(level)
