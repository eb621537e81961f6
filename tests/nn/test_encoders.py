import copy

import pytest
import torch
from torch.func import functional_call
from torch_geometric import nn as gnn
from torch_geometric.data import Batch

from helpers import (
    CLASSES,
    ENCODERS,
    FEATURES,
    apart,
    assert_close,
    assert_law,
    draws_for,
    from_leaves,
    make_parties,
    plain_fit,
    plain_output,
    slope_of,
    train_side_by_side,
)
from isthmus.data.cohort import Cohort
from isthmus.errors import IsthmusError
from isthmus.methods.training import LocalTraining
from isthmus.nn.encoders import Encoder, WeightedSage, uses_edge_weights
from isthmus.nn.per_party import per_party
from isthmus.nn.weights import body_weights, initial_weights

VARIANTS = [
    *((name, {}) for name in ENCODERS),
    ("gcn", {"layers": 3}),
    ("gcn", {"layers": 1, "pool": "max"}),
    ("gat", {"heads": 1, "layers": 3}),
    ("gin", {"norm": True}),
    ("gat", {"weighted": True}),
    ("gin", {"weighted": True}),
    ("gin", {"norm": True, "statistics": "stay"}),
    ("sage", {"pool": "sum"}),
    ("sage", {"weighted": True}),
    ("gbp", {"r": 0.2}),
    ("deepsets", {"counts": True, "layers": 3}),
]
over_variants = pytest.mark.parametrize(
    ("name", "options"), VARIANTS, ids=["-".join([n, *(f"{k}={v}" for k, v in o.items())]) for n, o in VARIANTS]
)
over_data = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
over_levels = pytest.mark.parametrize("level", ["node", "graph"])


def steps_for(options):
    return (
        LocalTraining(epochs=5, optimizer="sgd", lr=0.1, momentum=0.9)
        if options.get("norm")
        else LocalTraining(optimizer="adam", epochs=5)
    )


def build(name, level, options):
    torch.manual_seed(0)
    return Encoder.named(name)(hidden=8, **options).build(FEATURES, CLASSES, level)


@over_levels
@over_data
@over_variants
@pytest.mark.thinned(18)
def test_a_cohort_gives_what_its_parties_give_alone(name, options, level, sparse):
    model = assert_law(
        build(name, level, options), make_parties(level, sparse=sparse, weighted=sparse), steps_for(options)
    )
    assert model.side_by_side == ((name, options) != ("gat", {"weighted": True}))


@over_levels
@over_variants
@pytest.mark.usefixtures("double_precision")  # in single precision Adam blows up the rounding of tiny gradients
@pytest.mark.thinned(9)
def test_one_party_without_dropout_is_the_plain_module(name, options, level):
    module = build(name, level, {**options, "dropout": 0.0})
    weighted = level == "node"
    party = make_parties(level, sparse=True, weighted=weighted)[0]
    weights = apart(module, 1)
    found = train_side_by_side(per_party(module, 1), [party], weights, steps_for(options))
    module.load_state_dict({n: w[0] for n, w in weights.items()}, strict=False)
    due, _ = plain_fit(module, make_parties(level, weighted=weighted)[0], steps_for(options))
    assert_close({n: w[0] for n, w in found.weights.items()}, initial_weights(due))


@over_levels
@over_data
@over_variants
@pytest.mark.thinned(9)
def test_shared_weights_give_the_plain_modules_output(name, options, level, sparse):
    module = build(name, level, options).eval()
    cohort = Cohort(make_parties(level, sparse=sparse))
    model = per_party(module, len(cohort))
    weights = {n: w[0] for n, w in apart(module, 1).items()}
    model.load(weights)
    due = [functional_call(module, weights, kwargs=arguments(module, party)) for party in cohort.parties]
    torch.testing.assert_close(model(cohort.block), torch.cat(due), rtol=1e-5, atol=1e-5)


def arguments(module, party):
    seen = {}

    class Spy(torch.nn.Module):
        def forward(self, x, edge_index, edge_weight, batch, batch_size):
            seen.update(x=x, edge_index=edge_index, edge_weight=edge_weight)
            if party.level == "graph":
                seen.update(batch=batch, batch_size=batch_size)

    plain_output(Spy(), party.graph)
    return seen


