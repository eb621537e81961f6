"""FedGC: condensation over parties, with self-training and the bottleneck."""

from copy import deepcopy

import pytest
import torch
from condensing_runs import QUICK, run_of, server_of
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

from isthmus import store
from isthmus.data.pooled import pool_parties
from isthmus.federation.local import LocalTransport
from isthmus.federation.verbs import Federation
from isthmus.methods.base import Model, State
from isthmus.methods.fedgc import FedGC
from isthmus.methods.gcond import DosCond
from isthmus.nn import condensed
from isthmus.nn.diffusion import Diffusion
from isthmus.nn.encoders import Encoder
from isthmus.study.setup import module_for, task_for
from isthmus.testing import check_method


@pytest.mark.parametrize("backbone", ["sgc", "gcn"])
def test_one_round_is_that_of_the_paper_written_out(parties, backbone):
    """(5), (8), (9): sums of neighbours by hand, gradients by autograd party by party, a step of Adam by torch."""
    method = FedGC(
        **QUICK, hops=2, self_training=False, bottleneck=False, min_contributors=1, distance="mse", backbone=backbone
    )
    server, _, state, _ = server_of(method, parties)
    for _ in range(4):  # two sums, the counts, one round
        before = {name: deepcopy(state.save().get(name)) for name in ("graph", "y", "scale")}
        next(server)
    assert state.round == 1
    assert state.theta.keys() == ({"output"} if backbone == "sgc" else {"hidden", "output"})
    goal = literal_goal(parties, state.theta)
    graph = {name: value.clone().requires_grad_() for name, value in before["graph"].items()}
    joined = condensed.adjacency(graph["x"], graph, symmetric=True)
    looped = joined + torch.eye(len(joined))
    matrix = looped / (looped.sum(1, keepdim=True) * looped.sum(1)).sqrt()
    loss = torch.tensor(0.0)
    for kind, due in enumerate(goal):
        found = literal_slopes(matrix, before["scale"] * graph["x"], before["y"], before["y"] == kind, state.theta)
        loss = loss + sum((found[name] - due[name]).square().sum() for name in due)
    edges = [value for name, value in graph.items() if name != "x"]
    optimizer = torch.optim.Adam([{"params": [graph["x"]], "lr": 0.03}, {"params": edges, "lr": 1e-3}])
    loss.backward()
    optimizer.step()
    for name, value in graph.items():
        torch.testing.assert_close(state.graph[name], value.detach(), atol=1e-5, rtol=1e-4)


def literal_slopes(matrix, x, y, rows, theta):
    """Gradients of the mean loss of some rows, by autograd: of an SGC, or of a GCN if there is a hidden layer."""
    own = {name: value.clone().requires_grad_() for name, value in theta.items()}
    h = matrix @ (matrix @ x @ own["hidden"].T).relu() if "hidden" in own else matrix @ matrix @ x
    loss = F.cross_entropy(h[rows] @ own["output"].T, y[rows])
    return dict(zip(own, torch.autograd.grad(loss, list(own.values()), create_graph=True), strict=True))


def literal_goal(parties, theta):
    """(9) by class, on features that were propagated twice over the whole graph, then within each party."""
    whole = pool_parties(parties)
    summed = Diffusion(hops=2).diffuse(whole.graph.x.to_dense(), whole.graph.edge_index, whole.graph.edge_weight)
    goal = []
    for kind in range(theta["output"].size(0)):
        total, sums = 0, {name: torch.zeros_like(value) for name, value in theta.items()}
        for party in parties:
            rows = party.train & (party.graph.y == kind)
            if rows.any():
                x = summed[torch.searchsorted(whole.ids, party.ids)]
                edges = party.graph.edge_index, party.graph.get("edge_weight")
                matrix = Diffusion(hops=1).diffuse(torch.eye(len(x)), *edges)
                for name, slope in literal_slopes(matrix, x, party.graph.y, rows, theta).items():
                    sums[name] += int(rows.sum()) * slope.detach()
                total += int(rows.sum())
        goal.append({name: value / max(total, 1) for name, value in sums.items()})
    return goal


