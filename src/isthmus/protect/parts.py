"""What one party adds to a sum, in a form that can be added without being read."""

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

Words: TypeAlias = NDArray[np.uint64]
"""Whole numbers modulo 2^64."""
Form: TypeAlias = tuple[tuple[str, str, tuple[int, ...]], ...]
"""Columns of a part in their order: name, type and shape. All parties of a sum have the same."""

WEIGHT = "weight of "
"""What the name of a column of weights begins with."""
FINE = 44
"""Bits after the point of numbers in double precision, which have a word for what is before it."""


@dataclass(frozen=True)
class Part:
    """One party's part of a sum.

    Arguments:
        columns: tensors on the CPU, 64-bit whole numbers or floating: sums, and the weights that belong to them.
        counts: by field, where it counts for anything: a 1, or one for every row.
    """

    columns: Mapping[str, Tensor]
    counts: Mapping[str, Tensor]

    @classmethod
    def of(cls, reply: Reply, rows: IdUnion | None, *, weights: bool) -> Part:
        """The part of the one party that a reply is of: a sum over it alone."""
        own = PlainTotal([reply], reply.parties, rows)
        columns = {path: value.cpu() for path, value in own.sums.items()}
        if weights:
            columns |= {
                f"{WEIGHT}{path}": torch.as_tensor(weight, dtype=torch.float64).cpu()
                for path, weight in own.weights.items()
            }
        return cls(columns, contributed(reply, rows))

    def only(self, opened: Tensor) -> Part:
        """With zeros in the rows that are not opened."""
        zeroed = {
            name: torch.where(opened.view(-1, *[1] * (value.dim() - 1)), value, torch.zeros_like(value))
            for name, value in self.columns.items()
        }
        return Part(zeroed, self.counts)


def form_of(columns: Mapping[str, Tensor]) -> Form:
    return tuple((name, wire.DTYPES[value.dtype], tuple(value.shape)) for name, value in columns.items())


def form_text(form: Form) -> str:
    return json.dumps(form)


def form_read(text: str) -> Form:
    """The way back from `form_text`."""
    try:
        form = tuple((str(name), str(dtype), tuple(map(int, shape))) for name, dtype, shape in json.loads(text))
    except (ValueError, TypeError) as error:
        raise PayloadError("a part of a sum without a form") from error
    if any(dtype not in wire.NAMED or min(shape, default=0) < 0 for _, dtype, shape in form):
        raise PayloadError("a part of a sum whose form is none")
    return form


def length(form: Form) -> int:
    """Words of a part."""
    return sum(_per_number(dtype) * math.prod(shape) for _, dtype, shape in form)


def _per_number(dtype: str) -> int:
    return 2 if dtype == "F64" else 1


def to_words(columns: Mapping[str, Tensor], parties: int, bits: int) -> Words:
    """A part as whole numbers modulo 2^64, that add up to those of the sum.

    Whole numbers stay as they are. Of a floating number x there is round(2^bits x); one in double precision is two
    words, floor(x) and the rest in steps of 2^-44. What could run over in a sum of so many parties is an error.

    Arguments:
        parties: that the sum is at most over.
        bits: after the point, of numbers in single precision or less.
    """
    return np.concatenate([_words(name, value, parties, bits) for name, value in columns.items()], dtype=np.uint64)


def _words(name: str, value: Tensor, parties: int, bits: int) -> Words:
    flat = value.reshape(-1).numpy() if value.dtype != torch.bfloat16 else value.reshape(-1).float().numpy()
    if not value.is_floating_point():
        if flat.size and max(int(flat.max()), -int(flat.min())) >= 2**63 // parties:
            raise PayloadError(f"field '{name}' has whole numbers that a sum of {parties} cannot hold")
        return flat.astype(np.int64).view(np.uint64)
    wide = flat.astype(np.float64)
    two = value.dtype == torch.float64
    most = 2.0 ** (63 if two else 63 - bits) / parties
    if wide.size and not np.abs(wide).max() < most - 1:  # NaN too
        hint = "" if two else ", or lower protect.total.bits"
        raise PayloadError(f"field '{name}' has a number beyond {most:.3g}, which a sum of {parties} can hold{hint}")
    if not two:
        return np.rint(np.ldexp(wide, bits)).astype(np.int64).view(np.uint64)
    whole = np.floor(wide)
    rest = np.rint(np.ldexp(wide - whole, FINE))
    return np.concatenate([whole.astype(np.int64), rest.astype(np.int64)]).view(np.uint64)


def of_words(words: Words, form: Form, bits: int) -> dict[str, Tensor]:
    """The columns of a sum."""
    found, at = {}, 0
    for name, dtype, shape in form:
        count = math.prod(shape)
        taken = words[at : at + count * _per_number(dtype)].view(np.int64)
        at += len(taken)
        value = torch.from_numpy(taken.copy())
        if dtype == "F64":
            value = value[:count].double() + value[count:].double() * 2.0**-FINE
        elif wire.NAMED[dtype].is_floating_point:
            value = value.double() * 2.0**-bits
        found[name] = value.to(wire.NAMED[dtype]).view(shape)
    return found


def rows_of_words(form: Form, at: Tensor | None) -> tuple[Form, NDArray[np.int64] | slice]:
    """Where in the words some rows of all columns are, and the form of what is taken; without rows, all of it."""
    if at is None:
        return form, slice(None)
    taken: list[NDArray[np.int64]] = []
    forms, begin, rows = [], 0, at.numpy()
    for name, dtype, shape in form:
        per, width = _per_number(dtype), math.prod(shape[1:])
        places = np.arange(per)[:, None, None] * shape[0] * width + rows[None, :, None] * width + np.arange(width)
        taken.append(begin + places.reshape(-1))
        begin += per * shape[0] * width
        forms.append((name, dtype, (len(rows), *shape[1:])))
    return tuple(forms), np.concatenate(taken)


def totals(columns: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Sums and the weights that belong to them, by field."""
    sums = {name: value for name, value in columns.items() if not name.startswith(WEIGHT)}
    weights = {name.removeprefix(WEIGHT): value for name, value in columns.items() if name.startswith(WEIGHT)}
    return sums, {name: value if value.dim() else float(value) for name, value in weights.items()}
