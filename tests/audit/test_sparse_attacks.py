"""Attacks that rest on what features are like read planted nodes, and no others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from audited import assert_direction, assert_row, bags, claims_of, cut, features, knowing, rows_of

from isthmus.audit.attacks import LinearSystem, OneNeighbour, SecondHop
from isthmus.audit.sparse_attacks import InnerNeighbours, Supports, Values, split_flat_rows
from isthmus.methods.fedcog import FedCog

SOURCE = torch.Generator().manual_seed(1)
BAGS = bags(range(5, 17), SOURCE)
WORDS = features("words", 12, SOURCE)
LINEAR = (OneNeighbour, LinearSystem)


def over(*joined, inner=(), x=BAGS, extra=0):
    """Node after node at the victim, and messages over these of them."""
    nodes = 1 + max(node for each in joined for node in each) + extra
    edges = [*inner, *((nodes + at, node) for at, each in enumerate(joined) for node in each)]
    return cut(edges, [0] * nodes + [1] * len(joined), x[: nodes + len(joined) + 3], more=3)


# ---- supports


def rows(*given):
    """These rows by column, and seven of colluders."""
    x = torch.cat([torch.zeros(len(given), 60), WORDS[:7]])
    for row, entries in zip(x, given, strict=False):
        for column, value in entries.items():
            row[column] = value
    return x


def test_what_no_other_message_has_is_one_nodes():
    # 0 and 1 together, 0 and 2 together: of 0 only the column that both messages have; the rest is told
    x = rows({3: 1.0}, {4: 0.7, 5: 0.2}, {6: 0.4}, {9: 1.0})
    known = knowing(over((0, 1), (0, 2), (3, 2), x=x))
    found = rows_of(claims_of(known, *LINEAR, Supports), "direction")
    assert found.keys() == {(100,), (101,), (102,), (103,)}
    for (node,), row in found.items():
        assert_direction(row[0], x[node - 100])


def test_a_column_that_two_nodes_may_share_stays_open():
    x = rows({3: 1.0, 4: 0.5}, {3: 0.7}, {6: 0.4}, {9: 1.0})
    assert not claims_of(knowing(over((0, 1), extra=1, x=x)), *LINEAR, Supports)


def test_a_support_may_be_told_where_values_are_not():
    # both messages have column 3, more in the second one than 0 can have put there: 2 must have some of it
    x = rows({3: 0.2}, {3: 0.1}, {3: 0.9}, {9: 1.0})
    known = knowing(over((0, 1), (0, 2), x=x, extra=1))
    claims = claims_of(known, *LINEAR, Supports)
    assert [(claim.level, claim.nodes, claim.columns.tolist()) for claim in claims] == [("support", (102,), [3])]


def test_rows_with_signs_have_no_support_to_tell():
    x = rows({3: 1.0}, {4: -0.7, 5: 0.2}, {6: 0.4}, {9: 1.0})
    x[4:] *= -1
    assert not claims_of(knowing(over((0, 1), (0, 2), (3, 2), x=x)), *LINEAR, Supports)


def test_where_colluders_have_no_signs_but_the_victim_does_nothing_is_claimed():
    x = rows({3: 1.0, 4: 0.5}, {4: -0.5}, {4: 0.5, 6: 0.4}, {4: 1.0, 9: 1.0})
    assert not claims_of(knowing(over((0, 1), (1, 2), (0, 2, 1), (3, 2), x=x)), Supports)


# ---- values


def test_three_flat_rows_in_one_message_are_read_but_not_whose_they_are():
    known = knowing(over((0, 1, 2), inner=[(0, 1), (0, 3), (1, 3), (0, 4)], extra=2), method=FedCog(min_neighbours=3))
    found = rows_of(claims_of(known, *LINEAR, Values), "features")
    assert found.keys() == {(100, 101, 102)}
    assert_each_is_one_of(found[100, 101, 102], BAGS[:3])


def test_other_messages_tell_whose_they_are():
    known = knowing(over((0, 1, 2), (1, 2, 3), (2, 3, 4), inner=[(0, 1), (0, 3), (0, 4), (1, 3)], extra=0))
    found = rows_of(claims_of(known, *LINEAR, Values), "features")
    for node in (0, 2, 4):
        assert_row(found[100 + node,][0], BAGS[node])


def test_rows_of_equal_value_are_not_taken_apart():
    x = BAGS.clone()
    x[0] = torch.zeros(60).index_fill_(0, torch.tensor([1, 2, 3]), 1 / 3)
    x[1] = torch.zeros(60).index_fill_(0, torch.tensor([3, 4, 5]), 1 / 3)
    # of one degree and one size: values g where one has a word, 2 g where both have
    assert not claims_of(knowing(over((0, 1), extra=1, x=x)), *LINEAR, Values)


def test_real_rows_are_not_taken_apart():
    assert not claims_of(knowing(over((0, 1, 2), x=WORDS)), *LINEAR, Values)


@pytest.mark.parametrize(
    ("values", "count", "due"),
    [
        ([0.5, 0.5, 0.2, 0.7], 2, [([2, 3], 0.2), ([0, 1, 3], 0.5)]),
        ([0.5, 0.5], 1, [([0, 1], 0.5)]),
        ([0.5, 0.2], 1, []),  # two values, one row
        ([0.5, 0.5], 2, []),  # one value, two rows
        ([0.5, 1.0], 2, []),  # 1.0 may be two of 0.5
        ([0.2, 0.3, 0.5], 3, []),  # 0.5 may be 0.2 + 0.3
        ([0.2, 0.3, 0.5], 2, [([0, 2], 0.2), ([1, 2], 0.3)]),
        ([], 1, []),
    ],
)
def test_taken_apart(values, count, due):
    found = split_flat_rows(np.arange(len(values)), np.array(values), count)
    assert [(row.columns.tolist(), pytest.approx(row.value)) for row in found] == due


# ---- inner neighbours


def test_lnnc_gives_its_neighbour_away():
    # 0 has no inner neighbour: LNNC joins it to the most similar of 1, 2, 3, none of which is at the border
    parties = cut([(0, 4), (1, 2), (2, 3), (4, 5)], [0, 0, 0, 0, 1, 1], WORDS[:9], more=3)
    likeness = torch.nn.functional.cosine_similarity(WORDS[1:4], WORDS[:1])
    nearest = 1 + int(likeness.argmax())
    assert likeness.max() > 0
    attacks = (OneNeighbour, SecondHop, InnerNeighbours)
    assert not claims_of(knowing(parties, method=FedCog(lnnc=False)), *attacks)
    found = rows_of(claims_of(knowing(parties, method=FedCog(lnnc=True)), *attacks), "direction")
    assert found.keys() == {100}
    assert_direction(found[100][0], WORDS[nearest])


def test_several_flat_inner_neighbours_are_taken_apart():
    parties = cut([(0, 4), (0, 1), (0, 2), (2, 3), (4, 5)], [0, 0, 0, 0, 1, 1], BAGS[:9], more=3)
    found = rows_of(claims_of(knowing(parties), OneNeighbour, InnerNeighbours), "features")
    assert found.keys() == {100}
    assert_each_is_one_of(found[100], BAGS[1:3])


def test_several_real_inner_neighbours_are_not():
    parties = cut([(0, 4), (0, 1), (0, 2), (2, 3), (4, 5)], [0, 0, 0, 0, 1, 1], WORDS[:9], more=3)
    assert not claims_of(knowing(parties), OneNeighbour, SecondHop, InnerNeighbours)


def test_one_hop_tells_nothing_of_inner_neighbours():
    parties = cut([(0, 4), (0, 1), (2, 3), (4, 5)], [0, 0, 0, 0, 1, 1], BAGS[:9], more=3)
    assert not claims_of(knowing(parties, hops=1), OneNeighbour, SecondHop, InnerNeighbours)


def assert_each_is_one_of(found, x) -> None:
    """As many rows as there are, each once."""
    found, x = (
        torch.stack(sorted(found, key=lambda row: row.tolist())),
        sorted(x.double(), key=lambda row: row.tolist()),
    )
    assert_row(found, torch.stack(x))
