import pytest
import torch
from torch.nn import functional as F
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from isthmus.data.cohort import Block
from isthmus.nn.encoders import Encoder
from isthmus.nn.per_party import per_party
from isthmus.nn.products import (
    Columns,
    Features,
    Propagation,
    Propagations,
    by_input,
    grouped_linear,
    normalised_edges,
    per_row,
)
from isthmus.privacy.edges import NodePairs
from isthmus.privacy.mechanisms import Laplace
from isthmus.privacy.random_bits import SeededBits

SIZES = (3, 0, 5, 1)


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def sparse_rows(width=7):
    x = noise(sum(SIZES), width, seed=1) * (noise(sum(SIZES), width, seed=2) > 0.7)
    x[:, -1] = 0.0
    return x


def weighted_graph():
    """Directed, with a self-loop, a repeated edge and a node without edges."""
    return torch.tensor([[0, 1, 2, 2, 3, 0], [1, 2, 2, 0, 0, 1]]), torch.tensor([1.0, 0.5, 2.0, 3.0, 0.25, 4.0])


def adjacency(edge_index, values, nodes):
    matrix = torch.zeros(nodes, nodes)
    return matrix.index_put((edge_index[1], edge_index[0]), values, accumulate=True)


def test_grouped_linear_gives_every_party_its_own_product():
    x, weight = noise(sum(SIZES), 4), noise(len(SIZES), 6, 4, seed=1)
    due = torch.cat([part @ own.t() for part, own in zip(x.split(SIZES), weight, strict=True)])
    torch.testing.assert_close(grouped_linear(x, weight, SIZES), due)


@pytest.mark.parametrize("transposed", [False, True])
def test_grouped_linear_has_the_gradients_of_the_products(transposed):
    x = noise(sum(SIZES), 4).double().requires_grad_()
    weight = noise(len(SIZES), 6, 4, seed=1).double()
    weight = (weight.transpose(1, 2).contiguous().transpose(1, 2) if transposed else weight).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: grouped_linear(a, b, SIZES), (x, weight))


@pytest.mark.parametrize("inputs", [1, 5, 16, 33, 64])
@pytest.mark.parametrize("outputs", [1, 2, 7, 16, 47])
def test_grouped_linear_gives_a_party_the_same_bits_in_every_cohort(inputs, outputs):
    generator = torch.Generator().manual_seed(inputs * outputs)
    rows_of = [0, 1, 7, 8, 20, 33, 64, 65, 90, 112, 119, 120, 121, 128, 200]
    for count in (2, 9, 30):
        sizes = tuple(rows_of[at] for at in torch.randint(len(rows_of), (count,), generator=generator).tolist())
        x = torch.randn(sum(sizes), inputs, generator=generator, requires_grad=True)
        weight = torch.randn(count, outputs, inputs, generator=generator, requires_grad=True)
        slope = torch.randn(sum(sizes), outputs, generator=generator)
        found = grouped_linear(x, weight, sizes)
        slopes = torch.autograd.grad(found, (x, weight), slope)
        parts = [each.split(sizes) for each in (x.detach(), slope, found, slopes[0])]
        for at, (own, own_slope, due, due_x) in enumerate(zip(*parts, strict=True)):
            if sizes[at]:
                own, one = own.clone().requires_grad_(), weight.detach()[at : at + 1].clone().requires_grad_()
                alone = grouped_linear(own, one, sizes[at : at + 1])
                of_x, of_weight = torch.autograd.grad(alone, (own, one), own_slope.clone())
                assert torch.equal(alone, due)
                assert torch.equal(of_x, due_x)
                assert torch.equal(of_weight[0], slopes[1][at])


def test_grouped_linear_takes_a_gradient_that_is_not_contiguous():
    x, weight = noise(sum(SIZES), 4), noise(len(SIZES), 6, 4, seed=1).requires_grad_()
    out = grouped_linear(x, weight, SIZES)
    out.sum().backward()  # the gradient of a sum is one number, expanded
    due = torch.stack([part.sum(0).expand(6, 4) for part in x.split(SIZES)])
    torch.testing.assert_close(weight.grad, due)


@pytest.mark.parametrize("outputs", [2, 6])
def test_grouped_linear_adds_a_bias_for_each_party(outputs):
    x, weight = noise(sum(SIZES), 4).double(), noise(len(SIZES), outputs, 4, seed=1).double()
    bias = noise(len(SIZES), outputs, seed=2).double().requires_grad_()
    due = grouped_linear(x, weight, SIZES) + per_row(bias, SIZES)
    found = grouped_linear(x, weight, SIZES, bias)
    assert torch.equal(found, due)
    slopes = [torch.autograd.grad(each.square().sum(), bias)[0] for each in (found, due)]
    assert torch.equal(*slopes)
    assert torch.autograd.gradcheck(lambda each: grouped_linear(x, weight, SIZES, each), (bias,))


