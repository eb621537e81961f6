"""Colluders know what is theirs and what came to them; hidden data that no message tells of change nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from audited import bags, cut, dense, features, knowing, propagating
from scipy.sparse import csr_array

from isthmus.audit.knowledge import Law, collect_mail, knowledge_of, law_of
from isthmus.audit.reconstruction import propagated_mail, run_attacks
from isthmus.methods.fedcog import FedCog, diffusion_of

SOURCE = torch.Generator().manual_seed(3)


@pytest.mark.parametrize(
    ("kind", "nonnegative", "flat", "sizes"),
    [
        ("dense", False, False, {}),
        ("words", True, False, {}),
        ("bags", True, True, {"sum": 1.0}),
        ("yes-no", True, True, {"largest": 1.0}),
    ],
)
def test_the_law_is_what_all_rows_have_in_common(kind, nonnegative, flat, sizes):
    x = csr_array(features(kind, 30, SOURCE).numpy())
    for law in (Law.of(x), Law.common([Law.of(x[:10]), Law.of(x[10:])])):
        assert (law.nonnegative, law.flat, law.sparse) == (nonnegative, flat, kind != "dense")
        assert law.sizes == pytest.approx(sizes)


def test_a_law_of_one_party_that_another_breaks_is_none():
    one, other = features("bags", 10, SOURCE), features("dense", 10, SOURCE)
    law = Law.common([Law.of(csr_array(x.numpy())) for x in (one, other)])
    assert not law.nonnegative
    assert not law.flat
    assert not law.sizes


def test_empty_rows_obey_any_law_and_few_rows_make_none():
    x = features("bags", 10, SOURCE)
    x[3] = 0
    assert Law.of(csr_array(x.numpy())).sizes == pytest.approx({"sum": 1.0})
    assert Law.of(csr_array((4, 5))) == Law()
    assert not Law.common([Law.of(csr_array(x[:2].numpy()))]).sizes
    assert not Law.common([]).nonnegative


def test_what_came_and_what_was_sent_is_laid_out_by_node():
    x = bags((5, 6, 7, 8, 9), SOURCE)
    parties = cut([(0, 1), (0, 2), (1, 2), (1, 3), (2, 4)], [0, 0, 1, 2, 1], x)
    known = knowing(parties)
    assert known.ids.tolist() == [100, 101]
    assert known.edges.tolist() == [1, 2]
    assert known.joined.toarray().tolist() == [[1, 1], [0, 1]]  # 2 is joined to both, 3 to 1
    beta = 1 / np.sqrt(1 + np.array([2, 3, 3, 1, 1]))
    rows = beta[:, None] * x.double().numpy()
    np.testing.assert_allclose(known.messages[0].toarray(), [rows[0] + rows[1], rows[1]], rtol=1e-6)
    np.testing.assert_allclose(known.sent[0].toarray(), [rows[2], rows[2] + rows[3]], rtol=1e-6)


def test_dropped_messages_leave_known_degrees():
    parties = cut([(0, 1), (0, 2), (1, 2), (1, 3)], [0, 0, 1, 1], bags((5, 6, 7, 8), SOURCE))
    known = knowing(parties, method=FedCog(lnnc=False, min_neighbours=2))
    assert known.joined.toarray().tolist() == [[1, 1]]
    assert known.edges.tolist() == [0, 2]


def test_who_gets_nothing_knows_nothing():
    parties = cut([(0, 1), (2, 3)], [0, 0, 1, 1], bags((5, 6, 7, 8), SOURCE))
    assert knowing(parties) is None


def test_sums_are_the_same_dense_or_sparse():
    x = features("words", 6, SOURCE)
    edges, owner = [(0, 1), (0, 3), (1, 4), (2, 4), (3, 4)], [0, 0, 0, 1, 1, 1]
    sparse, full = cut(edges, owner, x), cut(edges, owner, x)
    for party in full:
        party.graph.x = party.graph.x.to_dense()
    np.testing.assert_allclose(
        knowing(sparse).messages[1].toarray(), knowing(full).messages[1].toarray(), rtol=1e-6, atol=1e-8
    )


@pytest.mark.parametrize("kind", ["words", "bags", "dense"])
def test_hidden_data_that_no_message_tells_of_change_no_claim(kind):
    # a path at the victim; the colluder is joined to its one end: two hops tell of 0 and 1
    path = [(at, at + 1) for at in range(6)]
    owner = [0] * 7 + [1] * 4
    x = features(kind, 11, SOURCE)
    hidden = x.clone()
    hidden[2:7] = x[2:7].flip(0) * 3
    claims = []
    for edges, each in (
        ([*path, (7, 0), (7, 8)], x),
        ([*path, (7, 0), (7, 8)], hidden),
        ([*path[:2], (2, 5), (2, 6), (7, 0), (7, 8)], x),
    ):
        parties = cut(edges, owner, each)
        claims.append(run_attacks(knowing(parties, method=FedCog(lnnc=False))))
    assert claims[0]
    for other in claims[1:]:
        assert len(other) == len(claims[0])
        for one, two in zip(claims[0], other, strict=True):
            assert (one.level, one.attack, one.nodes, one.near) == (two.level, two.attack, two.nodes, two.near)
            np.testing.assert_allclose(one.values, two.values, rtol=1e-6)


def test_messages_of_others_are_not_looked_at():
    x = features("bags", 9, SOURCE)
    edges = [(0, 1), (0, 3), (1, 4), (2, 4), (3, 5), (5, 6), (6, 0), (2, 7), (7, 8), (4, 8)]
    parties = cut(edges, [0, 0, 0, 1, 1, 1, 2, 2, 2], x)
    task, module = propagating(parties)
    mail = propagated_mail(FedCog(lnnc=False), parties, task, module)
    own = {key: value for key, value in mail.items() if set(key) == {"party-0", "party-1"}}
    assert len(own) < len(mail)
    law, diffusion = law_of(parties[1]), diffusion_of(module)
    one = run_attacks(knowledge_of("party-0", [parties[1]], mail, diffusion, law))
    two = run_attacks(knowledge_of("party-0", [parties[1]], own, diffusion, law))
    assert [(claim.level, claim.nodes, claim.near, claim.values.tolist()) for claim in one] == [
        (claim.level, claim.nodes, claim.near, claim.values.tolist()) for claim in two
    ]


def test_what_the_colluders_hold_beside_border_and_features_is_not_used():
    x = features("bags", 7, SOURCE)
    parties = cut([(0, 1), (0, 3), (1, 4), (2, 4), (3, 5), (5, 6)], [0, 0, 0, 1, 1, 1, 1], x)
    task, module = propagating(parties)
    mail = propagated_mail(FedCog(lnnc=False), parties, task, module)
    blind = replace(parties[1], graph=parties[1].graph.clone())
    blind.graph.x, blind.graph.y = torch.zeros_like(dense(blind)), blind.graph.y.flip(0)
    blind.graph.edge_index = blind.graph.edge_index[:, :0]
    law, diffusion = law_of(parties[1]), diffusion_of(module)
    one, two = (run_attacks(knowledge_of("party-0", [party], mail, diffusion, law)) for party in (parties[1], blind))
    assert [claim.values.tolist() for claim in one] == [claim.values.tolist() for claim in two]


def test_other_actions_letters_are_no_messages_of_a_propagation():
    assert collect_mail([]) == {}
