"""AdaFGL against its algorithm in plain PyTorch, with loops over nodes."""

from dataclasses import replace

import pytest
import torch
from personal import fitted, mean, run, weights_of
from torch.func import functional_call
from torch.nn import functional as F

from helpers import CLASSES, FEATURES, assert_close, make_node_parties
from isthmus.data.rows import to_dense
from isthmus.errors import IsthmusError
from isthmus.methods.adafgl import AdaFGL
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.training import LocalTraining
from isthmus.nn.adaptive import Adaptive
from isthmus.nn.draws import draws_of, seed_of, torch_seeded
from isthmus.nn.encoders import Encoder, Gcn

pytestmark = pytest.mark.usefixtures("double_precision")
SGD = LocalTraining(epochs=3, optimizer="sgd", lr=0.3)
OWN = LocalTraining(epochs=4, optimizer="sgd", lr=0.1, weight_decay=0.0)
SEED = 3  # that of `personal.run`
FORM = {"hidden": 8, "dropout": 0.0, "alpha": 0.3, "beta": 0.4, "threshold": 0.98, "hops": 2}
OPTIONS = {
    "width": 8, "dropout": 0.0, "alpha": 0.3, "beta": 0.4, "threshold": 0.98, "hops": 2, "personal_rounds": 2,
    "local": SGD, "personal": OWN, "select": "last",
}  # fmt: skip


def built(dropout=0.0):
    torch.manual_seed(0)
    return Gcn(hidden=8, dropout=dropout).build(FEATURES, CLASSES, "node")


def cosines(p):
    n = len(p)
    each = [
        [torch.cosine_similarity(p[i], p[j], dim=0) if i != j else p.new_zeros(()) for j in range(n)] for i in range(n)
    ]
    return torch.stack([torch.stack(row) for row in each])


def perceptron(weights, name, x):
    layers = sorted(int(each.split(".")[1]) for each in weights if each.startswith(name) and each.endswith("weight"))
    for at in layers:
        x = F.linear(x, weights[f"{name}.{at}.weight"], weights[f"{name}.{at}.bias"])
        x = x if at == layers[-1] else x.relu()
    return x


def repelled(e, relation):
    n, both = len(e), 0.4 * relation + 0.6 * cosines(e.softmax(1))
    middle, most = both.mean(), both.max()
    pulls, pushes = [], []
    for i in range(n):
        pull, push = e[i], torch.zeros_like(e[i])
        for j in range(n):
            gap = both[i, j] - middle
            if j != i and gap > 0:
                pull = pull + gap / (most - middle) * e[j]
            elif j != i:
                push = push - gap / middle * e[j]
        pulls.append(pull)
        pushes.append(push)
    return (torch.stack(pulls).softmax(1) - torch.stack(pushes).softmax(1) + e) / 2


