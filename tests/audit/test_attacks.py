"""Attacks by linear algebra read planted nodes, and no others."""

from __future__ import annotations

import pytest
import torch
from audited import assert_direction, assert_row, claims_of, cut, features, knowing, rows_of

from isthmus.audit.attacks import LinearSystem, NoInnerNeighbour, OneNeighbour, SecondHop, drop_rounding
from isthmus.methods.fedcog import FedCog

SOURCE = torch.Generator().manual_seed(0)
REAL = features("dense", 12, SOURCE)
WORDS = features("words", 12, SOURCE)
BAGS = features("bags", 12, SOURCE)
UNPROTECTED = FedCog(lnnc=False)
PROTECTED = FedCog(lnnc=True)


@pytest.mark.parametrize("method", [UNPROTECTED, PROTECTED])
def test_a_message_over_one_node_shows_its_direction_with_lnnc_or_without(method):
    # the victim holds 0, 1, 2 (0 - 1); the colluder's 3 knows 0, its 4 knows 1 and 2
    parties = cut([(0, 1), (3, 0), (4, 1), (4, 2)], [0, 0, 0, 1, 1], REAL[:5])
    claims = claims_of(knowing(parties, method=method), OneNeighbour)
    found = rows_of(claims, "direction")
    assert found.keys() == {(100,)}
    assert_direction(found[100,][0], REAL[0])
    assert not rows_of(claims, "features")


@pytest.mark.parametrize("method", [UNPROTECTED, PROTECTED])
def test_where_all_rows_sum_to_one_the_direction_is_the_row(method):
    parties = cut([(0, 1), (3, 0), (4, 1), (4, 2)], [0, 0, 0, 1, 1], BAGS[:8], more=3)
    found = rows_of(claims_of(knowing(parties, method=method), OneNeighbour), "features")
    assert found.keys() == {(100,)}
    assert_row(found[100,][0], BAGS[0])


def test_a_rule_without_degrees_gives_the_row_away():
    # r = 0: beta is 1 for every node
    parties = cut([(0, 1), (2, 0)], [0, 0, 1], REAL[:3])
    found = rows_of(claims_of(knowing(parties, encoder="gbp", r=0.0), OneNeighbour), "features")
    assert_row(found[100,][0], REAL[0])


def test_an_empty_row_is_read_as_such():
    x = BAGS[:7].clone()
    x[0] = 0
    parties = cut([(0, 1), (2, 0), (3, 1)], [0, 0, 1, 1], x, more=3)
    found = rows_of(claims_of(knowing(parties), OneNeighbour), "features")
    assert_row(found[100,][0], x[0])


@pytest.mark.parametrize(
    ("joined", "due"),
    [
        ([(0, 1), (1, 2), (0, 2)], {0, 1, 2}),  # as many equations as nodes, each over two
        ([(0, 1, 2), (0, 1)], {2}),  # the difference of two messages
        ([(0, 1, 2), (1,), (0, 1)], {0, 2}),  # what is known is subtracted, more than once
        ([(0, 1), (1, 2)], set()),
        ([(0, 1, 2)], set()),
        ([(0, 1), (0, 1)], set()),
    ],
)
def test_equations_are_solved_where_they_determine_a_node(joined, due):
    edges = [(0, 3), (1, 3), (2, 3)]  # 3 is the victim's too
    edges += [(4 + at, node) for at, over in enumerate(joined) for node in over]
    parties = cut(edges, [0, 0, 0, 0] + [1] * len(joined), REAL[: 4 + len(joined)])
    found = rows_of(claims_of(knowing(parties), OneNeighbour, LinearSystem), "direction")
    assert found.keys() == {(100 + node,) for node in due}
    for (node,), rows in found.items():
        assert_direction(rows[0], REAL[node - 100])


def test_systems_apart_are_solved_apart_and_weights_count():
    joined = [(0, 1), (1, 2), (0, 2), (3, 4), (4, 5)]
    edges = [(6 + at, node) for at, over in enumerate(joined) for node in over]
    weight = torch.rand(len(edges), generator=SOURCE) + 0.5
    parties = cut(edges, [0] * 6 + [1, 2, 1, 2, 1], REAL[:11], weight=weight)
    found = rows_of(claims_of(knowing(parties), OneNeighbour, LinearSystem), "direction")
    assert found.keys() == {(100,), (101,), (102,)}
    for (node,), rows in found.items():
        assert_direction(rows[0], REAL[node - 100])


