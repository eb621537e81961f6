from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.data import Batch, Data

from helpers import make_graph_parties, make_node_parties
from isthmus.data import rows
from isthmus.data.partition.cut import cut_into_parties
from isthmus.data.party import SPLITS, Block, Border, Cohort, Party, check_compatible, pool_parties
from isthmus.errors import IsthmusError

FEATURES = 3
NAN = float("nan")


def make_graph(seed, nodes, *, sparse=False, weighted=False, labels=None):
    """A random graph; `labels` is the number of label rows, one per node unless said otherwise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(nodes, FEATURES, generator=generator)
    edges = torch.randint(nodes, (2, 2 * nodes), generator=generator)
    y = torch.randint(3, (labels or nodes,), generator=generator)
    graph = Data(x=x.to_sparse_csr() if sparse else x, edge_index=edges, y=y)
    if weighted:
        graph.edge_weight = torch.rand(edges.size(1), generator=generator)
    draw = torch.rand(nodes, generator=generator)
    graph.train_mask, graph.val_mask, graph.test_mask = draw < 0.3, (draw >= 0.3) & (draw < 0.6), draw >= 0.6
    return graph


@st.composite
def node_cohorts(draw):
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    sparse, seed = draw(st.booleans()), draw(st.integers(0, 2**16))
    weighted = [draw(st.booleans()) for _ in sizes]
    return Cohort(
        tuple(
            Party.of_graph(f"p{at}", make_graph(seed + at, size, sparse=sparse, weighted=weighted[at]))
            for at, size in enumerate(sizes)
        )
    )


@st.composite
def graph_cohorts(draw):
    piles = draw(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=4))
    weighted, seed = draw(st.booleans()), draw(st.integers(0, 2**16))
    parties = []
    for at, sizes in enumerate(piles):
        graphs = [
            make_graph(seed + 10 * at + k, size, weighted=weighted, labels=1).subgraph(torch.arange(size))
            for k, size in enumerate(sizes)
        ]
        parties.append(Party.of_graphs(f"p{at}", graphs, train=torch.tensor([0])))
    return Cohort(tuple(parties))


def cohorts():
    return st.one_of(node_cohorts(), graph_cohorts())


def assert_same_block(left, right):
    assert (left.sizes, left.graphs) == (right.sizes, right.graphs)
    assert torch.equal(rows.to_dense(left.x), rows.to_dense(right.x))
    assert rows.is_sparse(left.x) == rows.is_sparse(right.x)
    assert torch.equal(left.edge_index, right.edge_index)
    for key in ("edge_weight", "batch"):
        first, second = getattr(left, key), getattr(right, key)
        assert (first is None) == (second is None), key
        assert first is None or torch.equal(first, second), key


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


def test_of_graph_keeps_what_is_needed_and_nothing_else():
    graph = make_graph(0, 4, weighted=True)
    graph.account_number = torch.arange(4)
    del graph.val_mask
    party = Party.of_graph("a", graph)
    assert "account_number" not in party.graph
    assert torch.equal(party.graph.edge_weight, graph.edge_weight)
    assert torch.equal(party.train, graph.train_mask)
    assert not party.val.any()
    assert (party.nodes, party.edges, party.items, party.features) == (4, 8, 4, FEATURES)


def test_of_graphs_takes_masks_or_positions():
    graphs = [make_graph(at, 2, labels=1) for at in range(3)]
    party = Party.of_graphs("a", graphs, train=torch.tensor([0, 2]), test=torch.tensor([False, True, False]))
    assert party.train.tolist() == [True, False, True]
    assert party.test.tolist() == [False, True, False]
    assert (party.items, party.nodes) == (3, 6)


@pytest.mark.parametrize("name", ["", "..", "../bank", "a/b", "a\\b"])
def test_a_name_that_is_no_file_name_is_refused(name):
    with pytest.raises(IsthmusError, match=r"a party's name may have letters, .* but no '/'"):
        Party.of_graph(name, make_graph(0, 4))


def test_a_party_that_does_not_fit_together_is_refused():
    with pytest.raises(IsthmusError, match="party 'a' has no graphs"):
        Party.of_graphs("a", [])
    empty = Data(x=torch.empty(0, 2), edge_index=torch.empty(2, 0, dtype=torch.long), y=torch.empty(0))
    with pytest.raises(IsthmusError, match="party 'a' has no nodes"):
        Party.of_graph("a", empty)
    graph = make_graph(0, 4)
    graph.train_mask = torch.tensor([True])
    with pytest.raises(IsthmusError, match="party 'a': mask 'train' has shape"):
        Party.of_graph("a", graph)
    with pytest.raises(IsthmusError, match="one label row for each of its 4 nodes"):
        Party.of_graph("a", make_graph(0, 4, labels=3))


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


def two_banks():
    """Bank a holds nodes 10 and 20, bank b nodes 20 and 30; each knows of one transfer from the other's own node."""
    left = Data(x=torch.tensor([[1.0], [2.0]]), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([0, 1]))
    right = Data(x=torch.tensor([[2.0], [3.0]]), edge_index=torch.tensor([[0], [0]]), y=torch.tensor([1, 2]))
    left.val_mask, right.train_mask = torch.tensor([True, True]), torch.tensor([True, False])
    into_a = Border(torch.tensor([0]), torch.tensor([30]), torch.tensor([0]), ("b",))
    into_b = Border(torch.tensor([1]), torch.tensor([10]), torch.tensor([0]), ("a",))
    return (
        Party.of_graph("a", left, ids=torch.tensor([10, 20]), border=into_a),
        Party.of_graph("b", right, ids=torch.tensor([20, 30]), border=into_b),
    )