@pytest.mark.parametrize("name", ["sgc", "lightgcn"])
def test_options_without_an_effect_are_refused(name):
    with pytest.raises(IsthmusError, match=f"encoder '{name}': layers has no effect here: leave it out"):
        Encoder.named(name)(layers=3)
    assert "layers" not in Encoder.named(name).option_names()


@over_levels
@over_variants
@pytest.mark.thinned(9)
def test_a_cohort_has_the_embeddings_and_their_gradients_that_its_parties_have_alone(name, options, level):
    module, parties = build(name, level, options), make_parties(level, sparse=True, weighted=True)
    weights = apart(module, len(parties))
    if not body_weights(module):
        model = per_party(module, len(parties))
        with pytest.raises(IsthmusError, match="has no embedding before its head"):
            model(Cohort(parties).block, embed=True)
        return
    together = embedded(per_party(module, len(parties)), parties, weights)
    assert len(together[1]) == sum(Cohort(parties).items)
    split = [each.split(Cohort(parties).items) for each in together[:2]]
    for at, party in enumerate(parties):
        own = {n: w[at : at + 1] for n, w in weights.items()}
        alone = embedded(per_party(module, 1), [party], own)
        for found, due in zip(split, alone[:2], strict=True):
            torch.testing.assert_close(found[at], due, rtol=1e-5, atol=1e-5)
        grads, due = ({n: g[of] for n, g in each[2].items()} for each, of in ((together, at), (alone, 0)))
        assert_close(grads, due, within=1e-4)  # sums of numbers up to 100 that cancel out
    assert {n for n, g in together[2].items() if g.any()} <= set(body_weights(module))


def embedded(model, parties, weights):
    """Output, embedding and the gradient of the embedding's squares."""
    cohort = Cohort(tuple(parties))
    model.load(weights)
    leaves = model.start_training(cohort.block, [True] * len(parties), touched_rows=False)
    output, h = model(cohort.block, draws_for(cohort), embed=True)
    h.square().sum().backward()
    return output.detach(), h.detach(), from_leaves(model, leaves, [slope_of(leaf) for leaf in leaves])


@over_levels
@over_variants
def test_what_is_said_to_use_edge_weights_uses_them(name, options, level):
    module, (party, *_) = build(name, level, {**options, "dropout": 0.0}).eval(), make_parties(level, weighted=True)
    graph = party.graph if level == "node" else party.graph[0]
    plain = copy.copy(graph)
    plain.edge_weight = torch.ones_like(graph.edge_weight)
    if level == "graph":
        graph, plain = Batch.from_data_list([graph]), Batch.from_data_list([plain])
    differs = not torch.allclose(plain_output(module, graph), plain_output(module, plain))
    assert uses_edge_weights(module) == differs


@over_levels
@pytest.mark.parametrize("name", ENCODERS)
def test_output_has_a_row_per_item_and_a_column_per_class(name, level):
    cohort = Cohort(make_parties(level))
    assert per_party(build(name, level, {}), len(cohort))(cohort.block).shape == (sum(cohort.items), CLASSES)


@over_levels
@pytest.mark.parametrize("name", ENCODERS)
def test_a_first_layer_that_is_named_is_a_weight_over_the_features(name, level):
    module = build(name, level, {})
    first = getattr(module, "first_layer", None)
    assert first is None or dict(module.named_parameters())[first].size(1) == FEATURES


@pytest.mark.parametrize("pool", ["mean", "sum", "max"])
def test_readout_pools_the_nodes_of_each_graph(pool):
    module = build("mlp", "graph", {"pool": pool, "layers": 1}).eval()
    graph = make_parties("graph")[0].graph
    h = module.body(graph.x).relu()
    due = torch.stack([getattr(h[graph.batch == at], {"max": "amax"}.get(pool, pool))(0) for at in range(6)])
    torch.testing.assert_close(plain_output(module, graph), module.head(due))


