import copy
from collections import Counter

import pytest
import torch
from optimisers import OPTIMISERS
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.utils import subgraph

from helpers import CLASSES, FEATURES, assert_close, make_parties, plain_batches, plain_optimizer
from isthmus.data.datasets.banks import Banks
from isthmus.data.neighbours import Neighbours
from isthmus.data.partition.given import Given
from isthmus.data.rows import sum_per_party
from isthmus.errors import IsthmusError
from isthmus.federation.actions import action
from isthmus.federation.site import Site
from isthmus.methods.base import Method
from isthmus.methods.batches import ClusterBatches, read_neighbours
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.fedgl import FedGL
from isthmus.methods.training import LocalTraining
from isthmus.nn import layerwise
from isthmus.nn.draws import draws_of
from isthmus.nn.encoders import Encoder
from isthmus.nn.weights import initial_weights
from isthmus.study.loop import Run
from isthmus.study.setup import module_for, task_for
from isthmus.testing import check_method, small_parties

SEED = 5
NODES = (40, 23, 5, 61, 12)
"""The fourth party has most batches, the third has fewest."""
OPTIONS = {
    "sampled": {"fan_out": (3, 2)},
    "sampled-batches": {"fan_out": (2, 2), "batch_size": 3},
    "field-of-batches": {"batch_size": 3},
    "clusters": {"clusters": 4},
    "two-clusters": {"clusters": 5, "clusters_per_step": 2},
}
over_options = pytest.mark.parametrize("options", OPTIONS)


def build(name, dropout=0.5, layers=2, **options):
    torch.manual_seed(0)
    return Encoder.named(name)(hidden=8, dropout=dropout, layers=layers, **options).build(FEATURES, CLASSES, "node")


class TrainingSite(Site):
    embed = False

    def loss(self, step):
        return self.task.loss(step) + sum_per_party(step.embedding.square().mean(1), step.sizes)

    @action("total")
    def train(self, request):
        self.model.load(request["weights"])
        loss = self.loss if self.embed else self.task.loss
        self.steps = self.method.local.fit(self, loss, embed=self.embed)


def trained(module, parties, options, embed=False):
    """Weights of all parties after one round, and the steps that each took."""
    task = task_for(parties, CLASSES if parties[0].level == "node" else None)
    site = TrainingSite(FedAvg(local=options), parties, task, module, seed=SEED)
    site.embed = embed
    weights = initial_weights(module)
    reply = site.answer("train", {"weights": weights}, site.hosted.names)
    assert not reply.failures
    return site.model.stacks(), site.steps.tolist()


def assert_law(module, parties, options, embed=False):
    together, steps = trained(module, parties, options, embed)
    for at, party in enumerate(parties):
        alone, own_steps = trained(module, [party], options, embed)
        assert steps[at] == own_steps[0]
        assert_close({n: w[at] for n, w in together.items()}, {n: w[0] for n, w in alone.items()})
    return steps


# ---- the cohort law


@over_options
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("encoder", ["gcn", "sage", "gin", "gat", "appnp"])
@pytest.mark.thinned(15)
def test_a_party_trains_the_same_alone_and_side_by_side(encoder, sparse, options):
    module = build(encoder, **({"hops": 2} if encoder == "appnp" else {}))
    parties = make_parties("node", nodes=NODES, sparse=sparse, weighted=True, untrained=(1,))
    steps = assert_law(module, parties, LocalTraining(**OPTIMISERS["adam"], epochs=2, **OPTIONS[options]))
    assert steps[1] == 0
    assert options == "sampled" or len(set(steps)) > 2


@pytest.mark.parametrize("options", ["sampled-batches", "field-of-batches"])
@pytest.mark.parametrize("encoder", ["gcn", "gat"])
@pytest.mark.thinned(2)
def test_pairs_train_the_same_alone_and_side_by_side(encoder, options):
    parties = small_parties("pair")
    task = task_for(parties)
    torch.manual_seed(0)
    module = task.model(Encoder.named(encoder)(hidden=8), parties[0].features)
    assert_law(module, parties, LocalTraining(epochs=1, **{**OPTIONS[options], "batch_size": 12}))


