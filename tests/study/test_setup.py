"""The task and the model follow from the data; what does not fit is an error of one line before a run starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers import make_graph_parties, make_node_parties
from isthmus.data.cohort import Cohort
from isthmus.data.party import Party
from isthmus.data.schema import Inputs
from isthmus.errors import IsthmusError
from isthmus.methods.base import Method
from isthmus.methods.fedavg import FedAvg
from isthmus.nn.encoders import Encoder, Gcn
from isthmus.nn.per_party import PerParty
from isthmus.nn.typed import TypedEncoder
from isthmus.study.setup import check_fit, check_labelled, module_for, module_of, task_for
from isthmus.tasks.base import Task
from isthmus.tasks.classification import GraphClassification, NodeClassification
from isthmus.tasks.regression import NodeRegression
from isthmus.testing import small_parties


def test_module_that_cannot_be_drawn_anew_is_taken_as_it_is() -> None:
    module = nn.Sequential(nn.Linear(16, 3))
    before = module[0].weight.detach().clone()
    parties = make_node_parties()
    assert module_for(module, parties, task_for(parties), 5) is module
    assert torch.equal(module[0].weight, before)


@pytest.mark.parametrize("name", sorted(name for name, kind in Method.known().items() if kind.for_classes))
@pytest.mark.parametrize("labels", ["multilabel", "regression"])
def test_methods_for_classes_refuse_other_labels_by_name(name: str, labels: Any) -> None:
    parties = small_parties("node", labels=labels)
    task, method = task_for(parties), Method.named(name)()
    module = module_for(Encoder.named(method.encoder)(), parties, task, 0)
    with pytest.raises(IsthmusError, match=f"method '{name}' is for items of one class each: task '{task.name}' has"):
        check_fit(method, parties, task, module)


def test_data_without_features_are_refused_in_one_line() -> None:
    with pytest.raises(IsthmusError, match="model 'gcn': the parties' data have no features to read"):
        module_of(Gcn(hidden=8), Inputs(0), task_for(make_node_parties()), 0)


@pytest.mark.parametrize("name", Encoder.known())
def test_every_encoder_by_name_has_an_output_per_class(name: str) -> None:
    kind = Encoder.named(name)
    parties = small_parties("graph", 2, typed=True) if issubclass(kind, TypedEncoder) else make_graph_parties()
    module = module_for(kind(hidden=8), parties, task_for(parties, 5), 0)
    out = PerParty(module, 1)(Cohort(parties[:1]).block)
    assert out.shape == (parties[0].items, 5)


# ---- what does not fit


def relabelled(party: Party, **changes: Any) -> Party:
    graph = party.graph.clone()
    for name, value in changes.items():
        setattr(graph, name, value)
    return replace(party, graph=graph)


class OnlyGraphs(FedAvg):
    levels = ("graph",)


A, B = make_node_parties((5, 6))
PILE = make_graph_parties((3,))[0]
NODES = NodeClassification(classes=3)


@pytest.mark.parametrize(
    ("method", "parties", "task", "text"),
    [
        (FedAvg(), [], NODES, "there are no parties: a federation needs at least one"),
        (FedAvg(), [A, PILE], NODES, "holds graphs"),
        (FedAvg(), [A, replace(B, name=A.name)], NODES, f"two parties have the name '{A.name}'"),
        (FedAvg(), [A, relabelled(B, x=torch.ones(6, 2))], NODES, "has 2 features"),
        (FedAvg(), [A], GraphClassification(classes=3), "task 'graph-classification' is for graphs"),
        (OnlyGraphs(), [A], NODES, "is for graph tasks, the parties hold nodes"),
        (FedAvg(), make_node_parties((5, 6), untrained=(0, 1)), NODES, "no party has a training label"),
    ],
)
def test_what_does_not_fit_is_refused(method: Method, parties: list[Party], task: Any, text: str) -> None:
    with pytest.raises(IsthmusError, match=text):
        check_fit(method, parties, task, nn.Linear(1, 1))


def test_parties_without_labels_are_counted() -> None:
    with pytest.raises(IsthmusError, match=r"party 'party-1' has no training label \(2 of 3 have none\)"):
        check_labelled(make_node_parties((5, 6, 7), untrained=(1, 2)))
    held = make_node_parties((5, 6, 7), untrained=(1,))
    none = torch.zeros_like(held[1].val)
    for seen, remedy in ((none, "label more"), (~none, "the split drew all of its labels for validation and test")):
        with pytest.raises(IsthmusError, match=remedy):
            check_labelled([held[0], replace(held[1], val=seen, test=none), held[2]])
    check_labelled(make_node_parties((5, 6, 7)))


@pytest.mark.parametrize(("party", "kind"), [(A, NodeClassification), (PILE, GraphClassification)])
def test_task_follows_the_labels(party: Party, kind: type) -> None:
    y = torch.zeros_like(party.graph.y)
    assert task_for([relabelled(party, y=y)]) == kind(classes=2)
    assert task_for([relabelled(party, y=y + 4)]) == kind(classes=5)
    assert task_for([party], 7) == kind(classes=7)


NAN = float("nan")


@pytest.mark.parametrize("party", [A, PILE])
@pytest.mark.parametrize(
    ("labels", "kind"),
    [([0.0, 1.0, NAN], "multilabel"), ([NAN, 1.0, 1.0], "multilabel"), ([0.0, 0.5, NAN], "regression")],
)
def test_real_numbers_are_labels_of_several_tasks(party: Party, labels: list[float], kind: str) -> None:
    y = torch.tensor(labels).repeat(party.items, 1)
    task = Task.named(f"{party.level}-{kind}")
    assert task_for([relabelled(party, y=y)]) == task_for([relabelled(party, y=y)], 3) == task(tasks=3)
    assert task_for([relabelled(party, y=y[:, :2].double())]) == task_for([relabelled(party, y=y[:, :2])])
    assert task_for([relabelled(party, y=y[:, 1])]).outputs == 1


def test_one_party_with_another_number_than_0_and_1_makes_all_numbers_measured() -> None:
    zeros = torch.zeros(5, 1)
    ratings = relabelled(replace(A, name="b"), y=zeros + 4)
    assert task_for([relabelled(A, y=zeros), ratings]) == NodeRegression(tasks=1)


@pytest.mark.parametrize(
    ("y", "classes", "text"),
    [
        (torch.rand(5), 3, "labels are 1 real numbers for each item: give 3 as `classes` says, or leave `classes` out"),
        (torch.rand(5, 2), 3, "labels are 2 real numbers for each item: give 3"),
        (torch.rand(5, 2, 2), None, "labels are 4 real numbers for each item: give one for each task"),
        (torch.full((5, 2), NAN), None, "labels are all missing"),
        (torch.tensor([0.0, 1.0, NAN, 1.0, float("inf")]), None, "labels are infinite"),
        (torch.zeros(5, 2, dtype=torch.long), None, "labels are whole numbers of several tasks"),
        (torch.zeros(5, dtype=torch.long), 1, "task: classes is 1"),
        (torch.tensor([0, 1, 2, 3, 0]), 3, "classes is 3, labels go up to 3: classes must be at least 4"),
    ],
)
def test_labels_that_fit_no_task_are_refused(y: Tensor, classes: int | None, text: str) -> None:
    with pytest.raises(IsthmusError, match=text) as error:
        task_for([relabelled(A, y=y)], classes)
    assert "\n" not in str(error.value)
