from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pools import broken, cuts, edges_of, graphs_of, make_pile, make_pool, members_of
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch_geometric.data import Data, HeteroData

from isthmus.data import rows
from isthmus.data.partition import cut
from isthmus.data.partition.cut import cut_into_parties
from isthmus.data.partition.labels import Random
from isthmus.data.partition.overlap import Overlap
from isthmus.data.party import SPLITS, Border, Party
from isthmus.data.pooled import pool_parties


@settings(max_examples=20)
@given(cuts("node"))
def test_a_cut_loses_and_duplicates_no_node(cut):
    pool, partition, count, seed = cut
    parties = partition.cut(pool, count, seed)
    assert len(parties) == count
    assert torch.equal(torch.cat([party.ids for party in parties]).sort().values, pool.party.ids)


@settings(max_examples=20)
@given(cuts("node"))
def test_coupled_parties_pooled_again_are_the_graph(cut):
    pool, partition, count, seed = cut
    again, whole = pool_parties(partition.cut(pool, count, seed)), pool.party
    assert torch.equal(again.ids, whole.ids)
    assert torch.equal(rows.to_dense(again.graph.x), rows.to_dense(whole.graph.x))
    assert rows.is_sparse(again.graph.x) == rows.is_sparse(whole.graph.x)
    assert torch.equal(again.graph.y, whole.graph.y)
    assert edges_of(again) == edges_of(whole)
    for split in SPLITS:
        assert torch.equal(getattr(again, split), getattr(whole, split))


@settings(max_examples=20)
@given(cuts("node", overlapping=True))
def test_overlapping_coupled_parties_find_every_edge_whose_ends_anyone_holds(cut):
    pool, partition, count, seed = cut
    parties, whole = partition.cut(pool, count, seed), pool.party
    held = set().union(*members_of(parties))
    again = pool_parties(parties)
    assert set(again.ids.tolist()) == held
    assert edges_of(again) == {edge for edge in edges_of(whole) if {edge[0], edge[1]} <= held}
    assert torch.equal(rows.to_dense(again.graph.x), rows.to_dense(whole.graph.x)[again.ids])
    assert torch.equal(again.graph.y, whole.graph.y[again.ids])
    for split in SPLITS:
        assert torch.equal(getattr(again, split), getattr(whole, split)[again.ids])


@settings(max_examples=20)
@given(cuts("node"))
def test_broken_parties_have_the_edges_within_them_and_no_border(cut):
    check_broken(*cut)


@settings(max_examples=20)
@given(cuts("node", overlapping=True))
def test_overlapping_broken_parties_have_the_edges_within_them_and_no_border(cut):
    check_broken(*cut)


def check_broken(pool, partition, count, seed):
    parties = broken(partition).cut(pool, count, seed)
    for party, held in zip(parties, members_of(parties), strict=True):
        assert party.border is None
        assert edges_of(party) == {edge for edge in edges_of(pool.party) if {edge[0], edge[1]} <= set(held)}


@settings(max_examples=20)
@given(cuts("node"))
def test_a_border_is_what_arrives_from_others_and_names_the_owner(cut):
    check_borders(*cut)


@settings(max_examples=20)
@given(cuts("node", overlapping=True))
def test_a_border_between_overlapping_parties_names_the_first_holder(cut):
    check_borders(*cut)


def check_borders(pool, partition, count, seed):
    parties = partition.cut(pool, count, seed)
    held = [set(own) for own in members_of(parties)]
    anyone = set().union(*held)
    for party, own in zip(parties, held, strict=True):
        border = party.border
        owners = [border.owners[at] for at in border.owner.tolist()]
        assert sorted(set(owners)) == sorted(border.owners)
        assert owners == [
            next(each.name for each, ids in zip(parties, held, strict=True) if outer in ids)
            for outer in border.outer.tolist()
        ]
        columns = [border.outer.tolist(), party.ids[border.inner].tolist()]
        found = list(zip(*columns, *([] if border.weight is None else [border.weight.tolist()]), strict=True))
        due = {edge for edge in edges_of(pool.party) if edge[1] in own and edge[0] in anyone - own}
        assert (set(found), len(found)) == (due, len(due))


@settings(max_examples=20)
@given(cuts("graph"))
def test_a_cut_loses_and_duplicates_no_graph(cut):
    pool, partition, count, seed = cut
    parties = partition.cut(pool, count, seed)
    assert len(parties) == count
    again = [graph for party in parties for graph in graphs_of(party)]
    assert sorted(again) == sorted(graphs_of(pool.party))
    graphs, whole = list(graphs_of(pool.party)), pool_parties(parties)
    assert list(graphs_of(whole)) == [graphs[at] for at in whole.ids.tolist()]


