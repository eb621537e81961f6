"""A fingerprint of parties' data, by which a study tells whether they have changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from isthmus.data import rows
from isthmus.data.party import SPLITS, Party

WHOLE = 2**28
"""Bytes of a tensor up to which all of it is read; of a larger one, blocks that are evenly spread."""
BLOCK = 2**16


def fingerprint(parties: Sequence[Party]) -> str:
    """A digest of all that the parties hold, in their order.

    >>> from torch_geometric.data import Data
    >>> graph = Data(x=torch.eye(2), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([0, 1]))
    >>> before = fingerprint([Party.of_graph("bank", graph)])
    >>> graph.x[0, 0] = 2
    >>> fingerprint([Party.of_graph("bank", graph)]) == before
    False
    """
    return joined(digest_of(party) for party in parties)


def joined(digests: Iterable[str]) -> str:
    """The fingerprint of the data of parties with these digests, in this order."""
    return hashlib.blake2b(" ".join(digests).encode(), digest_size=8).hexdigest()


def digest_of(party: Party) -> str:
    """A digest of all that one party holds."""
    digest = hashlib.blake2b(f"{party.name}\0{party.level}\0".encode(), digest_size=8)
    for name, tensor in _tensors(party):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        for part in _parts(tensor):
            digest.update(part)
    return digest.hexdigest()


def digest_of_tables(folder: Path) -> str:
    """A digest of the tables in a party folder, as they are on the disk."""
    found = hashlib.sha256()
    for each in tables_of(folder):
        with each.open("rb") as file:
            found.update(f"{each.name} {hashlib.file_digest(file, 'sha256').hexdigest()} ".encode())
    return found.hexdigest()


def tables_of(folder: Path) -> list[Path]:
    """The files of a party folder that hold its data."""
    return sorted(each for each in folder.iterdir() if each.suffix in (".parquet", ".csv") and each.is_file())


def _tensors(party: Party) -> Iterator[tuple[str, Tensor]]:
    holders = {"graph": party.graph.to_dict(), "border": vars(party.border) if party.border is not None else {}}
    holders["pairs"] = vars(party.pairs) if party.pairs is not None else {}
    holders["party"] = {name: getattr(party, name) for name in (*SPLITS, "ids", "structural")}
    for holder, values in holders.items():
        for name, value in sorted(values.items()):
            if isinstance(value, Tensor) and rows.is_sparse(value):
                yield f"{holder}.{name}.crow", value.crow_indices()
                yield f"{holder}.{name}.col", value.col_indices()
                value = value.values()
            if isinstance(value, Tensor):
                yield f"{holder}.{name}", value
            elif name == "owners":
                yield f"{holder}.{name}", torch.tensor(bytearray("\0".join(value).encode()), dtype=torch.uint8)


def _parts(tensor: Tensor) -> Iterator[memoryview]:
    if not tensor.numel():
        return
    content = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
    step = BLOCK * max(1, content.nbytes // WHOLE)
    for start in range(0, content.nbytes, step):
        yield content[start : start + BLOCK]
