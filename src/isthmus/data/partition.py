"""Ways to cut a pool into parties: who owns which node of a graph, or which graph of a pile."""

from __future__ import annotations

import heapq
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from scipy.sparse import coo_array
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor
from torch_geometric.data import Data

from isthmus.data import rows
from isthmus.data.party import SPLITS, Border, Cohort, Party
from isthmus.data.pool import Pool, draws, rank_within
from isthmus.errors import IsthmusError, missing_extra
from isthmus.options import Registered


class Partition(Registered):
    """A way to cut a pool. A subclass says who owns each item; the parties are built from that here.

    Parties are called `party-0`, `party-1`, ... (with leading zeros where there are more than ten), inherit the pool's
    splits, and hold tensors of their own: none is a view into the pool.
    """

    kind: ClassVar[str] = "partition"
    home: ClassVar[str] = "isthmus.data.partition"

    edges: Literal["coupled", "broken"] = "coupled"
    """Edges between two parties' nodes: known to both as their border, or dropped. Only for one graph that is cut."""

    @abstractmethod
    def assign(self, pool: Pool, parties: int, seed: int) -> Tensor:
        """For every item the position of the party that gets it, int64 `[items]`; `1 <= parties <= items` holds."""

    def cut(self, pool: Pool, parties: int, seed: int) -> list[Party]:
        """The pool as `parties` parties; the same seed gives the same ones.

        >>> graph = Data(x=torch.eye(4), edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]), y=torch.zeros(4).long())
        >>> pool = Pool(Party.of_graph("pooled", graph), classes=1, owner=torch.tensor([0, 0, 1, 1]))
        >>> [(party.name, party.ids.tolist(), party.border.outer.tolist()) for party in Given().cut(pool, 2, seed=0)]
        [('party-0', [0, 1], []), ('party-1', [2, 3], [1])]
        """
        whole = pool.party
        if parties < 1:
            raise self.refuse(f"cannot cut into {parties} parties: ask for at least 1")
        if parties > whole.items:
            raise self.refuse(f"{whole.items} {whole.level}s are too few for {parties} parties: ask for fewer")
        owner = self.assign(pool, parties, seed)
        held = torch.bincount(owner, minlength=parties)
        if int(held.min()) == 0:
            raise self.refuse(f"party {int(held.argmin())} would get no {whole.level}: ask for fewer parties")
        names = [f"party-{at:0{len(str(parties - 1))}d}" for at in range(parties)]
        if whole.level == "graph":
            return _cut_pile(whole, owner, names)
        return _cut_graph(whole, owner, names, coupled=self.edges == "coupled")

    def refuse(self, reason: str) -> IsthmusError:
        """The error for a cut that cannot be made, to be raised."""
        return IsthmusError(f"partition '{self.name}': {reason}")


class Random(Partition):
    """Equally many items for every party, drawn blindly."""

    name: ClassVar[str] = "random"

    def assign(self, pool: Pool, parties: int, seed: int) -> Tensor:
        one_group = torch.zeros(pool.party.items, dtype=torch.long)
        return rank_within(one_group, draws(seed, "partition")) % parties


class Iid(Partition):
    """Equally many items and the same share of every class for every party."""

    name: ClassVar[str] = "iid"

    def assign(self, pool: Pool, parties: int, seed: int) -> Tensor:
        y = _classes(self, pool)
        generator = draws(seed, "partition")
        dealt = torch.argsort(y * y.numel() + rank_within(y, generator))
        owner = torch.empty_like(y)
        owner[dealt] = torch.arange(y.numel()) % parties
        return owner


class LabelDirichlet(Partition):
    """Every class is spread over the parties by proportions drawn from a Dirichlet distribution."""

    name: ClassVar[str] = "label-dirichlet"

    beta: float = Field(0.5, gt=0)
    """Concentration: small gives every party few classes, large gives all the same mix."""

    def assign(self, pool: Pool, parties: int, seed: int) -> Tensor:
        y = _classes(self, pool)
        generator = draws(seed, "partition")
        counts = torch.bincount(y)
        ends = torch.from_numpy(generator.dirichlet(np.full(parties, self.beta), size=counts.numel())).cumsum(1)
        at = (rank_within(y, generator) + 0.5) / counts[y]
        owner = torch.empty_like(y)
        for label in range(counts.numel()):
            items = y == label
            owner[items] = torch.searchsorted(ends[label, :-1].contiguous(), at[items], right=True)
        return _nobody_empty(owner, parties)


