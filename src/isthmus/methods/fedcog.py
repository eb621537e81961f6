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
from isthmus.data.coupling import Coupling, decouple, ids_across
from isthmus.data.level import Level
from isthmus.data.matrices import Ints
from isthmus.data.party import Party
from isthmus.errors import IsthmusError, PartyFailed, format_option
from isthmus.federation.actions import action
from isthmus.federation.answers import Answer, Mail
from isthmus.federation.letters import Form
from isthmus.federation.verbs import Federation, Needed
from isthmus.federation.wire import Payload
from isthmus.methods.base import Listing, Model, State
from isthmus.methods.shared.composed import Composed
from isthmus.methods.shared.hop_sums import HopSums, add_up_hops
from isthmus.methods.shared.neighbour_sums import slot_ids
from isthmus.nn.aggregation import aggregations, only_aggregation, reading_hops
from isthmus.nn.diffusion import Diffusion
from isthmus.tasks.base import Task


class FedCog(Composed):
    """FedCog (Lei et al. 2023), Algorithm 1: parties propagate over one coupled graph, then train on the result.

    Parties propagate features along edges between them without showing single features: each sums up its own nodes for
    a neighbour's node and sends the sum. Propagation comes first and once; then any method, `trainer`, trains the
    encoder's remaining layers.

    internal (13): h_u <- sum_{v in N_u^I} beta_v h_v, for own nodes u
                   and for others' nodes u at the border
    exchange:      the sum for another party's node goes to that party
    border (14):   h_u <- gamma_u (own sum + received sums for u)

    After L of these every node has the result of L propagations over the whole graph (Theorem 1). The encoder says what
    is propagated: sgc (beta = gamma = (1 + d)^-1/2), gbp, and appnp and gprgnn with first = "propagate". In GBP's (16)
    and (17) the paper exchanges r and 1 - r; here they are as in the matrix D^(r-1) A D^-r that they are to compute.

    Encoder gap has no coefficients, h_u <- unit(own sum + received sums for u), unit(y) = y / |y|, and its sums are
    totals over edges that there are. With `[privacy]` of edges or nodes, each party adds its share of noise to the rows
    of all nodes, and the server learns the ids of nodes but nothing of borders.

    A party sees sums over another party's nodes, message by message, and the server sees sizes. Theorem 2 says when
    such sums may disclose a single node's features; `lnnc`, `min_neighbours` and `through` prevent it.
    """

    name: ClassVar[str] = "fedcog"
    nouns: ClassVar[Mapping[str, str]] = {
        "sum": "features",
        "parts": "numbers of contributions",
        "rows": "propagated features",
    }
    for_crossing: ClassVar[bool] = True
    listing: ClassVar[Listing] = Listing(
        "coupled", 1, "sums over neighbours, from party to party, or in totals for the parties"
    )
    levels: ClassVar[tuple[Level, ...]] = ("node", "pair")
    encoder: ClassVar[str] = "sgc"
    everyone: ClassVar[Needed] = "set-up"
    disjoint: ClassVar[bool] = True
    both_ways: ClassVar[bool] = True
    summing: ClassVar[tuple[str, ...]] = ("known", "add_hop")

    lnnc: bool = True
    """Local nearest neighbour connection: join nodes without a neighbour in their party to the most similar one
    there."""
    min_neighbours: int = Field(1, ge=1)
    """Send no sum over fewer own nodes than this; 3 protects nodes that `lnnc` may not."""
    through: Literal["letters", "totals"] = "letters"
    """How sums reach a node's owner: as letters from each party, or as one total over all parties, whose rows are dense
    and from which the server learns the ids of border nodes."""

    def check(self, module: nn.Module) -> None:
        if only_aggregation(aggregations(module)) is None:
            diffusion_of(module)
        else:
            due = {"lnnc": False, "min_neighbours": 1, "through": "totals"}
            if wrong := [format_option(name, value) for name, value in due.items() if getattr(self, name) != value]:
                raise IsthmusError(
                    "method 'fedcog' sums hops of encoder gap over the edges that there are, in totals: set "
                    + " and ".join(wrong)
                )
            if not (trains := self.training()).only_trains:
                raise IsthmusError(
                    f"method 'fedcog': trainer '{trains.name}' may read more than hops of encoder gap: use one that "
                    "only trains on the task's loss"
                )
        super().check(module)

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        if state.once("propagate"):
            self._propagate(federation, model.module)
            federation.ask("settle")
            yield state
        yield from super().server(federation, model, state)

    def _propagate(self, federation: Federation, module: nn.Module) -> None:
        if (reader := only_aggregation(aggregations(module))) is not None:
            add_up_hops(federation, reader.depth)
        else:
            union = federation.agree("border") if self.through == "totals" else None
            for hop in range(1, diffusion_of(module).hops + 1):
                if union is None:
                    federation.exchange("propagate", {"hop": hop})
                else:
                    federation.total("propagate_total", {"hop": hop}, rows=union, to="parties")

    def calls(self, module: nn.Module) -> dict[str, int]:
        reader, total = only_aggregation(aggregations(module)), self.through == "totals"
        due = dict.fromkeys(("known", "add_hop", "border", "propagate", "propagate_total"), 0)
        if reader is not None:
            due |= {"known": 1, "add_hop": reader.depth}
        else:
            due |= {"border": int(total), "propagate_total" if total else "propagate": diffusion_of(module).hops}
        return {**super().calls(module), **due, "settle": 1}

    class AtParty(HopSums):
        def __init__(
            self, method: FedCog, parties: Sequence[Party], task: Task, module: nn.Module, **where: Any
        ) -> None:
            self.reader = only_aggregation(aggregations(module))
            if self.reader is not None:
                module = reading_hops(module)
            else:
                module = deepcopy(module)
                self.diffusion = diffusion_of(module)
                setattr(module, "diffused", True)  # noqa: B010 - nn.Module's type knows no plain attributes
            super().__init__(method.training(), parties, task, module, **where)
            self.lnnc, self.min_neighbours, self.through = method.lnnc, method.min_neighbours, method.through
            self._propagation: _Hops | None = None

        def due_sums(self, sender: str) -> Form | None:
            """Sums of the party's width, each over as many neighbours as a node has, at most."""
            coupling, h = self.propagation.coupling, self.propagation.hops[-1]
            largest = torch.from_numpy(np.full((1, h.shape[1]), abs(h).max() * coupling.degree.max(), h.dtype))
            return form_of_sums(self.cohort.parties[0], coupling, sender, rows=largest)

        @action("exchange", protected=True, form=due_sums)
        def propagate(self, request: Payload) -> Mail:
            """Finish the hop before, sum up own nodes, and send the sums for others' nodes to their owners (lines 5 to
            8)."""
            across, coupling = self._sum_up(request), self.propagation.coupling
            sums = matrices.pack(across, (at for own in coupling.slots for at in own.values()))
            return Mail(
                [
                    {owner: {"ids": torch.from_numpy(coupling.ids[at]), **next(sums)} for owner, at in own.items()}
                    for own in coupling.slots
                ]
            )

        @action("ask")
        def border(self, request: Payload) -> Answer:
            """Ids of the nodes at both ends of edges across the border."""
            return Answer({"ids": [torch.cat(each) for each in zip(self._outer(), self._inner(), strict=True)]})

        @action("total", to="parties", least=2, protected=True)
        def propagate_total(self, request: Payload) -> Answer:
            """As `propagate`, but sums for others' nodes are added up by node id on the way (lines 5 to 8)."""
            across, outer = matrices.to_dense(self._sum_up(request)), self._outer()
            sums = torch.from_numpy(across).split([ids.numel() for ids in outer])
            parts = [torch.ones_like(ids) for ids in outer]
            return Answer({"ids": outer, "sum": list(sums), "parts": parts, "wants": self._inner()})

        @action("ask", silent=True)
        def settle(self, request: Payload) -> Answer:
            """Finish the last hop (line 9); from here on the parties train on the propagated features."""
            if self.reader is not None:
                self.kept["prepared"] = self.all_hops()
                return Answer({})
            self._border()
            result = self.diffusion.combine(matrices.same_layout(self.propagation.hops), matrices.concat_columns)
            self.kept["prepared"] = matrices.pack_per_party(result, self.propagation.coupling.sizes)
            self._propagation = None
            return Answer({})

        def trained_on(self, party: Party, prepared: Any) -> Party:
            if self.reader is not None:
                return self.beside_hops(party, prepared)
            x = rows.sparsify(matrices.unpack(prepared))
            graph = Data(x=x, edge_index=torch.empty(2, 0, dtype=torch.long), y=party.graph.y, num_nodes=party.nodes)
            return replace(party, graph=graph, border=None)

        @property
        def propagation(self) -> _Hops:
            """The hops of the parties asked now; a run that stopped in between restarts them."""
            if self._propagation is None or self._propagation.coupling.sizes != self.cohort.sizes:
                raise IsthmusError("the parties of a hop differ from those of the first hop: restart the run")
            return self._propagation

        def _sum_up(self, request: Payload) -> Any:
            """Sums over own nodes for the nodes of others that they are joined to."""
            if int(request["hop"]) == 1:  # lines 2 and 3
                coupling = decouple(self.cohort.parties, join_isolated=self.lnnc, min_neighbours=self.min_neighbours)
                self._propagation = _Hops(coupling, self.diffusion, matrices.from_tensor(self.cohort.block.x.cpu()))
            else:
                self._border()
            return self.propagation.sum_up()

        def _border(self) -> None:
            """Add the received sums to the own ones (line 9)."""
            positions, parts, first = [], [], 0
            for party, received in zip(self.cohort.parties, self._received_sums(), strict=True):
                positions += [first + at for at, _ in received]
                parts += [part for _, part in received]
                first += party.nodes
            self.propagation.add_up(positions, matrices.unpack_all(parts))
            self.inbox.clear()  # received sums may be larger than the parties' data

        def _received_sums(self) -> list[list[tuple[Ints, Payload]]]:
            """For each party the positions of its nodes and their received sums, by letter or all in one."""
            if self.through == "totals":
                return [self._in_total(*each) for each in self._with_receivers("propagate_total")]
            return [self._in_letters(*each) for each in self._with_receivers("propagate")]

        def _with_receivers(self, name: str) -> Iterator[tuple[Party, Mapping[str, Ints], Any]]:
            return zip(self.cohort.parties, self.propagation.coupling.receivers, self.received(name), strict=True)

        def _in_letters(self, party: Party, expected: Mapping[str, Ints], received: Any) -> list[tuple[Ints, Payload]]:
            at = positions_of(party, expected, {sender: letter["ids"] for sender, letter in received.items()})
            return [(at[sender].numpy(), letter) for sender, letter in received.items()]

        def _in_total(self, party: Party, expected: Mapping[str, Ints], received: Any) -> list[tuple[Ints, Payload]]:
            nodes = _at_border(party)
            due = np.bincount(np.concatenate([*expected.values(), nodes[:0]]), minlength=party.nodes)[nodes]
            if not np.array_equal(received["parts"].cpu().numpy(), due):
                raise PartyFailed(
                    party.name,
                    "its list of edges to another party differs from that party's: list every such edge at both",
                )
            return [(nodes, {"rows": received["sum"]})]

        def _outer(self) -> list[Tensor]:
            """Ids of others' nodes for which a party sums up, by party."""
            if self._propagation is not None:
                return slot_ids(self.propagation.coupling)
            few = self.min_neighbours
            return [torch.from_numpy(ids_across(party, min_neighbours=few)) for party in self.cohort.parties]

        def _inner(self) -> list[Tensor]:
            """Ids of own nodes with edges across the border, by party."""
            return [
                torch.empty(0, dtype=torch.long) if party.ids is None else party.ids[_at_border(party)].cpu()
                for party in self.cohort.parties
            ]


