"""What clusters are worth, against scikit-learn and against trying every way to name them."""

from itertools import permutations

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.metrics import (
    accuracy_score,
    adjusted_rand_score,
    balanced_accuracy_score,
    f1_score,
    normalized_mutual_info_score,
)
from sklearn.preprocessing import normalize
from torch.nn import functional as F

from helpers import make_graph_parties, make_node_parties
from isthmus.data.partition import Partition
from isthmus.data.pool import DataSet
from isthmus.errors import IsthmusError
from isthmus.study.setup import task_of
from isthmus.tasks.base import Step
from isthmus.tasks.clustering import GraphClustering, scaled


def blobs(sizes=(40, 0, 30, 2), classes=3, spread=1.3):
    source = torch.Generator().manual_seed(0)
    y = torch.randint(classes, (sum(sizes),), generator=source)
    z = spread * torch.randn(sum(sizes), 5, generator=source) + 2 * torch.eye(5)[y]
    return Step(z, y, sizes, torch.arange(sum(sizes)))


def counted(task, step):
    return task.counts(Step(task.postprocess(step.output, step.sizes), step.y, step.sizes, step.items))


def pooled(task, step):
    return task.metrics({name: count.sum(0) for name, count in counted(task, step).items()})


def test_the_matching_is_the_best_of_all():
    step, task = blobs((70,)), GraphClustering(classes=3)
    cluster = KMeans(3, n_init=10, random_state=0).fit_predict(normalize(step.output.double().numpy()))
    named = [np.array(names)[cluster] for names in permutations(range(3))]
    best = max(named, key=lambda guess: accuracy_score(step.y, guess))
    assert pooled(task, step) == pytest.approx(
        {
            "accuracy": accuracy_score(step.y, best),
            "macro_f1": f1_score(step.y, best, average="macro"),
            "balanced_accuracy": balanced_accuracy_score(step.y, best),
            "nmi": normalized_mutual_info_score(step.y, cluster),
            "ari": adjusted_rand_score(step.y, cluster),
        }
    )
    assert pooled(task, step)["accuracy"] > 0.6


def test_every_party_clusters_its_own_graphs():
    step, task = blobs(), GraphClustering(classes=3, probe=2)
    counts = counted(task, step)
    for at, (z, y) in enumerate(zip(step.output.split(step.sizes), step.y.split(step.sizes), strict=True)):
        alone = counted(task, Step(z, y, (len(y),), torch.arange(len(y))))
        assert {name: count[at].tolist() for name, count in counts.items()} == {
            name: count[0].tolist() for name, count in alone.items()
        }
    assert counts["confusion"].sum((1, 2)).tolist() == list(step.sizes)
    assert counts["probed"][3] == 0, "two graphs are too few to fit anything to"


@pytest.mark.parametrize("scale", ["unit", "standard", "log", "raw"])
def test_embeddings_are_scaled_as_said(scale):
    z = np.array([[3.0, -4.0], [0.0, 1.0], [6.0, 0.0]])
    found = scaled(z, scale)
    due = {
        "unit": [[0.6, -0.8], [0.0, 1.0], [1.0, 0.0]],
        "standard": ((z - z.mean(0)) / z.std(0)).tolist(),
        "log": [[np.log(4), -np.log(5)], [0.0, np.log(2)], [np.log(7), 0.0]],
        "raw": z.tolist(),
    }[scale]
    np.testing.assert_allclose(found, due)


def test_whitened_embeddings_are_principal_components_of_equal_spread():
    source = np.random.default_rng(0)
    z = source.normal(size=(50, 3)) @ source.normal(size=(3, 5))  # three directions vary
    found = scaled(z, "whitened")
    due = PCA(3, whiten=True, svd_solver="full").fit_transform(z) * np.sqrt(50 / 49)  # sklearn divides by n - 1
    np.testing.assert_allclose(np.abs(found[:, :3]), np.abs(due), rtol=1e-8)
    assert not found[:, 3:].any()
    assert not scaled(np.ones((4, 2)), "whitened").any()


def test_one_set_of_embeddings_is_scaled_in_several_ways():
    step = blobs()
    every = GraphClustering(classes=3, probe=2, scale="log", more_scales=["raw", "unit", "log", "whitened"])
    found = pooled(every, step)
    for scale in ("raw", "unit", "whitened"):
        due = pooled(GraphClustering(classes=3, probe=2, scale=scale), step)
        assert {name: found[f"{scale}_{name}"] for name in due} == due
    due = pooled(GraphClustering(classes=3, probe=2, scale="log"), step)
    assert {name: found[name] for name in due} == due
    assert len(found) == 4 * len(due)


