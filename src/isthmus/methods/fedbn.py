"""Federated averaging of everything but batch normalisation."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import ClassVar

from torch import nn

from isthmus.errors import IsthmusError
from isthmus.federation.verbs import Federation
from isthmus.methods.base import Model, State
from isthmus.methods.fedper import FedPer
from isthmus.nn.weights import batch_norm_weights, initial_weights

log = logging.getLogger(__name__)


class FedBN(FedPer):
    """FedBN (Li et al. 2021), Algorithm 1: all parties share a model except its batch normalisation.

    Parties whose features differ in location and scale normalise them by statistics of their own, so that the shared
    layers see similar inputs. Weights, biases and running statistics of batch normalisation never leave their party.

    Party:  (w, b_k) <- (w, b_k) - step(grad F_k(w, b_k)), from w_t and its own b_k
    Server: w_{t+1} = sum_k (n_k / n) w_k, n_k the training items (weighting)

    Layers of batch normalisation are found by their type, whatever they are called. An encoder with them is `gin` with
    `norm = true`; without any, FedBN is FedAvg, and the run says so. A party that has not trained yet has the initial
    ones.
    """

    name: ClassVar[str] = "fedbn"
    only_trains: ClassVar[bool] = True
    typed: ClassVar[bool] = True

    def own(self, module: nn.Module) -> tuple[str, ...]:
        return batch_norm_weights(module)

    def check(self, module: nn.Module) -> None:
        if len(self.own(module)) == len(initial_weights(module)):
            raise IsthmusError(f"method '{self.name}': all of the model is batch normalisation, nothing is shared")

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        if not self.own(model.module):
            log.warning(
                "method '%s': the model has no batch normalisation, so this is FedAvg: use --encoder gin "
                "--set model.norm=true, or a model of your own with such layers",
                self.label,
            )
        yield from super().server(federation, model, state)
