"""Other models trained on a condensed graph."""

from __future__ import annotations

import pytest
import torch
from tests.papers.a_paper import FEDGC

from isthmus.federation import pieces
from isthmus.papers.measures.other_models import PUBLISHED, OnOtherModels


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


def test_models_of_public_code_are_chosen_on_validation_nodes() -> None:
    measure = OnOtherModels(models=list(PUBLISHED), published=True, steps=6, check_every=2)
    found = measure.run(FEDGC, 0, None)
    assert set(found.metrics) == {*PUBLISHED, "average"}
    assert found.metrics["gcn"] == found.metrics["sage"] != found.metrics["mlp"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_models_of_public_code_written_out(name: str) -> None:
    torch.manual_seed(0)
    module = PUBLISHED[name].build(4, 3, "node").train()
    x, weight = torch.randn(3, 4), torch.tensor([0.5, 0.5, 2.0, 2.0])
    looped = torch.tensor([[1.0, 0.5, 0.0], [0.5, 1.0, 2.0], [0.0, 2.0, 1.0]])
    hop = looped / (looped.sum(1, keepdim=True) * looped.sum(1)).sqrt()
    by_shape = {tuple(value.shape): value for value in module.parameters()}
    weights, biases = (by_shape[256, 4], by_shape[3, 256]), (by_shape[(256,)], by_shape[(3,)])
    matrix = {"cheb": torch.eye(3) + hop, "appnp": torch.eye(3), "sgc": torch.eye(3)}.get(name, hop)
    due = matrix @ (matrix @ x @ weights[0].T + biases[0]).relu() @ weights[1].T + biases[1]
    if name in ("appnp", "sgc"):
        alpha = 0.1 if name == "appnp" else 0.0
        h = due
        for _ in range(2):
            due = (1 - alpha) * hop @ due + alpha * h
    found = module(x, torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), weight)
    torch.testing.assert_close(found, due, atol=1e-5, rtol=1e-4)
