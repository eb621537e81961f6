"""FedGC and the condensations it is compared with."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import isthmus
from isthmus import store
from isthmus.data.party import pool_parties
from isthmus.errors import IsthmusError
from isthmus.federation.local import LocalTransport
from isthmus.federation.verbs import Federation
from isthmus.methods.base import Model, State
from isthmus.methods.bds_gcn import BdsGcn
from isthmus.methods.fedcog_gcn import FedCogGcn
from isthmus.methods.fedgc import FedGC
from isthmus.methods.fedgcn import FedGcn
from isthmus.methods.gcond import DosCond, GCond
from isthmus.methods.sfgc import SFGC
from isthmus.nn import condensed
from isthmus.nn.diffusion import Diffusion
from isthmus.nn.encoders import Encoder
from isthmus.study.loop import Run
from isthmus.study.setup import module_for, task_for
from isthmus.testing import check_method, small_parties

QUICK = {
    "rounds": 4, "every": 2, "teaching": 2, "ratio": 0.1, "transforming": {"epochs": 3}, "target": {"epochs": 5},
}  # fmt: skip


@pytest.fixture(scope="module")
def parties():
    return small_parties("node")


def run_of(method, parties, seed=0, **ways):
    task = task_for(parties)
    module = module_for(Encoder.named("gcn")(hidden=8), parties, task, seed)
    return Run(method, parties, task, module, seed=seed, **ways)


def server_of(method, parties):
    """Server side and site, to be driven by hand."""
    task = task_for(parties)
    module = module_for(Encoder.named("gcn")(hidden=8), parties, task, 0)
    site, state = method.site(parties, task, module), State()
    federation = Federation(LocalTransport([site]), clock=lambda: int(state.round))
    return method.server(federation, Model(module), state), site, state, federation


def test_one_round_is_that_of_the_paper_written_out(parties):
    """(5), (8), (9): sums of neighbours by hand, gradients by autograd party by party, a step of Adam by torch."""
    method = FedGC(
        **QUICK, hops=2, self_training=False, bottleneck=False, min_contributors=1, hops_matched=2, distance="mse"
    )
    server, _, state, _ = server_of(method, parties)
    for _ in range(4):  # two sums, the counts, one round
        before = {name: deepcopy(state.save().get(name)) for name in ("graph", "y", "scale")}
        next(server)
    assert state.round == 1
    goal = literal_goal(parties, state.theta)
    graph = {name: value.clone().requires_grad_() for name, value in before["graph"].items()}
    joined = condensed.adjacency(graph["x"], graph, symmetric=True)
    looped = joined + torch.eye(len(joined))
    matrix = looped / (looped.sum(1, keepdim=True) * looped.sum(1)).sqrt()
    h = matrix @ matrix @ (before["scale"] * graph["x"])
    loss = torch.tensor(0.0)
    for kind, due in enumerate(goal):
        own = state.theta.clone().requires_grad_()
        rows = before["y"] == kind
        (slope,) = torch.autograd.grad(F.cross_entropy(h[rows] @ own.T, before["y"][rows]), own, create_graph=True)
        loss = loss + (slope - due).square().sum()
    edges = [value for name, value in graph.items() if name != "x"]
    optimizer = torch.optim.Adam([{"params": [graph["x"]], "lr": 0.03}, {"params": edges, "lr": 1e-3}])
    loss.backward()
    optimizer.step()
    for name, value in graph.items():
        torch.testing.assert_close(state.graph[name], value.detach(), atol=1e-5, rtol=1e-4)


def literal_goal(parties, theta):
    """(9) on features that were propagated twice over the whole graph and then within each party."""
    whole = pool_parties(parties)
    summed = Diffusion(hops=2).diffuse(whole.graph.x.to_dense(), whole.graph.edge_index, whole.graph.edge_weight)
    goal, total = torch.zeros(theta.size(0), *theta.shape), torch.zeros(theta.size(0))
    for party in parties:
        x = summed[torch.searchsorted(whole.ids, party.ids)]
        h = Diffusion(hops=2).diffuse(x, party.graph.edge_index, party.graph.get("edge_weight"))
        for kind in range(theta.size(0)):
            rows = party.train & (party.graph.y == kind)
            if rows.any():
                own = theta.clone().requires_grad_()
                (slope,) = torch.autograd.grad(F.cross_entropy(h[rows] @ own.T, party.graph.y[rows]), own)
                goal[kind] += rows.sum() * slope
                total[kind] += rows.sum()
    return goal / total.clamp(min=1).view(-1, 1, 1)


@pytest.mark.parametrize("nodes", ["labelled", "training"])
def test_gradients_are_those_of_the_nodes_that_are_condensed(parties, nodes):
    """(9) with the labels of self-training, over all nodes or those of training, each class apart by autograd."""
    run = run_of(FedGC(**QUICK, condensed=nodes), parties)
    run.go()
    (site,) = run.transport.sites
    with site.asked():
        classes = site.task.outputs
        theta = torch.randn(classes, parties[0].features, generator=torch.Generator().manual_seed(0))
        told = site.match({"theta": theta})
        kept = zip(parties, site.kept.each("labels"), site.cohort.parties, strict=True)
        for at, (party, labels, made) in enumerate(kept):
            h = Diffusion(hops=2).diffuse(made.graph.x, party.graph.edge_index, party.graph.get("edge_weight"))
            for kind in range(classes):
                rows = labels == kind if nodes == "labelled" else party.train & (party.graph.y == kind)
                own = theta.clone().requires_grad_()
                due = torch.zeros_like(theta)
                if rows.any():
                    (due,) = torch.autograd.grad(F.cross_entropy(h[rows] @ own.T, labels[rows]), own)
                assert told.weight[at, kind] == rows.sum()
                torch.testing.assert_close(told.fields["slopes"][at, kind], due, atol=1e-5, rtol=1e-4)


def test_sums_over_neighbours_are_those_of_the_whole_graph(parties):
    method = FedGC(**QUICK, hops=2)
    server, site, _, _ = server_of(method, parties)
    next(server)
    next(server)
    whole = pool_parties(parties)
    due = Diffusion(hops=2).diffuse(whole.graph.x.to_dense(), whole.graph.edge_index, whole.graph.edge_weight)
    made = site.cohort_of(range(len(parties))).parties
    for party, own in zip(parties, made, strict=True):
        torch.testing.assert_close(own.graph.x, due[torch.searchsorted(whole.ids, party.ids)], atol=1e-5, rtol=1e-4)


def test_a_class_of_one_party_is_opened_only_where_that_is_asked_for(parties):
    alone = [
        party if at == 0 else replace(party, train=party.train & (party.graph.y != 0))
        for at, party in enumerate(parties)
    ]
    counts = {}
    for least in (1, 2):
        run = run_of(FedGC(**QUICK, self_training=False, bottleneck=False, min_contributors=least), alone)
        counts[least] = torch.bincount(run.go().graph["y"], minlength=2)
    assert counts[1][0] > 0
    assert counts[2][0] == 0
    assert counts[2].sum() > 0


def test_nothing_to_open_is_one_line(parties):
    with pytest.raises(IsthmusError, match="a sum needs 9 parties, there are 4: lower `min_contributors`"):
        run_of(FedGC(**QUICK, self_training=False, bottleneck=False, min_contributors=9), parties).go()
    apart = [replace(party, train=party.train & (party.graph.y == at)) for at, party in enumerate(parties)]
    with pytest.raises(IsthmusError, match="no class has training nodes at 2 parties: lower `min_contributors`"):
        run_of(FedGC(**QUICK, self_training=False, bottleneck=False), apart).go()


def test_a_graph_that_runs_away_is_one_line(parties):
    method = FedGC(**QUICK, self_training=False, bottleneck=False, descent={"lr": 1e30})
    with pytest.raises(IsthmusError) as caught:
        run_of(method, parties).go()
    due = "method 'fedgc', by round 2: 'x' of the synthetic graph is not finite: lower descent.lr"
    assert str(caught.value) == due


def test_noise_around_a_classs_mean_is_as_wide_as_asked_for(parties):
    """From the same draw: half the noise is half as far from the means."""
    starts = {}
    for noise in (1e-6, 0.5, 1.0):
        method = FedGC(**QUICK, hops=0, self_training=False, bottleneck=False, noise=noise)
        server, _, state, _ = server_of(method, parties)
        next(server)
        starts[noise] = state.graph["x"].clone()
    torch.testing.assert_close(starts[1.0] - starts[1e-6], 2 * (starts[0.5] - starts[1e-6]), atol=1e-5, rtol=1e-4)
    assert float((starts[0.5] - starts[1e-6]).abs().max()) > 0.1


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
    server = method.server(federation, Model(module), state)
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


def test_the_first_bottleneck_is_the_same_at_all_parties(parties):
    _, site, _, federation = server_of(FedGC(**QUICK), parties)
    method = site.method
    first, again = method._first_bottleneck(federation), method._first_bottleneck(federation)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert first["second.weight"].shape == (2 * parties[0].features, method.width)


def test_synthetic_features_are_no_copies_of_nodes(parties):
    for start in ("classes", "random"):
        run = run_of(plain(start), parties)
        x = run.go().graph["x"]
        for party in parties:
            assert float(torch.cdist(x, party.graph.x.to_dense()).min()) > 0


def plain(start):
    return FedGC(**QUICK, hops=0, self_training=False, bottleneck=False, start=start)


@pytest.mark.parametrize("off", ["hops", "self_training", "bottleneck", "finetune", "edges"])
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


@pytest.mark.parametrize("method", [FedGC, DosCond])
def test_other_options_conform(method):
    options = {"distance": "columns", "symmetric": False, "start": "random", "renew": 2, "inner": 2, "fraction": 0.6}
    check_method(method(**{k: v for k, v in QUICK.items() if k in method.model_fields}, **options))


def test_theta_is_drawn_anew_and_trained_between(parties):
    thetas = {}
    for name, options in {"one": {}, "two": {"renew": 2}, "inner": {"renew": 2, "inner": 3}}.items():
        server, _, state, _ = server_of(
            FedGC(**QUICK, hops=0, self_training=False, bottleneck=False, **options), parties
        )
        next(server)
        thetas[name] = []
        for _ in range(2):
            next(server)
            thetas[name].append(state.theta.clone())
    assert not torch.equal(*thetas["one"])
    assert torch.equal(*thetas["two"])
    assert not torch.equal(*thetas["inner"])


def test_steps_of_theta_are_gradient_descent_on_the_synthetic_graph(parties):
    method = FedGC(**QUICK, hops=0, self_training=False, bottleneck=False, renew=4, inner=2, lr_inner=0.5)
    server, _, state, _ = server_of(method, parties)
    next(server)
    next(server)
    h = method._hidden(state, state.graph)
    own = torch.nn.Parameter(state.theta.clone())
    optimizer = torch.optim.SGD([own], lr=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(h @ own.T, state.y).backward()
        optimizer.step()
    torch.testing.assert_close(method._descended(state), own.detach(), atol=1e-6, rtol=1e-4)


def test_other_parties_are_drawn_in_every_round_of_teaching(parties):
    found = run_of(FedGC(**{**QUICK, "teaching": 8}, fraction=0.5), parties).go()
    drawn = [call.parties for call in found.ledger.entries if call.action == "train"]
    assert len(drawn) == 2 * 8
    assert len(set(drawn)) > 1


def test_edges_live_on_where_features_are_many():
    """With one learning rate for all, A' of many features was 0 or 1 after a step, and stayed there."""
    parties = []
    for at, party in enumerate(small_parties("node")):
        graph = party.graph.clone()
        words = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0))
        noise = torch.randn(party.nodes, 1000, generator=torch.Generator().manual_seed(at))
        graph.x = (words[graph.y] + noise).relu() / 100
        parties.append(replace(party, graph=graph, structural=None))
    for method in (FedGC(**{**QUICK, "rounds": 30, "every": 30}), DosCond(rounds=30, every=30, ratio=0.1)):
        run = run_of(method, parties)
        graph = run.go().graph
        joined = method.joined(run.state.graph)
        off = ~torch.eye(len(joined), dtype=torch.bool)
        assert graph["edge_index"].size(1) > len(joined)
        assert 0.01 < float(joined[off].mean() * len(joined)) < 10
        assert float((joined[off] > 0.999).float().mean()) < 0.1