def test_pool_joins_shared_nodes_and_border_edges():
    whole = pool_parties(two_banks())
    assert whole.ids.tolist() == [10, 20, 30]
    assert whole.graph.x.flatten().tolist() == [1, 2, 3]
    assert whole.graph.y.tolist() == [0, 1, 2]
    assert set(zip(*whole.graph.edge_index.tolist(), strict=True)) == {(0, 1), (1, 1), (2, 0), (0, 2)}
    assert whole.train.tolist() == [False, True, False]
    assert whole.val.tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("labels", "pooled"),
    [
        ([[-1, 1], [0, -1]], [-1, 0, 1]),
        ([[NAN, 1.0], [0.5, 2.0]], [2.0, 0.5, 1.0]),
        ([[[NAN, 1.0], [1.0, 0.0]], [[0.5, 2.0], [NAN, 3.0]]], [[NAN, 3.0], [0.5, 1.0], [1.0, 0.0]]),
    ],
    ids=["classes", "a value", "two tasks"],
)
def test_a_pooled_node_has_the_first_label_that_a_holder_knows(labels, pooled):
    """The first party holds nodes 20 and 30, the second 20 and 10; it may know a label of 20 that the first lacks."""
    graphs = [Data(x=torch.eye(2), edge_index=torch.tensor([[0], [1]]), y=torch.tensor(y)) for y in labels]
    ids = [torch.tensor([20, 30]), torch.tensor([20, 10])]
    parties = [Party.of_graph(name, graph, ids=own) for name, graph, own in zip("ab", graphs, ids, strict=True)]
    assert torch.equal(pool_parties(parties).graph.y.nan_to_num(-9), torch.tensor(pooled).nan_to_num(-9))


@pytest.mark.parametrize("sparse", [False, True])
def test_a_pooled_node_has_the_features_of_the_holder_that_knows_most(sparse):
    """Node 20 is known best to the second party, node 40 equally well to both, and the first one is taken."""
    columns = [[[1.0, 0.0], [0.0, 2.0], [4.0, 0.0]], [[5.0, 6.0], [7.0, 0.0], [0.0, 8.0]]]
    xs = [torch.tensor(each).to_sparse_csr() if sparse else torch.tensor(each) for each in columns]
    graphs = [Data(x=x, edge_index=torch.zeros(2, 0, dtype=torch.long), y=torch.tensor([0, 1, 1])) for x in xs]
    ids = [torch.tensor([10, 20, 40]), torch.tensor([20, 30, 40])]
    parties = [Party.of_graph(name, graph, ids=own) for name, graph, own in zip("ab", graphs, ids, strict=True)]
    x = pool_parties(parties).graph.x
    assert (x.to_dense() if sparse else x).tolist() == [[1.0, 0.0], [5.0, 6.0], [7.0, 0.0], [4.0, 0.0]]


def test_pool_leaves_out_border_edges_from_parties_that_are_not_there():
    assert pool_parties(two_banks()[:1]).edges == 1


def test_pool_without_ids_puts_graphs_side_by_side():
    parties = [Party.of_graph(name, make_graph(0, 3)) for name in "ab"]
    whole = pool_parties(parties, name="both")
    assert (whole.name, whole.nodes, whole.edges) == ("both", 6, 12)


@given(graph_cohorts())
def test_pool_of_piles_is_one_pile(cohort):
    whole = pool_parties(cohort.parties)
    assert (whole.level, whole.items, whole.nodes) == ("graph", sum(cohort.items), cohort.block.nodes)
    assert_same_block(Cohort((whole,)).block.for_party(0), Cohort((whole,)).block)
    assert torch.equal(whole.graph.batch, cohort.block.batch)


