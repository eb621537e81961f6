"""FedGL against its paper's algorithm written out with full matrices, and what the server may and may not see."""

import copy
import itertools
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from helpers import make_graph_parties, make_node_parties
from isthmus.data.datasets.banks import Banks
from isthmus.data.partition.given import Given
from isthmus.data.pooled import pool_parties
from isthmus.errors import IsthmusError, PartyFailed
from isthmus.federation.actions import action
from isthmus.federation.answers import Total
from isthmus.methods.base import State
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.fedgl import CLOSED, NONE, FedGL
from isthmus.methods.training import LocalTraining
from isthmus.nn.encoders import Encoder
from isthmus.study.config import Study
from isthmus.study.loop import Run
from isthmus.study.setup import module_for, task_for
from isthmus.testing import check_method, small_parties

SGD = LocalTraining(epochs=2, optimizer="sgd", lr=0.5, weight_decay=0.0)
SMALL = LocalTraining(epochs=2, optimizer="sgd", lr=0.02, weight_decay=0.0)
LITERAL = {
    "similarity": "dot", "mutual": False, "min_confident": 0.0, "max_changed": 1.0, "normalize_jointly": False,
    "fusion": "all", "sum_losses": True, "min_contributors": 1, "send_probabilities": True,
}  # fmt: skip
"""Algorithm 1 to the letter."""


def make_parties(parties=3, nodes=45, overlap=0.6, **options):
    banks = Banks(parties=parties, nodes=nodes, overlap=overlap, train=0.2, **options).load(0)
    return Given().cut(banks, parties, 0)


def run(method, parties, encoder="gcn", **ways):
    task = task_for(parties, 4)
    module = module_for(Encoder.named(encoder)(hidden=5, dropout=0.0), parties, task, 0)
    return Run(method, parties, task, module, seed=0, **ways)


# ---- Algorithm 1, with full matrices and one node after another


def normalised(party):
    a = torch.eye(party.nodes)
    for source, target in party.graph.edge_index.t().tolist():
        a[target, source] += 1
    scale = a.sum(1) ** -0.5
    return a, scale[:, None] * a * scale


def complemented(party, method, pseudo):
    """(9), where `pseudo` are the pseudo graph's rows and columns of the party's nodes."""
    a, normal = normalised(party)
    if pseudo is None:
        return normal
    if method.normalize_jointly:
        whole = a + method.beta * pseudo
        scale = whole.sum(1) ** -0.5
        return scale[:, None] * whole * scale
    degree = pseudo.sum(1)
    scale = torch.tensor([d**-0.5 if d > 0 else 1.0 for d in degree.tolist()])
    return normal + method.beta * scale[:, None] * pseudo * scale