class Louvain(Partition):
    """Communities found by the Louvain method, packed into parties of similar size."""

    name: ClassVar[str] = "louvain"

    resolution: float = Field(1.0, gt=0)
    """Above 1 for smaller communities, below for larger ones."""

    def assign(self, pool: Pool, parties: int, seed: int) -> Tensor:
        if pool.party.level != "node":
            raise self.refuse(
                "communities are in one graph, this pool is a pile of graphs: use 'iid' or 'label-dirichlet'"
            )
        communities = self._communities(pool.party, seed)
        return _packed(_at_least(communities, parties), parties, pool.party.items)

    def _communities(self, party: Party, seed: int) -> list[list[int]]:
        import networkx  # slow to import, and only needed here

        graph = networkx.Graph()
        graph.add_nodes_from(range(party.nodes))
        graph.add_edges_from(party.graph.edge_index.t().tolist())
        found = networkx.community.louvain_communities(
            graph, resolution=self.resolution, seed=int(draws(seed, "partition").integers(2**31))
        )
        near = _neighbours_near(party)  # so that a community that must be split falls apart into connected halves
        return [sorted(community, key=near.__getitem__) for community in found]


class Metis(Partition):
    """Parts of similar size with few edges between them, by METIS; needs the extra `metis`."""

    name: ClassVar[str] = "metis"

    def assign(self, pool: Pool, parties: int, seed: int) -> Tensor:
        if pool.party.level != "node":
            raise self.refuse("METIS cuts one graph, this pool is a pile of graphs: use 'iid' or 'label-dirichlet'")
        try:
            import pymetis
        except ImportError as error:
            raise missing_extra("pymetis", "metis", "partition 'metis'") from error
        if parties == 1:
            return torch.zeros(pool.party.items, dtype=torch.long)
        source, target = pool.party.graph.edge_index.numpy()
        adjacency = coo_array((np.ones(source.size), (source, target)), shape=(pool.party.items,) * 2).tocsr()
        adjacency = (adjacency + adjacency.T).tolil()
        adjacency.setdiag(0)
        adjacency = adjacency.tocsr()
        adjacency.eliminate_zeros()
        options = pymetis.Options(seed=int(draws(seed, "partition").integers(2**31)))
        _, owner = pymetis.part_graph(
            parties, pymetis.CSRAdjacency(adjacency.indptr, adjacency.indices), options=options
        )
        return _nobody_empty(torch.tensor(owner), parties)


class Given(Partition):
    """Everyone keeps what is theirs: the owners that came with the data."""

    name: ClassVar[str] = "given"

    def assign(self, pool: Pool, parties: int, seed: int) -> Tensor:
        if pool.owner is None:
            raise self.refuse(
                "these data have no owners of their own: use another partition, such as 'louvain' or 'random'"
            )
        owners = int(pool.owner.max()) + 1
        if owners != parties:
            raise self.refuse(f"the data belong to {owners} parties, {parties} were asked for: ask for {owners}")
        return pool.owner


def _classes(partition: Partition, pool: Pool) -> Tensor:
    y: Tensor = pool.party.graph.y
    if y.dim() != 1 or y.is_floating_point():
        raise partition.refuse("it needs one class for each item, these labels are of several tasks: use 'random'")
    return y


def _nobody_empty(owner: Tensor, parties: int) -> Tensor:
    """Give each party without an item one from those that have most."""
    empty = torch.nonzero(torch.bincount(owner, minlength=parties) == 0).flatten()
    _, _, place = _sorted_by(owner, parties)
    # The last places are in the largest parties; a first place is never among them while items >= parties.
    spare = torch.argsort(place, descending=True, stable=True)[: empty.numel()]
    return owner.index_copy(0, spare, empty)


def _neighbours_near(party: Party) -> list[int]:
    """For every node a position in an order that keeps neighbours close."""
    source, target = party.graph.edge_index.numpy()
    adjacency = coo_array((np.ones(source.size), (source, target)), shape=(party.nodes, party.nodes)).tocsr()
    positions: list[int] = np.argsort(reverse_cuthill_mckee(adjacency)).tolist()
    return positions


def _at_least(communities: Sequence[list[int]], wanted: int) -> list[list[int]]:
    """Halve the largest community until there are enough."""
    heap = [(-len(community), at, community) for at, community in enumerate(communities)]
    heapq.heapify(heap)
    while len(heap) < wanted:
        size, _, largest = heapq.heappop(heap)
        middle = -size // 2
        for half in (largest[:middle], largest[middle:]):
            heapq.heappush(heap, (-len(half), half[0], half))
    return [community for _, _, community in sorted(heap)]


def _packed(communities: Sequence[list[int]], parties: int, items: int) -> Tensor:
    """Owners, when every community in turn (the largest comes first) goes to the party that has least so far."""
    owner = torch.empty(items, dtype=torch.long)
    smallest = [(0, at) for at in range(parties)]
    for community in communities:
        size, at = heapq.heappop(smallest)
        owner[community] = at
        heapq.heappush(smallest, (size + len(community), at))
    return owner


