"""A claim holds where our means show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from isthmus.papers.claims import Claim

AXES = {"data": ["a", "b", "c"], "method": ["x", "y", "z"]}
OURS = {("a", "x"): 3.0, ("a", "y"): 2.0, ("b", "x"): 1.0, ("b", "y"): 1.5, ("a", "z"): 0.0}
PAPER = {("a", "x"): 3.5, ("b", "x"): 4.0, ("c", "x"): 1.0}


def judged(**claim: object) -> tuple[str, list[tuple[str, bool]]]:
    def of(numbers: Mapping[tuple[str, str], float]) -> Callable[[Mapping[str, str]], float | None]:
        return lambda place: numbers.get((place["data"], place["method"]))

    verdict = Claim.model_validate({"says": "", **claim}).judged(AXES, of(OURS), of(PAPER))
    return verdict.word, [(each.place, each.holds) for each in verdict.places]


def test_an_order_is_judged_where_all_its_cells_are() -> None:
    assert judged(along="method", order=["x", "y"]) == ("holds at 1 of 2", [("a", True), ("b", False)])
    assert judged(along="method", order=["x", "y", "z"]) == ("holds", [("a", True)])
    assert judged(along="method", order=["x", "y"], at={"data": ["b"]}) == ("fails", [("b", False)])
    assert judged(along="method", order=["x", "y"], at={"data": ["c"]}) == ("not run", [])
    assert judged(along="data", order=["a", "b"]) == ("holds", [("x", True), ("y", True)])


@pytest.mark.parametrize(("by", "word"), [(-0.6, "holds"), (0.0, "holds at 1 of 2"), (1.0, "fails")])
def test_by_how_much(by: float, word: str) -> None:
    assert judged(along="method", order=["x", "y"], by=by)[0] == word


def test_small_figures_may_be_the_better_ones() -> None:
    assert judged(along="method", order=["x", "y"], lower=True)[1] == [("a", False), ("b", True)]


def test_near_is_judged_where_both_are() -> None:
    assert judged(near=0.5) == ("holds at 1 of 2", [("a, x", True), ("b, x", False)])
