"""A description counts what the parties hold, whatever their labels say."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Data

from helpers import make_graph_parties, make_node_parties
from isthmus.data.describe import describe
from isthmus.data.partition.labels import Random
from isthmus.data.partition.structure import Louvain
from isthmus.data.party import SPLITS, Border, Party
from isthmus.data.pool import Pool
from isthmus.data.skew import earth_movers
from isthmus.errors import IsthmusError

NAN = math.nan


def party(name: str, y: Tensor, *, ids: Tensor | None = None, border: Border | None = None, edges: int = 0) -> Party:
    """A party whose first labelled node is for training."""
    nodes = y.size(0)
    edge_index = torch.zeros(2, edges, dtype=torch.long)
    graph = Data(x=torch.ones(nodes, 2), edge_index=edge_index, y=y)
    known = ~y.isnan() if y.is_floating_point() else y >= 0
    known = known if known.dim() == 1 else known.any(1)
    graph.train_mask = known & (known.cumsum(0) == 1)
    graph.test_mask = known & (known.cumsum(0) > 1)
    return Party.of_graph(name, graph, ids=ids, border=border)


def whole(nodes: int, classes: int, seed: int) -> Party:
    source = torch.Generator().manual_seed(seed)
    graph = Data(x=torch.rand(nodes, 3, generator=source), y=torch.randint(classes, (nodes,), generator=source))
    graph.edge_index = torch.randint(nodes, (2, 3 * nodes), generator=source)
    turn = torch.arange(nodes) % 4
    graph.train_mask, graph.val_mask, graph.test_mask = turn == 0, turn == 1, turn == 2
    return Party.of_graph("whole", graph, ids=torch.arange(nodes))


def test_each_party_is_counted() -> None:
    border = Border(torch.tensor([0, 2]), torch.tensor([7, 8]), torch.tensor([0, 0]), ("b",))
    first = party("a", torch.tensor([0, -1, 2, 0]), ids=torch.tensor([1, 2, 3, 4]), border=border, edges=5)
    second = party("b", torch.tensor([1, 1]), ids=torch.tensor([4, 8]))
    found = describe([first, second], note="Made up.")
    a, b = found.parties
    assert (a.name, a.items, a.nodes, a.edges, a.cross, a.shared) == ("a", 4, 4, 5, 2, 1)
    assert (a.train, a.val, a.test, a.unlabelled, a.labels) == (1, 0, 2, 1, (2, 0, 1))
    assert (b.name, b.items, b.cross, b.shared, b.labels) == ("b", 2, 0, 1, (0, 2, 0))
    assert (found.level, found.kind, found.nodes, found.edges, found.cross) == ("node", "class", 5, 5, 2)
    assert (found.crossing, found.note) == (2 / 7, "Made up.")
    assert (found.features, found.structural) == (2, 0)
    marked = describe([replace(each, structural=torch.tensor([1])) for each in (first, second)])
    assert (marked.features, marked.structural) == (2, 1)
    assert found.emd == earth_movers(torch.tensor([[2, 0, 1], [0, 2, 0]]))


@settings(max_examples=25)
@given(
    nodes=st.integers(8, 60), parties=st.integers(1, 8), seed=st.integers(0, 99), coupled=st.booleans(),
)  # fmt: skip
def test_counts_of_a_cut_add_up_to_those_of_the_whole(nodes: int, parties: int, seed: int, coupled: bool) -> None:
    pooled = whole(nodes, 3, seed)
    held = Random(edges="coupled" if coupled else "broken").cut(Pool(pooled, 3), parties, seed)
    found = describe(held, 3)
    assert found.nodes == sum(each.items for each in found.parties) == nodes
    assert found.edges + found.cross == pooled.edges if coupled else found.cross == 0
    for split in SPLITS:
        assert sum(getattr(each, split) for each in found.parties) == int(getattr(pooled, split).sum())
    counts = torch.tensor([each.labels for each in found.parties])
    assert torch.equal(counts.sum(0), torch.bincount(pooled.graph.y, minlength=3))
    assert found.emd == earth_movers(counts)
    assert {each.shared for each in found.parties} == {0}


@given(seed=st.integers(0, 99))
@settings(max_examples=20)
def test_nodes_of_several_parties_count_once(seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    held = [torch.randperm(12, generator=source)[: 3 + at] for at in range(3)]
    found = describe([party(f"p{at}", ids % 2, ids=ids) for at, ids in enumerate(held)])
    sets = [set(ids.tolist()) for ids in held]
    assert found.nodes == len(set().union(*sets))
    for at, each in enumerate(found.parties):
        assert each.shared == len(sets[at] & set().union(*(other for by, other in enumerate(sets) if by != at)))


def test_nodes_without_ids_are_nobody_elses() -> None:
    found = describe([party("a", torch.tensor([0, 1])), party("b", torch.tensor([0]), ids=torch.tensor([0]))])
    assert (found.nodes, [each.shared for each in found.parties]) == (3, [0, 0])


def test_labels_of_several_tasks_that_say_yes_or_no() -> None:
    first = party("a", torch.tensor([[1.0, NAN], [1.0, 0.0], [NAN, NAN]]))
    second = party("b", torch.tensor([[0.0, 0.0]]))
    found = describe([first, second])
    a, b = found.parties
    assert (found.kind, a.labels, a.labelled, a.unlabelled) == ("yes-no", (2, 0), (2, 1), 1)
    assert (b.labels, b.labelled, b.means) == ((0, 0), (1, 1), ())
    one, other = earth_movers(torch.tensor([[0, 2], [1, 0]])), earth_movers(torch.tensor([[1, 0], [1, 0]]))
    assert other == 0
    assert found.emd == one / 2


def test_a_task_without_any_label_does_not_count_in_the_distance() -> None:
    labels = torch.tensor([[1.0, NAN], [0.0, NAN]])
    alone = describe([party("a", labels[:1, :1]), party("b", labels[1:, :1])])
    assert describe([party("a", labels[:1]), party("b", labels[1:])]).emd == alone.emd == 1.0


def test_measured_values_have_means_and_no_distance() -> None:
    found = describe([party("a", torch.tensor([[1.5, NAN], [2.5, NAN]])), party("b", torch.tensor([[0.0, 4.0]]))])
    a, b = found.parties
    assert (found.kind, found.emd, a.labels) == ("value", None, ())
    assert (a.means, a.labelled, b.means) == ((2.0, None), (2, 0), (0.0, 4.0))


def test_labels_in_one_column_are_one_task() -> None:
    found = describe([party("a", torch.tensor([1.0, 0.0, 1.0, NAN]))])
    assert (found.kind, found.parties[0].labels, found.parties[0].labelled) == ("yes-no", (2,), (3,))


def test_classes_that_nobody_has_are_counted_where_they_are_known() -> None:
    assert describe([party("a", torch.tensor([0, 1]))], classes=4).parties[0].labels == (1, 1, 0, 0)


def test_nothing_labelled_is_no_distance() -> None:
    found = describe([party("a", torch.tensor([-1, -1])), party("b", torch.tensor([-1]))])
    assert (found.emd, [each.unlabelled for each in found.parties]) == (None, [2, 1])


def test_parties_with_many_graphs() -> None:
    parties = make_graph_parties()
    found = describe(parties)
    assert found.level == "graph"
    assert [each.items for each in found.parties] == [each.items for each in parties]
    assert [each.nodes for each in found.parties] == [each.nodes for each in parties]
    assert [sum(each.labels) for each in found.parties] == [each.items for each in parties]
    assert found.nodes == sum(each.nodes for each in parties)


def test_a_broken_cut_knows_no_crossing_edge() -> None:
    parties = make_node_parties()
    assert describe([replace(each, border=None) for each in parties]).crossing == 0


def test_the_same_seed_is_described_alike() -> None:
    pool = Pool(whole(60, 3, 0), 3)
    one, same, other = (describe(Louvain().cut(pool, 4, seed), 3) for seed in (0, 0, 1))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other


def test_plain_values_are_json() -> None:
    found = describe([party("a", torch.tensor([0, 1]), edges=3), party("b", torch.tensor([1]), edges=1)], note="x")
    plain = json.loads(json.dumps(found.to_dict()))
    assert {key: plain[key] for key in ("level", "kind", "nodes", "edges", "cross", "crossing", "note")} == {
        "level": "node", "kind": "class", "nodes": 3, "edges": 4, "cross": 0, "crossing": 0.0, "note": "x",
    }  # fmt: skip
    assert plain["parties"][1] == {
        "name": "b", "items": 1, "nodes": 1, "edges": 1, "cross": 0, "shared": 0, "train": 1, "val": 0, "test": 0,
        "unlabelled": 0, "labels": [0, 1],
    }  # fmt: skip
    literal = {**asdict(found), "crossing": found.crossing}
    del literal["labels"]
    literal["parties"] = [{key: value for key, value in each.items() if value != ()} for each in literal.pop("parties")]
    assert json.dumps(found.to_dict()) == json.dumps(literal)


def test_no_party_is_an_error_of_one_line() -> None:
    with pytest.raises(IsthmusError, match="there are no parties"):
        describe([])