def test_weights_by_input_are_transposed_party_after_party():
    stack = noise(3, 4, 5).double().requires_grad_()
    assert torch.equal(by_input(stack), torch.cat([each.t() for each in stack.detach()]))
    assert torch.autograd.gradcheck(by_input, (stack,))


def test_an_absent_party_gets_a_gradient_of_zeros():
    weight = noise(len(SIZES), 6, 4).requires_grad_()
    grouped_linear(noise(sum(SIZES), 4), weight, SIZES).square().sum().backward()
    assert not weight.grad[1].any()
    assert weight.grad[0].any()


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
def test_per_row_repeats_a_slice_and_sums_its_gradient(shape):
    stack = noise(len(SIZES), *shape).double().requires_grad_()
    due = torch.cat([own.expand(size, *shape) for own, size in zip(stack, SIZES, strict=True)])
    assert torch.equal(per_row(stack, SIZES), due)
    assert torch.autograd.gradcheck(lambda a: per_row(a, SIZES), (stack,))


def test_propagation_sums_over_incoming_edges_each_time_they_stand():
    edge_index, values = weighted_graph()
    h = noise(5, 3).requires_grad_()
    out = Propagation(edge_index, values, 5) @ h
    matrix = adjacency(edge_index, values, 5)
    torch.testing.assert_close(out, matrix @ h)
    slope = noise(5, 3, seed=1)
    out.backward(slope)
    torch.testing.assert_close(h.grad, matrix.t() @ slope)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("improved", [False, True])
@pytest.mark.parametrize("self_loops", [False, True])
def test_gcn_propagation_is_pygs_normalisation(weighted, improved, self_loops):
    edge_index, values = weighted_graph()
    index, normal = gcn_norm(edge_index, values if weighted else None, 5, improved, self_loops)
    found = Propagations()(
        normalised_edges, edge_index, values if weighted else None, 5, improved=improved, self_loops=self_loops
    )
    torch.testing.assert_close(found @ torch.eye(5), adjacency(index, normal, 5))


def test_a_propagation_is_made_once_for_each_graph_and_way():
    edge_index, values = weighted_graph()
    known = Propagations(keep=2)
    first = known(normalised_edges, edge_index, None, 5)
    assert known(normalised_edges, edge_index, None, 5) is first
    assert known(normalised_edges, edge_index, None, 5, self_loops=False) is not first
    assert known(normalised_edges, edge_index, values, 5) is not first
    assert known(normalised_edges, edge_index, None, 5) is not first  # two are kept


def test_a_new_graph_in_the_place_of_an_old_one_is_not_taken_for_it():
    known = Propagations(keep=2)
    for shift in range(20):
        edge_index = torch.tensor([[0, 1], [1, 2]]) + shift % 3
        index, normal = gcn_norm(edge_index, None, 5, dtype=torch.float32)
        torch.testing.assert_close(
            known(normalised_edges, edge_index, None, 5) @ torch.eye(5), adjacency(index, normal, 5)
        )


def test_sparse_features_stand_in_for_a_tensor_in_a_linear_layer():
    x, weight, bias = sparse_rows(), noise(4, 7).requires_grad_(), noise(4, seed=3).requires_grad_()
    features = Features(x.to_sparse_csr())
    assert (features.dim(), features.size(0), features.size(1), features.dtype) == (2, 9, 7, torch.float32)
    slope = noise(9, 4, seed=4)
    found = torch.autograd.grad(F.linear(features, weight, bias), (weight, bias), slope)
    due = torch.autograd.grad(F.linear(x, weight, bias), (weight, bias), slope)
    for mine, plain in zip(found, due, strict=True):
        torch.testing.assert_close(mine, plain)
    torch.testing.assert_close(F.linear(features, weight), F.linear(x, weight))


@pytest.mark.parametrize("touched", [False, True])
def test_grouped_features_meet_their_partys_slice(touched):
    x = sparse_rows()
    features, columns = Features(x.to_sparse_csr()), Columns(x.to_sparse_csr(), SIZES, touched)
    whole = noise(len(SIZES), 7, 4)  # [parties, in, out]
    party = torch.arange(len(SIZES)).repeat_interleave(torch.tensor(columns.sizes))
    kept = whole[party, columns.index].requires_grad_()
    out = features.grouped(kept, columns)
    due = torch.cat([part @ own for part, own in zip(x.split(SIZES), whole, strict=True)])
    torch.testing.assert_close(out, due)
    slope = noise(9, 4, seed=4)
    out.backward(slope)
    slopes = torch.stack([part.t() @ own for part, own in zip(x.split(SIZES), slope.split(SIZES), strict=True)])
    torch.testing.assert_close(kept.grad, slopes[party, columns.index])


