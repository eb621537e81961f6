"""Every method against its paper's algorithm, written out in plain PyTorch: one party after another, by autograd."""

import copy

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data

from helpers import CLASSES, FEATURES, assert_close, make_parties, plain_fit
from isthmus.data.party import Party
from isthmus.methods.base import Method, State
from isthmus.methods.centralized import Centralized
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.feddyn import FedDyn
from isthmus.methods.fedopt import FedAdagrad, FedAdam, FedYogi
from isthmus.methods.fedprox import FedProx
from isthmus.methods.local import Local
from isthmus.methods.scaffold import Scaffold
from isthmus.methods.training import LocalTraining
from isthmus.nn.draws import generator
from isthmus.nn.encoders import Gcn, Gin
from isthmus.nn.weights import initial_weights
from isthmus.study.loop import Run
from isthmus.tasks.classification import GraphClassification, NodeClassification

pytestmark = pytest.mark.usefixtures("double_precision")
SEED, ROUNDS = 3, 3
ADAM = LocalTraining(optimizer="adam", epochs=2, lr=0.02)
SGD = LocalTraining(epochs=3, optimizer="sgd", lr=0.1)
MODELS = {"gcn": Gcn(hidden=8, dropout=0.0), "gin-with-statistics": Gin(hidden=8, dropout=0.0, norm=True)}


class Plain:
    """The parties as the papers see them: drawn by the server, trained from given weights, counted by their items."""

    def __init__(self, module, parties, method):
        self.module, self.parties, self.method = module, parties, method
        self.start = {name: weight.clone() for name, weight in initial_weights(module).items()}
        self.trained = [name for name, _ in module.named_parameters()]
        self.zeros = {name: torch.zeros_like(self.start[name]) for name in self.trained}
        self.answered = [0] * len(parties)

    def rounds(self):
        """The positions of the parties drawn, round after round."""
        count = max(1, round(self.method.fraction * len(self.parties)))
        for at in range(1, ROUNDS + 1):
            order = torch.randperm(len(self.parties), generator=generator(SEED, "sample", at))
            yield range(len(self.parties)) if count == len(self.parties) else sorted(order[:count].tolist())
            self.answered = [number + 1 for number in self.answered]  # all were asked to evaluate

    def train(self, at, weights, extra=None):
        """The weights of one party after local training, and its steps."""
        module = copy.deepcopy(self.module)
        module.load_state_dict(weights, strict=False)
        self.answered[at] += 1
        options = self.method.local
        module, steps = plain_fit(module, self.parties[at], options, seed=SEED, answered=self.answered[at], extra=extra)
        return {name: weight.clone() for name, weight in initial_weights(module).items()}, steps

    def mean(self, drawn, weights):
        """The mean by the method's weighting."""
        counts = {
            "train": [int(self.parties[at].train.sum()) for at in drawn],
            "size": [self.parties[at].items for at in drawn],
            "even": [1 for _ in drawn],
        }[self.method.weighting]
        return {
            name: sum(n * own[name] for n, own in zip(counts, weights, strict=True)) / sum(counts)
            for name in self.start
        }


def fedavg(plain):
    w = plain.start
    for drawn in plain.rounds():
        w = plain.mean(drawn, [plain.train(at, w)[0] for at in drawn])
    return w


def fedprox(plain):
    w, mu = plain.start, plain.method.mu
    for drawn in plain.rounds():

        def proximal(module, w=w):
            return mu / 2 * sum((p - w[name]).square().sum() for name, p in module.named_parameters())

        w = plain.mean(drawn, [plain.train(at, w, proximal)[0] for at in drawn])
    return w


