"""FedGCN: what neighbours elsewhere add to a node is summed up once, before training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from isthmus.data.level import Level
from isthmus.data.party import SPLITS, Party
from isthmus.errors import IsthmusError
from isthmus.federation.actions import action
from isthmus.federation.answers import Answer
from isthmus.federation.local import LocalTransport
from isthmus.federation.site import Site
from isthmus.federation.verbs import Federation, Needed
from isthmus.federation.wire import Payload
from isthmus.methods.base import Listing, Model, State
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.fedcog_gcn import convolutions_of
from isthmus.methods.shared.hop_sums import HopSums, add_up_hops
from isthmus.methods.shared.neighbour_sums import NOUNS, NeighbourSums
from isthmus.nn.aggregation import aggregations, only_aggregation, reading_hops
from isthmus.nn.encoders import uses_types
from isthmus.nn.twins import REPEATED
from isthmus.nn.typed import with_known_means
from isthmus.tasks.base import Task

NO_MEANS = (
    "method 'fedgcn' sums each relation of a typed graph for layers that take means: use encoder rgcn or hetero-sage"
)


class FedGcn(FedAvg):
    """FedGCN (Yao et al. 2023): parties learn the sum over each node's neighbours at all parties, once; then FedAvg.

    A GCN's first layer needs features of neighbours at other parties, and its second layer those of their neighbours.
    Parties add these up before training, so that training needs no exchange of features.

        0 hops: no sums, and no edges across the border (FedAvg);
        1 hop:  a party gets the sums sum_v c_uv x_v of its own nodes u: the first
                layer is exact, the second sees own edges only;
        2 hops: and those of the nodes across its border: two layers are exact,
                with no exchange in training.

    c_uv = ((1 + d_u) (1 + d_v))^-1/2 with degrees in the whole graph; degrees of nodes across the border travel with
    the sums. Parties add up by node id: the server learns which ids are at borders and sees no sum, and no party
    receives another's part of a sum. A party that knows all terms but one knows that one, too: the only neighbour
    across the border of an own node; and with 2 hops a node across the border whose other neighbours are its own.

    Typed graphs: a layer of R-GCN or GraphSAGE takes means over the neighbours N_r(u) of each relation r,

        h_u = sum_r (W_r mean_{v in N_r(u)} x_v + U_r mean_{v in N_r(u)} e_vu)
              + W_0 x_u + b

    Parties add up x_v, the features e_vu of edges, and |N_r(u)|, each edge at the party of its source. One hop is the
    most: a second needs the rows x_v of nodes across the border, for W_0 x_v. A sum over one edge is a row of another
    party.

    A model of encoder gap reads hops h^(k) = unit(A h^(k-1)), unit(y) = y / |y|. Parties add up each of them (1 or 2:
    no other difference) and then train without edges. With `[privacy]` of edges or nodes, each adds its share of noise
    to the rows of all nodes, and the server learns the ids of nodes but nothing of borders.
    """

    name: ClassVar[str] = "fedgcn"
    nouns: ClassVar[Mapping[str, str]] = NOUNS
    typed: ClassVar[bool] = True
    for_crossing: ClassVar[bool] = True
    listing: ClassVar[Listing] = Listing("coupled", 3, "sums over neighbours, in totals for the parties")
    levels: ClassVar[tuple[Level, ...]] = ("node", "pair")
    everyone: ClassVar[Needed] = "set-up"
    disjoint: ClassVar[bool] = True
    both_ways: ClassVar[bool] = True
    summing: ClassVar[tuple[str, ...]] = ("known", "add_hop")

    hops: Literal[0, 1, 2] = 2
    """Hops of neighbours that are summed up across parties; of typed graphs one at most. 0: no sums."""

    def check(self, module: nn.Module) -> None:
        if only_aggregation(aggregations(module)) is not None:
            return
        if not uses_types(module):
            convolutions_of(module, self.name)
        elif with_known_means(module) is None:
            raise IsthmusError(NO_MEANS)

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        if self.hops and state.once("sum up"):
            self._sum_up(federation, model.module)
            yield state
        yield from super().server(federation, model, state)

    def predictor(self, parties: Sequence[Party], task: Task, module: nn.Module, **where: Any) -> Site:
        """The same sums over these parties; one alone has none, and reads the edges that it has."""
        if not self.predicts_together or len(parties) == 1:
            return super().predictor(parties, task, module, **where)
        site = self.site(parties, task, module, **where)
        self._sum_up(Federation(LocalTransport([site])), module)
        return site

    @property
    def joins_both_ways(self) -> bool:
        return self.hops > 0

    @property
    def reads_across(self) -> bool:
        return self.hops > 0

    @property
    def predicts_together(self) -> bool:
        return self.reads_across

    def _sum_up(self, federation: Federation, module: nn.Module) -> None:
        if uses_types(module):
            federation.exchange("name_rows", {"parties": "\n".join(federation.parties)})
        if (reader := only_aggregation(aggregations(module))) is None:
            federation.total("sum_up", rows=federation.agree("known"), to="parties")
        else:
            add_up_hops(federation, reader.depth)
        federation.ask("settle")

    def calls(self, module: nn.Module) -> dict[str, int]:
        due = dict.fromkeys(("known", "sum_up", "add_hop", "settle", "name_rows"), int(self.hops > 0))
        if (reader := only_aggregation(aggregations(module))) is not None:
            due |= {"sum_up": 0, "add_hop": due["add_hop"] * reader.depth, "name_rows": 0}
        else:
            due |= {"add_hop": 0, "name_rows": due["name_rows"] * uses_types(module)}
        return {**super().calls(module), **due}

    class AtParty(HopSums, NeighbourSums, FedAvg.AtParty):
        method: FedGcn

        def __init__(
            self, method: FedGcn, parties: Sequence[Party], task: Task, module: nn.Module, **where: Any
        ) -> None:
            typed = with_known_means(module)
            if typed is None and parties[0].schema is not None:
                raise IsthmusError(NO_MEANS)
            reader = only_aggregation(aggregations(module))
            if reader is not None:
                summed = reading_hops(module)
            else:
                summed = _summed(module) if typed is None else typed
            super().__init__(method, parties, task, summed if method.hops else module, **where)
            self.beyond, self.reader = method.hops == 2, reader

        @action("ask", silent=True)
        def settle(self, request: Payload) -> Answer:
            """From here on the parties train on the sums and on the edges that they know."""
            if self.reader is None:
                self.kept["prepared"] = self.summed_up()
                self.drop_received("sum_up")
            else:
                self.kept["prepared"] = self.all_hops()
            return Answer({})

        def trained_on(self, party: Party, prepared: Any) -> Party:
            if self.reader is not None:
                return self.beside_hops(party, prepared)
            if party.schema is not None:
                graph = copy(party.graph)
                graph.x = prepared["x"].cpu()
                return party.with_graph(graph)
            ids, degree = prepared["ids"].cpu(), prepared["degree"].cpu()
            edges, weight = _edges(party, ids)
            scale = degree.pow(-0.5)
            values = scale[edges[0]].mul_(scale[edges[1]]).mul_(weight)
            beyond, x = ids.numel() - party.nodes, prepared["x"].cpu()
            graph = Data(x=x, edge_index=edges, edge_weight=values.to(x.dtype), num_nodes=ids.numel())
            graph.y, masks = party.graph.y, {split: getattr(party, split) for split in SPLITS}
            if party.level == "node":  # nodes across the border are in no split
                graph.y = torch.cat([graph.y, graph.y.new_zeros(beyond, *graph.y.shape[1:])])
                masks = {split: torch.cat([mask, mask.new_zeros(beyond)]) for split, mask in masks.items()}
            return replace(party, graph=graph, ids=ids, border=None, **masks)


def _edges(party: Party, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Edges among own nodes and, if `ids` include those, to nodes across the border; every node has a loop."""
    graph, border = party.graph, party.border
    weight = getattr(graph, "edge_weight", None)
    parts = [graph.edge_index, torch.arange(ids.numel()).expand(2, -1)]
    weights = [torch.ones(graph.edge_index.size(1)) if weight is None else weight, torch.ones(ids.numel())]
    if border is not None and len(border) and ids.numel() > party.nodes:
        order = torch.argsort(ids[party.nodes :])
        outer = party.nodes + order[torch.searchsorted(ids[party.nodes :][order], border.outer)]
        across = torch.ones(len(border)) if border.weight is None else border.weight
        parts += [torch.stack([outer, border.inner])]
        weights += [across]
    return torch.cat(parts, dim=1), torch.cat(weights)


class SummedUp(nn.Module):
    """A graph convolution on inputs that are sums over neighbours already."""

    hops = 0

    def __init__(self, conv: Any) -> None:
        super().__init__()
        self.lin, self.bias = conv.lin, conv.bias

    def forward(self, x: Any, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        return self.lin(x) + self.bias


REPEATED[SummedUp] = ("bias",)


def _summed(module: nn.Module) -> nn.Module:
    """The GCN for such inputs: no sum in the first layer, given edge weights in the others."""
    module = deepcopy(module)
    convs: Any = module.get_submodule("convs")
    convs[0] = SummedUp(convs[0])
    for conv in convs[1:]:
        conv.normalize = conv.add_self_loops = False
    return module
