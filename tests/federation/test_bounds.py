"""What a party may answer at most."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from isthmus.federation.answers import Answer, IdUnion, Reply, Total
from isthmus.federation.bounds import (
    Introduced,
    answer_problem,
    count_problem,
    ids_problem,
    total_problem,
    weight_faults,
    weight_problem,
)

HELD = Introduced(items=30, labels=20, nodes=30)


@pytest.mark.parametrize(
    ("weight", "why"),
    [
        (30.0, ""), (0.0, ""), (torch.tensor([0.0, 30.0]), ""), (30.5, "introduced 30 items"), (-1e-9, "negative"),
        (math.nan, "not finite"), (math.inf, "not finite"), ("many", "neither"), (torch.ones(2, 2), "neither"),
    ],
)  # fmt: skip
def test_a_weight_is_between_zero_and_what_was_introduced(weight: Any, why: str) -> None:
    assert why in weight_problem("", weight, 30)
    assert bool(why) == bool(weight_problem("", weight, 30))


def test_of_a_cohort_only_the_party_with_a_wrong_weight_is_at_fault() -> None:
    weight = torch.tensor([1.0, -2.0, math.inf])
    reply = Reply.of(("a", "b", "c"), Answer({"w": torch.zeros(3, 2)}, weight=weight))
    assert set(weight_faults(reply)) == {1, 2}


@pytest.mark.parametrize(
    ("value", "weight", "fits"),
    [
        (torch.tensor(1e37), 1.0, True), (torch.tensor(1e37), 30.0, False), (torch.tensor(3e38), 1.0, False),
        (torch.tensor(2**59), None, True), (torch.tensor(2**61), None, False), (2**61, None, False), ("x", None, False),
    ],
)  # fmt: skip
def test_no_sum_of_answers_in_bounds_overflows(value: Any, weight: Any, fits: bool) -> None:
    reply = Reply(("a",), {"w": [value]}, {} if weight is None else {"": [torch.tensor(weight, dtype=torch.float64)]})
    assert (answer_problem(reply, 0, HELD, 4, None) == "") == fits


def test_rows_are_those_of_the_union_and_each_field_has_one_for_each() -> None:
    union = IdUnion(torch.tensor([2, 5, 9]), torch.ones(3))

    def problem(ids: Any, value: Any) -> str:
        return answer_problem(Reply(("a",), {"ids": [ids], "x": [value]}), 0, HELD, 4, union)

    assert not problem(torch.tensor([5, 2]), torch.ones(2, 3))
    assert "outside the agreed union" in problem(torch.tensor([5, 3]), torch.ones(2, 3))
    assert "its ids are 2" in problem(torch.tensor([5, 2]), torch.ones(3, 3))
    assert "no list of ids" in problem(torch.tensor([0.5]), torch.ones(1))
    assert "rows need a field 'ids'" in answer_problem(Reply(("a",), {"x": [torch.ones(1)]}), 0, HELD, 4, union)


def test_a_sum_of_weights_is_at_most_what_all_introduced() -> None:
    def total(weight: float) -> Total:
        return Total({"w": torch.ones(2)}, {"w": weight}, 2, {})

    both = Introduced.sum([HELD, HELD])
    assert not total_problem(total(60.0), both)
    assert "sum up to 61" in total_problem(total(61.0), both)
    assert "sum up to -1" in total_problem(total(-1.0), both)


def test_more_ids_than_nodes_are_too_many() -> None:
    assert not ids_problem(torch.arange(30), 30)
    assert "lists 31 ids" in ids_problem(torch.arange(31), 30)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (30, ""), (torch.tensor([30, 0]), ""), (torch.zeros(0), ""), (31, "31, but 30 items"), (-1, "negative"),
        (math.nan, "not finite"), (2.5, "fractions"), ("x", "no numbers"), (None, "no numbers"),
    ],
)  # fmt: skip
def test_a_count_is_whole_and_between_zero_and_what_was_introduced(value: Any, why: str) -> None:
    found = count_problem({"n": "items"}, {"n": value}, HELD)
    assert why in found
    assert bool(why) == bool(found)
    assert not count_problem({"n": None}, {"n": 1e30}, HELD)


def test_a_rounded_sum_of_counts_may_miss_its_bounds_a_little() -> None:
    together = Introduced.sum([HELD, HELD])
    for value, fits in ((60.0002, True), (-0.0002, True), (31.5, True), (60.1, False), (-0.1, False)):
        assert (count_problem({"n": "items"}, {"n": value}, together) == "") == fits
