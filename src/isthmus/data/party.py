"""What a party holds, and several parties side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor
from torch_geometric.data import Batch, Data

from isthmus.data import rows
from isthmus.data.checked import check_splits, checked_batch, checked_graph, checked_split, labelled
from isthmus.errors import IsthmusError

Level = Literal["node", "graph", "pair"]
Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
NAME_RULE = "letters, digits, spaces and other signs but no '/' and no '\\', and is more than '.' or '..'"
"""What a party's name may have: it is also that of a file."""


@dataclass(frozen=True, eq=False)
class Border:
    """Edges that reach a party from other parties' nodes: known to both sides, the other side's features to its owner.

    Arguments:
        inner: positions of the party's own nodes, `[B]`.
        outer: ids of the nodes at the other end, `[B]`; edge b runs from `outer[b]` to `inner[b]`.
        owner: for every edge the index in `owners` of the party that holds `outer[b]`, `[B]`.
        owners: names of the parties across the border.
        weight: weights of the edges, `[B]`, or none.
    """

    inner: Tensor
    outer: Tensor
    owner: Tensor
    owners: tuple[str, ...]
    weight: Tensor | None = None

    def __len__(self) -> int:
        return self.inner.numel()


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of nodes that a party is asked about; a pair across two parties is known to both, as their border is.

    Arguments:
        first: positions of the party's own nodes, `[pairs]`.
        second: ids of the nodes at the other end, `[pairs]`.
        owner: for every pair the index in `owners` of the party that holds `second`; -1 where it is the party itself.
        owners: names of other parties.
        lent: positions of own nodes whose outputs another party needs to score its pairs, `[lent]`: the nodes for one
            such party after those for another, each party's in the order of their ids.
        borrower: for every one of these the index in `owners` of that party, ascending, `[lent]`.
    """

    first: Tensor
    second: Tensor
    owner: Tensor
    owners: tuple[str, ...]
    lent: Tensor
    borrower: Tensor

    def __len__(self) -> int:
        return self.first.numel()


@dataclass(frozen=True, eq=False)
class Party:
    """One organisation: its graph or graphs, its border, its splits.

    A party holds one graph whose nodes are classified (`level="node"`), many small graphs that are classified whole
    (`level="graph"`, `graph` then is a PyG `Batch`), or one graph and pairs of its nodes that are classified
    (`level="pair"`). Build it with `Party.of_graph` or `Party.of_graphs`; pairs are made of a graph's edges by
    `isthmus.data.pairs`. Features may be a dense matrix or a sparse CSR one (bags of words stay sparse).

    Attributes:
        graph: PyG `Data` with `x` `[nodes, features]`, `edge_index` `[2, edges]`, `y` (`[items]` classes, or
            `[items, tasks]` with NaN where a label is missing), optionally `edge_weight` `[edges]`.
        train, val, test: masks over the items (nodes, graphs or pairs), `[items]`; an item whose labels are all
            missing is in none of them.
        ids: ids of the nodes, unique within the party; a node that two parties share has the same id at both.
        structural: columns of the features that follow from the edges, as degrees do, ascending; none where that is
            not so or not known.
    """

    name: str
    graph: Data
    level: Level
    train: Tensor
    val: Tensor
    test: Tensor
    ids: Tensor | None = None
    border: Border | None = None
    pairs: Pairs | None = None
    structural: Tensor | None = None

    def __post_init__(self) -> None:
        if self.name in ("", ".", "..") or any(letter in self.name for letter in "/\\\0"):
            raise IsthmusError(f"party {self.name!r}: a party's name may have {NAME_RULE}")
        if (self.level == "pair") != (self.pairs is not None):
            raise IsthmusError(
                f"party '{self.name}' holds {self.level}s: give pairs to a party of pairs, and to no other"
            )
        items = self.items
        if self.nodes == 0:
            raise IsthmusError(f"party '{self.name}' has no nodes: give it at least one, or leave it out")
        for split in SPLITS:
            if getattr(self, split).shape != (items,):
                raise IsthmusError(
                    f"party '{self.name}': mask '{split}' has shape {tuple(getattr(self, split).shape)}, "
                    f"its {self.level}s are {items}"
                )
        _check_edges(self)
        if self.ids is not None and (self.ids.shape != (self.nodes,) or self.ids.unique().numel() < self.nodes):
            raise IsthmusError(f"party '{self.name}': ids must be {self.nodes} different numbers, one for each node")
        if self.border is not None and len(self.border) and self.ids is None:
            raise IsthmusError(f"party '{self.name}' has a border but no ids: others find its nodes by their ids")
        if self.graph.y is None or self.graph.y.size(0) != items:
            raise IsthmusError(f"party '{self.name}' needs one label row for each of its {items} {self.level}s")
        if self.pairs is not None:
            _check_pairs(self, self.pairs)
        if self.structural is not None and not _are_columns(self.structural, self.features):
            raise IsthmusError(
                f"party '{self.name}': structural are positions of features, ascending, from 0 to {self.features - 1}"
            )

    @classmethod
    def of_graph(
        cls,
        name: str,
        graph: Data,
        *,
        ids: Tensor | None = None,
        border: Border | None = None,
        structural: Tensor | None = None,
    ) -> Party:
        """A party with one graph; `graph` carries `train_mask`, `val_mask` and `test_mask` (a missing one is empty).

        >>> graph = Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([0, 1, 0]))
        >>> graph.train_mask = torch.tensor([True, False, False])
        >>> Party.of_graph("bank-a", graph).items
        3
        """
        where = f"party '{name}'"
        kept = checked_graph(graph, where)
        nodes = int(kept.num_nodes or 0)
        masks: dict[str, Tensor] = {s: checked_split(graph.get(f"{s}_mask"), nodes, where) for s in SPLITS}
        party = cls(
            name, kept, "node", ids=ids, border=border, pairs=None, structural=structural, **labelled(masks, kept.y)
        )
        check_splits(masks, kept.y, where)
        return party

    @classmethod
    def of_graphs(
        cls,
        name: str,
        graphs: Sequence[Data],
        *,
        train: Tensor | None = None,
        val: Tensor | None = None,
        test: Tensor | None = None,
        structural: Tensor | None = None,
    ) -> Party:
        """A party with many graphs; `train`, `val`, `test` are masks or positions over them."""
        if not graphs:
            raise IsthmusError(f"party '{name}' has no graphs: give it at least one, or leave it out")
        where = f"party '{name}'"
        kept = [checked_graph(graph, f"{where}, graph {at}") for at, graph in enumerate(graphs)]
        if len({graph.x.size(1) for graph in kept}) > 1 or len({graph.y.shape for graph in kept}) > 1:
            raise IsthmusError(f"{where}: its graphs differ in feature width or label shape")
        given = {"train": train, "val": val, "test": test}
        masks = {split: checked_split(value, len(kept), where) for split, value in given.items()}
        batch = Batch.from_data_list(kept)
        check_splits(masks, batch.y, where)
        splits = labelled(masks, batch.y)
        return cls(name, batch, "graph", border=None, pairs=None, structural=structural, **splits)

    @classmethod
    def of_batch(
        cls,
        name: str,
        graph: Data,
        *,
        train: Tensor | None = None,
        val: Tensor | None = None,
        test: Tensor | None = None,
        structural: Tensor | None = None,
    ) -> Party:
        """A party with many graphs that stand in one already, as a PyG `Batch` has them: `batch` says which is whose.

        Arguments:
            graph: `x`, `edge_index` and perhaps `edge_weight` of all graphs, one after another; `batch`, for every
                node its graph, ascending, `[nodes]`; `y`, a row for every graph.
            train, val, test: masks or positions over the graphs.

        >>> graph = Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([0, 1]))
        >>> graph.batch = torch.tensor([0, 0, 1])
        >>> Party.of_batch("lab-a", graph, train=torch.tensor([0])).items
        2
        """
        where = f"party '{name}'"
        kept = checked_graph(graph, where)
        kept.num_graphs = kept.y.size(0) if kept.y.dim() else 0
        if not kept.num_graphs:
            raise IsthmusError(f"{where} has no graphs: give it at least one, or leave it out")
        kept.batch = checked_batch(graph.get("batch"), kept.num_nodes, kept.num_graphs, where)
        given = {"train": train, "val": val, "test": test}
        masks = {split: checked_split(value, kept.num_graphs, where) for split, value in given.items()}
        check_splits(masks, kept.y, where)
        splits = labelled(masks, kept.y)
        return cls(name, kept, "graph", border=None, pairs=None, structural=structural, **splits)

    @property
    def nodes(self) -> int:
        return int(self.graph.num_nodes or 0)

    @property
    def edges(self) -> int:
        """Directed edges, the border's not counted."""
        return int(self.graph.edge_index.size(1))

    @property
    def items(self) -> int:
        """What is classified: nodes, whole graphs, or pairs of nodes."""
        if self.pairs is not None:
            return len(self.pairs)
        return self.nodes if self.level == "node" else int(self.graph.num_graphs)

    @property
    def training_mask(self) -> Tensor:
        """Mask of the items that the party trains on: of pairs those whose ends are both its own, `[items]`."""
        return self.train if self.pairs is None else self.train & (self.pairs.owner < 0)

    @property
    def features(self) -> int:
        return int(self.graph.x.size(1))


