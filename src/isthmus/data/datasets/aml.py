"""IBM's generated payments with laundering, in which banks are natural parties."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import torch
from pydantic import Field

from isthmus.data.datasets.payments import LABELS, Payments, features
from isthmus.data.datasets.public import PublicDataSet, data_root
from isthmus.data.datasets.tables import read_table
from isthmus.data.matrices import Ints
from isthmus.data.party import Party
from isthmus.data.pool import Pool, Share, check_shares

HEADER = (
    "Timestamp",
    "From Bank",
    "Account",
    "To Bank",
    "Account",
    "Amount Received",
    "Receiving Currency",
    "Amount Paid",
    "Payment Currency",
    "Payment Format",
    "Is Laundering",
)
"""Columns of the file: the first account pays, the second one receives. Banks are numbers whose leading zeros count."""


class IbmAml(PublicDataSet):
    """Payments between banks by IBM's generator AMLworld (Altman et al. 2023); the class is whether one is laundering.

    A payment is a node that reads the last few earlier payments of its sender and its receiver. It is in the graphs of
    both banks and classified by the sender's. Banks are the parties, so the cut is `given`; the split is by date.

    The file is `HI-Small_Trans.csv`, or that of another title, from Kaggle (ealtman2019,
    "IBM Transactions for Anti Money Laundering (AML)"), which asks for an account.
    """

    name: ClassVar[str] = "ibm-aml"
    natural: ClassVar[bool] = True
    folder: ClassVar[str] = "ibm-aml"
    url: ClassVar[str] = "https://www.kaggle.com/datasets/ealtman2019/ibm-transactions-for-anti-money-laundering-aml"

    title: Literal["HI-Small", "HI-Medium", "HI-Large", "LI-Small", "LI-Medium", "LI-Large"] = "HI-Small"  # type: ignore[misc]
    """Which file: with a higher or a lower share of laundering, and its size."""
    parties: int = Field(20, ge=0)
    """So many banks, those that send most payments; 0 takes all. Others are known only by what these deal with them."""
    history: int = Field(3, ge=1)
    """How many earlier payments of each kind a payment reads: those sent and those received by its sender and by its
    receiver."""
    train: Share = 0.6
    """Share of the payments to train on, the earliest ones."""
    val: Share = 0.2
    """Share of the payments to validate on, those that follow; the rest is for testing."""

    def raw_folder(self) -> Path:
        return data_root() / self.folder

    def required_files(self) -> Sequence[str]:
        return (f"{self.title}_Trans.csv",)

    def download(self, folder: Path) -> None:
        raise ValueError("Kaggle asks for an account")

    def load(self, seed: int) -> Pool:
        check_shares(self.train, self.val)
        with self.published_files() as raw:
            names, payments = read_payments(raw / self.required_files()[0])
        sent = np.bincount(payments.bank, minlength=len(names))
        order = np.argsort(-sent, kind="stable")[: self.parties or len(names)]
        banks = [int(bank) for bank in np.sort(order) if sent[bank]]
        until = [float(np.quantile(payments.time, share)) for share in (self.train, self.train + self.val)]
        parties = tuple(self._party(bank, names[bank], payments, *until) for bank in banks)
        note = "Payments that IBM's generator AMLworld made; no real ones."
        return Pool(None, len(LABELS), parties=parties, note=note, labels=LABELS, dated=True)

    def _party(self, bank: int, name: str, payments: Payments, train_until: float, val_until: float) -> Party:
        graph = payments.graph(bank, self.history, train_until, val_until)
        return Party.of_graph(f"bank-{name}", graph, ids={"payment": torch.from_numpy(payments.known_to(bank))})


def read_payments(path: Path) -> tuple[list[str], Payments]:
    """The names of the banks, and the payments in the order of the file."""
    types: dict[int, Any] = {0: pa.timestamp("s"), 5: pa.float64(), 7: pa.float64(), 10: pa.int64()}
    table = read_table(path, HEADER, types)
    if empty := next((HEADER[at] for at in range(len(HEADER)) if table.column(at).null_count), None):
        raise ValueError(f"{path.name}: a field of column {empty} is empty")
    banks, bank, other = _codes(table.column(1), table.column(3))
    _, sender, receiver = _codes(*(_joined(table.column(at), table.column(at + 1)) for at in (1, 3)))
    received, paid = (_codes(table.column(at)) for at in (6, 8))
    formats = _codes(table.column(9))
    monday = 3 * 86400  # 1970 began on a Thursday
    time = table.column(0).to_numpy().astype("datetime64[s]").astype(np.int64) + monday
    amount = np.maximum(table.column(7).to_numpy(), 0.01)
    x = features(time, amount, bank != other, *((each[1], len(each[0])) for each in (received, paid, formats)))
    launders = table.column(10).to_numpy() == 1
    return banks, Payments(time, sender, receiver, bank, other, amount, x, launders)


def _joined(bank: Any, account: Any) -> Any:
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(bank, account, "/")


def _codes(*columns: Any) -> tuple[Any, ...]:
    """The different values of some columns, sorted, and for each column the places of its values among them."""
    values, codes = np.unique(np.concatenate([each.to_numpy().astype(str) for each in columns]), return_inverse=True)
    parts: list[Ints] = np.split(codes, np.cumsum([len(each) for each in columns])[:-1])
    return (values.tolist(), *parts)
