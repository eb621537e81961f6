"""Statistics of a cut: against counts by hand."""

from __future__ import annotations

import pytest
from tests.papers.a_paper import FEDAVG

from isthmus.errors import IsthmusError
from isthmus.papers.measures.cut import Cut
from isthmus.study.config import Study


def test_a_cut_is_counted_edge_by_edge_and_label_by_label() -> None:
    study = FEDAVG.model_copy(
        update={"data": {"name": "banks", "nodes": 60}, "parties": 20, "partition": {"name": "k-means"}}
    )
    parties = study.load(1).parties
    labels = [party.graph.y.tolist() for party in parties]
    whole = [label for own in labels for label in own]
    far = [sum(abs(own.count(c) / len(own) - whole.count(c) / len(whole)) for c in set(whole)) for own in labels]
    inside = sum(party.graph.edge_index.size(1) for party in parties)
    crossing = sum(party.border.inner.numel() for party in parties)
    found = Cut().run(study, 1, None).metrics
    assert found["inside"] == pytest.approx(inside / (inside + crossing))
    assert found["label_distance"] == pytest.approx(sum(far) / len(far))
    by_nodes = sum(len(own) * each for own, each in zip(labels, far, strict=True)) / len(whole)
    assert found["label_distance_by_nodes"] == pytest.approx(by_nodes)
    assert found["alone"] == sum(len(own) == 1 for own in labels) / len(labels)
    joined = [set(party.graph.edge_index[0].tolist()) for party in parties]
    isolated = sum(party.nodes - len(own) for party, own in zip(parties, joined, strict=True) if party.nodes > 1)
    assert isolated / 2 <= found["added"] * (inside + crossing) / 2 <= isolated
    assert isolated > 0


def test_graphs_have_no_such_cut() -> None:
    values = {"data": {"name": "motifs", "graphs": 12}, "parties": 2, "methods": [{"name": "fedavg"}]}
    study = Study.of({**values, "model": {"encoder": "gin"}})
    with pytest.raises(IsthmusError, match="needs classes of nodes"):
        Cut().run(study, 0, None)