@dataclass(frozen=True, eq=False)
class Block:
    """Graphs of several parties as one block-diagonal graph: what a model reads.

    Arguments:
        x: features, `[nodes, features]`, dense or sparse CSR.
        edge_index: `[2, edges]`, party after party.
        sizes: nodes of each party; party p's rows stand together, in the order of the parties.
        edge_weight: `[edges]` or none.
        batch: for every node the graph it belongs to, `[nodes]`; none where each party has one graph.
        graphs: graphs of each party, for readouts.
    """

    x: Tensor
    edge_index: Tensor
    sizes: tuple[int, ...]
    edge_weight: Tensor | None = None
    batch: Tensor | None = None
    graphs: tuple[int, ...] = ()

    @property
    def nodes(self) -> int:
        return sum(self.sizes)

    def for_party(self, at: int) -> Block:
        """The part of the party at position `at`, as a block of its own."""
        start = sum(self.sizes[:at])
        stop = start + self.sizes[at]
        edges = slice(self._edge_ends[at], self._edge_ends[at + 1])
        first = sum(self.graphs[:at])
        return Block(
            x=rows.slice_rows(self.x, start, stop),
            edge_index=self.edge_index[:, edges] - start,
            sizes=(self.sizes[at],),
            edge_weight=None if self.edge_weight is None else self.edge_weight[edges],
            batch=None if self.batch is None else self.batch[start:stop] - first,
            graphs=self.graphs[at : at + 1],
        )

    @cached_property
    def _edge_ends(self) -> list[int]:
        ends = torch.tensor((0, *self.sizes), device=self.edge_index.device).cumsum(0)
        party = torch.bucketize(self.edge_index[0], ends[1:], right=True)
        return [0, *torch.bincount(party, minlength=len(self.sizes)).cumsum(0).tolist()]

    def to(self, device: torch.device) -> Block:
        def move(value: Tensor | None) -> Tensor | None:
            return None if value is None else value.to(device)

        return replace(
            self,
            x=self.x.to(device),
            edge_index=self.edge_index.to(device),
            edge_weight=move(self.edge_weight),
            batch=move(self.batch),
        )


