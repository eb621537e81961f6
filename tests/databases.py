"""Small party folders of several tables, as plain values, which a test can change before it writes them."""

from __future__ import annotations

import copy
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from party_folders import Draft

START = datetime(2024, 1, 1)
TABLES: dict[str, Any] = {
    "accounts": {"key": "id", "foreign": {"customer": "customers"}, "columns": {"country": {"kind": "category"}}},
    "customers": {"key": "id", "columns": {"age": {"kind": "number"}}},
    "transfers": {
        "time": "date",
        "foreign": {"from_account": "accounts", "to_account": "accounts"},
        "columns": {"amount": {"kind": "number"}},
    },
}


def days(*numbers: float) -> list[datetime]:
    """The moments so many days after the start of 2024."""
    return [START + timedelta(days=float(each)) for each in numbers]


def bank_draft(name: str = "north", accounts: int = 12, transfers: int = 40, seed: int = 0, **settings: Any) -> Draft:
    """A bank whose accounts have the labels; transfers are dated, accounts are not."""
    draw = np.random.default_rng(seed)
    start = 100 * seed
    ids = [f"A{start + at}" for at in range(accounts)]
    customers = [start + at for at in range(1 + accounts // 2)]
    ends = [[ids[at] for at in draw.integers(0, accounts, transfers)] for _ in range(2)]
    return Draft(
        {"name": name, "label": "accounts.bad", "classes": 2, "tables": copy.deepcopy(TABLES), **settings},
        {
            "accounts.parquet": {
                "id": ids,
                "customer": [customers[at // 2] for at in range(accounts)],
                "country": [["de", "at", "ch"][at % 3] for at in range(accounts)],
                "bad": [at % 2 for at in range(accounts)],
            },
            "customers.parquet": {"id": customers, "age": [20.0 + at % 50 for at in customers]},
            "transfers.parquet": {
                "from_account": ends[0],
                "to_account": ends[1],
                "date": days(*np.sort(draw.integers(0, 300, transfers))),
                "amount": [float(each) for each in draw.integers(1, 100, transfers)],
            },
        },
    )


def dated_draft(name: str = "north", **options: Any) -> Draft:
    """The same bank, whose transfers have the labels: whether the amount is above 50."""
    draft = bank_draft(name, **options)
    transfers = draft.tables["transfers.parquet"]
    transfers["bad"] = [int(each > 50) for each in transfers["amount"]]
    draft.settings |= {"label": "transfers.bad"}
    return draft.without("bad", "accounts.parquet")


def crossing_drafts(*, dated: bool = False, stubs: bool = False, as_edges: bool = False) -> list[Draft]:
    """Two banks that list the transfers between them, and one party with all their rows.

    Arguments:
        dated: transfers have a time and the labels; otherwise accounts have the labels.
        stubs: the table of accounts names the banks of others' accounts; otherwise the table of transfers does.
        as_edges: transfers are edges.
    """
    draw = np.random.default_rng(5)
    names, banks, transfers = [f"A{at}" for at in range(14)], ["north", "south"], 60
    bank = np.array([at % 3 == 0 for at in range(14)], dtype=int)
    ends = draw.integers(0, 14, (2, transfers))
    date, amount = np.sort(draw.integers(0, 25, transfers)), draw.integers(1, 100, transfers)
    drafts = []
    for own in (0, 1, None):
        at = np.flatnonzero((bank[ends] == own).any(0)) if own is not None else np.arange(transfers)
        held = [each for each in range(14) if own in (None, bank[each])]
        held = sorted({*held, *ends[:, at].ravel().tolist()}) if stubs else held
        accounts: dict[str, Any] = {"id": [names[each] for each in held], "size": [each / 7 for each in held]}
        rows: dict[str, Any] = {"id": [f"T{each}" for each in at], "amount": [amount[each] / 50 for each in at]}
        for column, end in (("from", ends[0][at]), ("to", ends[1][at])):
            rows |= {f"{column}_account": [names[each] for each in end]}
            rows |= {} if stubs else {f"{column}_bank": [banks[bank[each]] for each in end]}
        number = {"kind": "number", "scale": "none"}
        foreign = {"from_account": "accounts", "to_account": "accounts"}
        tables: dict[str, Any] = {
            "accounts": {"key": "id", "columns": {"size": number}},
            "transfers": {"key": "id", "foreign": foreign, "columns": {"amount": number}},
        }
        if stubs:
            accounts["bank"] = [banks[bank[each]] for each in held]
            accounts["size"] = [each / 7 if own in (None, bank[each]) else None for each in held]
            tables["accounts"]["owners"] = {"id": "bank"}
        else:
            tables["transfers"]["owners"] = {"from_account": "from_bank", "to_account": "to_bank"}
        if own is None:
            for table in tables.values():
                table.pop("owners", None)
            for column in ("from_bank", "to_bank"):
                rows.pop(column, None)
            accounts.pop("bank", None)
        if as_edges:
            tables["transfers"] |= {"as": "edges"}
        settings = {"name": "all" if own is None else banks[own], "classes": 2, "tables": tables}
        if dated:
            tables["transfers"]["time"], rows["date"] = "date", days(*date[at])
            rows["bad"] = [int(each > 50) for each in amount[at]]
            settings |= {"label": "transfers.bad", "history": 2}
        else:
            accounts["bad"] = [each % 2 for each in held]
            settings["label"] = "accounts.bad"
        if own is not None:
            settings["partners"] = [banks[1 - own]]
        drafts.append(Draft(settings, {"accounts.parquet": accounts, "transfers.parquet": rows}))
    return drafts


def owned_twice(**kind: bool) -> list[Draft]:
    """Two banks that both say that an account of the first is theirs."""
    north, south, _ = crossing_drafts(**kind)
    accounts, transfers = south.tables["accounts.parquet"], south.tables["transfers.parquet"]
    claimed = next(each for each in transfers["to_account"] if each not in accounts["id"])
    accounts["id"] = [*accounts["id"], claimed]
    for column in accounts.keys() - {"id"}:
        accounts[column] = [*accounts[column], accounts[column][0]]
    for end in ("from", "to"):
        named = zip(transfers[f"{end}_account"], transfers[f"{end}_bank"], strict=True)
        transfers[f"{end}_bank"] = ["south" if account == claimed else bank for account, bank in named]
    return [north, south]


def edge_draft(name: str = "north", *, dated: bool = True, **options: Any) -> Draft:
    """The same bank, whose transfers are edges with labels; without `dated` they have no dates."""
    draft = dated_draft(name, **options)
    transfers = draft.settings["tables"]["transfers"]
    transfers |= {"as": "edges", "key": "id"}
    table = draft.tables["transfers.parquet"]
    table["id"] = [f"T{1000 * options.get('seed', 0) + at}" for at in range(len(table["bad"]))]
    if dated:
        days = {"until": "2024-04-01", "train_until": "2024-07-01", "val_until": "2024-08-15"}
        draft.settings |= {each: day for each, day in days.items() if each not in options}
        return draft
    del transfers["time"]
    return draft.without("date", "transfers.parquet")


def sales_draft(name: str = "north", *, label: str = "purchases.bad", purchases: int = 60, seed: int = 0) -> Draft:
    """A shop: its purchases are edges from a customer to a good, with an amount, and bad if that is above 50."""
    draw = np.random.default_rng(seed)
    customers, goods = [f"{name}-{at}" for at in range(9)], list(range(7))
    amount = draw.integers(1, 100, purchases)
    tables: dict[str, Any] = {
        "customers": {"key": "id", "columns": {"age": {"kind": "number"}}},
        "goods": {"key": "good", "columns": {"kind": {"kind": "category"}}},
        "purchases": {
            "as": "edges",
            "foreign": {"customer": "customers", "good": "goods"},
            "columns": {"amount": {"kind": "number", "scale": "none"}},
        },
    }
    return Draft(
        {"name": name, "label": label, "tables": tables} | ({"classes": 2} if "." in label else {}),
        {
            "customers.parquet": {"id": customers, "age": [at / 9 for at in range(9)]},
            "goods.parquet": {"good": goods, "kind": [["food", "toy"][at % 2] for at in goods]},
            "purchases.parquet": {
                "customer": [customers[at] for at in draw.integers(0, 9, purchases)],
                "good": [goods[at] for at in draw.integers(0, 7, purchases)],
                "amount": [each / 50 for each in amount],
            }
            | ({"bad": [int(each > 50) for each in amount]} if "." in label else {}),
        },
    )
