"""Typed graphs of a bank's payments, in which nothing later than a payment is read by its prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import HeteroData

from isthmus.data.history import histories
from isthmus.data.matrices import Bools, Floats, Ints
from isthmus.data.schema import EdgeType

LABELS = ("ordinary", "laundering")
"""The two classes of payments."""
RELATIONS = {
    ("sender", "sender"): "sent by its sender",
    ("sender", "receiver"): "received by its sender",
    ("receiver", "sender"): "sent by its receiver",
    ("receiver", "receiver"): "received by its receiver",
}
"""Names of the edges from earlier payments to a payment."""


@dataclass(frozen=True, eq=False)
class Payments:
    """Payments of all banks by position.

    Arguments:
        time: seconds from any start.
        sender, receiver: numbers of accounts.
        bank, other_bank: positions of the sender's and the receiver's bank.
        amount: what is paid, above 0.
        x: features, `[payments, features]`.
        launders: whether each is laundering.
    """

    time: Ints
    sender: Ints
    receiver: Ints
    bank: Ints
    other_bank: Ints
    amount: Floats
    x: NDArray[np.float32]
    launders: Bools

    def known_to(self, bank: int) -> Ints:
        """Positions of the payments that a bank sends or receives, ascending."""
        return np.flatnonzero((self.bank == bank) | (self.other_bank == bank))

    def graph(self, bank: int, last: int, train_until: float, val_until: float, *, borders: bool = False) -> HeteroData:
        """The payments that a bank knows, joined by `history`; the bank classifies those that it sends.

        A payment from another bank is a node, for payments that follow it, and has no label here.

        Arguments:
            borders: leave it to each bank to join payments by its own accounts, whose payments it knows all.
        """
        at = self.known_to(bank)
        own, time = self.bank[at] == bank, self.time[at]
        sender, receiver = self.sender[at], self.receiver[at]
        if borders:
            sender, receiver = np.where(own, sender, -1), np.where(self.other_bank[at] == bank, receiver, -1)
        graph = HeteroData()
        graph["payment"].x = torch.from_numpy(self.x[at])
        graph["payment"].y = torch.from_numpy(np.where(own, self.launders[at].astype(np.int64), -1))
        for name, mask in split_by_date(time, train_until, val_until).items():
            graph["payment"][f"{name}_mask"] = torch.from_numpy(mask & own)
        for kind, (edges, columns) in history(time, sender, receiver, self.amount[at], last).items():
            graph[kind].edge_index, graph[kind].edge_attr = edges, columns
        return graph


def split_by_date(time: Ints, train_until: float, val_until: float) -> dict[str, Bools]:
    """Masks of the rows before `train_until`, of those from then and before `val_until`, and of the rest.

    >>> {name: mask.tolist() for name, mask in split_by_date(np.array([1, 2, 3]), 2, 3).items()}
    {'train': [True, False, False], 'val': [False, True, False], 'test': [False, False, True]}
    """
    train, val = time < train_until, time < val_until
    return {"train": train, "val": val & ~train, "test": ~val & ~train}


def history(
    time: Ints, sender: Ints, receiver: Ints, amount: Floats, last: int
) -> dict[EdgeType, tuple[Tensor, Tensor]]:
    """Edges from earlier payments to each payment, and their columns `[edges, 2]`.

    The columns are ln(1 + the hours between the two) / 4, and the logarithm of the payment's amount over the earlier
    one's, between -5 and 5.

    Arguments:
        last: how many earlier payments of each relation.
    """
    found = {}
    for names, edges in histories(time, {"sender": sender, "receiver": receiver}, last).items():
        earlier, now = edges
        hours = np.log1p((time[now] - time[earlier]) / 3600) / 4
        ratio = np.log(amount[now] / amount[earlier]).clip(-5, 5)
        columns = torch.from_numpy(np.stack([hours, ratio], axis=1).astype(np.float32))
        found["payment", RELATIONS[names], "payment"] = torch.from_numpy(edges), columns
    return found


def features(time: Ints, amount: Floats, crosses: Bools, *categories: tuple[Ints, int]) -> NDArray[np.float32]:
    """Features of payments: ln(amount) scaled, the time of the day and the week, whether two banks are involved, and a
    column for each value of each category.

    Arguments:
        time: seconds from a midnight that begins a Monday.
        categories: codes and how many there are.
    """
    turn = 2 * np.pi * (time % 86400) / 86400
    weekend = time // 86400 % 7 >= 5
    columns = [(np.log(amount) - 4) / 2, np.sin(turn), np.cos(turn), weekend, crosses]
    return np.concatenate(
        [np.stack(columns, axis=1), *(one_hot(*each) for each in categories)], axis=1, dtype=np.float32
    )


def one_hot(codes: Ints, values: int) -> NDArray[np.float32]:
    """A column for each value, `[rows, values]`; no column has a code that is negative.

    >>> one_hot(np.array([1, -1]), 2).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    return (codes[:, None] == np.arange(values)).astype(np.float32)


def positions(held: Ints, wanted: Ints) -> tuple[Ints, Ints]:
    """The places of those wanted that are held, and where each is in `held`, which ascends.

    >>> [each.tolist() for each in positions(np.array([3, 5]), np.array([5, 4, 3]))]
    [[0, 2], [1, 0]]
    """
    place = np.searchsorted(held, wanted).clip(max=max(held.size - 1, 0))
    found = np.flatnonzero(held[place] == wanted) if held.size else np.zeros(0, dtype=np.int64)
    return found, place[found]


def edges_to(graph: HeteroData, kind: EdgeType, pairs: Sequence[Ints]) -> None:
    """Add edges of a type, from sources and targets."""
    graph[kind].edge_index = torch.from_numpy(np.stack(pairs).astype(np.int64))