@dataclass(eq=False)
class Cohort:
    """Several parties side by side: their graphs as one block, `party` saying for every item whose it is.

    A site that hosts one party sees a cohort of one: the same code, in ordinary shapes.

    Arguments:
        parties: all of one level and one feature width.
        device: where the tensors live.

    Attributes:
        pair_rows: for every pair the rows of its two nodes, `[items, 2]`, in the outputs of the block's nodes followed
            by those of the `borrowed` ones; -1 for the second node of a pair that is neither trained on nor scored.
        borrowed: for every party, by owner, the ids of other parties' nodes in pairs that it scores, ascending.
    """

    parties: tuple[Party, ...]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        self.parties = tuple(self.parties)
        check_compatible(self.parties)
        self.level: Level = self.parties[0].level
        self.names = tuple(party.name for party in self.parties)
        self.sizes = tuple(party.nodes for party in self.parties)
        self.items = tuple(party.items for party in self.parties)
        block = self._block()
        if self.device.type == "mps":  # it has no sparse matrices
            block = replace(block, x=rows.to_dense(block.x))
        self.block = block.to(self.device)
        self.y = torch.cat([party.graph.y for party in self.parties]).to(self.device)
        self.party = self.per_item(torch.arange(len(self.parties), device=self.device))
        self.masks = {
            split: torch.cat([getattr(party, split) for party in self.parties]).to(self.device) for split in SPLITS
        }
        self.masks["train"] = torch.cat([party.training_mask for party in self.parties]).to(self.device)
        ends, self.borrowed = _ends(self.parties)
        self.pair_rows = None if ends is None else ends.to(self.device)
        self._edges: tuple[Tensor, Tensor] | None = None
        self._parts: dict[tuple[int, ...], Cohort] = {}
        self._last: tuple[Tensor, Block] | None = None
        self._blocks: dict[tuple[bool, ...], Block] = {}

    def __len__(self) -> int:
        return len(self.parties)

    def counts(self, split: Split) -> Tensor:
        """How many items of `split` each party trains on, or is evaluated on, `[parties]`."""
        return torch.bincount(self.party[self.masks[split]], minlength=len(self)).cpu()

    def per_item(self, values: Tensor) -> Tensor:
        """A value per party, repeated for each of its items."""
        return values.repeat_interleave(torch.tensor(self.items, device=values.device), dim=0)

    def take(self, positions: Sequence[int]) -> Cohort:
        """The parties at these positions, side by side; the whole cohort is handed back as it is."""
        key = tuple(positions)
        if key == tuple(range(len(self))):
            return self
        if key not in self._parts:
            while len(self._parts) >= 4:  # sampling draws new ones for ever; a few cover cohorts asked alternately
                self._parts.pop(next(iter(self._parts)))
            self._parts[key] = Cohort(tuple(self.parties[at] for at in key), self.device)
        return self._parts[key]

    def block_of(self, active: Sequence[bool], *, near_training: bool = False) -> Block:
        """The block without the rows of parties that are not active; every party keeps its place.

        Arguments:
            near_training: of parties with one graph also leave out what no path joins to a training node; `rows_of`
                then says where the others stand.
        """
        if all(active) and not near_training:
            return self.block
        key = (*active, near_training)
        if key not in self._blocks:
            while len(self._blocks) >= 4:
                self._blocks.pop(next(iter(self._blocks)))
            self._blocks[key] = self._part(self._present(active, near_training), active)
        return self._blocks[key]

    def rows_of(self, items: Tensor, active: Sequence[bool] | None = None, *, near_training: bool = False) -> Tensor:
        """At which rows of `block_of(...)` these items of active parties (without: all) stand.

        Returns:
            `[items]` for nodes; `[items, 2]` for pairs, of both ends.
        """
        at = items if self.pair_rows is None else self.pair_rows[items]
        if (active is None or all(active)) and not near_training:
            return at
        return self._present(active or [True] * len(self), near_training).cumsum(0)[at] - 1

    def _present(self, active: Sequence[bool], near_training: bool) -> Tensor:
        sizes = torch.tensor(self.sizes, device=self.device)
        here = torch.tensor(list(active), device=self.device).repeat_interleave(sizes)
        return here & self._near_training if near_training and self.level != "graph" else here

    @cached_property
    def _near_training(self) -> Tensor:
        """Nodes in a connected component with a training node, or with a node of a training pair."""
        source, target = self.block.edge_index.cpu().numpy()
        matrix = coo_matrix((np.ones(source.size, dtype=np.int8), (source, target)), (self.block.nodes,) * 2)
        component = torch.from_numpy(connected_components(matrix, directed=False)[1]).long().to(self.device)
        trained = torch.zeros(int(component.max()) + 1, dtype=torch.bool, device=self.device)
        trained[component[self.rows_of(self.masks["train"].nonzero().squeeze(1)).flatten()]] = True
        return trained[component]

    def _part(self, here: Tensor, active: Sequence[bool]) -> Block:
        """The block of the nodes in the mask `here`, which no edge joins to the others."""
        block = self.block
        edges = here[block.edge_index[0]]
        graphs = tuple(n if on else 0 for n, on in zip(block.graphs or self.items, active, strict=True))
        batch = None
        if block.batch is not None:
            present = torch.tensor(list(active), device=self.device)[self.party]
            batch = (present.cumsum(0) - 1)[block.batch[here]]
        return Block(
            x=rows.take(block.x, here.nonzero().squeeze(1)),
            edge_index=(here.cumsum(0) - 1)[block.edge_index[:, edges]],
            sizes=tuple(int(part.sum()) for part in here.split(self.sizes)),
            edge_weight=None if block.edge_weight is None else block.edge_weight[edges],
            batch=batch,
            graphs=graphs if block.graphs else (),
        )

    def graphs_of(self, chosen: Tensor) -> Block:
        """The graphs at these item positions (party after party) as a block; every party keeps its place."""
        if self._last is None or not torch.equal(self._last[0], chosen):  # full batches are the same in every round
            self._last = chosen, self._graphs_of(chosen)
        return self._last[1]

    def _graphs_of(self, chosen: Tensor) -> Block:
        block = self.block
        if block.batch is None:
            raise IsthmusError("only parties with many graphs can be cut into batches of graphs")
        nodes_of = torch.bincount(block.batch, minlength=sum(self.items))
        order, edges_of = self._edges_by_graph()
        node_at, edge_at = rows.chosen_ranges(nodes_of, chosen), order[rows.chosen_ranges(edges_of, chosen)]
        first, sizes_of = nodes_of.cumsum(0) - nodes_of, nodes_of[chosen]
        moved = (sizes_of.cumsum(0) - sizes_of - first[chosen]).repeat_interleave(edges_of[chosen])
        whose = self.party[chosen]
        graphs = torch.bincount(whose, minlength=len(self))
        sizes = torch.zeros(len(self), dtype=torch.long, device=self.device).index_add_(0, whose, nodes_of[chosen])
        return Block(
            x=rows.take(block.x, node_at),
            edge_index=block.edge_index[:, edge_at] + moved,
            sizes=tuple(sizes.tolist()),
            edge_weight=None if block.edge_weight is None else block.edge_weight[edge_at],
            batch=torch.arange(chosen.numel(), device=self.device).repeat_interleave(nodes_of[chosen]),
            graphs=tuple(graphs.tolist()),
        )

    def _edges_by_graph(self) -> tuple[Tensor, Tensor]:
        if self._edges is None:
            assert self.block.batch is not None
            graph = self.block.batch[self.block.edge_index[0]]
            self._edges = torch.argsort(graph, stable=True), torch.bincount(graph, minlength=sum(self.items))
        return self._edges

    def _block(self) -> Block:
        starts = torch.tensor((0, *self.sizes[:-1])).cumsum(0).tolist()
        edges = [party.graph.edge_index + start for party, start in zip(self.parties, starts, strict=True)]
        weights = [getattr(party.graph, "edge_weight", None) for party in self.parties]
        batch = None
        if self.level == "graph":
            firsts = torch.tensor((0, *self.items[:-1])).cumsum(0).tolist()
            batch = torch.cat([p.graph.batch + first for p, first in zip(self.parties, firsts, strict=True)])
        return Block(
            x=rows.concat([party.graph.x for party in self.parties]),
            edge_index=torch.cat(edges, dim=1),
            sizes=self.sizes,
            edge_weight=_weights(weights, [edge.size(1) for edge in edges]),
            batch=batch,
            graphs=self.items if self.level == "graph" else (),
        )


