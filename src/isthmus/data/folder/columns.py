"""Kinds of feature columns: how each is checked, what parties add up to agree on its encoding, how it becomes numbers.

All parties declare the same columns. An encoding that depends on the data (a mean, the values that occur) follows from
totals: each party hands in sums over its own rows, and only the sums over all parties are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from isthmus.data import rows
from isthmus.data.folder.arrow import is_listed, is_numeric, lengths_of, mask_of, named, numbers_of, one, plain, texts
from isthmus.data.folder.problems import Mask, Problem, at_rows
from isthmus.data.ids import hashed
from isthmus.options import Registered

Totals = dict[str, Tensor]
Floats = NDArray[np.float64]


class Column(Registered):
    """A feature column of `nodes.parquet` and how it is encoded."""

    kind: ClassVar[str] = "kind of column"
    home: ClassVar[str] = "isthmus.data.folder.columns"

    def reads(self, column: str) -> list[str]:
        """The columns of the file that make up this one."""
        return [column]

    def check(self, column: str, table: pa.Table, file: str) -> Iterator[Problem]:
        """What is wrong with the values; the columns themselves are there."""
        raise NotImplementedError

    def first_totals(self, column: str, table: pa.Table, key: bytes | None) -> Totals:
        """What this party adds to the first sums, which may be keyed by `ids`."""
        return {}

    def second_totals(self, column: str, table: pa.Table, first: Totals) -> Totals:
        """What this party adds to the second sums, once the first are known."""
        return {}

    def encode(self, column: str, table: pa.Table, totals: Totals, key: bytes | None) -> Tensor:
        """The features, `[nodes, width]`, dense or sparse CSR."""
        raise NotImplementedError


class Number(Column):
    """A number, brought to mean 0 and deviation 1 over all parties' nodes, or taken as it is."""

    name: ClassVar[str] = "number"

    scale: Literal["standard", "none"] = "standard"
    """Subtract the mean of all parties and divide by their standard deviation, or leave it."""
    missing: Literal["error", "mean"] = "error"
    """A missing value is an error, or is taken to be the mean of all parties."""

    def check(self, column: str, table: pa.Table, file: str) -> Iterator[Problem]:
        values = table.column(column)
        if not is_numeric(values.type):
            yield Problem(file, f"column '{column}' holds {named(values.type)}: a number column holds numbers")
            return
        found = numbers_of(values)
        yield from at_rows(file, f"column '{column}' is infinite: mend it", np.isinf(found))
        if self.missing == "error":
            what = f"column '{column}' has no value: fill it in, or declare missing = \"mean\""
            yield from at_rows(file, what, np.isnan(found))

    def first_totals(self, column: str, table: pa.Table, key: bytes | None) -> Totals:
        found = _present(table.column(column))
        return {"count": torch.tensor(found.size), "sum": torch.tensor(found.sum())}

    def second_totals(self, column: str, table: pa.Table, first: Totals) -> Totals:
        apart = _present(table.column(column)) - _mean(first)
        return {"squares": torch.tensor((apart**2).sum())}

    def encode(self, column: str, table: pa.Table, totals: Totals, key: bytes | None) -> Tensor:
        found = numbers_of(table.column(column))
        if self.missing == "mean":
            found = np.where(np.isnan(found), _mean(totals), found)
        if self.scale == "standard":
            deviation = float((totals["squares"] / totals["count"].clamp(min=1)).sqrt())
            found = (found - _mean(totals)) / (deviation or 1.0)
        return torch.from_numpy(found).to(torch.get_default_dtype()).unsqueeze(1)


class Category(Column):
    """One of several values, one-hot; a missing value is all zeros."""

    name: ClassVar[str] = "category"

    values: list[str | int] | None = None
    """The values there are, in the order of their features; without, those that any party has, in the order of their
    keyed hashes, so that nobody has to tell another which they are."""

    def check(self, column: str, table: pa.Table, file: str) -> Iterator[Problem]:
        found = plain(table.column(column))
        if not (pa.types.is_string(found.type) or pa.types.is_integer(found.type) or pa.types.is_boolean(found.type)):
            what = f"column '{column}' holds {named(found.type)}: a category is a text or a whole number"
            yield Problem(file, what)
        elif self.values is not None:
            known = pa.array([str(value) for value in self.values], pa.string())
            outside = pc.and_(pc.is_valid(found), pc.invert(pc.is_in(texts(found), value_set=known)))
            what = f"column '{column}' has a value that is not declared: add it to 'values', at all parties"
            yield from at_rows(file, what, mask_of(outside))

    def first_totals(self, column: str, table: pa.Table, key: bytes | None) -> Totals:
        if self.values is not None:
            return {}
        counts = pc.value_counts(texts(table.column(column)).drop_null())
        numbers = hashed(counts.field("values").to_pylist(), key)
        return {"ids": numbers, "counts": torch.tensor(counts.field("counts").to_pylist(), dtype=torch.long)}

    def encode(self, column: str, table: pa.Table, totals: Totals, key: bytes | None) -> Tensor:
        coded = pc.dictionary_encode(texts(table.column(column)))
        coded = coded.combine_chunks() if isinstance(coded, pa.ChunkedArray) else coded
        own = coded.dictionary.to_pylist()
        if self.values is None:
            width, place = totals["ids"].numel(), torch.searchsorted(totals["ids"], hashed(own, key))
        else:
            known = {str(value): at for at, value in enumerate(self.values)}
            width, place = len(known), torch.tensor([known[value] for value in own], dtype=torch.long)
        at = torch.from_numpy(coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64))
        there = at >= 0
        x = torch.zeros(at.numel(), width)
        x[there.nonzero().squeeze(1), place[at[there]]] = 1.0
        return x


