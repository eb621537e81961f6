"""Parties share what they learn from structure, and keep what they learn from features."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from isthmus.errors import IsthmusError
from isthmus.methods.fedper import FedPer
from isthmus.nn.structure import StructureChannel
from isthmus.nn.weights import initial_weights


class FedStar(FedPer):
    """FedStar (Tan et al. 2023), Algorithm 1: parties share the layers that read structure, and no others.

    Graphs of different domains, such as molecules and social networks, have other features and classes, but degrees and
    random walks mean the same in all. So the model has two channels (encoder `two-channel`): the first, with weights s,
    reads structure alone; the second, with weights h, reads features and the first. Only s is averaged.

    Party:  (s_k, h_k) <- (s_k, h_k) - step(grad F_k(s_k, h_k)), s_k from s_t
    Server: s_{t+1} = sum_k (n_k / n) s_k, n_k the training items (weighting)

    The server reads the sum of the s_k; all other weights stay at their party. The paper trains for 200 rounds of
    one epoch, with Adam, learning rate 0.001 and batches of 128 graphs.
    """

    name: ClassVar[str] = "fedstar"
    only_trains: ClassVar[bool] = True
    encoder: ClassVar[str] = "two-channel"

    @classmethod
    def rate_for(cls, lr: float) -> float:
        return min(lr, 0.003)

    def own(self, module: nn.Module) -> tuple[str, ...]:
        shared = structure_weights(module)
        return tuple(name for name in initial_weights(module) if name not in shared)

    def check(self, module: nn.Module) -> None:
        if not structure_weights(module):
            raise IsthmusError(
                f"method '{self.name}' shares layers that read structure alone, which this model lacks: use the encoder"
                f" {self.encoder}, or give your model an isthmus.nn.structure.StructureChannel"
            )


def structure_weights(module: nn.Module) -> tuple[str, ...]:
    """Names of the weights (as in `initial_weights`) of all structure channels in a model."""
    channels = [f"{path}." for path, part in module.named_modules() if isinstance(part, StructureChannel)]
    return tuple(name for name in initial_weights(module) if name.startswith(tuple(channels)))
