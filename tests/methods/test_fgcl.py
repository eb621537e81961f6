"""FGCL against its paper's algorithm written out graph by graph with full matrices, and what it spends."""

import copy
import json
from collections import Counter
from dataclasses import replace
from types import MethodType

import pytest
import torch
from torch.nn import functional as F

from helpers import make_graph_parties, make_node_parties
from isthmus.data.party import Party
from isthmus.errors import IsthmusError, PartyFailed
from isthmus.federation.actions import action
from isthmus.methods.fgcl import FGCL, _differ, _drawn
from isthmus.nn.draws import draws_of
from isthmus.nn.encoders import Encoder
from isthmus.progress.terminal import privacy_lines
from isthmus.report.report import write_report
from isthmus.report.wording import describe_privacy
from isthmus.study.config import Study
from isthmus.study.loop import Run
from isthmus.study.run import run_study
from isthmus.study.setup import module_for, task_for
from isthmus.testing import check_method, small_parties

SGD = {"epochs": 1, "batch_size": 1, "optimizer": "sgd", "lr": 0.2, "weight_decay": 0.0}


def run(method, parties, encoder="gcn", of_encoder=None, **ways):
    task = task_for(parties)
    module = module_for(Encoder.named(encoder)(hidden=5, dropout=0.0, **(of_encoder or {})), parties, task, 0)
    return Run(method, parties, task, module, seed=0, **ways)


def method(**options):
    return FGCL.read({"rounds": 2, "select": "last", "local": SGD, **options}, "fgcl")


def graphs_of(party):
    """Features, edges and label of each graph."""
    batch = party.graph.batch
    for at in range(party.items):
        nodes = (batch == at).nonzero().flatten()
        here = (batch[party.graph.edge_index[0]] == at).nonzero().flatten()
        yield party.graph.x[nodes].to_dense(), party.graph.edge_index[:, here] - nodes[0], party.graph.y[at]


# ---- Algorithm 1, graph by graph


