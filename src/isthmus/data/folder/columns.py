"""Kinds of feature columns: how a column is checked, and how it becomes numbers.

All parties declare the same columns. An encoding that depends on the data (on a mean, or on the values that occur)
uses totals only: each party computes sums over its own rows, and the encoding uses the sums over all parties.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from pydantic import Field, StrictBool, field_validator, model_validator
from torch import Tensor

from isthmus.data import rows
from isthmus.data.folder.arrow import (
    Floats,
    blank_to_null,
    exceeds_float32,
    is_list,
    is_numeric,
    is_present,
    is_text,
    list_lengths,
    positions_in,
    to_array,
    to_floats,
    to_plain,
    to_texts,
    wrong_type,
)
from isthmus.data.folder.dates import DAY, READABLE, UNKNOWN, is_date, notes_on_dates_to_come, read_dates
from isthmus.data.folder.problems import Mask, Problem, at_rows
from isthmus.data.folder.table import Table
from isthmus.data.ids import Hashing
from isthmus.options import Registered

Totals = dict[str, Tensor]
MAX_CATEGORIES, MIN_NAMES = 100, 10
"""More values than the first are suspicious in a category; up to the second they are never taken for names."""
MAX_DENSE = 100
"""A category with more values than this is encoded as a sparse matrix."""
FILL_IN = 'fill it in, or declare missing = "mean" before training'
"""What to do about a missing value."""
FAR_OUT, ENOUGH = 100.0, 10
"""So many times as far from the middle as any other of at least so many numbers, a single one is noted."""
LARGEST = float(np.finfo(np.float32).max)
"""The largest number in a column."""
MAX_WIDTH = 1 << 24
"""Features in one column; a wider column is a mistake, or needs a model that fits no machine."""


class Column(Registered):
    """A feature column of `nodes.parquet` and its encoding."""

    kind: ClassVar[str] = "kind of column"
    built_in_module: ClassVar[str] = "isthmus.data.folder.columns"

    in_blocks: ClassVar[bool] = True
    """Whether rows can be checked, counted and encoded block by block; otherwise they must be in memory together."""

    structural: StrictBool | list[Annotated[int, Field(strict=True, ge=0)]] = False
    """Whether the features are computed from the edges, as a degree is; or the positions, from 0, of those that are."""

    def file_columns(self, column: str) -> list[str]:
        """Return the columns of the file that make up this one."""
        return [column]

    def blocks(self, column: str, table: Table) -> Iterator[tuple[int, pa.Table]]:
        """Yield the column's rows in blocks, each with the number of rows before it."""
        return table.blocks(self.file_columns(column), None if self.in_blocks else max(table.num_rows, 1))

    def check(self, column: str, table: pa.Table, file: str) -> Iterator[Problem]:
        """Yield the problems of the values; the columns themselves are present."""
        raise NotImplementedError

    @property
    def has_keyed_totals(self) -> bool:
        """Whether the first totals are keyed by `ids`."""
        return False

    def has_totals(self, step: Literal["first", "second"]) -> bool:
        """Whether there are totals of this step that are not keyed."""
        return False

    def first_totals(self, column: str, table: pa.Table, hashing: Hashing) -> Totals:
        """Return what this party adds to the first totals, which may be keyed by `ids`."""
        return {}

    def second_totals(self, column: str, table: pa.Table, first: Totals) -> Totals:
        """Return what this party adds to the second totals, given the first totals of all parties."""
        return {}

    def totals_problem(self, step: Literal["first", "second"], totals: Any, items: int) -> str:
        """Say what is wrong with totals of parties that hold so many items together."""
        return ""

    def features_of(self, totals: Totals) -> int:
        """Return the number of features that the column becomes, given the totals of all parties."""
        return 1

    def feature_names(self, column: str, totals: Totals) -> list[str]:
        """Return what the column's features are called, in their order."""
        count = self.features_of(totals)
        return [column] if count == 1 else [f"{column}[{at}]" for at in range(count)]

    def encode(self, column: str, table: pa.Table, totals: Totals, hashing: Hashing) -> Tensor:
        """Return the features, `[nodes, width]`, dense or sparse CSR."""
        raise NotImplementedError


