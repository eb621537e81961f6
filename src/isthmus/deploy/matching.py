"""A party's part of a matching in a federation: which list it sends next, and which lists it takes.

Lists go round the parties in the order of their names, which no server chooses. In every step each party sends one list
to the next party, and multiplies what the one before has sent. Envelopes open at their addressee alone, in the order of
sending and in their run (`protect/sealing.py`); inside they say whose list it is and in which step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from isthmus.data.ids import Pseudonyms
from isthmus.errors import IsthmusError
from isthmus.protect.matching import Blinded, blind, list_problem, list_size, multiply, secret_scalar, unblind

FIELDS = {"origin", "step", "points"}
"""Fields of a letter with a list."""


class Match:
    """One party's part.

    Arguments:
        name: of the party.
        parties: all that match their values.
        values: plain hashes of its own, distinct, `[values]`.
        secret: from which its scalar and its list follow; equal if the study runs again under its name.
        context: of the matching, equal at all parties.
        most: the longest list that it multiplies for another party; None: as the protocol allows.
    """

    def __init__(
        self, name: str, parties: Sequence[str], values: Tensor, secret: bytes, context: bytes, most: int | None
    ) -> None:
        self.name, self.parties, self.values = name, sorted(parties), values
        self.context, self.secret, self.most = context, secret, most
        self.size = list_size(len(values))
        self.done = False
        self._scalar = secret_scalar(secret)
        self._at = self.parties.index(name)
        self._sizes: list[int] = []
        self._own: Blinded | None = None
        self._step = 0
        self._came: Tensor | None = None

    @property
    def steps(self) -> int:
        """How often the parties send a list each: as many times as there are parties, then all lists are home."""
        return len(self.parties)

    def letter(self, step: int, sizes: Mapping[str, int]) -> tuple[str, dict[str, Any]]:
        """Return the next party and what this step sends there.

        Arguments:
            sizes: by party how long its list is.
        """
        if step != self._step or step >= self.steps:
            raise IsthmusError(f"refused: step {step} of the matching, due is step {self._step}")
        if step == 0:
            self._agree_on(sizes)
            self._own = blind([number.to_bytes(8, "big") for number in self.values.tolist()], self.context, self.secret)
            points = self._own.points
        else:
            points = multiply(self._taken().numpy(), self._scalar)
        self._step += 1
        following = self.parties[(self._at + 1) % self.steps]
        return following, {"origin": self._origin(step), "step": step, "points": torch.from_numpy(points.copy())}

    def letter_problem(self, sender: str, letter: Mapping[str, Any]) -> str:
        """Say what is wrong with a list that came from a party in the last step."""
        step, before = self._step - 1, self.parties[self._at - 1]
        if step < 0 or sender != before:
            return f"no list is due from '{sender}'"
        if set(letter) != FIELDS or letter["step"] != step or letter["origin"] != self._origin(step + 1):
            return f"it is not the list of '{self._origin(step + 1)}' in step {step} of the matching"
        points = letter["points"]
        found = points.numpy() if isinstance(points, Tensor) else points
        why = list_problem(found, self._sizes[self.parties.index(self._origin(step + 1))])
        return why and f"the list of '{self._origin(step + 1)}' is refused: {why}"

    def take(self, letters: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep the list that came; without one, the next step is refused."""
        self._came = next((letter["points"] for letter in letters.values()), None)

    def finish(self) -> Pseudonyms:
        """Return the pseudonyms of this party's values, when its list is home."""
        if self._step != self.steps or self._own is None:
            raise IsthmusError(f"refused: the matching is in step {self._step} of {self.steps}")
        found = unblind(self._own, self._taken().numpy(), self._scalar, self.context)
        self.done, self._own = True, None
        return Pseudonyms(self.values, torch.from_numpy(found))

    def _agree_on(self, sizes: Mapping[str, int]) -> None:
        if sorted(sizes) != self.parties or sizes[self.name] != self.size:
            raise IsthmusError("refused: the server announces other lists to match than the parties have")
        self._sizes = [int(sizes[party]) for party in self.parties]
        for party, size in zip(self.parties, self._sizes, strict=True):
            if party != self.name and self.most is not None and size > self.most:
                raise IsthmusError(f"refused: '{party}' matches a list of {size:,}, limits.matched is {self.most:,}")

    def _origin(self, step: int) -> str:
        """Whose list this party sends in a step."""
        return self.parties[(self._at - step) % self.steps]

    def _taken(self) -> Tensor:
        came, self._came = self._came, None
        if came is None:
            raise IsthmusError(
                f"refused: no list of '{self._origin(self._step)}' came from '{self.parties[self._at - 1]}', or it did "
                "not open"
            )
        return came
