import sys
import time
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from isthmus.data import rows
from isthmus.data.partition import Partition
from isthmus.data.partition.given import Given
from isthmus.data.partition.labels import Iid, LabelDirichlet, Random
from isthmus.data.partition.structure import Louvain
from isthmus.data.party import SPLITS, Party
from isthmus.data.party import pool as put_together
from isthmus.data.pool import Pool
from isthmus.data.datasets.banks import Banks
from isthmus.errors import IsthmusError

BY_DRAW = [Random(), Iid(), LabelDirichlet(), LabelDirichlet(beta=0.01)]


def make_pool(seed, nodes, *, classes=3, sparse=False, weighted=False, tasks=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(nodes, 4, generator=generator)
    pairs = torch.randint(nodes * nodes, (3 * nodes,), generator=generator).unique()
    y = (
        torch.rand(nodes, tasks, generator=generator)
        if tasks
        else torch.randint(classes, (nodes,), generator=generator)
    )
    graph = Data(x=x.to_sparse_csr() if sparse else x, edge_index=torch.stack([pairs // nodes, pairs % nodes]), y=y)
    if weighted:
        graph.edge_weight = torch.rand(pairs.numel(), generator=generator)
    draw = torch.rand(nodes, generator=generator)
    graph.train_mask, graph.val_mask, graph.test_mask = draw < 0.3, (draw >= 0.3) & (draw < 0.6), draw >= 0.7
    return Pool(Party.of_graph("pooled", graph, ids=torch.arange(nodes)), classes)


def make_pile(seed, graphs, *, classes=3, weighted=False):
    generator = torch.Generator().manual_seed(seed)
    made = []
    for at in range(graphs):
        nodes = int(torch.randint(1, 5, (1,), generator=generator))
        edges = torch.randint(nodes, (2, nodes), generator=generator)
        label = torch.randint(classes, (1,), generator=generator)
        made.append(Data(x=torch.full((nodes, 2), float(at)), edge_index=edges, y=label))
        if weighted:
            made[-1].edge_weight = torch.rand(nodes, generator=generator)
    third = torch.arange(graphs) % 3
    return Pool(Party.of_graphs("pooled", made, train=third == 0, val=third == 1, test=third == 2), classes)


def with_owner(pool, parties, seed):
    items = pool.party.items
    owner = torch.randint(parties, (items,), generator=torch.Generator().manual_seed(seed))
    owner[torch.randperm(items, generator=torch.Generator().manual_seed(seed))[:parties]] = torch.arange(parties)
    return replace(pool, owner=owner)


@st.composite
def cuts(draw, level):
    """A pool, a partition that suits it, a number of parties and a seed."""
    seed, items = draw(st.integers(0, 2**16)), draw(st.integers(1, 14))
    parties, weighted = draw(st.integers(1, items)), draw(st.booleans())
    if level == "node":
        pool = make_pool(seed, items, sparse=draw(st.booleans()), weighted=weighted)
        partitions = [*BY_DRAW, Louvain(), Given()]
    else:
        pool, partitions = make_pile(seed, items, weighted=weighted), [*BY_DRAW, Given()]
    return with_owner(pool, parties, seed), draw(st.sampled_from(partitions)), parties, seed


def edges_of(party):
    """The edges, with their weights where there are any, as a set."""
    weight = party.graph.get("edge_weight")
    columns = [*party.graph.edge_index.tolist(), *([] if weight is None else [weight.tolist()])]
    return set(zip(*columns, strict=True))


@given(cuts("node"))
def test_a_cut_loses_and_duplicates_no_node(cut):
    pool, partition, count, seed = cut
    parties = partition.cut(pool, count, seed)
    assert len(parties) == count
    assert torch.equal(torch.cat([party.ids for party in parties]).sort().values, pool.party.ids)


@given(cuts("node"))
def test_coupled_parties_pooled_again_are_the_graph(cut):
    pool, partition, count, seed = cut
    again, whole = put_together(partition.cut(pool, count, seed)), pool.party
    assert torch.equal(again.ids, whole.ids)
    assert torch.equal(rows.dense(again.graph.x), rows.dense(whole.graph.x))
    assert rows.is_sparse(again.graph.x) == rows.is_sparse(whole.graph.x)
    assert torch.equal(again.graph.y, whole.graph.y)
    assert edges_of(again) == edges_of(whole)
    for split in SPLITS:
        assert torch.equal(getattr(again, split), getattr(whole, split))


@given(cuts("node"))
def test_broken_parties_have_the_edges_within_them_and_no_border(cut):
    pool, partition, count, seed = cut
    parties = type(partition)(**{**partition.model_dump(), "edges": "broken"}).cut(pool, count, seed)
    assert all(party.border is None for party in parties)
    owner = torch.empty(pool.party.nodes, dtype=torch.long)
    for at, party in enumerate(parties):
        owner[party.ids] = at
    source, target = owner[pool.party.graph.edge_index]
    assert sum(party.edges for party in parties) == int((source == target).sum())
    assert edges_of(put_together(parties)) <= edges_of(pool.party)


@given(cuts("node"))
def test_a_border_names_the_owner_of_every_outer_node(cut):
    pool, partition, count, seed = cut
    parties = {party.name: party for party in partition.cut(pool, count, seed)}
    for name, party in parties.items():
        border = party.border
        assert name not in border.owners
        assert set(range(len(border.owners))) == set(border.owner.tolist())
        for outer, owner in zip(border.outer.tolist(), border.owner.tolist(), strict=True):
            assert outer in parties[border.owners[owner]].ids


@given(cuts("graph"))
def test_a_cut_loses_and_duplicates_no_graph(cut):
    pool, partition, count, seed = cut
    parties = partition.cut(pool, count, seed)
    assert len(parties) == count
    assert sorted(graphs_of(parties)) == sorted(graphs_of([pool.party]))


def graphs_of(parties):
    """Every graph with its features, edges, weights, label and splits; features tell the graphs apart."""
    for party in parties:
        graph, batch = party.graph, party.graph.batch
        assert batch.max() < party.items
        for at in range(party.items):
            nodes, edges = batch == at, batch[graph.edge_index[0]] == at
            first = int((batch < at).sum())
            weight = graph.get("edge_weight")
            yield (
                graph.x[nodes].tolist(),
                (graph.edge_index[:, edges] - first).tolist(),
                [] if weight is None else weight[edges].tolist(),
                int(graph.y[at]),
                [bool(getattr(party, split)[at]) for split in SPLITS],
            )


@pytest.mark.parametrize("partition", [*BY_DRAW, Louvain()], ids=lambda each: each.name)
def test_same_seed_same_parties_whatever_else_was_drawn(partition):
    pool = make_pool(0, 60)
    torch.manual_seed(1)
    first = [party.ids.tolist() for party in partition.cut(pool, 5, seed=3)]
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert [party.ids.tolist() for party in partition.cut(pool, 5, seed=3)] == first
    assert torch.equal(torch.get_rng_state(), before)
    if partition.name != "louvain":
        assert [party.ids.tolist() for party in partition.cut(pool, 5, seed=4)] != first


def test_parties_share_no_memory_with_the_pool():
    for pool in (make_pool(0, 12), make_pool(0, 12, sparse=True), make_pile(0, 12)):
        for party in Random().cut(pool, 3, seed=0):
            x = party.graph.x.values() if rows.is_sparse(party.graph.x) else party.graph.x
            for tensor in (x, party.graph.edge_index, party.graph.y, party.train):
                assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def test_names_have_equal_width():
    pool = make_pool(0, 20)
    assert [party.name for party in Random().cut(pool, 3, seed=0)] == ["party-0", "party-1", "party-2"]
    names = [party.name for party in Random().cut(pool, 11, seed=0)]
    assert (names[0], names[-1]) == ("party-00", "party-10")


def test_random_parties_are_of_equal_size():
    assert sorted(party.items for party in Random().cut(make_pool(0, 20), 3, seed=0)) == [6, 7, 7]


@pytest.mark.parametrize("make", [make_pool, make_pile])
def test_iid_parties_have_equal_sizes_and_class_shares(make):
    parties = Iid().cut(make(0, 120), 4, seed=0)
    counts = torch.stack([torch.bincount(party.graph.y, minlength=3) for party in parties])
    assert {party.items for party in parties} == {30}
    assert (counts.amax(0) - counts.amin(0) <= 1).all()


def test_small_beta_gives_few_classes_and_large_beta_the_same_mix():
    pool = make_pool(0, 600)

    def spread(beta):
        parties = LabelDirichlet(beta=beta).cut(pool, 4, seed=0)
        counts = torch.stack([torch.bincount(party.graph.y, minlength=3) for party in parties]).float()
        return float((counts / counts.sum(0)).std(0).mean())

    assert spread(1000.0) < 0.05 < 0.2 < spread(0.1)


def test_louvain_keeps_communities_whole_where_it_can():
    pool = ring_of_cliques(8, 6)
    parties = Louvain().cut(pool, 4, seed=0)
    assert [party.items for party in parties] == [12] * 4
    assert sum(party.edges for party in parties) >= pool.party.edges - 2 * 8
    assert Louvain().cut(pool, 48, seed=0)[0].items == 1


def test_louvain_splits_the_largest_community_into_neighbours():
    numbers = torch.randperm(32, generator=torch.Generator().manual_seed(0))
    path = torch.stack([numbers[:-1], numbers[1:]])
    graph = Data(x=torch.zeros(32, 1), edge_index=torch.cat([path, path.flip(0)], dim=1), y=torch.zeros(32).long())
    pool = Pool(Party.of_graph("pooled", graph), classes=1)
    parties = Louvain().cut(pool, 16, seed=0)
    assert sum(len(party.border) for party in parties) <= 2 * 17  # scattered halves would cut nearly all 62 edges


def ring_of_cliques(cliques, size):
    """Every clique is tied to the next by one edge; the nodes are numbered across the cliques."""
    inside = [
        (a * cliques + k, b * cliques + k) for k in range(cliques) for a in range(size) for b in range(size) if a != b
    ]
    ties = [(k, (k + 1) % cliques) for k in range(cliques)]
    edges = torch.tensor(inside + ties + [(b, a) for a, b in ties]).t()
    graph = Data(x=torch.zeros(cliques * size, 1), edge_index=edges, y=torch.zeros(cliques * size, dtype=torch.long))
    return Pool(Party.of_graph("pooled", graph, ids=torch.arange(cliques * size)), classes=1)


def test_given_hands_everyone_their_own():
    pool = replace(make_pool(0, 6), owner=torch.tensor([2, 0, 1, 0, 2, 2]))
    assert [party.ids.tolist() for party in Given().cut(pool, 3, seed=0)] == [[1, 3], [2], [0, 4, 5]]


def test_what_cannot_be_cut_is_refused_in_one_line():
    pool, pile = make_pool(0, 5), make_pile(0, 5)
    refusals = [
        (Random(), pool, 0, "partition 'random': cannot cut into 0 parties: ask for at least 1"),
        (Random(), pool, 6, "partition 'random': 5 nodes are too few for 6 parties: ask for fewer"),
        (Iid(), pile, 6, "partition 'iid': 5 graphs are too few for 6 parties: ask for fewer"),
        (Louvain(), pile, 2, "partition 'louvain': communities are in one graph"),
        (Given(), pool, 2, "partition 'given': these data have no owners"),
        (Given(), replace(pool, owner=torch.tensor([0, 1, 0, 1, 0])), 3, "belong to 2 parties, 3 were asked for"),
        (Given(), replace(pool, owner=torch.tensor([0, 2, 0, 2, 0])), 3, "party 1 would get no node"),
        (Iid(), make_pool(0, 5, tasks=2), 2, "partition 'iid': it needs one class for each item"),
        (LabelDirichlet(), make_pool(0, 5, tasks=2), 2, "needs one class for each item"),
    ]
    for partition, data, parties, reason in refusals:
        with pytest.raises(IsthmusError) as refusal:
            partition.cut(data, parties, seed=0)
        assert reason in str(refusal.value)
        assert "\n" not in str(refusal.value)


def test_random_cuts_items_with_labels_of_several_tasks():
    assert len(Random().cut(make_pool(0, 5, tasks=2), 2, seed=0)) == 2


def test_partitions_are_known_by_name():
    assert list(Partition.known()) == ["given", "iid", "label-dirichlet", "louvain", "metis", "random"]
    with pytest.raises(IsthmusError, match="unknown partition 'louvian': did you mean 'louvain'"):
        Partition.named("louvian")
    with pytest.raises(IsthmusError, match="option 'beta' is -1"):
        LabelDirichlet.read({"beta": -1}, "partition")


@settings(max_examples=5)
@given(st.integers(0, 100))
def test_the_dirichlet_draw_is_that_of_its_classes(seed):
    """One class only: its proportions are the parties' sizes, so they must sum to the whole and differ."""
    sizes = [party.items for party in LabelDirichlet().cut(make_pool(seed, 200, classes=1), 5, seed)]
    assert sum(sizes) == 200
    assert len(set(sizes)) > 1


def test_a_thousand_parties_take_no_thousand_passes_over_the_edges():
    pool, parties, passes = make_pool(0, 100_000), 1000, 20
    edge_index, owner = pool.party.graph.edge_index, torch.arange(100_000) % parties
    started = time.perf_counter()
    for at in range(passes):
        torch.nonzero((owner == at)[edge_index].all(0))
    one_pass = (time.perf_counter() - started) / passes
    started = time.perf_counter()
    Random().cut(pool, parties, seed=0)
    assert time.perf_counter() - started < parties * one_pass


def test_metis_gives_every_party_about_as_much_and_cuts_fewer_edges_than_chance() -> None:
    pytest.importorskip("pymetis", reason="the extra metis is not installed")
    pool_ = Banks().load(0)
    parties = Partition.named("metis")().cut(pool_, 5, 0)
    again = Partition.named("metis")().cut(pool_, 5, 0)
    chance = Partition.named("random")().cut(pool_, 5, 0)
    sizes = [party.nodes for party in parties]
    assert max(sizes) <= 1.2 * min(sizes)
    assert sum(party.edges for party in parties) > 1.5 * sum(party.edges for party in chance)
    assert all(torch.equal(one.ids, other.ids) for one, other in zip(parties, again, strict=True))


def test_without_pymetis_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(IsthmusError, match=r"pip install 'isthmus\[metis\]'"):
        Partition.named("metis")().cut(Banks().load(0), 3, 0)
