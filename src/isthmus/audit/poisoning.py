"""Attackers that poison the shared model: parties whose data, or whose answers, are not what they should be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from isthmus.data import rows
from isthmus.data.party import Party
from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.federation.answers import Answer, Reply
from isthmus.federation.local import LocalTransport
from isthmus.federation.robust import Aggregation, Mean
from isthmus.federation.transport import Command, Each
from isthmus.nn.stacks import slice_of


@dataclass(frozen=True)
class Attacker:
    """What a lying party does to its data and to its answers; this one does nothing.

    Arguments:
        boost: its updates are so many times as large as those that it trained.
    """

    boost: float = 1.0

    def poison(self, party: Party) -> Party:
        """Return the data that the party trains on."""
        return party

    def lie(self, value: Tensor, sent: Tensor) -> Tensor:
        """Return what the party answers instead of the trained version of what was sent."""
        return sent + self.boost * (value - sent) if self.boost != 1 else value


@dataclass(frozen=True)
class LabelFlip(Attacker):
    """Gives every training item the next class, so that the model learns to be wrong.

    Arguments:
        classes: number of classes.
    """

    classes: int = 2

    def poison(self, party: Party) -> Party:
        y = party.graph.y.clone()
        y[party.train] = (y[party.train] + 1) % self.classes
        return replace(party, graph=_with(party.graph, y=y))


@dataclass(frozen=True)
class GraphBackdoor(Attacker):
    """Attaches a small subgraph to training nodes and labels them with a class of its choice (Zhang et al. 2021).

    A model that learns this gives the class to every node with the subgraph, and is as good as any on other nodes.

    Arguments:
        target: the class.
        size: nodes of the subgraph; all are linked, and all to the node that it is attached to.
        share: share of the training nodes of other classes that get it.
    """

    target: int = 0
    size: int = 3
    share: float = 1.0

    def poison(self, party: Party) -> Party:
        others = (party.train & (party.graph.y != self.target)).nonzero().flatten()
        chosen = others[: max(1, round(self.share * len(others)))]
        y = party.graph.y.clone()
        y[chosen] = self.target
        return self.attach(replace(party, graph=_with(party.graph, y=y)), chosen)

    def tested(self, party: Party) -> Party:
        """Return the party with the subgraph at all test nodes of other classes; only these are tested."""
        chosen = party.test & (party.graph.y != self.target)
        return self.attach(replace(party, test=chosen), chosen.nonzero().flatten())

    def attach(self, party: Party, nodes: Tensor) -> Party:
        """Return the party with the subgraph at these nodes."""
        if party.level != "node":
            raise IsthmusError(f"party '{party.name}': this backdoor is for nodes, it has {party.level}s")
        if party.schema is not None or party.edge_width:
            raise IsthmusError(f"party '{party.name}': this backdoor is for edges without types and features")
        graph, count, new = party.graph, party.nodes, self.size * len(nodes)
        x = rows.to_dense(graph.x)
        largest = x.abs().max().clamp(min=1e-6) * torch.ones(new, x.size(1))
        largest[:, 1::2] *= -1  # a pattern that no node has
        added = count + torch.arange(new).view(len(nodes), self.size)
        members = torch.cat([nodes.view(-1, 1), added], dim=1)
        pairs = torch.combinations(torch.arange(self.size + 1))
        edges = members[:, pairs].reshape(-1, 2).t()
        edges = torch.cat([graph.edge_index, edges, edges.flip(0)], dim=1)
        weight = graph.get("edge_weight")
        more = (
            {} if weight is None else {"edge_weight": torch.cat([weight, weight.new_ones(edges.size(1) - len(weight))])}
        )
        y = torch.cat([graph.y, graph.y.new_full((new,), self.target)])
        poisoned = Data(x=torch.cat([x, largest]), edge_index=edges, y=y, num_nodes=count + new, **more)
        none = torch.zeros(new, dtype=torch.bool)
        masks: dict[str, Any] = {split: torch.cat([getattr(party, split), none]) for split in _SPLITS}
        ids = None if party.ids is None else torch.cat([party.ids, -1 - torch.arange(new)])
        return replace(party, graph=poisoned, ids=ids, **masks)


_SPLITS = ("train", "val", "test")


class LyingTransport(LocalTransport):
    """A local transport in which some parties answer as an attacker makes them.

    Arguments:
        liars: names of the parties that lie.
        attacker: what they do.
        aggregation: how the study makes means; instead of a lie that it would refuse, they tell the largest one that it
            takes.
    """

    def __init__(
        self,
        sites: Sequence[Any],
        liars: Sequence[str],
        attacker: Attacker,
        aggregation: Aggregation | None = None,
        **options: Any,
    ) -> None:
        super().__init__(sites, **options)
        self.liars, self.attacker, self.aggregation = frozenset(liars), attacker, aggregation or Mean()

    def send(self, command: Command) -> list[Reply]:
        if command.do != "answer" or isinstance(command.payload, Each) or command.verb != "total":
            return super().send(command)
        sent = dict(wire.flatten(command.payload))
        replies = super().send(replace(command, sum_only=False))
        return [self._changed(reply, sent, command.payload) for reply in replies]

    def _changed(self, reply: Reply, sent: dict[str, Any], request: wire.Payload) -> Reply:
        for path, column in reply.columns.items():
            like = sent.get(path)
            if isinstance(like, Tensor) and like.is_floating_point():
                values = [slice_of(column, at) for at in range(len(reply.parties))]
                reply.columns[path] = [
                    self.attacker.lie(value, like) if party in self.liars else value
                    for party, value in zip(reply.parties, values, strict=True)
                ]
        if reply.columns:
            limited = self.aggregation.limit(Answer(wire.unflatten(reply.columns)), request)
            reply.columns = dict(wire.flatten(limited.fields))
        return reply


def _with(graph: Data, **values: Tensor) -> Data:
    """A copy of a graph with other values."""
    found = graph.clone()
    for name, value in values.items():
        found[name] = value
    return found