class Literal:
    """A party's training, with the noise that it drew and the negatives that it chose handed in."""

    def __init__(self, method, model, party, views):
        self.method, self.model, self.party = method, copy.deepcopy(model), party
        self.graphs = list(graphs_of(party))
        self.views = []  # of every graph its dense weights, for each view
        places = [0, *torch.tensor([g[0].size(0) * (g[0].size(0) - 1) // 2 for g in self.graphs]).cumsum(0).tolist()]
        for at, (x, _, _) in enumerate(self.graphs):
            self.views.append([])
            for view in views:
                weights = iter(view[places[at] : places[at + 1]].tolist())
                a = torch.zeros(len(x), len(x))
                for i in range(len(x)):
                    for j in range(i + 1, len(x)):
                        a[i, j] = a[j, i] = next(weights)
                self.views[-1].append(a)

    def embedding(self, at, view):
        """(4) and (5)."""
        h, a = self.graphs[at][0], self.views[at][view]
        loops = a + torch.eye(len(a))
        scale = loops.abs().sum(1) ** -0.5
        normal = scale[:, None] * loops * scale
        convs = self.model.body.convs
        for layer, conv in enumerate(convs):
            h = normal @ (h @ conv.lin.weight.t()) + conv.bias
            h = h.relu() if layer < len(convs) - 1 else h
        return h.relu().mean(0)

    def loss(self, at, negatives):
        """(10)."""
        y, h0, h1 = self.graphs[at][2], self.embedding(at, 0), self.embedding(at, 1)
        of_task = [F.cross_entropy(self.model.head(h)[None], y[None]) for h in (h0, h1)]
        positive = torch.exp(F.cosine_similarity(h0, h1, dim=0) / self.method.temperature)
        others = [
            torch.exp(F.cosine_similarity(self.embedding(other, 1), h1, dim=0) / self.method.temperature)
            for other in negatives
        ]
        contrast = -torch.log(positive / (positive + sum(others)))
        return self.method.gamma * contrast + sum(of_task) / 2

    def step(self, at, negatives):
        self.model.zero_grad()
        self.loss(at, negatives).backward()
        with torch.no_grad():
            for weight in self.model.parameters():
                weight -= self.method.local.lr * weight.grad


@pytest.fixture
def watched(monkeypatch):
    """Which graphs each party trains on, in their order, and against which negatives."""
    found = []
    contrasted = FGCL.AtParty._contrasted

    def watch(site, which, own, graphs, draws):
        before = [stack.clone() for stack in site._stacks]
        read, rows_of = contrasted(site, which, own, graphs, draws)
        negatives = [[int(read[at]) - graphs for at in row[2:]] for row in rows_of.tolist()]
        found.append((site.cohort.names[which], own.tolist(), negatives, before[which].tolist()))
        return read, rows_of

    monkeypatch.setattr(FGCL.AtParty, "_contrasted", watch)
    return found


@pytest.mark.parametrize(
    ("post", "redraw"),
    [({"clamp": False}, "never"), ({"clamp": False}, "epoch"), ({"clamp": True}, "never"), ({"degree": 2.0}, "never")],
)
def test_it_is_the_papers_algorithm(post, redraw, watched, double_precision):
    parties = [doubled(party) for party in make_graph_parties()]
    way = method(post=post, redraw=redraw, negatives=3, stack=6, gamma=0.5, temperature=0.7, rounds=1)
    ran = run(way, parties)
    first = copy.deepcopy(ran.module)
    ran.go()
    (site,) = ran.transport.sites
    with site.asked():
        trained = []
        for party, views in zip(parties, site.kept.each("prepared"), strict=True):
            literal = Literal(way, first, party, [views["0"], views["1"]])
            stack = party.train.nonzero().flatten()[-3:].tolist()
            for name, own, negatives, held in watched:
                if name != party.name or not own:
                    continue
                assert held == stack
                ((target,), (chosen,)) = own, negatives
                labels = [literal.graphs[at][2] for at in chosen]
                assert set(chosen) <= set(stack)
                assert all(label != literal.graphs[target][2] for label in labels)
                different = [at for at in stack if literal.graphs[at][2] != literal.graphs[target][2]]
                assert len(different) < 3 or not Counter(chosen) - Counter(different), "none is met twice without need"
                literal.step(target, chosen)
                stack = [*stack, target][-6:]
            trained.append(literal.model.state_dict())
        for name, weight in ran.state.weights.items():
            assert torch.allclose(weight, sum(each[name] for each in trained) / len(parties), atol=1e-9)


def doubled(party):
    graph = party.graph.clone()
    graph.x = graph.x.to_dense().double()
    return Party(party.name, graph, "graph", train=party.train, val=party.val, test=party.test)


def test_the_preset_is_the_papers_algorithm():
    paper = FGCL.read({"preset": "paper", "local": {"lr": 0.1}, "temperature": 0.5}, "fgcl")
    default = FGCL()
    assert (paper.redraw, paper.post.clamp, paper.temperature) == ("epoch", False, 0.5)
    assert paper.local == default.local.model_copy(update={"batch_size": 1, "lr": 0.1})
    assert FGCL(preset="paper").local == default.local.model_copy(update={"batch_size": 1})
    assert FGCL.read(paper.model_dump(), "fgcl") == paper
    assert FGCL.read({"preset": "paper", "post": {"clamp": True}}, "fgcl").post == default.post


def test_what_takes_no_part_counts_with_the_old_weights(double_precision, monkeypatch):
    """(11): half of the parties moves the weights half as far as all of them would from there."""
    parties = [doubled(party) for party in make_graph_parties()]
    train, trained = FGCL.AtParty.train, []

    @action("total")
    def watch(site, request):
        answer = train(site, request)
        trained.append(answer.fields["weights"])
        return answer

    monkeypatch.setattr(FGCL.AtParty, "train", watch)
    ran = run(method(rounds=1, fraction=0.5), parties)
    first = {name: weight.clone() for name, weight in ran.module.state_dict().items()}
    ran.go()
    (stacks,) = trained
    for name, old in first.items():
        assert stacks[name].size(0) == 2
        assert torch.allclose(ran.state.weights[name], (2 * old + stacks[name].sum(0)) / 4, atol=1e-9)


# ---- negatives


def test_labels_differ_where_a_task_that_is_known_of_both_does():
    nan = float("nan")
    y = torch.tensor([[1.0, nan, 0.0], [1.0, 1.0, nan], [nan, nan, nan]])
    others = torch.tensor([[1.0, 0.0, 0.0], [0.0, nan, nan], [nan, nan, 1.0]])
    assert _differ(y, others).tolist() == [[False, True, True], [True, True, False], [False, False, False]]
    assert _differ(torch.tensor([0, 1]), torch.tensor([1, 1, 0])).tolist() == [
        [True, True, False],
        [False, False, True],
    ]


def test_negatives_are_drawn_without_repetition_while_there_are_enough():
    differ = torch.tensor([[True] * 8, [True, True] + [False] * 6, [False] * 8])
    drawn = _drawn(differ, 5, draws_of(0))
    assert drawn[0].unique().numel() == 5
    assert sorted(drawn[1].tolist()) in ([0, 0, 0, 1, 1], [0, 0, 1, 1, 1])
    assert (drawn[2] == -1).all()
    assert (_drawn(torch.zeros(3, 0, dtype=torch.bool), 2, draws_of(0)) == -1).all()


def test_a_graph_without_negatives_is_not_contrasted():
    parties = make_graph_parties()
    for party in parties:
        party.graph.y = torch.zeros_like(party.graph.y)
    task = task_for(parties, 2)
    module = module_for(Encoder.named("gcn")(hidden=5), parties, task, 0)
    weights = [
        Run(method(gamma=gamma), parties, task, module, seed=0).go().weights["head.weight"] for gamma in (0.0, 5.0)
    ]
    assert torch.equal(*weights)


# ---- what is released


def test_views_are_drawn_once_and_only_they_are_trained_on():
    parties = make_graph_parties()
    ran = run(method(rounds=3), parties)
    (site,) = ran.transport.sites
    seen = []
    for _ in ran._rounds():
        with site.asked():
            seen.append(site.kept.each("prepared"))
            assert site.cohort.block.edge_weight is not None
    assert all(torch.equal(one["0"], other["0"]) for one, other in zip(seen[0], seen[2], strict=True))
    assert all(not torch.equal(views["0"], views["1"]) for views in seen[0])
    assert ran.method.account(ran.state).to_dict()["basic"] == {"epsilon": 2.0, "delta": 0.0}


def test_what_is_drawn_anew_is_spent_anew():
    ran = run(method(rounds=3, redraw="epoch", epsilons=[0.5, 0.25], local={**SGD, "epochs": 2}), make_graph_parties())
    ran.go()
    assert ran.method.account(ran.state).cost().epsilon == pytest.approx((1 + 3 * 2) * 0.75)


def test_who_was_drawn_most_often_has_spent_most():
    ran = run(method(rounds=4, redraw="epoch", fraction=0.5, epsilons=[1.0]), make_graph_parties())
    ran.go()
    most = max(ran.state.draws.values())
    assert min(ran.state.draws.values()) < most <= 5
    assert sum(ran.state.draws.values()) == 4 + 4 * 2
    assert ran.method.account(ran.state).cost().epsilon == most


def test_with_next_to_no_noise_the_views_are_the_graphs():
    parties = make_graph_parties()
    ran = run(method(rounds=1, epsilons=[1e6]), parties)
    ran.go()
    (site,) = ran.transport.sites
    with site.asked():
        for pairs, party, views in zip(site.pairs, parties, site.kept.each("prepared"), strict=True):
            assert torch.allclose(views["0"], pairs.bits(party.graph.edge_index), atol=1e-4)


@pytest.mark.parametrize(
    "options", [{}, {"epsilons": [0.5]}, {"post": {"clamp": False}}, {"local": {"batch_size": 0}}, {"fraction": 0.5}]
)
@pytest.mark.thinned(3)
def test_once_views_are_released_nothing_reads_the_edges(options):
    """Edges that are wiped after the release change neither weights, nor metrics, nor bytes."""
    found = []
    for wiped in (False, True):
        ran = run(method(rounds=3, **options), make_graph_parties())
        (site,) = ran.transport.sites
        released = FGCL.AtParty._draw

        def wipe(self, *purpose, released=released, wiped=wiped):
            released(self, *purpose)
            for party in self.hosted.parties if wiped else ():
                party.graph.edge_index = party.graph.edge_index[:, :0]
            self.hosted.block.edge_index[:] = 0 if wiped else self.hosted.block.edge_index

        site._draw = MethodType(wipe, site)
        result = ran.go()
        found.append((result.weights, result.metrics, [row["sent"] for row in ran.federation.ledger.rows()]))
    (weights, *told), (others, *again) = found
    assert told == again
    assert all(torch.equal(weights[name], others[name]) for name in weights)


def test_a_round_without_anybody_who_released_is_passed_over(monkeypatch):
    protect = FGCL.AtParty.protect

    @action("ask")
    def fail(site, request):
        if set(site.cohort.names) & {"party-0", "party-1"}:
            raise PartyFailed(site.cohort.names[0], "no disk")
        return protect(site, request)

    monkeypatch.setattr(FGCL.AtParty, "protect", fail)
    assert run(method(rounds=8, quorum=0.5, fraction=0.25), make_graph_parties()).go().rounds == 8


def test_a_party_that_released_nothing_is_not_trained_on(monkeypatch):
    protect = FGCL.AtParty.protect

    @action("ask")
    def fail(site, request):
        if "party-1" in site.cohort.names:
            raise PartyFailed("party-1", "no disk")
        return protect(site, request)

    monkeypatch.setattr(FGCL.AtParty, "protect", fail)
    ran = run(method(quorum=0.5), make_graph_parties())
    ran.go()
    assert set(ran.state.draws) == {"party-0", "party-2", "party-3"}
    assert {row["party"] for row in ran.federation.ledger.rows() if row["action"] == "train"} == set(ran.state.draws)
    (site,) = ran.transport.sites
    at = site.hosted.names.index("party-1")
    made = site.cohort_of(range(4)).parties[at]
    assert made.edges == 0  # never the graphs themselves


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"epsilons": [1.0]},
        {"redraw": "epoch", "local": {"epochs": 2, "batch_size": 5}, "fraction": 0.5},
        {"mechanism": "gaussian", "post": {"clamp": False}, "local": {"batch_size": 0}, "evaluated_on": "graphs"},
        {"mechanism": "randomized-response", "local": {"batch_size": 1}},
    ],
    ids=["one view", "redrawn", "raw, full batches", "streaming"],
)
def test_it_conforms_in_every_way(options):
    check_method(FGCL.read({"rounds": 3, **options}, "fgcl"), small_parties("graph"))


