"""Pieces of personalised methods written out in plain PyTorch, one party after another."""

import copy

import torch

from helpers import CLASSES, FEATURES, plain_fit
from isthmus.methods.training import LocalTraining
from isthmus.nn.encoders import Encoder
from isthmus.nn.weights import initial_weights
from isthmus.study.loop import Run
from isthmus.tasks.classification import GraphClassification, NodeClassification

ADAMW = LocalTraining(epochs=3, lr=0.02, weight_decay=0.1)
ENCODERS = {"gcn": {}, "gin": {"norm": True}, "two-channel": {}}


def built(encoder, level):
    torch.manual_seed(0)
    return Encoder.named(encoder)(hidden=8, dropout=0.0, **ENCODERS[encoder]).build(FEATURES, CLASSES, level)


def run(method, module, parties, **options):
    task = (NodeClassification if parties[0].level == "node" else GraphClassification)(classes=CLASSES)
    return Run(method, parties, task, module, seed=3, **options).go()


def weights_of(module):
    return {name: weight.clone() for name, weight in initial_weights(module).items()}


def fitted(module, weights, party, options, *, only=None, extra=None):
    """The weights after local training from `weights`; of those that are not in `only` none moves."""
    module = copy.deepcopy(module)
    module.load_state_dict(weights, strict=False)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(only is None or name in only)
    module, _ = plain_fit(module, party, options, extra=extra)
    found = weights_of(module)
    return found if only is None else {name: found[name] if name in only else weights[name] for name in found}


def mean(parties, weights):
    """The mean of weights that counts parties by their training items."""
    counts = [int(party.train.sum()) for party in parties]
    return {
        name: sum(n * own[name] for n, own in zip(counts, weights, strict=True)) / sum(counts) for name in weights[0]
    }
