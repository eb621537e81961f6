"""GCFL and GCFL+ written out in plain PyTorch, one party after another."""

import itertools

import torch
from personal import fitted, mean, weights_of

from helpers import make_parties
from isthmus.methods.training import LocalTraining

SGD = LocalTraining(epochs=2, optimizer="sgd", lr=0.1)
SIZES = {"node": {"nodes": (20, 31, 25, 17, 28, 22)}, "graph": {"graphs": (8, 9, 12, 7, 10, 11)}}
SPLITTING = {"eps1": 1e9, "eps2": 0.0, "local": SGD, "select": "last"}
"""Options with which a cluster of three or more parties is split as soon as it may be."""


def six_parties(level, **options):
    return make_parties(level, **SIZES[level], **options)


def cheapest_cut(similarity):
    """The cheapest of all ways to cut a complete graph in two."""
    count = len(similarity)
    others = [rest for size in range(count - 1) for rest in itertools.combinations(range(1, count), size)]
    sides = [[0, *rest] for rest in others]
    cost = {tuple(side): sum(similarity[i][j] for i in side for j in range(count) if j not in side) for side in sides}
    side = min(cost, key=cost.get)
    return [list(side), [at for at in range(count) if at not in side]]


def flat(module, weights):
    return torch.cat([weights[name].flatten() for name, _ in module.named_parameters()])


def written_out(method, module, parties, similarity, patience=0):
    """Clusters and the model of each party, as the paper has them; both halves start from the mean of the round.

    Arguments:
        similarity: of two parties, given their updates in all rounds since their cluster began.
        patience: rounds that a cluster must have existed for.
    """
    clusters = [(list(range(len(parties))), weights_of(module), 0)]
    updates = [[] for _ in parties]
    for at in range(1, method.rounds + 1):
        after = []
        for members, start, begun in clusters:
            trained = [fitted(module, start, parties[party], method.local) for party in members]
            for party, own in zip(members, trained, strict=True):
                updates[party].append(flat(module, own) - flat(module, start))
            shared = mean([parties[party] for party in members], trained)
            moved = (flat(module, shared) - flat(module, start)).norm()
            longest = max(updates[party][-1].norm() for party in members)
            late = at > method.warm_up and at - begun >= patience
            if len(members) > 2 and late and moved < method.eps1 and longest > method.eps2:
                alike = similarity([updates[party] for party in members])
                halves = cheapest_cut(alike)
                after += [([members[each] for each in half], shared, at) for half in halves]
            else:
                after.append((members, shared, begun))
        clusters = after
    models = {parties[party].name: weights for members, weights, _ in clusters for party in members}
    return [[parties[party].name for party in members] for members, *_ in clusters], models


def models_of(found):
    """By party the model that a run ends with."""
    of_groups = {party: found.models["groups"][name] for name, parties in found.groups.items() for party in parties}
    return of_groups | found.models.get("parties", {})
