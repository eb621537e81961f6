"""Faults of AdaFGL's public code, which `defects.toml` sets beside the method, and beside FedAvg, without them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from isthmus.data import rows
from isthmus.data.partition.structure import Metis
from isthmus.data.party import Party
from isthmus.data.pool import Pool, numpy_generator
from isthmus.methods.adafgl import AdaFGL
from isthmus.tasks.base import Step

CHANCE, CHANCE_ALONE = 0.001, 0.5
"""Of an edge between two nodes, and between a node without edges and another."""


class Logits(AdaFGL):
    """AdaFGL that compares its first network's outputs, before the softmax, with probabilities."""

    name: ClassVar[str] = "adafgl-logits"

    class AtParty(AdaFGL.AtParty):
        def loss(self, step: Step) -> Tensor:
            *outputs, given = step.output.chunk(5, dim=1)
            total = sum(self.task.loss(replace(step, output=each[step.items])) for each in outputs)
            return total + rows.mean_per_party((outputs[0] - given).square().mean(1), self.cohort.sizes)


class WithLabelledEdges(Metis):
    """METIS' parts, to each of which edges are added between nodes of equal labels, or of different labels.

    A draw decides which for each party. Labels of test nodes count like all others.
    """

    name: ClassVar[str] = "metis-with-labelled-edges"

    def cut(self, pool: Pool, parties: int, seed: int, *, cache_folder: Path | None = None) -> list[Party]:
        return [self._joined(party, seed) for party in super().cut(pool, parties, seed, cache_folder=cache_folder)]

    def _joined(self, party: Party, seed: int) -> Party:
        draw, y, edges = numpy_generator(seed, f"edges of {party.name}"), party.graph.y, party.graph.edge_index
        equal = bool(draw.integers(2))
        first, second = torch.triu_indices(party.nodes, party.nodes, 1)
        alone = torch.bincount(edges.flatten(), minlength=party.nodes) == 0
        chance = torch.where(alone[first] | alone[second], CHANCE_ALONE, CHANCE)
        drawn = torch.from_numpy(draw.random(len(first))) < chance
        added = torch.stack([first, second])[:, drawn & ((y[first] == y[second]) == equal)]
        known = first.new_zeros(party.nodes, party.nodes, dtype=torch.bool)
        known[edges[0], edges[1]] = True
        added = added[:, ~known[added[0], added[1]]]
        graph = party.graph.clone()
        graph.edge_index = torch.cat([edges, added, added.flip(0)], dim=1)
        return replace(party, graph=graph)
