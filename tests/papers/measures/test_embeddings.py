"""Embeddings are those of the released model, or of some rounds."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import silhouette_score
from tests.papers.a_paper import FEDAVG

from isthmus.data.pooled import pool_parties
from isthmus.errors import IsthmusError
from isthmus.nn.decoupled import Sgc
from isthmus.papers.measures.embeddings import Embeddings
from isthmus.study.config import Study
from isthmus.study.run import run_study


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
