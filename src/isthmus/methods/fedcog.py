"""FedCog: coupled graphs, propagated together once and trained on by any method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from scipy.sparse import csr_array, diags_array
from torch import Tensor, nn
from torch_geometric.data import Data

from isthmus.data import matrices, rows
from isthmus.data.coupling import Coupling, decouple
from isthmus.data.matrices import Ints
from isthmus.data.party import Level, Party
from isthmus.errors import IsthmusError, PartyFailed
from isthmus.federation.answers import Answer, Mail
from isthmus.federation.site import Prepared, action
from isthmus.federation.verbs import Federation, Needed
from isthmus.federation.wire import Payload
from isthmus.methods.base import Listing, Model, State
from isthmus.methods.shared.composed import Composed
from isthmus.nn.diffusion import Diffusion
from isthmus.tasks.base import Task


class FedCog(Composed):
    """FedCog (Lei et al. 2023), Algorithm 1: parties propagate over one coupled graph, then train on what they got.

    internal (13): h_u <- sum_{v in N_u^I} beta_v h_v, for own nodes u
                   and for others' nodes u at the border
    exchange:      what was summed up for another party's node goes to that party
    border (14):   h_u <- gamma_u (own sum + what came for u)

    Theorem 1: after L of these every node has what L propagations over the whole graph would give it.

    The encoder says what is propagated: sgc (beta = gamma = (1 + d)^-1/2), gbp, and appnp and gprgnn with
    first = "propagate". For GBP the paper's (16) and (17) have r and 1 - r the other way round than the matrix
    D^(r-1) A D^-r that they are to compute; the matrix is what is computed here. Training of what comes after the
    propagation is another method's, `trainer`.

    Message by message a party sees sums over another party's nodes. Theorem 2 says when these may tell a single node's
    features; `lnnc`, `min_neighbours` and `through` are the ways out of it.
    """

    name: ClassVar[str] = "fedcog"
    nouns: ClassVar[Mapping[str, str]] = {
        "sum": "features",
        "parts": "numbers of contributions",
        "rows": "propagated features",
    }
    listing: ClassVar[Listing] = Listing(
        "coupled", 1, "sums over neighbours, from party to party, or in totals for the parties"
    )
    levels: ClassVar[tuple[Level, ...]] = ("node", "pair")
    encoder: ClassVar[str] = "sgc"
    everyone: ClassVar[Needed] = "set-up"
    disjoint: ClassVar[bool] = True

    lnnc: bool = True
    """Local nearest neighbour connection: nodes without a neighbour in their party are joined to the most similar."""
    min_neighbours: int = Field(1, ge=1)
    """Nothing is sent for a border node that fewer of the sender's nodes are joined to; 3 hides what LNNC may not."""
    through: Literal["letters", "totals"] = "letters"
    """How parts of a sum reach a node's owner: as letters, or in a total, which shows no party's part by itself; the
    server then learns which ids lie at borders, and rows are dense."""

    def check(self, module: nn.Module) -> None:
        diffusion_of(module)
        super().check(module)

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        if state.once("propagate"):
            union = federation.agree("border") if self.through == "totals" else None
            for hop in range(1, diffusion_of(model.module).hops + 1):
                if union is None:
                    federation.exchange("propagate", {"hop": hop})
                else:
                    federation.total("propagate_total", {"hop": hop}, rows=union, to="parties")
            federation.ask("settle")
            yield state
        yield from super().server(federation, model, state)

    class AtParty(Prepared):
        def __init__(
            self, method: FedCog, parties: Sequence[Party], task: Task, module: nn.Module, **where: Any
        ) -> None:
            module = deepcopy(module)
            self.diffusion = diffusion_of(module)
            setattr(module, "diffused", True)  # noqa: B010 - nn.Module's type knows no plain attributes
            super().__init__(method.training(), parties, task, module, **where)
            self.lnnc, self.min_neighbours, self.through = method.lnnc, method.min_neighbours, method.through
            self._way: _Way | None = None

        @action
        def propagate(self, request: Payload) -> Mail:
            """Lines 5 to 8: the hop before is finished, own nodes are summed up, what is others' goes to them."""
            across, coupling = self._sum_up(request), self.way.coupling
            sums = matrices.pack(across, (at for own in coupling.slots for at in own.values()))
            return Mail(
                [
                    {owner: {"ids": torch.from_numpy(coupling.ids[at]), **next(sums)} for owner, at in own.items()}
                    for own in coupling.slots
                ]
            )

        @action
        def border(self, request: Payload) -> Answer:
            """The ids of the nodes at both ends of edges across the border."""
            return Answer({"ids": [torch.cat(each) for each in zip(self._outer(), self._inner(), strict=True)]})

        @action
        def propagate_total(self, request: Payload) -> Answer:
            """Lines 5 to 8 likewise, but what is others' is added up by the nodes' ids on its way to them."""
            across, outer = matrices.to_dense(self._sum_up(request)), self._outer()
            sums = torch.from_numpy(across).split([ids.numel() for ids in outer])
            parts = [torch.ones_like(ids) for ids in outer]
            return Answer({"ids": outer, "sum": list(sums), "parts": parts, "wants": self._inner()})

        @action
        def settle(self, request: Payload) -> Answer:
            """Line 9 for the last time; from here on the parties train on what the hops come to."""
            self._border()
            result = self.diffusion.combine(matrices.same_layout(self.way.hops), matrices.concat_columns)
            self.kept["prepared"] = matrices.pack_per_party(result, self.way.coupling.sizes)
            self._way = None
            return Answer({})

        def trained_on(self, party: Party, prepared: Any) -> Party:
            x = rows.sparsify(matrices.unpack(prepared))
            graph = Data(x=x, edge_index=torch.empty(2, 0, dtype=torch.long), y=party.graph.y, num_nodes=party.nodes)
            return replace(party, graph=graph, border=None)

        @property
        def way(self) -> _Way:
            """How far the parties asked now have propagated; a run that was stopped on the way starts it anew."""
            if self._way is None or self._way.coupling.sizes != self.cohort.sizes:
                raise IsthmusError("propagation goes on with the parties that began it")
            return self._way

        def _sum_up(self, request: Payload) -> Any:
            """Of own nodes, for every node of others that they are joined to."""
            if int(request["hop"]) == 1:  # lines 2 and 3
                coupling = decouple(self.cohort.parties, join_isolated=self.lnnc, min_neighbours=self.min_neighbours)
                self._way = _Way(coupling, self.diffusion, matrices.from_tensor(self.cohort.block.x.cpu()))
            else:
                self._border()
            return self.way.sum_up()

        def _border(self) -> None:
            """Line 9: what came is added to the own sums."""
            places, parts, first = [], [], 0
            for party, came in zip(self.cohort.parties, self._came(), strict=True):
                places += [first + at for at, _ in came]
                parts += [part for _, part in came]
                first += party.nodes
            self.way.add_up(places, matrices.unpack_all(parts))
            self.inbox.clear()  # what came may be larger than all that the parties hold

        def _came(self) -> list[list[tuple[Ints, Payload]]]:
            """For each party positions of its nodes and the sums that came for them, by letter or all in one."""
            if self.through == "totals":
                return [self._in_total(*each) for each in self._with_heard("propagate_total")]
            return [self._in_letters(*each) for each in self._with_heard("propagate")]

        def _with_heard(self, name: str) -> Iterator[tuple[Party, Mapping[str, Ints], Any]]:
            return zip(self.cohort.parties, self.way.coupling.receivers, self.received(name), strict=True)

        def _in_letters(self, party: Party, heard: Mapping[str, Ints], came: Any) -> list[tuple[Ints, Payload]]:
            at = places_of(party, heard, {sender: letter["ids"] for sender, letter in came.items()})
            return [(at[sender].numpy(), letter) for sender, letter in came.items()]

        def _in_total(self, party: Party, heard: Mapping[str, Ints], came: Any) -> list[tuple[Ints, Payload]]:
            nodes = _at_border(party)
            due = np.bincount(np.concatenate([*heard.values(), nodes[:0]]), minlength=party.nodes)[nodes]
            if not np.array_equal(came["parts"].cpu().numpy(), due):
                raise PartyFailed(
                    party.name,
                    "it and another party know of different edges between them: both must list them all",
                )
            return [(nodes, {"rows": came["sum"]})]

        def _outer(self) -> list[Tensor]:
            """By party the ids of others' nodes for which it sums up."""
            coupling = (
                decouple(self.cohort.parties, min_neighbours=self.min_neighbours)
                if self._way is None
                else self.way.coupling
            )
            counts = [sum(at.stop - at.start for at in own.values()) for own in coupling.slots]
            return list(torch.from_numpy(coupling.ids).split(counts))

        def _inner(self) -> list[Tensor]:
            """By party the ids of own nodes that have edges across the border."""
            return [
                torch.empty(0, dtype=torch.long) if party.ids is None else party.ids[_at_border(party)].cpu()
                for party in self.cohort.parties
            ]


