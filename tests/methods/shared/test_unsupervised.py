"""Learning to embed without labels: what it needs, refuses and reports."""

import copy
from dataclasses import replace

import pytest
import torch
from pyarrow import parquet
from unlabelled_runs import SGD, method, run

import isthmus
from helpers import make_graph_parties
from isthmus.errors import IsthmusError
from isthmus.methods.base import Method
from isthmus.methods.fclg import FCLG
from isthmus.methods.infograph import InfoGraph
from isthmus.methods.mvgrl import Mvgrl
from isthmus.methods.training import LocalTraining
from isthmus.nn.encoders import Encoder
from isthmus.report.report import write_report
from isthmus.study.config import Study
from isthmus.study.loop import Run
from isthmus.study.run import Watcher, run_study
from isthmus.study.setup import module_for, task_of
from isthmus.tasks.clustering import GraphClustering
from isthmus.testing import check_method, small_parties

GIN = Encoder.named("gin")(hidden=6, weighted=True)


@pytest.mark.parametrize("kind", [InfoGraph, Mvgrl])
@pytest.mark.parametrize("trainer", [{"name": "fedavg"}, {"name": "fedprox", "mu": 1.0}, {"name": "local"}])
def test_baselines_train_all_that_they_have_with_any_trainer(kind, trainer):
    parties = make_graph_parties()
    job = run(kind.read({"rounds": 1, "local": SGD, "trainer": trainer}, kind.name), parties, kind.encoder)
    before = {name: weight.clone() for name, weight in job.module.named_parameters()}
    weights = job.go().weights
    for mine in weights.values() if trainer["name"] == "local" else [weights]:
        assert mine.keys() >= before.keys()
        if trainer["name"] != "local":
            assert not any(torch.equal(mine[name], weight) for name, weight in before.items())


def test_a_task_and_a_method_must_both_do_without_labels():
    parties = small_parties("graph")
    task = task_of(GraphClustering(), parties)
    module = module_for(Encoder.named("gin")(), parties, task, 0)
    with pytest.raises(
        IsthmusError, match="'fedavg' learns from labels, task 'graph-clustering' has none: use fclg, inf"
    ):
        Run(Method.named("fedavg")(), parties, task, module)
    labelled = task_of(None, parties)
    module = module_for(Encoder.named("gin")(), parties, labelled, 0)
    with pytest.raises(IsthmusError, match=r"'fclg' learns without labels: set task.name"):
        Run(FCLG(), parties, labelled, module)
    with pytest.raises(IsthmusError, match=r"needs an encoder that weighs edges.*model.weighted = true"):
        Run(FCLG(), parties, task, module_for(Encoder.named("gin")(), parties, task, 0))
    with pytest.raises(IsthmusError, match="needs an encoder of Isthmus that embeds"):
        Run(FCLG(), parties, task, torch.nn.Linear(2, 2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "statistics"),
    [("cohort_law", "travel"), ("cohort_law", "stay"), ("resume_equals_uninterrupted", "stay")],
)
@pytest.mark.parametrize("kind", [FCLG, InfoGraph, Mvgrl])
def test_batches_sampling_and_batch_norm_conform(kind, check, statistics):
    local = {**SGD, "batch_size": 5, "lr": 0.01}
    options = {"rounds": 3, "local": local, "fraction": 0.5}
    encoder = Encoder.named("gin")(hidden=8, norm=True, statistics=statistics, dropout=0.2, weighted=True)
    check_method(kind.read(options, kind.name), small_parties("graph"), encoder=encoder, checks=[check])


def test_one_graph_at_a_time_tells_nothing():
    with pytest.raises(IsthmusError, match=r"contrasts the graphs of a batch: set local.batch_size"):
        run(method(local={**SGD, "batch_size": 1}), make_graph_parties())


def test_training_that_diverges_is_one_line():
    local = {**SGD, "lr": 1e6}
    with pytest.raises(IsthmusError) as error:
        run(InfoGraph.read({"rounds": 3, "local": local}, "infograph"), make_graph_parties()).go()
    assert "\n" not in str(error.value)
    assert "finite" in str(error.value) or "infinite" in str(error.value)


def unlabelled_parties():
    """Laboratories that have tested nothing."""
    return [replace(party, graph=without_labels(party.graph)) for party in make_graph_parties()]


def without_labels(graph):
    graph = copy.copy(graph)
    graph.y = torch.full_like(graph.y, -1)
    return graph


def test_parties_without_any_label_learn_all_the_same():
    found = isthmus.run("fclg", unlabelled_parties(), task=GraphClustering(), rounds=2)
    [ran] = found.runs
    assert ran.metrics == {}
    assert all(bool(weight.isfinite().all()) for weight in ran.weights.values())
    assert ran.chosen_round == 2


def test_parties_that_are_given_train_on_all_graphs():
    seen = []

    class Watched(FCLG):
        class AtParty(FCLG.AtParty):
            def loss(self, step):
                seen.append(step.items.tolist())
                return super().loss(step)

    parties = make_graph_parties()
    isthmus.run(Watched(rounds=1, local=LocalTraining(epochs=1)), parties, task=GraphClustering(), model=GIN)
    assert sorted(at for step in seen for at in step) == list(range(sum(party.items for party in parties)))


def test_weights_below_zero_are_refused_by_name():
    parties = make_graph_parties()
    parties[1].graph.edge_weight = -torch.ones(parties[1].edges)
    with pytest.raises(IsthmusError, match=r"negative weights have no diffusion"):
        run(method(), parties)


def test_a_study_tells_clusters_of_all_graphs_together():
    plan = Study.of(
        {
            "data": {"name": "motifs", "graphs": 60},
            "task": {"name": "graph-clustering", "probe": 3},
            "partition": {"name": "label-skew", "emd": 0.6},
            "parties": 3,
            "model": {"encoder": "gin", "weighted": True, "hidden": 8, "dropout": 0.0},
            "methods": [{"name": "fclg", "rounds": 2}],
        }
    )
    [found] = run_study(plan).runs
    names = {f"test_{name}" for name in ("accuracy", "macro_f1", "nmi", "ari", "probe_accuracy", "party_accuracy")}
    assert names <= found.metrics.keys()
    assert found.chosen_round == 2


@pytest.mark.slow
def test_a_study_draws_embeddings_the_same_after_a_stop(tmp_path):
    plan = Study.of(
        {
            "data": {"name": "motifs", "graphs": 40},
            "task": {"name": "graph-clustering", "drawn": [1, 3]},
            "parties": 2,
            "methods": [{"name": "infograph", "rounds": 3, "every": 2}],
        }
    )
    whole = run_study(plan, tmp_path / "whole").runs[0]

    class Impatient(Watcher):
        def round_done(self, method, seed, at, metrics):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(plan, tmp_path / "stopped", watcher=Impatient(), save_every=0)
    resumed = run_study(plan, tmp_path / "stopped", resume=True, save_every=0).runs[0]
    assert whole.coordinates.keys() == resumed.coordinates.keys() == {"1", "3"}
    for at, places in whole.coordinates.items():
        assert torch.equal(places, resumed.coordinates[at])
        assert places.shape == (40, 3)
        assert places[:, 2].unique().tolist() == [0.0, 1.0, 2.0]
    files = [parquet.read_table(tmp_path / name / "places.parquet") for name in ("whole", "stopped")]
    assert files[0].equals(files[1])
    assert files[0].num_rows == 80
    assert "infograph, seed 0, round 3" in write_report([tmp_path / "whole"]).read_text()
