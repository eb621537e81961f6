"""FCLG against its paper's algorithm written out graph by graph, and the methods that it is compared with."""

import copy
from dataclasses import replace

import pytest
import torch
from pyarrow import parquet
from torch.nn import functional as F

import isthmus
from helpers import make_graph_parties
from isthmus.data.views import add_diffusion_view
from isthmus.errors import IsthmusError
from isthmus.methods.base import Method
from isthmus.methods.fclg import FCLG
from isthmus.methods.fedprox import FedProx
from isthmus.methods.infograph import InfoGraph
from isthmus.methods.mvgrl import Mvgrl
from isthmus.methods.training import LocalTraining
from isthmus.nn.encoders import Encoder, split_views
from isthmus.report.report import write_report
from isthmus.study.config import Study
from isthmus.study.loop import Run
from isthmus.study.run import Watcher, run_study
from isthmus.study.setup import extended, module_for, task_of
from isthmus.tasks.clustering import GraphClustering
from isthmus.testing import CHECKS, check_method, small_parties

LR = 0.05
GIN = Encoder.named("gin")(hidden=6, weighted=True)
SGD = {"epochs": 3, "batch_size": 4, "optimizer": "sgd", "lr": LR, "weight_decay": 0.0}


def run(method, parties, encoder="gin", seed=0):
    task = task_of(GraphClustering(), parties)
    options = {"weighted": True} if encoder == "gin" else {}
    encoder = Encoder.named(encoder)(hidden=6, dropout=0.0, pool="sum", **options)
    return Run(method, parties, task, module_for(encoder, parties, task, seed), seed=seed)


def method(**options):
    return FCLG.read({"rounds": 2, "local": SGD, **options}, "fclg")


# ---- Algorithm 1, graph by graph


class Literal:
    """One party's training, with the batches that it drew handed in."""

    def __init__(self, options, model, party):
        self.options, self.model = options, copy.deepcopy(model)
        self.graphs = []
        seen = add_diffusion_view(party, restart=options.restart, threshold=options.threshold).graph
        for at in range(party.items):
            nodes = (seen.batch == at).nonzero().flatten()
            here = seen.batch[seen.edge_index[0]] == at
            edges = split_views(seen.edge_index[:, here] - nodes[0], seen.edge_weight[here])
            matrices = [
                torch.zeros(len(nodes), len(nodes)).index_put_((index[1], index[0]), weight, accumulate=True)
                for index, weight in edges
            ]
            self.graphs.append((seen.x[nodes].to_dense(), matrices))

    def encoded(self, model, at, view):
        """H and U: every layer's output side by side, summed over the nodes."""
        h, matrices = self.graphs[at]
        found = []
        for conv in model.body.convs:
            h = conv.nn((1 + conv.itself.eps) * h + matrices[view] @ h).relu()
            found.append(h)
        nodes = torch.cat(found, dim=1)
        return nodes, nodes.sum(0)

    def intra(self, u, v):
        """(5) and (6)."""
        u, v = F.normalize(torch.stack(u), dim=1), F.normalize(torch.stack(v), dim=1)
        total, tau, count = 0.0, self.options.temperature, len(u)
        both = torch.cat([u, v])
        for i in range(count):
            for a, own, me in ((u[i], v[i], i), (v[i], u[i], count + i)):
                others = [torch.exp(a @ z / tau) for at, z in enumerate(both) if at != me]
                total = total + torch.log(sum(others) / torch.exp(a @ own / tau))
        return total / (2 * count)

    def inter(self, now, server, own):
        """(7) and (8) of one row, or (2), or (3)."""
        tau = self.options.inter_temperature
        cos = F.cosine_similarity
        if self.options.inter == "kl":
            s, c = (F.normalize(each, dim=0).div(tau).softmax(0) for each in (server, now))
            return (s * (s.log() - c.log())).sum()
        if self.options.inter == "mse":
            return (F.normalize(now, dim=0) - F.normalize(server, dim=0)).square().sum()
        near, past = torch.exp(cos(now, server, 0) / tau), torch.exp(cos(now, own, 0) / tau)
        return torch.log((near + past) / near)

    def fit(self, batches):
        server, previous = copy.deepcopy(self.model), None
        on_nodes = self.options.inter_on == "nodes"
        for of_epoch in batches:
            start = copy.deepcopy(self.model)
            for batch in of_epoch:
                here = [[self.encoded(self.model, at, view) for at in batch] for view in (0, 1)]
                loss = self.intra(*([u for _, u in each] for each in here))
                if self.options.inter in ("kl", "mse") or (self.options.inter == "contrast" and previous):
                    rows = []
                    for at, (h, u) in zip(batch, here[0], strict=True):
                        old, own = self.encoded(server, at, 0), self.encoded(previous or server, at, 0)
                        which = zip(h, old[0], own[0], strict=True) if on_nodes else [(u, old[1], own[1])]
                        rows += [self.inter(now, s.detach(), c.detach()) for now, s, c in which]
                    loss = loss + sum(rows) / len(rows)
                self.model.zero_grad()
                loss.backward()
                with torch.no_grad():
                    for weight in self.model.parameters():
                        weight -= LR * weight.grad
            previous = copy.deepcopy(self.model)
            del start