class Number(Column):
    """A number, standardised to mean 0 and deviation 1 over the nodes of all parties, or unchanged."""

    name: ClassVar[str] = "number"

    scale: Literal["standard", "none"] = "standard"
    """`standard`: subtract the mean over all parties and divide by their standard deviation. `none`: no change."""
    missing: Literal["error", "mean"] = "error"
    """A missing value is an error, or is replaced by the mean over all parties."""

    def check(self, column: str, table: pa.Table, file: str) -> Iterator[Problem]:
        values = to_plain(table.column(column))
        if not is_numeric(values.type):
            yield wrong_type(file, column, values, "numbers")
            return
        numbers = to_floats(values)
        what = f"column '{column}' is infinite or beyond 3.4e38: correct it"
        yield from at_rows(file, what, exceeds_float32(numbers))
        severe = self.missing == "error"
        then = FILL_IN if severe else "the mean over all parties is used"
        yield from at_rows(file, f"column '{column}' has no value: {then}", np.isnan(numbers), severe=severe)
        if self.scale == "standard" and (at := _far_out(numbers)) is not None:
            far = (
                f"column '{column}' is {numbers[at]:,.6g}, over {FAR_OUT:g} times as far out as any other: is it right?"
            )
            yield from at_rows(file, far, np.arange(numbers.size) == at, severe=False)

    def has_totals(self, step: Literal["first", "second"]) -> bool:
        return self.scale != "none" or (step == "first" and self.missing != "error")

    def first_totals(self, column: str, table: pa.Table, hashing: Hashing) -> Totals:
        if not self.has_totals("first"):
            return {}
        numbers = _finite(self._numbers(table.column(column)))
        return {"count": torch.tensor(numbers.size), "sum": torch.tensor(numbers.sum())}

    def second_totals(self, column: str, table: pa.Table, first: Totals) -> Totals:
        if not self.has_totals("second"):
            return {}
        difference = _finite(self._numbers(table.column(column))) - _mean(first)
        return {"squares": torch.tensor((difference**2).sum())}

    def totals_problem(self, step: Literal["first", "second"], totals: Any, items: int) -> str:
        names = ("count", "sum") if step == "first" else ("squares",)
        if not isinstance(totals, dict) or tuple(totals) != names:
            return f"there are other sums than {', '.join(names)}"
        for name, value in totals.items():
            if not isinstance(value, Tensor) or value.dim() or value.is_floating_point() == (name == "count"):
                return f"'{name}' is not a single {'whole' if name == 'count' else 'real'} number"
        if step == "second":
            most = items * (2 * LARGEST) ** 2
            return "" if 0 <= float(totals["squares"]) <= most else "squares are negative, or too large"
        count, total = int(totals["count"]), float(totals["sum"])
        if not 0 <= count <= items:
            return f"it counts {count} numbers, {items} items were introduced"
        return "" if abs(total) <= count * LARGEST + 1e-6 else f"{count} numbers cannot add up to {total:.3g}"

    def encode(self, column: str, table: pa.Table, totals: Totals, hashing: Hashing) -> Tensor:
        numbers = self._numbers(table.column(column))
        if self.missing == "mean":
            numbers = np.where(np.isnan(numbers), _mean(totals), numbers)
        if self.scale == "standard":
            deviation = _deviation(totals)
            numbers = (numbers - _mean(totals)) / deviation if deviation else np.zeros_like(numbers)
        return torch.from_numpy(numbers.copy()).to(torch.get_default_dtype()).unsqueeze(1)

    def _numbers(self, values: Any) -> Floats:
        """Return the column as numbers, NaN where a value is missing."""
        return to_floats(values)