def feddyn(plain):
    theta, alpha, parties = plain.start, plain.method.alpha, len(plain.parties)
    gradients = [plain.zeros for _ in range(parties)]
    h = plain.zeros
    for drawn in plain.rounds():
        mine = []
        for at in drawn:

            def dynamic(module, g=gradients[at], theta=theta):
                named = dict(module.named_parameters())
                linear = sum((g[name] * p).sum() for name, p in named.items())
                return -linear + alpha / 2 * sum((p - theta[name]).square().sum() for name, p in named.items())

            mine.append(plain.train(at, theta, dynamic)[0])
            gradients[at] = {n: g - alpha * (mine[-1][n] - theta[n]) for n, g in gradients[at].items()}
        h = {n: old - alpha / parties * sum(own[n] - theta[n] for own in mine) for n, old in h.items()}
        theta = plain.mean(drawn, mine)
        theta = theta | {n: theta[n] - h[n] / alpha for n in h}
    return theta


def fedopt(plain):
    x, o = plain.start, plain.method
    m, v = plain.zeros, {name: zero + o.tau**2 for name, zero in plain.zeros.items()}
    for drawn in plain.rounds():
        mean = plain.mean(drawn, [plain.train(at, x)[0] for at in drawn])
        delta = {name: mean[name] - x[name] for name in m}
        m = {n: o.beta1 * m[n] + (1 - o.beta1) * d for n, d in delta.items()}
        if o.name == "fedadagrad":
            v = {n: v[n] + d**2 for n, d in delta.items()}
        elif o.name == "fedadam":
            v = {n: o.beta2 * v[n] + (1 - o.beta2) * d**2 for n, d in delta.items()}
        else:
            v = {n: v[n] - (1 - o.beta2) * d**2 * torch.sign(v[n] - d**2) for n, d in delta.items()}
        x = mean | {n: x[n] + o.server_lr * m[n] / (v[n].sqrt() + o.tau) for n in m}
    return x


def scaffold(plain):
    x, lr, parties = plain.start, plain.method.local.lr, len(plain.parties)
    c, controls = plain.zeros, [plain.zeros for _ in plain.parties]
    for drawn in plain.rounds():
        ys, changes = [], []
        for at in drawn:

            def corrected(module, ci=controls[at], c=c):
                return sum(((c[name] - ci[name]) * y).sum() for name, y in module.named_parameters())

            y, steps = plain.train(at, x, corrected)
            ys.append(y)
            after = controls[at]
            if steps:
                after = {n: controls[at][n] - c[n] + (x[n] - y[n]) / (steps * lr) for n in c}
            changes.append({n: after[n] - controls[at][n] for n in c})
            controls[at] = after
        mean = plain.mean(drawn, ys)
        x = mean | {n: x[n] + plain.method.server_lr * (mean[n] - x[n]) for n in c}
        share = len(drawn) / parties
        c = {n: c[n] + share * sum(change[n] for change in changes) / len(drawn) for n in c}
    return x


METHODS = {
    "fedavg": (FedAvg, fedavg, {"local": ADAM}),
    "fedprox": (FedProx, fedprox, {"local": ADAM, "mu": 0.5}),
    "feddyn": (FedDyn, feddyn, {"local": SGD, "alpha": 0.1}),
    "fedadagrad": (FedAdagrad, fedopt, {"local": ADAM}),
    "fedadam": (FedAdam, fedopt, {"local": ADAM}),
    "fedyogi": (FedYogi, fedopt, {"local": ADAM, "tau": 0.01}),
    "scaffold": (Scaffold, scaffold, {"local": SGD, "server_lr": 0.7}),
}


def built(encoder, level):
    torch.manual_seed(0)
    return encoder.build(FEATURES, CLASSES, level)


def run(method, module, parties):
    kind = NodeClassification if parties[0].level == "node" else GraphClassification
    return Run(method, parties, kind(classes=CLASSES), module, seed=SEED).go()


def assert_as_written(name, level="node", model="gcn", untrained=(), **options):
    kind, literal, given = METHODS[name]
    method = kind(rounds=ROUNDS, select="last", **given | options)
    module = built(MODELS[model], level)
    found = run(method, module, make_parties(level, sparse=True, untrained=untrained))
    due = literal(Plain(module, make_parties(level, untrained=untrained), method))
    assert_close(found.weights, due, within=1e-8)