class Literal:
    """The paper's algorithm over lists of parties."""

    def __init__(self, method, module, parties):
        self.method, self.parties, self.model = method, parties, copy.deepcopy(module)
        self.ids = sorted({int(i) for party in parties for i in party.ids})
        self.rows = [[self.ids.index(int(i)) for i in party.ids] for party in parties]
        self.labels = dict.fromkeys(range(len(self.ids)), NONE)
        self.pseudo = self.before = None
        self.ready = False
        self.guesses = [[NONE] * party.nodes for party in parties]

    def output(self, model, party, a):
        (w0, b0), (w1, b1) = ((conv.lin.weight, conv.bias) for conv in model.convs)
        return a @ ((a @ (party.graph.x @ w0.t()) + b0).relu() @ w1.t()) + b1

    def round(self):
        told, states = [], []
        for at, party in enumerate(self.parties):
            rows = self.rows[at]
            a = complemented(party, self.method, None if self.pseudo is None else self.pseudo[rows][:, rows])
            labels = [self.guesses[at][i] if self.labels[r] == CLOSED else self.labels[r] for i, r in enumerate(rows)]
            model = copy.deepcopy(self.model)
            optimizer = torch.optim.SGD(model.parameters(), lr=self.method.local.rate)
            for _ in range(self.method.local.epochs):
                optimizer.zero_grad()
                self.loss(self.output(model, party, a), party, labels).backward()
                optimizer.step()
            states.append(model.state_dict())
            told.append(self.output(model, party, a).detach())
            self.guesses[at] = [
                int(p.argmax()) if float(p.max()) > self.method.threshold else NONE for p in told[-1].softmax(1)
            ]
        sizes = [party.nodes for party in self.parties]
        mean = {k: sum(n * s[k] for n, s in zip(sizes, states, strict=True)) / sum(sizes) for k in states[0]}
        self.model.load_state_dict(mean)
        self.discover(told, sizes)

    def loss(self, output, party, labels):
        of_gcn, of_ssl = [], []
        for i, label in enumerate(labels):
            if party.train[i]:
                of_gcn.append(-output[i].log_softmax(0)[party.graph.y[i]])
            elif label >= 0:
                of_ssl.append(-output[i].log_softmax(0)[label])
        reduced = [
            (torch.stack(part).sum() if self.method.sum_losses else torch.stack(part).mean())
            if part
            else torch.zeros(())
            for part in (of_gcn, of_ssl)
        ]
        return reduced[0] + self.method.alpha * reduced[1]

    def discover(self, told, sizes):
        fused, opened, best, sure = [], [], [], []
        for i in range(len(self.ids)):
            by = [(n, h[rows.index(i)]) for n, h, rows in zip(sizes, told, self.rows, strict=True) if i in rows]
            total = sum(sizes) if self.method.fusion == "all" else sum(n for n, _ in by)
            fused.append(sum(n * h for n, h in by) / total)
            p = sum(n * h.softmax(0) for n, h in by) / total if self.method.send_probabilities else fused[-1].softmax(0)
            opened.append(len(by) >= self.method.min_contributors)
            best.append(int(p.argmax()))
            sure.append(opened[i] and float(p.max()) > self.method.threshold)
        self.ready = self.ready or sum(sure) >= self.method.min_confident * sum(opened)
        for i in range(len(self.ids) if self.ready else 0):
            self.labels[i] = CLOSED if not opened[i] else best[i] if sure[i] else NONE
        changed = [one != other for one, other, seen in zip(best, self.before or best, opened, strict=True) if seen]
        settled = self.before is not None and sum(changed) <= self.method.max_changed * len(changed)
        self.before = best
        if self.pseudo is not None or (self.ready and (settled or self.method.max_changed == 1)):
            self.pseudo = self.graph(fused, opened)

    def graph(self, fused, opened):
        n = len(self.ids)
        found = torch.zeros(n, n)
        for i in range(n):
            for j in range(n):
                if i != j and opened[i] and opened[j]:
                    pair = [fused[i], fused[j]]
                    if self.method.similarity == "cosine":
                        pair = [F.normalize(each, dim=0) for each in pair]
                    found[i, j] = max(float(pair[0] @ pair[1]), 0.0)
        for i in range(n):
            for j in found[i].argsort(descending=True)[self.method.neighbours :]:
                found[i, j] = 0.0
        if self.method.mutual:
            found = torch.minimum(found, found.t())
        total = found.sum(1, keepdim=True)
        return torch.where(total > 0, found / total.clamp(min=1e-30), found)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"min_confident": 0.0, "max_changed": 1.0},
        LITERAL,
        {**LITERAL, "fusion": "holders", "min_contributors": 2},
        {"normalize_jointly": False, "min_confident": 0.0, "max_changed": 1.0},
    ],
    ids=["defaults", "from the first round", "literal", "literal by holders", "apart"],
)
@pytest.mark.thinned(3)
def test_it_is_the_papers_algorithm(options, double_precision):
    parties = [replace(party, graph=party.graph.clone()) for party in make_parties()]
    for party in parties:
        party.graph.x = party.graph.x.double()
    method = FedGL(
        rounds=4, select="last", neighbours=6, threshold=0.3, local=SMALL if "sum_losses" in options else SGD, **options
    )
    ran = run(method, parties)
    literal = Literal(method, ran.module, parties)
    for state in ran._rounds():
        literal.round()
        assert state.labels.tolist() == [literal.labels[i] for i in range(len(literal.ids))]
        found = torch.zeros(len(literal.ids), len(literal.ids))
        if "ends" in state:
            found[state.ends[0], state.ends[1]] = state.similarity
        assert torch.allclose(found, torch.zeros(()) if literal.pseudo is None else literal.pseudo, atol=1e-9)
        for name, weight in state.weights.items():
            assert torch.allclose(weight, literal.model.state_dict()[name], atol=1e-9), (state.round, name)
    assert (state.labels >= 0).any()
    assert literal.pseudo is None or (literal.pseudo > 0).any()


# ---- switches


def weights_of(method, parties, **ways):
    return run(method, parties, **ways).go().weights


def test_without_both_parts_it_is_federated_averaging():
    parties = make_parties()
    plain = weights_of(FedAvg(rounds=3, weighting="size", select="last"), parties)
    switched = weights_of(FedGL(rounds=3, select="last", pseudo_labels=False, pseudo_graph=False), parties)
    assert all(torch.equal(plain[name], switched[name]) for name in plain)


