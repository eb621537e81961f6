"""FedSage is FedAvg; FedSage+ mends graphs with what its generators learned, and lets nobody read a partner's rows."""

from __future__ import annotations

import pytest
import torch
from coupled_parties import coupled, dense, small
from hypothesis import given, settings
from hypothesis import strategies as some
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from helpers import FEATURES, make_node_parties
from isthmus.data.party import Party
from isthmus.errors import IsthmusError
from isthmus.federation.local import LocalTransport
from isthmus.federation.verbs import Federation
from isthmus.methods.base import Model
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.fedsage import (
    FedSage,
    FedSagePlus,
    Ground,
    NeighGen,
    add_nodes,
    encode,
    generate,
    means,
    others_gradients,
    own_gradients,
    similar_nodes,
)
from isthmus.nn.draws import draws_of
from isthmus.nn.encoders import Encoder
from isthmus.study.loop import Run
from isthmus.study.setup import module_for, task_for

QUICK = NeighGen(hide=0.5, width=8, epochs=15, rounds=2)


def run(method, parties, encoder="sage", **ways):
    task = task_for(parties, 3)
    return Run(method, parties, task, module_for(Encoder.named(encoder)(hidden=8), parties, task, 0), **ways)


def made(finished):
    """What every party generated, by party."""
    saved = finished.federation.save()
    return {party: each["kept"]["prepared"] for party, each in saved.items()}


def overheard(method, parties, seed=0):
    """A federation after its set-up has come to the first answers of partners, its site, and all mail so far."""

    class Overheard(LocalTransport):
        def __init__(self, sites):
            super().__init__(sites)
            self.mail = {}

        def send(self, command):
            if command.do == "deliver":
                self.mail = {**self.mail, command.action: command.payload}
            return super().send(command)

    task = task_for(parties, 3)
    site = method.site(parties, task, module_for(Encoder.named("sage")(hidden=8), parties, task, 0), seed=seed)
    transport = Overheard([site])
    federation = Federation(transport, seed=seed)
    steps = method.model_copy(update={"neighgen": method.neighgen.model_copy(update={"rounds": 1})})

    class Enough(Exception):  # noqa: N818
        pass

    def ask(action, *rest, **more):
        if action == "learn":
            raise Enough
        return Federation.ask(federation, action, *rest, **more)

    federation.ask = ask  # type: ignore[method-assign]
    run_ = run(steps, parties)
    with pytest.raises(Enough):
        next(
            iter(
                steps.server(
                    federation,
                    Model(run_.module, features=parties[0].features),
                    run_.state,
                )
            )
        )
    return site, transport.mail


# ---- FedSage


def test_fedsage_is_fedavg_of_graphsage(node_parties):
    first, second = (run(kind(rounds=3), node_parties).go() for kind in (FedSage, FedAvg))
    assert first.metrics == second.metrics
    assert all(torch.equal(first.weights[name], weight) for name, weight in second.weights.items())


@pytest.mark.parametrize("method", [FedSage, FedSagePlus])
def test_another_encoder_is_refused(node_parties, method):
    with pytest.raises(IsthmusError, match="trains GraphSAGE: use encoder sage"):
        run(method(rounds=1), node_parties, "gcn").go()


# ---- what may be compared


@settings(max_examples=30)
@given(nodes=some.integers(1, 40), min_size=some.integers(1, 8), seed=some.integers(0, 2**20), sparse=some.booleans())
def test_every_mean_is_over_enough_nodes(nodes, min_size, seed, sparse):
    source = torch.Generator().manual_seed(seed)
    x = torch.randint(3, (nodes, 4), generator=source).float()  # many ties
    groups = similar_nodes(x.to_sparse_csr() if sparse else x, min_size, draws_of(seed))
    if nodes < min_size:
        assert groups.numel() == 0
        assert means(x, groups).shape == (0, 4)
        return
    counts = torch.bincount(groups)
    assert groups.shape == (nodes,)
    assert min_size <= int(counts.min()) <= int(counts.max()) < 2 * min_size
    found = means(x.to_sparse_csr() if sparse else x, groups)
    for group, mean in enumerate(found):
        torch.testing.assert_close(mean, x[groups == group].mean(0))