@pytest.mark.parametrize("encoder", ["graphconv", "tag", "lightgcn", "gat", "sage"])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 100.0])
@pytest.mark.thinned(3)
def test_encoders_that_weigh_edges_learn_from_any_noise(encoder, epsilon):
    way = method(epsilons=[epsilon, epsilon], post={"clamp": False}, local={**SGD, "batch_size": 4, "clip": 1.0})
    weighted = {"weighted": True} if encoder in ("gat", "sage") else {}
    found = run(way, make_graph_parties(), encoder, weighted).go()
    assert all(weight.isfinite().all() for weight in found.weights.values())


@pytest.mark.parametrize("options", [{"post": {"threshold": 0.5}}, {"mechanism": "randomized-response"}])
def test_any_encoder_takes_edges_that_are_there_or_not(options):
    ran = run(method(**options), make_graph_parties(), "gin")
    assert ran.go().weights
    (site,) = ran.transport.sites
    assert site.cohort.block.edge_weight.unique().tolist() == [1.0]


def test_what_is_evaluated_is_the_mean_of_the_views():
    ran = run(method(), make_graph_parties())
    found = ran.go()
    (site,) = ran.transport.sites
    names = [party.name for party in site.hosted.parties]
    site.answer("evaluate", {"weights": found.weights}, names)
    views = site.model(site.cohort.block)[:, : ran.task.outputs].split(site.cohort.items)
    means = [(each[: len(each) // 2] + each[len(each) // 2 :]) / 2 for each in views]
    outputs = site.predict_all(found.weights).split(site.cohort.items)
    for mean, output, view in zip(means, outputs, views, strict=True):
        assert torch.allclose(output[: len(mean)], mean)
        assert not torch.allclose(output, view)
    site.method = method(evaluated_on="first")
    assert torch.equal(site.predict_all(found.weights), torch.cat(views))


@pytest.mark.parametrize("labels", ["multilabel", "regression"])
def test_tasks_with_missing_labels_are_learned(labels):
    parties = small_parties("graph", labels=labels)
    assert run(method(local={**SGD, "batch_size": 8}), parties).go().weights


def test_what_does_not_go_together_is_one_line():
    with pytest.raises(IsthmusError, match="needs an encoder that weighs edges"):
        run(method(), make_graph_parties(), "gin")
    with pytest.raises(IsthmusError, match="is for graph tasks"):
        run(method(), make_node_parties())
    with pytest.raises(IsthmusError, match="encoder 'cheb' needs weights of at least 0"):
        run(method(post={"clamp": False}), make_graph_parties(), "cheb")
    for epsilons in ([], [0.0], [1.0, 1.0, 1.0], [float("inf")]):
        with pytest.raises(IsthmusError, match="epsilons"):
            method(epsilons=epsilons)


def test_results_report_and_terminal_say_what_was_spent(tmp_path):
    study = {
        "data": {"name": "motifs", "graphs": 40},
        "methods": [{"name": "fedavg"}, {"name": "fgcl"}],
        "seeds": [0, 1],
    }
    results = run_study(Study.of({**study, "training": {"rounds": 2}}), tmp_path / "out")
    told = json.loads((tmp_path / "out" / "results.json").read_text())["runs"]
    assert [run.get("privacy", {}).get("basic") for run in told[:2]] == [None, None]
    assert told[2]["privacy"]["basic"] == {"epsilon": 2.0, "delta": 0.0}
    said = "noise hides one edge of a party's graph with epsilon = 2: a guess of 50 % becomes 88.1 % at most"
    assert privacy_lines(results) == [f"fgcl: {said}"]
    page = write_report([tmp_path / "out"], None).read_text()
    assert page.count("with epsilon = 2") == 1


def test_where_graphs_are_evaluated_nothing_is_claimed():
    assert run(method(evaluated_on="graphs"), make_graph_parties()).go().privacy == {}


def test_a_budget_with_a_delta_is_told_with_it():
    ran = run(method(mechanism="gaussian", redraw="epoch", rounds=30, epsilons=[0.01]), make_graph_parties())
    ran.state.draws = {"party-0": 400}
    said = describe_privacy(ran.method.account(ran.state).to_dict())
    assert said.startswith("noise hides one edge of a party's graph with epsilon = 4, delta = 0.004")
    assert "by advanced composition epsilon = 0.9" in said or "by advanced composition epsilon = 1" in said


def test_features_that_follow_from_edges_are_left_out_unless_asked_for():
    parties = [replace(party, structural=torch.tensor([0, 2])) for party in make_graph_parties()]
    blank = [_without(party, [0, 2]) for party in make_graph_parties()]
    ran, same, all_ = (
        run(method(features=how), those).go() for how, those in (("safe", parties), ("safe", blank), ("all", parties))
    )
    assert all(torch.equal(ran.weights[name], same.weights[name]) for name in same.weights)
    assert ran.metrics == same.metrics != all_.metrics
    assert ran.privacy["basic"]["epsilon"] == 2
    assert all_.privacy == {}


def _without(party, columns):
    graph = copy.copy(party.graph)
    graph.x = party.graph.x.clone()
    graph.x[:, columns] = 0
    return replace(party, graph=graph)


def test_a_party_with_nothing_but_structural_features_is_refused():
    party = make_graph_parties()[0]
    with pytest.raises(PartyFailed, match="all its features follow from its edges: give others, or set features"):
        run(method(), [replace(party, structural=torch.arange(party.features))])


@pytest.mark.parametrize(
    "other", [{"epsilons": [0.2]}, {"mechanism": "gaussian", "epsilons": [0.1]}, {"epsilons": [0.1], "wiped": True}]
)
def test_no_two_different_releases_share_their_noise(other):
    """Of the same noise in two scales, or on two graphs, differences would tell the bits."""
    wiped = other.pop("wiped", False)
    options = {"post": {"clamp": False}}
    noise = []
    for ways, parties in (({"epsilons": [0.1]}, make_graph_parties()), (other, make_graph_parties())):
        if wiped and noise:
            for party in parties:
                party.graph.edge_index = party.graph.edge_index[:, :0]
        ran = run(method(**options, **ways), parties)
        ran.federation.ask("protect")
        (site,) = ran.transport.sites
        with site.asked():
            views = zip(site.pairs, parties, site.kept.each("prepared"), strict=True)
            noise.append(torch.cat([views["0"] - pairs.bits(party.graph.edge_index) for pairs, party, views in views]))
    assert abs(float(torch.corrcoef(torch.stack(noise))[0, 1])) < 0.3


def test_parties_that_know_differently_what_follows_from_edges_are_refused():
    parties = list(make_graph_parties())
    parties[1] = replace(parties[1], structural=torch.tensor([0]))
    with pytest.raises(IsthmusError, match="differ in 'structural'"):
        run(method(), parties)
