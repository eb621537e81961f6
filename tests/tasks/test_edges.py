"""Tests of studies that classify or measure edges."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric import nn as gnn
from torch_geometric.data import Data, HeteroData

import isthmus
from isthmus import Party
from isthmus.errors import IsthmusError
from isthmus.study.setup import task_for

LOCAL = {"epochs": 5, "optimizer": "adam", "lr": 0.02}


def bank(seed: int, *, ids: bool = False, label: str = "direction") -> Party:
    """A bank whose payments go from rich to poor accounts, or not; and cost twice their first feature."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(40, 3, generator=draw)
    paid = torch.randint(40, (2, 160), generator=draw)
    rich = x[:, 0]
    graph = Data(x=x, edge_index=paid, edge_attr=torch.rand(160, 2, generator=draw))
    labels = {
        "direction": (rich[paid[0]] > rich[paid[1]]).long(),
        "cost": 2 * graph.edge_attr[:, 0],
        "several": torch.stack([(graph.edge_attr[:, 0] > 0.5).float(), torch.full((160,), torch.nan)], dim=1),
    }
    graph.edge_label = labels[label]
    if label == "several":
        graph.edge_label[::2, 1] = 1.0
    at = torch.arange(160) % 4
    names = 100 * seed + torch.arange(40) if ids else None
    return Party.of_edges(f"bank-{seed}", graph, ids=names, train=at < 2, val=at == 2, test=at == 3)


def run(parties: list[Party], method: str | list[str] = "fedavg", **options: Any) -> Any:
    given: dict[str, Any] = {"model": "mlp", "rounds": 12, "local": LOCAL}
    return isthmus.run(method, parties, **given | options)


def test_the_direction_of_an_edge_is_learned():
    results = run([bank(seed) for seed in range(3)], ["fedavg", "majority"])
    assert results.runs[0].metrics["test_roc_auc"] > 0.85
    assert results.runs[1].metrics["test_roc_auc"] == 0.5


@pytest.mark.parametrize(
    ("label", "task"),
    [("direction", "edge-classification"), ("cost", "edge-regression"), ("several", "edge-multilabel")],
)
def test_labels_name_the_task(label, task):
    assert task_for([bank(0, label=label)]).name == task


def test_features_of_edges_are_read_and_numbers_are_learned():
    results = run([bank(seed, label="cost") for seed in range(2)], rounds=20)
    assert results.runs[0].metrics["test_rmse"] < 0.3  # the labels' standard deviation is 0.58


def test_options_of_the_tasks_of_nodes_apply():
    task = {"name": "edge-classification", "class_weights": "balanced", "focal_gamma": 2.0, "threshold": "f1",
            "select_by": "average_precision"}  # fmt: skip
    results = run([bank(seed) for seed in range(2)], task=task, rounds=2)
    assert 0 < results.runs[0].metrics["test_average_precision"] <= 1


def test_a_typed_graph_has_its_edges_classified():
    def typed(seed: int) -> Party:
        plain = bank(seed)
        graph = HeteroData()
        graph["account"].x, graph["bank"].num_nodes = plain.graph.x, 1
        every = torch.arange(40)
        graph["bank", "holds", "account"].edge_index = torch.stack([torch.zeros_like(every), every])
        paid = graph["account", "pays", "account"]
        paid.edge_index, paid.edge_label = plain.graph.edge_index, plain.graph.y
        return Party.of_edges(f"bank-{seed}", graph, train=plain.train, val=plain.val, test=plain.test)

    results = run([typed(seed) for seed in range(2)], model="hetero-sage", rounds=8)
    assert results.runs[0].metrics["test_roc_auc"] > 0.75


def test_predictions_have_both_ends_of_every_edge(tmp_path):
    parties = [bank(seed, ids=True) for seed in range(2)]
    results = run(parties, "fedper", rounds=2, out=tmp_path / "run")
    model = isthmus.load_model(tmp_path / "run", party="bank-1")
    table = model.predict(parties[1])
    assert table.column_names[:4] == ["party", "source", "target", "prediction"]
    ends = torch.tensor([table["source"].to_pylist(), table["target"].to_pylist()])
    assert torch.equal(ends, parties[1].graph.edge_label_index + 100)
    assert torch.equal(model.outputs(parties[1]), results.model("fedper", party="bank-1").outputs(parties[1]))
    assert model.embeddings(parties[1]).shape == (160, 64)
    assert model.embed(parties[1]).column_names == ["party", "source", "target", "embedding"]
    bare = parties[1].graph.clone()
    bare.edge_label = bare.y
    del bare.edge_label_attr
    with pytest.raises(IsthmusError, match="0 features of a labelled edge, the model was trained on 2"):
        model.predict(Party.of_edges("new", bare))


class NodesOnly(gnn.GCN):
    def __init__(self, features: int, outputs: int) -> None:
        super().__init__(features, 8, 2, outputs)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:  # type: ignore[override]
        out: Tensor = super().forward(x, edge_index)
        return out


def test_what_does_not_fit_edges_is_refused_in_one_line():
    edges = [bank(0), bank(1)]
    graph = Data(x=torch.eye(3), edge_index=torch.zeros(2, 0).long(), y=torch.tensor([0, 1, 0]))
    graph.train_mask, graph.test_mask = graph.y == 0, graph.y == 1
    nodes = Party.of_graph("n", graph)
    with pytest.raises(IsthmusError, match=r"is for edges, the parties hold nodes: make them with Party\.of_edges"):
        run([nodes], task="edge-classification")
    with pytest.raises(IsthmusError, match="'fedgcn' is for node and pair tasks, the parties hold edges"):
        run(edges, "fedgcn", model="gcn")
    with pytest.raises(IsthmusError, match=r"local\.clusters is for tasks on nodes"):
        run(edges, local={"clusters": 2}, rounds=1)
    with pytest.raises(IsthmusError, match="NodesOnly gives nothing of labelled edges"):
        run(edges, model=NodesOnly, rounds=1)