@pytest.mark.parametrize(("nodes", "backbone"), [("labelled", "sgc"), ("training", "gcn"), ("labelled", "gcn")])
def test_gradients_are_those_of_the_nodes_that_are_condensed(parties, nodes, backbone):
    """(9) with the labels of self-training, over all nodes or those of training, each class apart by autograd."""
    run = run_of(FedGC(**QUICK, condensed=nodes, backbone=backbone), parties)
    run.go()
    (site,) = run.transport.sites
    with site.asked():
        classes = site.task.outputs
        draw = torch.Generator().manual_seed(0)
        theta = {"output": torch.randn(classes, parties[0].features, generator=draw)}
        if backbone == "gcn":
            theta = {
                "hidden": torch.randn(5, parties[0].features, generator=draw),
                "output": torch.randn(classes, 5, generator=draw),
            }
        told = site.match({"theta": theta})
        kept = zip(parties, site.kept.each("labels"), site.cohort.parties, strict=True)
        for at, (party, labels, made) in enumerate(kept):
            edges = party.graph.edge_index, party.graph.get("edge_weight")
            matrix = Diffusion(hops=1).diffuse(torch.eye(party.items), *edges)
            for kind in range(classes):
                rows = labels == kind if nodes == "labelled" else party.train & (party.graph.y == kind)
                due = {name: torch.zeros_like(value) for name, value in theta.items()}
                if rows.any():
                    due = literal_slopes(matrix, made.graph.x, labels, rows, theta)
                assert told.weight[at, kind] == rows.sum()
                for name, value in due.items():
                    torch.testing.assert_close(
                        told.fields["slopes"][name][at, kind], value.detach(), atol=1e-5, rtol=1e-4
                    )


def test_labels_come_from_the_teacher_for_all_but_training_nodes(parties):
    method = FedGC(**QUICK)
    run = run_of(method, parties)
    run.go()
    (site,) = run.transport.sites
    with site.asked():
        labels = site.kept.each("labels")
        for party, own in zip(parties, labels, strict=True):
            assert torch.equal(own[party.train], party.graph.y[party.train])
            assert own.shape == party.graph.y.shape
        assert any(bool((own != party.graph.y)[~party.train].any()) for party, own in zip(parties, labels, strict=True))


def test_a_second_model_learns_from_the_labels_of_the_first(parties):
    """One round of it, written out: from the first weights, all nodes of each party, a mean by training nodes."""
    method = FedGC(**{**QUICK, "teaching": 1}, hops=0, local={"epochs": 2, "optimizer": "sgd", "lr": 0.5})
    task = task_for(parties)
    module = module_for(Encoder.named("gcn")(hidden=8, dropout=0.0), parties, task, 0)
    site, state = method.site(parties, task, module), State()
    federation = Federation(LocalTransport([site]), clock=lambda: int(state.round))
    server = method.server(federation, Model(module, task.outputs, parties[0].features), state)
    next(server)  # a round of the first model
    next(server)  # its labels
    with site.asked():
        labels, first = site.kept.each("labels"), Model(module).weights()
        next(server)  # a round of the second
        total = sum(int(party.train.sum()) for party in parties)
        due = {name: torch.zeros_like(value) for name, value in first.items()}
        for party, y in zip(parties, labels, strict=True):
            module.load_state_dict(first)
            optimizer = torch.optim.SGD(module.parameters(), lr=0.5, weight_decay=5e-4)
            for _ in range(2):
                optimizer.zero_grad()
                F.cross_entropy(module(party.graph.x, party.graph.edge_index), y).backward()
                optimizer.step()
            for name, value in module.state_dict().items():
                due[name] += int(party.train.sum()) / total * value
        for name, value in due.items():
            torch.testing.assert_close(state.now[name], value, atol=1e-6, rtol=1e-5)


def test_the_last_labels_are_the_second_models(parties):
    found = {}
    for passes in (1, 2):
        run = run_of(FedGC(**QUICK, passes=passes, bottleneck=False), parties)
        run.go()
        (site,) = run.transport.sites
        with site.asked():
            teacher = site.predict({"weights": run.state.teacher}).argmax(1)
            found[passes] = torch.cat(site.kept.each("labels"))
            others = ~site.cohort.masks["train"]
            assert torch.equal(found[passes][others], teacher[others])
    assert not torch.equal(found[1], found[2])


@pytest.mark.parametrize("steps", [4, 6, 7])
@pytest.mark.thinned(3)
def test_a_run_that_stops_while_models_teach_goes_on(parties, steps, tmp_path):
    """In the first model's rounds, in the second's, and before its labels."""
    method = FedGC(**{**QUICK, "teaching": 2})
    due, stopped = run_of(method, parties).go(), run_of(method, parties)
    rounds = stopped._rounds()
    for _ in range(steps):
        next(rounds)
    store.save(tmp_path / "checkpoint", stopped._save())
    found = run_of(method, parties, checkpoint=tmp_path / "checkpoint").go()
    assert torch.equal(found.graph["x"], due.graph["x"])
    assert found.metrics == due.metrics
    assert list(found.ledger.rows()) == list(due.ledger.rows())