@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.75], ids=["all", "two-of-four", "three-of-four"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("level", ["node", "graph"])
@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_its_papers_algorithm(name, level, model, fraction):
    assert_as_written(name, level, model, fraction=fraction)


@pytest.mark.parametrize("name", METHODS)
def test_minibatches_are_drawn_anew_in_every_round(name):
    local = METHODS[name][2]["local"].model_copy(update={"batch_size": 4})
    assert_as_written(name, local=local, fraction=0.75)


@pytest.mark.parametrize("name", METHODS)
def test_a_party_without_training_items_takes_part_without_moving(name):
    assert_as_written(name, untrained=(1,))


@pytest.mark.parametrize("weighting", ["train", "size", "even"])
@pytest.mark.parametrize("name", METHODS)
def test_parties_count_by_the_chosen_weighting(name, weighting):
    assert_as_written(name, "graph", weighting=weighting, fraction=0.75)


def test_weightings_differ():
    found = [
        run(FedAvg(rounds=1, weighting=each, local=ADAM), built(MODELS["gcn"], "node"), make_parties("node")).weights
        for each in ("train", "size", "even")
    ]
    bias = "convs.1.bias"
    assert not torch.equal(found[0][bias], found[1][bias])
    assert not torch.equal(found[1][bias], found[2][bias])


@pytest.mark.parametrize("level", ["node", "graph"])
@pytest.mark.parametrize("model", MODELS)
def test_local_trains_every_party_on_with_no_word_of_the_others(model, level):
    module = built(MODELS[model], level)
    method = Local(rounds=ROUNDS, select="last", local=ADAM)
    found = run(method, module, make_parties(level, sparse=True)).weights
    for party in make_parties(level):
        alone = module
        for _ in range(ROUNDS):
            alone, _ = plain_fit(alone, party, ADAM)
        assert_close(found[party.name], initial_weights(alone), within=1e-8)


def pooled(parties):
    """All graphs in one, by hand."""
    masks = {split: torch.cat([getattr(party, split) for party in parties]) for split in ("train", "val", "test")}
    if parties[0].level == "graph":
        graphs = [party.graph[at] for party in parties for at in range(party.items)]
        return Party("pooled", Batch.from_data_list(graphs), "graph", **masks)
    whole = Batch.from_data_list([party.graph for party in parties])
    return Party("pooled", Data(x=whole.x, edge_index=whole.edge_index, y=whole.y), "node", **masks)


@pytest.mark.parametrize("level", ["node", "graph"])
@pytest.mark.parametrize("model", MODELS)
def test_centralized_trains_one_model_on_all_data(model, level):
    module = built(MODELS[model], level)
    found = run(Centralized(rounds=ROUNDS, select="last", local=ADAM), module, make_parties(level, sparse=True))
    due = module
    for _ in range(ROUNDS):
        due, _ = plain_fit(due, pooled(make_parties(level)), ADAM)
    assert_close(found.weights, initial_weights(due), within=1e-8)


@pytest.mark.parametrize("name", [*METHODS, "local"])
def test_cohorts_of_one_give_what_one_cohort_gives(name):
    module, task = built(Gcn(hidden=8, dropout=0.5), "node"), NodeClassification(classes=CLASSES)
    kind, _, options = METHODS.get(name, (Local, None, {"local": ADAM}))
    options = options | ({} if name == "local" else {"fraction": 0.75})
    parties = make_parties("node", sparse=True)
    found, due = (
        Run(kind(rounds=ROUNDS, **options), parties, task, module, seed=SEED, side_by_side=side_by_side).go()
        for side_by_side in (True, False)
    )
    assert found.metrics == pytest.approx(due.metrics)
    if name != "local":
        assert_close(found.weights, due.weights, within=1e-8)


def test_the_module_given_is_left_alone():
    module = built(MODELS["gin-with-statistics"], "node")
    before = {name: weight.clone() for name, weight in initial_weights(module).items()}
    run(FedAvg(rounds=2), module, make_parties("node"))
    assert_close(initial_weights(module), before, within=0.0)


# ---- which round is the result, and when a run stops


class Always(nn.Module):
    """Says the same class of every node."""

    def __init__(self):
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(CLASSES))

    def forward(self, x, edge_index):
        return self.scores.expand(x.size(0), -1)


