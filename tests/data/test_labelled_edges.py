"""Tests of parties whose edges have labels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from isthmus.data.cohort import Block, Cohort, check_compatible
from isthmus.data.describe import describe
from isthmus.data.fingerprint import fingerprint
from isthmus.data.folder.writing import write_party
from isthmus.data.party import Border, Party
from isthmus.data.pooled import pool_parties
from isthmus.errors import IsthmusError
from isthmus.report.wording import count_columns, describe_cut


def graph(**more: Any) -> Data:
    edges = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 2]])
    return Data(x=torch.eye(3), edge_index=edges, edge_label=torch.tensor([0, 1, 0, 1])).update(more)


def payments() -> HeteroData:
    typed = HeteroData()
    typed["account"].x, typed["bank"].x = torch.rand(4, 2), torch.rand(2, 1)
    typed["bank", "holds", "account"].edge_index = torch.tensor([[0, 1], [1, 3]])
    typed["account", "at", "bank"].edge_label_index = torch.tensor([[3, 0, 1], [1, 0, 1]])
    typed["account", "at", "bank"].edge_index = torch.empty(2, 0, dtype=torch.long)
    typed["account", "at", "bank"].edge_label = torch.tensor([1, 0, 1])
    typed["account", "at", "bank"].edge_label_attr = torch.tensor([3.0, 0.0, 1.0])
    return typed


def test_labels_without_an_index_are_those_of_the_edges():
    attr = torch.rand(4, 2)
    party = Party.of_edges("a", graph(edge_attr=attr), train=torch.tensor([0, 3]), test=torch.tensor([1]))
    assert (party.level, party.items, party.label_width) == ("edge", 4, 2)
    assert torch.equal(party.graph.edge_label_index, party.graph.edge_index)
    assert torch.equal(party.graph.edge_label_attr, attr)
    assert party.train.tolist() == [True, False, False, True]


def test_labelled_edges_need_not_be_edges_of_the_graph():
    index = torch.tensor([[2, 2], [1, 2]])
    party = Party.of_edges(
        "a", graph(edge_label_index=index, edge_label=torch.tensor([0.5, 2.0]), edge_attr=torch.rand(4))
    )
    assert (party.items, party.edges, party.label_width, party.edge_width) == (2, 4, 0, 1)
    assert torch.equal(party.graph.edge_label_index, index)


def test_labelled_edges_of_a_type_become_positions_in_the_flat_graph():
    party = Party.of_edges("a", payments(), ids={"account": torch.arange(4), "bank": torch.tensor([10, 11])})
    assert party.graph.edge_label_index.tolist() == [[3, 0, 1], [5, 4, 5]]
    assert party.graph.edge_label_attr.tolist() == [[3.0], [0.0], [1.0]]
    assert party.graph.y.tolist() == [1, 0, 1]
    assert party.labelled_type is None
    assert party.schema is not None
    assert not party.schema.labelled
    assert party.typed()["account"].x.shape == (4, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"edge_label": None}, "edge_label is missing"),
        ({"edge_label": torch.tensor([1])}, "row for each of the 4 columns of edge_index"),
        (
            {"edge_label_index": torch.tensor([[0, 1, 2, 7], [0, 0, 0, 0]])},
            r"edge 3 joins nodes \[7, 0\].*other party's",
        ),
        ({"edge_label_index": torch.rand(2, 4)}, "must be torch.int64 of shape"),
        ({"edge_attr": torch.full((4, 1), torch.nan)}, "NaN or infinite"),
        ({"edge_label_index": torch.zeros(2, 4).long(), "edge_label_attr": torch.rand(3, 1)}, r"not \[4, width\]"),
    ],
)
def test_what_is_wrong_with_labelled_edges_is_one_line(change, message):
    with pytest.raises(IsthmusError, match=f"^party 'a': .*{message}"):
        Party.of_edges("a", graph(**change))


def test_typed_graphs_have_labels_at_edges_of_one_type():
    typed = payments()
    typed["account", "at", "bank"].edge_label_index[1, 0] = 2
    with pytest.raises(IsthmusError, match=r"\(account, at, bank\) ends at a node outside 0 .. 1"):
        Party.of_edges("a", typed)
    del typed["account", "at", "bank"].edge_label
    with pytest.raises(IsthmusError, match="no edge type has edge_label"):
        Party.of_edges("a", typed)


def test_blocks_take_labelled_edges_apart_and_put_them_together():
    parties = [Party.of_edges(name, graph(edge_attr=torch.rand(4, 1))) for name in "abc"]
    block = Cohort(tuple(parties)).block
    assert block.edge_labels == (4, 4, 4)
    again = Block.concat([block.for_party(at) for at in range(3)])
    assert _same(block.edge_label_index, again.edge_label_index)
    assert _same(block.edge_label_attr, again.edge_label_attr)
    assert _same(block.for_party(1).edge_label_index, parties[1].graph.edge_label_index)


def test_pooled_parties_have_all_labelled_edges():
    one = Party.of_edges(
        "one", graph(), ids=torch.tensor([5, 6, 7]), train=torch.tensor([0]),
        border=Border(torch.tensor([0]), torch.tensor([8]), torch.tensor([0]), ("two",)),
    )  # fmt: skip
    two = Party.of_edges("two", graph(), ids=torch.tensor([7, 8, 9]), test=torch.tensor([1]))
    pooled = pool_parties([one, two])
    assert (pooled.level, pooled.nodes, pooled.items) == ("edge", 5, 8)
    assert pooled.graph.edge_label_index[:, 4:].tolist() == [[2, 3, 4, 2], [3, 4, 2, 4]]
    assert [3, 0] in pooled.graph.edge_index.t().tolist()  # the edge of the border
    assert pooled.train.nonzero().flatten().tolist() == [0]
    assert pooled.test.nonzero().flatten().tolist() == [5]
    without_ids = pool_parties([Party.of_edges("one", graph()), Party.of_edges("two", graph())])
    assert without_ids.graph.edge_label_index[:, 4:].tolist() == [[3, 4, 5, 3], [4, 5, 3, 5]]


def test_parties_agree_on_the_features_of_labelled_edges():
    with pytest.raises(IsthmusError, match="'b' has 0 features of a labelled edge and party 'a' 2"):
        check_compatible(
            [
                Party.of_edges("a", graph(edge_label_index=graph().edge_index, edge_label_attr=torch.rand(4, 2))),
                Party.of_edges("b", graph()),
            ]
        )


def test_an_outline_has_as_many_labelled_edges_and_features():
    party = Party.of_edges("a", graph(edge_attr=torch.rand(4, 2)))
    outline = party.outline()
    assert (outline.items, outline.inputs) == (party.items, party.inputs)


def test_labelled_edges_are_part_of_the_fingerprint():
    index = torch.tensor([[2, 2, 0, 0], [1, 2, 0, 0]])
    one, two = Party.of_edges("a", graph()), Party.of_edges("a", graph(edge_label_index=index))
    assert fingerprint([one]) != fingerprint([two])


def test_a_cut_tells_labelled_edges_from_edges():
    cut = describe([Party.of_edges(name, graph()) for name in "ab"])
    assert "2 parties hold 8 edges to classify of 6 nodes and 8 edges" in describe_cut([cut])
    columns = count_columns(cut)
    assert (columns["edges to classify"], columns["edges"]) == ([4, 4], [4, 4])


def test_no_folder_holds_labelled_edges(tmp_path):
    with pytest.raises(IsthmusError, match="labelled edges, which are not exported"):
        write_party(tmp_path / "a", Party.of_edges("a", graph()), 2)


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is not None and other is not None and torch.equal(one, other)