def test_the_probe_reads_the_embeddings_that_are_clustered():
    """Classes differ in the length of embeddings alone, which scaling to length 1 removes."""
    source = torch.Generator().manual_seed(0)
    y = torch.arange(200) % 2
    z = F.normalize(torch.randn(200, 3, generator=source).abs(), dim=1) * (1 + 5 * y).unsqueeze(1)
    step = Step(z, y, (200,), torch.arange(200))
    assert pooled(GraphClustering(classes=2, probe=5, scale="raw"), step)["probe_accuracy"] > 0.95
    assert pooled(GraphClustering(classes=2, probe=5, scale="unit"), step)["probe_accuracy"] < 0.65


def test_a_linear_probe_is_tested_on_graphs_that_it_was_not_fitted_to():
    task = GraphClustering(classes=2, probe=5, scale="raw")
    source = torch.Generator().manual_seed(0)
    y = torch.arange(200) % 2
    told = torch.randn(200, 3, generator=source) + 3 * y.unsqueeze(1) * torch.tensor([-1.0, 1.0, 1.0])
    noise = torch.randn(200, 60, generator=source)
    assert pooled(task, Step(told, y, (200,), torch.arange(200)))["probe_accuracy"] > 0.95
    assert pooled(task, Step(noise, y, (200,), torch.arange(200)))["probe_accuracy"] < 0.62


def test_all_graphs_are_trained_on_and_those_for_validation_are_not_tested_on():
    pool = DataSet.named("motifs").read({"graphs": 40}, "motifs").load(0)
    cut = Partition.named("random")()
    parties = GraphClustering(classes=2).make_parties(pool, lambda each: cut.cut(each, 4, 0), 0)
    before = cut.cut(pool, 4, 0)
    for party, was in zip(parties, before, strict=True):
        assert bool(party.train.all())
        assert torch.equal(party.val, was.val)
        assert torch.equal(party.test, ~was.val)


def test_all_graphs_are_clustered_and_some_are_looked_at():
    step, task = blobs((70,)), GraphClustering(classes=3)
    output, some = task.postprocess(step.output, (70,)), torch.arange(0, 70, 5)
    cluster = KMeans(3, n_init=10, random_state=0).fit_predict(normalize(step.output.double().numpy()))
    assert torch.equal(output[:, -1].long(), torch.from_numpy(cluster).long())
    found = task.counts(Step(output[some], step.y[some], (14,), some))["confusion"][0]
    assert found.sum() == 14
    named = [np.array(names)[cluster[some]] for names in permutations(range(3))]
    assert int(found.trace()) == max(int((guess == step.y[some].numpy()).sum()) for guess in named)


def test_clusters_of_several_parties_are_not_set_against_each_other():
    task = GraphClustering(classes=3)
    assert pooled(task, blobs()).keys() == {"accuracy", "macro_f1", "balanced_accuracy"}
    assert pooled(task, blobs((70, 0))).keys() == {"accuracy", "macro_f1", "balanced_accuracy", "nmi", "ari"}


def test_the_number_of_clusters_is_that_of_the_classes():
    parties = make_graph_parties()
    assert task_of(GraphClustering(), parties, 5).classes == 5
    assert task_of(GraphClustering(classes=7), parties, 5).classes == 7
    assert task_of(GraphClustering(), parties).classes == 3


def test_other_data_are_refused():
    with pytest.raises(IsthmusError, match="needs whole graphs with one class each"):
        GraphClustering().make_parties(None, lambda _: list(make_node_parties()), 0)
    with pytest.raises(IsthmusError, match="a probe has at least 2 folds"):
        GraphClustering.read({"probe": 1}, "task")
    with pytest.raises(IsthmusError, match="no loss of its own"):
        GraphClustering(classes=3).loss(blobs())


@pytest.mark.filterwarnings("error")
def test_embeddings_that_are_all_alike_are_one_cluster():
    y = torch.tensor([0, 0, 0, 1])
    found = pooled(GraphClustering(classes=2), Step(torch.ones(4, 3), y, (4,), torch.arange(4)))
    assert (found["accuracy"], found["nmi"], found["ari"]) == (0.75, 0.0, 0.0)


def test_nothing_chooses_a_round():
    assert GraphClustering(classes=2).score({"accuracy": 1.0}) is None
