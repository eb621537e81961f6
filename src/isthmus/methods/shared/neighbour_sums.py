"""Sums over neighbours at all parties, added up once; and what sites of parties with a coupled graph share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from isthmus.data import matrices, rows
from isthmus.data.coupling import Coupling, decouple, ids_across
from isthmus.data.party import Party
from isthmus.errors import IsthmusError
from isthmus.federation.actions import action
from isthmus.federation.answers import Answer, Mail
from isthmus.federation.bounds import COUNT_ROUNDING
from isthmus.federation.letters import Form, UpTo
from isthmus.federation.site import Prepared, Site
from isthmus.federation.wire import Payload
from isthmus.methods.shared.relation_sums import ids_of_targets, relation_sums, with_means
from isthmus.methods.shared.row_owners import check_owners, claimed_rows, named_rows
from isthmus.nn.draws import seed_of

NOUNS = {
    "sum": "features",
    "degree": "numbers of neighbours",
    "holders": "numbers of holders",
    "name_rows/ids": "ids of rows that it names as the other's",
}
"""What the fields of these sums are."""


class Coupled(Site):
    """A site of parties with a coupled graph."""

    _coupling: tuple[tuple[str, ...], Any] | None = None

    def couple(self) -> Any:
        """The decoupled graphs of the cohort."""
        return decouple(self.cohort.parties)

    @property
    def coupling(self) -> Any:
        """`couple()`, cached while the same parties are asked."""
        if self._coupling is None or self._coupling[0] != self.cohort.names:
            self._coupling = self.cohort.names, self.couple()
        return self._coupling[1]


class NamedNodes(Prepared):
    """A site of parties that name the nodes whose sums they add to."""

    @action("ask")
    def known(self, request: Payload) -> Answer:
        """Ids of own nodes and of those across the border."""
        return Answer({"ids": [torch.cat(each) for each in zip(*self._ids(), strict=True)]})

    def drop_received(self, name: str) -> None:
        """Let go of sums that the parties asked have used: they take more memory than the parties' data."""
        for at in self.positions:
            self.inbox[name].pop(at, None)

    def _ids(self) -> tuple[list[Tensor], list[Tensor]]:
        """Ids of own nodes, and of those across the border, by party."""
        own = [_placeholder_ids(party) if party.ids is None else party.ids for party in self.held.parties]
        outer = (
            torch.from_numpy(ids_across(party)) if party.schema is None else ids_of_targets(party)
            for party in self.held.parties
        )
        return own, list(outer)


class NeighbourSums(NamedNodes):
    """The party side of sum_v c_uv x_v over all neighbours v of a node u, with c_uv = ((1 + d_u) (1 + d_v))^-1/2.

    Parties add up by node id, so that none receives another's part of a sum. Degrees d are those in the whole graph,
    which a party knows of its own nodes. The receiver of a sum divides it by (1 + d_u)^1/2.

    Of typed graphs they are the sums of `relation_sums`, without coefficients.

    Attributes:
        beyond: whether a party also gets the sums of the nodes across its border.
    """

    beyond: bool = False

    def due_names(self, sender: str) -> Form:
        """As many ids as the party has rows, at most."""
        return {"ids": UpTo(self.cohort.parties[0].nodes, torch.tensor(0))}

    @action("exchange", protected=True, form=due_names)
    def name_rows(self, request: Payload) -> Mail:
        """Tell each party which rows own edges name as that party's; it checks in `settle` that it has them."""
        known = set(str(request["parties"]).split("\n"))
        return Mail(
            [{name: {"ids": ids} for name, ids in named_rows(each) if name in known} for each in self.cohort.parties]
        )

    @action("total", to="parties", least=2, protected=True)
    def sum_up(self, request: Payload) -> Answer:
        """What own nodes add to the sums of their neighbours, and the degrees of own nodes."""
        answer: dict[str, list[Tensor]] = {"ids": [], "sum": [], "degree": [], "holders": [], "wants": []}
        own_degrees: list[Tensor] = []
        for party, own_ids, outer_ids in zip(self.cohort.parties, *self._ids(), strict=True):
            if party.schema is not None:
                answer["ids"].append(torch.cat([own_ids, outer_ids]))
                answer["sum"].append(relation_sums(party))
                answer["holders"].append(torch.cat([claimed_rows(party), torch.zeros(len(outer_ids))]))
                answer["wants"].append(own_ids)
                continue
            graph = decouple([party])  # one at a time: it takes more memory than the party's edges
            x = matrices.from_tensor(rows.to_dense(party.graph.x)) * (graph.degree**-0.5)[:, None]
            sums = np.concatenate([graph.inner @ x, graph.outer @ x])
            answer["ids"].append(torch.cat([own_ids, outer_ids]))
            answer["sum"].append(torch.from_numpy(sums).to(party.graph.x.dtype))
            own_degrees.append(torch.from_numpy(graph.degree))
            answer["degree"].append(torch.from_numpy(np.concatenate([graph.degree, np.zeros(len(outer_ids))])))
            answer["wants"].append(answer["ids"][-1] if self.beyond else own_ids)
        if own_degrees:
            self.kept["degree"] = own_degrees
        return Answer({name: values for name, values in answer.items() if values})

    def summed_up(self) -> list[dict[str, Tensor]]:
        """The received sums, divided, with degrees and ids; own degrees are not taken from a sum, where others may
        lie."""
        if self.cohort.parties[0].schema is not None:
            found = []
            for party, total, named in zip(
                self.cohort.parties, self.received("sum_up"), self.received("name_rows"), strict=True
            ):
                check_owners(party, total["holders"].cpu(), named)
                found.append({"x": with_means(party, total["sum"].cpu())})
            return found
        found = []
        for own, received in zip(self.kept.each("degree"), self.received("sum_up"), strict=True):
            degree = received["degree"].clone()
            degree[: len(own)] = own.to(degree)
            if not bool((degree >= 1 - COUNT_ROUNDING).all()):
                raise IsthmusError("a degree below 1 in the sum that it got: some party's part is wrong")
            x = degree.pow(-0.5).unsqueeze(1) * received["sum"]
            found.append({"x": x.to(received["sum"].dtype), "degree": degree, "ids": received["ids"]})
        return found


def slot_ids(coupling: Coupling) -> list[Tensor]:
    """Ids of the nodes across the border, by party."""
    counts = [sum(at.stop - at.start for at in own.values()) for own in coupling.slots]
    return list(torch.from_numpy(coupling.ids).split(counts))


def _placeholder_ids(party: Party) -> Tensor:
    """Ids for the nodes of a party that has none, unlike those of other parties: `[nodes]`."""
    return (seed_of("nodes of", party.name) >> 1) + torch.arange(party.nodes)
