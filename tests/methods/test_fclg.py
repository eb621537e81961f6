"""FCLG against Algorithm 1, graph by graph."""

import copy

import pytest
import torch
from torch.nn import functional as F
from unlabelled_runs import SGD, method, run

from helpers import make_graph_parties
from isthmus.data.views import add_diffusion_view
from isthmus.methods.fclg import FCLG
from isthmus.nn.encoders import Encoder, split_views
from isthmus.testing import check_method, small_parties

SMALL_STEPS = {**SGD, "lr": 1e-4}
"""As printed, losses of sums over nodes are steep."""


class Literal:
    """One party's training, with the batches that it drew handed in."""

    def __init__(self, options, model, party):
        self.options, self.model = options, copy.deepcopy(model)
        self.graphs = []
        seen = add_diffusion_view(party, restart=options.restart, threshold=options.threshold).graph
        for at in range(party.items):
            nodes = (seen.batch == at).nonzero().flatten()
            here = seen.batch[seen.edge_index[0]] == at
            edges = split_views(seen.edge_index[:, here] - nodes[0], seen.edge_weight[here])
            matrices = [
                torch.zeros(len(nodes), len(nodes)).index_put_((index[1], index[0]), weight, accumulate=True)
                for index, weight in edges
            ]
            self.graphs.append((seen.x[nodes].to_dense(), matrices))

    def encoded(self, model, at, view):
        """H and U: every layer's output side by side, summed over the nodes."""
        h, matrices = self.graphs[at]
        found = []
        for conv in model.body.convs:
            h = conv.nn((1 + conv.itself.eps) * h + matrices[view] @ h).relu()
            found.append(h)
        nodes = torch.cat(found, dim=1)
        return nodes, nodes.sum(0)

    def sized(self, each):
        return F.normalize(each, dim=-1) if self.options.unit else each

    def intra(self, u, v):
        """(5) and (6)."""
        u, v = (self.sized(torch.stack(each)) for each in (u, v))
        total, tau, count = 0.0, self.options.temperature, len(u)
        both = torch.cat([u, v])
        for i in range(count):
            for a, own, me in ((u[i], v[i], i), (v[i], u[i], count + i)):
                others = [torch.exp(a @ z / tau) for at, z in enumerate(both) if at != me]
                total = total + torch.log(sum(others) / torch.exp(a @ own / tau))
        return total / (2 * count)

    def inter(self, now, server, own):
        """(7) and (8) of one row, or (2), or (3)."""
        tau = self.options.inter_temperature
        cos = F.cosine_similarity
        if self.options.inter == "kl":
            s, c = (self.sized(each).div(tau).softmax(0) for each in (server, now))
            return (s * (s.log() - c.log())).sum()
        if self.options.inter == "mse":
            return (self.sized(now) - self.sized(server)).square().sum()
        near, past = torch.exp(cos(now, server, 0) / tau), torch.exp(cos(now, own, 0) / tau)
        return torch.log((near + past) / near)

    def fit(self, batches):
        server, previous = copy.deepcopy(self.model), None
        on_nodes = self.options.inter_on == "nodes"
        for of_epoch in batches:
            start = copy.deepcopy(self.model)
            for batch in of_epoch:
                here = [[self.encoded(self.model, at, view) for at in batch] for view in (0, 1)]
                loss = self.intra(*([u for _, u in each] for each in here))
                if self.options.inter in ("kl", "mse") or (self.options.inter == "contrast" and previous):
                    rows = []
                    for at, (h, u) in zip(batch, here[0], strict=True):
                        old, own = self.encoded(server, at, 0), self.encoded(previous or server, at, 0)
                        which = zip(h, old[0], own[0], strict=True) if on_nodes else [(u, old[1], own[1])]
                        rows += [self.inter(now, s.detach(), c.detach()) for now, s, c in which]
                    loss = loss + sum(rows) / len(rows)
                self.model.zero_grad()
                loss.backward()
                with torch.no_grad():
                    for weight in self.model.parameters():
                        weight -= self.options.local.lr * weight.grad
            previous = copy.deepcopy(self.model)
            del start


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"inter_on": "nodes"},
        {"inter": "none"},
        {"inter": "kl"},
        {"inter": "mse", "inter_on": "nodes"},
        {"unit": False, "local": SMALL_STEPS},
        {"unit": False, "inter": "kl", "local": SMALL_STEPS},
        {"unit": False, "inter": "mse", "local": SMALL_STEPS},
    ],
    ids=[
        "fclg",
        "fclg-h",
        "intra-fedavg",
        "intra-kl",
        "intra-mse-h",
        "printed",
        "intra-kl-printed",
        "intra-mse-printed",
    ],
)
@pytest.mark.thinned(9)
def test_rounds_are_those_of_algorithm_1(options):
    parties, options = make_graph_parties(), method(rounds=2, inter_temperature=0.3, **options)
    job = run(options, parties)
    drawn = {}

    site = job.transport.sites[0]
    plain = site.read

    def read(chosen, epoch, at):
        drawn.setdefault(tuple(site.answered), []).append((epoch, chosen.clone()))
        return plain(chosen, epoch, at)

    site.read = read
    weights = dict(job.state.save())
    found = job.go()
    assert not weights.get("weights")
    model = copy.deepcopy(job.module)
    for steps in drawn.values():
        results, sizes = [], []
        first = 0
        for party in parties:
            literal = Literal(options, model, party)
            inside = [
                (epoch, (chosen[(chosen >= first) & (chosen < first + party.items)] - first).tolist())
                for epoch, chosen in steps
            ]
            literal.fit([[c for e, c in inside if e == epoch and c] for epoch in range(SGD["epochs"])])
            results.append(dict(literal.model.named_parameters()))
            sizes.append(int(party.train.sum()))
            first += party.items
        mean = {
            name: sum(n * each[name].detach() for n, each in zip(sizes, results, strict=True)) / sum(sizes)
            for name in results[0]
        }
        model.load_state_dict(mean)
    for name, weight in model.named_parameters():
        torch.testing.assert_close(found.weights[name], weight.detach(), rtol=1e-4, atol=1e-5)