@pytest.mark.parametrize("joined", [True, False])
def test_a_pseudo_graph_of_no_weight_changes_nothing(joined):
    parties = make_parties()
    plain = weights_of(FedGL(rounds=3, select="last", pseudo_graph=False), parties)
    nothing = weights_of(
        FedGL(rounds=3, select="last", beta=0.0, min_confident=0.0, max_changed=1.0, normalize_jointly=joined), parties
    )
    assert all(torch.allclose(plain[name], nothing[name], atol=1e-5) for name in plain)


@pytest.mark.parametrize("part", ["pseudo_labels", "pseudo_graph"])
def test_each_part_changes_what_is_learned(part):
    parties = make_parties()
    options = {"rounds": 4, "select": "last", "min_confident": 0.0, "max_changed": 1.0, "threshold": 0.3}
    whole, without = (weights_of(FedGL(**options, **{part: on}), parties) for on in (True, False))
    assert not torch.allclose(whole["convs.0.lin.weight"], without["convs.0.lin.weight"])


# ---- what parties learn


def test_labelled_nodes_keep_their_labels_and_others_get_new_ones_every_round():
    parties = make_parties(nodes=90)
    ran = run(FedGL(rounds=5, threshold=0.3, local=SGD), parties)
    (site,) = ran.transport.sites
    seen = []
    for _ in ran._rounds():
        with site.asked():
            seen.append(torch.cat([each["label"] for each in site.kept.each("prepared")]))
    train = torch.cat([party.train for party in parties])
    assert (seen[0] == NONE).all()
    assert all((labels[train] == NONE).all() for labels in seen)
    assert all((labels[~train] >= 0).any() for labels in seen[1:])
    assert any(not torch.equal(one, other) for one, other in itertools.pairwise(seen[1:]))


def with_lonely_nodes(parties):
    """Of every party the nodes that no other party holds."""
    ids, holders = torch.cat([party.ids for party in parties]).unique(return_counts=True)
    return [~torch.isin(party.ids, ids[holders > 1]) for party in parties]


def test_of_a_node_with_one_holder_the_server_reads_nothing_and_the_party_keeps_its_own_guess():
    parties = make_parties()
    ran = run(FedGL(rounds=2, threshold=0.0, min_confident=0.0, max_changed=1.0), parties)
    list(ran._rounds())
    (site,), state = ran.transport.sites, ran.state
    lonely = with_lonely_nodes(parties)
    assert all(mask.any() and not mask.all() for mask in lonely)
    for at, (party, alone) in enumerate(zip(parties, lonely, strict=True)):
        own = state.labels[state.union["held"][party.name]]
        assert torch.equal(own == CLOSED, alone)
        with site.asked((at,)):
            label = site.kept.each("prepared")[0]["label"]
            assert torch.equal(label >= 0, ~party.train)  # a threshold of 0 lets every guess through
    held = torch.isin(state.union["ids"], torch.cat([p.ids[m] for p, m in zip(parties, lonely, strict=True)]))
    assert not held[state.ends].any()


def test_the_server_is_told_sums_alone():
    ran = run(FedGL(rounds=2, min_confident=0.0, max_changed=1.0), make_parties())
    ran.go()
    eyes = {(row["action"], row["eyes"]) for row in ran.federation.ledger.rows()}
    told = {"known": "server sees each answer", "learn": "server sees each answer"}
    assert {action for action, seen in eyes if seen != "server sees the sum"} == set(told)
    sent = {row["action"]: row["fields"] for row in ran.federation.ledger.rows()}
    assert sent["known"].startswith("ids[")
    assert sent["learn"] == ""


@pytest.fixture
def caught(monkeypatch):
    """What the server is told in each round: sums, and how many nodes all parties have."""
    found, discover = [], FedGL.discover
    monkeypatch.setattr(FedGL, "discover", lambda self, *given: (found.append(given[:2]), discover(self, *given))[1])
    return found


def test_what_is_not_opened_is_not_in_the_sum(caught):
    parties = make_parties()
    run(FedGL(rounds=1), parties).go()
    ((told, _),) = caught
    assert isinstance(told, Total)
    lonely = torch.cat([party.ids[mask] for party, mask in zip(parties, with_lonely_nodes(parties), strict=True)])
    closed = torch.isin(told.rows.ids, lonely)
    assert torch.equal(told.opened, ~closed)
    assert (told.sum("embedding")[closed] == 0).all()
    assert (told.sum("embedding")[~closed] != 0).any(1).all()