class Party:
    """Step 2 of one party."""

    def __init__(self, module, shared, party):
        x, n = to_dense(party.graph.x), party.nodes
        self.party = party
        body = {name.removeprefix("body."): weight for name, weight in shared.items()}
        self.p = functional_call(module, body, (x, party.graph.edge_index)).softmax(1).detach()
        self.relation = cosines(self.p)
        a = 0.7 * (self.relation > 0.98).to(x.dtype) + torch.eye(n)
        for source, target in party.graph.edge_index.t().tolist():
            a[target, source] += 0.3
        d = torch.diag(a.sum(1) ** -0.5)
        self.x, self.hops = x, torch.cat([x, d @ a @ d @ x, d @ a @ d @ d @ a @ d @ x], dim=1)

    def outputs(self, own):
        h, of_hops = (perceptron(own, name, self.hops) for name in ("homophilous", "of_hops"))
        of_messages = repelled(perceptron(own, "messages", self.hops), self.relation)
        return h, perceptron(own, "of_features", self.x), of_hops, of_messages

    def fit(self, own):
        own = {name: weight.clone().requires_grad_() for name, weight in own.items()}
        optimizer, train = torch.optim.SGD([*own.values()], lr=OWN.lr), self.party.train
        for _ in range(OWN.epochs):
            optimizer.zero_grad()
            outputs = self.outputs(own)
            loss = sum(F.cross_entropy(each[train], self.party.graph.y[train]) for each in outputs)
            (loss + F.mse_loss(outputs[0].softmax(1), self.p)).backward()
            optimizer.step()
        return {name: weight.detach() for name, weight in own.items()}

    def score(self, answered):
        party = self.party
        items = party.train.nonzero().squeeze(1)
        order = draws_of(SEED, party.name).of_counts([answered]).of("hidden").order((len(items),))
        known, hidden = items[order][: len(items) // 2], items[order][len(items) // 2 :]
        start = torch.full((party.nodes, CLASSES), 1 / CLASSES)
        start[known] = F.one_hot(party.graph.y[known], CLASSES).to(start.dtype)
        a = torch.eye(party.nodes)
        for source, target in party.graph.edge_index.t().tolist():
            a[target, source] = 1.0
        d, y = torch.diag(a.sum(1) ** -0.5), start
        for _ in range(10):
            y = 0.5 * (d @ a @ d @ y) + 0.5 * start
        right = (y[hidden].argmax(1) == party.graph.y[hidden]).to(y.dtype)
        return right.mean() if len(items) > 1 else torch.tensor(0.5)

    def probabilities(self, own, score):
        h, *others = (each.softmax(1) for each in self.outputs(own))
        return score * (h + self.p) / 2 + (1 - score) * sum(others) / 3


def checked(parties, *, sparse_parties=None):
    module = built()
    found = run(AdaFGL(rounds=4, **OPTIONS), module, sparse_parties or parties)
    with torch_seeded(seed_of(SEED, "method")):
        start = weights_of(Adaptive(module, **FORM))
    shared = weights_of(module)
    for _ in range(2):
        shared = mean(parties, [fitted(module, shared, party, SGD) for party in parties])
    shared = {f"body.{name}": weight for name, weight in shared.items()}
    right = tested = 0
    for party in parties:
        own = {name: weight for name, weight in start.items() if not name.startswith("body.") and name != "score"}
        second, score = Party(module, shared, party), torch.tensor(-1.0)
        if bool(party.train.any()):
            score = second.score(5)
            for _ in range(2):
                own = second.fit(own)
        assert_close(found.models["parties"][party.name], {**shared, **own, "score": score}, within=1e-7)
        guess = (second.probabilities(own, score) if score >= 0 else second.p).argmax(1)
        right += int((guess == party.graph.y)[party.test].sum())
        tested += int(party.test.sum())
    assert found.metrics["test_accuracy"] == pytest.approx(right / tested)
    return found


def without_edges(party):
    graph = party.graph.clone()
    graph.edge_index = graph.edge_index[:, :0]
    return replace(party, graph=graph)


def test_a_run_is_the_papers_algorithm():
    checked(make_node_parties((13, 20, 5, 11)), sparse_parties=make_node_parties((13, 20, 5, 11), sparse=True))


def test_parties_without_training_or_test_nodes_or_edges_and_a_class_that_nobody_trains():
    parties = list(make_node_parties((13, 20, 6, 11, 1), untrained=(1,)))
    parties[0] = replace(parties[0], test=torch.zeros_like(parties[0].test))
    parties[3] = without_edges(parties[3])
    parties = [replace(party, train=party.train & (party.graph.y != 1)) for party in parties]
    assert sum(bool(party.train.any()) for party in parties) > 2
    checked(parties)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gcn", "gat", "gamlp"])
def test_a_party_has_the_same_bits_alone_and_side_by_side(name):
    torch.manual_seed(0)
    module = Encoder.named(name)(hidden=8).build(FEATURES, CLASSES, "node")
    parties = make_node_parties((23, 40, 5, 131, 29), untrained=(4,), weighted=True)
    method = AdaFGL(rounds=3, personal_rounds=2)
    together, alone = (run(method, module, parties, side_by_side=each) for each in (True, False))
    for party, own in together.models["parties"].items():
        assert all(torch.equal(weight, alone.models["parties"][party][at]) for at, weight in own.items())
    assert together.history == alone.history


def test_the_first_rounds_are_federated_averaging_and_parties_that_are_not_drawn_are_personal_too():
    parties = make_node_parties()
    found = run(AdaFGL(rounds=4, fraction=0.5, **OPTIONS), built(), parties)
    due = run(FedAvg(rounds=2, fraction=0.5, local=SGD, select="last"), built(), parties)
    assert_close(found.weights, {f"body.{name}": weight for name, weight in due.weights.items()}, within=1e-10)
    assert all(float(own["score"]) >= 0 for own in found.models["parties"].values())


def test_networks_of_their_own_never_leave():
    found = run(AdaFGL(rounds=4, **OPTIONS), built(), make_node_parties())
    calls = [call for call in found.ledger.entries if call.action != "evaluate"]
    assert [call.action for call in calls] == ["train", "train", "personalise", "personalise"]
    assert not any("homophilous" in call.fields or "score" in call.fields for call in calls)
    assert {size for call in calls[2:] for size in call.sent} == {min(size for call in calls for size in call.sent)}


def test_dropout_is_off_where_the_shared_model_predicts_and_models_are_scored():
    still = LocalTraining(optimizer="sgd", lr=1e-12, weight_decay=0.0)
    options = {**OPTIONS, "local": still, "personal": still}
    found, due = (
        run(AdaFGL(rounds=3, **{**options, "dropout": rate}), built(rate), make_node_parties()) for rate in (0.5, 0.0)
    )
    assert found.metrics == pytest.approx(due.metrics, abs=1e-9)


def test_large_parties_are_refused():
    with pytest.raises(IsthmusError, match=r"party 'party-1' has more than 30 nodes, .* raise largest"):
        run(AdaFGL(rounds=2, largest=30), built(), make_node_parties())
