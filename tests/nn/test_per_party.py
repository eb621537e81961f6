import pytest
import torch
from tests.nn.models import HIDDEN, ONE_BY_ONE, SIDE_BY_SIDE, Body, Call, Centred, Named, build, noisy
from torch import nn
from torch.nn import functional as F
from torch_geometric import nn as gnn

from helpers import (
    CLASSES,
    FEATURES,
    STEADY,
    UNTOUCHED,
    apart,
    assert_close,
    assert_law,
    draws_for,
    from_leaves,
    make_parties,
    train_side_by_side,
)
from isthmus.data.cohort import Block, Cohort
from isthmus.errors import IsthmusError
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.training import LocalTraining, PartyOptimizer
from isthmus.nn.encoders import Gcn, Gin
from isthmus.nn.per_party import PerParty, per_party
from isthmus.nn.weights import initial_weights
from isthmus.study.loop import Run
from isthmus.study.setup import task_for

over_sparse = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])


@over_sparse
@pytest.mark.parametrize("name", ONE_BY_ONE)
@pytest.mark.thinned(9)
def test_what_is_not_known_falls_back_and_is_as_it_would_be_alone(name, sparse):
    assert not assert_law(build(name), make_parties("node", sparse=sparse, weighted=True), STEADY).side_by_side


class OverGraphs(nn.Module):
    def __init__(self, norm=None):
        super().__init__()
        self.conv, self.head = gnn.GraphConv(FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES)
        self.norm = norm or nn.Identity()

    def forward(self, x, edge_index, batch):
        h = F.dropout(self.conv(x, edge_index).relu(), 0.3, self.training)
        return self.head(F.dropout(self.norm(gnn.global_mean_pool(h, batch)), 0.5, self.training))


class OverCountedGraphs(OverGraphs):
    def forward(self, x, edge_index, edge_weight, batch, num_graphs):
        h = self.conv(x, edge_index, edge_weight).relu()
        return self.head(self.norm(gnn.global_add_pool(h, batch, num_graphs)))


class OverGraphNorm(OverGraphs):
    def __init__(self):
        super().__init__(gnn.GraphNorm(HIDDEN))

    def forward(self, x, edge_index, batch, batch_size):
        h = self.norm(self.conv(x, edge_index).relu(), batch, batch_size)
        return self.head(gnn.global_max_pool(h, batch, batch_size))


@over_sparse
@pytest.mark.parametrize(
    ("module", "side_by_side"),
    [
        (OverGraphs, True),
        (lambda: OverGraphs(nn.BatchNorm1d(HIDDEN)), True),
        (lambda: OverGraphs(Call(noisy)), False),
        (lambda: OverGraphs(Call(lambda layer, h: h - h.mean(0))), False),
        (OverCountedGraphs, True),
        (OverGraphNorm, False),
    ],
)
@pytest.mark.thinned(3)
def test_modules_over_whole_graphs_obey_the_law(module, side_by_side, sparse):
    torch.manual_seed(0)
    parties = make_parties("graph", sparse=sparse, weighted=True)
    assert assert_law(module(), parties, STEADY).side_by_side == side_by_side


# ---- the fallback


def test_a_first_layer_is_trained_where_the_model_falls_back():
    """Sparse features, a named first layer, and a module whose mixing shows only when it is run."""
    module = Centred()
    cohort = Cohort(make_parties("node", sparse=True))
    for touched in (False, True):
        model = per_party(module, len(cohort))
        leaves = model.start_training(cohort.block, [True] * len(cohort), touched_rows=touched)
        model(cohort.block, draws_for(cohort)).square().sum().backward()
        assert not model.side_by_side
        assert all(leaf.tensor.grad is not None and leaf.tensor.grad.any() for leaf in leaves if "lin" in leaf.name)


