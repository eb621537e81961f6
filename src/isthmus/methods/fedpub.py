"""Mixes of the models of parties that answer alike on a random graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, reduce
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from isthmus.data import rows
from isthmus.data.cohort import Block
from isthmus.data.level import Level
from isthmus.errors import IsthmusError
from isthmus.federation.verbs import Coefficients
from isthmus.methods.base import Listing
from isthmus.methods.shared.mixing import Mixing, MixingSite, Told, by_cosine
from isthmus.nn.draws import draws_of
from isthmus.nn.masked import MASK, masked, without_masks
from isthmus.nn.per_party import Leaf, PerParty
from isthmus.nn.products import per_row
from isthmus.nn.weights import Weights, body_weights, initial_weights

BLOCKS, NODES, JOINED = 5, 100, 0.1
"""The proxy graph: so many blocks of so many nodes; two nodes of a block are joined with this probability."""


class FedPub(Mixing):
    """FED-PUB (Baek et al. 2023): each party masks a mix of models, mostly from parties with similar functions.

    All parties run their models on the same random graph. The more alike the mean embeddings h_k are, the more the
    parties get of each other's weights. Each party keeps a mask mu_k for them.

    Party:  theta_r = theta_k as received
            minimise F_k(theta_k * mu_k) + sparsity ||mu_k||_1
                     + proximity ||theta_k - theta_r||_2
            h_k = mean over the random graph of the last layer before the head
    Server: a_ij = exp(tau cos(h_i, h_j)) / sum_m exp(tau cos(h_i, h_m))
            theta_i = sum_j a_ij theta_j

    The weights of linear layers, also inside convolutions, have masks, biases have none. In evaluation, entries of a
    mask nearer to 0 than `sparsity` count as 0. Masks never leave their party. The random graph has 5 blocks of 100
    nodes and normal features; every party draws it from the run's seed. h_k is taken before the activation, as in the
    public code: after a ReLU all entries have one sign, and all parties seem alike. That code has no distance to
    received weights in the first round.

    The server reads each h_k and, as it makes one sum for each party, could read single models: such sums cannot be
    masked. The paper's experiments evaluate the model after local training: `evaluate_with = "trained"`.
    """

    name: ClassVar[str] = "fedpub"
    listing: ClassVar[Listing] = Listing(
        leaves="mean embeddings of a random graph and its model, which the server could read"
    )
    tuned: ClassVar[tuple[str, ...]] = ("tau", "sparsity")
    levels: ClassVar[tuple[Level, ...]] = ("node",)
    nouns: ClassVar[Mapping[str, str]] = {**Mixing.nouns, "embedding": "mean embedding of a random graph"}

    tau: float = Field(3.0, ge=0)
    """How much parties prefer similar ones; 0 mixes all evenly. The public code's scripts use 3 and, for parties that
    overlap, 5."""
    sparsity: float = Field(1e-6, ge=0)
    """Weight of the masks' absolute values, and the size below which an entry counts as 0 in evaluation. The paper's
    1e-3 loses much accuracy (benchmarks/papers/fgl): in the public code the penalty has no gradient."""
    proximity: float = Field(1e-3, ge=0)
    """Weight of the distance to the weights that were received."""
    as_released: bool = False
    """Train without the gradients of both penalties, as the public code does."""

    def extended(self, module: nn.Module) -> nn.Module:
        return masked(module, self.sparsity)

    def check(self, module: nn.Module) -> None:
        if not body_weights(module):
            raise IsthmusError(f"method '{self.name}': the whole model is its head, so nothing embeds the random graph")
        if not any(name.endswith(MASK) for name in initial_weights(self.extended(module))):
            raise IsthmusError(f"method '{self.name}': the model has no linear layer to mask")

    def mix(self, told: Told, among: Collection[str]) -> Coefficients:
        return by_cosine({party: answer["embedding"] for party, answer in told.items()}, among, self.tau)

    class AtParty(MixingSite):
        method: FedPub

        def learn(self) -> None:
            received, method = self.model.stacks(), self.method

            def pull(leaves: Sequence[Leaf]) -> list[Tensor]:
                gaps = [
                    leaf.tensor.detach() - near
                    for leaf, near in zip(leaves, self.model.like_leaves(leaves, received), strict=True)
                ]
                far = distances([(leaf, gap) for leaf, gap in zip(leaves, gaps, strict=True) if not is_mask(leaf)])
                scale = torch.where(far > 0, method.proximity / far, 0.0)
                return [
                    method.sparsity * leaf.tensor.detach().sign() if is_mask(leaf) else gap * for_rows(scale, leaf)
                    for leaf, gap in zip(leaves, gaps, strict=True)
                ]

            self.fit(pull=None if method.as_released else pull, uniform_pull=False)

        def describe(self) -> dict[str, Any]:
            h, stacks = [], self.model.stacks()
            for at in range(len(self.cohort)):  # side by side, the graph would be there once for each party
                self.alone.load({name: stack[at] for name, stack in stacks.items()})
                h.append(self.alone.unactivated(self.proxy).mean(0))
            return {"embedding": torch.stack(h)}

        def mixed(self) -> Weights:
            return without_masks(self.model.stacks())

        @cached_property
        def alone(self) -> PerParty:
            return PerParty(self.model.module, 1, self.hosted.device)

        @cached_property
        def proxy(self) -> Block:
            """The random graph."""
            features = self.hosted.block.x
            return proxy_graph(self.seed, features.size(1), features.dtype).to(self.hosted.device)


def proxy_graph(seed: int, features: int, dtype: torch.dtype) -> Block:
    """The random graph of a run: blocks without edges between them, normal features."""
    nodes = BLOCKS * NODES
    first, second = torch.triu_indices(NODES, NODES, 1)
    starts = NODES * torch.arange(BLOCKS).unsqueeze(1)
    pairs = torch.stack([(starts + first).flatten(), (starts + second).flatten()])
    drawn = draws_of(seed, "proxy edges").uniform((pairs.size(1),), 1).squeeze(1)
    edges = pairs[:, drawn < JOINED]
    x = draws_of(seed, "proxy features").normal((nodes,), features, dtype=dtype)
    return Block(x, torch.cat([edges, edges.flip(0)], dim=1), (nodes,))


def is_mask(leaf: Leaf) -> bool:
    return leaf.name.endswith(MASK)


def distances(gaps: Sequence[tuple[Leaf, Tensor]]) -> Tensor:
    """The norm of each party's gaps of all leaves together, `[parties]`."""
    squares = [rows.sum_per_party(gap.reshape(len(gap), -1).square().sum(1), leaf.sizes) for leaf, gap in gaps]
    return reduce(torch.add, squares).sqrt()  # one by one: `torch.sum` rounds each party by its position


def for_rows(values: Tensor, leaf: Leaf) -> Tensor:
    """A value per party, for the rows of a leaf."""
    return per_row(values, leaf.sizes).view(-1, *[1] * (leaf.tensor.dim() - 1))