def test_parties_without_ids_add_nothing_to_each_others_nodes():
    apart = [replace(party, ids=None, border=None) for party in small_parties("node")]
    for method in (FedGC(**QUICK, hops=1), FedGcn(rounds=1)):
        server, site, _, _ = server_of(method, apart)
        next(server)
        made = site.cohort_of(range(len(apart))).parties
        for party, own in zip(apart, made, strict=True):
            due = Diffusion(hops=1).diffuse(
                party.graph.x.to_dense(), party.graph.edge_index, party.graph.get("edge_weight")
            )
            torch.testing.assert_close(own.graph.x.to_dense(), due, atol=1e-5, rtol=1e-4)


def test_one_theta_is_asked_once(parties):
    """Sums of the same terms over other parties, subtracted, would be one party's own."""
    found = run_of(FedGC(**QUICK, self_training=False, bottleneck=False, renew=3, fraction=0.5), parties).go()
    assert [row["round"] for row in found.ledger.rows() if row["action"] == "match" and row["fields"]][::2] == [1, 4]


def test_no_sums_of_classes_leave_for_a_start_at_noise(parties):
    found = run_of(FedGC(**QUICK, self_training=False, bottleneck=False, start="random"), parties).go()
    fields = {call.action: call.fields for call in found.ledger.entries}
    assert "sum[4,0]" in fields["count"]


