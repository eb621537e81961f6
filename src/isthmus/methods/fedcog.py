"""FedCog: coupled graphs, propagated together once and trained on by any method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from scipy.sparse import csr_array
from torch import Tensor, nn
from torch_geometric.data import Data

from isthmus.data import matrices, rows
from isthmus.data.coupling import Coupling, decoupled
from isthmus.data.party import Level, Party
from isthmus.errors import IsthmusError, PartyFailed
from isthmus.federation.answers import Answer, Mail
from isthmus.federation.site import Prepared, Site, action
from isthmus.federation.verbs import Federation
from isthmus.federation.wire import Payload
from isthmus.methods.base import Averaging, Method, Model, State
from isthmus.nn.diffusion import Diffusion
from isthmus.tasks.base import Task


class FedCog(Averaging):
    """FedCog (Lei et al. 2023), Algorithm 1: parties propagate over one coupled graph, then train on what they got.

    Internal propagation (13):  h_u <- sum_{v in N_u^I} beta_v h_v for own nodes and for others' nodes u at the border;
    exchange:                   what was summed up for another party's node goes to that party;
    border propagation (14):    h_u <- gamma_u (own sum + what came for u).
    Theorem 1: after L of these every node has what L propagations over the whole graph would give it.

    The encoder says what is propagated: sgc (beta = gamma = (1 + d)^-1/2), gbp, and appnp and gprgnn with
    first = "propagate". For GBP the paper's (16) and (17) have r and 1 - r the other way round than the matrix
    D^(r-1) A D^-r that they are to compute; the matrix is what is computed here. Training of what comes after the
    propagation is another method's, `trainer`.

    Message by message a party sees sums over another party's nodes. Theorem 2 says when these may tell a single node's
    features; `lnnc` and `least` are the ways out of it.
    """

    name: ClassVar[str] = "fedcog"
    levels: ClassVar[tuple[Level, ...]] = ("node",)
    encoder: ClassVar[str] = "sgc"
    everyone: ClassVar[bool] = True

    trainer: dict[str, Any] = Field({"name": "fedavg"})
    """The method that trains after the propagation, and its options."""
    lnnc: bool = True
    """Local nearest neighbour connection: nodes without a neighbour in their party are joined to the most similar."""
    least: int = Field(1, ge=1)
    """Nothing is sent for a border node that fewer of the sender's nodes are joined to; 3 hides what LNNC may not."""

    def training(self) -> Method:
        """The trainer, with the options that it shares with this method."""
        table = dict(self.trainer)
        kind = Method.named(str(table.pop("name", "fedavg")))
        if kind.pooled or issubclass(kind, FedCog):
            raise IsthmusError(f"method 'fedcog': '{kind.name}' is no trainer: name one that trains parties")
        given = {"rounds", "quorum", *self.model_fields_set} & kind.model_fields.keys()
        return kind.read({**{name: getattr(self, name) for name in given}, **table}, f"method 'fedcog', {kind.name}")

    def site(self, parties: Sequence[Party], task: Task, module: nn.Module, **where: Any) -> Site:
        kind = type("AtParty", (FedCog.AtParty, self.training().AtParty), {})
        return kind(self, parties, task, module, **where)

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        if state.once("propagate"):
            for hop in range(1, diffusion_of(model.module).hops + 1):
                receipt = federation.exchange("propagate", {"hop": hop})
                require_all(receipt.missing)
            require_all(federation.ask("settle").missing)
            yield state
        yield from self.training().server(federation, model, state)

    def evaluated(self, state: State) -> dict[str, Any]:
        return self.training().evaluated(state)

    class AtParty(Prepared):
        def __init__(
            self, method: FedCog, parties: Sequence[Party], task: Task, module: nn.Module, **where: Any
        ) -> None:
            module = deepcopy(module)
            self.diffusion = diffusion_of(module)
            setattr(module, "diffused", True)  # noqa: B010 - nn.Module's type knows no plain attributes
            super().__init__(method.training(), parties, task, module, **where)
            self.lnnc, self.least = method.lnnc, method.least
            self._coupling: tuple[tuple[str, ...], Coupling] | None = None

        @action
        def propagate(self, request: Payload) -> Mail:
            """Lines 5 to 8: the hop before is finished, own nodes are summed up, what is others' goes to them."""
            coupling = self.coupling
            h = matrices.scaled(self._reached(int(request["hop"]) - 1), coupling.degree**self.diffusion.right)
            self.kept["half"] = matrices.pieces(coupling.inner.astype(h.dtype) @ h, coupling.sizes)
            across = matrices.fitting(coupling.outer.astype(h.dtype) @ h)
            return Mail(
                [
                    {
                        owner: {"ids": torch.from_numpy(coupling.ids[at]), **matrices.carried(across[at])}
                        for owner, at in own.items()
                    }
                    for own in coupling.slots
                ]
            )

        @action
        def settle(self, request: Payload) -> Answer:
            """Line 9 for the last time; from here on the parties train on what the hops come to."""
            last = self._reached(self.diffusion.hops)
            before = range(self.diffusion.hops) if self.diffusion.keeps_all else ()
            hops = matrices.alike(
                [*(self._features() if at == 0 else self._kept_matrix(f"hop-{at}") for at in before), last]
            )
            self.kept["prepared"] = matrices.pieces(self.diffusion.result(hops, matrices.beside), self.coupling.sizes)
            for name in ("half", *(f"hop-{at}" for at in before)):
                del self.kept[name]
            return Answer({})

        def trained_on(self, party: Party, prepared: Any) -> Party:
            x = rows.sparsified(matrices.uncarried(prepared))
            graph = Data(x=x, edge_index=torch.empty(2, 0, dtype=torch.long), y=party.graph.y, num_nodes=party.nodes)
            return replace(party, graph=graph, border=None)

        @property
        def coupling(self) -> Coupling:
            """The decoupled graphs of the parties asked now (lines 2 and 3)."""
            names = self.cohort.names
            if self._coupling is None or self._coupling[0] != names:
                self._coupling = names, decoupled(self.cohort.parties, lnnc=self.lnnc, least=self.least)
            return self._coupling[1]

        def _features(self) -> Any:
            return matrices.below([matrices.of_tensor(party.graph.x) for party in self.cohort.parties])

        def _kept_matrix(self, name: str) -> Any:
            return matrices.below([matrices.of_tensor(matrices.uncarried(piece)) for piece in self.kept.each(name)])

        def _reached(self, hop: int) -> Any:
            """H of this hop: border propagation of the own half and of what came."""
            if hop == 0:
                return self._features()
            half = self._kept_matrix("half")
            half, came = matrices.alike([half, self._came(half)])
            h = matrices.scaled(half + came, self.coupling.degree**self.diffusion.left)
            if restart := self.diffusion.restart:
                h, start = matrices.alike([h, self._features()])
                h = (1 - restart) * h + restart * start
            h = matrices.fitting(h)
            if self.diffusion.keeps_all and hop < self.diffusion.hops:
                self.kept[f"hop-{hop}"] = matrices.pieces(h, self.coupling.sizes)
            return h

        def _came(self, like: Any) -> Any:
            """What other parties summed up for the nodes here, in the shape of the own half."""
            places, parts, first = [], [], 0
            for party, letters in zip(self.cohort.parties, self.received("propagate"), strict=True):
                for sender, letter in letters.items():
                    places.append(first + places_of(party, sender, letter["ids"]).numpy())
                    parts.append(matrices.of_tensor(matrices.uncarried(letter)))
                first += party.nodes
            if not parts:
                return csr_array(like.shape, dtype=like.dtype)
            at = np.concatenate(places)
            sums = csr_array(
                (np.ones(at.size, dtype=parts[0].dtype), (at, np.arange(at.size))), shape=(like.shape[0], at.size)
            )
            return sums @ matrices.below(matrices.alike(parts))


