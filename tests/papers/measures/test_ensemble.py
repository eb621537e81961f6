"""An ensemble predicts with the mean of its members' outputs."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from isthmus.data.pooled import pool_parties
from isthmus.errors import IsthmusError
from isthmus.papers.measures.ensemble import Ensemble
from isthmus.papers.measures.training import Training
from isthmus.study.config import Study
from isthmus.study.run import build_run, run_study

STUDY = Study.of({
    "data": {"name": "motifs", "graphs": 60},
    "parties": 3,
    "methods": [{"name": "fedavg", "rounds": 2, "select": "last", "local": {"lr": 0.05}}],
    "model": {"encoder": "gcn", "hidden": 8, "dropout": 0.0},
})  # fmt: skip


def test_members_share_data_and_predict_by_the_mean_of_their_outputs() -> None:
    loaded = STUDY.load(0)
    (method,) = STUDY.method_list()
    party = pool_parties(loaded.parties)
    outputs = []
    for seed in (0, 1_000_000):
        run = build_run(STUDY, method, seed, loaded)
        run.module.load_state_dict(run.go().weights)
        graph = party.graph
        with torch.no_grad():
            outputs.append(run.module(graph.x.to_dense(), graph.edge_index, None, graph.batch, party.items))
    assert not torch.equal(*outputs)
    mean, y = sum(outputs)[party.test] / 2, party.graph.y[party.test]
    found = Ensemble().run(STUDY, 0, None).metrics
    assert found["test_accuracy"] == pytest.approx(float((mean.argmax(1) == y).double().mean()))
    assert found["test_loss"] == pytest.approx(float(F.cross_entropy(mean, y)), rel=1e-5)
    assert "epsilon" not in found


def test_members_spend_together() -> None:
    noisy = STUDY.model_copy(update={"methods": [{"name": "fgcl", "rounds": 2, "epsilons": [1.5]}]})
    found = Ensemble(models=3).run(noisy, 0, None)
    assert found.metrics["epsilon"] == pytest.approx(4.5)
    assert found.about["round"] in (1, 2)
    (run,) = run_study(noisy).runs
    assert Training().run(noisy, 0, None).metrics["epsilon"] == run.privacy["basic"]["epsilon"] == 1.5


def test_members_without_a_common_model_are_refused() -> None:
    alone = STUDY.model_copy(update={"methods": [{"name": "local", "rounds": 1}]})
    with pytest.raises(IsthmusError, match="needs a model that all share, which 'local' has not"):
        Ensemble().run(alone, 0, None)