@pytest.mark.parametrize(
    "options",
    [{}, {"inter_on": "nodes"}, {"inter": "none"}, {"inter": "kl"}, {"inter": "mse", "inter_on": "nodes"}],
    ids=["fclg", "fclg-h", "intra-fedavg", "intra-kl", "intra-mse-h"],
)
def test_rounds_are_those_of_algorithm_1(options):
    parties, options = make_graph_parties(), method(rounds=2, inter_temperature=0.3, **options)
    job = run(options, parties)
    drawn = {}

    site = job.transport.sites[0]
    plain = site.read

    def read(chosen, epoch, at):
        drawn.setdefault(tuple(site.answered), []).append((epoch, chosen.clone()))
        return plain(chosen, epoch, at)

    site.read = read
    weights = dict(job.state.save())
    found = job.go()
    assert not weights.get("weights")
    model = copy.deepcopy(job.module)
    for steps in drawn.values():
        results, sizes = [], []
        first = 0
        for party in parties:
            literal = Literal(options, model, party)
            inside = [
                (epoch, (chosen[(chosen >= first) & (chosen < first + party.items)] - first).tolist())
                for epoch, chosen in steps
            ]
            literal.fit([[c for e, c in inside if e == epoch and c] for epoch in range(SGD["epochs"])])
            results.append(dict(literal.model.named_parameters()))
            sizes.append(int(party.train.sum()))
            first += party.items
        mean = {
            name: sum(n * each[name].detach() for n, each in zip(sizes, results, strict=True)) / sum(sizes)
            for name in results[0]
        }
        model.load_state_dict(mean)
    for name, weight in model.named_parameters():
        torch.testing.assert_close(found.weights[name], weight.detach(), rtol=1e-4, atol=1e-5)


def test_contrast_between_models_needs_an_epoch_before():
    parties = make_graph_parties()
    for epochs, same in ((1, True), (2, False)):
        local = {**SGD, "epochs": epochs}
        with_it, without = (run(method(local=local, inter=how), parties).go().weights for how in ("contrast", "none"))
        assert all(torch.equal(with_it[name], without[name]) for name in with_it) == same


def test_variants_learn_other_weights():
    found = {}
    for options in ({}, {"inter_on": "nodes"}, {"inter": "none"}, {"inter": "kl"}, {"inter": "mse"}):
        weights = run(method(**options), make_graph_parties()).go().weights
        found[str(options)] = torch.cat([each.flatten() for each in weights.values()])
    values = list(found.values())
    assert not any(torch.equal(a, b) for at, a in enumerate(values) for b in values[:at])


def test_graphs_are_evaluated_as_they_are():
    parties = make_graph_parties()
    job = run(method(), parties)
    found = job.go()
    module = job.module
    module.load_state_dict(found.weights)
    graph = parties[0].graph
    with torch.no_grad():
        _, due = module(graph.x.to_dense(), graph.edge_index, None, graph.batch, parties[0].items)
    site = job.transport.sites[0]
    with site.asked((0,)):
        torch.testing.assert_close(site.predict({"weights": found.weights}), due.squeeze(1))


# ---- the baselines


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


def test_a_proximal_term_holds_weights_back():
    parties, gaps = make_graph_parties(), []
    for trainer in ({"name": "fedavg"}, {"name": "fedprox", "mu": 5.0}):
        job = run(InfoGraph.read({"rounds": 1, "local": SGD, "trainer": trainer}, "infograph"), parties)
        before = {name: weight.clone() for name, weight in job.module.named_parameters()}
        after = job.go().weights
        gaps.append(sum(float((after[name] - weight.detach()).square().sum()) for name, weight in before.items()))
    assert gaps[1] < gaps[0]