def test_of_a_large_graph_some_nodes_are_looked_at_at_a_time():
    source = torch.Generator().manual_seed(0)
    x = torch.randn(1203, 3, generator=source)
    groups = similar_nodes(x, 5, draws_of(0))
    counts = torch.bincount(groups)
    assert groups.min() == 0
    assert 5 <= int(counts.min()) <= int(counts.max()) < 10
    within = (x - means(x, groups)[groups]).square().sum()
    assert within < 0.3 * (x - x.mean(0)).square().sum()


def solved(shown, answered, scale):
    """What a party can solve for when it knows what it sent: the rows that its generated ones were compared with."""
    weights, inputs = shown["weights"], shown["inputs"]
    hidden = F.linear(inputs, weights["feature.0.weight"], weights["feature.0.bias"]).relu()
    slopes = torch.linalg.lstsq(hidden.t(), answered["feature.1.weight"].t(), driver="gelsd").solution
    count = inputs.size(0) * slopes.size(1)
    return scale * (generate(weights, inputs) - slopes * count / 2), torch.linalg.matrix_rank(hidden) == len(inputs)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("min_size", [1, 4])
def test_who_solves_for_what_its_generator_met_finds_means(min_size):
    parties = make_node_parties((40, 30, 25))
    method = FedSagePlus(neighgen=NeighGen(hide=0.5, width=64, epochs=5, nodes=20), partners=2, min_size=min_size)
    site, mail = overheard(method, parties)
    with site.asked():
        scale = site.kept.each("scale")[0]
        groups = dict(zip(site.hosted.names, site.kept.each("groups"), strict=True))
    rows_of = {party.name: party.graph.x for party in parties}
    found = 0
    for asker, letters in mail["compare"].items():
        for partner, answered in letters.items():
            targets, solvable = solved(mail["show"][partner][asker], answered, scale)
            if not solvable:
                continue
            found += 1
            raw = torch.cdist(targets, rows_of[partner]).amin(1)
            mean = torch.cdist(targets, means(rows_of[partner], groups[partner])).amin(1)
            assert bool((mean < 1e-6).all()), "the attack of this test does not work"
            assert bool((raw < 1e-6).all() if min_size == 1 else (raw > 0.1).all())
    assert found > 0, "no answer could be solved: the test shows nothing"


def test_parties_with_fewer_nodes_than_least_answer_nobody():
    parties = make_node_parties((30, 4, 3))
    _, mail = overheard(FedSagePlus(neighgen=QUICK, min_size=5), parties)
    assert {partner for letters in mail["compare"].values() for partner in letters} <= {"party-0"}


@settings(max_examples=20)
@given(seed=some.integers(0, 2**20), inputs=some.integers(1, 6), targets=some.integers(1, 5))
def test_a_partners_gradient_is_that_of_the_distance_to_its_nearest_mean(seed, inputs, targets):
    source = torch.Generator().manual_seed(seed)
    weights = {
        name: weight.double().requires_grad_()
        for name, weight in NeighGen(width=3).start(4, draws_of(seed), torch.zeros(0)).items()
        if name.startswith("feature")
    }
    given_, near = (torch.randn(n, w, generator=source).double() for n, w in ((inputs, 3), (targets, 4)))
    loss = torch.stack(
        [min(((row - target) ** 2).mean() for target in near) for row in generate(weights, given_)]
    ).mean()
    due = torch.autograd.grad(loss, list(weights.values()))
    found = others_gradients(weights, given_, near)
    assert list(found) == list(weights)
    for one, other in zip(found.values(), due, strict=True):
        torch.testing.assert_close(one, other)


# ---- the generator


def ground_of(party, min_size=1):
    groups = similar_nodes(party.graph.x, min_size, draws_of(0))
    return Ground.of(party, groups, 1.0, torch.device("cpu"))