def test_gcond_and_doscond_learn(parties):
    for method in (DosCond, GCond):
        found = run_of(method(rounds=60, every=60, ratio=0.2), parties).go()
        assert found.metrics["test_accuracy"] > 0.6
        assert found.graph["x"].size(0) == round(0.2 * 160)


def test_sfgcs_student_is_gradient_descent_written_out(parties):
    method = SFGC(rounds=2, steps=3)
    task = task_for(parties)
    module = module_for(Encoder.named("gcn")(hidden=8, dropout=0.0), parties, task, 0)
    x, y = torch.randn(6, parties[0].features), torch.arange(6) % 2
    start = {name: value.clone() for name, value in Model(module).weights().items()}
    found = method._student(module, start, x, torch.tensor(0.3), y)
    twin = deepcopy(module)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.3)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(twin(x, torch.empty(2, 0, dtype=torch.long)), y).backward()
        optimizer.step()
    for name, value in twin.named_parameters():
        torch.testing.assert_close(found[name].detach(), value.detach(), atol=1e-6, rtol=1e-4)


def test_sfgcs_nodes_and_rate_move_and_have_no_edges(parties):
    run = run_of(SFGC(rounds=3, every=3, latest=2, span=3, steps=3, ratio=0.1), parties)
    found = run.go()
    assert found.graph["edge_index"].numel() == 0
    assert abs(float(run.state.graph["rate"].exp()) - run.method.rate) > 1e-3


