"""Patterns of laundering are the graphs of their names, and money moves forward in time along them."""

import networkx as nx
import numpy as np
import pytest

from isthmus.data.datasets import laundering
from isthmus.data.datasets.generated import WeightedSampler
from isthmus.data.datasets.laundering import DAY, PATTERNS, Town


@pytest.fixture(scope="module")
def town():
    return Town(4, 200, 60 * DAY, 0.4, np.random.default_rng(0))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_later_steps_pay_out_what_earlier_ones_paid_in(town, pattern):
    found = 0
    for _ in range(30):
        part = laundering._one_pattern(town, PATTERNS.index(pattern), WeightedSampler(np.sqrt(town.activity)), 0.5)
        if pattern in ("fan_in", "fan_out", "bipartite") or not part.time.size:
            continue
        for account in np.union1d(part.sender, part.receiver):
            paid_in = part.time[part.receiver == account]
            paid_out = part.time[part.sender == account]
            if pattern != "cycle" and paid_in.size and paid_out.size:
                assert paid_out.min() > paid_in.min()
                found += 1
        if pattern == "cycle":
            assert (np.diff(part.time) > 0).all()
            found += 1
    assert found > 20 or pattern in ("fan_in", "fan_out", "bipartite")


def test_legs_are_the_graphs_of_their_names():
    draw = np.random.default_rng(0)
    for size in (3, 7):
        graphs = {name: nx.DiGraph([leg[:2] for leg in laundering._legs(name, size, draw)]) for name in PATTERNS}
        assert graphs["fan_in"].in_degree(0) == graphs["fan_out"].out_degree(0) == size
        assert [len(cycle) for cycle in nx.simple_cycles(graphs["cycle"])] == [size] == [len(graphs["cycle"])]
        assert len(list(nx.all_simple_paths(graphs["scatter_gather"], 0, 1))) == size
        assert nx.is_bipartite(graphs["bipartite"])
        assert nx.dag_longest_path_length(graphs["bipartite"]) == 1
        assert nx.dag_longest_path_length(graphs["stack"]) == 2


def test_ordinary_payees_are_at_other_banks_as_asked_for(town):
    payer = np.repeat(town.person, 50)
    for business in (False, True):
        payee = town.partners(payer, np.full(payer.size, business))
        assert (np.isin(payee, town.business) == business).all()
        elsewhere = town.accounts.bank[payee] != town.accounts.bank[payer]
        assert 0.2 < elsewhere.mean() < 0.4
