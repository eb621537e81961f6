"""One party's part of a sum, as numbers that can be added without reading them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.errors import PayloadError
from isthmus.federation import wire
from isthmus.federation.answers import IdUnion, PlainTotal, Reply, contributed
from isthmus.federation.sums import positions_of

Words: TypeAlias = NDArray[np.uint64]
"""Whole numbers modulo 2^64."""
Form: TypeAlias = tuple[tuple[str, str, tuple[int, ...]], ...]
"""Name, type and shape of a part's columns, in order; the same for all parties of a sum."""

WEIGHT = "weight of "
"""Prefix of the names of weight columns."""
FINE = 44
"""Bits after the point of double-precision numbers, whose integer part has a word of its own."""


@dataclass(frozen=True)
class Part:
    """One party's part of a sum.

    Arguments:
        columns: sums and their weights, as CPU tensors of 64-bit integers or floats.
        counts: by field, 1 where the party contributes: for the field, or for every row.
    """

    columns: Mapping[str, Tensor]
    counts: Mapping[str, Tensor]

    @classmethod
    def of(cls, reply: Reply, rows: IdUnion | None, *, weights: bool) -> Part:
        """Make the part of the single party of a reply: a sum over it alone."""
        own = PlainTotal([reply], positions_of(reply.parties), rows)
        columns = {path: value.cpu() for path, value in own.sums.items()}
        if weights:
            columns |= {
                f"{WEIGHT}{path}": torch.as_tensor(weight, dtype=torch.float64).cpu()
                for path, weight in own.weights.items()
            }
        return cls(columns, contributed(reply, rows))

    def with_rows(self, opened: Tensor) -> Part:
        """Return the part with zeros in the rows that are not opened."""
        zeroed = {
            name: torch.where(opened.view(-1, *[1] * (value.dim() - 1)), value, torch.zeros_like(value))
            for name, value in self.columns.items()
        }
        return Part(zeroed, self.counts)


def form_of(columns: Mapping[str, Tensor]) -> Form:
    return tuple((name, wire.DTYPES[value.dtype], tuple(value.shape)) for name, value in columns.items())


def format_form(form: Form) -> str:
    return json.dumps(form)


def parse_form(text: str) -> Form:
    """Read what `format_form` wrote."""
    try:
        form = tuple((str(name), str(dtype), tuple(map(int, shape))) for name, dtype, shape in json.loads(text))
    except (ValueError, TypeError) as error:
        raise PayloadError("a part of a sum has no valid form") from error
    if any(dtype not in wire.NAMED or min(shape, default=0) < 0 for _, dtype, shape in form):
        raise PayloadError("a part of a sum has a form with an unknown type or a negative size")
    return form


def word_count(form: Form) -> int:
    """Count the words of a part."""
    return sum(_words_per_number(dtype) * math.prod(shape) for _, dtype, shape in form)


def _words_per_number(dtype: str) -> int:
    return 2 if dtype == "F64" else 1


def to_words(columns: Mapping[str, Tensor], parties: int, bits: int) -> Words:
    """Encode a part as integers modulo 2^64; words of parts add up to the words of their sum.

    Integers stay as they are. A float x becomes round(2^bits x). In double precision it has two words: floor(x), and
    the rest in steps of 2^-44. A number that could overflow in a sum over this many parties is an error.

    Arguments:
        parties: the most parties that the sum is over.
        bits: bits after the point of numbers in single precision or less.
    """
    return np.concatenate([_words(name, value, parties, bits) for name, value in columns.items()], dtype=np.uint64)


def _words(name: str, value: Tensor, parties: int, bits: int) -> Words:
    flat = value.reshape(-1).numpy() if value.dtype != torch.bfloat16 else value.reshape(-1).float().numpy()
    if not value.is_floating_point():
        if flat.size and max(int(flat.max()), -int(flat.min())) >= 2**63 // parties:
            raise PayloadError(f"field '{name}' has integers too large for a sum over {parties} parties")
        return flat.astype(np.int64).view(np.uint64)
    wide = flat.astype(np.float64)
    two = value.dtype == torch.float64
    most = 2.0 ** (63 if two else 63 - bits) / parties
    if wide.size and not np.abs(wide).max() < most - 1:  # also true for NaN
        hint = "" if two else "; lower protect.total.bits"
        raise PayloadError(f"field '{name}' has a number beyond {most:.3g}, the limit in a sum over {parties}{hint}")
    if not two:
        return np.rint(np.ldexp(wide, bits)).astype(np.int64).view(np.uint64)
    whole = np.floor(wide)
    rest = np.rint(np.ldexp(wide - whole, FINE))
    return np.concatenate([whole.astype(np.int64), rest.astype(np.int64)]).view(np.uint64)


def from_words(words: Words, form: Form, bits: int) -> dict[str, Tensor]:
    """Decode the columns of a sum."""
    columns, begin = {}, 0
    for name, dtype, shape in form:
        count = math.prod(shape)
        own = words[begin : begin + count * _words_per_number(dtype)].view(np.int64)
        begin += len(own)
        value = torch.from_numpy(own.copy())
        if dtype == "F64":
            value = value[:count].double() + value[count:].double() * 2.0**-FINE
        elif wire.NAMED[dtype].is_floating_point:
            value = value.double() * 2.0**-bits
        columns[name] = value.to(wire.NAMED[dtype]).view(shape)
    return columns


def locate_rows(form: Form, rows: Tensor | None) -> tuple[Form, NDArray[np.int64] | slice]:
    """Find the words of some rows of all columns, and the form of these rows; without rows, of everything."""
    if rows is None:
        return form, slice(None)
    positions: list[NDArray[np.int64]] = []
    forms, begin, row = [], 0, rows.numpy()[None, :, None]
    for name, dtype, shape in form:
        per, width = _words_per_number(dtype), math.prod(shape[1:])
        own = np.arange(per)[:, None, None] * shape[0] * width + row * width + np.arange(width)
        positions.append(begin + own.reshape(-1))
        begin += per * shape[0] * width
        forms.append((name, dtype, (len(rows), *shape[1:])))
    return tuple(forms), np.concatenate(positions)


def split_weights(columns: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Separate the columns of sums, by field, from those of their weights."""
    sums = {name: value for name, value in columns.items() if not name.startswith(WEIGHT)}
    weights = {name.removeprefix(WEIGHT): value for name, value in columns.items() if name.startswith(WEIGHT)}
    return sums, {name: value if value.dim() else float(value) for name, value in weights.items()}
