"""A claim holds where our means show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from a_paper import TABLE1, written
from pydantic import ValidationError
from scipy import stats

from isthmus.errors import IsthmusError
from isthmus.papers.claims import Claim, Comparison, Verdict
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
    """The verdict with the value of seed 0 for three seeds, and the places."""
    verdict = told(repeats=3, **claim)
    return verdict.word, [(each.place, each.holds) for each in verdict.places]


def told(*, repeats: int = 1, **claim: object) -> Verdict:
    def ours(place: Mapping[str, str]) -> Mapping[int, float]:
        once = OURS.get((place["data"], place["method"]), {})
        return dict.fromkeys(range(repeats), once[0]) if once and repeats > 1 else once

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


def test_a_cell_may_be_near_the_papers_number_of_another() -> None:
    """The method y has 2.0 at a and 1.5 at b; the paper gives x, and only x, 3.5 and 4.0 there."""
    claim = {"at": {"method": ["y"]}, "paper_at": {"method": "x"}}
    assert judged(near=2.0, **claim) == ("holds at 1 of 2", [("a, y", True), ("b, y", False)])


def test_only_seeds_that_all_cells_have_are_compared() -> None:
    """Seed 1 of z alone would put it above y."""
    [place] = told(along="method", order=["y", "z"], at={"data": ["a"]}).places
    assert (place.holds, place.means, place.seeds) == (True, (2.0, 0.0), 1)
    verdict = told(along="method", order=["x", "z"], at={"data": ["a"]})
    assert verdict.places[0].means == (3.0, 4.5)
    assert verdict.basis == "1 comparison, 2 seeds"


def verdict_of(values: Mapping[str, Mapping[int, float]], **claim: object) -> Verdict:
    """The verdict on "x is above y" for values by method and seed."""
    return Claim.model_validate({"says": "", "along": "method", "order": ["x", "y"], **claim}).judge(
        {"method": ["x", "y"]}, lambda place: values[place["method"]], lambda place: None
    )


def test_a_claim_holds_or_fails_only_with_three_seeds() -> None:
    two, three = {0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0, 2: 3.0}
    above_two, above_three = ({seed: value + 1 for seed, value in each.items()} for each in (two, three))
    assert verdict_of({"x": above_three, "y": three}).word == "holds"
    assert verdict_of({"x": three, "y": above_three}).word == "fails"
    assert verdict_of({"x": above_two, "y": three}).word == "points to", "they share two seeds"
    assert verdict_of({"x": two, "y": above_three}).word == "points against"
    parts = Verdict(Claim(says="", near=1.0), [Comparison("a", True, (), 3), Comparison("b", False, (), 2)])
    assert (parts.word, parts.kind, parts.basis) == (
        "points to at 1 of 2",
        "points to in part",
        "2 comparisons, 2 to 3 seeds",
    )


def test_a_paired_difference_that_the_means_shown_contradict_decides_nothing() -> None:
    """Over the shared seeds x is above y by 1; the means in the table are 3.0 and 3.5."""
    verdict = verdict_of({"x": {0: 2.0, 1: 3.0, 2: 4.0}, "y": {0: 1.0, 1: 2.0, 2: 3.0, 3: 8.0}})
    assert (verdict.places[0].holds, verdict.places[0].means, verdict.places[0].seeds) == (True, (3.0, 2.0), 3)
    assert verdict.word == "points to"


def test_pairs_are_tested_and_seeds_of_one_split_are_one_sample() -> None:
    x, y = {0: 2.0, 1: 3.5, 2: 5.0}, {0: 1.0, 1: 2.0, 2: 3.0}
    assert verdict_of({"x": x, "y": y}).places[0].p == pytest.approx(
        stats.ttest_rel(list(x.values()), list(y.values())).pvalue
    )
    assert verdict_of({"x": {0: 2.0, 1: 3.0}, "y": {0: 1.0, 1: 1.0}}).places[0].p is None
    values = {
        ("s1", "x"): {0: 5.0, 1: 6.0, 2: 7.0}, ("s1", "y"): {0: 4.0, 1: 4.0, 2: 4.0},
        ("s2", "x"): {0: 3.0, 1: 3.0, 2: 3.0}, ("s2", "y"): {0: 2.0, 1: 2.0, 2: 2.0},
        ("s3", "x"): {0: 1.0, 1: 1.0, 2: 1.0}, ("s3", "y"): {0: 2.0, 1: 2.0, 2: 2.0},
    }  # fmt: skip
    claim = Claim(says="", along="method", order=["x", "y"], over="split")
    axes = {"split": ["s1", "s2", "s3"], "method": ["x", "y"]}
    [place] = claim.judge(axes, lambda place: values[place["split"], place["method"]], lambda place: None).places
    assert (place.holds, place.seeds, place.firm) == (True, 3, True)
    assert place.means == pytest.approx((30 / 9, 24 / 9))
    assert place.p == pytest.approx(stats.ttest_1samp([2.0, 1.0, -1.0], 0).pvalue)


def test_a_gain_that_may_be_luck_does_not_hold() -> None:
    """By a paired test; a loss that a claim allows is tested against, and places count together."""
    zero, lucky = dict.fromkeys(range(4), 0.0), {0: 3.0, 1: -2.0, 2: 2.0, 3: -1.0}
    sure = {0: 1.0, 1: 1.1, 2: 0.9, 3: 1.0}
    verdict = verdict_of({"x": lucky, "y": zero})
    assert (verdict.word, verdict.kind) == ("may be luck", "may be luck")
    assert verdict_of({"x": zero, "y": lucky}).word == "fails"
    assert verdict_of({"x": sure, "y": zero}).word == "holds"
    less = {seed: -value for seed, value in sure.items()}
    assert verdict_of({"x": less, "y": zero}, by=-1.1).word == "may be luck", "by the loss allowed"
    assert verdict_of({"x": less, "y": zero}, by=-2.0).word == "holds"
    assert verdict_of({"x": sure, "y": zero}, by=-2.0, lower=True).p == pytest.approx(
        stats.ttest_1samp([*sure.values()], 2.0).pvalue
    )

    claim = Claim(says="", along="method", order=["x", "y"])
    unsure = {0: 2.0, 1: -0.5, 2: 1.5, 3: 1.0}
    axes = {"data": [*"abcdefgh"], "method": ["x", "y"]}
    verdict = claim.judge(axes, lambda place: unsure if place["method"] == "x" else zero, lambda place: None)
    assert (verdict_of({"x": unsure, "y": zero}).word, verdict.word) == ("may be luck", "holds")
    at = {"a": lucky, "b": dict.fromkeys(range(4), -1.0)}
    part = claim.judge(
        {"data": [*"ab"], "method": ["x", "y"]},
        lambda place: at[place["data"]] if place["method"] == "x" else zero,
        lambda place: None,
    )
    assert (part.word, part.kind) == ("may be luck at 1 of 2", "may be luck in part")

    same = dict.fromkeys(range(4), 1.0)
    at = {"a": lucky, "b": same}
    for place in (same, zero, dict.fromkeys(zero, 0.7 + 0.1)):
        alike = verdict_of({"x": place, "y": dict(zero)}, by=-2.0)
        assert (alike.word, alike.p) == ("holds", None), "runs that are the same are no test of a loss"
    both = claim.judge(
        {"data": [*"ab"], "method": ["x", "y"]},
        lambda place: at[place["data"]] if place["method"] == "x" else zero,
        lambda place: None,
    )
    assert both.p == pytest.approx(both.places[0].p), "a gain that does not vary adds nothing to the test"
    one = stats.ttest_1samp([*unsure.values()], 0.0).pvalue
    assert verdict.p == pytest.approx(stats.combine_pvalues([one] * 8).pvalue)


def test_runs_of_code_with_other_draws_are_not_paired() -> None:
    axes = {"method": ["x", "y"]}
    values = {"x": {0: 2.0, 1: 2.1, 2: 1.9}, "y": {0: 1.0, 1: 1.2, 2: 0.9, 3: 1.0}}

    def told_with(**older: Sequence[int]) -> Verdict:
        return Claim(says="", along="method", order=["x", "y"]).judge(
            axes, lambda place: values[place["method"]], lambda place: None, older=lambda place: older[place["method"]]
        )

    assert (told_with(x=(), y=(3,)).word, told_with(x=(0, 1, 2), y=(0, 1, 2)).word) == ("holds", "holds")
    for mixed in (told_with(x=(0,), y=()), told_with(x=(0, 1, 2), y=(1, 2, 3))):
        assert (mixed.word, mixed.p) == ("points to", None)


def test_places_of_one_data_set_are_no_independent_evidence() -> None:
    """Their gains count as one mean by seed; where some lose, the best of them is one of as many chances."""
    axes = {"data": ["a", "b"], "parties": ["2", "4"], "method": ["x", "y"]}
    gains = {
        ("a", "2"): {0: 2.0, 1: -0.5, 2: 1.5}, ("a", "4"): {0: 1.0, 1: 0.5, 2: 1.0, 3: 9.0},
        ("b", "2"): {0: 1.0, 1: 1.1, 2: 0.9}, ("b", "4"): {0: -1.0, 1: -2.0, 2: 0.5},
    }  # fmt: skip

    def verdict(*data: str) -> Verdict:
        return Claim(says="", along="method", order=["x", "y"], at={"data": [*data]}).judge(
            axes,
            lambda at: {
                seed: gain if at["method"] == "x" else 0.0 for seed, gain in gains[at["data"], at["parties"]].items()
            },
            lambda at: None,
            data_of=lambda at: at["data"],
        )

    means = stats.ttest_1samp([1.5, 0.0, 1.25], 0.0).pvalue
    best = stats.ttest_1samp([1.0, 1.1, 0.9], 0.0).pvalue
    assert verdict("a").p == pytest.approx(means)
    assert (verdict("b").p, verdict("b").word) == (pytest.approx(2 * best), "holds at 1 of 2")
    assert verdict("a", "b").p == pytest.approx(stats.combine_pvalues([means, 2 * best]).pvalue)


def test_a_claim_over_splits_needs_three_seeds_on_each_and_three_splits() -> None:
    def verdict(*seeds: int) -> Verdict:
        """x is above y on as many splits as there are numbers, each with so many seeds."""
        claim = Claim(says="", along="method", order=["x", "y"], over="split")
        values = {("x", str(at)): dict.fromkeys(range(count), 2.0) for at, count in enumerate(seeds)}
        values |= {("y", split): dict.fromkeys(each, 1.0) for (_, split), each in values.items()}
        axes = {"split": [*map(str, range(5))], "method": ["x", "y"]}
        return claim.judge(axes, lambda place: values.get((place["method"], place["split"]), {}), lambda place: None)

    assert (verdict(3, 3, 3).word, verdict(3, 3).word, verdict(3, 3, 1).word) == ("holds", "points to", "points to")
    assert verdict(3, 4, 3).basis == "1 comparison, 3 seeds on each of 3 values of split"
    assert verdict(3, 3, 1).basis == "1 comparison, 1 seed on each of 3 values of split"


def test_results_of_a_first_round_support_no_claim() -> None:
    values = {"x": {0: 2.0, 1: 2.0, 2: 2.0}, "y": {0: 1.0, 1: 1.0, 2: 1.0}}
    claim = Claim(says="", along="method", order=["x", "y"])
    for early, word in (([True, True, False], "no verdict"), ([True, False, False], "holds")):
        verdict = claim.judge(
            {"data": ["a"], "method": ["x", "y"]},
            lambda place: values[place["method"]],
            lambda place: None,
            lambda place, early=early: early if place["method"] == "y" else [],
        )
        assert (verdict.word, list(verdict.left_out)) == (word, ["a"] if word == "no verdict" else [])


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
        {"along": "method", "order": ["x", "y"], "paper_at": {"method": "x"}},
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