class Date(Number):
    """A date: the day as a number that is scaled, or where in the week and in the day it lies."""

    name: ClassVar[str] = "date"

    features: Literal["day", "cycle"] = "day"
    """`day`: days since 1970, scaled as a number is. `cycle`: sine and cosine of the time in the week and in the day,
    four features that later dates have too."""

    def check(self, column: str, table: pa.Table, file: str) -> Iterator[Problem]:
        values = blank_to_null(table.column(column))
        if not is_date(values.type):
            yield wrong_type(file, column, values, "dates")
            return
        moments, wrong = read_dates(values)
        if wrong.any():
            first = values[int(np.flatnonzero(wrong)[0])].as_py()
            yield from at_rows(file, f"column '{column}' has a date that cannot be read, '{first}': {READABLE}", wrong)
        severe = self.missing == "error"
        then = "all its features are 0" if self.features == "cycle" else "the mean over all parties is used"
        then = FILL_IN if severe else then
        absent = (moments == UNKNOWN) & ~wrong
        yield from at_rows(file, f"column '{column}' has no value: {then}", absent, severe=severe)
        yield from notes_on_dates_to_come(file, column, moments)

    def has_totals(self, step: Literal["first", "second"]) -> bool:
        return self.features == "day" and super().has_totals(step)

    def features_of(self, totals: Totals) -> int:
        return 1 if self.features == "day" else 4

    def feature_names(self, column: str, totals: Totals) -> list[str]:
        if self.features == "day":
            return [column]
        return [f"{wave}({column} in {period})" for wave in ("sin", "cos") for period in ("week", "day")]

    def encode(self, column: str, table: pa.Table, totals: Totals, hashing: Hashing) -> Tensor:
        if self.features == "day":
            return super().encode(column, table, totals, hashing)
        days = self._numbers(table.column(column))
        turns = 2 * np.pi * np.stack([days / 7, days], axis=1)
        x = np.nan_to_num(np.concatenate([np.sin(turns), np.cos(turns)], axis=1))
        return torch.from_numpy(x).to(torch.get_default_dtype())

    def _numbers(self, values: Any) -> Floats:
        moments, _ = read_dates(values)
        return np.where(moments == UNKNOWN, np.nan, moments / DAY)


class Category(Column):
    """One of several values, encoded one-hot; a missing value is all zeros."""

    name: ClassVar[str] = "category"
    in_blocks: ClassVar[bool] = False

    values: list[str | bool | int] | None = Field(None, min_length=1)
    """The possible values, in the order of their features. Default: all values that occur at any party, in the order of
    their keyed hashes, so that no party has to reveal its values."""

    @field_validator("values")
    @classmethod
    def _differ(cls, values: list[str | bool | int] | None) -> list[str | bool | int] | None:
        if values is not None and len({_as_arrow_text(value) for value in values}) < len(values):
            raise ValueError("it lists a value twice")
        return values

    def check(self, column: str, table: pa.Table, file: str) -> Iterator[Problem]:
        values = blank_to_null(table.column(column))
        if not (is_text(values.type) or pa.types.is_integer(values.type) or pa.types.is_boolean(values.type)):
            yield wrong_type(file, column, values, "texts or whole numbers")
            return
        what = f"column '{column}' has no value: all its features are 0"
        yield from at_rows(file, what, ~is_present(values), severe=False)
        if self.values is not None:
            what = f"column '{column}' has a value that is not declared: add it to 'values' at all parties"
            yield from at_rows(file, what, (positions_in(to_texts(values), self._declared()) < 0) & is_present(values))
        else:
            values = to_texts(values)
            different = count_distinct(values)
            if different > MAX_CATEGORIES and looks_like_names(values):
                what = f"column '{column}' has {different:,} different values, which look like names, not categories"
                yield Problem(file, what, severe=False)

    @property
    def has_keyed_totals(self) -> bool:
        return self.values is None

    def first_totals(self, column: str, table: pa.Table, hashing: Hashing) -> Totals:
        if not self.has_keyed_totals:
            return {}
        counts = pc.value_counts(to_texts(table.column(column)).drop_null())
        ids = hashing.numbers(counts.field("values").to_pylist())
        return {"ids": ids, "counts": torch.tensor(counts.field("counts").to_pylist(), dtype=torch.long)}

    def encode(self, column: str, table: pa.Table, totals: Totals, hashing: Hashing) -> Tensor:
        return _one_hot(self._positions(to_texts(table.column(column)), totals, hashing), self.features_of(totals))

    def features_of(self, totals: Totals) -> int:
        return totals["ids"].numel() if self.values is None else len(self.values)

    def feature_names(self, column: str, totals: Totals) -> list[str]:
        """Of values that are not declared, only hashes are known: they are numbered in the order of these."""
        of = range(self.features_of(totals)) if self.values is None else self.values
        return [f"{column}[{each}]" if self.values is None else f"{column} = {each}" for each in of]

    def unknown(self, column: str, table: pa.Table, totals: Totals, hashing: Hashing) -> Mask:
        """Return a mask of the rows whose value no party had in training."""
        values = to_texts(table.column(column))
        return (self._positions(values, totals, hashing) < 0).numpy() & is_present(values)

    def _positions(self, values: Any, totals: Totals, hashing: Hashing) -> Tensor:
        """Return the feature of each value, -1 for one that is missing or unknown."""
        if self.values is not None:
            return torch.from_numpy(positions_in(values, self._declared()))
        own = pc.unique(values.drop_null())
        ids, hashes = totals["ids"], hashing.numbers(own.to_pylist())
        feature = torch.searchsorted(ids, hashes)
        feature[~torch.isin(hashes, ids)] = -1  # a new party may have values that no party had in training
        return torch.cat([feature, torch.tensor([-1])])[torch.from_numpy(positions_in(values, own))]

    def _declared(self) -> pa.Array:
        return pa.array([_as_arrow_text(value) for value in self.values or ()], pa.string())


