"""What clusters are worth without an encoder: against sums and clusters by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import accuracy_score
from tests.papers.a_paper import FEDAVG

from isthmus.data import rows
from isthmus.data.pooled import pool_parties
from isthmus.errors import IsthmusError
from isthmus.papers.measures.trivial import Trivial
from isthmus.study.config import Study

STUDY = Study.of({
    "data": {"name": "motifs", "graphs": 60, "classes": 2},
    "task": {"name": "graph-clustering", "scale": "raw", "more_scales": ["log"], "probe": 2},
    "parties": 3,
    "methods": [{"name": "fclg"}],
    "model": {"encoder": "gin", "weighted": True},
})  # fmt: skip


def literal(columns, y, test):
    """The accuracy of the best of both ways to name two clusters, on some graphs."""
    cluster = KMeans(2, n_init=10, random_state=0).fit_predict(columns)[test]
    return max(accuracy_score(y[test], named) for named in (cluster, 1 - cluster))


def test_graphs_are_clustered_by_size_or_by_sums_of_features() -> None:
    party = pool_parties(STUDY.load(0).parties)
    x, batch = rows.to_dense(party.graph.x).double().numpy(), party.graph.batch.numpy()
    size = np.bincount(batch)[:, None].astype(float)
    sums = np.stack([x[batch == at].sum(0) for at in range(party.items)])
    y, test = party.graph.y.numpy(), party.test.numpy()
    found = Trivial(reads="size").run(STUDY, 0, None).metrics
    assert found["test_accuracy"] == pytest.approx(literal(size, y, test))
    assert found["test_log_accuracy"] == pytest.approx(literal(np.log1p(size), y, test))
    found = Trivial().run(STUDY, 0, None).metrics
    assert found["test_accuracy"] == pytest.approx(literal(sums, y, test))
    assert {"val_accuracy", "test_macro_f1", "test_log_probe_accuracy"} <= found.keys()


def test_who_knows_nothing_guesses_the_larger_class() -> None:
    party = pool_parties(STUDY.load(0).parties)
    share = np.bincount(party.graph.y[party.test].numpy()).max() / int(party.test.sum())
    found = Trivial(reads="nothing").run(STUDY, 0, None).metrics
    assert found["test_accuracy"] == found["test_log_accuracy"] == pytest.approx(share)
    assert found["test_nmi"] == 0


def test_other_tasks_are_refused() -> None:
    with pytest.raises(IsthmusError, match=r"set task\.name to 'graph-clustering'"):
        Trivial().run(FEDAVG, 0, None)
