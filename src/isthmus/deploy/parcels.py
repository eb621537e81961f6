"""Values with very many tensors, as a few long ones: to send a tensor takes longer than to send its data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from isthmus.data.party import Border, Pairs, Party


class Slot:
    """Stands for a tensor."""


@dataclass(frozen=True)
class Parcel:
    """Nested mappings and lists with all their tensors in long ones; sparse tensors stay where they are.

    Arguments:
        contents: the values, with `Slot` in place of every tensor.
        shapes: of the tensors, in order.
        data: all tensors of a type one after the other.
    """

    contents: Any
    shapes: list[tuple[torch.dtype, tuple[int, ...]]]
    data: dict[torch.dtype, Tensor]

    @classmethod
    def of(cls, contents: Any) -> Parcel:
        tensors: list[Tensor] = []

        def leave(tensor: Any) -> type[Slot]:
            tensors.append(tensor)
            return Slot

        outline = _replaced(contents, lambda value: isinstance(value, Tensor) and value.layout == torch.strided, leave)
        flat: dict[torch.dtype, list[Tensor]] = {}
        for each in tensors:
            flat.setdefault(each.dtype, []).append(each.detach().cpu().reshape(-1))
        data = {dtype: torch.cat(parts) for dtype, parts in flat.items()}
        return cls(outline, [(each.dtype, tuple(each.shape)) for each in tensors], data)

    def open(self) -> Any:
        """The values; their tensors are parts of the long ones."""
        sizes: dict[torch.dtype, list[int]] = {}
        for dtype, shape in self.shapes:
            sizes.setdefault(dtype, []).append(math.prod(shape))
        parts = {dtype: iter(flat.split(sizes[dtype])) for dtype, flat in self.data.items()}
        left = iter(self.shapes)

        def take(_: Any) -> Tensor:
            dtype, shape = next(left)
            return next(parts[dtype]).view(shape)

        return _replaced(self.contents, lambda value: value is Slot, take)


def pack_parties(parties: Sequence[Party]) -> Parcel:
    """Parties as a parcel."""
    return Parcel.of([_fields(party) for party in parties])


def open_parties(parcel: Parcel) -> list[Party]:
    """Reverse `pack_parties`."""
    found = []
    for fields in parcel.open():
        border, pairs = fields.pop("border"), fields.pop("pairs")
        party = Party.unchecked(
            graph=Data.from_dict(fields.pop("graph")), border=None if border is None else Border(**border), **fields
        )
        vars(party)["pairs"] = None if pairs is None else Pairs(**pairs)
        found.append(party)
    return found


def _fields(party: Party) -> dict[str, Any]:
    more = {name: None if (part := getattr(party, name)) is None else vars(part) for name in ("border", "pairs")}
    return {**vars(party), **more, "graph": party.graph.to_dict()}


def _replaced(value: Any, chosen: Callable[[Any], bool], by: Callable[[Any], Any]) -> Any:
    """Nested mappings and lists with other values in place of those chosen."""
    if isinstance(value, Mapping):
        return {name: _replaced(inside, chosen, by) for name, inside in value.items()}
    if isinstance(value, list):
        return [_replaced(inside, chosen, by) for inside in value]
    return by(value) if chosen(value) else value