class _Way:
    """The hops of several parties, from the first to the last.

    The factors beta and gamma are in the matrices, so that no product has to be scaled.

    Attributes:
        hops: all that the result needs, the last one last.
    """

    def __init__(self, coupling: Coupling, diffusion: Diffusion, features: Any) -> None:
        kind = features.dtype
        beta, self._gamma = ((coupling.degree**e).astype(kind) for e in (diffusion.right, diffusion.left))
        self.diffusion, self.hops = diffusion, [features]
        self.coupling = replace(coupling, inner=None, outer=None)
        self._inner = (diags_array(self._gamma) @ coupling.inner.astype(kind) @ diags_array(beta)).tocsr()
        self._outer = (coupling.outer.astype(kind) @ diags_array(beta)).tocsr()
        self._start = features if diffusion.restart else None
        self._half: Any = None

    def sum_up(self) -> Any:
        """Internal propagation (13): the sums for others' nodes; those for own nodes stay here."""
        self._half = self._inner @ self.hops[-1]
        return matrices.dense_if_faster(self._outer @ self.hops[-1])

    def add_up(self, places: Sequence[Any], parts: Sequence[Any]) -> None:
        """Border propagation (14), with restart (15), of the own sums and of those that came for nodes here.

        Arguments:
            places: of what came, letter by letter, the nodes that it is for.
            parts: the sums, letter by letter, or all of them in one sparse matrix.
        """
        h, self._half = self._half, None
        if any(not matrices.is_sparse(each) for each in (h, *parts)):
            h = matrices.to_dense(h)
            for at, part in zip(places, parts, strict=True):  # within a letter no node is named twice
                h[at] += self._gamma[at, None] * matrices.to_dense(part)
        elif parts:
            at = np.concatenate(places)
            which = csr_array((self._gamma[at], (at, np.arange(at.size))), (h.shape[0], at.size))
            h = h + which @ parts[0]
        if restart := self.diffusion.restart:
            h, start = matrices.same_layout([h, self._start])
            h = (1 - restart) * h + restart * start
        if not self.diffusion.needs_all_hops:
            self.hops.clear()
        self.hops.append(matrices.dense_if_faster(h))