@pytest.mark.parametrize("local", [{"epochs": 2}, {"epochs": 2, "batch_size": 4}], ids=["whole", "batches"])
def test_a_model_found_to_run_one_by_one_reads_whole_blocks_from_its_first_step(local, monkeypatch):
    """Side by side, layers leave out the rows that no training item needs; alone, a module gives every row."""
    parties = make_parties("node", nodes=(60,))  # of several, a step that fails is tried again party by party
    module, found = Gcn(hidden=8, dropout=0).build(FEATURES, CLASSES, "node"), {}
    for way in ("side by side", "one by one"):
        if way == "one by one":
            monkeypatch.setattr("isthmus.nn.per_party._close", lambda a, b: a.dim() == 1)  # the reach's probe has a row
        found[way] = Run(FedAvg(rounds=1, local=local), parties, task_for(parties), module).go().models["shared"]
    for name, weight in found["side by side"].items():
        torch.testing.assert_close(found["one by one"][name], weight, rtol=1e-4, atol=1e-5)


class Beside(nn.Module):
    """One column that is large, and others from which the mean over all rows is taken."""

    def __init__(self):
        super().__init__()
        self.lin, self.head = nn.Linear(FEATURES, HIDDEN), nn.Linear(FEATURES, 1)

    def forward(self, x, edge_index):
        h = self.lin(x)
        return torch.cat([h - h.mean(0), 1e6 * self.head(x)], dim=1)


def test_a_large_column_does_not_hide_what_mixes_the_others():
    parties = make_parties("node")
    cohort = Cohort(parties)
    model = per_party(Beside(), len(parties))
    model(cohort.block)
    assert not model.side_by_side


def test_outputs_that_are_no_numbers_are_compared():
    class Signs(Body):
        def forward(self, x, edge_index):
            h = super().forward(x, edge_index)
            return h, h > 0

    cohort = Cohort(make_parties("node"))
    model = per_party(Signs(conv=gnn.SAGEConv(FEATURES, HIDDEN)), len(cohort))
    assert model(cohort.block)[1].dtype == torch.bool


@pytest.mark.parametrize("scale", [1e3, 1e6])
def test_rounding_of_large_features_does_not_look_like_mixing(scale):
    parties = make_parties("node", nodes=(300, 300))
    for at, party in enumerate(parties):
        party.graph.x = scale * torch.rand(300, 400, generator=torch.Generator().manual_seed(at))
    cohort = Cohort(parties)
    model = per_party(Gcn(hidden=64).build(400, 40, "node"), 2)
    model(cohort.block)
    assert model.side_by_side


@pytest.mark.parametrize("name", ["noisy", "gat-attention-dropout", "gcn"])
def test_every_pass_draws_anew_from_a_partys_generator(name):
    module, cohort = build(name), Cohort(make_parties("node"))
    model = per_party(module, len(cohort))
    model.start_training(cohort.block, [True] * len(cohort), touched_rows=False)
    first, second = (model(cohort.block, draws_for(cohort, at)) for at in range(2))
    for one, other in zip(first.split(cohort.items), second.split(cohort.items), strict=True):
        assert not torch.equal(one, other)


def test_parties_without_edges_do_not_hide_what_mixes_the_others():
    """Attention dropout looks like dropout of nodes where there is no edge but the self-loops."""
    parties = list(make_parties("node"))
    for at in (0, 2, 3):
        parties[at].graph.edge_index = parties[at].graph.edge_index[:, :0]
    assert not assert_law(build("gat-attention-dropout"), parties, STEADY).side_by_side


def test_first_rows_without_edges_do_not_hide_what_mixes_the_others():
    parties = make_parties("node", nodes=(450, 470))
    for party in parties:
        party.graph.edge_index = party.graph.edge_index[:, (party.graph.edge_index >= 220).all(0)]
    assert not assert_law(build("gat-attention-dropout"), parties, STEADY).side_by_side


# ---- weights


@pytest.mark.parametrize("name", [*SIDE_BY_SIDE, *ONE_BY_ONE])
def test_every_parameter_and_every_buffer_of_real_numbers_travels(name):
    module = build(name)
    due = {n for n, _ in module.named_parameters()} | {n for n, b in module.named_buffers() if b.is_floating_point()}
    assert initial_weights(module).keys() == due
    assert per_party(module, 3).weights().keys() == due


