"""Which models exist after a round, and whose they are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from isthmus.errors import IsthmusError
from isthmus.federation.transport import Each
from isthmus.federation.wire import Payload
from isthmus.nn.weights import Weights

GROUP_NAME = re.compile(r"[\w-][\w.-]*")
"""Names of groups are names of files."""


@dataclass(frozen=True)
class Group:
    """A model that some parties share."""

    parties: tuple[str, ...]
    weights: Weights


@dataclass(frozen=True)
class Models:
    """The models that exist after a round.

    A party's model consists of the shared weights (or its group's) and, over them, of the weights that it keeps
    itself (`Site.keep_model`): nothing, a head, or everything. The engine evaluates these models, saves them, and in a
    federation has each party write down its own; no other party and no server gets a party's own weights.

    Arguments:
        shared: weights that the server knows and all parties' models have in common.
        groups: by name, models that each belong to some parties; every party is in one, and nothing is `shared`.
        personal: whether parties keep weights of their own.
        context: further fields that parties need to predict, such as prototypes.

    >>> Models(groups={"a": Group(("north",), {}), "b": Group(("south",), {})}).request(["south"])
    Each(payloads={'south': {'weights': {}}})
    """

    shared: Weights = field(default_factory=dict)
    groups: Mapping[str, Group] = field(default_factory=dict)
    personal: bool = False
    context: Payload = field(default_factory=dict)

    def __post_init__(self) -> None:
        parties = [party for group in self.groups.values() for party in group.parties]
        if self.groups and self.shared:
            raise IsthmusError("models are shared by all or belong to groups: leave one of the two out")
        if twice := [party for party in parties if parties.count(party) > 1]:
            raise IsthmusError(f"party '{twice[0]}' is in two groups: put it into one")
        if wrong := [name for name in self.groups if not GROUP_NAME.fullmatch(name)]:
            raise IsthmusError(f"group '{wrong[0]}' cannot be a file's name: use letters, digits, '.', '_' and '-'")

    def request(self, parties: Sequence[str]) -> Payload | Each:
        """What these parties are sent so that each has its model; nothing where they keep all of it themselves."""
        if not self.groups:
            return {**({"weights": self.shared} if self.shared else {}), **self.context}
        weights = {party: group.weights for group in self.groups.values() for party in group.parties}
        if lost := [party for party in parties if party not in weights]:
            raise IsthmusError(f"party '{lost[0]}' is in no group: give every party a model")
        return Each({party: {"weights": weights[party], **self.context} for party in parties})

    @property
    def one_for_all(self) -> bool:
        """Whether all parties have the same model, which the server knows."""
        return bool(self.shared) and not self.personal
