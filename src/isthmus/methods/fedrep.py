"""A shared representation, learned after each party has fitted its head to it."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from isthmus.methods.fedper import FedPer
from isthmus.methods.training import LocalTraining
from isthmus.nn.weights import body_weights, head_weights


class FedRep(FedPer):
    """FedRep (Collins et al. 2021), Algorithm 1: heads first, then one step towards a common representation.

    As in FedPer, the body b is shared and each party has a head h_k of its own. But the head is fitted to the body that
    came before the body moves, so that the body learns what suits fitted heads.

    Party:  h_k <- h_k - step(grad_h F_k(b_t, h_k)) for head_epochs, b_t fixed;
            b_k <- b_t - step(grad_b F_k(b_t, h_k)) for local.epochs, h_k fixed
    Server: b_{t+1} = sum_k (n_k / n) b_k

    What is fixed gets no gradient and no weight decay, and its running statistics stay as they are. The paper averages
    bodies evenly (`weighting = "even"`); here they count by training items, as in FedAvg.
    """

    name: ClassVar[str] = "fedrep"
    typed: ClassVar[bool] = True
    only_trains: ClassVar[bool] = True

    head_epochs: int = Field(10, ge=1)
    """Passes over the training items that fit the head, before the body moves."""
    local: LocalTraining = LocalTraining(epochs=1)
    """Training of the body at the parties; the head is trained with the same options but for the epochs."""

    def epochs_per_call(self) -> int:
        return self.head_epochs + self.local.epochs

    class AtParty(FedPer.AtParty):
        method: FedRep

        def learn(self) -> None:
            """Train the head, then the body."""
            module, local, epochs = self.model.module, self.method.local, self.method.head_epochs
            head = local.model_copy(update={"epochs": epochs})
            head.fit(self, self.task.loss, only=head_weights(module))
            local.fit(self, self.task.loss, only=body_weights(module), first_epoch=epochs)
