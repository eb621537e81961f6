"""Studies of typed graphs, and of plain ones with edge features, from parties to predictions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

import isthmus
from databases import crossing_drafts
from isthmus.data.folder.writing import write_parties
from isthmus.data.party import Party
from isthmus.data.schema import Schema
from isthmus.errors import IsthmusError
from isthmus.study.config import Study
from isthmus.testing import small_parties

LOCAL: list[dict[str, Any]] = [
    {},
    {"batch_size": 8, "fan_out": (3, 3), "epochs": 2},
    {"clusters": 4, "clusters_per_step": 2, "epochs": 2},
]


def senders(nodes: int, at: int) -> Party:
    """A node's class is the sign of the one in-neighbour whose edge is marked; three others only distract."""
    draw = torch.Generator().manual_seed(at)
    sign = torch.randint(0, 2, (nodes,), generator=draw)
    source, target = torch.randint(0, nodes, (4 * nodes,), generator=draw), torch.arange(nodes).repeat(4)
    graph = Data(x=torch.stack([sign, 1 - sign], dim=1).float(), edge_index=torch.stack([source, target]))
    graph.y, graph.edge_attr = sign[source[:nodes]], (torch.arange(4 * nodes) < nodes).float()[:, None]
    for split, rest in (("train", 0), ("val", 1), ("test", 2)):
        graph[f"{split}_mask"] = torch.arange(nodes) % 3 == rest
    return Party.of_graph(f"party-{at}", graph)


@pytest.mark.parametrize("local", LOCAL)
def test_a_study_of_typed_graphs_ends_in_predictions(tmp_path: Path, local: dict[str, Any]) -> None:
    parties = small_parties("node", typed=True)
    results = isthmus.run("fedavg", parties, model="rgcn", rounds=3, local=local, out=tmp_path / "out")
    assert not [note for note in results.notes if "edge" in note]
    model = isthmus.load_model(tmp_path / "out")
    assert Schema.of_dict(model.description["schema"]) == parties[0].schema
    assert model.description["edge_features"] == 1
    table = model.predict(parties)
    assert table.num_rows == sum(int((party.graph.y >= 0).sum()) for party in parties)  # none of the shops
    assert max(table.column("id").to_pylist()) < 10**6
    assert len(model.outputs(parties)) == len(model.embeddings(parties)) == table.num_rows


def test_a_model_refuses_parties_of_other_types(tmp_path: Path) -> None:
    parties = small_parties("node", typed=True)
    isthmus.run("fedavg", parties, model="rgcn", rounds=1, out=tmp_path / "out")
    model = isthmus.load_model(tmp_path / "out")
    schema = parties[0].schema
    assert schema is not None
    other = replace(
        parties[0], schema=replace(schema, edges=tuple(((s, f"{r}2", t), n) for (s, r, t), n in schema.edges))
    )
    with pytest.raises(
        IsthmusError, match=r"^party 'party-0' has other types of nodes and edges than the model was tr"
    ):
        model.predict(other)


@pytest.mark.parametrize("model", ["gin", "gat", "transformer"])
def test_edge_features_are_learned_from(model: str) -> None:
    parties = [senders(240, at) for at in range(3)]
    options = {"encoder": model, "hidden": 16, "layers": 1, "dropout": 0.0}
    local = {"optimizer": "adam", "lr": 0.02, "epochs": 5}
    with_them, without = (
        isthmus.run("fedavg", parties, model={**options, "edge_features": given}, rounds=15, local=local)
        for given in (True, False)
    )
    assert with_them.runs[0].metrics["test_accuracy"] > without.runs[0].metrics["test_accuracy"] + 0.1
    due = "ignores the 1 features of edges (edge_attr): set model.edge_features"
    assert [note for note in without.notes if due in note]
    assert not [note for note in with_them.notes if due in note]


class Own(nn.Module):
    """A model of a user's own that reads types and features of edges."""

    def __init__(self, features: int = 1, classes: int = 2) -> None:
        super().__init__()
        self.lin = nn.Linear(features + 1, classes)
        self.head = "lin"

    def forward(self, x: Tensor, edge_index: Tensor, node_type: Tensor, edge_attr: Tensor) -> Tensor:
        reached = x.new_zeros(x.size(0), 1).index_add(0, edge_index[1], edge_attr)
        return self.lin(torch.cat([x, reached], dim=1)) * (node_type == 0).unsqueeze(1)


def test_modules_of_users_may_name_types_and_edge_features() -> None:
    parties = small_parties("node", typed=True)
    results = isthmus.run("fedavg", parties, model=lambda features, classes: Own(features, classes), rounds=2)
    assert not [note for note in results.notes if "edge" in note]


def test_methods_that_change_edges_leave_their_features_out() -> None:
    parties = [senders(30, at) for at in range(2)]
    (run,) = (results := isthmus.run("fgssl", parties, model="gcn", rounds=1)).runs
    assert run.rounds == 1
    assert "fgssl leaves out the 1 features of edges (edge_attr)" in results.notes
    with pytest.raises(
        IsthmusError, match=r"^method 'fgssl' leaves the features of edges out, which the model reads: use "
    ):
        isthmus.run("fgssl", parties, model={"encoder": "gat", "edge_features": True}, rounds=1)
    with pytest.raises(IsthmusError, match=r"^method 'fgssl' is for graphs with one type of nodes and of edges: use "):
        isthmus.run("fgssl", small_parties("node", typed=True), model="rgcn", rounds=1)


def test_folders_of_one_table_hold_no_types(tmp_path: Path) -> None:
    with pytest.raises(IsthmusError, match=r"^party 'party-0' has types of edges, which no party folder of one table"):
        write_parties(tmp_path / "data", small_parties("node", typed=True), 4)


def test_sums_over_crossing_edges_are_added_up_again_where_all_parties_are_given(tmp_path: Path) -> None:
    for draft in crossing_drafts(dated=True)[:2]:
        draft.write(tmp_path / "banks" / draft.settings["name"])
    study = {"data": {"name": "folder", "path": f"{tmp_path / 'banks'}/"}, "model": {"encoder": "hetero-sage"}}
    methods = [{"name": "fedgcn", "rounds": 2, "select": "last"}]
    metrics = isthmus.run_study(Study.of({**study, "methods": methods}), tmp_path / "out").runs[0].metrics
    model = isthmus.load_model(tmp_path / "out")
    table = model.predict(tmp_path / "banks")
    assert model.notes == []
    together = model.outputs(tmp_path / "banks")
    pool = Study.of({**study, "methods": methods}).load(0)
    test = torch.cat([party.test[party.labelled_type] for party in pool.parties])
    labels = torch.cat([party.graph.y[party.labelled_type] for party in pool.parties])
    loss = torch.nn.functional.cross_entropy(together[test], labels[test])
    assert float(loss) == pytest.approx(metrics["test_loss"], rel=1e-5)
    alone = model.outputs(tmp_path / "banks" / "north")
    assert model.notes == [
        "fedgcn trained on edges between parties; 'north' is predicted without those to south, so its scores differ "
        "from the study's: give the folders of all these parties at once"
    ]
    assert not torch.allclose(alone, together[: len(alone)], atol=1e-3)
    assert table.num_rows == len(together)
