import itertools

import pytest
import torch
from scipy.stats import chisquare

from helpers import make_node_parties
from isthmus.data.cohort import Cohort
from isthmus.data.neighbours import Neighbours, distinct
from isthmus.nn.draws import Draws


def uniform_of(*seeds):
    draws = Draws.seeded(seeds)
    return lambda hop, sizes, width: draws.of(hop).uniform(sizes, width)


def crowd(nodes=60, edges=400):
    """A graph with a hub, edges from nodes to themselves, repeated edges, and nodes without edges."""
    source = torch.Generator().manual_seed(3)
    ends = torch.randint(nodes - 5, (2, edges), generator=source)
    ends[1, : edges // 4] = 7
    return ends


def test_edges_are_sorted_by_target_in_their_own_order():
    edge_index, nodes = crowd(), 60
    weight = torch.arange(400.0)
    near = Neighbours(edge_index, nodes, weight)
    for node in range(nodes):
        at = (edge_index[1] == node).nonzero().flatten()
        edges = slice(int(near.start[node]), int(near.start[node + 1]))
        assert near.source[edges].tolist() == edge_index[0, at].tolist()
        assert near.weight[edges].tolist() == at.tolist()
    assert near.degree.tolist() == torch.bincount(edge_index[1], minlength=nodes).tolist()
    assert torch.equal(near.target.long(), edge_index[1].sort().values)


def written_out(edge_index, nodes, seeds, fan_out, uniform):
    """The sampler in plain Python, one party: edges by hop as (source, target, position among the target's edges)."""
    into = [[int(s) for s, t in edge_index.t().tolist() if t == node] for node in range(nodes)]
    depth, frontier, hops = dict.fromkeys(seeds, 0), sorted(set(seeds)), []
    for hop, most in enumerate(fan_out):
        many = [node for node in frontier if most is not None and len(into[node]) > most]
        drawn = uniform(hop, (len(many),), most or 1).tolist()
        edges = []
        for node in frontier:
            ranks = list(range(len(into[node])))
            if node in many:
                ranks = []
                for at, number in enumerate(drawn[many.index(node)]):
                    last = len(into[node]) - most + at
                    rank = int(number * (last + 1))
                    ranks.append(last if rank in ranks else rank)
            edges += [(into[node][rank], node, rank) for rank in ranks]
        hops.append(edges)
        frontier = sorted({source for source, _, _ in edges} - depth.keys())
        depth |= dict.fromkeys(frontier, hop + 1)
    return depth, hops


@pytest.mark.parametrize("fan_out", [(), (3,), (3, 2, 1), (None, 2), (None, None, None), (50, 1)])
def test_a_subgraph_is_the_sampler_in_plain_python(fan_out):
    edge_index, nodes, seeds = crowd(), 60, [7, 30, 7, 58]
    near = Neighbours(edge_index, nodes)
    found = near.around(torch.tensor(seeds), fan_out, (nodes,), uniform_of(5))
    depth, hops = written_out(edge_index, nodes, seeds, fan_out, uniform_of(5))
    assert dict(zip(found.nodes.tolist(), found.depth.tolist(), strict=True)) == depth
    assert found.nodes.tolist() == sorted(depth)
    edges = [(source, target, int(near.start[target]) + rank) for hop in hops for source, target, rank in hop]
    ends = zip(*found.nodes[found.edge_index].tolist(), found.edges.tolist(), strict=True)
    assert sorted(ends) == sorted(edges)


def test_a_party_draws_the_same_alone_and_in_a_cohort():
    parties = make_node_parties(weighted=True)
    block = Cohort(parties).block
    seeds = torch.cat(
        [torch.arange(0, nodes, 4) + first for nodes, first in zip(block.sizes, firsts(block), strict=True)]
    )
    together = block.neighbours.around(seeds, (2, 1), block.sizes, uniform_of(1, 2, 3, 4))
    start, nodes_before = 0, 0
    for at, (party, first) in enumerate(zip(parties, firsts(block), strict=True)):
        own = Cohort((party,)).block
        alone = own.neighbours.around(torch.arange(0, own.nodes, 4), (2, 1), own.sizes, uniform_of(at + 1))
        part = slice(start, start + together.sizes[at])
        assert together.nodes[part].tolist() == (alone.nodes + first).tolist()
        mine = torch.isin(together.edge_index[1], torch.arange(part.start, part.stop))
        pairs = zip(
            *(together.edge_index[:, mine] - start).tolist(),
            together.per_edge["edge_weight"][mine].tolist(),
            strict=True,
        )
        assert sorted(pairs) == sorted(
            zip(*alone.edge_index.tolist(), alone.per_edge["edge_weight"].tolist(), strict=True)
        )
        start += together.sizes[at]
        nodes_before += own.nodes
    assert start == together.nodes.numel()
    assert any(size > part for size, part in zip(block.sizes, together.sizes, strict=True))


def firsts(block):
    return itertools.accumulate(block.sizes[:-1], initial=0)


@pytest.mark.parametrize(("degree", "most"), [(5, 2), (6, 3), (4, 3), (9, 1)])
def test_every_set_of_neighbours_is_as_likely(degree, most):
    rows = 20_000
    found = distinct(torch.full((rows,), degree), Draws.seeded([11]).uniform((rows,), most)).sort(0).values
    sets = list(itertools.combinations(range(degree), most))
    keys = {each: at for at, each in enumerate(sets)}
    counts = torch.bincount(torch.tensor([keys[tuple(each)] for each in found.t().tolist()]), minlength=len(sets))
    assert chisquare(counts.tolist()).pvalue > 0.001


def test_a_hub_costs_as_many_draws_as_others():
    near = Neighbours(torch.stack([torch.arange(1, 100_001), torch.zeros(100_000, dtype=torch.long)]), 100_001)
    asked = []

    def uniform(hop, sizes, width):
        asked.append((hop, tuple(sizes), width))
        return Draws.seeded([1]).uniform(sizes, width)

    found = near.around(torch.tensor([0]), (10, 10), (100_001,), uniform)
    assert found.edges.unique().numel() == 10
    assert asked == [(0, (1,), 10)]


def test_scale_makes_sums_right_on_average():
    edge_index, nodes = crowd(), 60
    near = Neighbours(edge_index, nodes)
    part = near.around(torch.tensor([7, 3]), (4,), (nodes,), uniform_of(1))
    totals = torch.zeros(part.nodes.numel()).index_add_(0, part.edge_index[1], part.scale)
    seeds = part.depth == 0
    torch.testing.assert_close(totals[seeds], near.degree[part.nodes[seeds]].float())


def test_rows_of_seeds():
    near = Neighbours(crowd(), 60)
    seeds = torch.tensor([30, 7, 58, 7])
    part = near.around(seeds, (3,), (60,), uniform_of(1))
    assert part.nodes[part.rows_of(seeds, among_seeds=False)].tolist() == seeds.tolist()
    assert part.rows_of(seeds, among_seeds=True).tolist() == [1, 0, 2, 0]
    assert part.rows_within(0).numel() == 3
    assert part.sizes_within(1) == part.sizes == (part.nodes.numel(),)