def test_what_parties_keep_of_the_bottleneck_is_a_draw_and_no_feature(parties):
    run = run_of(FedGC(**QUICK), parties)
    run.go()
    (site,) = run.transport.sites
    made = site.cohort_of(range(len(parties))).parties
    for party, own in zip(parties, made, strict=True):
        assert own.graph.x.shape == party.graph.x.shape
        near = torch.cdist(own.graph.x, party.graph.x.to_dense()).min(1).values
        assert bool((near > 0).all())


def test_the_first_bottleneck_is_the_same_at_all_parties():
    method = FedGC(**QUICK)
    first, again = method._first_bottleneck(7, 0), method._first_bottleneck(7, 0)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert first["second.weight"].shape == (14, method.width)


@pytest.mark.parametrize("off", ["hops", "self_training", "bottleneck", "finetune", "edges"])
@pytest.mark.thinned(3)
def test_each_part_can_be_switched_off(parties, off):
    value = 0 if off == "hops" else False
    found = run_of(FedGC(**QUICK, **{off: value}), parties).go()
    actions = {row["action"] for row in found.ledger.rows()}
    assert ("sum_up" in actions) == (off != "hops")
    assert ("label" in actions) == (off != "self_training")
    assert ("transform" in actions) == (off != "bottleneck")
    assert (found.graph["edge_index"].numel() > 0) == (off != "edges")
    assert all(row["verb"] == "total" for row in found.ledger.rows() if row["action"] in ("match", "count", "train"))


def test_the_server_never_reads_a_single_partys_gradient(parties):
    eyes = {row["eyes"] for row in run_of(FedGC(**QUICK), parties).go().ledger.rows() if row["action"] == "match"}
    assert eyes == {"server sees the sum"}


@pytest.mark.slow
@pytest.mark.parametrize("method", [FedGC, DosCond])
def test_other_options_conform(method):
    options = {"distance": "columns", "symmetric": False, "start": "random", "renew": 2, "inner": 2, "fraction": 0.6}
    check_method(method(**{k: v for k, v in QUICK.items() if k in method.model_fields}, **options))


def test_other_parties_are_drawn_in_every_round_of_teaching(parties):
    found = run_of(FedGC(**{**QUICK, "teaching": 8}, fraction=0.5), parties).go()
    drawn = [call.parties for call in found.ledger.entries if call.action == "train"]
    assert len(drawn) == 2 * 8
    assert len(set(drawn)) > 1


def test_the_bottlenecks_model_is_fixed_only_if_self_training_made_it(parties):
    """Without it one step, written out party by party: W_1, W_2 and the GCN all move, from what all parties share."""
    steps = {"epochs": 1, "optimizer": "sgd", "lr": 0.5, "weight_decay": 0.0}
    for taught in (True, False):
        method = FedGC(**{**QUICK, "transforming": steps}, hops=0, self_training=taught)
        run = run_of(method, parties)
        head, bottleneck = Model(run.module).weights(), method._first_bottleneck(parties[0].features, 0)
        (site,) = run.transport.sites
        with site.asked():
            noise = site._noise(parties[0].features, 0).split([party.items for party in parties])
            site.transform({"head": head, "bottleneck": bottleneck})
            moved = site.model.stacks()
        for at, party in enumerate(parties):
            due = head if taught else head_after_a_step(run.module, method, party, head, bottleneck, noise[at])
            for name, value in due.items():
                torch.testing.assert_close(moved[name][at], value, atol=1e-6, rtol=1e-4)


def head_after_a_step(module, method, party, head, bottleneck, noise):
    """The GCN's weights after one step on (17) of it and of the bottleneck."""
    made = method.bottleneck_of(party.features)
    made.load_state_dict(bottleneck)
    module.load_state_dict(head)
    module.eval().zero_grad()
    graph, edges = party.graph, (party.graph.edge_index, party.graph.get("edge_weight"))
    optimizer = torch.optim.SGD([*made.parameters(), *module.parameters()], lr=method.transforming.lr)
    mean, spread = made(graph.x.to_dense(), *edges)
    output = module(mean + spread * noise, *edges)
    kl = kl_divergence(Normal(mean, spread), Normal(0, 1)).sum(1).mean()
    (F.cross_entropy(output[party.train], graph.y[party.train]) + method.gamma * kl).backward()
    optimizer.step()
    return module.state_dict()


def test_the_preset_changes_what_is_not_given():
    paper = FedGC(preset="paper", passes=3)
    assert (paper.backbone, paper.start, paper.distance, paper.passes) == ("gcn", "random", "mse", 3)
    assert FedGC(**paper.model_dump(exclude_unset=True)) == paper
    assert FedGC().backbone == "sgc"
