"""One encoding of features for all parties, from sums of what each counts in its own files."""

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
    """How every feature column becomes numbers.

    Arguments:
        columns: the columns, in the order of their features.
        totals: for each column the sums over all parties that its encoding follows from.
    """

    columns: dict[str, Column]
    totals: dict[str, Totals] = field(default_factory=dict)

    @classmethod
    def fit(cls, parties: Sequence[Contents], key: bytes | None = None) -> Encoding:
        """The encoding of these parties' features; no party's rows are looked at but by itself.

        Means come first, deviations from them second: two sums that each party takes part in.
        """
        columns = parties[0].settings.feature_columns()
        totals = {}
        for column, kind in columns.items():
            first = add_totals(kind.first_totals(column, party.features, key) for party in parties)
            second = add_totals(kind.second_totals(column, party.features, first) for party in parties)
            totals[column] = {**first, **second}
        return cls(columns, totals)

    def features(self, contents: Contents, key: bytes | None = None) -> Tensor:
        """Features of one party's nodes, `[nodes, features]`, sparse where a column is."""
        return self.described(contents, key)[0]

    def described(self, contents: Contents, key: bytes | None = None) -> tuple[Tensor, Tensor]:
        """The features, and which columns of them follow from the edges, ascending."""
        if contents.x is not None:
            assert contents.settings.smiles is not None
            return contents.x, structural_columns(contents.settings.smiles.features)
        table = contents.features
        parts = [kind.encode(column, table, self.totals[column], key) for column, kind in self.columns.items()]
        kinds = zip(self.columns.items(), parts, strict=True)
        structural = torch.cat([_structural(*named, part.size(1)) for named, part in kinds]).nonzero().squeeze(1)
        if len(parts) == 1:
            return parts[0], structural
        if any(rows.is_sparse(part) for part in parts):
            return _side_by_side(parts), structural
        return torch.cat(parts, dim=1), structural


def _structural(column: str, kind: Column, width: int) -> Tensor:
    """A mask of the column's features that follow from the edges."""
    if isinstance(kind.structural, bool):
        return torch.full((width,), kind.structural)
    if isinstance(kind, Category) and kind.values is None:
        raise IsthmusError(f"column '{column}': the order of its features is drawn: say structural = true or false")
    if max(kind.structural, default=0) >= width:
        raise IsthmusError(
            f"column '{column}': structural says {max(kind.structural)}, its features are 0 to {width - 1}"
        )
    return torch.isin(torch.arange(width), torch.tensor(kind.structural, dtype=torch.long))


def add_totals(totals: Iterable[Totals]) -> Totals:
    """Totals of several parties added up, those with `ids` row by row over all ids that occur.

    >>> first = {"ids": torch.tensor([3, 9]), "counts": torch.tensor([1, 2])}
    >>> both = add_totals([first, {"ids": torch.tensor([9]), "counts": torch.tensor([5])}])
    >>> both["ids"].tolist(), both["counts"].tolist()
    ([3, 9], [1, 7])
    """
    parts = list(totals)
    if "ids" in parts[0]:
        ids, place = torch.unique(torch.cat([part["ids"] for part in parts]), return_inverse=True)
        keyed = {name: torch.cat([part[name] for part in parts]) for name in parts[0] if name != "ids"}
        sums = {name: value.new_zeros(ids.numel()).index_add(0, place, value) for name, value in keyed.items()}
        return {"ids": ids, **sums}
    return {name: sum((part[name] for part in parts[1:]), parts[0][name]) for name in parts[0]}


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """Matrices next to each other as one CSR matrix."""
    blocks = [matrices.from_tensor(part if rows.is_sparse(part) else rows.to_csr(part)) for part in parts]
    return matrices.to_tensor(hstack(blocks, format="csr"))