def diffusion_of(module: nn.Module) -> Diffusion:
    """What the model propagates before it learns; an error where it does not."""
    diffusion = getattr(module, "diffusion", None)
    if not isinstance(diffusion, Diffusion):
        raise IsthmusError(
            "method 'fedcog' needs a model that propagates before it learns: sgc, gbp, or appnp and gprgnn with "
            "first = 'propagate' (for gcn there is fedcog-gcn)"
        )
    return diffusion


def require_all(missing: Mapping[str, str]) -> None:
    """Sums over a coupled graph are wrong without a party."""
    if missing:
        party, why = next(iter(missing.items()))
        raise IsthmusError(f"all parties must take part in propagation; party '{party}' did not: {why}")


def places_of(party: Party, sender: str, ids: Tensor) -> Tensor:
    """Positions of these nodes at the party."""
    if party.ids is None:
        raise PartyFailed(party.name, f"party '{sender}' sent sums, but this party's nodes have no ids")
    order = torch.argsort(party.ids)
    at = torch.searchsorted(party.ids[order], ids.cpu()).clamp(max=party.nodes - 1)
    if not torch.equal(party.ids[order][at], ids.cpu()):
        raise PartyFailed(party.name, f"party '{sender}' sent sums for nodes that are not here")
    return order[at]
