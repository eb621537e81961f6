"""Sums over neighbours at all parties for models that read hops (`nn.aggregation`), with noise where a study asks.

Hop k: s_i <- sum_{j -> i} h_j^(k-1),  h_i^(k) <- s_i / |s_i|       over the neighbours j of i at all parties

A party adds up the rows of its own nodes: for its own nodes over the edges that it has, for nodes of others over those
across its border. So each edge counts once, a hop is one total by node id, and a party reads the rows of its nodes.

Where edges or nodes are hidden, the ids that a party names and the rows that it adds to must not follow from its edges.
So it names its own nodes only, and adds to the rows of all parties' nodes, with its share of the noise
(`HopPlan.part`): whatever a party reads has all of the noise without its own share.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isthmus.data.coupling import one_way_only
from isthmus.data.party import Party
from isthmus.errors import IsthmusError
from isthmus.federation.actions import action
from isthmus.federation.answers import Answer
from isthmus.federation.private import SHARES, shares_of
from isthmus.federation.verbs import Federation
from isthmus.federation.wire import Payload
from isthmus.methods.shared.neighbour_sums import NamedNodes
from isthmus.nn.aggregation import Aggregated, simple_edges, unit, without_edges


class HopSums(NamedNodes):
    """The party side of these sums.

    Attributes:
        reader: the part of the model that reads hops; none if it reads none.
    """

    reader: Aggregated | None = None

    @action("ask")
    def known(self, request: Payload) -> Answer:
        """Ids of own nodes and, where edges are not hidden, of those across the border."""
        own, outer = self._ids()
        hidden = self.private is not None and self.private.together is not None
        return Answer({"ids": own if hidden else [torch.cat(each) for each in zip(own, outer, strict=True)]})

    @action("total", to="parties", least=2, protected=True)
    def add_hop(self, request: Payload) -> Answer:
        """What own nodes add to the sums over all nodes' neighbours."""
        plan = None if self.private is None else self.private.together
        hop, answer = int(request["hop"]), dict[str, list[Tensor]](ids=[], sum=[], wants=[])
        for party, own, outer, h in zip(self.held.parties, *self._ids(), self._rows_before(hop), strict=True):
            edges, ids = _edges_from(party, outer), torch.cat([own, outer])
            if plan is None:
                found = h.new_zeros(ids.numel(), h.size(1)).index_add_(0, edges[1], h[edges[0]])
            else:
                plan.check_neighbours(edges, party.name)
                union = _all_ids(request["ids"].cpu(), own)
                edges, ids = _among(edges, ids, union), union
                purpose = party.name, hop, ids.numpy().tobytes().hex()
                found = plan.part(h, edges, ids.numel(), shares_of(request), self.noise, *purpose)
            answer["ids"].append(ids)
            answer["sum"].append(found)
            answer["wants"].append(own)
        return Answer(dict(answer))

    def all_hops(self) -> list[dict[str, Tensor]]:
        """The hops of own nodes, side by side, when all sums have come: what the parties train on."""
        assert self.reader is not None
        self._rows_before(self.reader.depth + 1)
        found = [{"hops": torch.cat(hops[1:], dim=1)} for hops in self.kept.each("hops")]
        self.kept["hops"] = [[] for _ in found]  # they are what it trains on from now on
        self.drop_received("add_hop")
        return found

    def beside_hops(self, party: Party, prepared: Any) -> Party:
        """The party with hops beside its features, and without edges."""
        x = party.graph.x.to_dense()
        return without_edges(party, torch.cat([x, prepared["hops"].to(x)], dim=1))

    def _rows_before(self, hop: int) -> list[Tensor]:
        """What a hop sums up: projected features, or the hop before, which the parties received."""
        assert self.reader is not None
        if hop == 1:
            self.kept["hops"] = [[self.reader.first(party.graph.x.double()).cpu()] for party in self.held.parties]
        else:
            came = [unit(letter["sum"].double().cpu()) for letter in self.received("add_hop")]
            before = self.kept.each("hops")
            self.kept["hops"] = [[*hops[: hop - 1], h] for hops, h in zip(before, came, strict=True)]
        return [hops[-1] for hops in self.kept.each("hops")]


def add_up_hops(federation: Federation, hops: int) -> None:
    """The server side: one total per hop. Parties read the last in what follows."""
    union = federation.agree("known")
    hidden = federation.private is not None and federation.private.together is not None
    if hidden and bool((union.holders > 1).any()):  # each of them would read what the others add to such a row
        count = int((union.holders > 1).sum())
        raise IsthmusError(f"privacy: several parties hold {count} of the nodes: each must have one owner")
    noise = {"ids": union.ids, SHARES: len(federation.parties)} if hidden else {}
    for hop in range(1, hops + 1):
        federation.total("add_hop", {"hop": hop, **noise}, rows=union, to="parties")


def _edges_from(party: Party, outer: Tensor) -> Tensor:
    """Each edge from an own node once, in both directions if both ends are own: `[2, edges]`, targets beyond the own
    ones being positions in `outer`."""
    edges = simple_edges(party.graph.edge_index, party.nodes)
    if not torch.equal(edges, simple_edges(party.graph.edge_index.flip(0), party.nodes)):
        raise one_way_only(party.name)
    border = party.border
    if border is None or not len(border):
        return edges
    order = torch.argsort(outer)
    at = party.nodes + order[torch.searchsorted(outer[order], border.outer)]
    return torch.cat([edges, torch.unique(torch.stack([border.inner, at]), dim=1)], dim=1)


def _all_ids(union: Tensor, own: Tensor) -> Tensor:
    """The ids of all parties' nodes, checked: an answer must not follow from what a server leaves out."""
    whole = union.dtype == torch.long and union.dim() == 1 and bool((union.diff() > 0).all())
    if not (whole and bool(torch.isin(own, union).all())):
        raise IsthmusError("refused: the ids in the request are not those of all parties' nodes, ascending")
    return union


def _among(edges: Tensor, ids: Tensor, union: Tensor) -> Tensor:
    """The edges with targets in the union, each once, without those to nodes that no party has."""
    target = ids[edges[1]]
    at = torch.searchsorted(union, target).clamp(max=union.numel() - 1)
    found: Tensor = torch.unique(torch.stack([edges[0], at])[:, union[at] == target], dim=1)
    return found