@pytest.mark.parametrize("fusion", ["holders", "all"])
def test_probabilities_sum_up_to_one_over_holders_or_over_all(fusion, caught):
    parties = make_parties()
    ran = run(FedGL(rounds=1, fusion=fusion, min_contributors=1, send_probabilities=True), parties)
    ran.go()
    ((told, everyone),) = caught
    share = torch.zeros(len(ran.state.union["ids"]))
    for party in parties:
        share[ran.state.union["held"][party.name]] += party.nodes / sum(each.nodes for each in parties)
    assert (share < 0.99).any()
    due = share if fusion == "all" else torch.ones_like(share)
    assert torch.allclose(ran.method.fused(told, "probability", everyone).sum(1), due, atol=1e-5)


@pytest.mark.parametrize("both", [False, True])
def test_one_sum_a_node_is_told_unless_both_are_asked_for(both, caught):
    """Of two sums, of outputs and of their softmax, the parts of two holders could be solved for."""
    run(FedGL(rounds=1, send_probabilities=both), make_parties()).go()
    assert set(caught[0][0].payload()) == ({"embedding", "probability"} if both else {"embedding"})


def test_nothing_is_told_where_nothing_is_found():
    ran = run(FedGL(rounds=2, pseudo_labels=False, pseudo_graph=False), make_parties())
    ran.go()
    assert {row["action"] for row in ran.federation.ledger.rows()} == {"known", "train", "evaluate"}


def test_pseudo_labelled_nodes_count_for_nothing_in_a_mean_by_training_items():
    parties = make_parties(nodes=90)
    ran = run(FedGL(rounds=3, weighting="train", threshold=0.3), parties)
    list(ran._rounds())
    (site,) = ran.transport.sites
    with site.asked():
        assert site.averaging_weights().tolist() == [float(party.train.sum()) for party in parties]
        assert (site.cohort.counts("train") > site.averaging_weights()).any()


# ---- who is there


@pytest.mark.parametrize("side_by_side", [True, False])
def test_a_party_that_failed_in_the_set_up_is_not_asked_again(side_by_side, monkeypatch):
    known = FedGL.AtParty.known

    @action("ask")
    def fail(site, request):
        if "party-1" in site.cohort.names:
            raise PartyFailed("party-1", "no disk")
        return known(site, request)

    monkeypatch.setattr(FedGL.AtParty, "known", fail)
    ran = run(
        FedGL(rounds=3, quorum=0.5, min_confident=0.0, max_changed=1.0, select="last"),
        make_parties(),
        side_by_side=side_by_side,
    )
    ran.go()
    assert set(ran.state.union["held"]) == {"party-0", "party-2"}
    trained = {row["party"] for row in ran.federation.ledger.rows() if row["action"] == "train"}
    assert trained == {"party-0", "party-2"}
    assert (ran.state.labels > CLOSED).any()


def test_a_round_with_one_party_finds_nothing():
    ran = run(
        FedGL(rounds=3, fraction=0.3, min_confident=0.0, max_changed=1.0, threshold=0.0, select="last"), make_parties()
    )
    for state in ran._rounds():
        assert (state.labels == CLOSED).all()


def test_who_is_drawn_does_not_hide_that_predictions_have_settled():
    """Rows that a round leaves closed keep what was predicted of them before."""
    parties = make_parties(parties=6, nodes=120, overlap=1.0)
    local = LocalTraining(epochs=1, optimizer="sgd", lr=1e-6)  # nothing changes from round to round
    ran = run(FedGL(rounds=8, fraction=0.5, min_confident=0.0, max_changed=0.05, local=local, select="last"), parties)
    ran.go()
    assert "ends" in ran.state


def test_parties_that_share_nothing_are_told_so(caplog):
    run(FedGL(rounds=1), make_parties(overlap=0.0)).go()
    assert "no node is held by 2 parties" in caplog.text


def test_rows_that_the_projection_empties_stay_finite():
    method = FedGL(normalize_jointly=False, beta=2.0)
    party = make_parties()[0]
    edges, weight = torch.tensor([[1, 2], [0, 0]]), torch.tensor([0.25, 0.25])
    graph = method.complemented(party.graph, edges, weight)
    assert graph.edge_weight.isfinite().all()
    assert torch.equal(graph.edge_weight[-2:], 2.0 * torch.tensor([0.25, 0.25]) * 0.5**-0.5)
    dense = torch.zeros(party.nodes, party.nodes).index_put(
        (graph.edge_index[1], graph.edge_index[0]), graph.edge_weight, accumulate=True
    )
    assert torch.allclose(dense, complemented(party, method, pseudo_of(party, edges, weight)), atol=1e-6)


