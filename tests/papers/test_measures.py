"""What is done with the study of a cell."""

from __future__ import annotations

from isthmus.papers.measures import Attacked, OnOtherModels, Training
from isthmus.study.config import Study
from isthmus.study.run import run_study

QUICK = {
    "name": "fedgc", "teaching": 1, "transforming": {"epochs": 2}, "target": {"epochs": 3}, "rounds": 2, "every": 1,
    "ratio": 0.1,
}  # fmt: skip
FEDGC = Study.of(
    {"data": {"name": "banks", "nodes": 240}, "methods": [QUICK], "model": {"hidden": 8}, "unlabelled": "idle"}
)
FEDAVG = FEDGC.model_copy(update={"methods": [{"name": "fedavg", "rounds": 2}]})


def test_training_tells_what_the_study_tells() -> None:
    found = Training(curves=["val_accuracy"]).of(FEDAVG, 0, None)
    (run,) = run_study(FEDAVG).runs
    assert {name: found.metrics[name] for name in run.metrics} == run.metrics
    assert found.metrics["sent"] == run.ledger.sent
    assert found.curves["val_accuracy"] == [[at, value] for at, name, value in run.history if name == "val_accuracy"]
    assert found.about == {"round": run.chosen_round, "rounds": 2}


def test_each_partys_own_metrics_are_there_when_asked_for() -> None:
    plain, own = (Training(by_party=way).of(FEDAVG, 0, None).metrics for way in (False, True))
    (run,) = run_study(FEDAVG).runs
    added = {f"{name} of {party}": value for party, of in run.parties.items() for name, value in of.items()}
    assert "test_accuracy of party-0" in added
    assert {name: own[name] for name in own.keys() - plain.keys()} == added


def test_one_after_another_gives_the_same() -> None:
    both = [Training(side_by_side=way).of(FEDAVG, 0, None).metrics["test_accuracy"] for way in (True, False)]
    assert both[0] == both[1]


def test_members_are_guessed_round_by_round() -> None:
    found = Attacked(audit={"shadows": 2, "others": 30, "shadow": {"epochs": 3}}).of(FEDGC, 0, None)
    assert [at for at, _ in found.curves["auc"]] == [1, 2]
    assert all(0 <= found.metrics[risk] <= 1 for risk in ("value", "auc", "f1", "likelihood", "tpr"))
    asked = [value for name, value in found.metrics.items() if name.startswith("auc, ")]
    assert found.metrics["auc"] == max(asked)


def test_other_models_learn_from_the_condensed_graph() -> None:
    found = OnOtherModels(models=["mlp", "sgc"]).of(FEDGC, 0, None)
    assert set(found.metrics) == {"mlp", "sgc"}
    assert all(0 < value <= 1 for value in found.metrics.values())