def test_a_generator_learns_how_many_are_missing_and_what_they_are_like():
    source = torch.Generator().manual_seed(0)
    kind = torch.arange(60) % 2  # nodes of one kind are joined to three of the other
    x = F.one_hot(kind, 2).float() * 2
    edges = torch.tensor([[at, (at + step) % 60] for at in range(60) for step in (1, 3, 5)]).t()
    graph = Data(x=x, edge_index=to_undirected(edges), y=kind)
    ground = ground_of(Party.of_graph("bank", graph))
    options = NeighGen(hide=0.5, width=8)
    state = {"step": 0, "weights": options.start(2, draws_of(0), x)}
    zeros = {name: torch.zeros_like(weight) for name, weight in state["weights"].items()}
    state |= {"first": zeros, "second": zeros}
    for step in range(240):
        state = options.step(state, own_gradients(options, state["weights"], ground, draws_of(step)))
    z = encode(state["weights"], ground, ground.edges)
    assert int(options.counts(state["weights"], z).float().mean().round()) == 3  # of six neighbours half are hidden
    other = generate(state["weights"], z + torch.randn(z.shape, generator=source))
    assert bool((other.argmax(1) != kind).float().mean() > 0.9)


def test_hidden_nodes_are_no_part_of_what_the_encoder_reads():
    """The gradient of a step is one of the graph without its hidden nodes: theirs are targets alone."""
    party = make_node_parties((20,))[0]
    options = NeighGen(hide=0.5, width=4, weight_feature=0.0)
    weights = options.start(FEATURES, draws_of(1), party.graph.x)
    hidden = torch.zeros(20, dtype=torch.bool)
    hidden[draws_of(2).of("hidden").some(20, 10)] = True
    found = own_gradients(options, weights, ground_of(party), draws_of(2))
    party.graph.x[hidden] += 5.0
    again = own_gradients(options, weights, ground_of(party), draws_of(2))
    for name, gradient in found.items():
        torch.testing.assert_close(again[name], gradient)
    party.graph.x[~hidden] += 5.0
    other = own_gradients(options, weights, ground_of(party), draws_of(2))
    assert not torch.allclose(other["degree.weight"], found["degree.weight"])


# ---- mended graphs


def test_a_mended_graph_has_the_new_nodes_and_nothing_else_new():
    party = make_node_parties((5,), weighted=True)[0]
    x = torch.arange(3.0).unsqueeze(1).expand(3, FEATURES)
    found = add_nodes(party, x, torch.tensor([[1, 1, 3], [0, 1, 2]]), torch.ones(3))
    assert found.nodes == 8
    torch.testing.assert_close(found.graph.x, torch.cat([party.graph.x, x]))
    new = found.graph.edge_index[:, party.edges :]
    assert set(map(tuple, new.t().tolist())) == {(1, 5), (1, 6), (3, 7), (5, 1), (6, 1), (7, 3)}
    assert torch.equal(found.graph.edge_index[:, : party.edges], party.graph.edge_index)
    assert found.graph.edge_weight[party.edges :].tolist() == [1.0] * 6
    for split in ("train", "val", "test"):
        assert getattr(found, split).nonzero().tolist() == getattr(party, split).nonzero().tolist()


def test_own_nodes_alone_are_trained_on_evaluated_and_counted(node_parties):
    finished = run(FedSagePlus(rounds=1, neighgen=QUICK, weighting="size", min_size=2), node_parties)
    finished.go()
    assert sum(each["x"].size(0) for each in made(finished).values()) > 0
    site = finished.transport.sites[0]
    positions = range(len(node_parties))
    trained_on = site.cohort_of(tuple(positions))
    assert trained_on.block.nodes > site.hosted.block.nodes
    for split in ("train", "val", "test"):
        assert torch.equal(trained_on.counts(split), site.hosted.counts(split))
    with site.asked():
        assert site.averaging_weights().tolist() == [party.nodes for party in node_parties]


@some.composite
def few_nodes(draw):
    """A few parties with few nodes: without edges, without training nodes, with sparse features."""
    parties = []
    for at in range(draw(some.integers(2, 4))):
        nodes = draw(some.integers(1, 7))
        source = torch.Generator().manual_seed(draw(some.integers(0, 2**20)))
        edges = torch.randint(nodes, (2, draw(some.integers(0, 2 * nodes))), generator=source)
        graph = Data(x=torch.rand(nodes, 4, generator=source), edge_index=to_undirected(edges, num_nodes=nodes))
        if draw(some.booleans()):
            graph.x = torch.zeros(nodes, 4)
        if draw(some.booleans()):
            graph.x = graph.x.to_sparse_csr()
        graph.y = torch.randint(3, (nodes,), generator=source)
        graph.train_mask = torch.arange(nodes) == (0 if at == 0 or draw(some.booleans()) else -1)
        graph.test_mask = ~graph.train_mask
        parties.append(Party.of_graph(f"party-{at}", graph))
    return parties