def pseudo_of(party, edges, weight):
    return torch.zeros(party.nodes, party.nodes).index_put((edges[1], edges[0]), weight, accumulate=True)


# ---- the graph of all


@pytest.mark.parametrize("joined", [True, False])
def test_the_graph_of_all_is_evaluated_as_it_is(joined):
    parties = make_parties()
    ran = run(FedGL(rounds=2, min_confident=0.0, max_changed=1.0, normalize_jointly=joined, select="last"), parties)
    found = ran.go()
    assert "ends" in ran.state
    ran.module.load_state_dict(found.weights)
    whole = pool_parties(parties)
    with torch.no_grad():
        right = ran.module(whole.graph.x, whole.graph.edge_index).argmax(1) == whole.graph.y
    assert found.metrics["pooled_test_accuracy"] == pytest.approx(float(right[whole.test].float().mean()))


def test_on_overlapping_graphs_the_defaults_come_to_a_pseudo_graph():
    plan = Study.of({"data": {"name": "hospitals"}, "methods": [{"name": "fedgl"}], "training": {"rounds": 20}})
    loaded = plan.load(0)
    module = module_for(plan.encoder(), loaded.parties, loaded.task, 0)
    ran = Run(plan.method_list()[0], loaded.parties, loaded.task, module, seed=0)
    began = [state.round for state in ran._rounds() if "ends" in state]
    assert 3 < began[0] < 20  # not before predictions have settled


# ---- conformance, where nodes are shared


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"min_confident": 0.0, "max_changed": 1.0, "threshold": 0.3},
        {**LITERAL, "fraction": 0.6},
        {"pseudo_labels": False, "min_confident": 0.1, "max_changed": 0.5},
    ],
    ids=["defaults", "literal, sampled", "graph alone"],
)
def test_it_conforms_on_parties_that_share_nodes(options):
    check_method(FedGL(rounds=4, **options), make_parties(parties=4, nodes=120))


# ---- errors


@pytest.mark.parametrize(
    ("options", "encoder", "text"),
    [
        ({}, "sage", "does not read the edge weights of the pseudo graph"),
        ({}, "mlp", "does not read the edge weights of the pseudo graph"),
        ({"normalize_jointly": False}, "sgc", "needs the layers of a GCN"),
        ({"fusion": "all", "weighting": "even"}, "gcn", "fusion = 'all' needs weighting = 'size'"),
    ],
)
def test_what_does_not_go_together_is_one_line(options, encoder, text):
    with pytest.raises(IsthmusError, match=text):
        run(FedGL(rounds=1, **options), make_parties(), encoder)


@pytest.mark.parametrize("encoder", ["sage", "gat"])
def test_any_encoder_learns_pseudo_labels(encoder):
    assert run(FedGL(rounds=2, pseudo_graph=False), make_parties(), encoder).go().metrics["test_accuracy"] > 0


def test_parties_without_ids_are_named():
    with pytest.raises(IsthmusError, match=r"party 'party-0'.*its nodes have no ids"):
        run(FedGL(rounds=1), [replace(party, ids=None) for party in make_node_parties()]).go()


def test_several_tasks_have_no_pseudo_labels():
    parties = small_parties("node", labels="multilabel")
    task = task_for(parties)
    module = module_for(Encoder.named("gcn")(hidden=5), parties, task, 0)
    with pytest.raises(IsthmusError, match="has no classes that could be pseudo labels"):
        Run(FedGL(rounds=1), parties, task, module)
    assert Run(FedGL(rounds=1, pseudo_labels=False), parties, task, module).go().weights


def test_it_is_for_nodes():
    parties = make_graph_parties()
    with pytest.raises(IsthmusError, match="is for node tasks"):
        run(FedGL(rounds=1), parties, "gin")


def test_where_nothing_is_opened_nothing_has_been_learned():
    state = State()
    guess, none = torch.tensor([0, 1]), torch.tensor([False, False])
    FedGL().watch(guess, none, none, state)
    assert "ready" not in state
    FedGL(min_confident=0.5).watch(guess, torch.tensor([True, False]), torch.tensor([True, True]), state)
    assert "ready" in state
    assert "began" not in state