def _cut_graph(whole: Party, owner: Tensor, names: Sequence[str], *, coupled: bool) -> list[Party]:
    """Induced subgraphs. Nodes and edges are sorted by owner once, then every party is a run of them."""
    order, counts, place = _sorted_by(owner, len(names))
    ids = torch.arange(whole.nodes) if whole.ids is None else whole.ids
    x = rows.take(whole.graph.x, order)
    borders: Sequence[Border | None] = _borders(whole, owner, place, ids, names) if coupled else [None] * len(names)
    inner = _inner_edges(whole.graph, owner, place, len(names))
    nodes: dict[str, Tensor] = {"y": whole.graph.y, "ids": ids, **{split: getattr(whole, split) for split in SPLITS}}
    runs = {key: value[order].split(counts) for key, value in nodes.items()}
    starts = np.cumsum([0, *counts])
    parties = []
    for at, name in enumerate(names):
        graph = inner[at]
        graph.x = rows.between(x, int(starts[at]), int(starts[at + 1])).clone()
        graph.num_nodes = counts[at]
        mine = {key: run[at].clone() for key, run in runs.items()}
        graph.y = mine.pop("y")
        parties.append(Party(name, graph, "node", border=borders[at], **mine))
    return parties


def _inner_edges(graph: Data, owner: Tensor, place: Tensor, parties: int) -> list[Data]:
    """For each party a graph with the edges that stay within it (and their weights), its nodes counted from 0."""
    source, target = owner[graph.edge_index]
    kept = torch.nonzero(source == target).flatten()
    order, counts, _ = _sorted_by(source[kept], parties)
    kept = kept[order]
    edges = place[graph.edge_index[:, kept]].split(counts, dim=1)
    graphs = [Data(edge_index=edge.clone(memory_format=torch.contiguous_format)) for edge in edges]
    weight = getattr(graph, "edge_weight", None)
    if weight is not None:
        for each, run in zip(graphs, weight[kept].split(counts), strict=True):
            each.edge_weight = run.clone()
    return graphs


def _borders(whole: Party, owner: Tensor, place: Tensor, ids: Tensor, names: Sequence[str]) -> list[Border]:
    """For each party the edges that arrive from other parties' nodes."""
    edge_index = whole.graph.edge_index
    source, target = owner[edge_index]
    crossing = torch.nonzero(source != target).flatten()
    order, counts, _ = _sorted_by(target[crossing], len(names))
    crossing = crossing[order]
    inner = place[edge_index[1, crossing]].split(counts)
    outer = ids[edge_index[0, crossing]].split(counts)
    weight = getattr(whole.graph, "edge_weight", None)
    weights = [None] * len(names) if weight is None else [run.clone() for run in weight[crossing].split(counts)]
    borders = []
    for at, neighbours in enumerate(source[crossing].split(counts)):
        across, which = torch.unique(neighbours, return_inverse=True)
        owners = tuple(names[other] for other in across.tolist())
        borders.append(Border(inner[at].clone(), outer[at].clone(), which, owners, weights[at]))
    return borders


def _cut_pile(whole: Party, owner: Tensor, names: Sequence[str]) -> list[Party]:
    """Piles of graphs: the graphs are sorted by owner once, then every party is a run of them."""
    order, counts, _ = _sorted_by(owner, len(names))
    block = Cohort((whole,)).graphs_of(order)
    assert block.batch is not None
    whose_node = owner[order][block.batch]
    _, nodes, place = _sorted_by(whose_node, len(names))
    edges = torch.bincount(whose_node[block.edge_index[0]], minlength=len(names)).tolist()
    per_edge = {"edge_index": place[block.edge_index].split(edges, dim=1)}
    if block.edge_weight is not None:
        per_edge["edge_weight"] = block.edge_weight.split(edges)
    batch, y = block.batch.split(nodes), whole.graph.y[order].split(counts)
    masks = {split: getattr(whole, split)[order].split(counts) for split in SPLITS}
    starts, firsts = np.cumsum([0, *nodes]), np.cumsum([0, *counts])
    parties = []
    for at, name in enumerate(names):
        graph = Data(y=y[at].clone(), batch=batch[at] - int(firsts[at]))
        graph.update({key: run[at].clone(memory_format=torch.contiguous_format) for key, run in per_edge.items()})
        graph.x = rows.between(block.x, int(starts[at]), int(starts[at + 1])).clone()
        graph.num_nodes, graph.num_graphs = nodes[at], counts[at]
        parties.append(Party(name, graph, "graph", **{split: run[at].clone() for split, run in masks.items()}))
    return parties


def _sorted_by(group: Tensor, groups: int) -> tuple[Tensor, list[int], Tensor]:
    """The order that puts members of a group side by side, the groups' sizes, and every member's place in its group."""
    order = torch.argsort(group, stable=True)
    counts = torch.bincount(group, minlength=groups)
    place = torch.empty_like(order)
    place[order] = torch.arange(order.numel()) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    return order, counts.tolist(), place
