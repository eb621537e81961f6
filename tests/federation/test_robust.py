"""Means that hold against liars: what each is, literally, and that nothing but the answers decides its bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from scripted import federation_of, small_parties
from tests.federation.at_parties import transport_of
from torch import Tensor
from torch_geometric import nn as gnn

from helpers import CLASSES, FEATURES
from isthmus.errors import IsthmusError, TooFewAnswers
from isthmus.federation.answers import Answer
from isthmus.federation.robust import Aggregation, ClippedMean, Krum, Median, TrimmedMean
from isthmus.federation.site import Site
from isthmus.federation.verbs import Federation
from isthmus.methods.fedavg import FedAvg
from isthmus.protect.options import Protect
from isthmus.study.loop import Run
from isthmus.tasks.classification import NodeClassification

VALUES = torch.tensor([[1.0, 5.0], [2.0, -7.0], [3.0, 1.0], [100.0, 2.0], [4.0, 3.0]])


def test_the_median_is_the_middle_value_of_each_weight() -> None:
    assert Median().combine({"w": VALUES})["w"].tolist() == [3.0, 2.0]
    assert Median().combine({"w": VALUES[:4]})["w"].tolist() == [2.5, 1.5]


def test_the_trimmed_mean_leaves_out_both_ends() -> None:
    literal = [sum(sorted(VALUES[:, at].tolist())[1:-1]) / 3 for at in range(2)]
    assert TrimmedMean(share=0.2).combine({"w": VALUES})["w"].tolist() == pytest.approx(literal)
    with pytest.raises(TooFewAnswers, match="needs more than 2 answers"):
        TrimmedMean(share=0.4).combine({"w": VALUES[:2]})


def krum_by_hand(values: Sequence[Sequence[float]], liars: int) -> int:
    """The answer whose n - f - 2 nearest others are closest, as the paper says."""
    scores = []
    for one in values:
        distances = sorted(sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) for other in values)
        scores.append(sum(distances[1 : len(values) - liars - 1]))
    return scores.index(min(scores))


def test_krum_takes_an_answer_that_is_close_to_others() -> None:
    for seed in range(5):
        values = torch.randn(9, 4, generator=torch.Generator().manual_seed(seed))
        values[0] += 10
        chosen = krum_by_hand(values.tolist(), 2)
        parts = {"a": values[:, :1], "b": values[:, 1:]}
        found = Krum(liars=2).combine(parts)
        assert torch.equal(torch.cat([found["a"], found["b"]]), values[chosen])
    with pytest.raises(TooFewAnswers, match="needs 5 answers, there are 4"):
        Krum().combine({"w": VALUES[:4]})


def test_updates_are_clipped_to_the_bound_and_others_keep_their_bits() -> None:
    sent = {"weights": {"w": torch.tensor([3.0, 4.0])}}
    stack = sent["weights"]["w"] + torch.tensor([[0.1, 0.2], [30.0, 40.0]])
    rule = ClippedMean(bound=1.0)
    found = rule.limit(Answer({"weights": {"w": stack}}, weight=torch.ones(2)), sent).fields["weights"]["w"]
    assert torch.equal(found[0], stack[0])
    assert found[1].tolist() == pytest.approx([3 + 6 * 0.6, 4 + 6 * 0.8])
    assert not rule.problem({"weights/w": found[1]}, sent)
    assert "norm 50, beyond 6" in rule.problem({"weights/w": stack[1]}, sent)


def run_of(rule: Any, **options: Any) -> dict[str, Tensor]:
    method = FedAvg(rounds=3, aggregate=rule)
    module, parties = gnn.GCN(FEATURES, 4, 1, CLASSES), small_parties()
    torch.manual_seed(0)
    for each in module.parameters():
        torch.nn.init.uniform_(each, -0.5, 0.5)
    return dict(Run(method, parties, NodeClassification(classes=CLASSES), module, **options).go().models["shared"])


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", {"name": "krum", "liars": 0}, "clipped-mean"])
def test_cohorts_and_the_wire_leave_the_bits_alone(rule: Any) -> None:
    rule = {"name": "clipped-mean", "bound": 0.01} if rule == "clipped-mean" else rule
    alone, together, sent = run_of(rule, side_by_side=False), run_of(rule), run_of(rule, wire=True)
    assert all(torch.equal(alone[name], together[name]) and torch.equal(alone[name], sent[name]) for name in alone)
    assert any(not torch.equal(alone[name], each) for name, each in run_of("mean").items())


def answering(site: Site, request: Any) -> Answer:
    numbers = [float(name[-1]) for name in site.cohort.names]
    values = torch.tensor([[1.0], [2.0], [3.0], [1e6]])[[int(number) for number in numbers]]
    return Answer({"w": values, "more": values}, weight=torch.tensor([1.0, 1.0, 0.0, 1.0])[[int(n) for n in numbers]])


def test_it_concerns_what_comes_back_of_parties_with_a_weight() -> None:
    federation = federation_of(answering, split=((0, 1), (2, 3)), aggregation=Median())
    total = federation.total("say", {"w": torch.zeros(1)})
    assert total.mean("w").tolist() == [2.0]
    assert total.mean("more").tolist() == pytest.approx([1000003 / 3])
    with pytest.raises(IsthmusError, match="combined in another way"):
        total.sum("w")


def test_what_needs_single_answers_is_refused_under_masks() -> None:
    from scripted import site_of

    transport, _ = transport_of(
        lambda parties: site_of(answering, parties), Protect.read({"total": "masks"}, "protect")
    )
    with pytest.raises(IsthmusError, match="aggregate = 'median' compares the answers of single parties"):
        Federation(transport, aggregation=Median())
    Federation(transport, aggregation=ClippedMean())


def test_an_unknown_rule_is_one_line() -> None:
    with pytest.raises(IsthmusError, match="unknown aggregation 'kum': did you mean 'krum'"):
        Aggregation.of({"name": "kum"})