class Vector(Column):
    """A list of numbers, unchanged; all lists have one length."""

    name: ClassVar[str] = "vector"

    width: int = Field(ge=0, le=MAX_WIDTH)
    """Length of each list."""

    def check(self, column: str, table: pa.Table, file: str) -> Iterator[Problem]:
        values = to_array(table.column(column))
        if not (is_list(values.type) and is_numeric(values.type.value_type)):
            yield wrong_type(file, column, values, "lists of numbers")
            return
        lengths = list_lengths(values)
        yield from at_rows(file, f"column '{column}' has no value: fill it in", lengths < 0)
        what = f"column '{column}' does not have {self.width} numbers, as party.toml declares"
        yield from at_rows(file, what, (lengths >= 0) & (lengths != self.width))
        wrong = _has_bad_number(to_floats(pc.list_flatten(values)), lengths)
        yield from at_rows(
            file, f"column '{column}' has NaN, infinite (in 32 bits) or missing numbers: correct them", wrong
        )

    def features_of(self, totals: Totals) -> int:
        return self.width

    def encode(self, column: str, table: pa.Table, totals: Totals, hashing: Hashing) -> Tensor:
        values = to_array(table.column(column))
        return _floats(pc.list_flatten(values)).view(len(values), self.width)


class Bag(Column):
    """A long list with few numbers other than 0: `NAME.at` has their positions, from 0, `NAME.value` the numbers."""

    name: ClassVar[str] = "bag"

    width: int = Field(ge=0, le=MAX_WIDTH)
    """Length of the whole list."""
    words: list[str] | None = None
    """The texts that the positions stand for, if the lists were texts; as many as `width`."""

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.words is not None and not len(set(self.words)) == len(self.words) == self.width:
            raise ValueError(f"it has {len(set(self.words))} different words: 'width' must be as many")
        return self

    def file_columns(self, column: str) -> list[str]:
        return [f"{column}.at", f"{column}.value"]

    def check(self, column: str, table: pa.Table, file: str) -> Iterator[Problem]:
        at, value = (to_array(table.column(each)) for each in self.file_columns(column))
        if not (is_list(at.type) and pa.types.is_integer(at.type.value_type)):
            yield wrong_type(file, f"{column}.at", at, "lists of whole numbers")
        elif not (is_list(value.type) and is_numeric(value.type.value_type)):
            yield wrong_type(file, f"{column}.value", value, "lists of numbers")
        else:
            lengths = list_lengths(at)
            differ = (lengths != list_lengths(value)) | (lengths < 0)
            what = f"'{column}.at' and '{column}.value' differ in length or are missing: correct them"
            yield from at_rows(file, what, differ)
            position = to_floats(pc.list_flatten(at))
            row = np.repeat(np.arange(len(at)), lengths.clip(min=0))
            outside = _mask(row[~((position >= 0) & (position < self.width))], len(at))
            most = pc.max(pc.list_flatten(at)).as_py()
            largest = most if most is not None and most >= self.width else None
            what = (
                f"column '{column}' has a position outside 0 to {self.width - 1:,}: correct it, or raise 'width' at "
                f"all parties before training (isthmus party new --bag {column}=WIDTH)"
            )
            yield from (replace(each, largest=largest) for each in at_rows(file, what, outside))
            what = f"column '{column}' has a position twice in a row: give each position once"
            yield from at_rows(file, what, _has_repeats(row, position, len(at)))
            wrong = _has_bad_number(to_floats(pc.list_flatten(value)), list_lengths(value))
            what = f"column '{column}.value' has NaN, infinite (in 32 bits) or missing numbers: correct them"
            yield from at_rows(file, what, wrong)

    def features_of(self, totals: Totals) -> int:
        return self.width

    def feature_names(self, column: str, totals: Totals) -> list[str]:
        names = super().feature_names(column, totals)
        return names if self.words is None else [f"{column} = {word}" for word in self.words]

    def encode(self, column: str, table: pa.Table, totals: Totals, hashing: Hashing) -> Tensor:
        at, value = (to_array(table.column(each)) for each in self.file_columns(column))
        lengths = list_lengths(at)
        col = np.asarray(pc.list_flatten(at).to_numpy(zero_copy_only=False), dtype=np.int64)
        values = _floats(pc.list_flatten(value))
        row = np.repeat(np.arange(len(at)), lengths)
        if ((np.diff(row) == 0) & (np.diff(col) < 0)).any():  # a CSR matrix needs its columns in order
            order = np.lexsort((col, row))
            col, values = col[order], values[torch.from_numpy(order)]
        crow = torch.from_numpy(np.concatenate([[0], lengths.cumsum()]))
        return rows.csr(crow, torch.from_numpy(col.copy()), values, (len(at), self.width))


