"""A method whose parties do what a test tells them to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric import nn as gnn

from helpers import CLASSES, FEATURES, make_node_parties
from isthmus.data.party import Party
from isthmus.federation import wire
from isthmus.federation.actions import Binding, action
from isthmus.federation.local import LocalTransport
from isthmus.federation.models import Models
from isthmus.federation.site import Site
from isthmus.federation.verbs import Federation
from isthmus.methods.base import Method, Model, State
from isthmus.tasks.classification import NodeClassification

NAMES = ("party-0", "party-1", "party-2", "party-3")


class Scripted(Method):
    """`say` answers what the script makes of the site and the request."""

    script: Callable[..., Any]

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        yield state

    def models(self, state: State) -> Models:
        return Models(personal=True)

    class AtParty(Site):
        method: Scripted

        def binding(self, name: str) -> Binding:
            return AnyCall(("ask", "total", "exchange"), to="parties") if name == "say" else super().binding(name)

        @action("ask", "total", "exchange")
        def say(self, request: wire.Payload) -> Any:
            return self.method.script(self, request)


class AnyCall(Binding):
    """Permits every call."""

    def permit(self, action: str, verb: str, to: str) -> None: ...


def small_parties() -> tuple[Party, ...]:
    return make_node_parties((5, 4, 6, 5))


def site_of(script: Callable[..., Any], parties: Sequence[Party] | None = None, *, seed: int = 0) -> Site:
    task, module = NodeClassification(classes=CLASSES), gnn.GCN(FEATURES, 4, 1, CLASSES)
    return Scripted.AtParty(Scripted(script=script), parties or small_parties(), task, module, seed=seed)


def federation_of(
    script: Callable[..., Any],
    *,
    split: Sequence[Sequence[int]] = ((0, 1, 2, 3),),
    wire: bool = False,
    limit: int = wire.LIMIT,
    **options: Any,
) -> Federation:
    """Four parties that follow the script, spread over sites as `split` says."""
    parties = small_parties()
    sites = [site_of(script, [parties[at] for at in here]) for here in split]
    return Federation(LocalTransport(sites, wire=wire, limit=limit), **options)


def number(party: str) -> int:
    return int(party.rsplit("-", 1)[1])


def bits(value: Any) -> Any:
    """What can be compared bit for bit: dtype, shape and bytes of a tensor, type and text of anything else."""
    if isinstance(value, Tensor):
        flat = value.detach().contiguous().reshape(-1)
        return value.dtype, tuple(value.shape), bytes(flat.view(torch.uint8).tolist())
    if isinstance(value, dict):
        return {name: bits(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [bits(inner) for inner in value]
    return type(value), repr(value)