def test_weighted_graphsage_takes_weighted_means():
    layer = WeightedSage(2, 3)
    x, edges = torch.randn(4, 2), torch.tensor([[1, 2, 0, 0], [0, 0, 1, 2]])
    weight = torch.tensor([0.5, -2.0, 1.0, 0.0])
    mean = torch.stack([(0.5 * x[1] - 2.0 * x[2]) / 2.5, x[0], torch.zeros(2), torch.zeros(2)])
    assert torch.allclose(layer(x, edges, weight), layer.lin_l(mean) + layer.lin_r(x))
    plain = gnn.SAGEConv(2, 3)
    plain.load_state_dict(layer.state_dict())
    assert torch.allclose(layer(x, edges), plain(x, edges), atol=1e-6)


def test_weighted_attention_looks_at_weights():
    layer = build("gat", "node", {"weighted": True}).eval()
    x, edges = torch.randn(3, FEATURES), torch.tensor([[1, 2, 0], [0, 0, 1]])
    same = layer(x, edges, torch.ones(3)), layer(x, edges, torch.full((3,), 0.1))
    assert not torch.allclose(*same)


def test_deep_sets_are_perceptrons_on_sums():
    torch.manual_seed(0)
    x, batch, none = torch.rand(7, 4), torch.tensor([0, 0, 0, 1, 1, 2, 2]), torch.empty(2, 0, dtype=torch.long)
    sums = torch.stack([x[batch == at].sum(0) for at in range(3)])
    sizes = torch.bincount(batch).unsqueeze(1)
    model = Encoder.named("deepsets")(hidden=5, dropout=0.0, counts=True).build(4, 2, "graph")
    first, (second, _) = model.body.linears[0], model.after
    due = model.head(second((sums @ first.weight.t() + sizes * first.bias).relu()).relu())
    torch.testing.assert_close(model(x, none, None, batch, 3), due)
    model = Encoder.named("deepsets")(hidden=5, dropout=0.0).build(4, 2, "graph")
    nodes = model.body.linears[1](model.body.linears[0](x).relu()).relu()
    pooled = torch.stack([nodes[batch == at].sum(0) for at in range(3)])
    torch.testing.assert_close(model(x, none, None, batch, 3), model.head(model.after(pooled)))


def test_a_gcn_with_a_linear_head_is_that_of_the_published_comparison():
    """Two convolutions as wide as each other, ReLU and dropout after each, then a linear layer."""
    model = Encoder.named("gcn")(hidden=8, linear_head=True, dropout_features=False).build(FEATURES, CLASSES, "node")
    assert [tuple(weight.shape) for weight in model.parameters()] == [
        *((8,), (8, FEATURES)), *((8,), (8, 8)), *((CLASSES, 8), (CLASSES,))
    ]  # fmt: skip
    (party,) = make_parties("node", nodes=(12,))
    x, edges = party.graph.x, party.graph.edge_index
    model.train()
    torch.manual_seed(0)
    found = model(x, edges)
    torch.manual_seed(0)
    h = model.convs[0](x, edges).relu()
    h = model.convs[1](torch.dropout(h, 0.5, True), edges).relu()
    assert torch.equal(found, model.linear(torch.dropout(h, 0.5, True)))
    assert body_weights(model) == ("convs.0.bias", "convs.0.lin.weight", "convs.1.bias", "convs.1.lin.weight")


def test_dropout_may_leave_the_features_alone():
    kind, (party,) = Encoder.named("gcn"), make_parties("node", nodes=(12,))
    for where, spared in ((False, True), (True, False)):
        model = kind(layers=1, dropout=0.9, dropout_features=where).build(FEATURES, CLASSES, "node")
        outputs = [model.train(mode)(party.graph.x, party.graph.edge_index) for mode in (True, False)]
        assert torch.equal(*outputs) is spared


def test_a_linear_head_is_for_nodes():
    gcn = Encoder.named("gcn")(linear_head=True)
    with pytest.raises(IsthmusError, match="a model of graphs has a linear head already: leave linear_head out"):
        gcn.build(FEATURES, CLASSES, "graph")
    with pytest.raises(IsthmusError, match="a model that embeds has no head: leave linear_head out"):
        gcn.embedder(FEATURES)