@pytest.mark.parametrize("first", [True, False], ids=["kept-by-rows", "plain"])
def test_loaded_weights_come_back_out(first):
    module = Gcn(hidden=HIDDEN).build(FEATURES, CLASSES, "node") if first else build("gcn-batch")
    cohort = Cohort(make_parties("node", sparse=True))
    model, start = per_party(module, len(cohort)), apart(module, len(cohort))
    model.load(start)
    assert_close(model.stacks(), start, within=0.0)
    model.start_training(cohort.block, [True] * len(cohort), touched_rows=False)
    assert_close(model.stacks(), start, within=0.0)
    model.stop_training()
    assert_close(model.stacks(), start, within=0.0)
    shared = {n: w[1] for n, w in start.items()}
    model.load(shared)
    assert_close(model.stacks(), {n: torch.stack([w] * len(cohort)) for n, w in shared.items()}, within=0.0)


def test_weights_may_be_part_shared_part_a_stack():
    module, cohort = build("gcn"), Cohort(make_parties("node"))
    stacked = apart(module, len(cohort))
    shared = {n: w[0] for n, w in stacked.items()}
    model = per_party(module, len(cohort))
    head = [n for n in shared if n.startswith("convs.1")]
    model.load(shared | {n: stacked[n] for n in head})
    found = model(cohort.block)
    model.load({n: w if n in head else torch.stack([shared[n]] * len(cohort)) for n, w in stacked.items()})
    torch.testing.assert_close(found, model(cohort.block))


def test_training_leaves_the_weights_it_was_given_and_the_module_alone():
    module, parties = build("batch-norm"), make_parties("node")
    start = apart(module, len(parties))
    before = {n: w.clone() for n, w in start.items()}
    initial = {n: w.clone() for n, w in initial_weights(module).items()}
    train_side_by_side(per_party(module, len(parties)), parties, start, STEADY)
    assert_close(start, before, within=0.0)
    assert_close(initial_weights(module), initial, within=0.0)


def test_resizing_starts_anew():
    module = build("gcn")
    model = per_party(module, 4)
    model.load(apart(module, 4))
    model.resize(2)
    assert_close(model.stacks(), {n: torch.stack([w, w]) for n, w in initial_weights(module).items()}, within=0.0)


@pytest.mark.parametrize("name", ["conv.lin.weight", "head.bias"])
@pytest.mark.parametrize("base", [Body, Named, Centred])
@over_sparse
def test_a_frozen_parameter_does_not_move(name, base, sparse):
    module = base()
    dict(module.named_parameters())[name].requires_grad_(False)
    parties = make_parties("node", sparse=sparse)
    start = apart(module, len(parties))
    found = train_side_by_side(per_party(module, len(parties)), parties, start).weights
    assert {n for n in start if torch.equal(start[n], found[n])} == {name}


@pytest.mark.parametrize("name", ["batch-norm", "gcn-graph", "gcn"])
@pytest.mark.parametrize("given", ["shared", "stacked"])
@over_sparse
def test_weights_that_are_not_named_stay_as_they_were_bit_for_bit(name, given, sparse):
    """In spite of weight decay; running statistics too."""
    module, cohort = build(name), Cohort(make_parties("node", sparse=sparse))
    model = per_party(module, len(cohort))
    start = apart(module, len(cohort) if given == "stacked" else 1)
    model.load(start if given == "stacked" else {n: w[0] for n, w in start.items()})
    only = [n for n in start if n.startswith(("head", "convs.1"))]
    leaves = model.start_training(cohort.block, [True] * len(cohort), touched_rows=False, only=only)
    assert {leaf.name for leaf in leaves} == set(only)
    optimizer = PartyOptimizer(LocalTraining(optimizer="adam", weight_decay=0.1), leaves)
    for step in range(2):
        model(cohort.block, draws_for(cohort, step)).square().sum().backward()
        optimizer.step([True] * len(cohort))
    model.stop_training()
    assert {n for n, w in model.stacks().items() if not torch.equal(w, start[n].expand_as(w))} == set(only)


