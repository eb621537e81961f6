"""All parties' data as one party."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from isthmus.data import rows
from isthmus.data.cohort import Cohort, check_compatible, concat_per_edge
from isthmus.data.party import SPLITS, Pairs, Party


def pool_parties(parties: Sequence[Party], name: str = "pooled") -> Party:
    """All parties' data as one party: the upper bound that federated learning cannot use.

    Nodes with the same id become one node, and border edges become edges. An edge that several parties hold counts as
    often as at the one that repeats it most. A node is in the training split if any of its parties has it there, else
    in validation if any has, else in testing. Pairs of all parties follow each other, without those with a node that no
    party holds. So do labelled edges, and whole graphs; these keep their ids if they differ.

    A node has the label that the first of its holders has that knows one, and the features of the holder that knows
    most of them: in most columns it has another value than 0. Of several such holders it is the first.
    """
    check_compatible(parties)
    cohort = Cohort(tuple(parties))
    if cohort.level == "graph" or any(party.ids is None for party in parties):
        block = cohort.block
        graph = Data(x=block.x, edge_index=block.edge_index, y=cohort.y, **block.per_edge)
        graph.num_nodes, graph.batch = block.nodes, block.batch
        if block.node_type is not None:
            graph.node_type = block.node_type
        if block.edge_label_index is not None:
            graph.edge_label_index = block.edge_label_index
        if block.edge_label_attr is not None:
            graph.edge_label_attr = block.edge_label_attr
        graph.num_graphs = sum(cohort.items) if cohort.level == "graph" else None
        known = [party.ids for party in parties if party.ids is not None and cohort.level == "graph"]
        ids = torch.cat(known) if len(known) == len(parties) else None
        ids = None if ids is None or ids.unique().numel() < ids.numel() else ids
        return Party(name, graph, cohort.level, ids=ids, **_of_all(parties, cohort.masks))
    ids = torch.cat([party.ids for party in parties if party.ids is not None])
    known, where = torch.unique(ids, return_inverse=True)
    first = torch.full((known.numel(),), ids.numel()).scatter_reduce(0, where, torch.arange(ids.numel()), "amin")
    edges, columns = [where[cohort.block.edge_index]], [cohort.block.per_edge]
    holders = [torch.full((party.edges,), at) for at, party in enumerate(parties)]
    start = 0
    for number, party in enumerate(parties):
        if party.border is not None and len(party.border):
            border = party.border
            outer = torch.searchsorted(known, border.outer)
            inside = (outer < known.numel()) & (known[outer.clamp(max=known.numel() - 1)] == border.outer)
            ends = torch.stack([outer, where[start + border.inner]])
            ends = ends if border.leaving is None else torch.where(border.leaving, ends.flip(0), ends)
            edges.append(ends[:, inside])
            columns.append({key: column[inside] for key, column in border.per_edge.items()})
            holders.append(torch.full((edges[-1].size(1),), number))
        start += party.nodes
    per_edge = concat_per_edge(columns, [edge.size(1) for edge in edges])
    edge_index = torch.cat(edges, dim=1)
    at = _unique_edges(edge_index, known.numel(), per_edge, torch.cat(holders))
    graph = Data(x=rows.take(cohort.block.x, _fullest(cohort.block.x, where, first)), edge_index=edge_index[:, at])
    graph.update({key: column[at] for key, column in per_edge.items()})
    if cohort.block.node_type is not None:
        graph.node_type = cohort.block.node_type[first]
    graph.y = cohort.y if cohort.level in ("pair", "edge") else _first_labels(cohort.y, where, first)
    graph.num_nodes = known.numel()
    if cohort.level == "pair":
        return _pooled_pairs(name, graph, known, parties)
    if cohort.block.edge_label_index is not None:
        graph.edge_label_index = where[cohort.block.edge_label_index]
        if cohort.block.edge_label_attr is not None:
            graph.edge_label_attr = cohort.block.edge_label_attr
        return Party(name, graph, "edge", ids=known, **_of_all(parties, cohort.masks))
    masks = {split: torch.zeros(known.numel(), dtype=torch.bool) for split in SPLITS}
    for split in SPLITS:
        masks[split][where[cohort.masks[split]]] = True
    masks["val"] &= ~masks["train"]
    masks["test"] &= ~(masks["train"] | masks["val"])
    return Party(name, graph, "node", ids=known, **_of_all(parties, masks))


def _of_all(parties: Sequence[Party], masks: Mapping[Any, Tensor]) -> dict[str, Any]:
    """The fields of a pooled party that follow from any party, and its splits."""
    return {"structural": parties[0].structural, "schema": parties[0].schema, **masks}


def _fullest(x: Tensor, where: Tensor, first: Tensor) -> Tensor:
    """For each pooled node, the first of its rows with the most values other than 0.

    Arguments:
        where: the pooled node of each row.
        first: the first row of each pooled node.
    """
    if first.numel() == where.numel():
        return first
    shared = (torch.bincount(where) > 1)[where].nonzero().flatten()
    own = rows.take(x, shared)
    known = (own != 0).sum(1) if own.layout == torch.strided else own.crow_indices().diff()
    order = known * where.numel() + (where.numel() - 1 - shared)  # ties go to the first row
    best = torch.full_like(first, -1).scatter_reduce(0, where[shared], order, "amax")
    return torch.where(best < 0, first, where.numel() - 1 - best % where.numel())


def _first_labels(y: Tensor, where: Tensor, first: Tensor) -> Tensor:
    """The label of each pooled node: of the first row that has one, task by task; without any, of its first row.

    Arguments:
        where: the pooled node of each row.
        first: the first row of each pooled node.
    """
    flat = y.view(len(y), -1)
    known = ~flat.isnan() if flat.is_floating_point() else flat >= 0
    row = torch.arange(len(y))[:, None].expand_as(flat)
    row = row.masked_fill(~known, len(y))
    labelled = torch.full((len(first), flat.size(1)), len(y))
    labelled = labelled.scatter_reduce(0, where[:, None].expand_as(flat), row, "amin")
    labelled = torch.where(labelled < len(y), labelled, first[:, None])
    return flat.gather(0, labelled).view(-1, *y.shape[1:])


def _pooled_pairs(name: str, graph: Data, ids: Tensor, parties: Sequence[Party]) -> Party:
    """The pooled graph with the pairs of all parties."""
    pairs = [(party.ids, party.pairs) for party in parties if party.ids is not None and party.pairs is not None]
    first = torch.cat([own[each.first] for own, each in pairs])
    second = torch.cat([each.second for _, each in pairs])
    held = torch.isin(second, ids)
    first, second, none = first[held], second[held], torch.empty(0, dtype=torch.long)
    pooled = Pairs(torch.searchsorted(ids, first), second, torch.full_like(first, -1), (), none, none)
    masks = {split: torch.cat([getattr(party, split) for party in parties])[held] for split in SPLITS}
    graph.y = graph.y[held]
    return Party(name, graph, "pair", ids=ids, border=None, pairs=pooled, schema=parties[0].schema, **masks)


def _unique_edges(edge_index: Tensor, nodes: int, per_edge: Mapping[str, Tensor], holder: Tensor) -> Tensor:
    """The first of the edges that are equal but for their weights and holders; a holder's second of them is another."""
    key = edge_index[0] * nodes + edge_index[1]
    if (kind := per_edge.get("edge_type")) is not None and kind.numel():
        key = key * (int(kind.max()) + 1) + kind
    if (attributes := per_edge.get("edge_attr")) is not None:
        for column in attributes.unbind(1):  # column by column, because torch compares whole rows slowly
            values, code = torch.unique(column, return_inverse=True)
            key = torch.unique(key, return_inverse=True)[1] * values.numel() + code
    key, holders = torch.unique(key, return_inverse=True)[1], int(holder.max()) + 1 if holder.numel() else 1
    _, own, repeats = torch.unique(key * holders + holder, return_inverse=True, return_counts=True)
    order, count = own.argsort(stable=True), torch.arange(own.numel())
    repeat = torch.empty_like(count)  # which of its holder's equal edges each is
    repeat[order] = count - (repeats.cumsum(0) - repeats)[own[order]]
    groups, where = torch.unique(key * (count.numel() + 1) + repeat, return_inverse=True)
    return torch.full_like(groups, where.numel()).scatter_reduce(0, where, count, "amin")
