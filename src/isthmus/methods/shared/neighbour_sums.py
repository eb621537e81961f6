"""Sums over neighbours wherever they are: what a party misses of its own nodes' neighbourhoods, added up once."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from isthmus.data import matrices, rows
from isthmus.data.coupling import Coupling, decouple
from isthmus.data.party import Party
from isthmus.federation.answers import Answer
from isthmus.federation.site import Prepared, action
from isthmus.federation.wire import Payload
from isthmus.nn.draws import seed_of

NOUNS = {"sum": "features", "degree": "numbers of neighbours"}
"""What the fields of the sums are."""


class NeighbourSums(Prepared):
    """The party side of sum_v c_uv x_v over all neighbours v of a node u, with c_uv = ((1 + d_u) (1 + d_v))^-1/2.

    Parties add up by the nodes' ids, so that none is sent another's part of a sum; degrees d are those in the whole
    graph, which a party knows of its own nodes. Who gets a sum divides it by (1 + d_u)^1/2 itself.

    Attributes:
        beyond: whether a party gets the sums of the nodes across its border too, or those of its own alone.
    """

    beyond: bool = False

    def __init__(self, *args: Any, **where: Any) -> None:
        super().__init__(*args, **where)
        self._coupling: tuple[tuple[str, ...], Coupling] | None = None

    @action
    def known(self, request: Payload) -> Answer:
        """The ids of own nodes and of those across the border."""
        return Answer({"ids": [torch.cat(each) for each in zip(*self._ids(), strict=True)]})

    @action
    def sum_up(self, request: Payload) -> Answer:
        """What own nodes add to every node that they are joined to, and the degrees of own nodes."""
        coupling = self.coupling
        scaled = torch.from_numpy(coupling.degree**-0.5)
        own_ids, outer_ids = self._ids()
        answer: dict[str, list[Tensor]] = {"ids": [], "sum": [], "degree": [], "wants": []}
        nodes, slots = np.cumsum([0, *coupling.sizes]), np.cumsum([0, *map(len, outer_ids)])
        for at, party in enumerate(self.cohort.parties):
            own, across = slice(*nodes[at : at + 2]), slice(*slots[at : at + 2])
            x = matrices.from_tensor(rows.to_dense(party.graph.x)) * scaled[own].unsqueeze(1).numpy()
            sums = [matrix[part][:, own] @ x for matrix, part in ((coupling.inner, own), (coupling.outer, across))]
            degree = np.concatenate([coupling.degree[own], np.zeros(len(outer_ids[at]))])
            answer["ids"].append(torch.cat([own_ids[at], outer_ids[at]]))
            answer["sum"].append(torch.from_numpy(np.concatenate(sums)).to(party.graph.x.dtype))
            answer["degree"].append(torch.from_numpy(degree))
            answer["wants"].append(answer["ids"][-1] if self.beyond else own_ids[at])
        return Answer(answer)

    @property
    def coupling(self) -> Coupling:
        """The decoupled graphs of the parties asked now."""
        names = self.cohort.names
        if self._coupling is None or self._coupling[0] != names:
            self._coupling = names, decouple(self.cohort.parties)
        return self._coupling[1]

    def _ids(self) -> tuple[list[Tensor], list[Tensor]]:
        """Ids of own nodes, and of those across the border, by party."""
        slots = torch.from_numpy(self.coupling.ids)
        outer = [len_of(own) for own in self.coupling.slots]
        own = [_named(party) if party.ids is None else party.ids for party in self.cohort.parties]
        return own, list(slots.split(outer))


def len_of(slots: dict[str, slice]) -> int:
    return sum(at.stop - at.start for at in slots.values())


def _named(party: Party) -> Tensor:
    """Ids for nodes that have none, so that nobody else's nodes are taken for them: `[nodes]`."""
    return (seed_of("nodes of", party.name) >> 1) + torch.arange(party.nodes)
