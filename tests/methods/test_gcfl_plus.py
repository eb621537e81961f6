"""GCFL+ against its algorithm in plain PyTorch."""

import numpy as np
import pytest
import torch
from clusters import SPLITTING, models_of, six_parties, written_out
from personal import built, run

from helpers import assert_close
from isthmus.methods.gcfl_plus import GCFLPlus, warped_distance
from isthmus.testing import check_method, small_parties

pytestmark = pytest.mark.usefixtures("double_precision")


def warped(one, other, i=None, j=None):
    """The smallest sum of squared differences over all ways to align two sequences, by its definition."""
    i, j = len(one) - 1 if i is None else i, len(other) - 1 if j is None else j
    steps = [warped(one, other, a, b) for a, b in ((i - 1, j - 1), (i - 1, j), (i, j - 1)) if a >= 0 and b >= 0]
    return (one[i] - other[j]) ** 2 + (min(steps) if steps else 0.0)


def alike(standardize):
    def similarity(updates):
        lengths = [[float(update.norm()) for update in own[-3:]] for own in updates]
        assert {len(own) for own in lengths} == {3}
        if standardize:
            lengths = [list(np.array(own) / np.std(own)) for own in lengths]
        distances = np.array([[warped(a, b) ** 0.5 for b in lengths] for a in lengths])
        return (distances.max() - distances).tolist()

    return similarity


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("level", ["node", "graph"])
@pytest.mark.thinned(2)
def test_rounds_are_those_of_the_paper(level, standardize):
    module, parties = built("gcn", level), six_parties(level)
    method = GCFLPlus(rounds=7, warm_up=1, length=3, standardize=standardize, **SPLITTING)
    found = run(method, module, six_parties(level, sparse=True))
    clusters, models = written_out(method, module, parties, alike(standardize), patience=3)
    assert list(found.groups.values()) == clusters
    assert len(clusters) > 2
    for party, due in models.items():
        assert_close(models_of(found)[party], due, within=1e-8)


def test_lengths_are_sent_only_where_a_cluster_may_be_split():
    found = run(GCFLPlus(rounds=5, warm_up=0, length=4, **SPLITTING), built("gcn", "node"), six_parties("node"))
    rows = [row for row in found.ledger.rows() if row["action"] == "compare"]
    assert {row["round"] for row in rows} == {4}
    assert all("lengths[4]" in row["fields"] for row in rows)


def test_a_party_without_training_items_has_lengths_of_zero():
    parties = six_parties("node", untrained=(1,))
    options = {**SPLITTING, "standardize": True}
    found = run(GCFLPlus(rounds=4, warm_up=0, length=2, **options), built("gcn", "node"), parties)
    assert len(found.groups) > 1
    assert all(bool(weight.isfinite().all()) for weights in models_of(found).values() for weight in weights.values())


@pytest.mark.slow
def test_conforms_while_clusters_split():
    method = GCFLPlus(rounds=4, warm_up=0, length=2, eps1=1e9, eps2=0.0)
    checks = ["cohort_law", "wire_equals_in_process", "resume_equals_uninterrupted", "test_labels_decide_nothing"]
    checks += ["weights_travel_or_are_kept", "calls_are_declared", "faults_are_named", "ledger_counts_every_byte"]
    check_method(method, small_parties("node", parties=5), checks=checks)


def test_distances_are_those_of_the_best_alignment():
    source = np.random.default_rng(0)
    for _ in range(5):
        one, other = source.random(4), source.random(5)
        assert warped_distance(one, other) == pytest.approx(warped(list(one), list(other)) ** 0.5)
        assert warped_distance(one, one) == 0
    assert warped_distance([0, 0, 1], [0, 1, 1]) == 0 < np.linalg.norm([0, 1, 0])
    assert torch.tensor(warped_distance([0.0], [3.0])) == 3