def test_mvgrls_encoders_begin_with_weights_of_their_own_that_the_seed_draws():
    parties = make_graph_parties()
    task = task_of(GraphClustering(), parties)
    made = [
        extended(Mvgrl(), module_for(Encoder.named("gcn")(hidden=6), parties, task, seed), seed).state_dict()
        for seed in (0, 0, 1)
    ]
    one, again, other = made
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["of_nodes.past.weight"], other["of_nodes.past.weight"])
    name = "body.convs.0.lin.weight"
    assert not torch.equal(one[f"embedders.0.{name}"], one[f"embedders.1.{name}"])


# ---- what is refused, and the other laws


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


@pytest.mark.parametrize("trainer", ["centralized", "fedgcn", "infograph", "fedgl", "fgcl"])
def test_what_does_not_train_parties_is_no_trainer(trainer):
    with pytest.raises(IsthmusError, match=f"'{trainer}' is no trainer"):
        run(InfoGraph(trainer={"name": trainer}), small_parties("graph"))


@pytest.mark.parametrize("statistics", ["travel", "stay"])
@pytest.mark.parametrize("check", ["cohort_law", "wire_equals_in_process", "resume_equals_uninterrupted"])
@pytest.mark.parametrize("kind", [FCLG, InfoGraph, Mvgrl])
def test_batches_sampling_and_batch_norm_conform(kind, check, statistics):
    local = {**SGD, "batch_size": 5, "lr": 0.01}
    options = {"rounds": 3, "local": local, "fraction": 0.5}
    encoder = Encoder.named("gin")(hidden=8, norm=True, statistics=statistics, dropout=0.2, weighted=True)
    check_method(kind.read(options, kind.name), small_parties("graph"), encoder=encoder, checks=[check])


@pytest.mark.parametrize("check", CHECKS)
def test_fclg_with_nodes_and_another_trainer_conforms(check):
    options = {"rounds": 3, "inter_on": "nodes", "trainer": {"name": "scaffold"}, "local": {**SGD, "lr": 0.01}}
    encoder = Encoder.named("gin")(hidden=8, weighted=True)
    check_method(FCLG.read(options, "fclg"), small_parties("graph"), encoder=encoder, checks=[check])


def test_a_trainer_keeps_what_it_has_for_a_reason_and_gets_the_rest():
    scaffold = FCLG(trainer={"name": "scaffold"}).training()
    assert (scaffold.local.optimizer, scaffold.weighting, scaffold.rounds) == ("sgd", "even", 20)
    prox = FCLG.read(
        {"trainer": {"name": "fedprox", "mu": 0.5, "local": {"epochs": 2}}, "quorum": 1}, "fclg"
    ).training()
    assert (prox.mu, prox.quorum, prox.local.epochs, prox.local.batch_size, prox.local.lr) == (0.5, 1.0, 2, 128, 1e-3)
    asked = FCLG.read({"trainer": {"name": "scaffold"}, "local": {"lr": 0.3}}, "fclg").training()
    assert (asked.local.lr, asked.local.batch_size) == (0.3, 128)
    with pytest.raises(IsthmusError, match="'rounds' is set for the whole method: take it out of trainer"):
        FCLG(trainer={"name": "fedavg", "rounds": 2}).training()


def test_a_trainer_is_named_or_made_or_a_table():
    for trainer in ("fedprox", {"name": "fedprox"}, FedProx()):
        assert type(FCLG(trainer=trainer).training()) is FedProx
    made = InfoGraph(trainer=FedProx(mu=0.3, local=LocalTraining(lr=0.5))).training()
    assert (made.mu, made.local.lr, made.local.batch_size) == (0.3, 0.5, 128)


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
    assert whole.places.keys() == resumed.places.keys() == {"1", "3"}
    for at, places in whole.places.items():
        assert torch.equal(places, resumed.places[at])
        assert places.shape == (40, 3)
        assert places[:, 2].unique().tolist() == [0.0, 1.0, 2.0]
    files = [parquet.read_table(tmp_path / name / "places.parquet") for name in ("whole", "stopped")]
    assert files[0].equals(files[1])
    assert files[0].num_rows == 80
    assert "infograph, seed 0, round 3" in write_report([tmp_path / "whole"]).read_text()
