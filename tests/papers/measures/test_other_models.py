"""Other models trained on a condensed graph."""

from __future__ import annotations

import pytest
from tests.papers.a_paper import FEDGC

from isthmus.federation import pieces
from isthmus.papers.measures.other_models import OnOtherModels


def test_other_models_learn_from_the_condensed_graph() -> None:
    found = OnOtherModels(models=["mlp", "sgc"]).run(FEDGC, 0, None)
    assert set(found.metrics) == {"mlp", "sgc", "average"}
    assert all(0 < value <= 1 for value in found.metrics.values())
    assert found.metrics["average"] == (found.metrics["mlp"] + found.metrics["sgc"]) / 2


def test_parties_in_several_cohorts_are_all_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = OnOtherModels(models=["mlp"]).run(FEDGC, 0, None)
    monkeypatch.setattr(pieces, "PARTIES", 1)
    split = OnOtherModels(models=["mlp"]).run(FEDGC, 0, None)
    assert split.metrics == pytest.approx(whole.metrics, abs=0.05)  # condensing amplifies rounding