def test_bds_gcn_with_the_whole_border_is_fedcogs_gcn(parties):
    options = {"rounds": 5, "lnnc": False}
    ours = run_of(BdsGcn(**options, boundary=1.0), parties).go().weights
    theirs = run_of(FedCogGcn(**options), parties).go().weights
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name])


def test_bds_gcn_is_right_on_average(parties):
    """What arrives, averaged over many draws, is what all of the border sends."""
    task = task_for(parties)
    module = module_for(Encoder.named("gcn")(hidden=8, dropout=0.0), parties, task, 0)
    weights = Model(module).weights()

    def came(method, times):
        site = method.site(parties, task, module)
        total = 0
        for _ in range(times):
            reply = site.answer("forth", {"layer": 0, "training": True, "weights": weights}, site.hosted.names)
            rows = [letter["h"] for own in reply.letters for _, letter in sorted(own.items())]
            total = total + torch.cat(rows)
        return total / times

    whole, drawn = came(FedCogGcn(lnnc=False), 1), came(BdsGcn(boundary=0.5), 400)
    assert float((drawn - whole).abs().mean()) < 0.1 * float(whole.abs().mean())
    assert not torch.allclose(came(BdsGcn(boundary=0.5), 1), whole)


def test_labels_of_several_tasks_are_refused(parties):
    several = small_parties("node", labels="multilabel")
    with pytest.raises(IsthmusError, match="has no classes to condense"):
        run_of(FedGC(**QUICK), several)


def test_a_run_hands_out_the_graph(tmp_path, parties):
    found = isthmus.run("fedgc", parties, out=tmp_path / "out", **QUICK)
    graph = isthmus.load_graph(tmp_path / "out" / "graphs" / "fedgc-0")
    for name, value in found.runs[0].graph.items():
        assert torch.equal(graph[name], value)
    assert graph.validate()


def test_what_is_no_graph_is_one_line(tmp_path):
    with pytest.raises(IsthmusError, match="no readable graph in"):
        isthmus.load_graph(tmp_path)