@pytest.mark.parametrize("touched", [False, True])
def test_a_first_layer_that_is_not_named_stays_as_it_was_bit_for_bit(touched):
    cohort, module = Cohort(make_parties("node", sparse=True)), first_layer_model()
    model = per_party(module, len(cohort))
    due = model(cohort.block)
    leaves = model.start_training(cohort.block, [True] * len(cohort), touched_rows=touched, only=["convs.1.bias"])
    model(cohort.block).sum().backward()
    assert [leaf.name for leaf in leaves] == ["convs.1.bias"]
    model.stop_training()
    torch.testing.assert_close(model(cohort.block), due)
    assert all(torch.equal(w, initial_weights(module)[n].expand_as(w)) for n, w in model.stacks().items())


def test_only_weights_of_the_model_can_be_named():
    with pytest.raises(IsthmusError, match=r"cannot train 'head\.wait', .* did you mean 'head\.weight'"):
        per_party(build("batch-norm"), 2).start_training(None, (), touched_rows=False, only=["head.wait"])


# ---- embeddings


@over_sparse
@pytest.mark.parametrize("name", ["batch-norm", "centred", "noisy", "gatv2"])
def test_the_embedding_is_what_the_head_receives(name, sparse):
    cohort = Cohort(make_parties("node", sparse=sparse))
    module = build(name)
    model = per_party(module, len(cohort))
    output, h = model(cohort.block, embed=True)
    torch.testing.assert_close(module.head(h), output)
    assert torch.equal(model(cohort.block), output)


@pytest.mark.parametrize("name", ["gat-averaged-heads", "batch-norm", "two-names-one-layer", "noisy", "gatv2"])
def test_an_embedding_without_activation_is_what_the_last_layer_before_the_head_gives(name):
    cohort = Cohort(make_parties("node")[:1])
    module = build(name)
    model = per_party(module, 1)
    torch.testing.assert_close(module.head(model.unactivated(cohort.block).relu()), model(cohort.block))


def test_a_layer_without_bias_counts_after_it_propagated():
    cohort = Cohort(make_parties("node")[:1])
    module = Body(conv=gnn.GCNConv(FEATURES, HIDDEN, bias=False))
    model = per_party(module, 1)
    torch.testing.assert_close(module.head(model.unactivated(cohort.block).relu()), model(cohort.block))


def test_a_model_that_is_its_head_has_no_embedding():
    cohort = Cohort(make_parties("node")[:1])
    with pytest.raises(IsthmusError, match="has no embedding before its head"):
        per_party(Gcn(layers=1).build(FEATURES, CLASSES, "node"), 1).unactivated(cohort.block)


def test_a_head_is_called_once():
    class Twice(Body):
        def forward(self, x, edge_index):
            h = self.conv(x, edge_index)
            return self.head(h) + self.head(h.relu())

    cohort = Cohort(make_parties("node"))
    with pytest.raises(IsthmusError, match="Twice must call its head 'head' once per forward pass"):
        per_party(Twice(), len(cohort))(cohort.block, embed=True)


# ---- the first layer


def first_layer_model(level="node", **options):
    torch.manual_seed(0)
    return Gcn(hidden=HIDDEN, **options).build(FEATURES, CLASSES, level)


def fitted(cohort, trains, touched, options, pulls):
    """Some steps of those that train, from one slice for all."""
    module = first_layer_model()
    model = PerParty(module, len(cohort))
    weights = {n: w[0] for n, w in apart(module, 1).items()}
    model.load(weights)
    block = cohort.block_of(trains)
    leaves = model.start_training(block, trains, touched_rows=touched)
    optimizer = PartyOptimizer(options, leaves)
    elsewhere = {n: w + 1 for n, w in weights.items()}
    for step in range(3):
        model(block, draws_for(cohort, step)).square().mean().backward()
        for leaf, away in zip(leaves, model.like_leaves(leaves, elsewhere), strict=True):
            if pulls:
                pull = 0.1 * (leaf.tensor.detach() - away)
                leaf.tensor.grad = pull if leaf.tensor.grad is None else leaf.tensor.grad + pull
        optimizer.step(trains)
    model.stop_training()
    return model, weights


