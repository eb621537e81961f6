"""What a step of training reads of a large graph: the neighbours of a batch, or some clusters of the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from isthmus.data import rows
from isthmus.data.cohort import Block
from isthmus.data.partition.structure import metis_parts
from isthmus.data.party import Party
from isthmus.federation.site import Site
from isthmus.nn.draws import Draws, seed_of

Read: TypeAlias = Callable[[Tensor, int, int], tuple[Block, Tensor | None]]
"""Given a step's items, the epoch and the number of the step in it: the block to read, and the rows of the output that
belong to the items; None where the loss takes all outputs."""


def read_neighbours(site: Site, fan_out: Sequence[int | None], *, embed: bool) -> Read:
    """What a step reads: its items' nodes, edges drawn into these, edges drawn into their sources, and so on.

    Arguments:
        fan_out: for each hop most edges into a node, drawn without replacement; None takes all.
        embed: the loss takes embeddings too, so no layer leaves out rows.
    """
    cohort, trims = site.cohort, site.model.trims and not embed

    def read(chosen: Tensor, epoch: int, at: int) -> tuple[Block, Tensor | None]:
        seeds, draws = cohort.rows_of(chosen), site.draws("neighbours", epoch, at)
        part = cohort.block.neighbours.around(seeds.flatten(), fan_out, cohort.sizes, partial(_uniform, draws))
        block, at_rows = cohort.block.restricted(part, trims=trims), part.rows_of(seeds, among_seeds=trims)
        return (cohort.with_edges(block, at_rows, chosen), None) if cohort.level == "edge" else (block, at_rows)

    return read


def _uniform(draws: Draws, hop: int, sizes: Sequence[int], width: int) -> Tensor:
    return draws.of(hop).uniform(sizes, width)


class ClusterBatches:
    """Cluster-GCN (Chiang et al. 2019): a step reads some clusters of each party's graph, and the edges within them.

    METIS cuts each party's graph once. In every epoch each party draws an order of its clusters and takes some per
    step. Layers normalise by the degrees within the step's clusters, as in the paper.

    Arguments:
        clusters: of each party; a party with fewer nodes has a cluster per node.
        per_batch: clusters of a step.
    """

    def __init__(self, site: Site, clusters: int, per_batch: int) -> None:
        self.site, self.per_batch = site, per_batch
        cohort = site.cohort
        self.counts = tuple(min(clusters, party.nodes) for party in cohort.parties)
        first = torch.tensor(self.counts).cumsum(0) - torch.tensor(self.counts)
        parts = [
            _clusters_of(party, count, seed_of(site.seed, party.name, "clusters")) + start
            for party, count, start in zip(cohort.parties, self.counts, first.tolist(), strict=True)
        ]
        self.cluster = torch.cat(parts)
        self._steps: tuple[int, Tensor] = -1, torch.empty(0)

    def steps(self, epoch: int) -> Iterator[Tensor]:
        """The training items of each step of the epoch."""
        items = self.site.cohort.masks["train"].nonzero().squeeze(1)
        step = self.step_of_nodes(epoch)[items]
        yield from items[torch.argsort(step, stable=True)].split(torch.bincount(step).tolist())

    def read(self, chosen: Tensor, epoch: int, at: int) -> tuple[Block, Tensor]:
        """The clusters of the step as a block, and the rows of its items."""
        block, inside = self.site.cohort.block, self.step_of_nodes(epoch) == at
        nodes, near = inside.nonzero().squeeze(1), block.neighbours
        edges = rows.concat_ranges(near.start[nodes], near.degree[nodes])
        source, target = near.source[edges].long(), nodes.repeat_interleave(near.degree[nodes])
        within = inside[source]
        position = inside.cumsum(0) - 1
        sizes = tuple(int(part.sum()) for part in inside.split(block.sizes))
        edge_index = position[torch.stack([source[within], target[within]])]
        columns = near.per_edge(edges[within])
        part = Block(rows.take(block.x, nodes), edge_index, sizes, node_type=block.types_at(nodes), **columns)
        return part, position[chosen]

    def step_of_nodes(self, epoch: int) -> Tensor:
        """In which step each node is read; -1 where no training node is in the same batch of clusters."""
        if self._steps[0] != epoch:
            self._steps = epoch, self._step_of_nodes(epoch)
        return self._steps[1]

    def _step_of_nodes(self, epoch: int) -> Tensor:
        cohort, counts = self.site.cohort, torch.tensor(self.counts)
        order = self.site.draws("clusters", epoch).order(self.counts)
        rank = torch.arange(order.numel()) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        batches = -(-counts // self.per_batch)  # of each party; those of all parties are numbered one after another
        batch = torch.empty_like(rank)
        batch[order] = (batches.cumsum(0) - batches).repeat_interleave(counts) + rank // self.per_batch
        trains = torch.zeros(int(batches.sum()), dtype=torch.bool)
        trains[batch[self.cluster[cohort.masks["train"].cpu()]]] = True
        # a party's steps are numbered without those that have nothing to train on, whatever others have
        number = trains.cumsum(0) - 1
        before = torch.cat([number.new_zeros(1), trains.cumsum(0)])[(batches.cumsum(0) - batches)]
        number = torch.where(trains, number - before.repeat_interleave(batches), -1)
        return number[batch[self.cluster]].to(cohort.device)


_CLUSTERS: WeakKeyDictionary[Party, tuple[tuple[int, int], Tensor]] = WeakKeyDictionary()


def _clusters_of(party: Party, count: int, seed: int) -> Tensor:
    """The cluster of every node; METIS takes seconds for a million edges, so the last cut of a party is kept."""
    known = _CLUSTERS.get(party)
    if known is None or known[0] != (count, seed):
        found = metis_parts(party.graph.edge_index, party.nodes, count, seed, "local.clusters")
        known = _CLUSTERS[party] = (count, seed), found
    return known[1]
