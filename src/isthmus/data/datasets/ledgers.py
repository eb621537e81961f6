"""Generated banks as tables and as typed graphs: customers, accounts, and transfers of which a few launder money."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch
from pydantic import Field
from torch_geometric.data import HeteroData

from isthmus.data.datasets import laundering
from isthmus.data.datasets.laundering import DAY, PATTERNS, YEAR, Town, Transfers
from isthmus.data.datasets.payments import LABELS, Payments, edges_to, features, one_hot, positions
from isthmus.data.matrices import Bools, Ints
from isthmus.data.party import Border, Party
from isthmus.data.pool import DataSet, Pool, Share, check_shares, numpy_generator
from isthmus.data.schema import Schema

BEGIN = datetime(2024, 1, 1)
"""When the period begins: a Monday."""


class Ledgers(DataSet):
    """Customers, accounts and transfers of several banks; the class of a transfer is whether it launders money.

    Few transfers do. They follow the patterns that detection looks for, many across banks, between accounts that have
    ordinary transfers as well. Ordinary transfers have salaries, rents, purchases, collections and money that is
    passed on. No column tells the two apart: what does is the transfers around one.

    A transfer between two banks is in the tables of both, with the same id; it is classified by the sender's bank.
    Each transfer reads the last few earlier transfers of its sender and of its receiver, and what its bank knows of
    their accounts. Banks are the parties, so the cut is `given`. The split is by date.
    """

    name: ClassVar[str] = "ledgers"
    natural: ClassVar[bool] = True

    parties: int = Field(4, ge=1)
    """Banks."""
    customers: int = Field(300, ge=5)
    """Customers of a bank, in the mean; the largest has about three times those of the smallest."""
    days: int = Field(60, ge=7)
    """Days of the period."""
    transfers: int = Field(40, ge=1)
    """Transfers per customer in the period, in the mean."""
    laundering: Share = 0.01
    """Share of the transfers that launder money."""
    fan_in: float = Field(1.0, ge=0)
    """Weight of this pattern among those drawn: several accounts pay one."""
    fan_out: float = Field(1.0, ge=0)
    """One account pays several."""
    cycle: float = Field(1.0, ge=0)
    """Money goes through several accounts and comes back."""
    scatter_gather: float = Field(1.0, ge=0)
    """One account pays several, which pay one."""
    bipartite: float = Field(1.0, ge=0)
    """Each of several accounts pays each of several others."""
    stack: float = Field(1.0, ge=0)
    """Two of these in a row."""
    across: Share = 0.5
    """Share of the accounts of a pattern that are at another bank than its first account."""
    cross: Share = 0.4
    """Share of the payees of ordinary transfers that are at another bank."""
    history: int = Field(3, ge=1)
    """How many earlier transfers of each kind a transfer reads: those sent and those received by its sender and by its
    receiver."""
    borders: bool = False
    """Whether each bank joins transfers by its own accounts only, of which it knows all transfers, and other banks'
    accounts are across its border. Otherwise it joins by all accounts, as far as it knows their transfers."""
    train: Share = 0.6
    """Share of the days to train on, the first ones."""
    val: Share = 0.15
    """Share of the days to validate on, those that follow; the rest is for testing."""

    def load(self, seed: int) -> Pool:
        """The banks as typed graphs.

        >>> pool = Ledgers(parties=2, customers=20, transfers=10).load(seed=0)
        >>> [party.name for party in pool.parties], pool.party.schema.node_types
        (['bank-0', 'bank-1'], ('account', 'customer', 'payment'))
        """
        check_shares(self.train, self.val)
        town, transfers = self.draw(seed)
        payments = _payments(town, transfers)
        parties = tuple(self._party(bank, town, payments) for bank in range(self.parties))
        note = "Generated customers, accounts and transfers; no real ones."
        return Pool(None, len(LABELS), parties=parties, note=note, labels=LABELS, dated=True)

    def draw(self, seed: int) -> tuple[Town, Transfers]:
        """All customers and accounts, and the transfers by time with the pattern of those that launder."""
        if not any(getattr(self, name) for name in PATTERNS) and self.laundering:
            raise self.error("the weights of all patterns are 0: raise one, or set laundering to 0")
        generator = numpy_generator(seed, "ledgers")
        town = Town(self.parties, self.parties * self.customers, self.days * DAY, self.cross, generator)
        wanted = self.parties * self.customers * self.transfers
        shares = {name: getattr(self, name) for name in PATTERNS}
        return town, laundering.draw_transfers(town, wanted, self.laundering, shares, self.across)

    def tables(self, seed: int) -> dict[str, dict[str, pa.Table]]:
        """By bank its tables `customers`, `accounts` and `transfers`; see the function `tables`."""
        town, transfers = self.draw(seed)
        return {f"bank-{bank}": _tables(bank, town, transfers) for bank in range(self.parties)}

    def _party(self, bank: int, town: Town, payments: Payments) -> Party:
        train_until, val_until = self.train * self.days * DAY, (self.train + self.val) * self.days * DAY
        graph = payments.graph(bank, self.history, train_until, val_until, borders=self.borders)
        at, accounts, customers = (
            payments.known_to(bank),
            _own(town.accounts.bank, bank),
            _own(town.customers.bank, bank),
        )
        kind, opened = town.accounts.kind[accounts], town.accounts.opened[accounts] / YEAR
        graph["account"].x = torch.from_numpy(_with_years(one_hot(kind, len(laundering.ACCOUNTS)), opened))
        kinds = one_hot(town.customers.kind[customers], len(laundering.CUSTOMERS))
        regions = one_hot(town.customers.region[customers], len(laundering.REGIONS))
        since = town.customers.since[customers] / YEAR
        graph["customer"].x = torch.from_numpy(_with_years(np.concatenate([kinds, regions], axis=1), since))
        for role, ends in (("sender", payments.sender), ("receiver", payments.receiver)):
            target, source = positions(accounts, ends[at])
            edges_to(graph, ("account", f"is its {role}", "payment"), (source, target))
        holder = np.searchsorted(customers, town.accounts.customer[accounts])
        edges_to(graph, ("customer", "holds", "account"), (holder, np.arange(accounts.size)))
        first_account, first_customer = payments.time.size, payments.time.size + town.accounts.bank.size
        ids = {"payment": at, "account": first_account + accounts, "customer": first_customer + customers}
        all_ids = {name: torch.from_numpy(own) for name, own in ids.items()}
        border = self._border(bank, town, payments, graph, all_ids) if self.borders else None
        return Party.of_graph(f"bank-{bank}", graph, ids=all_ids, border=border)

    def _border(
        self, bank: int, town: Town, payments: Payments, graph: HeteroData, ids: Mapping[str, torch.Tensor]
    ) -> Border:
        """The edges from accounts at other banks to transfers; nobody but these banks knows more of them."""
        schema, at = Schema.of([graph]), ids["payment"].numpy()
        parts = []
        for role, ends in (("sender", payments.sender), ("receiver", payments.receiver)):
            row = np.flatnonzero(town.accounts.bank[ends[at]] != bank)
            kind = schema.edge_types.index(("account", f"is its {role}", "payment"))
            parts.append(np.stack([row, ends[at[row]], np.full(row.size, kind)]))
        row, account, kind = torch.from_numpy(np.concatenate(parts, axis=1))
        before = len(ids["account"]) + len(ids["customer"])  # nodes are sorted by the names of their types
        others = [each for each in range(self.parties) if each != bank]
        owner = torch.from_numpy(np.searchsorted(others, town.accounts.bank[account.numpy()]))
        names = tuple(f"bank-{each}" for each in others)
        nothing = torch.zeros(row.numel(), schema.edge_width)
        return Border(row + before, account + payments.time.size, owner, names, edge_type=kind, edge_attr=nothing)


def tables(seed: int = 0, **options: Any) -> dict[str, dict[str, pa.Table]]:
    """By bank its tables `customers`, `accounts` and `transfers`, with the options of `Ledgers`.

    `accounts` has the bank's own accounts and those at other banks that its customers deal with, of which it knows no
    more than the bank. A transfer between two banks is in both banks' `transfers` with the same id. The column
    `laundering` is empty at the receiver's bank: the sender's bank classifies a transfer.

    >>> found = tables(parties=2, customers=20, transfers=10)
    >>> list(found), list(found["bank-0"]), found["bank-0"]["accounts"].column_names
    (['bank-0', 'bank-1'], ['customers', 'accounts', 'transfers'], ['account', 'bank', 'customer', 'kind', 'opened'])
    """
    return Ledgers(**options).tables(seed)


def write(folder: Path | str, seed: int = 0, **options: Any) -> list[Path]:
    """Write the tables as CSV files, a folder for each bank, and return these folders.

    `write("ledgers", parties=2)` writes `ledgers/bank-0/customers.csv` and five more.
    """
    from pyarrow import csv

    folders = []
    for bank, found in tables(seed, **options).items():
        folders.append(Path(folder) / bank)
        folders[-1].mkdir(parents=True, exist_ok=True)
        for name, table in found.items():
            csv.write_csv(table, folders[-1] / f"{name}.csv", csv.WriteOptions(quoting_style="none"))
    return folders


def _payments(town: Town, transfers: Transfers) -> Payments:
    bank, other = town.accounts.bank[transfers.sender], town.accounts.bank[transfers.receiver]
    x = features(
        transfers.time,
        transfers.amount,
        bank != other,
        (transfers.currency, len(laundering.CURRENCIES)),
        (transfers.channel, len(laundering.CHANNELS)),
    )
    ends = transfers.sender, transfers.receiver
    return Payments(transfers.time, *ends, bank, other, transfers.amount, x, transfers.pattern >= 0)


def _own(bank: Ints, own: int) -> Ints:
    return np.flatnonzero(bank == own)


def _with_years(columns: Any, years: Any) -> Any:
    """A further column: years before the start, logarithmic; years after it count negative."""
    scaled = np.sign(-years) * np.log1p(np.abs(years))
    return np.concatenate([columns, scaled[:, None]], axis=1, dtype=np.float32)


def _tables(bank: int, town: Town, transfers: Transfers) -> dict[str, pa.Table]:
    sends, receives = (town.accounts.bank[end] == bank for end in (transfers.sender, transfers.receiver))
    known = transfers.take(sends | receives)
    customers = _own(town.customers.bank, bank)
    accounts = np.union1d(_own(town.accounts.bank, bank), np.concatenate([known.sender, known.receiver]))
    foreign = town.accounts.bank[accounts] != bank
    of_accounts = {
        "account": _texts("A", accounts),
        "bank": _names([f"bank-{each}" for each in range(town.banks)], town.accounts.bank[accounts]),
        "customer": _texts("C", town.accounts.customer[accounts], foreign),
        "kind": _names(laundering.ACCOUNTS, town.accounts.kind[accounts], foreign),
        "opened": _dates(town.accounts.opened[accounts], foreign),
    }
    of_customers = {
        "customer": _texts("C", customers),
        "kind": _names(laundering.CUSTOMERS, town.customers.kind[customers]),
        "region": _names(laundering.REGIONS, town.customers.region[customers]),
        "since": _dates(town.customers.since[customers]),
    }
    received = town.accounts.bank[known.sender] != bank
    of_transfers = {
        "transfer": _texts("T", np.flatnonzero(sends | receives)),
        "time": pa.array(np.datetime64(BEGIN, "s") + known.time.astype("timedelta64[s]")),
        "from_account": _texts("A", known.sender),
        "to_account": _texts("A", known.receiver),
        "amount": pa.array(known.amount),
        "currency": _names(laundering.CURRENCIES, known.currency),
        "channel": _names(laundering.CHANNELS, known.channel),
        "laundering": _names(("no", "yes"), (known.pattern >= 0).astype(np.int64), received),
    }
    found: Mapping[str, Any] = {"customers": of_customers, "accounts": of_accounts, "transfers": of_transfers}
    return {name: pa.table(columns) for name, columns in found.items()}


def _texts(letter: str, numbers: Ints, empty: Bools | None = None) -> pa.Array:
    return pa.array([f"{letter}{number:07d}" for number in numbers.tolist()], mask=empty)


def _names(names: Any, codes: Ints, empty: Bools | None = None) -> pa.Array:
    return pa.array(np.array(names, dtype=object)[codes], mask=empty)


def _dates(seconds: Ints, empty: Bools | None = None) -> pa.Array:
    days = np.datetime64(BEGIN, "D") + (seconds // DAY).astype("timedelta64[D]")
    return pa.array(days, mask=empty)
