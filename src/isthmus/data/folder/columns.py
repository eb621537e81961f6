"""Kinds of feature columns: how each is checked, what parties add up to agree on its encoding, how it becomes numbers.

All parties declare the same columns. An encoding that depends on the data (a mean, the values that occur) follows from
totals: each party hands in sums over its own rows, and only the sums over all parties are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from pydantic import Field, StrictBool, field_validator
from torch import Tensor

from isthmus.data import rows
from isthmus.data.folder.arrow import (
    Floats,
    filled,
    found,
    is_beyond,
    is_listed,
    is_numeric,
    is_text,
    lengths_of,
    named,
    numbers_of,
    one,
    plain,
    texts,
    there,
)
from isthmus.data.folder.problems import Mask, Problem, at_rows
from isthmus.data.ids import hash_ids
from isthmus.options import Registered

Totals = dict[str, Tensor]
MANY, FEW = 100, 10
"""Different values of a category: more than many are worth a word, few are no names whatever else speaks for it."""
WIDE = 100
"""A category with more values than this is a sparse matrix."""
WIDEST = 1 << 24
"""Features in one column; a wider one is a mistake, or asks for a model beyond any machine."""


class Column(Registered):
    """A feature column of `nodes.parquet` and how it is encoded."""

    kind: ClassVar[str] = "kind of column"
    built_in_module: ClassVar[str] = "isthmus.data.folder.columns"

    structural: StrictBool | list[Annotated[int, Field(strict=True, ge=0)]] = False
    """Whether the column follows from the edges, as a degree does; or which of its features do, counted from 0."""

    def reads(self, column: str) -> list[str]:
        """The columns of the file that make up this one."""
        return [column]

    def check(self, column: str, table: pa.Table, file: str) -> Iterator[Problem]:
        """What is wrong with the values; the columns themselves are there."""
        raise NotImplementedError

    @property
    def has_keyed_totals(self) -> bool:
        """Whether the first sums are keyed by `ids`."""
        return False

    def has_totals(self, step: Literal["first", "second"]) -> bool:
        """Whether there are such sums, other than keyed ones."""
        return False

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
        values = plain(table.column(column))
        if not is_numeric(values.type):
            yield Problem(file, f"column '{column}' holds {named(values.type)}: a number column holds numbers")
            return
        numbers = numbers_of(values)
        yield from at_rows(file, f"column '{column}' is infinite or beyond 3.4e38: mend it", is_beyond(numbers))
        if self.missing == "error":
            what = f"column '{column}' has no value: fill it in, or declare missing = \"mean\""
            yield from at_rows(file, what, np.isnan(numbers))

    def has_totals(self, step: Literal["first", "second"]) -> bool:
        return self.scale != "none" or (step == "first" and self.missing != "error")

    def first_totals(self, column: str, table: pa.Table, key: bytes | None) -> Totals:
        if not self.has_totals("first"):
            return {}
        numbers = _present(table.column(column))
        return {"count": torch.tensor(numbers.size), "sum": torch.tensor(numbers.sum())}

    def second_totals(self, column: str, table: pa.Table, first: Totals) -> Totals:
        if not self.has_totals("second"):
            return {}
        apart = _present(table.column(column)) - _mean(first)
        return {"squares": torch.tensor((apart**2).sum())}

    def encode(self, column: str, table: pa.Table, totals: Totals, key: bytes | None) -> Tensor:
        numbers = numbers_of(table.column(column))
        if self.missing == "mean":
            numbers = np.where(np.isnan(numbers), _mean(totals), numbers)
        if self.scale == "standard":
            deviation = _deviation(totals)
            numbers = (numbers - _mean(totals)) / deviation if deviation else np.zeros_like(numbers)
        return torch.from_numpy(numbers.copy()).to(torch.get_default_dtype()).unsqueeze(1)


class Category(Column):
    """One of several values, one-hot; a missing value is all zeros."""

    name: ClassVar[str] = "category"

    values: list[str | bool | int] | None = Field(None, min_length=1)
    """The values there are, in the order of their features; without, those that any party has, in the order of their
    keyed hashes, so that nobody has to tell another which they are."""

    @field_validator("values")
    @classmethod
    def _differ(cls, values: list[str | bool | int] | None) -> list[str | bool | int] | None:
        if values is not None and len({_spelled(value) for value in values}) < len(values):
            raise ValueError("lists a value twice")
        return values

    def check(self, column: str, table: pa.Table, file: str) -> Iterator[Problem]:
        values = filled(table.column(column))
        if not (is_text(values.type) or pa.types.is_integer(values.type) or pa.types.is_boolean(values.type)):
            what = f"column '{column}' holds {named(values.type)}: a category is a text or a whole number"
            yield Problem(file, what)
        elif self.values is not None:
            what = f"column '{column}' has a value that is not declared: add it to 'values', at all parties"
            yield from at_rows(file, what, (found(texts(values), self._declared()) < 0) & there(values))
        else:
            said = texts(values)
            different = count_distinct(said)
            if different > MANY and looks_like_names(said):
                what = f"column '{column}' has {different:,} different values: that looks like names, not categories"
                yield Problem(file, what, severe=False)

    @property
    def has_keyed_totals(self) -> bool:
        return self.values is None

    def first_totals(self, column: str, table: pa.Table, key: bytes | None) -> Totals:
        if not self.has_keyed_totals:
            return {}
        counts = pc.value_counts(texts(table.column(column)).drop_null())
        numbers = hash_ids(counts.field("values").to_pylist(), key)
        return {"ids": numbers, "counts": torch.tensor(counts.field("counts").to_pylist(), dtype=torch.long)}

    def encode(self, column: str, table: pa.Table, totals: Totals, key: bytes | None) -> Tensor:
        values = texts(table.column(column))
        if self.values is not None:
            return _one_hot(torch.from_numpy(found(values, self._declared())), len(self.values))
        own = pc.unique(values.drop_null())
        place = torch.searchsorted(totals["ids"], hash_ids(own.to_pylist(), key))
        at = torch.from_numpy(found(values, own))
        return _one_hot(torch.cat([place, torch.tensor([-1])])[at], totals["ids"].numel())

    def _declared(self) -> pa.Array:
        return pa.array([_spelled(value) for value in self.values or ()], pa.string())


class Vector(Column):
    """A list of numbers of one length, taken as it is."""

    name: ClassVar[str] = "vector"

    width: int = Field(ge=0, le=WIDEST)
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
        wrong = _unfit(numbers_of(pc.list_flatten(values)), lengths)
        yield from at_rows(file, f"column '{column}' has NaN, infinite or missing numbers: mend them", wrong)

    def encode(self, column: str, table: pa.Table, totals: Totals, key: bytes | None) -> Tensor:
        values = one(table.column(column))
        return _floats(pc.list_flatten(values)).view(len(values), self.width)


class Bag(Column):
    """A long list of numbers of which few are not zero: columns `NAME.at` (where, from 0) and `NAME.value` (what)."""

    name: ClassVar[str] = "bag"

    width: int = Field(ge=0, le=WIDEST)
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
            where = numbers_of(pc.list_flatten(at))
            owner = np.repeat(np.arange(len(at)), lengths.clip(min=0))
            yield from at_rows(
                file,
                f"column '{column}.at' names a place outside 0 .. {self.width - 1}, or one twice",
                _any(owner[~((where >= 0) & (where < self.width))], len(at)) | _twice(owner, where, len(at)),
            )
            wrong = _unfit(numbers_of(pc.list_flatten(value)), lengths_of(value))
            yield from at_rows(file, f"column '{column}.value' has NaN, infinite or missing numbers: mend them", wrong)

    def encode(self, column: str, table: pa.Table, totals: Totals, key: bytes | None) -> Tensor:
        at, value = (one(table.column(each)) for each in self.reads(column))
        lengths = lengths_of(at)
        col = np.asarray(pc.list_flatten(at).to_numpy(zero_copy_only=False), dtype=np.int64)
        values = _floats(pc.list_flatten(value))
        owner = np.repeat(np.arange(len(at)), lengths)
        if ((np.diff(owner) == 0) & (np.diff(col) < 0)).any():  # a CSR matrix has its columns in order
            order = np.lexsort((col, owner))
            col, values = col[order], values[torch.from_numpy(order)]
        crow = torch.from_numpy(np.concatenate([[0], lengths.cumsum()]))
        return rows.csr(crow, torch.from_numpy(col.copy()), values, (len(at), self.width))


def count_distinct(values: Any) -> int:
    """How many different values there are."""
    return int(pc.count_distinct(values).as_py())


def looks_like_names(values: Any) -> bool:
    """Whether values differ in more than half of the rows, and are not just few."""
    different = count_distinct(values)
    return different > FEW and different * 2 > len(values) - values.null_count


def _present(values: Any) -> Floats:
    numbers = numbers_of(values)
    return numbers[np.isfinite(numbers)]


def _mean(totals: Mapping[str, Tensor]) -> float:
    return float(totals["sum"] / totals["count"].clamp(min=1))


def _deviation(totals: Mapping[str, Tensor]) -> float:
    """Standard deviation over all parties; 0 where it is no more than the rounding of a mean of equal numbers."""
    count = int(totals["count"].clamp(min=1))
    deviation = float((totals["squares"] / count).sqrt())
    return deviation if deviation > count * np.finfo(np.float64).eps * abs(_mean(totals)) else 0.0


def _spelled(value: str | bool | int) -> str:
    """A declared value as Arrow spells it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _one_hot(at: Tensor, width: int) -> Tensor:
    """A 1 at each row's place, nowhere where that is -1; sparse where there are many places."""
    here = at >= 0
    if width > WIDE:
        crow = torch.cat([torch.zeros(1, dtype=torch.long), here.cumsum(0)])
        return rows.csr(crow, at[here], torch.ones(int(here.sum())), (at.numel(), width))
    x = torch.zeros(at.numel(), width)
    x[here.nonzero().squeeze(1), at[here]] = 1.0
    return x


def _floats(values: Any) -> Tensor:
    """Numbers in the type that models read, in memory of their own."""
    numbers = values.to_numpy(zero_copy_only=False) if pa.types.is_floating(values.type) else numbers_of(values)
    return torch.from_numpy(numbers.copy()).to(torch.get_default_dtype())


def _unfit(numbers: Floats, lengths: NDArray[np.int64]) -> Mask:
    """Lists with a number that is missing, NaN or infinite."""
    owner = np.repeat(np.arange(lengths.size), lengths.clip(min=0))
    return _any(owner[np.isnan(numbers) | is_beyond(numbers)], lengths.size)


def _any(positions: NDArray[np.int64], length: int) -> Mask:
    found = np.zeros(length, dtype=bool)
    found[positions] = True
    return found


def _twice(owner: NDArray[np.int64], where: Floats, length: int) -> Mask:
    """Rows that name a place more than once."""
    order = np.lexsort((where, owner))
    same = (np.diff(owner[order]) == 0) & (np.diff(where[order]) == 0)
    return _any(owner[order][1:][same], length)
