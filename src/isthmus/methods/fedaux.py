"""Mixes of the models of parties that order their nodes along similar directions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from pydantic import Field
from torch import nn

from isthmus.data.level import Level
from isthmus.errors import IsthmusError
from isthmus.federation.verbs import Coefficients
from isthmus.methods.base import Listing
from isthmus.methods.shared.mixing import Mixing, MixingSite, Told, by_cosine
from isthmus.nn.masked import masked, without_masks
from isthmus.nn.projected import DIRECTION, Projected
from isthmus.nn.weights import Weights


class FedAux(Mixing):
    """FedAux (Zhuo et al. 2025): each party gets a mix of models, mostly from parties with similar directions.

    A party's embeddings h are projected onto a line by a learned vector a_k, its direction. The classifier reads each
    h_i beside the mean z_i of embeddings that lie near it on this line, so a_k learns which nodes belong together.
    Parties with similar directions get more of each other's weights.

    Party:  (theta_k, a_k) <- (theta_k, a_k) - step(grad F_k)
            outputs W [h_i, z_i] + b;  z_i = sum_j K_ij h_j / sum_j K_ij
            K_ij = exp(-(s_i - s_j)^2 / sigma^2), over all nodes j of the party
            s_i = <h_i, a_k> / max_j ||h_j||
    Server: c_kl = exp(alpha cos(a_k, a_l)) / sum_m exp(alpha cos(a_k, a_m))
            theta_k = sum_l c_kl theta_l;  a_k = sum_l c_kl a_l

    A linear layer on [h, z] replaces the model's head: the paper's model is `encoder = "gcn"` with `linear_head`. With
    `fan_out` or `clusters`, a training step smooths over the nodes that it reads, evaluation over all. The public code
    projects by cosines instead of the paper's s_i, and its model is FED-PUB's, whose weights are multiplied by masks
    that stay at the party: `masks`.

    The server reads each a_k and, as it makes one sum for each party, could read single models: such sums cannot be
    masked. The paper's experiments evaluate the model after local training: `evaluate_with = "trained"`.
    """

    name: ClassVar[str] = "fedaux"
    listing: ClassVar[Listing] = Listing(
        leaves="a direction of its embeddings and its model, which the server could read"
    )
    tuned: ClassVar[tuple[str, ...]] = ("alpha",)
    levels: ClassVar[tuple[Level, ...]] = ("node",)
    nouns: ClassVar[Mapping[str, str]] = {**Mixing.nouns, "direction": "direction that orders its embeddings"}

    alpha: float = Field(10.0, ge=0)
    """How much parties prefer similar ones; 0 mixes all evenly."""
    sigma: float = Field(1.0, gt=0)
    """Distance on the line within which nodes count as near."""
    masks: bool = False
    """Multiply weights by a mask of each party's own, which is not mixed, as in the public code."""

    def extended(self, module: nn.Module) -> nn.Module:
        extended = Projected(module, self.sigma)
        return masked(extended) if self.masks else extended

    def check(self, module: nn.Module) -> None:
        try:
            self.extended(module)
        except IsthmusError as error:
            raise IsthmusError(f"method '{self.name}': {error}") from None

    def mix(self, told: Told, among: Collection[str]) -> Coefficients:
        return by_cosine({party: answer["direction"] for party, answer in told.items()}, among, self.alpha)

    class AtParty(MixingSite):
        method: FedAux

        def mixed(self) -> Weights:
            return without_masks(self.model.stacks()) if self.method.masks else self.model.stacks()

        def describe(self) -> dict[str, Any]:
            return {"direction": next(own for name, own in self.model.stacks().items() if name.endswith(DIRECTION))}