class Vector(Column):
    """A list of numbers of one length, taken as it is."""

    name: ClassVar[str] = "vector"

    width: int = Field(ge=0)
    """Numbers in each list."""

    def check(self, column: str, table: pa.Table, file: str) -> Iterator[Problem]:
        values = one(table.column(column))
        if not (is_listed(values.type) and is_numeric(values.type.value_type)):
            yield Problem(file, f"column '{column}' holds {named(values.type)}: a vector column holds lists of numbers")
            return
        lengths = lengths_of(values)
        yield from at_rows(file, f"column '{column}' has no value: fill it in", lengths < 0)
        what = f"column '{column}' is not {self.width} numbers long, as party.toml declares"
        yield from at_rows(file, what, (lengths >= 0) & (lengths != self.width))
        inner = numbers_of(pc.list_flatten(values))
        owner = np.repeat(np.arange(len(values)), lengths.clip(min=0))
        wrong = np.zeros(len(values), dtype=bool)
        wrong[owner[~np.isfinite(inner)]] = True
        yield from at_rows(file, f"column '{column}' has NaN, infinite or missing numbers: mend them", wrong)

    def encode(self, column: str, table: pa.Table, totals: Totals, key: bytes | None) -> Tensor:
        inner = pc.list_flatten(one(table.column(column))).to_numpy(zero_copy_only=False)
        return torch.from_numpy(inner.copy()).to(torch.get_default_dtype()).view(-1, self.width)


class Bag(Column):
    """A long list of numbers of which few are not zero: columns `NAME.at` (where, from 0) and `NAME.value` (what)."""

    name: ClassVar[str] = "bag"

    width: int = Field(ge=0)
    """Numbers in the whole list."""

    def reads(self, column: str) -> list[str]:
        return [f"{column}.at", f"{column}.value"]

    def check(self, column: str, table: pa.Table, file: str) -> Iterator[Problem]:
        at, value = (one(table.column(each)) for each in self.reads(column))
        if not (is_listed(at.type) and pa.types.is_integer(at.type.value_type)):
            yield Problem(file, f"column '{column}.at' holds {named(at.type)}: it holds lists of whole numbers")
        elif not (is_listed(value.type) and is_numeric(value.type.value_type)):
            yield Problem(file, f"column '{column}.value' holds {named(value.type)}: it holds lists of numbers")
        else:
            lengths = lengths_of(at)
            differ = (lengths != lengths_of(value)) | (lengths < 0)
            yield from at_rows(file, f"'{column}.at' and '{column}.value' differ in length, or are missing", differ)
            where, what = numbers_of(pc.list_flatten(at)), numbers_of(pc.list_flatten(value))
            owner = np.repeat(np.arange(len(at)), lengths.clip(min=0))
            yield from at_rows(
                file,
                f"column '{column}.at' names a place outside 0 .. {self.width - 1}, or one twice",
                _any(owner[~((where >= 0) & (where < self.width))], len(at)) | _twice(owner, where, len(at)),
            )
            sizes = np.repeat(np.arange(len(value)), lengths_of(value).clip(min=0))
            wrong = _any(sizes[~np.isfinite(what)], len(value))
            yield from at_rows(file, f"column '{column}.value' has NaN, infinite or missing numbers: mend them", wrong)

    def encode(self, column: str, table: pa.Table, totals: Totals, key: bytes | None) -> Tensor:
        at, value = (one(table.column(each)) for each in self.reads(column))
        crow = torch.from_numpy(np.concatenate([[0], lengths_of(at).cumsum()]))
        col = torch.from_numpy(pc.list_flatten(at).to_numpy(zero_copy_only=False).astype(np.int64))
        values = torch.from_numpy(pc.list_flatten(value).to_numpy(zero_copy_only=False).copy())
        return rows.csr(crow, col, values.to(torch.get_default_dtype()), (len(at), self.width))


def _present(values: Any) -> Floats:
    found = numbers_of(values)
    return found[np.isfinite(found)]


def _mean(totals: Mapping[str, Tensor]) -> float:
    return float(totals["sum"] / totals["count"].clamp(min=1))


def _any(positions: NDArray[np.int64], length: int) -> Mask:
    found = np.zeros(length, dtype=bool)
    found[positions] = True
    return found


def _twice(owner: NDArray[np.int64], where: Floats, length: int) -> Mask:
    """Rows that name a place more than once."""
    order = np.lexsort((where, owner))
    same = (np.diff(owner[order]) == 0) & (np.diff(where[order]) == 0)
    return _any(owner[order][1:][same], length)
