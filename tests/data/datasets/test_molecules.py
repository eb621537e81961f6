import networkx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.data.datasets.molecules import Molecules
from isthmus.data.datasets.planting import MOTIFS
from isthmus.data.partition.given import Given
from isthmus.data.pool import DataSet
from isthmus.errors import IsthmusError


def tensors(pool):
    graph = pool.party.graph
    return [graph.x, graph.edge_index, graph.y.nan_to_num(nan=-1.0), graph.batch, *pool.holders]


def molecule(graph, at):
    """One molecule as a network whose nodes have kinds."""
    nodes = torch.nonzero(graph.batch == at).flatten()
    found = networkx.Graph()
    found.add_nodes_from((int(node), {"kind": int(graph.x[node].argmax())}) for node in nodes)
    found.add_edges_from(graph.edge_index[:, graph.batch[graph.edge_index[0]] == at].t().tolist())
    return found


def test_same_seed_same_data_whatever_else_was_drawn():
    data = Molecules(graphs=60, overlap=0.3)
    torch.manual_seed(1)
    first = data.load(5)
    torch.manual_seed(2)
    assert all(torch.equal(*each) for each in zip(tensors(first), tensors(data.load(5)), strict=True))
    assert not torch.equal(first.party.graph.x[:50], data.load(6).party.graph.x[:50])


def test_an_effect_is_there_where_its_group_of_atoms_is():
    pool = Molecules(graphs=120, tasks=3, missing=0.0, noise=0.0, changed=0.0, kinds=30).load(0)
    graph = pool.party.graph
    have = graph.y.bool()
    assert not graph.y.isnan().any()
    # what all molecules with an effect, and with no other one, end with is that effect's group
    alone = [int(torch.nonzero(have[:, task] & (have.sum(1) == 1))[0]) for task in range(3)]
    groups = []
    for task, at in enumerate(alone):
        last = torch.nonzero(graph.batch == at).flatten()[-6:].tolist()
        groups.append(molecule(graph, at).subgraph(last))
        assert networkx.is_isomorphic(groups[-1], networkx.Graph(MOTIFS[task](6)))
    for at in range(120):
        whole = molecule(graph, at)
        for task, group in enumerate(groups):
            match = networkx.algorithms.isomorphism.GraphMatcher(whole, group, lambda a, b: a["kind"] == b["kind"])
            assert match.subgraph_is_isomorphic() == bool(have[at, task])


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("missing", [0.0, 0.5, 0.65])
def test_the_shares_asked_for(skew, missing):
    y = Molecules(graphs=8000, tasks=5, missing=missing, skew=skew, prevalence=0.4, noise=0.1).load(0).party.graph.y
    assert float(y.isnan().float().mean()) == pytest.approx(missing, abs=0.03)
    known = y[~y.isnan()]
    assert ((known == 0) | (known == 1)).all()
    assert float(known.mean()) == pytest.approx(0.4 * 0.9 + 0.6 * 0.1, abs=0.02)


def test_skew_makes_laboratories_differ_in_scaffolds_and_in_what_they_measured():
    def spread(skew):
        pool = Molecules(graphs=2000, skew=skew).load(0)
        graph = pool.party.graph
        kinds, measured = [], []
        for held in pool.holders:
            mask = torch.zeros(2000, dtype=torch.bool)
            mask[held] = True
            kinds.append(graph.x[mask[graph.batch]].mean(0))
            measured.append((~graph.y[held].isnan()).float().mean(0))
        return float(torch.stack(kinds).std(0).mean()), float(torch.stack(measured).std(0).mean())

    even, uneven = spread(0.0), spread(0.8)
    assert even[0] < 0.01 < 0.02 < uneven[0]
    assert even[1] < 0.04 < 0.3 < uneven[1]


def test_every_effect_is_measured_somewhere_and_every_laboratory_measures_one():
    for parties, tasks, missing in ((4, 4, 0.5), (2, 6, 0.5), (7, 3, 0.6), (3, 3, 0.6)):
        data = Molecules(parties=parties, tasks=tasks, missing=missing, skew=1.0)
        shares = data._missing(np.random.default_rng(0))
        assert (shares.min(0) < 0.5).all()
        assert (shares.min(1) < 0.5).all()
        np.testing.assert_allclose(shares.mean(), missing)


@pytest.mark.parametrize("overlap", [0.0, 0.3, 1.0])
def test_the_share_asked_for_has_a_second_laboratory_with_the_same_labels(overlap):
    pool = Molecules(overlap=overlap).load(0)
    count = torch.bincount(torch.cat(pool.holders), minlength=600)
    assert int((count == 2).sum()) == round(overlap * 600)
    for party, held in zip(Given().cut(pool, 4, seed=0), pool.holders, strict=True):
        torch.testing.assert_close(party.graph.y, pool.party.graph.y[held], equal_nan=True)
        assert torch.equal(party.train, pool.party.train[held])


def test_splits_have_their_shares_and_only_molecules_with_a_label():
    pool = Molecules(graphs=3000, missing=0.0).load(0)
    for split, share in (("train", 0.3), ("val", 0.2), ("test", 0.5)):
        for held in pool.holders:
            assert float(getattr(pool.party, split)[held].float().mean()) == pytest.approx(share, abs=0.01)
    party = Molecules(missing=0.9).load(0).party
    empty = party.graph.y.isnan().all(1)
    assert empty.any()
    assert not ((party.train | party.val | party.test) & empty).any()


@settings(max_examples=25)
@given(
    parties=st.integers(1, 4),
    graphs=st.integers(4, 30),
    tasks=st.integers(1, 7),
    overlap=st.floats(0, 1),
    missing=st.floats(0, 0.9),
    skew=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_cut_into_laboratories_no_molecule_is_lost(seed, **options):
    pool = Molecules(**options).load(seed)
    graph = pool.party.graph
    assert int(graph.batch.max()) + 1 == options["graphs"] == graph.y.size(0)
    parties = Given().cut(pool, options["parties"], seed)
    sizes = torch.bincount(graph.batch)
    for party, held in zip(parties, pool.holders, strict=True):
        assert torch.equal(torch.bincount(party.graph.batch), sizes[held])
    assert set(torch.cat(pool.holders).tolist()) == set(range(options["graphs"]))


def test_too_few_molecules_are_refused():
    with pytest.raises(IsthmusError, match="'molecules': 3 graphs are too few for 4 parties: ask for more"):
        Molecules(graphs=3).load(0)


def test_molecules_are_known_by_name_and_documented():
    assert DataSet.named("molecules") is Molecules
    assert all(option["help"] for option in Molecules.describe()["options"])