class _Hops:
    """The hops of several parties, from the first to the last.

    Matrices contain the factors beta and gamma, so that no product has to be scaled.

    Attributes:
        hops: the hops that the result needs, the last one last.
    """

    def __init__(self, coupling: Coupling, diffusion: Diffusion, features: Any) -> None:
        kind = features.dtype
        beta, self._gamma = ((coupling.degree**e).astype(kind) for e in (diffusion.right, diffusion.left))
        self.diffusion, self.hops = diffusion, [features]
        self.coupling = replace(coupling, inner=None, outer=None)
        self._inner = _scaled(coupling.inner, self._gamma, beta)
        self._outer = (coupling.outer.astype(kind) @ diags_array(beta)).tocsr()
        self._start = features if diffusion.restart else None
        self._half: Any = None

    def sum_up(self) -> Any:
        """Internal propagation (13): return the sums for others' nodes, and keep those for own nodes."""
        self._half = self._inner @ self.hops[-1]
        return matrices.dense_if_faster(self._outer @ self.hops[-1])

    def add_up(self, positions: Sequence[Any], parts: Sequence[Any]) -> None:
        """Border propagation (14), with restart (15): add received sums to own ones.

        Arguments:
            positions: the nodes that received sums are for, letter by letter.
            parts: the sums, letter by letter, or all of them in one sparse matrix.
        """
        h, self._half = self._half, None
        if any(not matrices.is_sparse(each) for each in (h, *parts)):
            h = matrices.to_dense(h)
            for at, part in zip(positions, parts, strict=True):  # each node at most once in a letter
                h[at] += self._gamma[at, None] * matrices.to_dense(part)
        elif parts:
            at = np.concatenate(positions)
            which = csr_array((self._gamma[at], (at, np.arange(at.size))), (h.shape[0], at.size))
            h = h + which @ parts[0]
        if restart := self.diffusion.restart:
            h, start = matrices.same_layout([h, self._start])
            h = (1 - restart) * h + restart * start
        if not self.diffusion.needs_all_hops:
            self.hops.clear()
        self.hops.append(matrices.dense_if_faster(h))


