"""Bitcoin transactions by whether they are illicit, and the wallets that they join."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import torch
from pydantic import Field
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from isthmus.data.datasets.bags import directed_edges, undirected_edges
from isthmus.data.datasets.payments import edges_to, split_by_date
from isthmus.data.datasets.public import PublicDataSet, Sizes, data_root
from isthmus.data.datasets.tables import numbers, read_table, rows_of
from isthmus.data.matrices import Ints
from isthmus.data.party import Party
from isthmus.data.pool import Pool
from isthmus.errors import IsthmusError

LABELS = ("licit", "illicit")
"""The two classes; the files call them 2 and 1."""


class BySteps(PublicDataSet):
    """Bitcoin transactions in 49 time steps of about two weeks; the published split tests on steps 35 to 49."""

    val_from: int = Field(30, ge=2)
    """First time step to validate on; earlier ones are for training."""
    test_from: int = Field(35, ge=2)
    """First time step to test on."""

    def raw_folder(self) -> Path:
        return data_root() / self.folder

    def load(self, seed: int) -> Pool:
        if self.val_from > self.test_from:
            raise self.error(f"val_from = {self.val_from} comes after test_from = {self.test_from}: lower it")
        with self.published_files() as raw:
            party = self.parse(raw)
        return Pool(party, len(LABELS), labels=LABELS)

    @abstractmethod
    def parse(self, raw: Path) -> Party:
        """All data as one party, from the files as published."""

    def labelled(self, y: Tensor, step: Ints) -> dict[str, Tensor]:
        """The labels of a node type, and the masks of those that are known, from their time steps."""
        found = split_by_date(step, self.val_from, self.test_from)
        return {"y": y} | {f"{name}_mask": torch.from_numpy(mask) & (y >= 0) for name, mask in found.items()}


class Elliptic(BySteps):
    """Bitcoin transactions by whether they are illicit, joined where one pays another (Weber et al. 2019).

    Transactions of different time steps are not joined. Most have no label. Put the three files
    `elliptic_txs_features.csv`, `elliptic_txs_classes.csv` and `elliptic_txs_edgelist.csv` from Kaggle into the folder;
    the first of them has no header. The time step is no feature here: in testing all are new.
    """

    name: ClassVar[str] = "elliptic"
    folder: ClassVar[str] = "elliptic"
    url: ClassVar[str] = "https://www.kaggle.com/datasets/ellipticco/elliptic-data-set"
    sizes: ClassVar[Sizes] = Sizes(nodes=203769, edges=234355, features=165, classes=2)

    undirected: bool = True
    """Make payments edges both ways; otherwise an edge runs from a transaction to the one that spends its output."""

    def required_files(self) -> Sequence[str]:
        return tuple(f"elliptic_txs_{part}.csv" for part in ("features", "classes", "edgelist"))

    def download(self, folder: Path) -> None:
        raise ValueError("Kaggle asks for an account")

    def parse(self, raw: Path) -> Party:
        path, classes, edges = (raw / name for name in self.required_files())
        ids, step, x = _without_header(path)
        y = _labels(classes, ("txId", "class"), pa.array(ids), pa.int64())
        pairs = read_table(edges, ("txId1", "txId2"), {0: pa.int64(), 1: pa.int64()})
        source, target = (rows_of(column, pa.array(ids), edges) for column in pairs.columns)
        edge_index = (undirected_edges if self.undirected else directed_edges)(source, target, len(ids))
        graph = Data(x=torch.from_numpy(x), edge_index=edge_index, **self.labelled(y, step))
        return Party.of_graph("pooled", graph, ids=torch.arange(len(ids)))


class EllipticPlusPlus(BySteps):
    """The transactions of Elliptic with more features, and the wallets that pay and receive (Elmougy and Liu 2023).

    A wallet is a node for each time step in which it is active, so that steps are not joined. Its features are as
    published; figures of its whole life are among them. Wallets join the transactions that they pay into (AddrTx) and
    get paid from (TxAddr). The other features of transactions than those of Elliptic, and all of wallets, are amounts
    and counts: x becomes sign(x) ln(1 + |x|). Fields that are empty are 0.

    The files are those of the authors' repository, github.com/git-disl/EllipticPlusPlus.
    """

    name: ClassVar[str] = "elliptic-plus-plus"
    folder: ClassVar[str] = "elliptic-plus-plus"
    url: ClassVar[str] = "https://drive.google.com/drive/folders/1MRPXz79Lu_JGLlJ21MDfML44dKN9R08l"

    classify: Literal["transaction", "wallet"] = "transaction"
    """What has classes: transactions, or wallets, which have their label in each of their time steps."""

    def required_files(self) -> Sequence[str]:
        tables = ("txs_features", "txs_classes", "txs_edgelist", "wallets_features", "wallets_classes")
        return tuple(f"{name}.csv" for name in (*tables, "AddrTx_edgelist", "TxAddr_edgelist"))

    def download(self, folder: Path) -> None:
        raise ValueError("the files are in a folder of Google Drive")

    def parse(self, raw: Path) -> Party:
        txs, tx_classes, tx_edges, wallets, wallet_classes, paying, paid = (
            raw / name for name in self.required_files()
        )
        graph = HeteroData()
        tx, tx_step, tx_x = _with_header(txs, "txId", pa.int64())
        tx_x[:, 165:] = _logarithmic(tx_x[:, 165:])
        address, step, x = _with_header(wallets, "address", pa.string())
        graph["transaction"].x, graph["wallet"].x = torch.from_numpy(tx_x), torch.from_numpy(_logarithmic(x))
        if self.classify == "transaction":
            y = _labels(tx_classes, ("txId", "class"), tx, pa.int64())
            graph["transaction"].update(self.labelled(y, tx_step))
        else:
            y = _labels(wallet_classes, ("address", "class"), address, pa.string())
            graph["wallet"].update(self.labelled(y, step))
        pairs = read_table(tx_edges, ("txId1", "txId2"), {0: pa.int64(), 1: pa.int64()})
        edges_to(graph, ("transaction", "pays", "transaction"), [rows_of(each, tx, tx_edges) for each in pairs.columns])
        names, code = np.unique(address.to_numpy(zero_copy_only=False).astype(str), return_inverse=True)
        for path, header, kind in (
            (paying, ("input_address", "txId"), ("wallet", "pays into", "transaction")),
            (paid, ("txId", "output_address"), ("transaction", "pays out to", "wallet")),
        ):
            at = header.index("txId")
            pairs = read_table(path, header, {at: pa.int64()})
            of_tx = rows_of(pairs.column(at), tx, path)
            of_name = rows_of(pairs.column(1 - at), pa.array(names), path)
            of_wallet = _at_step(code, step, of_name, tx_step[of_tx])
            held = of_wallet >= 0
            edges_to(graph, kind, [of_tx[held], of_wallet[held]] if at == 0 else [of_wallet[held], of_tx[held]])
        return Party.of_graph("pooled", graph, ids=torch.arange(len(tx) + len(address)))


def _at_step(code: Ints, step: Ints, wanted: Ints, moment: Ints) -> Ints:
    """The row of each wanted wallet in a time step, -1 if it has none there."""
    steps = int(max(step.max(initial=0), moment.max(initial=0))) + 1
    key, order = code * steps + step, np.argsort(code * steps + step, kind="stable")
    place = np.searchsorted(key[order], wanted * steps + moment).clip(max=max(key.size - 1, 0))
    found = order[place]
    return np.where(key[found] == wanted * steps + moment, found, -1)


def _without_header(path: Path) -> tuple[Any, Ints, Any]:
    """Ids, time steps and the further columns."""
    from isthmus.data.datasets.text import read_numbers

    values = read_numbers(path, np.float64)  # holds whole numbers up to 2^53
    if values.shape[1] < 3:
        raise ValueError(f"{path.name} has {values.shape[1]} columns; expected an id, a time step and features")
    return values[:, 0].astype(np.int64), values[:, 1].astype(np.int64), values[:, 2:].astype(np.float32)


def _with_header(path: Path, key: str, kind: Any) -> tuple[Any, Ints, Any]:
    table = read_table(path, (key, "Time step"), {0: kind, 1: pa.int64()}, rest=pa.float64())
    return table.column(0).combine_chunks(), table.column(1).to_numpy(), numbers(table, 2, path)


def _labels(path: Path, header: Sequence[str], wanted: Any, kind: Any) -> Tensor:
    """The class of each wanted key, -1 if it is not known; the file says 1 for illicit and 2 for licit."""
    import pyarrow.compute as pc

    table = read_table(path, header, {0: kind})
    names = table.column(1).to_numpy().astype(str)
    if wrong := next((name for name in np.unique(names) if name not in ("1", "2", "3", "unknown")), None):
        raise ValueError(f"{path.name} has a class {wrong}; expected 1, 2, 3 or unknown")
    known = np.select([names == "1", names == "2"], [1, 0], -1)
    rows = pc.index_in(wanted, value_set=table.column(0).combine_chunks())
    if rows.null_count:
        raise IsthmusError(f"{path.name} has no class of {wanted.filter(pc.is_null(rows))[0].as_py()}: add it")
    return torch.from_numpy(known[rows.to_numpy(zero_copy_only=False).astype(np.int64)])


def _logarithmic(x: Any) -> Any:
    return np.sign(x) * np.log1p(np.abs(x))
