"""Condensation: sums of classes, first features, gradients and what is refused."""

from dataclasses import replace

import pytest
import torch
from condensing_runs import QUICK, run_of, server_of

import isthmus
from isthmus.errors import IsthmusError
from isthmus.methods.fedgc import FedGC
from isthmus.methods.gcond import DosCond
from isthmus.testing import small_parties


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


def test_synthetic_features_are_no_copies_of_nodes(parties):
    for start in ("classes", "random"):
        run = run_of(plain(start), parties)
        x = run.go().graph["x"]
        for party in parties:
            assert float(torch.cdist(x, party.graph.x.to_dense()).min()) > 0


def plain(start):
    return FedGC(**QUICK, hops=0, self_training=False, bottleneck=False, start=start)


@pytest.mark.slow
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


def test_one_theta_is_asked_once(parties):
    """Sums of the same terms over other parties, subtracted, would be one party's own."""
    found = run_of(FedGC(**QUICK, self_training=False, bottleneck=False, renew=3, fraction=0.5), parties).go()
    assert [row["round"] for row in found.ledger.rows() if row["action"] == "match" and row["fields"]][::2] == [1, 4]


def test_no_sums_of_classes_leave_for_a_start_at_noise(parties):
    found = run_of(FedGC(**QUICK, self_training=False, bottleneck=False, start="random"), parties).go()
    fields = {call.action: call.fields for call in found.ledger.entries}
    assert "sum[4,0]" in fields["count"]


def test_labels_of_several_tasks_are_refused(parties):
    several = small_parties("node", labels="multilabel")
    with pytest.raises(IsthmusError, match="method 'fedgc' is for items of one class each"):
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
