"""Encoders whose propagation has no weights give what their papers' equations say; other laws: test_encoders.py."""

import torch

from helpers import CLASSES, FEATURES, make_parties, plain_output
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
