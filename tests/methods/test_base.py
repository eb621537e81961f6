"""What all methods share: weighting, which round is the result, and the state of a run."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from written_out import ADAM, MODELS, built, run

import isthmus
from helpers import CLASSES, assert_close, make_parties
from isthmus.data.party import Party
from isthmus.federation.models import Models
from isthmus.methods.base import EVALUATING, Listing, Method, State
from isthmus.methods.fedavg import FedAvg
from isthmus.nn.weights import initial_weights

pytestmark = pytest.mark.usefixtures("double_precision")


def test_weightings_differ():
    found = [
        run(FedAvg(rounds=1, weighting=each, local=ADAM), built(MODELS["gcn"], "node"), make_parties("node")).weights
        for each in ("train", "size", "even")
    ]
    bias = "convs.1.bias"
    assert not torch.equal(found[0][bias], found[1][bias])
    assert not torch.equal(found[1][bias], found[2][bias])


def test_the_module_given_is_left_alone():
    module = built(MODELS["gin-with-statistics"], "node")
    before = {name: weight.clone() for name, weight in initial_weights(module).items()}
    run(FedAvg(rounds=2), module, make_parties("node"))
    assert_close(initial_weights(module), before, within=0.0)


class Always(nn.Module):
    """Says the same class of every node."""

    def __init__(self):
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(CLASSES))

    def forward(self, x, edge_index):
        return self.scores.expand(x.size(0), -1)


class Scripted(Method):
    """A method whose model predicts one class per round, as written."""

    guesses: tuple[int, ...]

    def server(self, federation, model, state):
        for state.round in state.rounds(len(self.guesses)):
            state.weights = {"scores": torch.eye(CLASSES)[self.guesses[state.round - 1]]}
            yield state

    def models(self, state):
        return Models(shared=state.weights)


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


@pytest.mark.parametrize("name", ["fedavg", "fedadam", "scaffold", "feddyn"])
def test_a_round_that_draws_only_idle_parties_keeps_the_weights(name, node_parties):
    idle = [replace(party, train=torch.zeros_like(party.train)) for party in node_parties[:3]]
    options = {"rounds": 6, "fraction": 0.25, "weighting": "train", "local": {"epochs": 1}}
    method = Method.named(name).read(options, name)
    run = isthmus.run(method, [*idle, node_parties[3]], seed=0, unlabelled="idle").runs[0]
    losses = [value for _, metric, value in run.history if metric == "val_loss"]
    assert run.rounds == 6
    if name != "fedadam":  # whose momentum goes on
        assert len(set(losses)) < len(losses)  # some rounds drew an idle party alone


@pytest.mark.parametrize("name", Method.known())
def test_what_a_server_reads_of_one_party_or_parties_of_each_other_is_named(name: str) -> None:
    kind = Method.named(name)
    bindings = {action: each.binding for action, each in kind.AtParty.actions().items() if action not in EVALUATING}
    single = [
        action
        for action, each in bindings.items()
        if "exchange" in each.verbs or (each.verbs == ("ask",) and each.to == "server" and not each.silent)
    ]
    if single:
        assert kind.listing.leaves != Listing().leaves, single