def _scaled(matrix: Any, left: Any, right: Any) -> Any:
    """diag(left) matrix diag(right), without the copies of the two products."""
    data = matrix.data.astype(left.dtype)
    data *= np.repeat(left, np.diff(matrix.indptr))
    data *= right[matrix.indices]
    return csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def diffusion_of(module: nn.Module) -> Diffusion:
    """The model's propagation before its layers; an error if it has none."""
    diffusion = getattr(module, "diffusion", None)
    if not isinstance(diffusion, Diffusion):
        raise IsthmusError(
            "method 'fedcog' needs an encoder that propagates first: sgc, gbp, gap, or appnp and gprgnn with "
            "first = 'propagate'; isthmus methods lists others that train a gcn on coupled graphs"
        )
    return diffusion


def form_of_sums(party: Party, coupling: Coupling, sender: str, **like: Tensor) -> Form | None:
    """The form of a message with sums for nodes of the one party here; none is due if it has no edges to the sender.

    Arguments:
        like: a row of the sums, by its field.
    """
    if party.ids is None or sender not in coupling.receivers[0]:
        return None
    ids = party.ids[torch.from_numpy(coupling.receivers[0][sender])]
    return {"ids": ids, **{name: row.expand(ids.numel(), -1) for name, row in like.items()}}


def _at_border(party: Party) -> Ints:
    """Positions of the nodes with edges across the border."""
    return np.unique(party.border.inner.numpy()) if party.border is not None else np.empty(0, dtype=np.int64)


def positions_of(party: Party, expected: Mapping[str, Ints], ids: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return for each sender the positions of its sums' nodes at the party; an error if their lists of edges differ.

    Arguments:
        expected: by sender the positions of the nodes that it should send sums for (`Coupling.receivers`).
        ids: by sender the ids of the nodes that it sent sums for.
    """
    for sender in sorted(expected.keys() | ids.keys()):
        due = torch.from_numpy(expected.get(sender, np.empty(0, dtype=np.int64)))
        sent = ids.get(sender, torch.empty(0, dtype=torch.long)).cpu()
        if party.ids is None or not torch.equal(sent, party.ids[due]):
            raise PartyFailed(
                party.name,
                f"its list of edges to party '{sender}' differs from that party's: list every such edge at both",
            )
    return {sender: torch.from_numpy(expected[sender]) for sender in ids}
