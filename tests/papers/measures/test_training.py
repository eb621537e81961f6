"""Training as a measure gives what the study gives."""

from __future__ import annotations

import pytest
from tests.papers.a_paper import FEDAVG

from isthmus.papers.measures.training import Training
from isthmus.study.run import run_study


def test_training_tells_what_the_study_tells() -> None:
    found = Training(curves=["val_accuracy"]).run(FEDAVG, 0, None)
    (run,) = run_study(FEDAVG).runs
    assert {name: found.metrics[name] for name in run.metrics} == run.metrics
    assert found.metrics["sent"] == run.ledger.sent
    assert found.curves["val_accuracy"] == [[at, value] for at, name, value in run.history if name == "val_accuracy"]
    assert found.about == {"round": run.chosen_round, "rounds": 2}


def test_each_partys_own_metrics_are_there_when_asked_for() -> None:
    plain, own = (Training(by_party=way).run(FEDAVG, 0, None).metrics for way in (False, True))
    (run,) = run_study(FEDAVG).runs
    added = {f"{name} of {party}": value for party, of in run.parties.items() for name, value in of.items()}
    assert "test_accuracy of party-0" in added
    assert {name: own[name] for name in own.keys() - plain.keys()} == added


def test_one_after_another_gives_the_same() -> None:
    both = [Training(side_by_side=way).run(FEDAVG, 0, None).metrics["test_accuracy"] for way in (True, False)]
    assert both[0] == both[1]


def test_the_mean_over_parties_and_the_worst_party_are_figures() -> None:
    found = Training().run(FEDAVG, 0, None).metrics
    (run,) = run_study(FEDAVG).runs
    own = [of["test_accuracy"] for of in run.parties.values()]
    assert found["test_accuracy over parties"] == pytest.approx(sum(own) / len(own))
    assert found["test_accuracy of the worst party"] == min(own)
