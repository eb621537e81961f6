"""FedProto against its algorithm in plain PyTorch."""

import copy

import pytest
import torch
from personal import ADAMW, built, run, weights_of
from torch.nn import functional as F

from helpers import CLASSES, assert_close, make_parties, plain_optimizer, plain_output
from isthmus.errors import IsthmusError
from isthmus.methods.fedproto import FedProto
from isthmus.nn.weights import head_of
from isthmus.testing import check_method, small_parties

pytestmark = pytest.mark.usefixtures("double_precision")


def embedded(module, graph):
    """Outputs of a model, and what its head receives."""
    inputs = []
    hook = module.get_submodule(head_of(module)).register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    output = plain_output(module, graph)
    hook.remove()
    return output, inputs[0]


def literal(module, parties, rounds, strength):
    models, prototypes = [copy.deepcopy(module) for _ in parties], {}
    for _ in range(rounds):
        means, counts = [], []
        for model, party in zip(models, parties, strict=True):
            at, y = party.train, party.graph.y[party.train]
            optimizer = plain_optimizer(ADAMW, model.train())
            for _ in range(ADAMW.epochs):
                optimizer.zero_grad()
                output, h = embedded(model, party.graph)
                loss = F.cross_entropy(output[at], y)
                for j in set(y.tolist()) & prototypes.keys():
                    loss = loss + strength * (h[at][y == j].mean(0) - prototypes[j]).square().sum()
                loss.backward()
                optimizer.step()
            with torch.no_grad():
                h = embedded(model.eval(), party.graph)[1][at]
            means.append({j: h[y == j].mean(0) for j in set(y.tolist())})
            counts.append({j: int((y == j).sum()) for j in means[-1]})
        for j in range(CLASSES):
            holders = [at for at, own in enumerate(means) if j in own]
            prototypes.pop(j, None)
            if len(holders) >= 2:
                total = sum(counts[at][j] for at in holders)
                prototypes[j] = sum(counts[at][j] * means[at][j] for at in holders) / total
    return models, prototypes


@pytest.mark.parametrize("level", ["node", "graph"])
def test_a_run_is_the_papers_algorithm(level):
    module, parties = built("gcn", level), make_parties(level)
    method = FedProto(rounds=3, select="last", local=ADAMW, strength=0.5)
    found = run(method, module, make_parties(level, sparse=True))
    models, prototypes = literal(module, parties, 3, 0.5)
    hits = items = 0
    for model, party in zip(models, parties, strict=True):
        assert_close(found.models["parties"][party.name], weights_of(model), within=1e-8)
        with torch.no_grad():
            h = embedded(model.eval(), party.graph)[1][party.test]
        classes = sorted(prototypes)
        nearest = torch.stack([(h - prototypes[j]).square().sum(1) for j in classes]).argmin(0)
        hits += int((torch.tensor(classes)[nearest] == party.graph.y[party.test]).sum())
        items += int(party.test.sum())
    assert found.metrics["test_accuracy"] == pytest.approx(hits / items)
    assert "shared" not in found.models


def test_a_class_of_too_few_holders_has_no_prototype():
    found = run(FedProto(rounds=2, min_holders=5), built("gcn", "node"), make_parties("node"))
    assert found.metrics["test_accuracy"] <= 1  # nothing is opened, and the run goes on
    assert all("weights" not in row["fields"] for row in found.ledger.rows())


def test_labels_of_several_tasks_are_refused_in_one_line():
    with pytest.raises(IsthmusError, match="'fedproto' is for items of one class each"):
        check_method(FedProto(rounds=1), small_parties("graph", labels="multilabel"), checks=["same_seed_same_result"])