def check_compatible(parties: Sequence[Party]) -> None:
    """Parties that train together agree in level, feature width and label shape, and have names of their own."""
    if not parties:
        raise IsthmusError("there are no parties: a federation needs at least one")
    first = parties[0]
    for party in parties:
        if party.level != first.level:
            raise IsthmusError(f"party '{party.name}' holds {party.level}s, party '{first.name}' {first.level}s")
        if party.features != first.features:
            raise IsthmusError(
                f"party '{party.name}' has {party.features} features, party '{first.name}' {first.features}: "
                "agree on one encoding"
            )
        if _listed(party.structural) != _listed(first.structural):
            raise IsthmusError(
                f"party '{party.name}' and party '{first.name}' say differently which features follow from edges: "
                "give both the same 'structural'"
            )
        if party.graph.y.shape[1:] != first.graph.y.shape[1:]:
            raise IsthmusError(f"party '{party.name}' and party '{first.name}' have labels of different shapes")
    names = [party.name for party in parties]
    if len(set(names)) < len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise IsthmusError(f"two parties are called '{double}': give each a name of its own")


def _listed(columns: Tensor | None) -> list[int]:
    return [] if columns is None else columns.tolist()


def pool_parties(parties: Sequence[Party], name: str = "pooled") -> Party:
    """All parties put together: the reference that federated learning may not have.

    Nodes with the same id are one node (it is in a split where any of its holders has it there; training comes
    before validation before test), border edges join their two ends, repeated edges count once. Pairs of all parties
    stand one after another, without those that end at a node of nobody.
    """
    check_compatible(parties)
    cohort = Cohort(tuple(parties))
    if cohort.level == "graph" or any(party.ids is None for party in parties):
        graph = Data(x=cohort.block.x, edge_index=cohort.block.edge_index, y=cohort.y)
        graph.num_nodes = cohort.block.nodes
        if cohort.block.edge_weight is not None:
            graph.edge_weight = cohort.block.edge_weight
        if cohort.block.batch is not None:
            graph.batch = cohort.block.batch
            graph.num_graphs = sum(cohort.items)
        structural = parties[0].structural
        return Party(name, graph, cohort.level, border=None, pairs=None, structural=structural, **cohort.masks)
    ids = torch.cat([party.ids for party in parties if party.ids is not None])
    known, where = torch.unique(ids, return_inverse=True)
    first = torch.full((known.numel(),), ids.numel()).scatter_reduce(0, where, torch.arange(ids.numel()), "amin")
    edges, weights = [where[cohort.block.edge_index]], [cohort.block.edge_weight]
    start = 0
    for party in parties:
        if party.border is not None and len(party.border):
            outer = torch.searchsorted(known, party.border.outer)
            inside = (outer < known.numel()) & (known[outer.clamp(max=known.numel() - 1)] == party.border.outer)
            edges.append(torch.stack([outer, where[start + party.border.inner]])[:, inside])
            weights.append(None if party.border.weight is None else party.border.weight[inside])
        start += party.nodes
    edge_index, at = _unique_edges(torch.cat(edges, dim=1), known.numel())
    graph = Data(x=rows.take(cohort.block.x, first), edge_index=edge_index)
    graph.y = cohort.y if cohort.level == "pair" else cohort.y[first]
    graph.num_nodes = known.numel()
    edge_weight = _weights(weights, [edge.size(1) for edge in edges])
    if edge_weight is not None:
        graph.edge_weight = edge_weight[at]
    if cohort.level == "pair":
        return _pooled_pairs(name, graph, known, parties)
    held = {split: torch.zeros(known.numel(), dtype=torch.bool) for split in SPLITS}
    for split in SPLITS:
        held[split][where[cohort.masks[split]]] = True
    held["val"] &= ~held["train"]
    held["test"] &= ~(held["train"] | held["val"])
    return Party(name, graph, "node", ids=known, border=None, pairs=None, structural=parties[0].structural, **held)


