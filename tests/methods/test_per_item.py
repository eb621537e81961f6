"""Gradients of single items, against one model after another on one item after another."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.func import functional_call

from helpers import make_graph_parties, make_node_parties
from isthmus.data.cohort import Cohort
from isthmus.federation.private import PrivateItems
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.per_item import ItemGradients
from isthmus.nn.encoders import Encoder
from isthmus.privacy.items import ItemPlan
from isthmus.privacy.options import ItemPrivacy
from isthmus.study.setup import module_for, task_for

CLIP = 0.2


def site_of(level, model, rate=1.0, epsilon=1e9, key=None, **options):
    parties = (make_graph_parties() if level == "graph" else make_node_parties())[:3]
    task = task_for(parties)
    module = module_for(Encoder.named(model)(hidden=6, dropout=0.0, **options), parties, task, 0)
    plan = ItemPlan.of(ItemPrivacy(epsilon=epsilon, clip=CLIP, rate=rate), 1, 1)
    private = PrivateItems(plan, ("train",))
    site = FedAvg(local={"epochs": 1}).site(parties, task, module, seed=3, private=private, noise_key=key)
    return site, plan, module


def gradients_of(site, plan, epoch=0):
    """The gradients of a step by weight, `[parties, ...]`, from weights that differ between parties."""
    with site.asked():
        noise = torch.Generator().manual_seed(1)
        stacks = {
            name: weight + torch.rand(len(site.cohort), *weight.shape, generator=noise) / 3
            for name, weight in site.model.initial.items()
        }
        site.model.load(stacks)
        gradients = ItemGradients(site, plan, site.task.loss, None)
        leaves = site.model.start_training(gradients.outline(), [True] * len(site.cohort), touched_rows=False)
        found = gradients.of_step(leaves, epoch, 0)
        return stacks, {leaf.name: each for leaf, each in zip(leaves, found, strict=True)}


def single(party, at):
    """The input of a model for one item."""
    graph = party.graph
    if party.level == "node":
        return {"x": graph.x.to_dense()[at : at + 1], "edge_index": torch.empty(2, 0, dtype=torch.long)}
    nodes = (graph.batch == at).nonzero().squeeze(1)
    first = int(nodes[0])
    inside = (graph.edge_index[0] >= first) & (graph.edge_index[0] <= int(nodes[-1]))
    batch = {"edge_weight": None, "batch": torch.zeros(len(nodes), dtype=torch.long), "batch_size": 1}
    return {"x": graph.x.to_dense()[nodes], "edge_index": graph.edge_index[:, inside] - first, **batch}


def literal(site, module, stacks, chosen):
    """Sums of clipped gradients by weight, one item after another."""
    sums = {name: torch.zeros_like(stack, dtype=torch.float64) for name, stack in stacks.items()}
    for at, party in enumerate(site.hosted.parties):
        for item in chosen[at]:
            weights = {name: stack[at].clone().requires_grad_() for name, stack in stacks.items()}
            output = functional_call(module, weights, kwargs=single(party, item))
            loss = torch.nn.functional.cross_entropy(output, party.graph.y[item : item + 1])
            slopes = [slope.double() for slope in torch.autograd.grad(loss, list(weights.values()))]
            norm = math.sqrt(sum(float(slope.square().sum()) for slope in slopes))
            for name, slope in zip(weights, slopes, strict=True):
                sums[name][at] += slope * min(1.0, CLIP / norm)
    return sums


CASES = [("graph", "gin"), ("graph", "gcn"), ("graph", "gat"), ("node", "mlp")]


@pytest.mark.parametrize(("level", "model"), CASES)
def test_a_step_is_the_mean_of_the_clipped_gradients_of_items(level, model):
    site, plan, module = site_of(level, model)
    stacks, found = gradients_of(site, plan)
    items = [party.train.nonzero().squeeze(1).tolist() for party in site.hosted.parties]
    due = literal(site, module, stacks, items)
    for name, sums in due.items():
        for at, own in enumerate(items):
            assert torch.allclose(found[name][at].double() * len(own), sums[at], atol=3e-5), name
    assert max(float(each.abs().max()) for each in due.values()) > 0.05


def test_a_step_reads_the_items_that_it_samples(monkeypatch):
    site, plan, module = site_of("graph", "gin")
    plan = replace(plan, options=ItemPrivacy(epsilon=1e9, clip=CLIP, rate=0.5))
    drawn = []

    def sample(self, count, bits):
        drawn.append(bits.words(count) < np.uint64(2**63))
        return drawn[-1]

    monkeypatch.setattr(ItemPlan, "sample", sample)
    stacks, found = gradients_of(site, plan)
    items = [party.train.nonzero().squeeze(1) for party in site.hosted.parties]
    due = literal(
        site, module, stacks, [own[torch.from_numpy(on)].tolist() for own, on in zip(items, drawn, strict=True)]
    )
    assert 0 < sum(on.sum() for on in drawn) < sum(map(len, items))
    for name, sums in due.items():
        for at, own in enumerate(items):
            assert torch.allclose(found[name][at].double() * 0.5 * len(own), sums[at], atol=3e-5), name


def test_small_pieces_of_a_step_give_the_same(monkeypatch):
    site, plan, _ = site_of("graph", "gin", epsilon=5.0)
    _, whole = gradients_of(site, plan)
    monkeypatch.setattr("isthmus.methods.per_item.AT_ONCE", 1)
    _, pieces = gradients_of(site, plan)
    assert all(torch.allclose(whole[name], pieces[name], atol=1e-6) for name in whole)


def test_noise_and_samples_are_of_the_partys_key_and_of_the_step():
    (one, plan, _), (other, _, _) = (site_of("node", "mlp", epsilon=1.0, key=bytes([at] * 32)) for at in (1, 2))
    mine, again = gradients_of(one, plan)[1], gradients_of(one, plan)[1]
    name = next(iter(mine))
    assert torch.equal(mine[name], again[name])
    assert not torch.allclose(mine[name], gradients_of(other, plan)[1][name], atol=1e-4)
    assert not torch.allclose(mine[name], gradients_of(one, plan, epoch=1)[1][name], atol=1e-4)
    with one.asked():
        one.hosted.y[one.hosted.masks["train"]] = 0
    changed = gradients_of(one, plan)[1][name] - mine[name]
    assert float(changed.std()) > plan.multiplier * CLIP / max(Cohort.counts(one.hosted, "train").tolist())
