"""What the edge audit guesses: log-odds of mechanisms, a model that knows edges, a model that knows nothing."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

from helpers import make_graph_parties, make_node_parties
from isthmus.audit import edges as edges_audit
from isthmus.audit.edges import EdgeInference, Guess, guess_from_model
from isthmus.data.cohort import Cohort
from isthmus.errors import IsthmusError
from isthmus.methods.fgcl import FGCL
from isthmus.nn.encoders import Encoder
from isthmus.privacy.edges import NodePairs
from isthmus.privacy.mechanisms import Gaussian, Laplace, RandomizedResponse
from isthmus.study.setup import module_for, task_for

VALUES = np.array([-3.0, -0.2, 0.0, 0.3, 0.5, 1.0, 2.5])


@pytest.mark.parametrize(
    ("mechanism", "density"),
    [
        (Laplace(epsilon=0.7), lambda v, bit: stats.laplace.logpdf(v, bit, 1 / 0.7)),
        (Gaussian(epsilon=0.7), lambda v, bit: stats.norm.logpdf(v, bit, Gaussian(epsilon=0.7).sigma)),
    ],
)
def test_evidence_is_the_log_of_the_odds(mechanism, density):
    found = mechanism.log_odds(torch.from_numpy(VALUES)).numpy()
    assert np.allclose(found, density(VALUES, 1) - density(VALUES, 0))


def test_evidence_of_a_bit_that_may_be_turned_is_epsilon():
    assert RandomizedResponse(epsilon=0.7).log_odds(torch.tensor([0.0, 1.0])).tolist() == pytest.approx([-0.7, 0.7])


@pytest.mark.parametrize("mechanism", ["laplace", "gaussian", "randomized-response"])
@pytest.mark.parametrize("epsilon", [0.3, 2.0])
def test_no_guess_from_a_release_beats_what_is_spent(mechanism, epsilon):
    """Of thousands of pairs; randomised response is guessed as well as its budget allows."""
    parties = make_graph_parties([60, 60])
    audit = EdgeInference(epsilons=[epsilon], graphs=2)
    method = FGCL(rounds=1, mechanism=mechanism, epsilons=[1.0], delta=1e-9, post={"clamp": False})
    task = task_for(parties)
    _, leak = audit.run(parties, task, module_for(Encoder.named("gcn")(), parties, task, 0), method)
    count = min(leak.released.joined, leak.released.apart)
    slack = 1.63 * math.sqrt(2 / count)  # of a largest difference of two empirical distributions, one in a hundred
    assert leak.released.advantage <= leak.bound + slack
    assert leak.released.advantage >= (0.1 if mechanism == "gaussian" else 0.5) * leak.bound - slack
    assert 0.5 < leak.released.auc < 1
    if mechanism == "randomized-response":
        assert leak.released.advantage == pytest.approx(leak.bound, abs=slack)


def test_two_views_tell_more_than_one():
    parties = make_graph_parties([60, 60])
    task = task_for(parties)
    module = module_for(Encoder.named("gcn")(), parties, task, 0)
    audit = EdgeInference(epsilons=[1.0], graphs=2)
    one, two = (audit.run(parties, task, module, FGCL(rounds=1, epsilons=views))[1] for views in ([1.0], [1.0, 1.0]))
    assert two.released.auc > one.released.auc + 0.03
    assert (one.epsilon, two.epsilon) == (1.0, 2.0)


class Knows(nn.Module):
    """Says a graph's label the surer, the nearer its edges are to those that it remembers."""

    def __init__(self, party):
        super().__init__()
        self.party = party

    def forward(self, x, edge_index, edge_weight, batch, batch_size):
        whole = self.party.graph
        nodes = int((batch == 0).sum())
        at = next(g for g in range(self.party.items) if torch.equal(whole.x[whole.batch == g], x[:nodes]))
        first = int((whole.batch == at).nonzero()[0])
        true = {(int(i) - first, int(j) - first) for i, j in whole.edge_index.T if whole.batch[i] == at}
        logits = torch.zeros(batch_size, int(whole.y.max()) + 1)
        for g in range(batch_size):
            here = batch[edge_index[0]] == g
            seen = {(int(i) - g * nodes, int(j) - g * nodes) for i, j in edge_index[:, here].T}
            logits[g, whole.y[at]] = -0.1 * len(true ^ seen)
        return logits


