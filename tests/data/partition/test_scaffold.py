"""Every scaffold is with one party; molecules without rings even out the sizes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from isthmus.data.datasets.motifs import Motifs
from isthmus.data.partition import Partition
from isthmus.data.partition.scaffold import Scaffold
from isthmus.data.party import Party
from isthmus.data.pool import Pool
from isthmus.data.smiles import read_molecules, scaffolds_of
from isthmus.errors import IsthmusError

pytest.importorskip("rdkit", reason="rdkit is not installed: pip install 'isthmus[molecules]'")

RINGS = ["c1ccccc1", "C1CC1", "c1ccncc1", "C1CCCCC1", "c1ccc2ccccc2c1", "c1ccoc1"]


def molecules(*counts, chains=0):
    """A molecule for each count: so many of the first ring, the second, ..., then chains."""
    texts = [ring + "C" * (at + 1) for ring, count in zip(RINGS, counts, strict=False) for at in range(count)]
    texts += ["C" * (at + 1) for at in range(chains)]
    found = read_molecules(texts)
    y = torch.arange(float(found.graphs))[:, None]
    graph = Data(x=found.x, edge_index=found.edge_index, batch=found.batch, y=y)
    graph.num_nodes, graph.num_graphs = found.x.size(0), found.graphs
    party = Party("pooled", graph, "graph", *torch.zeros(3, found.graphs, dtype=torch.bool))
    return Pool(party, 1, smiles=tuple(texts))


@given(
    counts=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    chains=st.integers(0, 8),
    parties=st.integers(1, 6),
    seed=st.integers(0, 3),
)
@settings(max_examples=40)
def test_no_scaffold_is_with_two_parties_and_nothing_is_lost(counts, chains, parties, seed):
    pool = molecules(*counts, chains=chains)
    if len(counts) + chains < parties:
        with pytest.raises(IsthmusError, match="are too few for"):
            Scaffold().cut(pool, parties, seed)
        return
    members = Scaffold().members(pool, parties, seed)
    assert torch.equal(torch.cat(members).sort().values, torch.arange(pool.party.items))
    assert all(held.numel() for held in members)
    of = scaffolds_of(pool.smiles)
    for number in range(len(counts)):
        assert sum(bool((of[held] == number).any()) for held in members) == 1


def test_large_scaffolds_come_first_and_chains_even_out():
    cut = Scaffold().cut(molecules(6, 4, 1, chains=5), 3, 0)
    assert sorted(party.items for party in cut) == [5, 5, 6]
    assert [party.items for party in Scaffold().cut(molecules(5, 4, 3, 2), 2, 0)] == [7, 7]


def test_the_seed_breaks_ties_only():
    def owners(pool, seed):
        return Scaffold().assign(pool, 2, seed).tolist()

    apart, alike = molecules(6, 5, 3, 1), molecules(2, 2, 2, 2)
    assert owners(apart, 0) == owners(apart, 1) == owners(apart, 2)
    assert owners(alike, 0) == owners(alike, 0)
    assert len({tuple(owners(alike, seed)) for seed in range(8)}) > 1


def test_molecules_without_rings_may_be_all_there_is():
    assert sorted(party.items for party in Scaffold().cut(molecules(chains=7), 3, 0)) == [2, 2, 3]


def test_data_without_smiles_are_refused():
    with pytest.raises(IsthmusError, match="partition 'scaffold': these data have no SMILES"):
        Scaffold().cut(Motifs(graphs=12).load(0), 2, 0)


def test_too_few_scaffolds_are_refused():
    with pytest.raises(IsthmusError, match="partition 'scaffold': 2 scaffolds are too few for 3 parties"):
        Scaffold().cut(molecules(4, 2), 3, 0)


def test_it_is_found_by_name():
    assert Partition.named("scaffold") is Scaffold
