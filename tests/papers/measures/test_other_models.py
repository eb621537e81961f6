"""Other models trained on a condensed graph."""

from __future__ import annotations

from tests.papers.a_paper import FEDGC

from isthmus.papers.measures.other_models import OnOtherModels


def test_other_models_learn_from_the_condensed_graph() -> None:
    found = OnOtherModels(models=["mlp", "sgc"]).run(FEDGC, 0, None)
    assert set(found.metrics) == {"mlp", "sgc", "average"}
    assert all(0 < value <= 1 for value in found.metrics.values())
    assert found.metrics["average"] == (found.metrics["mlp"] + found.metrics["sgc"]) / 2