def _pooled_pairs(name: str, graph: Data, ids: Tensor, parties: Sequence[Party]) -> Party:
    """The pooled graph with the pairs of all parties."""
    held = [(party, party.ids, party.pairs) for party in parties if party.ids is not None and party.pairs is not None]
    first = torch.cat([own[pairs.first] for _, own, pairs in held])
    second = torch.cat([pairs.second for _, _, pairs in held])
    both = torch.isin(second, ids)
    nobody = torch.empty(0, dtype=torch.long)
    pairs = Pairs(
        torch.searchsorted(ids, first[both]), second[both], torch.full_like(first[both], -1), (), nobody, nobody
    )
    masks = {split: torch.cat([getattr(party, split) for party in parties])[both] for split in SPLITS}
    graph.y = graph.y[both]
    return Party(name, graph, "pair", ids=ids, border=None, pairs=pairs, **masks)


def _ends(parties: Sequence[Party]) -> tuple[Tensor | None, tuple[dict[str, Tensor], ...]]:
    """`Cohort.pair_rows` and `Cohort.borrowed`."""
    if parties[0].pairs is None:
        return None, ()
    ends, borrowed = [], []
    start, slots = 0, sum(party.nodes for party in parties)
    for party in parties:
        assert party.pairs is not None
        assert party.ids is not None
        pairs, across = party.pairs, party.pairs.owner >= 0
        scored = across & (party.val | party.test)
        second = torch.full_like(pairs.first, -1)
        order = torch.argsort(party.ids)
        second[~across] = start + order[torch.searchsorted(party.ids[order], pairs.second[~across])]
        wanted = torch.stack([pairs.owner[scored], pairs.second[scored]])
        wanted, which = torch.unique(wanted, dim=1, return_inverse=True)
        second[scored] = slots + which
        ends.append(torch.stack([start + pairs.first, second], dim=1))
        owned = {name: wanted[1, wanted[0] == at] for at, name in enumerate(pairs.owners)}
        borrowed.append({name: ids for name, ids in owned.items() if ids.numel()})
        start, slots = start + party.nodes, slots + wanted.size(1)
    return torch.cat(ends), tuple(borrowed)


