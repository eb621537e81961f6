"""What is wrong with a graph that is handed in shows when the party is made, in one line that names the party."""

from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch_geometric.data import Data

import isthmus
from isthmus.data.party import Party
from isthmus.errors import IsthmusError


def graph(**changes: Any) -> Data:
    fields = {
        "x": torch.eye(4),
        "edge_index": torch.tensor([[0, 1], [1, 2]]),
        "y": torch.tensor([0, 1, 0, 1]),
        "train_mask": torch.tensor([True, True, False, False]),
        "test_mask": torch.tensor([False, False, True, True]),
    }
    return Data(**{name: value for name, value in (fields | changes).items() if value is not None})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"x": None}, "x is missing"),
        ({"x": torch.ones(4)}, r"x has shape \[4\]"),
        ({"x": torch.full((4, 4), torch.nan)}, "16 NaN or infinite"),
        ({"y": None}, "y is missing: give unknown labels as -1, or NaN where labels are numbers"),
        ({"y": torch.tensor([0.0, 1.0, 2.0, 1.0])}, r"whole numbers as floats: give classes as y.long\(\), measured"),
        ({"y": torch.tensor([0.0, 1.0, -1.0, 1.0])}, "whole numbers as floats"),
        ({"y": torch.tensor([0, -1, 0, 1])}, "item 1 in 'train' has label -1"),
        ({"y": torch.tensor([0, 1, -2, 1])}, "item 2 in 'test' has label -2"),
        ({"edge_index": None}, "edge_index is missing"),
        ({"edge_index": torch.tensor([[0.0], [1.0]])}, "must be torch.int64"),
        ({"edge_index": torch.tensor([[0], [9]])}, "edge 0 points to node 9, but its nodes are 0 .. 3"),
        ({"edge_weight": torch.ones(3)}, "2 finite numbers"),
        ({"edge_weight": torch.tensor([1.0, torch.inf])}, "2 finite numbers"),
        ({"train_mask": torch.tensor([0, 0, 1, 1])}, "must be a mask"),
        ({"train_mask": torch.tensor([-1, 2])}, "outside 0 .. 3"),
        ({"train_mask": torch.tensor([True, True, True, False])}, "share items"),
        ({"train_mask": torch.tensor([True])}, "shape"),
    ],
)
def test_a_wrong_graph_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(IsthmusError, match=text) as caught:
        Party.of_graph("bank-a", graph(**changes))
    assert "bank-a" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"x": torch.eye(4).double()},
        {"x": torch.eye(4).long()},
        {"x": torch.eye(4).to_sparse_coo()},
        {"x": np.eye(4)},
        {"x": torch.eye(4).requires_grad_()},
        {"y": torch.tensor([0, 1, 0, 1], dtype=torch.int32)},
        {"y": torch.tensor([[0], [1], [0], [1]])},
        {"edge_weight": torch.ones(2, 1)},
        {"train_mask": [0, 1]},
        {"train_mask": np.array([True, True, False, False])},
    ],
)
def test_other_types_of_the_same_graph_are_read_as_it(changes: dict[str, Any]) -> None:
    party, plain = Party.of_graph("a", graph(**changes)), Party.of_graph("a", graph())
    assert torch.equal(party.graph.x.to_dense(), plain.graph.x)
    assert torch.equal(party.graph.y, plain.graph.y)
    assert torch.equal(party.train, plain.train)
    isthmus.run("fedavg", [party], rounds=1)


def test_an_item_whose_labels_are_all_missing_is_in_no_split() -> None:
    nan = float("nan")
    y = torch.tensor([[nan, nan], [1.0, nan], [nan, nan], [0.0, 1.0]])
    party = Party.of_graph("a", graph(y=y))
    assert [getattr(party, split).tolist() for split in ("train", "val", "test")] == [
        [False, True, False, False], [False] * 4, [False, False, False, True],
    ]  # fmt: skip
    flat = Party.of_graph("a", graph(y=y[:, 1]))
    assert (flat.train | flat.test).tolist() == [False, False, False, True]
    pile = [Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]), y=row[None]) for row in y]
    assert Party.of_graphs("a", pile, train=range(3), test=[3]).train.tolist() == [False, True, False, False]


def test_ids_are_different_and_a_border_needs_them() -> None:
    with pytest.raises(IsthmusError, match="different numbers"):
        Party.of_graph("a", graph(), ids=torch.tensor([1, 1, 2, 3]))
    one = torch.tensor([0])
    with pytest.raises(IsthmusError, match="no ids"):
        Party.of_graph("a", graph(), border=isthmus.Border(one, one, one, ("b",)))


def test_a_model_whose_outputs_are_not_the_classes_is_refused() -> None:
    parties = [Party.of_graph(name, graph()) for name in "ab"]
    with pytest.raises(IsthmusError, match="the task has 2 classes"):
        isthmus.run("fedavg", parties, rounds=1, model=lambda i, o: isthmus.Encoder.named("gcn")().build(i, 3, "node"))


def test_run_refuses_what_are_no_parties_and_parties_without_labels() -> None:
    with pytest.raises(IsthmusError, match="list of Party objects"):
        isthmus.run("fedavg", [graph()])
    idle = Party.of_graph("idle", graph(train_mask=None))
    with pytest.raises(IsthmusError, match="'idle' has no training label"):
        isthmus.run("fedavg", [idle, Party.of_graph("a", graph())])


@pytest.mark.parametrize("of", [list, np.array, pandas.Series])
def test_numbers_of_other_libraries_are_taken_for_ids_and_features(of: Any) -> None:
    features = pandas.DataFrame(torch.ones(4, 2).numpy())
    party = Party.of_graph("bank-a", graph(x=features), ids=of([3, 2, 7, 5]))
    assert party.ids is not None
    assert party.ids.tolist() == [3, 2, 7, 5]
    assert torch.equal(party.graph.x, torch.ones(4, 2))
    with pytest.raises(IsthmusError, match="party 'bank-a': ids is a "):
        Party.of_graph("bank-a", graph(), ids=of(["a", "b", "c", "d"]))
