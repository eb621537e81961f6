"""A claim holds where our means show it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from a_paper import TABLE1, written
from pydantic import ValidationError

from isthmus.errors import IsthmusError
from isthmus.papers.claims import Claim, Verdict
from isthmus.papers.markdown import verdicts
from isthmus.papers.plan import Table
from isthmus.papers.results import TableResults

AXES = {"data": ["a", "b", "c"], "method": ["x", "y", "z"]}
OURS = {
    ("a", "x"): {0: 3.0, 1: 3.0}, ("a", "y"): {0: 2.0}, ("a", "z"): {0: 0.0, 1: 9.0},
    ("b", "x"): {0: 1.0}, ("b", "y"): {0: 1.5},
}  # fmt: skip
PAPER = {("a", "x"): 3.5, ("b", "x"): 4.0, ("c", "x"): 1.0}


def judged(**claim: object) -> tuple[str, list[tuple[str, bool]]]:
    verdict = told(**claim)
    return verdict.word, [(each.place, each.holds) for each in verdict.places]


def told(**claim: object) -> Verdict:
    def ours(place: Mapping[str, str]) -> Mapping[int, float]:
        return OURS.get((place["data"], place["method"]), {})

    def paper(place: Mapping[str, str]) -> float | None:
        return PAPER.get((place["data"], place["method"]))

    return Claim.model_validate({"says": "", **claim}).judge(AXES, ours, paper)


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


def test_only_seeds_that_all_cells_have_are_compared() -> None:
    """Seed 1 of z alone would put it above y."""
    [place] = told(along="method", order=["y", "z"], at={"data": ["a"]}).places
    assert (place.holds, place.means, place.seeds) == (True, (2.0, 0.0), 1)
    verdict = told(along="method", order=["x", "z"], at={"data": ["a"]})
    assert verdict.places[0].means == (3.0, 4.5)
    assert verdict.basis == "1 comparison, 2 seeds"


def test_all_of_a_group_are_above_all_of_the_next() -> None:
    assert judged(along="method", order=["x", ["y", "z"]]) == ("holds", [("a", True)])
    assert judged(along="method", order=[["x", "z"], "y"]) == ("fails", [("a", False)])
    assert told(along="method", order=["x", ["y", "z"]]).places[0].means == (3.0, 2.0)
    assert told(along="method", order=[["x", "y"], "z"]).places[0].means == (2.0, 0.0)
    assert judged(along="method", order=[["z", "y"], "x"], lower=True) == ("holds", [("a", True)])


def test_values_may_be_claimed_to_be_alike() -> None:
    assert judged(along="method", within=3.0) == ("holds", [("a", True)])
    assert judged(along="method", within=2.9) == ("fails", [("a", False)])
    assert told(along="method", within=3.0).places[0].means == (0.0, 3.0)
    assert judged(along="data", within=2.0, at={"data": ["a", "b"]}) == ("holds", [("x", True), ("y", True)])


@pytest.mark.parametrize(
    "claim",
    [
        {}, {"order": ["x", "y"]}, {"along": "method", "order": ["x"]}, {"along": "method", "order": [["x"], []]},
        {"within": 1.0}, {"along": "method", "order": ["x", "y"], "within": 1.0}, {"near": 1.0, "within": 1.0},
    ],
)  # fmt: skip
def test_a_claim_says_one_thing(claim: Mapping[str, object]) -> None:
    with pytest.raises(ValidationError):
        Claim.model_validate({"says": "", **claim})


def test_figures_of_one_cell_may_be_compared(tmp_path: Path) -> None:
    claim = '[[claims]]\nsays = "Test is above"\nalong = "figures"\norder = ["test", "val"]\nat.size = ["120"]\n'
    table = Table.of_file(written(tmp_path, table1=TABLE1 + claim) / "mine" / "table1.toml")
    results = TableResults()
    for cell, (test, val) in zip(table.cells(), [(0.01, 0.9), (0.009, 0.9), (0.01, 0.9)], strict=False):
        results.add(cell, {"seed": 0, "figures": {"test": test, "val": val}})
    verdict = verdicts(table, results)[-1]
    assert [(each.place, each.holds) for each in verdict.places] == [("120, fedavg", True), ("120, fedprox", False)]
    assert verdict.places[0].means == (1.0, 0.9)


def test_an_unknown_figure_is_named(tmp_path: Path) -> None:
    claim = '[[claims]]\nsays = "?"\nalong = "figures"\norder = ["test", "vall"]\n'
    with pytest.raises(IsthmusError, match="axis 'figures' has no 'vall'"):
        Table.of_file(written(tmp_path, table1=TABLE1 + claim) / "mine" / "table1.toml")