@pytest.mark.slow
@settings(max_examples=8)
@given(parties=few_nodes(), min_size=some.integers(1, 3))
def test_small_parties_take_part_and_give_the_same_bits_in_every_way(parties, min_size):
    if not any(bool(party.test.any()) for party in parties):
        return
    method = FedSagePlus(rounds=1, neighgen=NeighGen(hide=0.5, width=4, epochs=5, rounds=2), min_size=min_size)
    together, apart = run(method, parties), run(method, parties, side_by_side=False, wire=True)
    results = together.go(), apart.go()
    first, second = made(together), made(apart)
    for party in parties:
        assert torch.equal(first[party.name]["edges"], second[party.name]["edges"])
        assert torch.equal(first[party.name]["x"], second[party.name]["x"])
    for name, weight in results[0].weights.items():
        assert bool(torch.isfinite(weight).all())
        torch.testing.assert_close(weight, results[1].weights[name], rtol=1e-5, atol=1e-5)


# ---- true neighbours in place of generated ones


@pytest.mark.slow
@settings(max_examples=15)
@given(coupled())
def test_ideally_a_party_gets_its_neighbours_across_the_border_and_its_edges_to_them(drawn):
    whole, parties = drawn
    method, x, ids = FedSagePlus(rounds=1, ideal=True), dense(whole), whole.ids.tolist()
    weights = whole.graph.get("edge_weight", torch.ones(whole.edges))
    pairs = zip(*whole.graph.edge_index.tolist(), weights.tolist(), strict=True)
    weight_of = {(ids[end], ids[start]): weight for start, end, weight in pairs}
    first, again = run(method, parties), run(method, parties, side_by_side=False, wire=True)
    first.go()
    again.go()
    saved = made(first)
    for party in parties:
        found = add_nodes(party, *(saved[party.name][each] for each in ("x", "edges", "weight")))
        own, due = party.ids.tolist(), [ids.index(int(each)) for each in torch.cat([*_outer(party)]).tolist()]
        x_found = dense(found)
        assert torch.equal(x_found[: party.nodes], dense(party))
        assert found.nodes == party.nodes + len(due)
        if due:  # noise whose standard deviation is a tenth of the features' size
            assert 0 < (x_found[party.nodes :] - x[due]).abs().max() < 0.8 * x.abs().max()
        new = found.graph.edge_index[:, party.edges :].tolist()
        known = own + [ids[at] for at in due]
        across = {edge for edge in weight_of if (edge[0] in own) != (edge[1] in own)}
        assert {(known[a], known[b]) for a, b in zip(*new, strict=True)} == across
        if found.graph.get("edge_weight") is not None:
            told = zip(*new, found.graph.edge_weight[party.edges :].tolist(), strict=True)
            assert all(abs(weight_of[known[a], known[b]] - weight) < 1e-6 for a, b, weight in told)
        assert torch.equal(saved[party.name]["x"], made(again)[party.name]["x"])


def _outer(party):
    """Ids of others' nodes at the border, by owner's name, sorted."""
    if (border := party.border) is not None:
        for name in sorted(border.owners):
            yield border.outer[border.owner == border.owners.index(name)].unique()
    yield torch.empty(0, dtype=torch.long)


def test_ideally_parties_answer_twice_and_only_the_ends_of_an_edge_see_features():
    _, parties = small()
    method = FedSagePlus(rounds=1, ideal=True)
    result = run(method, parties).go()
    assert {name for name, most in method.calls(_module(parties[0], task_for(parties, 2))).items() if most} == {
        "disclose", "join", "train", "evaluate", "lend",
    }  # fmt: skip
    seen = {(row["verb"], row["action"], row["eyes"]) for row in result.ledger.rows() if row["round"] == 0}
    assert seen == {
        ("exchange", "disclose", "the addressed party"),
        ("exchange", "disclose: delivery", "the addressed party"),
        ("ask", "join", "server sees each answer"),
    }