def test_contrast_between_models_needs_an_epoch_before():
    parties = make_graph_parties()
    for epochs, same in ((1, True), (2, False)):
        local = {**SGD, "epochs": epochs}
        with_it, without = (run(method(local=local, inter=how), parties).go().weights for how in ("contrast", "none"))
        assert all(torch.equal(with_it[name], without[name]) for name in with_it) == same


def test_variants_learn_other_weights():
    found = {}
    for options in ({}, {"inter_on": "nodes"}, {"inter": "none"}, {"inter": "kl"}, {"inter": "mse"}):
        weights = run(method(**options), make_graph_parties()).go().weights
        found[str(options)] = torch.cat([each.flatten() for each in weights.values()])
    values = list(found.values())
    assert not any(torch.equal(a, b) for at, a in enumerate(values) for b in values[:at])


def test_graphs_are_evaluated_as_they_are():
    parties = make_graph_parties()
    job = run(method(), parties)
    found = job.go()
    module = job.module
    module.load_state_dict(found.weights)
    graph = parties[0].graph
    with torch.no_grad():
        _, due = module(graph.x.to_dense(), graph.edge_index, None, graph.batch, parties[0].items)
    site = job.transport.sites[0]
    with site.asked((0,)):
        torch.testing.assert_close(site.predict({"weights": found.weights}), due.squeeze(1))


@pytest.mark.slow
def test_fclg_with_nodes_and_another_trainer_conforms():
    local = {**SGD, "epochs": 2, "lr": 0.01}
    options = {"rounds": 3, "inter_on": "nodes", "trainer": {"name": "scaffold"}, "local": local}
    encoder = Encoder.named("gin")(hidden=8, weighted=True)
    check_method(FCLG.read(options, "fclg"), small_parties("graph"), encoder=encoder)