class Scripted(Method):
    """The model says one class per round, as written."""

    guesses: tuple[int, ...]

    def server(self, federation, model, state):
        for state.round in state.rounds(len(self.guesses)):
            state.weights = {"scores": torch.eye(CLASSES)[self.guesses[state.round - 1]]}
            yield state


def party_of_shares(validated=True):
    """Validation accuracy is 1/6, 2/6, 3/6 for the classes 0, 1, 2, test accuracy the other way round."""
    y = torch.tensor([0, 1, 1, 2, 2, 2, 0, 0, 0, 1, 1, 2, 0])
    at = torch.arange(13)
    graph = Data(x=torch.ones(13, 2), edge_index=torch.zeros(2, 0, dtype=torch.long), y=y)
    graph.train_mask, graph.val_mask, graph.test_mask = at == 12, (at < 6) & validated, (at >= 6) & (at < 12)
    return Party.of_graph("only", graph)


@pytest.mark.parametrize(
    ("guesses", "options", "rounds", "chosen"),
    [
        ((0, 1, 0), {}, 3, 2),
        ((0, 1, 0), {"select": "last"}, 3, 3),
        ((0, 2, 1, 2, 2), {}, 5, 2),
        ((1, 0, 0, 0, 2), {}, 5, 5),
        ((1, 0, 0, 0, 2), {"patience": 3}, 4, 1),
        ((1, 0, 0, 0, 2), {"patience": 4}, 5, 5),
        ((1, 1, 1, 2), {"patience": 2}, 3, 1),
        ((0, 1, 0, 2, 0, 1, 1), {"patience": 2}, 6, 4),
        ((0, 1, 0, 0, 2), {"patience": 2, "select": "last"}, 4, 4),
    ],
)
def test_the_result_is_the_best_round_on_validation_or_the_last(guesses, options, rounds, chosen):
    found = run(Scripted(guesses=guesses, **options), Always(), [party_of_shares()])
    assert (found.rounds, found.chosen_round) == (rounds, chosen)
    guess = guesses[chosen - 1]
    assert found.metrics["val_accuracy"] == pytest.approx((guess + 1) / 6)
    assert found.metrics["test_accuracy"] == pytest.approx((3 - guess) / 6)
    assert torch.equal(found.weights["scores"], torch.eye(CLASSES)[guess])
    assert [value for _, name, value in found.history if name == "val_accuracy"] == pytest.approx(
        [(each + 1) / 6 for each in guesses[:rounds]]
    )


@pytest.mark.parametrize("patience", [0, 1])
def test_without_validation_items_the_last_round_is_the_result(patience):
    found = run(Scripted(guesses=(2, 0, 1), patience=patience), Always(), [party_of_shares(validated=False)])
    assert (found.rounds, found.chosen_round) == (3, 3)
    assert found.metrics["test_accuracy"] == pytest.approx(2 / 6)


def test_a_restored_state_goes_on_where_it_stopped():
    first = State()
    first.start(total=0)
    assert first.once("warm up")
    for first.round in first.rounds(2):
        first.total += first.round
    second = State()
    second.restore(first.save())
    second.start(total=0, extra=1)
    assert (second.total, second.extra, second.once("warm up")) == (3, 1, False)
    assert list(second.rounds(4)) == [3, 4]
    assert "missing" not in second
    with pytest.raises(AttributeError, match="no 'missing' yet"):
        _ = second.missing
