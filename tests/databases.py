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