@pytest.mark.parametrize("pulls", [False, True], ids=["free", "pulled"])
@pytest.mark.parametrize("trains", [(True,) * 4, (True, False, True, True), (False, False, True, False)])
@pytest.mark.parametrize(
    "options",
    [
        LocalTraining(optimizer="adam", weight_decay=0.0),
        LocalTraining(optimizer="adam", weight_decay=0.1),
        LocalTraining(optimizer="adamw", weight_decay=0.5),
        LocalTraining(optimizer="sgd", lr=0.1, momentum=0.9, weight_decay=0.1),
    ],
    ids=["adam", "adam-decay", "adamw", "sgd"],
)
@pytest.mark.thinned(3)
def test_a_first_layer_kept_by_touched_rows_is_the_whole_one(options, trains, pulls):
    cohort = Cohort(make_parties("node", sparse=True))
    model, start = fitted(cohort, trains, True, options, pulls)
    whole, _ = fitted(cohort, trains, False, options, pulls)
    assert_close(model.stacks(), whole.stacks())
    first = model.stacks()[model.first_layer]
    for at, trained in enumerate(trains):
        assert torch.equal(first[at], start[model.first_layer]) == (not trained)
    unused = first[trains.index(True), :, UNTOUCHED]
    moves_alike = bool(options.weight_decay) or pulls
    assert torch.equal(unused, start[model.first_layer][:, UNTOUCHED]) == (not moves_alike)


def test_a_first_layer_is_kept_by_touched_rows_only_from_one_slice_for_all():
    module, cohort = first_layer_model(), Cohort(make_parties("node", sparse=True))
    model, start = per_party(module, 4), apart(module, 4)
    model.load(start)
    leaves = model.start_training(cohort.block, [True] * 4, touched_rows=True)
    assert not any(leaf.shared for leaf in leaves)
    assert_close(model.stacks(), start, within=0.0)


@pytest.mark.parametrize("stacked", [False, True])
@over_sparse
def test_weights_go_into_the_shapes_of_the_leaves_and_back(sparse, stacked):
    module, cohort = first_layer_model(), Cohort(make_parties("node", sparse=sparse))
    model, values = per_party(module, 4), apart(module, 4)
    leaves = model.start_training(cohort.block, [True] * 4, touched_rows=False)
    if not stacked:
        values = {n: w[:1].expand(4, *w.shape[1:]) for n, w in values.items()}
    given = values if stacked else {n: w[0] for n, w in values.items()}
    shaped = model.like_leaves(leaves, given)
    assert [value.shape for value in shaped] == [leaf.tensor.shape for leaf in leaves]
    assert_close(from_leaves(model, leaves, shaped), values, within=0.0)


def test_a_first_layer_kept_by_touched_rows_reads_other_features_once_it_is_trained():
    module, cohort = first_layer_model(), Cohort(make_parties("node", sparse=True))
    model, trains = per_party(module, 4), [True, False, True, True]
    model.start_training(cohort.block_of(trains), trains, touched_rows=True)
    with pytest.raises(IsthmusError, match="trained on the features it was made for"):
        model(cohort.block)
    model.stop_training()
    found, weights = model(cohort.block), model.stacks()
    model.load(weights)
    assert torch.equal(found, model(cohort.block))


@over_sparse
def test_parts_of_a_leaf_are_views_of_a_partys_slice(sparse):
    module, cohort = first_layer_model(), Cohort(make_parties("node", sparse=sparse))
    model = per_party(module, 4)
    leaves = model.start_training(cohort.block, [True] * 4, touched_rows=False)
    before = {n: w.clone() for n, w in model.stacks().items()}
    with torch.no_grad():
        for leaf in leaves:
            leaf.tensor.split(leaf.sizes)[2].add_(1.0)
    for name, stack in model.stacks().items():
        moved = [not torch.equal(own, old) for own, old in zip(stack, before[name], strict=True)]
        assert moved == [False, False, True, False]


# ---- errors


class NamesNothing(nn.Module):
    def forward(self, features, edges):
        return features


def wrong_shape(weights):
    return weights | {"convs.0.bias": torch.zeros(3)}


