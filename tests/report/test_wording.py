"""Cuts, metrics and numbers in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from isthmus.data.description import CutDescription, PartyDescription
from isthmus.report import wording


def holding(name: str = "a", **changes: Any) -> PartyDescription:
    counts = dict.fromkeys(("items", "nodes"), 1200) | {"edges": 30, "cross": 10, "shared": 0, "unlabelled": 0}
    counts |= {"train": 1, "val": 2, "test": 3, "labels": (700, 500)}
    return PartyDescription(name, **{**counts, **changes})


def cut(*parties: PartyDescription, **changes: Any) -> CutDescription:
    whole: dict[str, Any] = {"level": "node", "kind": "class", "nodes": 2400, "edges": 60, "cross": 20, "emd": 0.5}
    return CutDescription(parties=parties, **{**whole, **changes})


TWO = cut(holding("a"), holding("b"))


def test_a_cut_in_words() -> None:
    assert wording.describe_cut([TWO]) == (
        "2 parties hold 2,400 nodes and 80 edges; 25.0 % of the edges cross between parties. The earth mover's "
        "distance of the parties' labels from the mix of all is 0.50 (0: all have the same mix; at most 2)."
    )


def test_cuts_of_several_seeds_are_mean_and_deviation() -> None:
    text = wording.describe_cut([TWO, replace(TWO, emd=0.7, edges=20), replace(TWO, emd=0.6)])
    assert "33.3 ± 14.4 % of the edges cross" in text
    assert "is 0.60 ± 0.10 (" in text


@pytest.mark.parametrize(
    ("description", "text"),
    [
        (cut(holding("a"), holding("b"), cross=0), "60 edges; none is known to cross."),
        (cut(holding("a"), holding("b"), nodes=2000), "counted at each holder, there are 2,400."),
        (cut(holding("a", unlabelled=7), holding("b")), "7 of the 2,400 nodes have no label."),
        (replace(TWO, features=9, structural=5), "5 of the 9 features of a node follow from the edges."),
        (cut(holding("a"), holding("b"), kind="yes-no"), "from the mix of all, mean over the tasks, is 0.50"),
        (cut(holding("a", items=5), holding("b", items=4), level="graph"), "2 parties hold 9 graphs with 2,400 nodes"),
    ],
)
def test_a_cut_names_what_its_parties_hold(description: CutDescription, text: str) -> None:
    assert text in wording.describe_cut([description])


@pytest.mark.parametrize(
    ("description", "text"),
    [
        (cut(holding()), "cross"),
        (cut(holding()), "earth mover"),
        (replace(TWO, emd=None), "earth mover"),
        (replace(TWO, level="graph"), "cross"),
        (TWO, "no label"),
    ],
)
def test_a_cut_leaves_out_what_says_nothing(description: CutDescription, text: str) -> None:
    assert text not in wording.describe_cut([description])


def test_counts_that_all_parties_lack_are_left_out() -> None:
    assert list(wording.count_columns(TWO)) == ["nodes", "edges", "cross", "train", "val", "test"]
    description = wording.count_columns(cut(holding("a", shared=2, cross=0, unlabelled=1, items=4), level="graph"))
    assert list(description) == ["graphs", "nodes", "edges", "shared", "train", "val", "test", "unlabelled"]
    assert (description["graphs"], description["shared"]) == ([4], [2])


def test_labels_have_a_column_each_or_one_for_all() -> None:
    assert wording.label_columns(TWO) == (["class 0", "class 1"], [["700", "500"]] * 2)
    yes = cut(holding(labels=(1, 1000), labelled=(2, 2000)), kind="yes-no")
    assert wording.label_columns(yes) == (["task 0", "task 1"], [["1/2", "1,000/2,000"]])
    values = cut(holding(labels=(), labelled=(2, 0), means=(0.123456, None)), kind="value")
    assert wording.label_columns(values) == (["task 0", "task 1"], [["0.1235", "–"]])
    many = cut(holding(labels=(0, 10, 60, 20, 0, 0, 0, 0, 5, 5)), holding(labels=(0,) * 9))
    assert wording.label_columns(many) == (
        ["labels"], [["class 2 60 %, class 3 20 %, class 1 10 %, 2 others"], ["none"]],
    )  # fmt: skip
    nine = cut(holding(labels=(1,) * 9, labelled=(200,) * 9), kind="yes-no")
    assert wording.label_columns(nine)[1] == [["9 of 1,800 yes"]]
    nine = cut(holding(labels=(), labelled=(200,) * 9, means=(1.0,) * 9), kind="value")
    assert wording.label_columns(nine)[1] == [["1,800 values"]]
    assert wording.label_columns(cut(holding(labels=()))) == ([], [[]])


@pytest.mark.parametrize(
    ("numbers", "text"), [([], "–"), ([3], "3"), ([1, 3], "1, 3"), ([1, 2, 3], "1 to 3"), ([1, 5, 9], "1 to 9")]
)
def test_numbers_are_given_by_their_range(numbers: list[int], text: str) -> None:
    assert wording.number_range(numbers) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (999.6, "1 kB"), (1234, "1.23 kB"), (5e12, "5 TB")])
def test_bytes_are_in_the_units_of_networks(count: float, text: str) -> None:
    assert wording.format_bytes(count) == text


@pytest.mark.parametrize(
    ("metric", "title"),
    [
        ("test_roc_auc", "Test ROC AUC"),
        ("val_rmse", "Validation RMSE"),
        ("test_macro_f1", "Test macro F1"),
        ("pooled_test_accuracy", "Pooled test accuracy"),
    ],
)
def test_metrics_are_spelled_as_people_write_them(metric: str, title: str) -> None:
    assert wording.metric_title(metric) == title


@pytest.mark.parametrize(
    ("mean", "std", "metric", "text"),
    [
        (0.003, 0.000692, "test_loss", "0.003 ± 0.001"),
        (0.0004, 0.01, "test_loss", "0.0004 ± 0.0100"),
        (0.7654, 0.0123, "test_accuracy", "76.5 ± 1.2"),
        (0.7654, None, "test_accuracy", "76.5"),
        (1e9, 2e7, "test_mse", "1e+09 ± 2e+07"),
        (None, 0.1, "test_loss", "–"),
    ],
)
def test_a_mean_and_its_deviation_have_as_many_digits(
    mean: float | None, std: float | None, metric: str, text: str
) -> None:
    assert wording.mean_and_std(mean, std, metric) == text
