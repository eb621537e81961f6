"""The form of messages between parties, which the addressee checks before a method reads them.

The server cannot check them: it does not see what is in them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus.data import matrices
from isthmus.errors import PayloadError
from isthmus.federation import wire

NOT_LISTED = "edges between two parties must be listed at both"


@dataclass(frozen=True)
class UpTo:
    """Rows like this one, at most so many; of whole numbers any."""

    rows: int
    like: Tensor


Form = Mapping[str, Any]
"""By field, or group of fields, a tensor or `UpTo`. Whole numbers must be equal to a tensor's. Real numbers must have
its type and shape, and none may be more than `federation.norm` times 1 and the tensor's largest. A matrix `rows` may
come sparse."""
DueForm = Callable[[Any, str], Form | None]
"""Returns the form of the message that a site's one party is due from a sender; None: none is due."""


def letter_problem(letter: wire.Payload, form: Form | None, norm: float) -> str:
    """Say what is wrong with a message.

    >>> letter_problem({"h": torch.tensor([1.0, 900.0])}, {"h": torch.ones(2)}, norm=100)
    "field 'h' has a number of 900, beyond 200 (federation.norm)"
    """
    if form is None:
        return f"no message is due ({NOT_LISTED})"
    try:
        found, due = dict(wire.flatten(letter)), dict(wire.flatten(form))
    except PayloadError as error:
        return str(error)
    if "rows" in due and "columns" in found:
        if why := matrices.sparse_problem(found, *due["rows"].shape):
            return why
        due["rows"] = _largest(due["rows"]).expand(len(found["values"]))
        found["rows"] = found["values"]
        for name in matrices.SPARSE:
            del found[name]
    if found.keys() != due.keys():
        return f"its fields are {', '.join(sorted(found)) or 'none'}, not {', '.join(sorted(due))}"
    return next(filter(None, (_field_problem(name, found[name], due[name], norm) for name in due)), "")


def _field_problem(name: str, value: Any, due: Tensor | UpTo, norm: float) -> str:
    like, rows = (due.like, due.rows) if isinstance(due, UpTo) else (due, None)
    if not isinstance(value, Tensor) or value.dtype != like.dtype:
        return f"field '{name}' is {getattr(value, 'dtype', type(value).__name__)}, expected is {like.dtype}"
    shape, fits = list(like.shape), value.shape == like.shape
    if rows is not None:
        shape, fits = [rows, *shape], value.dim() > 0 and value.shape[1:] == like.shape and len(value) <= rows
    if not fits:
        return f"field '{name}' is {list(value.shape)}, expected is {shape} ({NOT_LISTED})"
    if not like.is_floating_point():
        return (
            ""
            if rows is not None or torch.equal(value.cpu(), like.cpu())
            else f"field '{name}' has other numbers ({NOT_LISTED})"
        )
    most, largest = norm * (1 + float(_largest(like))), float(_largest(value))
    return "" if largest <= most else f"field '{name}' has a number of {largest:.3g}, beyond {most:g} (federation.norm)"


def _largest(values: Tensor) -> Tensor:
    """The largest absolute value; zero if there is none."""
    return values.detach().abs().max() if values.numel() else values.new_zeros(())