def count_distinct(values: Any) -> int:
    """Count the different values."""
    return int(pc.count_distinct(values).as_py())


def looks_like_names(values: Any) -> bool:
    """Whether there are many values, and more of them than half of the rows."""
    different = count_distinct(values)
    return different > MIN_NAMES and different * 2 > len(values) - values.null_count


def _far_out(numbers: Floats) -> int | None:
    """The position of a number that is much further from the middle than any other, if the others differ at all.

    The next one decides, not how far numbers usually are: amounts of money have long tails.
    """
    known = np.flatnonzero(np.isfinite(numbers))
    if known.size < ENOUGH:
        return None
    middle = float(np.median(numbers[known]))
    distance = np.abs(numbers[known] - middle)
    at = int(distance.argmax())
    next_one = float(np.delete(distance, at).max())
    alike = next_one <= 1e-6 * abs(middle)  # up to rounding
    return None if alike or distance[at] <= FAR_OUT * next_one else int(known[at])


def _finite(numbers: Floats) -> Floats:
    return numbers[np.isfinite(numbers)]


def _mean(totals: Mapping[str, Tensor]) -> float:
    return float(totals["sum"] / totals["count"].clamp(min=1))


def _deviation(totals: Mapping[str, Tensor]) -> float:
    """Return the standard deviation over all parties; 0 if it is only the rounding error of equal numbers."""
    count = int(totals["count"].clamp(min=1))
    deviation = float((totals["squares"] / count).sqrt())
    return deviation if deviation > count * np.finfo(np.float64).eps * abs(_mean(totals)) else 0.0


def _as_arrow_text(value: str | bool | int) -> str:
    """Return a declared value as the text that Arrow makes of it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _one_hot(position: Tensor, width: int) -> Tensor:
    """Return rows with a 1 at their position, all zeros where that is -1; sparse for a large width."""
    known = position >= 0
    if width > MAX_DENSE:
        crow = torch.cat([torch.zeros(1, dtype=torch.long), known.cumsum(0)])
        return rows.csr(crow, position[known], torch.ones(int(known.sum())), (position.numel(), width))
    x = torch.zeros(position.numel(), width)
    x[known.nonzero().squeeze(1), position[known]] = 1.0
    return x


def _floats(values: Any) -> Tensor:
    """Return numbers as a new tensor of the default type."""
    numbers = values.to_numpy(zero_copy_only=False) if pa.types.is_floating(values.type) else to_floats(values)
    return torch.from_numpy(numbers.copy()).to(torch.get_default_dtype())


def _has_bad_number(numbers: Floats, lengths: NDArray[np.int64]) -> Mask:
    """Return a mask of the lists with a number that is missing, NaN or infinite."""
    row = np.repeat(np.arange(lengths.size), lengths.clip(min=0))
    return _mask(row[np.isnan(numbers) | exceeds_float32(numbers)], lengths.size)


def _mask(positions: NDArray[np.int64], length: int) -> Mask:
    mask = np.zeros(length, dtype=bool)
    mask[positions] = True
    return mask


def _has_repeats(row: NDArray[np.int64], position: Floats, length: int) -> Mask:
    """Return a mask of the rows that have a position more than once."""
    order = np.lexsort((position, row))
    same = (np.diff(row[order]) == 0) & (np.diff(position[order]) == 0)
    return _mask(row[order][1:][same], length)
