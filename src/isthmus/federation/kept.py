"""What a site keeps for its parties between actions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from isthmus.errors import IsthmusError
from isthmus.nn.stacks import slice_of


class Kept:
    """Values by name, one per party, saved with a checkpoint.

    Inside `with kept.of(positions)`, which a site enters for every action, reading gives the values of these parties:
    a stack `[parties, ...]` of tensors of one shape, a mapping of stacks, or a list with one value per party. Writing
    changes the values of these parties only.

    >>> kept = Kept()
    >>> with kept.of((0, 1)):
    ...     kept["step"] = torch.tensor([5, 7])
    >>> with kept.of((1,)):
    ...     kept["step"]
    tensor([7])
    """

    def __init__(self) -> None:
        self._values: dict[str, dict[int, Any]] = {}
        self._stacks: dict[str, tuple[tuple[int, ...], Any]] = {}
        self._positions: tuple[int, ...] | None = None

    @contextmanager
    def of(self, positions: Sequence[int]) -> Iterator[None]:
        """Read and write the values of the parties at these positions."""
        before, self._positions = self._positions, tuple(positions)
        try:
            yield
        finally:
            self._positions = before

    @property
    def positions(self) -> tuple[int, ...]:
        """The parties whose values are read and written now."""
        if self._positions is None:
            raise IsthmusError("no party is asked now: read kept values in an action or inside `with site.asked(...)`")
        return self._positions

    def __contains__(self, name: str) -> bool:
        """Whether each of the parties has a value of this name."""
        return all(self.having(name))

    def having(self, name: str) -> list[bool]:
        """For each of the parties whether it has a value of this name."""
        having = self._stacks[name][0] if name in self._stacks else self._values.get(name, ())
        return [at in having for at in self.positions]

    def __getitem__(self, name: str) -> Any:
        if name in self._stacks and self._stacks[name][0] == self.positions:
            return self._stacks[name][1]
        return join(self.each(name))

    def __setitem__(self, name: str, value: Any) -> None:
        stack = self._stacks.get(name)
        if stack is not None and not set(stack[0]) <= set(self.positions):
            self._unpack(name)
        if name in self._values:
            for position, at in enumerate(self.positions):
                self._values[name][at] = _part(value, position)
            return
        self._stacks[name] = (self.positions, value)

    def __delitem__(self, name: str) -> None:
        self._unpack(name)
        for at in self.positions:
            self._values.get(name, {}).pop(at, None)
        if not self._values.get(name):
            self._values.pop(name, None)

    def get(self, name: str, default: Any) -> Any:
        """As reading, with `default` (one party's value) for parties that have none."""
        if name in self:
            return self[name]
        self._unpack(name)
        values = self._values.get(name, {})
        return join([values.get(at, default) for at in self.positions])

    def each(self, name: str) -> list[Any]:
        """As reading, always a list with one value per party."""
        if name not in self:
            raise IsthmusError(f"nothing is kept under '{name}' yet")
        self._unpack(name)
        return [self._values[name][at] for at in self.positions]

    def _unpack(self, name: str) -> None:
        """Turn a stack into one value per party, so that some of the parties can read and write."""
        if name in self._stacks:
            positions, value = self._stacks.pop(name)
            self._values[name] = {at: _part(value, position) for position, at in enumerate(positions)}

    def save(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        for name in list(self._stacks):
            self._unpack(name)
        return {
            party: {name: values[at] for name, values in self._values.items() if at in values}
            for at, party in enumerate(names)
        }

    def restore(self, names: Sequence[str], saved: Mapping[str, Mapping[str, Any]]) -> None:
        self._values, self._stacks = {}, {}
        for at, party in enumerate(names):
            for name, value in saved.get(party, {}).items():
                self._values.setdefault(name, {})[at] = value

    def copy(self) -> Kept:
        """The same values; tensors are replaced, never changed, so a shallow copy is enough."""
        twin = Kept()
        twin._values = {name: dict(values) for name, values in self._values.items()}
        twin._stacks = dict(self._stacks)
        twin._positions = self._positions
        return twin


def join(values: Sequence[Any]) -> Any:
    """Values of several parties as one stack, as a mapping of stacks, or as they are."""
    first = values[0]
    if isinstance(first, Mapping) and all(isinstance(v, Mapping) and v.keys() == first.keys() for v in values):
        return {name: join([value[name] for value in values]) for name in first}
    if isinstance(first, Tensor) and all(
        isinstance(v, Tensor) and v.shape == first.shape and v.dtype == first.dtype for v in values
    ):
        return torch.stack(list(values))
    return list(values)


def _part(value: Any, position: int) -> Any:
    if isinstance(value, Mapping):
        return {name: _part(inner, position) for name, inner in value.items()}
    return slice_of(value, position)
