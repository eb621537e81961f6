"""Clients in the format of FedGB's release, written as its code writes them."""

import json
import sys
import types

import pytest
import torch
from torch_geometric.data import Data

from isthmus.data.datasets.fedgb import FedGb
from isthmus.errors import IsthmusError


def write(folder, clients, level="homo_subgraph", task="node_cls", **more):
    """Write clients: for each its graph and its masks of training, validation and testing."""
    split = folder / "distrib" / "fixed" / task / "default_split"
    split.mkdir(parents=True)
    about = {"name": folder.name, "level": level, "task": task, "num_clients": len(clients), "schema_version": "1.0"}
    (folder / "fedgb_manifest.json").write_text(json.dumps(about | more), encoding="utf-8")
    for at, (payload, *masks) in enumerate(clients):
        torch.save(payload, folder / "distrib" / "fixed" / f"data_{at}.pt")
        for name, mask in zip(("train", "val", "test"), masks, strict=True):
            torch.save(torch.tensor(mask), split / f"{name}_{at}.pt")


def homo(y, ids):
    n = len(y)
    graph = Data(x=torch.arange(2.0 * n).view(n, 2), edge_index=torch.tensor([[0], [n - 1]]), y=torch.tensor(y))
    graph.global_map = dict(enumerate(ids))
    return graph


def test_clients_of_one_type_are_parties(empty_root):
    clients = [
        (homo([0, 1, -1], [7, 3, 5]), [True, False, False], [False, True, False], [False, False, True]),
        (homo([2, 0], [3, 9]), [True, False], [False, False], [False, True]),
    ]
    write(FedGb().raw_folder(), clients)
    pool = FedGb().load(0)
    assert [party.name for party in pool.parties] == ["client-0", "client-1"]
    assert [party.ids.tolist() for party in pool.parties] == [[7, 3, 5], [3, 9]]
    assert [party.graph.y.tolist() for party in pool.parties] == [[0, 1, -1], [2, 0]]
    assert pool.parties[0].graph.edge_index.tolist() == [[0], [2]]
    assert [party.test.tolist() for party in pool.parties] == [[False, False, False], [False, True]]
    assert pool.classes == 3


def test_clients_of_several_types_have_one_schema(empty_root):
    def client(node_type, edges, edge_type, y):
        graph = Data(x=torch.ones(len(node_type), 2), edge_index=torch.tensor(edges), y=torch.tensor(y))
        graph.node_type, graph.edge_type = torch.tensor(node_type), torch.tensor(edge_type)
        graph.target_node_type, graph.hetero_node_types = "entity", ["address", "entity"]
        graph.hetero_edge_types = [("entity", "at", "address"), ("entity", "owns", "entity")]
        graph.global_map = {at: at for at in range(len(node_type))}
        return graph

    first = client([0, 1, 1], [[1, 1, 2], [0, 2, 1]], [0, 1, 1], [-1, 0, 1])
    second = client([1, 1], [[0], [1]], [1], [1, 0])
    clients = [
        (first, [False, True, False], [False] * 3, [False, False, True]),
        (second, [True, False], [False, True], [False, False]),
    ]
    write(FedGb(title="ICIJ-Het").raw_folder(), clients, level="hetero_subgraph", target_node="entity")
    parties = FedGb(title="ICIJ-Het").load(0).parties
    assert parties[0].schema == parties[1].schema
    typed = parties[0].typed()
    assert typed["entity", "owns", "entity"].edge_index.tolist() == [[0, 1], [1, 0]]
    assert typed["entity", "at", "address"].edge_index.tolist() == [[0], [0]]
    assert typed["entity"].y.tolist() == [0, 1]
    assert typed["entity"].train_mask.tolist() == [True, False]
    assert parties[1].typed()["entity"].val_mask.tolist() == [False, True]


@pytest.fixture
def released(monkeypatch):
    """The release's class for many graphs, in the module that its pickles name."""
    module = types.ModuleType("fedgb.data.fgl_graph_dataset")
    kind = type("FGLGraphDataset", (), {"__module__": module.__name__})
    module.FGLGraphDataset = kind
    for name in ("fedgb", "fedgb.data"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def dataset(graphs):
        found = kind()
        found.graphs, found.num_targets, found.client_name = graphs, 2, "provider"
        return found

    return dataset


def test_labels_that_are_masked_are_missing(empty_root, released):
    def graph(y, known):
        edges = torch.tensor([[0, 1], [1, 0]])
        return Data(x=torch.ones(2, 3), edge_index=edges, y=torch.tensor([y]), y_mask=torch.tensor([known]))

    graphs = [graph([1.0, 0.0], [True, False]), graph([2.0, 3.0], [True, True])]
    clients = [(released(graphs), [True, False], [False, False], [False, True])]
    write(FedGb(title="OPTIMADE").raw_folder(), clients, level="graph", task="graph_reg")
    pool = FedGb(title="OPTIMADE").load(0)
    party = pool.parties[0]
    assert party.graph.y.isnan().tolist() == [[False, True], [False, False]]
    assert party.graph.y.nan_to_num().tolist() == [[1.0, 0.0], [2.0, 3.0]]
    assert (party.level, party.train.tolist(), pool.classes) == ("graph", [True, False], 2)


def test_graphs_with_classes(empty_root, released):
    graphs = [
        Data(x=torch.ones(1, 3), edge_index=torch.empty(2, 0, dtype=torch.long), y=torch.tensor([c])) for c in (0, 2)
    ]
    write(
        FedGb(title="TCGA-S2").raw_folder(),
        [(released(graphs), [True, False], [False, True], [False, False])],
        level="graph",
        task="graph_cls",
    )
    pool = FedGb(title="TCGA-S2").load(0)
    assert (pool.parties[0].graph.y.tolist(), pool.classes) == ([0, 2], 3)


class Harm:
    def __reduce__(self):
        return (print, ("code of a file runs",))


@pytest.mark.parametrize(
    ("payload", "more", "text"),
    [
        (Harm(), {}, "data_0.pt|weights_only|Unsupported"),
        (Data(x=torch.ones(1, 1)), {}, "data_0.pt is no graph with x, edge_index and y"),
        (homo([0], [1]), {"schema_version": "2.0"}, "has schema_version 2.0; 1.0 is known"),
        (homo([0], [1]), {"level": "hetero_subgraph"}, "data_0.pt does not name its types"),
        (homo([0], [1]), {"processed_partition": "other"}, "distrib has 0 folders of clients"),
    ],
)
def test_other_files_are_one_line_and_run_no_code(empty_root, capsys, payload, more, text):
    write(FedGb().raw_folder(), [(payload, [True], [False], [False])], **more)
    capsys.readouterr()
    with pytest.raises(IsthmusError, match=text) as error:
        FedGb().load(0)
    assert "\n" not in str(error.value)
    assert "runs" not in capsys.readouterr().out