def too_few(weights):
    return {n: w for n, w in weights.items() if n != "convs.0.bias"}


def wrong_stack(weights):
    return weights | {"convs.0.bias": torch.zeros(5, HIDDEN)}


@pytest.mark.parametrize("change", [wrong_shape, too_few, wrong_stack])
def test_weights_that_do_not_fit_are_named_in_one_line(change):
    model = per_party(build("gcn"), 4)
    with pytest.raises(IsthmusError, match=r"'convs\.0\.bias'") as error:
        model.load(change(initial_weights(model.module)))
    assert "\n" not in str(error.value)


def test_a_module_must_read_x_and_edge_index():
    with pytest.raises(IsthmusError, match=r"NamesNothing has no forward\(x, edge_index, \.\.\.\)") as error:
        per_party(NamesNothing(), 2)
    assert "\n" not in str(error.value)


def test_a_block_of_other_parties_is_refused():
    model = per_party(build("gcn"), 2)
    with pytest.raises(IsthmusError, match="the block has 3 parties, the model 2"):
        model(Block(torch.ones(3, FEATURES), torch.zeros(2, 0, dtype=torch.long), sizes=(1, 1, 1)))


# ---- what a module says that it reads


class Reaches(nn.Module):
    def __init__(self, reach, conv=gnn.SAGEConv):
        super().__init__()
        self.reach = reach
        self.first, self.second = conv(FEATURES, HIDDEN), conv(HIDDEN, CLASSES)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


@pytest.mark.parametrize(("conv", "least"), [(gnn.SAGEConv, 2), (gnn.GCNConv, 3), (gnn.GATv2Conv, 2)])
def test_a_module_that_reads_further_than_it_says_is_refused(conv, least):
    cohort = Cohort(tuple(make_parties("node")))
    for reach in (None, least, least + 1, 10**9):
        model = per_party(Reaches(reach, conv), len(cohort))
        model.load(model.initial)
        model(cohort.block)
    assert model.reach is None
    for reach in range(least):
        with pytest.raises(IsthmusError, match=f"model Reaches reads further than reach = {reach} hops: give a larger"):
            per_party(Reaches(reach, conv), len(cohort))(cohort.block)


@pytest.mark.parametrize("reach", [-1, 2.0, "2", True])
def test_a_reach_that_is_no_number_of_hops_is_refused(reach):
    parties = make_parties("node")
    with pytest.raises(IsthmusError, match=r"model Reaches says reach = .*: give a number of hops, or None"):
        Run(FedAvg(rounds=1), parties, task_for(parties), Reaches(reach))


def test_an_argument_that_no_party_has_is_an_error_in_one_line():
    class Needs(nn.Module):
        def forward(self, x, edge_index, time):
            return x

    class May(nn.Module):
        def forward(self, x, edge_index, time=None, **more):
            return x

    with pytest.raises(IsthmusError, match=r"^model Needs: its forward needs 'time', which no party has"):
        PerParty(Needs(), 2)
    PerParty(May(), 2)


@pytest.mark.parametrize("side_by_side", [True, False])
@pytest.mark.parametrize("norm", [True, False])
def test_other_weights_embed_with_the_same_dropout_and_leave_the_model_as_it_is(side_by_side, norm):
    parties = make_parties("node")
    cohort = Cohort(parties)
    module = Gin(hidden=8, norm=norm).build(FEATURES, CLASSES, "node")
    model = per_party(module, len(parties))
    model.side_by_side &= side_by_side
    model.start_training(cohort.block, [True] * len(parties), touched_rows=False)
    own = {name: stack.detach().clone() for name, stack in model.stacks().items()}
    found = model.embed_with(own, cohort.block, draws_for(cohort, "a"))
    assert all(torch.equal(stack, own[name]) for name, stack in model.stacks().items())
    assert not found.requires_grad
    other = model.embed_with(apart(module, len(parties)), cohort.block, draws_for(cohort, "a"))
    due = model(cohort.block, draws_for(cohort, "a"), embed=True)[1]
    assert torch.equal(found, due)
    assert due.requires_grad
    assert not torch.allclose(other, due)