def test_the_same_features_serve_touched_and_all_columns():
    x = sparse_rows()
    features = Features(x.to_sparse_csr())
    whole = noise(len(SIZES), 7, 4)
    due = torch.cat([part @ own for part, own in zip(x.split(SIZES), whole, strict=True)])
    for touched in (True, False, True):
        columns = Columns(features.x, SIZES, touched)
        party = torch.arange(len(SIZES)).repeat_interleave(torch.tensor(columns.sizes))
        torch.testing.assert_close(features.grouped(whole[party, columns.index], columns), due)


def test_touched_columns_are_those_that_a_party_uses():
    x = sparse_rows()
    columns = Columns(x.to_sparse_csr(), SIZES, touched=True)
    due = [part.any(0).nonzero().squeeze(1) for part in x.split(SIZES)]
    assert columns.sizes == tuple(own.numel() for own in due)
    assert torch.equal(columns.index, torch.cat(due))
    assert Columns(x.to_sparse_csr(), SIZES, touched=False).sizes == (7,) * len(SIZES)


def test_entries_are_counted_per_party():
    x = sparse_rows()
    assert Features(x.to_sparse_csr()).entries(SIZES) == tuple(int(part.count_nonzero()) for part in x.split(SIZES))


def test_other_values_leave_the_first_ones_as_they_are():
    x, weight = sparse_rows(), noise(4, 7)
    features = Features(x.to_sparse_csr())
    before = F.linear(features, weight)
    doubled = F.linear(features.with_values(features.values * 2), weight)
    torch.testing.assert_close(doubled, 2 * before)
    torch.testing.assert_close(F.linear(features, weight), before)


def flipped_of(index, edge_index, weight):
    """The weight of each of these edges, 1 for loops that were added."""
    known = {tuple(edge): float(w) for edge, w in zip(edge_index.t().tolist(), weight, strict=True)}
    return torch.tensor([known.get(tuple(edge), 1.0) for edge in index.t().tolist()])


@pytest.mark.parametrize("self_loops", [True, False])
@pytest.mark.parametrize("improved", [True, False])
def test_negative_weights_are_normalised_by_absolute_degrees(self_loops, improved):
    edge_index, weight = torch.tensor([[0, 1, 2, 2, 3], [1, 0, 0, 2, 2]]), torch.tensor([0.5, 2.0, 0.0, 3.0, 1.0])
    flipped = weight * torch.tensor([1, -1, 1, 1, -1])
    index, values = normalised_edges(edge_index, flipped, 5, improved, self_loops)
    due_index, due = gcn_norm(edge_index, weight, 5, improved, self_loops)
    assert torch.equal(index, due_index)
    assert torch.allclose(values.abs(), due)
    assert torch.equal(values < 0, (due > 0) & (flipped_of(index, edge_index, flipped) < 0))


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("encoder", ["gcn", "graphconv", "tag", "lightgcn", "sgc", "appnp", "gbp", "gprgnn"])
def test_models_read_edges_with_any_noise(encoder, epsilon):
    pairs = NodePairs.of_graphs([7, 1, 30])
    bits = (torch.rand(len(pairs), generator=torch.Generator().manual_seed(0)) < 0.1).float()
    noisy = Laplace(epsilon=epsilon).release(bits, SeededBits(1))
    edge_index, weight = pairs.graph(noisy)
    module = Encoder.named(encoder)(hidden=8, dropout=0.0).build(4, 3, "node")
    model = per_party(module, parties=1)
    block = Block(noise(38, 4, seed=2), edge_index, sizes=(38,), edge_weight=weight)
    assert model(block).isfinite().all()
    leaves = model.start_training(block, [True], touched_rows=False)
    model(block).square().sum().backward()
    assert all(leaf.tensor.grad.isfinite().all() for leaf in leaves if leaf.tensor.grad is not None)
    assert any(leaf.tensor.grad is not None for leaf in leaves)


def test_rows_that_sum_up_to_nothing_stay_finite():
    edge_index = torch.tensor([[0, 1, 0, 2, 1, 2], [1, 0, 2, 0, 2, 1]])
    for weight in (torch.zeros(6), torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0, -1.0])):
        for loops in (True, False):
            assert normalised_edges(edge_index, weight, 4, self_loops=loops)[1].isfinite().all()
