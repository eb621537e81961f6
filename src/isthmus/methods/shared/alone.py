"""Training in one place: a server on its synthetic graph, an attacker on its own data."""

from __future__ import annotations

from torch import Tensor, nn

from isthmus.data.party import Party
from isthmus.federation.site import Site
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.training import Training
from isthmus.nn.weights import Weights
from isthmus.tasks.base import Task


def trained(
    module: nn.Module, weights: Weights, party: Party, task: Task, options: Training, seed: int
) -> tuple[Weights, Tensor]:
    """Train a model on one party's data, from `weights`; return its weights, and its outputs for all items."""
    site = Site(FedAvg(), [party], task, module, seed=seed)
    with site.asked():
        site.model.load(weights)
        options.fit(site, task.loss)
        found = {name: stack[0].clone() for name, stack in site.model.stacks().items()}
    return found, site.predict_all(found)
