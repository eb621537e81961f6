"""Parties side by side hold what each holds alone."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.data.some_parties import FEATURES, assert_same_block, cohorts, graph_cohorts, make_graph
from torch.utils._python_dispatch import TorchDispatchMode

from isthmus.data import rows
from isthmus.data.cohort import Block, Cohort, check_compatible
from isthmus.data.party import SPLITS, Party
from isthmus.errors import IsthmusError


@given(cohorts())
def test_block_slices_are_each_party_s_own_tensors(cohort):
    node = item = edge = 0
    for at, party in enumerate(cohort.parties):
        nodes, items = slice(node, node + party.nodes), slice(item, item + party.items)
        edges = slice(edge, edge + party.edges)
        assert torch.equal(rows.to_dense(cohort.block.x)[nodes], rows.to_dense(party.graph.x))
        assert torch.equal(cohort.block.edge_index[:, edges] - node, party.graph.edge_index)
        assert torch.equal(cohort.y[items], party.graph.y)
        assert (cohort.party[items] == at).all()
        for split in SPLITS:
            assert torch.equal(cohort.masks[split][items], getattr(party, split))
            assert cohort.counts(split)[at] == getattr(party, split).sum()
        if cohort.level == "graph":
            assert torch.equal(cohort.block.batch[nodes] - item, party.graph.batch)
        node, item, edge = nodes.stop, items.stop, edges.stop
    assert (node, item, edge) == (cohort.block.nodes, cohort.y.size(0), cohort.block.edge_index.size(1))


class Allocated(TorchDispatchMode):
    """Counts the bytes of the memory that is new within the `with`."""

    def __init__(self):
        super().__init__()
        self.kept = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for each in found if isinstance(found, list | tuple) else [found]:
            if isinstance(each, torch.Tensor):
                self.kept[each.untyped_storage().data_ptr()] = each
        return found

    @property
    def bytes(self):
        return sum(each.untyped_storage().nbytes() for each in self.kept.values())


def test_blocks_are_put_together_with_one_copy_of_their_edges():
    blocks = [Block(torch.rand(50, 1), torch.randint(50, (2, 4000)), (50,)) for _ in range(3)]
    with Allocated() as allocated:
        whole = Block.concat(blocks)
    assert allocated.bytes == whole.edge_index.nbytes + whole.x.nbytes
    assert [int(part.min()) // 50 for part in whole.edge_index.split(4000, dim=1)] == [0, 1, 2]


@given(cohorts())
def test_alone_is_the_block_of_that_party(cohort):
    weighted = cohort.block.edge_weight is not None
    for at, party in enumerate(cohort.parties):
        own = Cohort((party,)).block
        alone = cohort.block.for_party(at)
        if weighted and own.edge_weight is None:  # beside weighted parties an unweighted edge weighs 1
            assert (alone.edge_weight == 1).all()
            alone = type(alone)(**{**vars(alone), "edge_weight": None})
        assert_same_block(alone, own)


@given(cohorts(), st.data())
def test_take_is_a_cohort_of_those_parties(cohort, data):
    positions = data.draw(st.lists(st.integers(0, len(cohort) - 1), min_size=1, unique=True))
    taken, built = cohort.take(positions), Cohort(tuple(cohort.parties[at] for at in positions))
    assert taken.names == built.names
    assert_same_block(taken.block, built.block)
    assert torch.equal(taken.y, built.y)
    assert torch.equal(taken.party, built.party)
    assert cohort.take(positions) is taken


@given(cohorts(), st.data())
def test_block_of_keeps_every_place_and_the_active_parties_rows(cohort, data):
    active = data.draw(st.lists(st.booleans(), min_size=len(cohort), max_size=len(cohort)))
    block = cohort.block_of(active)
    for at, on in enumerate(active):
        if on:
            assert_same_block(block.for_party(at), cohort.block.for_party(at))
        else:
            assert block.sizes[at] == 0
    assert block.nodes == block.x.size(0)


def test_take_of_all_is_the_cohort_itself():
    cohort = Cohort(tuple(Party.of_graph(name, make_graph(0, 3)) for name in "abc"))
    assert cohort.take([0, 1, 2]) is cohort
    assert cohort.take([1, 0, 2]).names == ("b", "a", "c")


def test_take_remembers_only_a_few():
    cohort = Cohort(tuple(Party.of_graph(f"p{at}", make_graph(at, 2)) for at in range(8)))
    for at in range(8):
        cohort.take([at])
    assert len(cohort._parts) <= 4


@given(graph_cohorts(), st.data())
def test_graphs_of_is_a_cohort_of_those_graphs(cohort, data):
    total = sum(cohort.items)
    chosen = sorted(data.draw(st.sets(st.integers(0, total - 1), min_size=1)))
    block = cohort.graphs_of(torch.tensor(chosen))
    counts = [sum(int(cohort.party[at]) == p for at in chosen) for p in range(len(cohort))]
    assert block.graphs == tuple(counts)
    assert sum(block.sizes) == block.x.size(0)
    for new, old in enumerate(chosen):
        first_old, first_new = (cohort.block.batch < old).sum(), (block.batch < new).sum()
        assert torch.equal(
            rows.to_dense(block.x)[block.batch == new], rows.to_dense(cohort.block.x)[cohort.block.batch == old]
        )
        was, now = (cohort.block.batch[cohort.block.edge_index[0]] == old), block.batch[block.edge_index[0]] == new
        assert torch.equal(block.edge_index[:, now] - first_new, cohort.block.edge_index[:, was] - first_old)
        if block.edge_weight is not None:
            assert torch.equal(block.edge_weight[now], cohort.block.edge_weight[was])


@given(graph_cohorts())
def test_graphs_of_all_is_the_block(cohort):
    block = cohort.graphs_of(torch.arange(sum(cohort.items)))
    assert (block.sizes, block.graphs) == (cohort.block.sizes, cohort.block.graphs)
    assert torch.equal(block.batch, cohort.block.batch)
    assert torch.equal(block.x, cohort.block.x)


def test_graphs_of_finds_edges_in_any_order():
    sorted_party = Party.of_graphs("a", [make_graph(at, 3, labels=1) for at in range(4)])
    shuffled = sorted_party.graph.clone()
    shuffled.edge_index = shuffled.edge_index[:, torch.randperm(24, generator=torch.Generator().manual_seed(0))]
    party = Party("a", shuffled, "graph", sorted_party.train, sorted_party.val, sorted_party.test)
    chosen = torch.tensor([1, 3])
    found, expected = (Cohort((each,)).graphs_of(chosen).edge_index.t().tolist() for each in (party, sorted_party))
    assert sorted(found) == sorted(expected)


def test_graphs_of_nothing_is_an_empty_block():
    cohort = Cohort(
        (Party.of_graphs("a", [make_graph(0, 3, labels=1)]), Party.of_graphs("b", [make_graph(1, 2, labels=1)]))
    )
    block = cohort.graphs_of(torch.tensor([], dtype=torch.long))
    assert (block.sizes, block.graphs, block.nodes) == ((0, 0), (0, 0), 0)


def test_graphs_of_needs_many_graphs():
    with pytest.raises(IsthmusError, match="have no batches of graphs"):
        Cohort((Party.of_graph("a", make_graph(0, 3)),)).graphs_of(torch.tensor([0]))


def test_parties_that_are_not_alike_are_refused():
    node, pile = Party.of_graph("a", make_graph(0, 3)), Party.of_graphs("b", [make_graph(0, 3, labels=1)])
    with pytest.raises(IsthmusError, match="no parties"):
        check_compatible([])
    with pytest.raises(IsthmusError, match="party 'b' holds graphs and party 'a' nodes"):
        check_compatible([node, pile])
    with pytest.raises(IsthmusError, match="two parties have the name 'a'"):
        check_compatible([node, node])
    wide = make_graph(0, 3)
    wide.x = torch.zeros(3, FEATURES + 1)
    with pytest.raises(IsthmusError, match="agree on one encoding"):
        check_compatible([node, Party.of_graph("b", wide)])
    tasks = make_graph(0, 3)
    tasks.y = torch.zeros(3, 2)
    with pytest.raises(IsthmusError, match="labels of different shapes"):
        check_compatible([node, Party.of_graph("b", tasks)])


def test_the_first_party_that_differs_is_named_with_what_differs():
    def party(name, columns=None, width=FEATURES, tasks=None):
        graph = make_graph(0, 3)
        graph.x = torch.zeros(3, width)
        graph.y = graph.y if tasks is None else torch.zeros(3, tasks)
        return Party.of_graph(name, graph, structural=columns)

    alike = [party(name, torch.tensor([0, 2])) for name in "abc"]
    check_compatible(alike)  # equal columns in tensors of their own
    check_compatible([replace(each, structural=alike[0].structural) for each in alike])
    for other, reason in (
        (party("d", torch.tensor([0, 2]), FEATURES + 1),
         f"party 'd' has {FEATURES + 1} features and party 'a' {FEATURES}: agree on one encoding"),
        (party("d", torch.tensor([0, 1])),
         "party 'd' and party 'a' differ in 'structural': give both the same columns that follow from the edges"),
        (party("d"),
         "party 'd' and party 'a' differ in 'structural': give both the same columns that follow from the edges"),
        (party("d", torch.tensor([0, 2]), tasks=2),
         "party 'd' and party 'a' have labels of different shapes: make them equal"),
        (replace(alike[0], name="b"), "two parties have the name 'b': rename one"),
    ):  # fmt: skip
        with pytest.raises(IsthmusError) as caught:
            check_compatible([*alike, other, party("e", width=1)] if other.name == "d" else [*alike, other])
        assert str(caught.value) == reason
