"""Training in one place: a server's on a graph that it made, an attacker's on what it has."""

from __future__ import annotations

from torch import Tensor, nn

from isthmus.data.party import Party
from isthmus.federation.site import Site
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.training import LocalTraining
from isthmus.nn.weights import Weights
from isthmus.tasks.base import Task


def trained(
    module: nn.Module, weights: Weights, party: Party, task: Task, options: LocalTraining, seed: int
) -> tuple[Weights, Tensor]:
    """A model's weights after training on what one party holds, from `weights` on, and its outputs for all items."""
    site = Site(FedAvg(), [party], task, module, seed=seed)
    with site.asked():
        site.model.load(weights)
        options.fit(site, task.loss)
        found = {name: stack[0].clone() for name, stack in site.model.stacks().items()}
    return found, site.predict_all(found)