def diffusion_of(module: nn.Module) -> Diffusion:
    """What the model propagates before it learns; an error where it does not."""
    diffusion = getattr(module, "diffusion", None)
    if not isinstance(diffusion, Diffusion):
        raise IsthmusError(
            "method 'fedcog' needs a model that propagates before it learns: sgc, gbp, or appnp and gprgnn with "
            "first = 'propagate'; isthmus methods lists others that train a gcn on coupled graphs"
        )
    return diffusion


def _at_border(party: Party) -> Ints:
    """Positions of the nodes that have edges across the border."""
    return np.unique(party.border.inner.numpy()) if party.border is not None else np.empty(0, dtype=np.int64)


def places_of(party: Party, heard: Mapping[str, Ints], ids: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """For each sender the positions of these nodes at the party; an error where the two do not know the same edges.

    Arguments:
        heard: by sender the positions of the nodes that it should send something for (`Coupling.receivers`).
        ids: by sender the ids of the nodes that it sent something for.
    """
    for sender in sorted(heard.keys() | ids.keys()):
        due = torch.from_numpy(heard.get(sender, np.empty(0, dtype=np.int64)))
        sent = ids.get(sender, torch.empty(0, dtype=torch.long)).cpu()
        if party.ids is None or not torch.equal(sent, party.ids[due]):
            raise PartyFailed(
                party.name,
                f"party '{sender}' and this one know of different edges between them: both must list them all",
            )
    return {sender: torch.from_numpy(heard[sender]) for sender in ids}