def _check_pairs(party: Party, pairs: Pairs) -> None:
    where = f"party '{party.name}'"
    if party.ids is None:
        raise IsthmusError(f"{where} has pairs but no ids: a pair names the node at its other end by its id")
    if not pairs.first.shape == pairs.second.shape == pairs.owner.shape or pairs.lent.shape != pairs.borrower.shape:
        raise IsthmusError(f"{where}: the parts of its pairs have different lengths")
    if bool((pairs.borrower[1:] < pairs.borrower[:-1]).any()):
        raise IsthmusError(f"{where}: what it lends must stand by who needs it: sort `borrower`, and `lent` with it")
    nodes, owners = party.nodes, len(pairs.owners)
    for what, values, least, most in (
        ("a node", pairs.first, 0, nodes), ("an owner", pairs.owner, -1, owners),
        ("a lent node", pairs.lent, 0, nodes), ("a borrower", pairs.borrower, 0, owners),
    ):  # fmt: skip
        if values.numel() and not least <= int(values.min()) <= int(values.max()) < most:
            raise IsthmusError(f"{where}: a pair names {what} outside {least} .. {most - 1}")
    if not bool(torch.isin(pairs.second[pairs.owner < 0], party.ids).all()):
        raise IsthmusError(f"{where}: a pair within it names a node that is not there")