@pytest.mark.parametrize(
    ("train", "text"),
    [
        (torch.tensor([1, 0, 1, 0]), "must be a mask"),
        (torch.tensor([0.0, 1.0]), "must be a mask"),
        (torch.tensor([4]), "outside"),
    ],
)
def test_a_split_that_is_no_mask_and_no_positions_is_refused(train: torch.Tensor, text: str) -> None:
    graphs = [Data(x=torch.eye(2), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([0])) for _ in range(4)]
    with pytest.raises(IsthmusError, match=text):
        Party.of_graphs("a", graphs, train=train)


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    weighted=st.booleans(),
    tasks=st.integers(0, 2),
    seed=st.integers(0, 2**16),
)
def test_of_batch_gives_what_of_graphs_gives(sizes, weighted, tasks, seed):
    graphs = [make_graph(seed + at, size, weighted=weighted, labels=1) for at, size in enumerate(sizes)]
    if tasks:
        for at, graph in enumerate(graphs):
            graph.y = torch.full((1, tasks), float("nan") if at == 0 else 1.0)
    splits = {"train": torch.tensor([0]), "test": torch.arange(len(sizes)) > 0}
    one, other = Party.of_graphs("a", graphs, **splits), Party.of_batch("a", Batch.from_data_list(graphs), **splits)
    for key in ("x", "edge_index", "y", "batch", *(["edge_weight"] if weighted else [])):
        torch.testing.assert_close(one.graph[key], other.graph[key], equal_nan=True, rtol=0, atol=0)
    assert all(torch.equal(getattr(one, split), getattr(other, split)) for split in SPLITS)
    assert (one.items, one.nodes, one.level) == (other.items, other.nodes, other.level)
    assert torch.equal(pool_parties([other]).graph.edge_index, one.graph.edge_index)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"batch": None}, "party 'a': batch is missing"),
        ({"batch": torch.tensor([0, 0, 1])}, "batch must be 4 whole numbers"),
        ({"batch": torch.tensor([0.0, 0, 1, 1])}, "batch must be 4 whole numbers"),
        ({"batch": torch.tensor([0, 1, 0, 1])}, r"batch must ascend within 0 \.\. 1"),
        ({"batch": torch.tensor([0, 0, 1, 2])}, r"batch must ascend within 0 \.\. 1"),
        ({"batch": torch.tensor([-1, 0, 1, 1])}, r"batch must ascend within 0 \.\. 1"),
        ({"edge_index": torch.tensor([[0, 2], [1, 1]])}, "an edge joins two graphs"),
        ({"edge_index": torch.tensor([[0, 4], [1, 1]])}, r"edge 1 starts at node 4, but its nodes are 0 \.\. 3"),
        ({"y": torch.empty(0, dtype=torch.long)}, "party 'a' has no graphs"),
        ({"y": torch.tensor(1)}, "party 'a' has no graphs"),
        ({"y": torch.tensor([-1, 0])}, "item 0 in 'train' has label -1"),
        ({"x": torch.full((4, 1), float("nan"))}, "4 NaN or infinite values"),
        ({"edge_weight": torch.ones(3)}, "edge_weight must be 1 finite numbers"),
    ],
)
def test_a_batch_that_does_not_fit_together_is_refused(changes, text):
    fields = {
        "x": torch.ones(4, 1),
        "edge_index": torch.tensor([[0], [1]]),
        "y": torch.tensor([0, 1]),
        "batch": torch.tensor([0, 0, 1, 1]),
    }
    graph = Data(**{key: value for key, value in (fields | changes).items() if value is not None})
    with pytest.raises(IsthmusError, match=text) as caught:
        Party.of_batch("a", graph, train=torch.tensor([0]))
    assert "\n" not in str(caught.value)


def test_an_edge_from_one_graph_to_another_is_refused():
    graphs = [make_graph(at, 3, labels=1) for at in range(2)]
    graphs[0].edge_index = torch.tensor([[0], [4]])
    with pytest.raises(IsthmusError, match="an edge joins two graphs"):
        Party.of_graphs("a", graphs)


@pytest.mark.parametrize("make", [make_node_parties, make_graph_parties])
def test_structural_columns_stay_known_when_parties_are_pooled_and_cut(make):
    columns = torch.tensor([0, 2])
    whole = pool_parties([replace(party, structural=columns) for party in make()])
    parts = cut_into_parties(whole, [torch.tensor([0, 1]), torch.tensor([2])], ["a", "b"], coupled=True)
    assert all(torch.equal(each.structural, columns) for each in (whole, *parts))


@pytest.mark.parametrize("columns", [[-1], [99], [1, 0], [0, 0], [True, False], [[0]]])
def test_structural_columns_are_positions_of_features(columns):
    with pytest.raises(IsthmusError, match="structural must be ascending feature columns"):
        replace(make_graph_parties()[0], structural=torch.tensor(columns))


def test_parties_are_told_their_structural_columns():
    graph = Data(x=torch.eye(2), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([0]))
    one = Party.of_graphs("a", [graph], structural=torch.tensor([1]))
    graph.batch = torch.tensor([0, 0])
    two = Party.of_batch("b", graph, structural=torch.tensor([1]))
    graph.y = torch.tensor([0, 1])
    three = Party.of_graph("c", graph, structural=torch.tensor([1]))
    assert [each.structural.tolist() for each in (one, two, three)] == [[1], [1], [1]]


def test_a_party_prints_as_a_line():
    graph = Data(x=torch.zeros(3, 2), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([0, 1, 0]))
    graph.train_mask = torch.tensor([True, True, False])
    graph.val_mask, graph.test_mask = torch.zeros(3, dtype=torch.bool), torch.tensor([False, False, True])
    due = "Party('north': 3 nodes, 2 edges, 2 features; of 3 nodes 2 train, 0 val, 1 test)"
    assert repr(Party.of_graph("north", graph)) == due