@settings(max_examples=20)
@given(cuts("graph", overlapping=True))
def test_graphs_that_several_hold_are_whole_at_each(cut):
    pool, partition, count, seed = cut
    parties = partition.cut(pool, count, seed)
    graphs = list(graphs_of(pool.party))
    for party, held in zip(parties, members_of(parties), strict=True):
        assert sorted(set(held)) == held
        assert list(graphs_of(party)) == [graphs[at] for at in held]


def cut_one_by_one(whole, members, names, *, coupled):
    """`cut_into_parties` of one graph, written out: edge after edge, party after party."""
    edges, weights = whole.graph.edge_index.t().tolist(), whole.graph.get("edge_weight")
    ids = torch.arange(whole.nodes) if whole.ids is None else whole.ids
    held = [items.tolist() for items in members]
    holder = {node: at for at in reversed(range(len(held))) for node in held[at]}
    for name, items in zip(names, held, strict=True):
        place = {node: at for at, node in enumerate(items)}
        inside = [at for at, (source, target) in enumerate(edges) if source in place and target in place]
        across = [
            at for at, (source, target) in enumerate(edges) if source in holder.keys() - place and target in place
        ]
        owners = sorted({holder[edges[at][0]] for at in across})
        weight = None if weights is None else weights[across]
        columns = [
            [place[edges[at][1]] for at in across],
            [int(ids[edges[at][0]]) for at in across],
            [owners.index(holder[edges[at][0]]) for at in across],
        ]
        border = Border(*(torch.tensor(column, dtype=torch.long) for column in columns), (), weight)
        pairs = [[place[node] for node in edges[at]] for at in inside]
        graph = Data(
            x=rows.take(whole.graph.x, torch.tensor(items)),
            edge_index=torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).t().contiguous(),
            y=whole.graph.y[items],
            num_nodes=len(items),
        )
        if weights is not None:
            graph.edge_weight = weights[inside]
        yield Party(
            name,
            graph,
            "node",
            ids=ids[items],
            border=replace(border, owners=tuple(names[at] for at in owners)) if coupled else None,
            structural=whole.structural,
            **{split: getattr(whole, split)[items] for split in SPLITS},
        )


@settings(max_examples=30)
@given(
    st.integers(0, 2**16),
    st.lists(st.lists(st.integers(0, 11), min_size=1, unique=True), min_size=1, max_size=8),
    st.booleans(),
    st.sampled_from([1, 12, cut.EDGES]),
    st.booleans(),
    st.booleans(),
)
def test_a_cut_is_that_of_edge_after_edge(seed, held, coupled, together, sparse, weighted):
    whole = replace(make_pool(seed, 12, sparse=sparse, weighted=weighted).party, structural=torch.tensor([1]))
    whole = replace(whole, ids=torch.randperm(99, generator=torch.Generator().manual_seed(seed))[:12])
    members, names = [torch.tensor(items) for items in held], [f"p{at}" for at in range(len(held))]
    with patch.object(cut, "EDGES", together):
        found = cut_into_parties(whole, members, names, coupled=coupled)
    for party, due in zip(found, cut_one_by_one(whole, members, names, coupled=coupled), strict=True):
        assert content_of(party) == content_of(due)
        Party(**vars(party))  # it passes the checks


def content_of(party):
    """Every field of a party as plain values, with the type of every tensor."""

    def plain(value):
        if isinstance(value, torch.Tensor):
            return str(value.dtype), rows.to_dense(value).tolist(), str(value.layout), list(value.shape)
        return {name: plain(each) for name, each in vars(value).items()} if isinstance(value, Border) else value

    graph = {key: plain(value) for key, value in party.graph.to_dict().items()}
    return {name: plain(value) for name, value in vars(party).items()} | {"graph": graph}


def test_items_stand_in_the_order_that_they_are_given_in():
    pool = make_pool(0, 12)
    members = [torch.tensor([7, 2, 9]), torch.tensor([2, 0])]
    parties = cut_into_parties(pool.party, members, ["a", "b"], coupled=True)
    assert members_of(parties) == [[7, 2, 9], [2, 0]]
    assert torch.equal(parties[0].graph.x, pool.party.graph.x[members[0]])
    pile = cut_into_parties(make_pile(0, 12).party, members, ["a", "b"], coupled=True)
    assert members_of(pile) == [[7, 2, 9], [2, 0]]