def _are_columns(found: Tensor, width: int) -> bool:
    if found.dim() != 1 or found.dtype != torch.long:
        return False
    return not found.numel() or bool((found.diff() > 0).all() and found[0] >= 0 and found[-1] < width)


def _check_edges(party: Party) -> None:
    edges, nodes = party.graph.edge_index, party.nodes
    if edges is None or edges.dim() != 2 or edges.size(0) != 2 or edges.dtype != torch.long:
        found = "missing" if edges is None else f"{edges.dtype} of shape {list(edges.shape)}"
        raise IsthmusError(f"party '{party.name}': edge_index is {found}, it must be torch.int64 of shape [2, edges]")
    if edges.numel() and not 0 <= int(edges.min()) <= int(edges.max()) < nodes:
        raise IsthmusError(f"party '{party.name}': an edge names a node outside 0 .. {nodes - 1}")
    if party.level == "graph" and bool((party.graph.batch[edges[0]] != party.graph.batch[edges[1]]).any()):
        raise IsthmusError(f"party '{party.name}': an edge joins two graphs, or names a node outside its graph")
    border = party.border
    if border is None:
        return
    if not border.inner.shape == border.outer.shape == border.owner.shape:
        raise IsthmusError(f"party '{party.name}': inner, outer and owner of its border have different lengths")
    if not len(border):
        return
    for what, values, count in (("inner node", border.inner, nodes), ("owner", border.owner, len(border.owners))):
        if not 0 <= int(values.min()) <= int(values.max()) < count:
            raise IsthmusError(f"party '{party.name}': a border edge names an {what} outside 0 .. {count - 1}")


def _unique_edges(edge_index: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    key, where = torch.unique(edge_index[0] * nodes + edge_index[1], return_inverse=True)
    at = torch.full((key.numel(),), where.numel()).scatter_reduce(0, where, torch.arange(where.numel()), "amin")
    return edge_index[:, at], at


def _weights(weights: Sequence[Tensor | None], counts: Sequence[int]) -> Tensor | None:
    if all(weight is None for weight in weights):
        return None
    return torch.cat([torch.ones(n) if weight is None else weight for weight, n in zip(weights, counts, strict=True)])