def test_a_model_that_remembers_edges_gives_them_all_away():
    parties = make_graph_parties([24])
    task = task_for(parties)
    trained, others = guess_from_model(Knows(parties[0]), task, parties, 5, np.random.default_rng(0))
    assert trained.auc == others.auc == trained.advantage == 1.0


def test_a_model_that_looks_at_no_edge_gives_none_away():
    parties = make_graph_parties([24])
    task = task_for(parties)
    module = module_for(Encoder.named("mlp")(), parties, task, 0)
    trained, others = guess_from_model(module, task, parties, 5, np.random.default_rng(0))
    assert trained.auc == others.auc == 0.5


def test_without_graphs_that_nobody_trains_on_there_is_nothing_to_compare_with():
    none = torch.zeros(24, dtype=torch.bool)
    parties = [replace(make_graph_parties([24])[0], val=none, test=none)]
    task = task_for(parties)
    module = module_for(Encoder.named("gcn")(), parties, task, 0)
    assert guess_from_model(module, task, parties, 5, np.random.default_rng(0))[1] is None


def test_what_cannot_be_audited_is_one_line():
    parties = make_node_parties()
    task = task_for(parties)
    with pytest.raises(IsthmusError, match="is for parties of many graphs, these hold one of nodes"):
        EdgeInference().run(parties, task, module_for(Encoder.named("gcn")(), parties, task, 0))
    assert Guess.of(np.array([0.5]), np.array([True])) is None
    parties = [replace(party, graph=party.graph.clone()) for party in make_graph_parties([4])]
    parties[0].graph.edge_index = parties[0].graph.edge_index[:, :0]
    task = task_for(parties)
    module = module_for(Encoder.named("gcn")(), parties, task, 0)
    with pytest.raises(IsthmusError, match="some pairs of nodes are joined and others are not"):
        EdgeInference().run(parties, task, module)
    with pytest.raises(IsthmusError, match="epsilons"):
        EdgeInference.read({"epsilons": [0.0]}, "audit 'edges'")


def test_where_nothing_is_claimed_nothing_is_bounded():
    parties = make_graph_parties([12, 12])
    task = task_for(parties)
    module = module_for(Encoder.named("gcn")(), parties, task, 0)
    for options in ({"features": "all"}, {"evaluated_on": "graphs"}):
        _, leak = EdgeInference(epsilons=[1.0], graphs=2).run(parties, task, module, FGCL(rounds=1, **options))
        assert (leak.epsilon, leak.bound) == (math.inf, 1.0)
        assert leak.released.auc > 0.5


def test_pairs_are_turned_round_one_at_a_time_whatever_fits_at_once(monkeypatch):
    """Against graphs with edges added and taken away one by one."""
    party = make_graph_parties([6])[0]
    cohort, task = Cohort((party,)), task_for([party])
    module = module_for(Encoder.named("gcn")(), [party], task, 0).eval()
    block = cohort.graphs_of(torch.tensor([2]))
    pairs = NodePairs.of_graphs([block.nodes])
    bits = pairs.bits(block.edge_index) > 0
    there, apart = bits.nonzero().squeeze(1), (~bits).nonzero().squeeze(1)
    asked = torch.cat([there, apart])
    due = []
    for turned in (None, *asked.tolist()):
        now = bits.clone()
        if turned is not None:
            now[turned] = ~now[turned]
        edges, _ = pairs.graph(now.float())
        batch = torch.zeros(block.nodes, dtype=torch.long)
        with torch.no_grad():
            output = module(block.x, edges, None, batch, 1)
        due.append(F.cross_entropy(output, cohort.y[2:3]))
    for limit in (1, 3 * block.nodes, 10**6):
        monkeypatch.setattr(edges_audit, "NODES", limit)
        found = edges_audit._losses(module, task, block, pairs, there, asked, cohort.y[2])
        assert torch.allclose(found, torch.stack(due).double(), atol=1e-5)


def test_weights_of_edges_play_no_part():
    parties = make_graph_parties([12, 12], weighted=True)
    task = task_for(parties)
    module = module_for(Encoder.named("gcn")(), parties, task, 0)
    plain = [edges_audit._unweighted(party) for party in parties]
    found = [
        EdgeInference(epsilons=[1.0], graphs=2).run(each, task, module, FGCL(rounds=1)) for each in (parties, plain)
    ]
    assert found[0] == found[1]
    assert parties[0].graph.edge_weight is not None
