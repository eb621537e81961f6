"""InfoGraph: the loss over a batch is the paper's estimate, and embeddings are those before the heads."""

import torch
from torch.nn import functional as F

from helpers import make_parties
from isthmus.methods.infograph import InfoGraph, WithHeads
from isthmus.nn.encoders import Encoder
from isthmus.study.loop import Run
from isthmus.study.setup import module_for
from isthmus.tasks.base import Step
from isthmus.tasks.clustering import GraphClustering

GIN = Encoder.named("gin")(hidden=6, dropout=0.0)


def started(**options):
    """A run whose heads and encoder are those of the seed, its only site, and the party's graphs as one block."""
    parties = make_parties("graph", graphs=(5,))
    task = GraphClustering(classes=3)
    run = Run(InfoGraph(rounds=1, **options), parties, task, module_for(GIN, parties, task, 0), seed=0)
    (site,) = run.transport.sites
    return run, site, parties[0]


def test_the_loss_is_minus_the_estimate_of_mutual_information() -> None:
    run, site, party = started()
    model = run.module.eval()
    batch = party.graph.batch
    with torch.no_grad(), site.asked(), site.model.evaluating():
        h, _, u = model(party.graph.x, party.graph.edge_index, None, batch, party.items)
        score = h @ u.T
        own = F.one_hot(batch, party.items).bool()
        due = F.softplus(-score[own]).mean() + F.softplus(score[~own]).mean() - 2 * torch.log(torch.tensor(2.0))
        site.model.load(dict(model.state_dict()))
        block, _ = site.read(torch.arange(party.items), 0, 0)
        items = torch.arange(party.items)
        found = site.loss(Step(site.model(block), site.cohort.y, (party.items,), items))
    torch.testing.assert_close(found, due.unsqueeze(0))


def test_embeddings_are_the_encoders_and_not_the_heads() -> None:
    run, site, party = started()
    weights = run.go().weights
    model = run.module.eval()
    assert isinstance(model, WithHeads)
    model.load_state_dict(weights, strict=False)
    with torch.no_grad():
        _, due = model.embedder(party.graph.x, party.graph.edge_index, None, party.graph.batch, party.items)
    torch.testing.assert_close(site.predict_all(weights), due.squeeze(1))
