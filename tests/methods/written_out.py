"""A method's rounds against its paper's algorithm, written out in plain PyTorch: one party after another."""

import copy

import pytest
import torch

from helpers import CLASSES, FEATURES, assert_close, make_parties, plain_fit, plain_rates
from isthmus.methods.training import LocalTraining
from isthmus.nn.draws import draws_of
from isthmus.nn.encoders import Gcn, Gin
from isthmus.nn.weights import initial_weights
from isthmus.study.loop import Run
from isthmus.tasks.classification import GraphClassification, NodeClassification

SEED, ROUNDS = 3, 3
ADAM = LocalTraining(optimizer="adam", epochs=2, lr=0.02)
SGD = LocalTraining(epochs=3, optimizer="sgd", lr=0.1)
MODELS = {"gcn": Gcn(hidden=8, dropout=0.0), "gin-with-statistics": Gin(hidden=8, dropout=0.0, norm=True)}

SCHEDULES = {"cosine-after-warm-up": {"schedule": "cosine", "warm_up": 1}, "linear": {"schedule": "linear"}}


class Plain:
    """The parties as the papers see them: drawn by the server, trained from given weights, counted by their items."""

    def __init__(self, module, parties, method):
        self.module, self.parties, self.method = module, parties, method
        self.start = {name: weight.clone() for name, weight in initial_weights(module).items()}
        self.trained = [name for name, _ in module.named_parameters()]
        self.zeros = {name: torch.zeros_like(self.start[name]) for name in self.trained}
        self.answered = [0] * len(parties)
        self.lr = 0.0

    def rounds(self):
        """The positions of the parties drawn, round after round; `lr` is the round's learning rate."""
        count = max(1, round(self.method.fraction * len(self.parties)))
        for at, self.lr in enumerate(plain_rates(self.method.local, ROUNDS), start=1):
            chosen = draws_of(SEED, "sample", at).some(len(self.parties), count).tolist()
            yield chosen
            self.answered = [number + 1 for number in self.answered]  # all were asked to evaluate

    def train(self, at, weights, extra=None):
        """The weights of one party after local training, and its steps."""
        module = copy.deepcopy(self.module)
        module.load_state_dict(weights, strict=False)
        self.answered[at] += 1
        options = self.method.local.model_copy(update={"lr": self.lr})
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


def built(encoder, level):
    torch.manual_seed(0)
    return encoder.build(FEATURES, CLASSES, level)


def run(method, module, parties, **ways):
    kind = NodeClassification if parties[0].level == "node" else GraphClassification
    return Run(method, parties, kind(classes=CLASSES), module, seed=SEED, **ways).go()


@pytest.mark.usefixtures("double_precision")
class AsWritten:
    """The tests of a method `kind` with `options` against `literal`, its algorithm written out."""

    kind, options = None, {}

    @staticmethod
    def literal(plain):
        raise NotImplementedError

    def check(self, level="node", model="gcn", untrained=(), **options):
        method = self.kind(rounds=ROUNDS, select="last", **self.options | options)
        module = built(MODELS[model], level)
        found = run(method, module, make_parties(level, sparse=True, untrained=untrained))
        due = self.literal(Plain(module, make_parties(level, untrained=untrained), method))
        assert_close(found.weights, due, within=1e-8)

    @pytest.mark.parametrize("fraction", [1.0, 0.75], ids=["all", "three-of-four"])
    @pytest.mark.parametrize("model", MODELS)
    @pytest.mark.parametrize("level", ["node", "graph"])
    @pytest.mark.thinned(5)
    def test_rounds_are_those_of_the_paper(self, level, model, fraction):
        self.check(level, model, fraction=fraction)

    def test_minibatches_are_drawn_in_every_round(self):
        self.check(local=self.options["local"].model_copy(update={"batch_size": 4}), fraction=0.75)

    @pytest.mark.parametrize("schedule", SCHEDULES)
    def test_the_learning_rate_of_a_round_is_that_of_torchs_schedulers(self, schedule):
        self.check(local=self.options["local"].model_copy(update=SCHEDULES[schedule]), fraction=0.75)

    def test_a_party_without_training_items_does_not_move(self):
        self.check(untrained=(1,))

    @pytest.mark.parametrize("weighting", ["train", "size", "even"])
    def test_parties_are_weighted_as_chosen(self, weighting):
        self.check("graph", weighting=weighting, fraction=0.75)

    def test_cohorts_of_one_give_the_same(self):
        module = built(Gcn(hidden=8, dropout=0.5), "node")
        method = self.kind(rounds=ROUNDS, fraction=0.75, **self.options)
        parties = make_parties("node", sparse=True)
        found, due = (run(method, module, parties, side_by_side=side_by_side) for side_by_side in (True, False))
        assert found.metrics == pytest.approx(due.metrics)
        assert_close(found.weights, due.weights, within=1e-8)
