"""Gradients of single items for DP-SGD: those of a stack of models with a slice of the weights for each item.

Every item is a party of its own to the model, so nothing that it computes mixes items, and one backward pass gives the
gradient of each. What is done with them is in `privacy.items`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from isthmus.data import rows
from isthmus.data.cohort import Block, Cohort
from isthmus.federation.site import Site
from isthmus.nn.draws import Draws
from isthmus.nn.per_party import Leaf, PerParty
from isthmus.nn.stacks import dense
from isthmus.nn.weights import count_numbers
from isthmus.privacy.items import ItemPlan
from isthmus.privacy.random_bits import Bits
from isthmus.tasks.base import Step

AT_ONCE = 2**22
"""Numbers of the weights of all items that are read at a time: a processor's caches hold more of few than of many."""


class ItemGradients:
    """Noisy means of the gradients of single items, of all parties that a site trains now.

    Arguments:
        loss: of a step, a number for each of its parties.
        only: names of the weights that are trained; None for all.
    """

    def __init__(
        self, site: Site, plan: ItemPlan, loss: Callable[[Step], Tensor], only: Collection[str] | None
    ) -> None:
        self.site, self.plan, self.loss, self.only = site, plan, loss, only
        cohort = site.cohort
        self.model = PerParty(site.model.module, 1, cohort.device)
        self.items = cohort.masks["train"].nonzero().squeeze(1)
        self.counts = cohort.counts("train").tolist()
        self.order = torch.arange(self.items.numel())
        if cohort.level == "graph" and cohort.block.batch is not None:  # graphs of one size are one product
            nodes = torch.bincount(cohort.block.batch, minlength=cohort.party.numel())[self.items]
            self.order = torch.argsort(nodes, stable=True).to("cpu")
        self.at_once = max(1, AT_ONCE // max(1, count_numbers(site.model.module)))

    def outline(self) -> Block:
        """Some data as a step reads them."""
        block = items_block(self.site.cohort, self.items[:1])
        first = int(self.site.cohort.party[self.items[0]])
        parties = len(self.counts)
        graphs = tuple(int(at == first) for at in range(parties)) if block.graphs else ()
        sizes = tuple(block.nodes * (at == first) for at in range(parties))
        return replace(block, sizes=sizes, graphs=graphs)

    def of_step(self, leaves: Sequence[Leaf], epoch: int, at: int) -> list[Tensor]:
        """The gradients of a step in the shapes of the leaves; those of parties without items are 0."""
        secret = [] if self.site.noise.repeatable else _digests(leaves, len(self.counts))
        streams = [(*self._purpose(party, epoch, at), *secret[party : party + 1]) for party in range(len(self.counts))]
        chosen = torch.from_numpy(
            np.concatenate(
                [
                    self.plan.sample(count, self._bits("sample", *stream))
                    for count, stream in zip(self.counts, streams, strict=True)
                ]
            )
        )
        sums = [torch.zeros(leaf.tensor.shape, dtype=torch.float64, device=leaf.tensor.device) for leaf in leaves]
        for some in self.items[self.order[chosen[self.order]].to(self.items.device)].split(self.at_once):
            self.add(sums, some, epoch, at)
        whole = torch.cat([each.flatten(1) for each in sums], dim=1).to("cpu", torch.long).numpy()
        found = torch.zeros(whole.shape, dtype=torch.float64)
        for party, (count, stream) in enumerate(zip(self.counts, streams, strict=True)):
            if count:  # whatever was summed before, no other sum gets this noise
                value = () if self.site.noise.repeatable else (whole[party].tobytes().hex(),)
                found[party] = self.plan.noisy(
                    whole[party], count, self._bits("noise", *stream, repr(self.plan), *value)
                )
        parts = found.split([each[0].numel() for each in sums], dim=1)
        return [part.reshape(leaf.tensor.shape).to(leaf.tensor) for part, leaf in zip(parts, leaves, strict=True)]

    def add(self, sums: Sequence[Tensor], some: Tensor, epoch: int, at: int) -> None:
        """Add the clipped gradients of some items to the sums of their parties."""
        clipped, party = self.plan.clipped(self.of_items(some, epoch, at)), self.site.cohort.party[some]
        for total, each in zip(sums, clipped, strict=True):
            total.index_add_(0, party, each)

    def of_items(self, some: Tensor, epoch: int, at: int) -> list[Tensor]:
        """The gradients of some items, `[items, ...]` for each leaf."""
        site, model = self.site, self.model
        party = site.cohort.party[some]
        block = items_block(site.cohort, some)
        model.resize(some.numel())
        model.load({name: dense(stack)[party] for name, stack in site.model.weights().items()})
        leaves = model.start_training(block, [True] * some.numel(), touched_rows=False, only=self.only)
        output = model(block, self._dropout(party, some, epoch, at))
        self.loss(Step(output, site.cohort.y[some], (1,) * some.numel(), some)).sum().backward()
        gradients = [torch.zeros_like(leaf.tensor) if leaf.tensor.grad is None else leaf.tensor.grad for leaf in leaves]
        model.stop_training()
        return gradients

    def _dropout(self, party: Tensor, some: Tensor, epoch: int, at: int) -> Draws:
        """Draws of items: of their parties, by the items' positions there."""
        draws, items = self.site.draws("dropout", epoch, at), torch.tensor([0, *self.site.cohort.items])
        party, some = party.cpu(), some.cpu()
        return Draws(draws.keys[party.numpy()]).of_counts((some - items.cumsum(0)[party]).tolist())

    def _purpose(self, party: int, epoch: int, at: int) -> tuple[object, ...]:
        site = self.site
        return site.cohort.names[party], site.answered[site.positions[party]], epoch, at

    def _bits(self, *purpose: object) -> Bits:
        return self.site.noise.bits("items", *purpose)


def items_block(cohort: Cohort, items: Tensor) -> Block:
    """These items as a block in which each is a party: graphs, or nodes without edges."""
    count = items.numel()
    if cohort.level == "graph":
        block = cohort.graphs_of(items)
        assert block.batch is not None
        nodes = tuple(torch.bincount(block.batch, minlength=count).tolist())
        return replace(block, x=rows.to_dense(block.x), sizes=nodes, graphs=(1,) * count)
    block = cohort.block
    x = rows.to_dense(rows.take(block.x, items))
    none = block.edge_index.new_empty(2, 0)
    return Block(x, none, (1,) * count, node_type=block.types_at(items))


def _digests(leaves: Sequence[Leaf], parties: int) -> list[str]:
    """A hash of each party's weights: other weights get another sample of the items."""
    found = []
    for party in range(parties):
        own = hashlib.blake2b(digest_size=16)
        for leaf in leaves:
            own.update(leaf.tensor.detach()[party].cpu().contiguous().numpy().tobytes())
        found.append(own.hexdigest())
    return found