def test_embeddings_of_sampled_nodes_are_those_of_the_items():
    parties = make_parties("node", nodes=NODES)
    assert_law(build("sage"), parties, LocalTraining(epochs=2, fan_out=(2, 2), batch_size=4), embed=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedprox", "scaffold", "fedper", "ditto", "fedproto", "local", "centralized"])
@pytest.mark.parametrize("options", ["sampled-batches", "clusters"])
def test_methods_conform(name, options):
    method = Method.named(name).read({"rounds": 2, "local": {"epochs": 2, **OPTIONS[options]}}, name)
    check_method(method, small_parties("node"), checks=["cohort_law", "same_seed_same_result"])


COUPLED = {
    "fedgcn": {"fan_out": (2,), "batch_size": 3},
    "fedcog": {"batch_size": 3},
}
"""How each of these trains on a part: FedGCN's first layer reads sums, and FedCog's encoder reads no edges any more."""


@pytest.mark.parametrize("name", COUPLED)
@pytest.mark.parametrize("options", ["batches", "clusters"])
@pytest.mark.thinned(2)
def test_methods_for_coupled_graphs_conform(name, options):
    own = COUPLED[name] if options == "batches" else OPTIONS[options]
    method = Method.named(name).read({"rounds": 2, "local": {"epochs": 2, **own}}, name)
    check_method(method, small_parties("node"), checks=["cohort_law", "same_seed_same_result"])


@pytest.mark.parametrize("options", ["sampled-batches", "clusters"])
@pytest.mark.slow
def test_fedgc_without_self_training_conforms(options):
    more = {"self_training": False, "transforming": {"epochs": 3}}
    method = Method.named("fedgc").read({"rounds": 2, "local": {"epochs": 2, **OPTIONS[options]}, **more}, "fedgc")
    check_method(method, small_parties("node"), checks=["cohort_law"])


@pytest.mark.slow
@pytest.mark.parametrize("options", ["sampled-batches", "clusters"])
def test_fedgl_samples_from_its_pseudo_graph_too(options):
    banks = Banks(parties=3, nodes=90, overlap=0.6, train=0.3).load(0)
    ways = {"min_confident": 0.0, "max_changed": 1.0, "threshold": 0.2, "neighbours": 3}
    method = FedGL.read({"rounds": 3, "local": {"epochs": 2, **OPTIONS[options]}, **ways}, "fedgl")
    parties = Given().cut(banks, 3, 0)
    check_method(method, parties, checks=["cohort_law", "same_seed_same_result"])
    task = task_for(parties, 4)
    run = Run(method, parties, task, module_for(Encoder.named("gcn")(hidden=8), parties, task, 0), seed=0)
    run.go()
    (site,) = run.transport.sites
    with site.asked():
        assert site.cohort.block.edge_index.size(1) > sum(party.edges for party in parties)


# ---- what a step computes


def plain_sampled(module, party, options):
    """GraphSAGE in plain PyG on the edges that were drawn, which the sampler in plain Python is tested to be."""
    module, optimizer = copy.deepcopy(module).train(), None
    near = Neighbours(party.graph.edge_index, party.nodes)
    optimizer = plain_optimizer(options, module)
    for epoch in range(options.epochs):
        for at, batch in enumerate(plain_batches(party, options, SEED, 1, epoch)):
            draws = draws_of(SEED, party.name).of_counts([1]).of("neighbours", epoch, at)
            part = near.around(
                batch.sort().values,
                options.fan_out,
                (party.nodes,),
                lambda hop, sizes, width, draws=draws: draws.of(hop).uniform(sizes, width),
            )
            optimizer.zero_grad()
            output = module(party.graph.x[part.nodes], part.edge_index)[part.rows_of(batch, among_seeds=False)]
            F.cross_entropy(output, party.graph.y[batch]).backward()
            optimizer.step()
    return module


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("encoder", ["sage", "gat"])
@pytest.mark.parametrize("batch_size", [0, 4])
def test_sampled_training_is_plain_torch_on_the_sampled_edges(encoder, batch_size):
    module, parties = build(encoder, dropout=0.0, layers=3), make_parties("node", nodes=NODES)
    options = LocalTraining(**OPTIMISERS["adam"], epochs=2, fan_out=(3, 2, 2), batch_size=batch_size)
    found, _ = trained(module, parties, options)
    for at, party in enumerate(parties):
        due = plain_sampled(module, party, options)
        assert_close({n: w[at] for n, w in found.items()}, initial_weights(due), within=1e-9)


@pytest.mark.usefixtures("double_precision")
def test_training_by_clusters_is_plain_torch_on_each_cluster():
    module, (party,) = build("gcn", dropout=0.0), make_parties("node", nodes=(60,))
    options = LocalTraining(**OPTIMISERS["adam"], epochs=2, clusters=6, clusters_per_step=2)
    found, steps = trained(module, [party], options)
    site = TrainingSite(FedAvg(), [party], task_for([party]), module, seed=SEED)
    due = copy.deepcopy(module).train()
    optimizer, count = plain_optimizer(options, due), 0
    with site.asked():
        site.answered = [1]
        cut = ClusterBatches(site, 6, 2)
        for epoch in range(2):
            order = draws_of(SEED, party.name).of_counts([1]).of("clusters", epoch).order((6,))
            for clusters in order.split(2):
                nodes = torch.isin(cut.cluster, clusters).nonzero().flatten()
                items = nodes[party.train[nodes]]
                if not items.numel():
                    continue
                edges = subgraph(nodes, party.graph.edge_index, relabel_nodes=True, num_nodes=party.nodes)[0]
                optimizer.zero_grad()
                output = due(party.graph.x[nodes], edges)[torch.searchsorted(nodes, items)]
                F.cross_entropy(output, party.graph.y[items]).backward()
                optimizer.step()
                count += 1
    assert steps == [count]
    assert_close({n: w[0] for n, w in found.items()}, initial_weights(due), within=1e-9)


def test_clusters_have_few_edges_between_them_and_every_item_is_in_one_step():
    ring = torch.arange(90)
    graph = Data(x=torch.rand(90, FEATURES), y=ring % CLASSES, train_mask=ring % 2 == 0, val_mask=ring % 2 == 1)
    graph.edge_index = torch.stack([torch.cat([ring, (ring + 1) % 90]), torch.cat([(ring + 1) % 90, ring])])
    party = type(make_parties("node", nodes=(5,))[0]).of_graph("ring", graph)
    site = TrainingSite(FedAvg(), [party], task_for([party]), build("gcn"), seed=SEED)
    with site.asked():
        cut = ClusterBatches(site, 9, 2)
        assert sorted(Counter(cut.cluster.tolist())) == list(range(9))
        source, target = graph.edge_index
        assert int((cut.cluster[source] != cut.cluster[target]).sum()) <= 30
        steps = list(cut.steps(0))
        assert len(steps) == 5
        assert torch.equal(torch.cat(steps).sort().values, graph.train_mask.nonzero().flatten())
        other = cut.step_of_nodes(0)
        assert not torch.equal(other, cut.step_of_nodes(1))


def test_a_batch_reads_no_more_than_its_items_depend_on():
    line = torch.arange(50)
    graph = Data(x=torch.rand(50, FEATURES), y=line % CLASSES, train_mask=line % 10 == 0, val_mask=line % 10 == 1)
    graph.edge_index = torch.stack([line[:-1], line[1:]])
    party = type(make_parties("node", nodes=(5,))[0]).of_graph("line", graph)
    site = TrainingSite(FedAvg(), [party], task_for([party]), build("gcn"), seed=SEED)
    with site.asked():
        block, at = read_neighbours(site, (None, None), embed=False)(torch.tensor([10, 40]), 0, 0)
    assert block.part.nodes.tolist() == [8, 9, 10, 38, 39, 40]
    assert at.tolist() == [0, 1]


def test_fedgl_predicts_layer_by_layer(monkeypatch):
    def predicted():
        banks = Banks(parties=3, nodes=90, overlap=0.6).load(0)
        parties = Given().cut(banks, 3, 0)
        task = task_for(parties, 4)
        module = module_for(Encoder.named("gcn")(hidden=8), parties, task, 0)
        site = FedGL().site(parties, task, module)
        with site.asked():
            site.kept["trained"] = site.model.stacks()
        return site.answer("tell", {}, site.hosted.names).columns["embedding"]

    due, asked = predicted(), []
    monkeypatch.setattr(layerwise, "ONE_PASS", 0)
    by_layer = layerwise.layer_by_layer
    monkeypatch.setattr(layerwise, "layer_by_layer", lambda *args, **how: asked.append(1) or by_layer(*args, **how))
    for found, one_pass in zip(predicted(), due, strict=True):
        torch.testing.assert_close(found, one_pass)
    assert asked


# ---- refused


def test_an_encoder_without_edges_has_no_fan_out():
    parties = small_parties("node")
    task = task_for(parties)
    method = Method.named("fedcog").read({"local": {"fan_out": (3,)}}, "fedcog")
    run = Run(method, parties, task, module_for(Encoder.named("sgc")(), parties, task, 0))
    with pytest.raises(IsthmusError, match=r"\[3\] and the model reads 0 hops: leave it out"):
        run.go()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fan_out": (3, 0)}, "local: fan_out has a number that is not between 1 and 2147483647"),
        ({"clusters": 3, "batch_size": 2}, "clusters are for tasks on nodes and replace batches"),
        ({"clusters": 3, "fan_out": (2,)}, "clusters are for tasks on nodes and replace batches"),
        ({"clusters": 3, "clusters_per_step": 4}, "clusters_per_step is 4, but clusters is 3"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, message):
    with pytest.raises(IsthmusError, match=message):
        LocalTraining.read(options, "local")


@pytest.mark.parametrize(
    ("level", "options", "message"),
    [
        ("node", {"fan_out": (3, 2, 1)}, r"\[3, 2, 1\] and the model reads 2 hops"),
        ("graph", {"fan_out": (3, 2)}, "local.fan_out is for one large graph per party"),
        ("graph", {"clusters": 2}, "local.clusters is for one large graph per party"),
        ("pair", {"clusters": 2}, "local.clusters is for tasks on nodes"),
    ],
)
def test_batches_that_a_task_or_model_cannot_have_are_refused(level, options, message):
    parties = small_parties(level)
    task = task_for(parties)
    module = task.model(Encoder.named("gcn")(hidden=8), parties[0].features)
    site = TrainingSite(FedAvg(local=LocalTraining(**options)), parties, task, module)
    with pytest.raises(IsthmusError, match=message), site.asked():
        site.method.local.fit(site, task.loss)


def test_a_method_that_reads_whole_graphs_refuses_samples_before_it_starts():
    method = Method.named("fedgc").read({"local": {"fan_out": [3, 2]}}, "fedgc")
    with pytest.raises(IsthmusError, match="self-training trains on the whole graph"):
        method.check(build("gcn"))