@pytest.mark.parametrize("size", [1.0, 0.05])
def test_noise_on_true_neighbours_is_a_tenth_of_the_features(size):
    _, parties = small()
    for party in parties:
        party.graph.x = size * (dense(party) != 0).float()
    finished = run(FedSagePlus(rounds=1, ideal=True), parties)
    finished.go()
    got = torch.cat([each["x"] for each in made(finished).values()])
    noise = (got / size - (got / size).round()).std()
    assert 0.07 < float(noise) < 0.13


def test_ideally_a_party_is_due_features_of_the_nodes_at_its_edges_alone():
    _, (first, second) = small()
    site = FedSagePlus(ideal=True).site([first], task := task_for([first, second], 2), _module(first, task))
    with site.asked():
        form = site.due_rows("b")
        assert form["ids"].tolist() == [3, 5]
        assert form["rows"].shape == (2, 6)
        assert site.due_rows("c") is None


def _module(party, task):
    return module_for(Encoder.named("sage")(hidden=8), [party], task, 0)


# ---- the federation


def test_partners_are_others_and_all_are_asked_equally_often():
    parties = make_node_parties((9, 9, 9, 9, 9, 9))
    asked = []

    class Counted(FedSagePlus.AtParty):
        def deliver(self, name, mail):
            if name == "show":
                asked.append(mail)
            super().deliver(name, mail)

    method = FedSagePlus(rounds=1, neighgen=NeighGen(hide=0.5, width=4, rounds=3), partners=2, min_size=1)
    task = task_for(parties, 3)
    module = module_for(Encoder.named("sage")(hidden=8), parties, task, 0)
    result = run(method, parties, transport=LocalTransport([Counted(method, parties, task, module)])).go()
    assert len(asked) == 3
    for mail in asked:
        assert all(name not in letters and len(letters) <= 2 for name, letters in mail.items())
    assert len({str({name: sorted(letters) for name, letters in mail.items()}) for mail in asked}) > 1
    seen = {(row["verb"], row["action"], row["eyes"]) for row in result.ledger.rows() if row["round"] == 0}
    assert seen == {
        ("total", "scale", "server sees the sum"),
        ("ask", "start", "server sees each answer"),
        ("exchange", "show", "the addressed party"),
        ("exchange", "show: delivery", "the addressed party"),
        ("exchange", "compare", "the addressed party"),
        ("exchange", "compare: delivery", "the addressed party"),
        ("ask", "learn", "server sees each answer"),
        ("ask", "mend", "server sees each answer"),
    }
    assert not [
        row["fields"] for row in result.ledger.rows() if row["round"] == 0 and row["verb"] == "ask" and row["fields"]
    ]


def test_a_party_that_fails_in_the_set_up_trains_on_what_it_has(node_parties):
    class Failing(FedSagePlus.AtParty):
        def _grounds(self):
            if "party-1" in self.cohort.names:
                raise RuntimeError("disk on fire")
            return super()._grounds()

    method = FedSagePlus(rounds=2, neighgen=QUICK, min_size=2)
    task = task_for(node_parties, 3)
    module = module_for(Encoder.named("sage")(hidden=8), node_parties, task, 0)
    ways = {
        "together": [Failing(method, node_parties, task, module)],
        "apart": [Failing(method, [party], task, module) for party in node_parties],
    }
    found = {}
    for way, sites in ways.items():
        finished = run(method, node_parties, transport=LocalTransport(sites))
        found[way] = finished.go()
        failed = {row["party"] for row in found[way].ledger.rows() if row["status"] == "failed"}
        assert failed == {"party-1"}
        assert made(finished)["party-1"]["x"].size(0) == 0
        assert all(made(finished)[name]["x"].size(0) > 0 for name in ("party-0", "party-3"))
    for name, weight in found["together"].weights.items():
        torch.testing.assert_close(weight, found["apart"].weights[name], rtol=1e-5, atol=1e-5)


def test_what_the_set_up_needed_is_let_go(node_parties):
    finished = run(FedSagePlus(rounds=1, neighgen=QUICK), node_parties)
    finished.go()
    for saved in finished.federation.save().values():
        assert saved["kept"].keys() == {"prepared", "scale", "neighgen", "groups"}
        assert saved["kept"]["neighgen"] is saved["kept"]["groups"] is False
        assert saved["inbox"].keys().isdisjoint({"show", "compare"})
