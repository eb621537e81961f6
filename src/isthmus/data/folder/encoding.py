"""Encode the feature columns of all parties in the same way, from sums over the parties."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from scipy.sparse import hstack
from torch import Tensor

from isthmus.data import matrices, rows
from isthmus.data.folder.columns import Category, Column, Totals
from isthmus.data.folder.reading import Contents
from isthmus.data.smiles import structural_columns
from isthmus.errors import IsthmusError


@dataclass(frozen=True)
class Encoding:
    """The encoding of the feature columns, the same for all parties.

    Arguments:
        columns: the columns by name, in the order of their features.
        totals: for each column the sums over all parties that its encoding depends on.
    """

    columns: dict[str, Column]
    totals: dict[str, Totals] = field(default_factory=dict)

    @classmethod
    def fit(cls, parties: Sequence[Contents], key: bytes | None = None) -> Encoding:
        """Return the encoding for these parties.

        Each party computes sums over its own rows in two steps: first for means, then for deviations from the means.
        """
        columns = parties[0].settings.feature_columns()
        totals = {}
        for name, column in columns.items():
            first = add_totals(column.first_totals(name, party.features, key) for party in parties)
            second = add_totals(column.second_totals(name, party.features, first) for party in parties)
            totals[name] = {**first, **second}
        return cls(columns, totals)

    def encode(self, contents: Contents, key: bytes | None = None) -> tuple[Tensor, Tensor]:
        """Return a party's features and, in ascending order, the positions of those that are computed from the edges.

        The features, `[nodes, features]`, are sparse if those of any column are.
        """
        if contents.x is not None:
            assert contents.settings.smiles is not None
            return contents.x, structural_columns(contents.settings.smiles.features)
        parts = [
            column.encode(name, contents.features, self.totals[name], key) for name, column in self.columns.items()
        ]
        masks = [
            _structural(name, column, part.size(1))
            for (name, column), part in zip(self.columns.items(), parts, strict=True)
        ]
        structural = torch.cat(masks).nonzero().squeeze(1)
        if len(parts) == 1:
            return parts[0], structural
        if not any(rows.is_sparse(part) for part in parts):
            return torch.cat(parts, dim=1), structural
        blocks = [matrices.from_tensor(part if rows.is_sparse(part) else rows.to_csr(part)) for part in parts]
        return matrices.to_tensor(hstack(blocks, format="csr")), structural


def _structural(name: str, column: Column, width: int) -> Tensor:
    """Return a mask of the column's features that are computed from the edges."""
    if isinstance(column.structural, bool):
        return torch.full((width,), column.structural)
    if isinstance(column, Category) and column.values is None:
        raise IsthmusError(f"column '{name}': its features have no fixed order: set structural = true or false")
    if max(column.structural, default=0) >= width:
        raise IsthmusError(
            f"column '{name}': structural has position {max(column.structural)}, but its features are 0 to {width - 1}"
        )
    return torch.isin(torch.arange(width), torch.tensor(column.structural, dtype=torch.long))


def add_totals(totals: Iterable[Totals]) -> Totals:
    """Add up the totals of several parties; totals with `ids` are added row by row, for every id that occurs.

    >>> first = {"ids": torch.tensor([3, 9]), "counts": torch.tensor([1, 2])}
    >>> both = add_totals([first, {"ids": torch.tensor([9]), "counts": torch.tensor([5])}])
    >>> both["ids"].tolist(), both["counts"].tolist()
    ([3, 9], [1, 7])
    """
    parts = list(totals)
    if "ids" in parts[0]:
        ids, position = torch.unique(torch.cat([part["ids"] for part in parts]), return_inverse=True)
        keyed = {name: torch.cat([part[name] for part in parts]) for name in parts[0] if name != "ids"}
        sums = {name: value.new_zeros(ids.numel()).index_add(0, position, value) for name, value in keyed.items()}
        return {"ids": ids, **sums}
    return {name: sum((part[name] for part in parts[1:]), parts[0][name]) for name in parts[0]}
