"""What is done with the study of a cell."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import silhouette_score

from isthmus.data.party import pool_parties
from isthmus.errors import IsthmusError
from isthmus.nn.encoders import Sgc
from isthmus.papers.measures.costs import MB, Costs
from isthmus.papers.measures.embeddings import Embeddings
from isthmus.papers.measures.membership import MembershipRisk
from isthmus.papers.measures.other_models import OnOtherModels
from isthmus.papers.measures.training import Training
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


def test_members_are_guessed_round_by_round() -> None:
    found = MembershipRisk(audit={"shadows": 2, "others": 30, "shadow": {"epochs": 3}}).run(FEDGC, 0, None)
    assert [at for at, _ in found.curves["auc"]] == [1, 2]
    assert all(0 <= found.metrics[risk] <= 1 for risk in ("value", "auc", "f1", "likelihood", "tpr"))
    asked = [value for name, value in found.metrics.items() if name.startswith("auc, ")]
    assert found.metrics["auc"] == max(asked)


def test_other_models_learn_from_the_condensed_graph() -> None:
    found = OnOtherModels(models=["mlp", "sgc"]).run(FEDGC, 0, None)
    assert set(found.metrics) == {"mlp", "sgc", "average"}
    assert all(0 < value <= 1 for value in found.metrics.values())
    assert found.metrics["average"] == (found.metrics["mlp"] + found.metrics["sgc"]) / 2


def test_costs_are_those_of_the_ledger_and_of_all_sides() -> None:
    plan = Study.of(
        {
            "data": {"name": "banks"}, "parties": 3, "model": {"encoder": "sgc"},
            "methods": [{"name": "fedcog", "rounds": 2, "every": 2, "local": {"epochs": 1}}],
        }
    )  # fmt: skip
    found = Costs(repeats=1).run(plan, 0, None).metrics
    (run,) = run_study(plan).runs
    rows = list(run.ledger.rows())
    assert found["set_up_mb"] * MB == pytest.approx(sum(row["sent"] for row in rows if row["round"] == 0))
    trained = [row for row in rows if row["action"] == "train" and row["round"] == 1]
    assert found["update_mb"] * MB == pytest.approx(sum(row["sent"] + row["received"] for row in trained))
    parties = plan.load(0).parties
    crossing = sum(len(party.border) for party in parties)
    assert found["crossing"] == crossing / (crossing + sum(party.edges for party in parties))
    weights = 4 * 100 * (parties[0].features + 1)
    assert 2 * 3 * weights < found["wide_mb"] * MB < 2 * 3 * (weights + 600)
    assert found["to_wide_mb"] == found["set_up_mb"] / found["wide_mb"]
    assert all(found[side] > 0 for side in ("set_up", "alone", "pooled", "update"))
    apart = Costs(repeats=1, side_by_side=False).run(plan, 0, None).metrics
    assert {name: apart[name] for name in apart if name.endswith("_mb")} == {
        name: found[name] for name in found if name.endswith("_mb")
    }


def test_test_nodes_of_parties_that_overlap_are_drawn_by_the_released_model() -> None:
    overlap = {"data": {"name": "banks", "nodes": 240}, "parties": 3, "partition": {"name": "overlap"}}
    plan = Study.of({**overlap, "model": {"encoder": "sgc"}, "methods": [{"name": "fedavg", "rounds": 3, "every": 1}]})
    found = Embeddings().run(plan, 0, None)
    (run,) = run_study(plan).runs
    whole = pool_parties(plan.load(0).parties)
    module = Sgc().build(whole.features, 4, "node")
    module.load_state_dict(run.weights)
    z = module.eval()(whole.graph.x, whole.graph.edge_index).detach().numpy()[whole.test]
    y = whole.graph.y[whole.test].numpy()
    assert found.metrics["silhouette"] == pytest.approx(silhouette_score(z, y), abs=1e-5)
    assert found.about == {"round": run.chosen_round}
    (drawn,) = found.pictures.values()
    assert [kind for *_, kind in drawn] == y.tolist()
    assert np.ptp([x for x, *_ in drawn]) > 0


def test_graphs_are_drawn_after_the_rounds_that_are_named() -> None:
    plan = Study.of(
        {
            "data": {"name": "motifs", "graphs": 40}, "task": {"name": "graph-clustering"},
            "methods": [{"name": "fclg", "rounds": 2, "every": 1, "local": {"epochs": 1}}], "model": {"hidden": 8},
        }
    )  # fmt: skip
    found = Embeddings(rounds=[1, 2]).run(plan, 0, None)
    assert set(found.metrics) == {"silhouette after 1", "silhouette after 2"}
    assert [len(items) for items in found.pictures.values()] == [40, 40]
    assert found.pictures["round 1"] != found.pictures["round 2"]


def test_what_cannot_be_drawn_is_one_line() -> None:
    with pytest.raises(IsthmusError, match="needs nodes that parties share, or graphs to cluster: set"):
        Embeddings().run(FEDAVG, 0, None)
    overlap = FEDAVG.model_copy(update={"partition": {"name": "overlap"}})
    with pytest.raises(IsthmusError, match="round 3 was not evaluated: see the method's options rounds and every"):
        Embeddings(rounds=[1, 3]).run(overlap, 0, None)
    alone = overlap.model_copy(update={"methods": [{"name": "local", "rounds": 1}]})
    with pytest.raises(IsthmusError, match="method 'local' has no model at the server"):
        Embeddings().run(alone, 0, None)


def test_costs_of_a_method_without_set_up_are_one_line() -> None:
    for name in ("fedavg", "local"):
        with pytest.raises(IsthmusError, match=f"method '{name}' has no set-up with messages"):
            Costs(repeats=1).run(FEDAVG.model_copy(update={"methods": [{"name": name, "rounds": 1}]}), 0, None)
