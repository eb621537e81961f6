"""Small coupled graphs, hand-made or drawn, and what colluders know and claim of them."""

from __future__ import annotations

import torch
from hypothesis import strategies as some
from scipy.sparse import csr_array
from torch_geometric.data import Data

from isthmus.audit.attacks import AttackState
from isthmus.audit.knowledge import Law, knowledge_of, law_of
from isthmus.audit.reconstruction import propagated_mail
from isthmus.data import matrices
from isthmus.data.partition.given import Given
from isthmus.data.party import Party
from isthmus.data.pool import Pool, items_per_party
from isthmus.methods.fedcog import FedCog, diffusion_of
from isthmus.nn.encoders import Encoder
from isthmus.study.setup import module_for, task_for

KINDS = ("dense", "words", "bags", "yes-no", "weights")
"""Real numbers; few, not negative; flat rows that sum to one; ones and zeros; `words` on a graph with weights."""


def features(kind: str, nodes: int, source: torch.Generator, width: int = 60) -> torch.Tensor:
    x = torch.randn(nodes, width, generator=source)
    if kind == "dense":
        return x
    x = (x.abs() + 0.1) * (torch.rand(nodes, width, generator=source) < 0.12)
    if kind == "words" or kind == "weights":
        return x
    x = (x > 0).float()
    x[torch.arange(nodes), torch.randint(width, (nodes,), generator=source)] = 1.0
    return x / x.sum(1, keepdim=True) if kind == "bags" else x


def bags(sizes, source: torch.Generator, width: int = 60) -> torch.Tensor:
    """Flat rows with so many words each, that sum to one."""
    x = torch.zeros(len(sizes), width)
    for row, size in zip(x, sizes, strict=True):
        row[torch.randperm(width, generator=source)[:size]] = 1 / size
    return x


def cut(edges, owner, x, *, weight=None, more=0) -> list[Party]:
    """Parties `party-0`, ... of a graph with these edges, each given once; ids are positions plus 100.

    Arguments:
        more: nodes that the last party has besides, without edges: `x` has their rows too.
    """
    owner = [*owner, *[max(owner)] * more]
    edges = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).t()
    x = x.to_sparse_csr() if (x == 0).float().mean() > 0.5 else x
    graph = Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], dim=1), y=torch.arange(len(owner)) % 2)
    graph.train_mask = torch.ones(len(owner), dtype=torch.bool)
    if weight is not None:
        graph.edge_weight = weight.repeat(2)
    whole = Party.of_graph("pooled", graph, ids=torch.arange(len(owner)) + 100)
    owner = torch.tensor(owner)
    parties = int(owner.max()) + 1
    return Given().cut(Pool(whole, 2, items_per_party(owner, parties)), parties, seed=0)


def propagating(parties, encoder="sgc", **options):
    """The task and the model that propagates."""
    task = task_for(parties, 2)
    return task, module_for(Encoder.named(encoder).read({"hops": 2, **options}, encoder), parties, task, 0)


def knowing(parties, *, victim=0, method=None, encoder="sgc", **options):
    """What all others know of the victim."""
    task, module = propagating(parties, encoder, **options)
    mail = propagated_mail(method or FedCog(lnnc=False), parties, task, module)
    colluders = [party for at, party in enumerate(parties) if at != victim]
    law = Law.common(map(law_of, colluders))
    return knowledge_of(parties[victim].name, colluders, mail, diffusion_of(module), law)


def claims_of(known, *attacks):
    """What these attacks claim, the last one's claims alone."""
    found = AttackState(known)
    for attack in attacks:
        attack().run(found)
    return [claim for claim in found.claims if claim.attack == attacks[-1].name]


def rows_of(claims, level, width=60):
    """By the ids that a claim names, or the id that it is near to, the row that is claimed."""
    found = {}
    for claim in claims:
        if claim.level == level:
            row = torch.zeros(width, dtype=torch.float64)
            row[torch.from_numpy(claim.columns).long()] = torch.from_numpy(claim.values).double()
            found.setdefault(claim.nodes if claim.near is None else claim.near, []).append(row)
    return found


def assert_direction(row, x) -> None:
    assert torch.cosine_similarity(row, x.double(), dim=0) > 1 - 1e-6


def assert_row(row, x) -> None:
    torch.testing.assert_close(row, x.double(), rtol=1e-4, atol=1e-5)


def dense(party) -> torch.Tensor:
    return torch.from_numpy(csr_array(matrices.from_tensor(party.graph.x)).toarray())


@some.composite
def coupled(draw, kinds=KINDS, most=24):
    """A drawn graph in a drawn cut, isolated nodes and one-node parties included."""
    nodes, kind = draw(some.integers(4, most)), draw(some.sampled_from(kinds))
    parties = draw(some.integers(2, min(nodes, 5)))
    source = torch.Generator().manual_seed(draw(some.integers(0, 2**20)))
    pairs = torch.randint(nodes, (2, draw(some.integers(1, 3 * nodes))), generator=source)
    pairs = torch.unique(torch.stack([pairs.amin(0), pairs.amax(0)])[:, pairs[0] != pairs[1]], dim=1)
    owner = torch.cat([torch.arange(parties), torch.randint(parties, (nodes - parties,), generator=source)])
    owner = owner[torch.randperm(nodes, generator=source)]
    weight = torch.rand(pairs.size(1), generator=source) + 0.5 if kind == "weights" else None
    return cut(pairs.t().tolist(), owner.tolist(), features(kind, nodes, source), weight=weight)
