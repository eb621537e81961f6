"""Sums over a node's in-neighbours at all parties, relation by relation: what a typed graph's means are made of."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from isthmus.data.party import Party
from isthmus.errors import IsthmusError
from isthmus.federation.bounds import COUNT_ROUNDING
from isthmus.nn.typed import MeanColumns


def ids_of_targets(party: Party) -> Tensor:
    """Ids of other parties' nodes that edges from own nodes run to, ascending."""
    border = party.border
    if border is None or border.leaving is None:
        return torch.empty(0, dtype=torch.long)
    return border.outer[border.leaving].unique()


def relation_sums(party: Party) -> Tensor:
    """What own nodes add to the sums of their neighbours: `[own nodes, then those of ids_of_targets, columns]`.

    A node's row has, in the columns of each relation r into its type, sum_{v -> u in r} x_v and sum_{v -> u in r} e_vu.
    The first of them is the number of these edges, for x_v begins with 1.
    """
    graph, schema, outer = party.graph, party.schema, ids_of_targets(party)
    assert schema is not None
    columns = MeanColumns(schema)
    source, target = graph.edge_index
    kind, attributes = graph.edge_type, graph.get("edge_attr")
    if outer.numel():
        assert party.border is not None
        leaving = party.border.where(party.border.leaving)  # type: ignore[arg-type]
        assert leaving.edge_type is not None
        source = torch.cat([source, leaving.inner])
        target = torch.cat([target, party.nodes + torch.searchsorted(outer, leaving.outer)])
        kind = torch.cat([kind, leaving.edge_type])
        attributes = None if leaving.edge_attr is None else torch.cat([attributes, leaving.edge_attr])
    nodes = party.nodes + outer.numel()
    sums, x = np.zeros((nodes, columns.width)), graph.x.double().numpy()
    for at, (of_source, _) in enumerate(schema.ends):
        own = (kind == at).nonzero().squeeze(1)
        into, edges = target[own].numpy(), np.arange(own.numel())
        if not edges.size:
            continue
        ones = np.ones(edges.size)
        neighbours = csr_array((ones, (into, source[own].numpy())), (nodes, party.nodes))
        sums[:, columns.features(at)] += neighbours @ x[:, schema.columns(of_source)]
        if attributes is not None and schema.edges[at][1]:
            incident = csr_array((ones, (into, edges)), (nodes, edges.size))
            sums[:, columns.attributes(at)] += incident @ attributes[own][:, schema.edge_columns(at)].double().numpy()
    return torch.from_numpy(sums).to(graph.x.dtype)


def with_means(party: Party, sums: Tensor) -> Tensor:
    """A party's features, and behind them the means that sums over all parties make: zeros without neighbours."""
    schema, means = party.schema, sums.double()
    assert schema is not None
    columns = MeanColumns(schema)
    for at, (_, target) in enumerate(schema.ends):
        rows = (party.graph.node_type == target).nonzero().squeeze(1)
        features, attributes = columns.features(at), columns.attributes(at)
        count = means[rows, features.start]
        if bool((count < -COUNT_ROUNDING).any()):
            raise IsthmusError("a number of neighbours below 0 in the sum that it got: some party's part is wrong")
        means[rows, features.start : attributes.stop] /= count.round().clamp(min=1).unsqueeze(1)
    return torch.cat([party.graph.x, means.to(party.graph.x.dtype)], dim=1)
