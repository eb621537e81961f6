"""Every item gets the class, the odds or the mean of all parties' training items."""

import pytest
import torch
from written_out import MODELS, built

import isthmus
from helpers import make_parties
from isthmus.methods.majority import Majority
from isthmus.study.loop import Run
from isthmus.study.setup import task_for
from isthmus.testing import check_method, small_parties


def labels(parties, split):
    return torch.cat([party.graph.y[getattr(party, split)] for party in parties])


@pytest.mark.parametrize("level", ["node", "graph"])
def test_every_item_gets_the_most_frequent_class(level):
    parties = make_parties(level)
    module = built(next(iter(MODELS.values())), level)
    found = Run(Majority(rounds=3), parties, task_for(parties), module).go()
    top = labels(parties, "train").bincount().argmax()
    assert found.metrics["test_accuracy"] == pytest.approx(float((labels(parties, "test") == top).double().mean()))
    shares = (labels(parties, "train").bincount(minlength=3) + 1.0).double()
    due = -(shares / shares.sum()).log()[labels(parties, "test")].mean()
    assert found.metrics["test_loss"] == pytest.approx(float(due))
    assert found.chosen_round == 1
    assert {row["verb"] for row in found.ledger.rows()} == {"total"}
    assert set(found.models) == {"context"}, "there is no model, only what the server knows"


def test_real_numbers_get_their_mean_and_yes_no_labels_their_odds():
    for kind, name in (("regression", "rmse"), ("multilabel", "accuracy")):
        parties = small_parties("graph", labels=kind)
        module = built(next(iter(MODELS.values())), "graph")
        found = Run(Majority(rounds=1), parties, task_for(parties), module).go().metrics[f"test_{name}"]
        train, test = labels(parties, "train"), labels(parties, "test")
        mean, known = train.nanmean(0), ~test.isnan()
        right = (
            ((test - mean)[known] ** 2).mean().sqrt() if kind == "regression" else ((mean >= 0.5) == (test == 1))[known]
        )
        assert found == pytest.approx(float(right.double().mean()), abs=1e-5)


@pytest.mark.parametrize("labels", ["multilabel", "regression"])
def test_it_conforms_on_several_labels(labels):
    check_method(Majority(rounds=2), small_parties("node", labels=labels))


@pytest.mark.parametrize("threshold", ["f1", "max_fpr", 0.1, 0.9])
def test_a_threshold_does_not_turn_the_one_answer_into_the_other(threshold):
    banks = {"name": "banks", "classes": 2}
    results = isthmus.run("majority", banks, metric="accuracy", task={"threshold": threshold})
    run = results.runs[0]
    assert run.metrics["test_accuracy"] == run.majority_score
    model = results.model("majority")
    assert set(model.predict("banks")["prediction"].to_pylist()) == {str(int(model.outputs("banks")[0].argmax()))}