def test_ids_are_those_of_the_whole():
    pool = make_pool(0, 40, weighted=True)
    ids = torch.randperm(1000, generator=torch.Generator().manual_seed(0))[:40]
    named = replace(pool.party, ids=ids)
    for sharing in (Random(), Overlap(edges="coupled", proportions=[1.0, 0.5])):
        members = sharing.members(pool, 3, seed=0)
        parties = cut_into_parties(named, members, ["a", "b", "c"], coupled=True)
        assert all(torch.equal(party.ids, ids[held]) for party, held in zip(parties, members, strict=True))
        assert edges_of(pool_parties(parties)) == edges_of(named)
    nameless = cut_into_parties(replace(pool.party, ids=None), members, ["a", "b", "c"], coupled=True)
    assert members_of(nameless) == [held.tolist() for held in members]


def test_edges_keep_the_order_of_the_whole():
    pool = make_pool(0, 40, weighted=True)
    weights = pool.party.graph.edge_weight.tolist()
    for party in Random().cut(pool, 3, seed=0):
        for own in (party.graph.edge_weight, party.border.weight):
            places = [weights.index(weight) for weight in own.tolist()]
            assert places == sorted(places)


def test_parties_share_no_memory_with_the_pool_or_each_other():
    pools = make_pool(0, 30, weighted=True), make_pool(0, 30, sparse=True), make_pile(0, 30, weighted=True)
    for pool in pools:
        for partition in (Random(edges="coupled"), Overlap(edges="coupled")):
            for party in partition.cut(pool, 3, seed=0):
                graph, border = party.graph, party.border
                x = [graph.x.values(), graph.x.col_indices()] if rows.is_sparse(graph.x) else [graph.x]
                outside = [] if border is None else [border.inner, border.outer, border.owner]
                for tensor in (*x, graph.edge_index, graph.y, party.train, *outside):
                    assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


class Passes(TorchDispatchMode):
    """Counts operations that read a tensor with at least so many rows or columns."""

    def __init__(self, length):
        super().__init__()
        self.length, self.count = length, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        read = args[1:] if function.name() == "aten::index.Tensor" else args  # what is indexed is not read as a whole
        longest = max(
            (max(each.shape, default=0) for each in tree_leaves(read) if isinstance(each, torch.Tensor)), default=0
        )
        self.count += longest >= self.length and not function.is_view
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("sharing", [False, True])
@pytest.mark.slow
def test_a_thousand_parties_take_no_thousand_passes_over_the_edges(sharing):
    pool, parties = make_pool(0, 100_000), 1000
    edge_index, owner = pool.party.graph.edge_index, torch.arange(100_000) % parties
    members = [torch.nonzero(owner == at).flatten() for at in range(parties)]
    members = [torch.cat([held, members[at - 1]]) for at, held in enumerate(members)] if sharing else members
    with Passes(edge_index.size(1)) as passes:
        cut_into_parties(pool.party, members, [str(at) for at in range(parties)], coupled=True)
    assert 0 < passes.count < parties / 10


def test_typed_edges_leave_one_party_and_arrive_at_another():
    draw = torch.Generator().manual_seed(0)
    graph = HeteroData()
    graph["person"].x, graph["shop"].x = torch.randn(20, 2, generator=draw), torch.randn(6, 1, generator=draw)
    graph["person"].y = torch.arange(20) % 2
    for source, target, ends in (("person", "person", (20, 20)), ("person", "shop", (20, 6))):
        pairs = torch.stack([torch.randint(end, (40,), generator=draw) for end in ends])
        graph[source, "to", target].edge_index = pairs
        graph[source, "to", target].edge_attr = torch.randn(40, 1, generator=draw)
    whole = Party.of_graph("whole", graph, ids=torch.randperm(26, generator=draw) + 9)
    members = [torch.arange(start, 26, 4) for start in range(3)]  # every fourth node has no party
    parties = cut_into_parties(whole, members, ["a", "b", "c"], coupled=True)
    leaves, arrives = [], []
    for party in parties:
        border, inner = party.border, party.ids[party.border.inner]
        for found, chosen, ends in (
            (leaves, border.leaving, (inner, border.outer)),
            (arrives, ~border.leaving, (border.outer, inner)),
        ):
            columns = [*ends, border.edge_type, border.edge_attr.sum(1)]
            found += list(zip(*(each[chosen].tolist() for each in columns), strict=True))
        held = dict(enumerate(border.owners))
        by_name = {other.name: other for other in parties}
        assert all(
            int(number) in by_name[held[int(at)]].ids for number, at in zip(border.outer, border.owner, strict=True)
        )
    assert sorted(leaves) == sorted(arrives)
    assert len(leaves) > 10