def test_theorem_2_without_inner_neighbours_the_row_is_read_and_lnnc_stops_it():
    # 0 has neighbours at the colluder's alone; 1 - 2 are joined inside
    parties = cut([(0, 3), (0, 4), (1, 2), (1, 4), (3, 4)], [0, 0, 0, 1, 1], REAL[:5])
    read = rows_of(claims_of(knowing(parties, method=UNPROTECTED), NoInnerNeighbour), "features")
    assert read.keys() == {(100,)}
    assert_row(read[100,][0], REAL[0])
    assert not claims_of(knowing(parties, method=PROTECTED), NoInnerNeighbour)
    one = rows_of(claims_of(knowing(parties, method=PROTECTED), OneNeighbour), "direction")
    assert_direction(one[100,][0], REAL[0])  # what it does not stop


def test_one_hop_is_no_equation_too_many():
    parties = cut([(0, 3), (0, 4), (1, 2), (1, 4), (3, 4)], [0, 0, 0, 1, 1], REAL[:5])
    assert not claims_of(knowing(parties, hops=1), NoInnerNeighbour)


@pytest.mark.parametrize(("encoder", "options"), [("sgc", {}), ("gbp", {"r": 0.3}), ("appnp", {"first": "propagate"})])
def test_theorem_2_two_nodes_in_one_message_are_told_apart_by_three_hops(encoder, options):
    edges = [(0, 2), (1, 2), (1, 3), (2, 3), (2, 4)]
    parties = cut(edges, [0, 0, 1, 1, 2], REAL[:5])
    known = knowing(parties, encoder=encoder, **{"hops": 3, **options})
    read = rows_of(claims_of(known, NoInnerNeighbour), "features")
    assert read.keys() == {(100,), (101,)}
    for node in (0, 1):
        assert_row(read[100 + node,][0], REAL[node])


def test_theorem_2_two_nodes_and_two_hops_need_sparse_rows():
    edges = [(0, 2), (1, 2), (1, 3), (2, 3), (2, 4)]
    for x, due in ((REAL, set()), (WORDS, {(100,), (101,)})):
        # 3 is joined to 1 alone: that message is left out
        known = knowing(cut(edges, [0, 0, 1, 1, 2], x[:8], more=3), method=FedCog(lnnc=False, min_neighbours=2))
        read = rows_of(claims_of(known, NoInnerNeighbour), "features")
        assert read.keys() == due
    inside = cut([*edges, (0, 5)], [0, 0, 1, 1, 2, 0], WORDS[:9], more=3)
    assert not claims_of(knowing(inside, method=FedCog(lnnc=False, min_neighbours=2)), NoInnerNeighbour)


@pytest.mark.parametrize("method", [UNPROTECTED, PROTECTED])
@pytest.mark.parametrize(("encoder", "options"), [("sgc", {}), ("gbp", {"r": 0.3}), ("appnp", {"first": "propagate"})])
def test_the_second_hop_tells_degrees_of_sparse_rows(method, encoder, options):
    parties = cut([(0, 1), (0, 2), (1, 2), (3, 0), (3, 4), (2, 4)], [0, 0, 0, 1, 1], WORDS[:8], more=3)
    known = knowing(parties, method=method, encoder=encoder, **options)
    read = rows_of(claims_of(known, OneNeighbour, SecondHop), "features")
    assert read.keys() == {(100,), (102,)}
    for node in (0, 2):
        assert_row(read[100 + node,][0], WORDS[node])


def test_the_second_hop_tells_degrees_of_rows_with_signs_if_they_are_sparse():
    signs = WORDS * torch.where(torch.rand(WORDS.shape, generator=SOURCE) < 0.5, -1, 1)
    for x, due in ((signs, {(100,)}), (REAL, set())):
        parties = cut([(0, 1), (0, 2), (1, 2), (3, 0), (3, 4)], [0, 0, 0, 1, 1], x[:8], more=3)
        read = rows_of(claims_of(knowing(parties), OneNeighbour, SecondHop), "features")
        assert read.keys() == due
        for (node,), rows in read.items():
            assert_row(rows[0], x[node - 100])


def test_the_second_hop_tells_degrees_of_weighted_edges():
    edges = [(0, 1), (0, 2), (1, 2), (3, 0), (3, 4)]
    parties = cut(edges, [0, 0, 0, 1, 1], WORDS[:8], more=3, weight=torch.tensor([0.7, 1.3, 1.0, 2.1, 0.4]))
    read = rows_of(claims_of(knowing(parties), OneNeighbour, SecondHop), "features")
    assert_row(read[100,][0], WORDS[0])


def test_cleaned_drops_what_rounding_left():
    rows = drop_rounding(torch.tensor([[1.0, 1e-9, 0.5], [0.0, 0.0, 0.0], [1e-9, 0.0, 0.0]]).numpy())
    assert rows.toarray().tolist()[0] == [1.0, 0.0, 0.5]
    assert rows.nnz == 3
