"""Party folders of several tables are read, checked, joined in time and encoded."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import isthmus
from databases import bank_draft, crossing_drafts, dated_draft, days, edge_draft, owned_twice, sales_draft
from isthmus.data.folder.database import NEVER
from isthmus.data.folder.loading import check_folders
from isthmus.data.folder.reading import check_folder
from isthmus.data.ids import PLAIN, KeyedHash
from isthmus.data.pooled import pool_parties
from isthmus.errors import IsthmusError
from party_folders import Draft, lines, load_folders, read, report

BEFORE = {f"{one}_account_before_{two}_account" for one in ("from", "to") for two in ("from", "to")}


def write(root: Path, *drafts: Draft) -> Path:
    for draft in drafts:
        draft.write(root / draft.settings["name"])
    return root


def reports(root: Path) -> dict[str, list[str]]:
    return {folder.name: lines(found) for folder, found in check_folders(root)[1].items()}


def with_table(draft: Draft, name: str, **settings) -> Draft:
    """Return the draft with other settings of one table."""
    changed = draft.with_settings()
    changed.settings["tables"][name] |= settings
    return changed


DRAWN = (
    "note: transfers.parquet: rows are dated, and the split is drawn: training reads later rows than those that a test "
    "is on; set train_until and val_until in party.toml"
)


# ---- what is read


def test_sound_folder_has_no_problem(tmp_path):
    assert report(bank_draft(), tmp_path / "a") == []
    assert report(dated_draft(), tmp_path / "b") == [DRAWN]
    assert report(dated_draft(train_until="2024-05-01", val_until="2024-08-01"), tmp_path / "c") == []


def test_undated_labels_have_edges_both_ways(tmp_path):
    edges = read(bank_draft(), tmp_path / "a").database.edges
    assert {(one, two) for one, _, two in edges} == {
        ("accounts", "customers"), ("customers", "accounts"), ("accounts", "transfers"), ("transfers", "accounts"),
    }  # fmt: skip
    to, back = edges["transfers", "from_account", "accounts"], edges["accounts", "rev_from_account", "transfers"]
    assert torch.equal(to.index, back.index.flip(0))
    draft = bank_draft()
    ends = [draft.tables["accounts.parquet"]["id"][at] for at in to.index[1]]
    assert ends == [draft.tables["transfers.parquet"]["from_account"][at] for at in to.index[0]]


def test_dated_labels_read_only_earlier_rows(tmp_path):
    database = read(dated_draft(transfers=300), tmp_path / "a").database
    assert {name for _, name, _ in database.edges} == {
        *BEFORE, "rev_from_account", "rev_to_account", "customer", "rev_customer",
    }  # fmt: skip
    table = dated_draft(transfers=300).tables["transfers.parquet"]
    for one, two in (("from", "to"), ("to", "from"), ("from", "from"), ("to", "to")):
        found = database.edges["transfers", f"{one}_account_before_{two}_account", "transfers"]
        expected = set()
        for target, (value, date) in enumerate(zip(table[f"{two}_account"], table["date"], strict=True)):
            earlier = [
                (other_date, source)
                for source, (other, other_date) in enumerate(zip(table[f"{one}_account"], table["date"], strict=True))
                if other == value and other_date < date
            ]
            expected |= {(source, target) for _, source in sorted(earlier)[-8:]}
        assert set(map(tuple, found.index.t().tolist())) == expected
        gaps = [(table["date"][target] - table["date"][source]).days for source, target in found.index.t().tolist()]
        assert found.days.tolist() == gaps


def walk_back(database, start):
    """Return all rows, as table and position, that a row can read by any number of steps along the edges."""
    into = {}
    for (source, _, target), each in database.edges.items():
        for one, two in each.index.t().tolist():
            into.setdefault((target, two), []).append((source, one))
    found, waiting = set(), [start]
    while waiting:
        for each in into.get(waiting.pop(), ()):
            if each not in found:
                found.add(each)
                waiting.append(each)
    return found


def shop_draft() -> Draft:
    """Orders with labels, parts of orders without a date of their own, products, and visits of customers."""
    draw = np.random.default_rng(3)
    orders, parts, visits = 30, 60, 30
    tables = {
        "orders": {"key": "id", "time": "day", "foreign": {"customer": "customers"}},
        "parts": {"foreign": {"order": "orders", "product": "products"}, "columns": {"price": {"kind": "number"}}},
        "products": {"key": "id", "foreign": {"kind": "kinds"}, "columns": {}},
        "kinds": {"key": "id"},
        "customers": {"key": "id"},
        "visits": {"time": "day", "foreign": {"customer": "customers"}},
    }
    return Draft(
        {"name": "shop", "label": "orders.returned", "classes": 2, "tables": tables},
        {
            "orders.parquet": {
                "id": [f"O{at}" for at in range(orders)],
                "day": days(*draw.integers(0, 20, orders)),
                "customer": draw.integers(0, 6, orders).tolist(),
                "returned": draw.integers(0, 2, orders).tolist(),
            },
            "parts.parquet": {
                "order": [f"O{at}" for at in draw.integers(0, orders, parts)],
                "product": draw.integers(0, 8, parts).tolist(),
                "price": draw.random(parts).tolist(),
            },
            "products.parquet": {"id": list(range(8)), "kind": [at % 3 for at in range(8)]},
            "kinds.parquet": {"id": [0, 1, 2]},
            "customers.parquet": {"id": list(range(6))},
            "visits.parquet": {
                "day": days(*draw.integers(0, 20, visits)),
                "customer": draw.integers(0, 6, visits).tolist(),
            },
        },
    )


def reviewed_draft() -> Draft:
    """The bank, whose accounts have labels with a date each."""
    draft = with_table(bank_draft(transfers=80), "accounts", time="reviewed", columns={})
    draft.tables["accounts.parquet"]["reviewed"] = days(*range(20, 260, 20))
    return draft.with_settings(label="accounts.bad").without("country", "accounts.parquet")


@pytest.mark.parametrize("make", [lambda: dated_draft(transfers=60), shop_draft, reviewed_draft])
def test_no_later_row_reaches_a_label(tmp_path, make):
    database = read(make(), tmp_path / "a").database
    moments = database.moments
    own_parts = 0
    for row in range(database.ids[database.items].numel()):
        moment = moments[database.items][row]
        for name, at in walk_back(database, (database.items, row)):
            if name == "parts" and moments[name][at] == moment:
                own_parts += 1  # what an order consists of is known with the order
            elif name in moments:
                assert moments[name][at] < moment, (name, at, row)
    assert own_parts > 0 or make is not shop_draft


def test_rows_that_refer_to_dated_rows_have_their_date(tmp_path):
    draft = shop_draft()
    database = read(draft, tmp_path / "a").database
    dates = dict(zip(draft.tables["orders.parquet"]["id"], database.moments["orders"].tolist(), strict=True))
    assert database.moments["parts"].tolist() == [dates[each] for each in draft.tables["parts.parquet"]["order"]]


def test_a_row_whose_date_is_unknown_reads_no_dated_row(tmp_path):
    draft = bank_draft(transfers=60).without("bad", "accounts.parquet")
    account = draft.tables["transfers.parquet"]["to_account"][0]
    draft.tables["flags.parquet"] = {"account": [account] * 2, "transfer": ["T59", "T999"], "fraud": [0, 1]}
    draft.tables["transfers.parquet"]["id"] = [f"T{at}" for at in range(60)]
    draft = with_table(draft, "transfers", key="id").with_settings(
        label="flags.fraud", train_until=None, val_until=None
    )
    draft.settings["tables"]["flags"] = {"foreign": {"account": "accounts", "transfer": "transfers"}}
    database = read(draft, tmp_path / "a").database
    assert database.moments["flags"].tolist() == [database.moments["transfers"][59], NEVER]
    tables = [{name for name, _ in walk_back(database, ("flags", row))} for row in (0, 1)]
    assert ["transfers" in each for each in tables] == [True, False]


def test_dated_accounts_read_their_last_transfers(tmp_path):
    draft = reviewed_draft().with_settings(history=2)
    edges = read(draft, tmp_path / "a").database.edges
    assert ("transfers", "from_account", "accounts") in edges
    counts = torch.bincount(edges["transfers", "from_account", "accounts"].index[1])
    assert int(counts.max()) == 2


def test_history_of_none_joins_nothing_in_time(tmp_path):
    edges = read(dated_draft(history=0), tmp_path / "a").database.edges
    assert all(edges["transfers", name, "transfers"].index.size(1) == 0 for name in BEFORE)


def test_rows_from_until_on_are_left_out(tmp_path):
    draft = bank_draft(until="2024-03-01")
    table = draft.tables["transfers.parquet"]
    count = sum(date.isoformat() < "2024-03-01" for date in table["date"])
    contents = read(draft, tmp_path / "a")
    assert 0 < count < len(table["date"])
    assert contents.database.ids["transfers"].numel() == contents.database.tables["transfers"].num_rows == count
    assert contents.database.edges["transfers", "to_account", "accounts"].index.size(1) == count


def test_table_can_be_edges_with_features(tmp_path):
    draft = with_table(bank_draft().without("date", "transfers.parquet"), "transfers", **{"as": "edges", "time": None})
    del draft.settings["tables"]["transfers"]["time"]
    write(tmp_path, draft)
    (party,) = load_folders(tmp_path).parties
    assert party.schema.node_types == ("accounts", "customers")
    at = party.schema.edge_types.index(("accounts", "transfers", "accounts"))
    amounts = torch.tensor(draft.tables["transfers.parquet"]["amount"])
    expected = (amounts - amounts.mean()) / amounts.std(unbiased=False)
    found = party.graph.edge_attr[party.graph.edge_type == at][:, party.schema.edge_columns(at)]
    assert torch.allclose(found.squeeze(1), expected)


def test_edges_with_labels_are_items_with_the_features_of_their_rows(tmp_path):
    draft = edge_draft(dated=False)
    draft.tables["transfers.parquet"]["from_account"][3] = "elsewhere"
    assert [each for each in report(draft, tmp_path / "north") if "elsewhere" in each] == [
        "note: transfers.parquet, row 4: column 'from_account' names rows that 'accounts' lacks, such as 'elsewhere': "
        "such edges are left out"
    ]
    (party,) = load_folders(tmp_path).parties
    table = draft.tables["transfers.parquet"]
    kept = [at for at in range(40) if at != 3]
    accounts = draft.tables["accounts.parquet"]["id"]
    assert (party.level, party.items, party.schema.labelled) == ("edge", 39, "")
    assert party.graph.y.tolist() == [table["bad"][at] for at in kept]
    for end, column in enumerate(("from_account", "to_account")):
        found = party.graph.edge_label_index[end].tolist()  # accounts are the first type
        assert [accounts[at] for at in found] == [table[column][at] for at in kept]
    amounts = torch.tensor(table["amount"])
    expected = ((amounts - amounts.mean()) / amounts.std(unbiased=False))[kept]
    assert torch.allclose(party.graph.edge_label_attr.squeeze(1), expected)
    assert (
        int((party.graph.edge_type == party.schema.edge_types.index(("accounts", "transfers", "accounts"))).sum()) == 39
    )


def test_edges_with_labels_and_a_time_read_only_rows_before_until(tmp_path):
    draft = edge_draft(transfers=200)
    contents = read(draft, tmp_path / "north")
    table = draft.tables["transfers.parquet"]
    dates = [each.isoformat() for each in table["date"]]
    early, later = (
        [at for at, date in enumerate(dates) if (date < "2024-04-01") == is_early] for is_early in (True, False)
    )
    edges = {name: each for (_, name, _), each in contents.database.edges.items() if each.table}
    assert {name: each.rows.tolist() for name, each in edges.items()} == dict.fromkeys(
        ("transfers", "rev_transfers"), early
    )
    assert contents.database.labelled.rows.tolist() == later
    assert contents.item_names["id"].to_pylist() == [table["id"][at] for at in later]
    assert contents.item_names["target"].to_pylist() == [table["to_account"][at] for at in later]
    assert torch.equal(contents.item_ids, PLAIN.numbers([f"transfers:{table['id'][at]}" for at in later]))
    for split, (start, end) in {"train": ("", "2024-07-01"), "val": ("2024-07-01", "2024-08-15"),
                                "test": ("2024-08-15", "9")}.items():  # fmt: skip
        assert contents.splits[split].tolist() == [start <= dates[at] < end for at in later]
    encoding = load_folders(tmp_path).encoding
    assert encoding["totals"]["transfers.amount"]["count"] == sum(date < "2024-07-01" for date in dates)
    assert ", 12 accounts" in f", {contents.summary()}"
    assert f"{len(later)} transfers to classify" in contents.summary()


def test_rows_of_rows_that_are_left_out_are_left_out(tmp_path):
    draft = with_table(shop_draft(), "customers", columns={}).with_settings(label="customers.good", until="2024-01-11")
    draft = draft.without("returned", "orders.parquet").put("good", [0, 1, 0, 1, 0, 1], "customers.parquet")
    table = draft.tables["orders.parquet"]
    known = {order for order, date in zip(table["id"], table["day"], strict=True) if date.day < 11}
    orders = draft.tables["parts.parquet"]["order"]
    database = read(draft, tmp_path / "a").database
    assert 0 < database.ids["parts"].numel() == sum(each in known for each in orders) < len(orders)


def test_ids_are_of_table_and_key_or_of_the_party(tmp_path):
    draft = bank_draft()
    ids = read(draft, tmp_path / "a").database.ids
    assert torch.equal(ids["accounts"], PLAIN.numbers([f"accounts:A{at}" for at in range(12)]))
    own = read(with_table(draft, "accounts", ids="own"), tmp_path / "b").database.ids["accounts"]
    assert not torch.isin(own, ids["accounts"]).any()
    keyed = read(draft, tmp_path / "c", KeyedHash(b"k" * 32)).database.ids["accounts"]
    assert torch.equal(keyed, KeyedHash(b"k" * 32).numbers([f"accounts:A{at}" for at in range(12)]))
    assert read(draft.with_settings(ids="own"), tmp_path / "d").ids is None


def test_splits_by_date(tmp_path):
    draft = dated_draft(transfers=200, train_until="2024-05-01", val_until="2024-08-01")
    contents = read(draft, tmp_path / "a")
    texts = [each.isoformat() for each in draft.tables["transfers.parquet"]["date"]]
    assert contents.splits["train"].tolist() == [each < "2024-05-01" for each in texts]
    assert contents.splits["test"].tolist() == [each >= "2024-08-01" for each in texts]
    assert contents.splits["val"].sum() == 200 - contents.splits["train"].sum() - contents.splits["test"].sum() > 0


def test_split_column_and_shares(tmp_path):
    draft = bank_draft(split="part").put("part", ["train", "val", "test"] * 4, "accounts.parquet")
    assert read(draft, tmp_path / "a").splits["train"].tolist() == [True, False, False] * 4
    write(tmp_path / "b", bank_draft(accounts=200))
    (party,) = load_folders(tmp_path / "b", train=0.5, val=0.25).parties
    assert 70 < int(party.train.sum()) < 130
    assert int((party.train | party.val | party.test).sum()) == 200


def test_column_of_splits_that_trains_on_later_rows_is_noted(tmp_path):
    draft = dated_draft(split="part")
    dates = draft.tables["transfers.parquet"]["date"]
    order = {"train": 0, "val": 1, "test": 2}
    ranks = np.argsort(np.argsort([each.toordinal() for each in dates], kind="stable"), kind="stable")
    in_order = [list(order)[int(3 * rank // len(dates))] for rank in ranks]
    assert report(draft.put("part", in_order, "transfers.parquet"), tmp_path / "a") == []
    mixed = [list(order)[at % 3] for at in range(len(dates))]
    first = min(each for each, split in zip(dates, mixed, strict=True) if split == "test")
    later = sum(each > first for each, split in zip(dates, mixed, strict=True) if split == "train")
    assert report(draft.put("part", mixed, "transfers.parquet"), tmp_path / "b") == [
        f"note: transfers.parquet: column 'part' trains on {later} rows that are later than the first test row: "
        "for a test on what was to come, give train_until and val_until instead"
    ]


# ---- what is wrong


def test_a_date_that_is_still_to_come_is_noted(tmp_path):
    draft = dated_draft()
    draft.tables["transfers.parquet"]["date"][2] = days(2)[0].replace(year=2203)
    due = (
        "note: transfers.parquet, row 3: column 'date' has a date that is still to come: correct it if it is a mistake"
    )
    assert [each for each in report(draft, tmp_path / "a") if "to come" in each] == [due]


def test_all_problems_are_found_in_one_pass(tmp_path):
    draft = dated_draft()
    transfers = draft.tables["transfers.parquet"]
    transfers["date"] = [each.isoformat() for each in transfers["date"]]
    transfers["date"][2] = "2024-02-31"
    transfers["from_account"][0] = "X7"
    transfers["amount"] = [str(each) for each in transfers["amount"]]
    draft.tables["accounts.parquet"]["id"][1] = draft.tables["accounts.parquet"]["id"][0]
    del draft.tables["customers.parquet"]
    found = report(draft, tmp_path / "a")
    assert [each for each in found if "accounts.parquet, row" in each and "repeats" in each] == [
        "accounts.parquet, row 2: column 'id' repeats an earlier key: make keys unique"
    ]
    assert "customers.parquet: the file does not exist" in found
    assert (
        "transfers.parquet, row 3: column 'date' has a date that cannot be read, '2024-02-31': write it as 2024-06-30 "
        "or 2024-06-30 12:00:00"
    ) in found
    assert "transfers.parquet: column 'amount' holds values of type string: it must hold numbers" in found
    dangling = [each for each in found if "names rows that 'accounts' lacks, such as 'X7'" in each]
    assert len(dangling) == 1
    assert dangling[0].startswith("note: transfers.parquet, row")


@pytest.mark.parametrize(
    ("draft", "expected"),
    [
        (
            bank_draft().without("amount", "transfers.parquet"),
            "transfers.parquet: column 'amount' is missing: add it to the table",
        ),
        (
            bank_draft().without("to_account", "transfers.parquet"),
            "transfers.parquet: column 'to_account' is missing: add it to the table",
        ),
        (
            bank_draft().put("more", list(range(12)), "accounts.parquet"),
            "accounts.parquet: column 'more' is not known: declare it in party.toml, or 'ignore' it",
        ),
        (
            bank_draft().put("customer", [str(at) for at in range(12)], "accounts.parquet"),
            "accounts.parquet: column 'customer' holds values of type string, the keys of 'customers' int64: use one "
            "type",
        ),
        (
            bank_draft().put("bad", [None] * 12, "accounts.parquet"),
            "note: accounts.parquet: column 'bad' labels no row: no item can be learned",
        ),
        (
            dated_draft().put("date", [*days(*range(39)), None], "transfers.parquet"),
            "transfers.parquet, row 40: column 'date' has no value: date the row, or leave it out",
        ),
        (
            dated_draft(train_until="2030-01-01", val_until="2030-06-01").put(
                "date", days(*range(40)), "transfers.parquet"
            ),
            "note: transfers.parquet: no row with a label is dated in the split 'val': the rows' dates are 2024-01-01 "
            "to 2024-02-09",
        ),
        (
            bank_draft(until="2024-03-01", label_time="seen").put("seen", days(*range(50, 62)), "accounts.parquet"),
            "note: accounts.parquet, rows 11, 12: the label became known after until = 2024-03-01: its row cannot see "
            "what decided it",
        ),
        (
            with_table(
                bank_draft().put("boss", [None] * 7, "customers.parquet"), "customers", foreign={"boss": "customers"}
            ),
            "note: party.toml: tables refer to each other in a cycle without time, customers -> customers: no row is "
            "before another",
        ),
        (
            bank_draft(label="accounts.worse"),
            "accounts.parquet: column 'bad' is not known: declare it",
        ),
        (bank_draft(label="cards.bad"), "party.toml: label = 'cards.bad' names no table: its table is one of accounts"),
        (
            bank_draft(train_until="2024-01-01", val_until="2024-02-01"),
            "party.toml: a split by date needs dated rows: give the table 'accounts' a time",
        ),
        (bank_draft(until="soon"), "party.toml: option 'until' is 'soon': give a date, such as 2024-06-30"),
        (
            with_table(bank_draft(), "accounts", foreign={"customer": "people"}),
            "party.toml: tables.accounts.foreign.customer: there is no table 'people'",
        ),
        (
            with_table(dated_draft(), "transfers", **{"as": "edges"}),
            "party.toml: label = 'transfers.bad': edges with labels and a time need 'until': models read the rows "
            "before that day, and classify later ones",
        ),
        (
            edge_draft(train_until="2024-02-01"),
            "party.toml: until is later than train_until: edges before until are read, none is left to train on",
        ),
        (
            with_table(edge_draft(), "accounts", time="opened").put("opened", days(*range(12)), "accounts.parquet"),
            "party.toml: tables.accounts: edges with labels join rows without a time: remove its time, or set "
            'as = "nodes" for transfers',
        ),
        (
            with_table(edge_draft(ids="shared"), "transfers", owners={"to_account": "to_bank"}),
            "party.toml: tables.transfers.owners: edges with labels join rows of one party: leave out owners, or set "
            'as = "nodes" for transfers',
        ),
        (
            edge_draft(until="2030-01-01", train_until="2030-02-01", val_until="2030-03-01"),
            "transfers.parquet: no row to classify joins two rows: correct its keys, or give an earlier day for until",
        ),
        (
            bank_draft().with_settings(columns={"x": {"kind": "number"}}),
            "party.toml: several tables have columns and 'ignore' in [tables.NAME], and no 'directed'",
        ),
    ],
)
def test_each_problem_is_one_line(tmp_path, draft, expected):
    assert any(each.startswith(expected) for each in report(draft, tmp_path / "a"))


def test_labels_known_too_late_are_not_trained_on(tmp_path):
    draft = dated_draft(train_until="2024-06-01", val_until="2024-08-01", label_time="seen")
    draft = draft.put("date", days(*range(0, 280, 7)), "transfers.parquet")
    draft = draft.put("seen", days(*range(30, 310, 7)), "transfers.parquet")
    contents = read(draft, tmp_path / "a")
    assert int(contents.splits["train"].sum()) == sum(30 + 7 * at < 152 for at in range(40))
    assert any("the label became known after train_until" in each for each in report(draft, tmp_path / "a"))


def test_date_later_than_the_row_is_a_note(tmp_path):
    draft = with_table(dated_draft(), "transfers", columns={"amount": {"kind": "number"}, "settled": {"kind": "date"}})
    draft = draft.put("settled", [each.replace(year=2025) for each in draft.tables["transfers.parquet"]["date"]],
                      "transfers.parquet")  # fmt: skip
    note, _ = report(draft, tmp_path / "a")
    assert "column 'settled' is later than the row's own date: it may give the answer away" in note


def test_parties_that_disagree_are_one_line_each(tmp_path):
    south = with_table(bank_draft("south", seed=1), "customers", columns={"age": {"kind": "category"}})
    south.tables["customers.parquet"]["age"] = [str(each) for each in south.tables["customers.parquet"]["age"]]
    south.settings["tables"]["accounts"]["columns"] = {}
    south.settings["tables"]["accounts"]["ignore"] = ["country"]
    south.settings["tables"]["transfers"]["foreign"] = {"from_account": "accounts"}
    south.settings["tables"]["transfers"]["ignore"] = ["to_account"]
    south.settings["history"] = 3
    assert reports(write(tmp_path, bank_draft(), south))["south"] == [
        "party.toml: 'history' is 3, at party 'north' 8: make them equal",
        "party.toml: tables.transfers.foreign is {'from_account': 'accounts'}, at party 'north' {'from_account': "
        "'accounts', 'to_account': 'accounts'}: make them equal",
        "party.toml: only party 'north' declares the column 'accounts.country': declare the same columns, or 'ignore' "
        "it",
        "party.toml: column 'customers.age' is a category, at party 'north' a number: make them equal",
    ]


# ---- what is encoded


def test_parties_share_one_encoding(tmp_path):
    write(tmp_path, bank_draft(), bank_draft("south", seed=1))
    pool = load_folders(tmp_path)
    one, two = pool.parties
    assert one.schema == two.schema
    at = one.schema.node_types.index("customers")
    column = one.schema.columns(at).stop - 1
    ages = torch.cat([each.graph.x[each.graph.node_type == at, column] for each in (one, two)])
    assert abs(float(ages.mean())) < 1e-5
    assert abs(float(ages.std(unbiased=False)) - 1) < 1e-5
    assert json.loads(json.dumps(pool.encoding))["columns"]["customers.age"]["kind"] == "number"


@pytest.mark.parametrize("train_until", ["2024-05-01", "2020-01-01"])  # before the second there is no row
def test_an_encoding_counts_no_row_from_train_until_on(tmp_path, train_until):
    draft = dated_draft(transfers=200, train_until=train_until, val_until="2024-08-01")
    early = [each.isoformat() < train_until for each in draft.tables["transfers.parquet"]["date"]]
    later = draft.with_settings()
    amounts = draft.tables["transfers.parquet"]["amount"]
    kept = [each if first else 1000 * each for each, first in zip(amounts, early, strict=True)]
    later.put("amount", kept, "transfers.parquet")
    one, two = (load_folders(write(tmp_path / at, each)) for at, each in (("a", draft), ("b", later)))
    assert one.encoding == two.encoding
    assert one.encoding["totals"]["transfers.amount"]["count"] == sum(early)


def test_labels_are_those_of_the_rows(tmp_path):
    (party,) = load_folders(write(tmp_path, bank_draft())).parties
    assert party.graph.y.tolist() == [at % 2 for at in range(12)] + [-1] * 47
    assert torch.equal(party.ids[:12], PLAIN.numbers([f"accounts:A{at}" for at in range(12)]))


def test_days_between_rows_are_features_of_edges(tmp_path):
    (party,) = load_folders(write(tmp_path, dated_draft())).parties
    database = read(dated_draft(), tmp_path / "again").database
    kind = ("transfers", "from_account_before_to_account", "transfers")
    at = party.schema.edge_types.index(kind)
    found = party.graph.edge_attr[party.graph.edge_type == at][:, party.schema.edge_columns(at)].squeeze(1)
    assert torch.allclose(found, database.edges[kind].days.log1p().float())


def test_missing_folder_is_one_line(tmp_path):
    contents, problems = check_folder(bank_draft(label="accounts").write(tmp_path / "a"))
    assert contents is None
    assert lines(problems) == [
        "party.toml: label = 'accounts' names a table alone, which says that no row has a label: give TABLE.COLUMN",
    ]
    with pytest.raises(IsthmusError, match="has 1 problem"):
        load_folders(tmp_path)


@pytest.mark.parametrize("column", [None, [None] * 40])
def test_rows_whose_labels_are_not_known_yet_need_no_date_of_them(tmp_path, column):
    draft = dated_draft(label_time="settled", train_until="2024-05-01", val_until="2024-08-01")
    draft = draft.put("bad", column, "transfers.parquet") if column else draft.without("bad", "transfers.parquet")
    found = report(draft, tmp_path)
    assert found
    assert all(each.startswith("note: ") and "label" in each for each in found)


def test_a_table_of_labels_without_rows_is_said_so(tmp_path):
    draft = bank_draft()
    accounts = draft.tables["accounts.parquet"]
    draft.tables["accounts.parquet"] = {column: values[:0] for column, values in accounts.items()}
    found = report(draft.put("customer", [], "accounts.parquet"), tmp_path)
    assert "accounts.parquet: the table of the label has no rows: a party holds at least one item" in found
    assert not [each for each in found if "until" in each]


def test_a_label_may_be_a_table_alone_where_no_row_has_one(tmp_path):
    folder = write(tmp_path / "folder", sales_draft(label="customers"))
    told = "note: party.toml: label = 'customers' names a table alone, so no row has a label, and only links can be"
    assert reports(folder)["north"] == [f"{told} predicted: give TABLE.COLUMN if one has"]
    (party,) = load_folders(folder).parties
    assert set(party.graph.y.tolist()) == {-1}
    (told,) = report(sales_draft(label="customers").with_settings(split="part"), tmp_path / "split")
    assert told.endswith("names a table alone: no row has a label, so leave out splits and label_time")
    with pytest.raises(IsthmusError, match=r"or ask for links: set task\.name = 'link-prediction'"):
        isthmus.run("fedavg", f"{folder}/", rounds=1)
    assert report(sales_draft(label="purchases"), tmp_path / "edges") == [
        "party.toml: label = 'purchases': edges without labels are no items: name a table of nodes"
    ]


@pytest.mark.parametrize("label", ["purchases.bad", "customers"])
def test_rows_may_be_edges_between_rows_of_two_tables(tmp_path, label):
    draft = sales_draft(label=label)
    (party,) = load_folders(write(tmp_path, draft)).parties
    rows, graph = draft.tables["purchases.parquet"], party.typed()
    there, back = ("customers", "purchases", "goods"), ("goods", "rev_purchases", "customers")
    assert graph.edge_types == [there, back]
    ends = torch.tensor([[int(each.split("-")[1]) for each in rows["customer"]], rows["good"]])
    for kind, due in ((there, ends), (back, ends.flip(0))):
        assert torch.equal(graph[kind].edge_index, due)
        assert graph[kind].edge_attr.squeeze(1).tolist() == pytest.approx(rows["amount"])
    if label != "customers":
        assert party.level == "edge"
        starts = torch.tensor([0, graph["customers"].num_nodes])
        assert torch.equal(party.graph.edge_label_index, ends + starts[:, None])
        assert party.graph.y.tolist() == rows["bad"]


def test_without_labels_splits_are_not_complained_about(tmp_path):
    draft = dated_draft(train_until="2024-01-10", val_until="2024-01-20")
    notes = report(draft.put("bad", [None] * 40, "transfers.parquet"), tmp_path)
    assert [each for each in notes if "label" in each] == [
        "note: transfers.parquet: column 'bad' labels no row: no item can be learned"
    ]


# ---- rows that other parties hold


def edges_by_id(party):
    """The edges of a party, each as the ids of its ends, its type and its features."""
    source, target = party.ids[party.graph.edge_index]
    features = party.graph.get("edge_attr")
    features = [()] * party.edges if features is None else [tuple(row) for row in features.tolist()]
    return sorted(zip(source.tolist(), target.tolist(), party.graph.edge_type.tolist(), features, strict=True))


@pytest.mark.parametrize(
    "kind", [{}, {"stubs": True}, {"dated": True}, {"dated": True, "stubs": True}, {"as_edges": True}], ids=str
)
def test_parties_with_borders_have_together_the_graph_of_all_rows(tmp_path, kind):
    *banks, every = crossing_drafts(**kind)
    parties = load_folders(write(tmp_path / "banks", *banks)).parties
    (whole,) = load_folders(write(tmp_path / "all", every)).parties
    for party in parties:
        accounts = whole.ids[whole.graph.node_type == 0]
        assert len(party.border.arriving) > 5
        assert not torch.isin(party.border.outer, party.ids).any()
        assert torch.isin(party.border.outer, accounts).all()
    pooled = pool_parties(parties)
    assert edges_by_id(pooled) == edges_by_id(whole)
    one, two = (each.graph.x[torch.argsort(each.ids)] for each in (pooled, whole))
    assert torch.equal(one, two)
    within = [edge for party in parties for edge in edges_by_id(party)]
    assert len(within) == len(set(within)), "an edge is at two parties"
    assert len(within) == (whole.edges if not kind.get("as_edges") else len(set(edges_by_id(whole)) & set(within)))


def test_banks_that_name_holders_have_no_problem(tmp_path):
    for kind in ({}, {"stubs": True}, {"dated": True}, {"as_edges": True}):
        due = [DRAWN] if kind.get("dated") else []
        assert reports(write(tmp_path / str(kind), *crossing_drafts(**kind)[:2])) == {"north": due, "south": due}


def test_keys_without_a_row_and_without_a_holder_are_errors(tmp_path):
    north, south, _ = crossing_drafts()
    banks = north.tables["transfers.parquet"]["to_bank"]
    first = banks.index("south")
    lost = north.put("to_bank", [None if at == first else each for at, each in enumerate(banks)], "transfers.parquet")
    own = banks.index("north")
    claimed = north.put(
        "to_bank", ["south" if at == own else each for at, each in enumerate(banks)], "transfers.parquet"
    )
    stranger = north.with_settings(partners=["west"])
    moved = south.put("id", ["B9", *south.tables["accounts.parquet"]["id"][1:]], "accounts.parquet")
    moved.tables["transfers.parquet"]["from_bank"] = ["north"] * len(moved.tables["transfers.parquet"]["id"])
    row = f"transfers.parquet, row {first + 1}"
    assert report(lost, tmp_path / "lost") == [
        f"{row}: column 'to_account' names rows that 'accounts' lacks: add the row, or fill in 'to_bank'"
    ]
    (found,) = report(claimed, tmp_path / "claimed")
    assert f"row {own + 1}: column 'to_bank' names another holder of the row than 'accounts' does" in found
    assert "column 'from_bank' names an unknown owner: party.toml lists west" in report(stranger, tmp_path / "s")[0]
    assert report(north.with_settings(partners=None), tmp_path / "none")[0].endswith("lists no 'partners'")


def test_rows_that_their_holder_lacks_and_rows_at_one_side_only_are_told(tmp_path):
    north, south, _ = crossing_drafts()
    accounts = south.tables["accounts.parquet"]["id"]
    named = north.tables["transfers.parquet"]
    gone = next(each for each in named["to_account"] if each in accounts)
    for column, file in (
        ("id", "accounts.parquet"),
        ("from_account", "transfers.parquet"),
        ("to_account", "transfers.parquet"),
    ):
        south = south.put(column, ["B9" if each == gone else each for each in south.tables[file][column]], file)
    found = reports(write(tmp_path / "lacks", north, south))["north"]
    assert any("the other end is not a node of its owner 'south'" in each for each in found)
    north, south, _ = crossing_drafts()
    kept = [at for at, each in enumerate(south.tables["transfers.parquet"]["from_bank"]) if each == "south"]
    for column, values in south.tables["transfers.parquet"].items():
        south = south.put(column, [values[at] for at in kept], "transfers.parquet")
    (note,) = reports(write(tmp_path / "one side", north, south))["north"]
    assert "party 'south' does not list this edge: both sides should" in note


def test_a_row_of_two_owners_is_told_to_both(tmp_path):
    north, south = owned_twice()
    rest = "and each has one owner: correct the owners at one of them"
    assert reports(write(tmp_path / "twice", north, south)) == {
        "north": [f"accounts.parquet: 1 rows are also those of party 'south', {rest}"],
        "south": [f"accounts.parquet: 1 rows are also those of party 'north', {rest}"],
    }


@pytest.mark.parametrize(
    ("more", "due"),
    [
        ({}, "names a row of another party, whose date this row would have: add a column of time"),
        ({"time": "seen"}, "names rows of other parties in 'transfers', which are dated: no edge joins them"),
    ],
    ids=["without a date", "with a date"],
)
def test_keys_of_dated_rows_of_others_join_nothing(tmp_path, more, due):
    north = crossing_drafts(dated=True)[0]
    key = north.tables["transfers.parquet"]["id"][0]
    north.tables["flags.parquet"] = {"transfer": [key, "T999"], "bank": [None, "south"], "seen": days(40, 41)}
    flags = {"foreign": {"transfer": "transfers"}, "owners": {"transfer": "bank"}, "ignore": [] if more else ["seen"]}
    north.settings["tables"]["flags"] = {**flags, **more}
    note = "note: " if more else ""
    drawn = [DRAWN] if more else []  # of a folder with errors nothing else is looked at
    assert report(north, tmp_path / "a") == [f"{note}flags.parquet, row 2: column 'transfer' {due}", *drawn]


def test_features_of_rows_that_others_hold_are_not_checked(tmp_path):
    draft = crossing_drafts(stubs=True)[0]
    accounts = draft.tables["accounts.parquet"]
    wrong = accounts["bank"].index("north", accounts["bank"].index("south"))
    size = [None if at == wrong else each for at, each in enumerate(accounts["size"])]
    (found,) = report(draft.put("size", size, "accounts.parquet"), tmp_path / "a")
    assert found.startswith(f"accounts.parquet, row {wrong + 1}: column 'size'")


def test_owners_of_what_is_no_key_are_one_line(tmp_path):
    draft = with_table(crossing_drafts()[0], "transfers", owners={"amount": "to_bank"})
    assert report(draft, tmp_path / "a") == [
        "party.toml: tables.transfers.owners.amount: it is no key of this table, nor does it refer to another"
    ]
    own = with_table(crossing_drafts()[0], "accounts", ids="own")
    assert 'set ids = "shared" there' in report(own, tmp_path / "b")[0]
