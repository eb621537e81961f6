"""Generated banks: tables and typed graphs agree, the knobs turn what they say, and no column gives the answer away."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from pyarrow import csv
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import average_precision_score

from isthmus.data.datasets import ledgers
from isthmus.data.datasets.folder import PartyFolders
from isthmus.data.datasets.laundering import DAY, PATTERNS
from isthmus.data.datasets.ledgers import Ledgers
from isthmus.data.folder.from_database import DatabaseSource, create_databases
from isthmus.data.history import histories
from isthmus.data.party import SPLITS
from isthmus.data.pooled import pool_parties
from isthmus.errors import IsthmusError
from party_folders import assert_same_parties

SMALL = {"parties": 3, "customers": 40, "transfers": 20, "days": 30, "laundering": 0.05}


@pytest.fixture(scope="module")
def pool():
    return Ledgers(**SMALL).load(seed=0)


def test_same_seed_same_banks(pool):
    assert_same_parties(Ledgers(**SMALL).load(0).parties, pool.parties)
    other = Ledgers(**SMALL).load(1).parties
    assert not torch.equal(other[0].graph.x[:20], pool.parties[0].graph.x[:20])


def test_a_transfer_between_banks_is_at_both_and_classified_by_the_senders(pool):
    town, transfers = Ledgers(**SMALL).draw(0)
    wanted = 3 * 40 * 20
    assert transfers.time.size == wanted
    payment = pool.parties[0].schema.node_types.index("payment")
    classified = torch.zeros(wanted, dtype=torch.long)
    held = torch.zeros(wanted, dtype=torch.long)
    for bank, party in enumerate(pool.parties):
        own = party.graph.node_type == payment
        ids, y = party.ids[own], party.graph.y[own]
        held[ids] += 1
        classified[ids[y >= 0]] += 1
        assert (town.accounts.bank[transfers.sender[ids[y >= 0]]] == bank).all()
        assert torch.equal(y[y >= 0], torch.from_numpy(transfers.pattern >= 0).long()[ids[y >= 0]])
        assert (party.graph.y[~own] == -1).all()
    crosses = town.accounts.bank[transfers.sender] != town.accounts.bank[transfers.receiver]
    assert classified.tolist() == [1] * wanted
    assert held.tolist() == (1 + crosses).tolist()


def test_the_pooled_graph_has_every_transfer_once_with_its_label(pool):
    _, transfers = Ledgers(**SMALL).draw(0)
    whole = pool.party
    labelled = whole.graph.y >= 0
    assert labelled.sum() == transfers.time.size
    assert torch.equal(whole.graph.y[labelled], torch.from_numpy(transfers.pattern >= 0).long())


def test_no_edge_into_a_transfer_comes_from_the_same_moment_or_a_later_one(pool):
    _, transfers = Ledgers(**SMALL).draw(0)
    time = torch.from_numpy(transfers.time)
    for party in pool.parties:
        payment = party.schema.node_types.index("payment")
        source, target = party.graph.edge_index
        between = party.graph.node_type[source] == payment
        assert between.sum() > 1000
        assert (party.graph.node_type[target[between]] == payment).all()
        assert (time[party.ids[source[between]]] < time[party.ids[target[between]]]).all()


def test_with_borders_each_bank_joins_transfers_by_its_own_accounts():
    options = {**SMALL, "borders": True}
    town, transfers = Ledgers(**options).draw(0)
    parties = Ledgers(**options).load(0).parties
    pooled = pool_parties(parties)
    payments = transfers.time.size
    ends = {"sender": transfers.sender, "receiver": transfers.receiver}
    due = sum(each.shape[1] for each in histories(transfers.time, ends, last=3).values())
    between = (pooled.ids[pooled.graph.edge_index] < payments).all(0)
    assert between.sum() == due
    assert sum(party.edges for party in parties) == pooled.edges, "an edge is at two banks"
    accounts = torch.from_numpy(town.accounts.bank)
    for bank, party in enumerate(parties):
        holder = accounts[party.border.outer - payments]
        names = torch.tensor([int(name.removeprefix("bank-")) for name in party.border.owners])
        assert torch.equal(holder, names[party.border.owner])
        assert not (holder == bank).any()
        assert len(party.border) > 100


def test_splits_are_by_date_and_follow_each_other(pool):
    _, transfers = Ledgers(**SMALL).draw(0)
    time = torch.from_numpy(transfers.time)
    for party in pool.parties:
        train, val, test = (time[party.ids[getattr(party, split)]] for split in SPLITS)
        assert train.max() < 0.6 * 30 * DAY <= val.min() <= val.max() < 0.75 * 30 * DAY <= test.min()
        assert len(train) + len(val) + len(test) == (party.graph.y >= 0).sum()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_each_pattern_can_be_asked_for_alone_and_has_its_form(pattern):
    weights = {name: float(name == pattern) for name in PATTERNS}
    _, transfers = Ledgers(**SMALL, **weights).draw(0)
    dirty = transfers.take(transfers.pattern >= 0)
    assert dirty.time.size == round(0.05 * 3 * 40 * 20)
    assert (dirty.pattern == PATTERNS.index(pattern)).all()
    payers, payees = np.bincount(dirty.sender), np.bincount(dirty.receiver)
    if pattern == "fan_in":
        assert payees.max() > 2 * payers.max()
    elif pattern == "fan_out":
        assert payers.max() > 2 * payees.max()
    else:
        passed_on = np.isin(dirty.sender, dirty.receiver).mean()
        assert passed_on > (0.2 if pattern == "bipartite" else 0.4)


@pytest.mark.parametrize("across", [0.0, 1.0])
def test_laundering_crosses_banks_as_asked_for(across):
    town, transfers = Ledgers(
        **SMALL, across=across, fan_in=1, fan_out=1, cycle=0, scatter_gather=0, bipartite=0, stack=0
    ).draw(0)
    crosses = town.accounts.bank[transfers.sender] != town.accounts.bank[transfers.receiver]
    assert crosses[transfers.pattern >= 0].mean() == across
    assert 0.25 < crosses[transfers.pattern < 0].mean() < 0.45


@pytest.mark.parametrize("rate", [0.0, 0.02])
def test_the_share_that_launders_is_the_one_asked_for(rate):
    _, transfers = Ledgers(**{**SMALL, "laundering": rate}).draw(0)
    assert (transfers.pattern >= 0).mean() == pytest.approx(rate, abs=1e-9)


def test_few_accounts_have_most_transfers_and_none_before_it_was_opened():
    town, transfers = Ledgers(**SMALL).draw(0)
    received = np.sort(np.bincount(transfers.receiver, minlength=town.accounts.bank.size))[::-1]
    assert received[: received.size // 10].sum() > 0.4 * received.sum()
    opened = np.maximum(town.accounts.opened[transfers.sender], town.accounts.opened[transfers.receiver])
    assert (transfers.time >= opened).all()
    assert (town.accounts.opened > 0).any()
    amounts = [transfers.amount[at] for at in (transfers.pattern < 0, transfers.pattern >= 0)]
    low, high = np.quantile(amounts[0], [0.2, 0.995])
    assert ((amounts[1] > low) & (amounts[1] < high)).mean() > 0.8


def test_a_transfers_own_columns_say_little_and_the_transfers_around_it_say_more():
    data = Ledgers(parties=2, customers=300, laundering=0.02)
    found = []
    for seed in (0, 1):
        party = data.load(seed).parties[0]
        graph = party.typed()["payment"]
        counts = np.concatenate([graph.x.numpy(), history_columns(party)], axis=1)
        for columns in (graph.x.numpy(), counts):
            model = HistGradientBoostingClassifier(max_iter=30, random_state=0)
            model.fit(columns[graph.train_mask], graph.y[graph.train_mask])
            scores = model.predict_proba(columns[graph.test_mask])[:, 1]
            found.append(average_precision_score(graph.y[graph.test_mask], scores))
    alone, around = np.array(found).reshape(2, 2).mean(0)
    assert alone < 0.2
    assert around > 1.5 * alone


def history_columns(party):
    """The means of the edges into each payment, relation by relation."""
    typed = party.typed()
    nodes, columns = typed["payment"].num_nodes, []
    for kind in typed.edge_types:
        if kind[0] != "payment":
            continue
        _, target = typed[kind].edge_index.numpy()
        count = np.bincount(target, minlength=nodes)
        sums = [np.bincount(target, weights=each, minlength=nodes) for each in typed[kind].edge_attr.numpy().T]
        columns += [each / np.maximum(count, 1) for each in sums] + [count]
    return np.stack(columns, axis=1)


def test_tables_have_the_rows_that_each_bank_knows(tmp_path):
    found = ledgers.tables(seed=0, **SMALL)
    assert list(found) == ["bank-0", "bank-1", "bank-2"]
    seen = {}
    for bank, tables in found.items():
        accounts, transfers = tables["accounts"], tables["transfers"]
        own = accounts.filter(pc.equal(accounts["bank"], bank))
        assert own["customer"].null_count == own["opened"].null_count == 0
        others = accounts.filter(pc.not_equal(accounts["bank"], bank))
        assert others["customer"].null_count == others["kind"].null_count == len(others) > 0
        assert set(own["customer"].to_pylist()) == set(tables["customers"]["customer"].to_pylist())
        for end in ("from_account", "to_account"):
            assert set(transfers[end].to_pylist()) <= set(accounts["account"].to_pylist())
        sent = pc.is_in(transfers["from_account"], own["account"].combine_chunks())
        assert pc.equal(pc.is_valid(transfers["laundering"]), sent).to_pylist() == [True] * len(transfers)
        for row in transfers.drop(["laundering"]).to_pylist():
            assert seen.setdefault(row["transfer"], row) == row
    assert len(seen) == 3 * 40 * 20
    folders = ledgers.write(tmp_path / "out", seed=0, **SMALL)
    assert [folder.name for folder in folders] == list(found)
    for folder in folders:
        for name, table in found[folder.name].items():
            again = csv.read_csv(
                folder / f"{name}.csv",
                convert_options=csv.ConvertOptions(strings_can_be_null=True, column_types=table.schema),
            )
            assert again.equals(table)


def test_tables_and_graphs_have_the_same_transfers(pool):
    found = ledgers.tables(seed=0, **SMALL)
    for party in pool.parties:
        payment = party.schema.node_types.index("payment")
        own = party.graph.node_type == payment
        rows = found[party.name]["transfers"]
        assert [f"T{at:07d}" for at in party.ids[own].tolist()] == rows["transfer"].to_pylist()
        labels = pa.array([(None, "no", "yes")[at + 1] for at in party.graph.y[own].tolist()])
        assert labels.equals(rows["laundering"].combine_chunks())


def test_tables_whose_accounts_name_their_banks_have_the_borders_of_the_graphs(tmp_path):
    pytest.importorskip("duckdb")
    options = {**SMALL, "parties": 2}
    folders = ledgers.write(tmp_path / "out", seed=0, **options)
    source = DatabaseSource([folders[0].parent / "*"], "transfers.laundering", owners=["accounts.account=bank"])
    create_databases(tmp_path / "banks", source)
    parties = Ledgers(**options, borders=True).load(0).parties
    for party, read in zip(parties, PartyFolders(path=str(tmp_path / "banks")).load(0).parties, strict=True):
        assert read.border.owners == party.border.owners
        assert len(read.border) == len(party.border)
        ends = [torch.stack([each.ids[each.border.inner], each.border.outer]) for each in (party, read)]
        counts = [each.unique(dim=1, return_counts=True)[1].sort().values for each in ends]
        assert torch.equal(*counts)
        assert read.nodes == party.nodes


def test_a_short_period_has_no_salaries():
    assert Ledgers(parties=2, customers=10, transfers=5, days=7, laundering=0.1).load(0).parties


def test_no_pattern_at_all_is_one_line():
    with pytest.raises(IsthmusError, match="the weights of all patterns are 0"):
        Ledgers(**SMALL, **dict.fromkeys(PATTERNS, 0.0)).load(0)
    with pytest.raises(IsthmusError, match="add up to more than 1"):
        Ledgers(**SMALL, train=0.9, val=0.2).load(0)
