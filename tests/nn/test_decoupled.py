"""Encoders whose propagation has no weights give what their papers' equations say; other laws: test_encoders.py."""

import pytest
import torch

from helpers import CLASSES, FEATURES, make_parties, plain_output
from isthmus.data.cohort import Cohort
from isthmus.nn import per_party
from isthmus.nn.diffusion import Diffusion
from isthmus.nn.encoders import Encoder


def build(name, options):
    torch.manual_seed(0)
    return Encoder.named(name)(hidden=8, **options).build(FEATURES, CLASSES, "node").eval()


def test_gbp_sums_decaying_hops_of_the_features_under_its_own_normalisation():
    module = build("gbp", {"layers": 1, "hops": 2, "alpha": 0.3, "r": 0.2})
    graph = make_parties("node")[0].graph
    nodes = graph.num_nodes
    a = torch.zeros(nodes, nodes).index_put((graph.edge_index[1], graph.edge_index[0]), torch.ones(()), accumulate=True)
    a = a + torch.eye(nodes)
    degree = a.sum(1)
    matrix = degree.pow(0.2 - 1).diag() @ a @ degree.pow(-0.2).diag()
    hops = [0.3 * graph.x, 0.3 * 0.7 * matrix @ graph.x, 0.3 * 0.49 * matrix @ matrix @ graph.x]
    torch.testing.assert_close(plain_output(module, graph), module.perceptron(sum(hops)), rtol=1e-4, atol=1e-5)


def test_gprgnn_starts_at_personalised_pagerank():
    gpr = build("gprgnn", {"hops": 4, "alpha": 0.2})
    appnp = build("appnp", {"hops": 4, "alpha": 0.2})
    appnp.perceptron = gpr.perceptron
    graph = make_parties("node", weighted=True)[1].graph
    torch.testing.assert_close(plain_output(gpr, graph), plain_output(appnp, graph), rtol=1e-5, atol=1e-5)


def test_lightgcn_averages_the_hops_of_its_embedding():
    module = build("lightgcn", {"hops": 2})
    graph = make_parties("node")[1].graph
    hops = [module.embed(graph.x)]
    for conv in module.convs:
        hops.append(conv(hops[-1], graph.edge_index))
    torch.testing.assert_close(plain_output(module, graph), module.head(torch.stack(hops).mean(0)))


@pytest.mark.parametrize(("kept", "due"), [(per_party.MOST_KEPT, 2), (0, 4)])
@pytest.mark.parametrize("name", ["gbp", "gprgnn", "gamlp"])
def test_features_are_diffused_once_for_all_passes_and_only_training_items_are_read(name, kept, due, monkeypatch):
    options = {"first": "propagate"} if name == "gprgnn" else {}
    cohort = Cohort(make_parties("node", weighted=True))
    model = per_party.per_party(build(name, options), len(cohort.parties))
    training, rows = cohort.around_training(model.reach, trims=model.trims)
    expected = model(cohort.block)  # which also compares the ways to run the model
    monkeypatch.setattr(per_party, "MOST_KEPT", kept)
    model._diffused.clear()
    calls, diffuse = [], Diffusion.diffuse
    monkeypatch.setattr(Diffusion, "diffuse", lambda self, *given: calls.append(self) or diffuse(self, *given))
    for _ in range(2):
        assert torch.equal(model(cohort.block), expected)
        assert rows is None
        torch.testing.assert_close(model(training), expected[cohort.masks["train"]])
    assert len(calls) == due
