"""Parties' scores: over all of them, against training alone, and one by one."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

from result_folders import SEEDS, Build, Page, page_on, run

from isthmus.report.report import write_report


def with_entry(parts: dict[str, Any], evaluated: dict[str, str] | None = None) -> None:
    """Scores over parties in every run: the worst party of seed 2 is another one."""
    for each in parts["results"]["runs"]:
        pooled = each["metrics"]["test_accuracy"]
        worst = {"worst": pooled - 0.2, "worst_party": "party-10" if each["seed"] == 2 else "party-3"}
        entry = {"mean": pooled - 0.05, "weighted": pooled - 0.01 * each["seed"], **worst, "parties": 4}
        each["over_parties"] = {"test_accuracy": entry}
        each["evaluated"] = (evaluated or {}).get(each["method"], "sent")


def test_pooled_mean_and_worst_stand_side_by_side(build: Build) -> None:
    page = Page(write_report([build(change=with_entry)]))
    head = next(row for row in page.rows if "Worst party (%)" in row)
    names = ["Pooled (%)", "Mean over parties (%)", "Mean weighted by size (%)", "Worst party (%)"]
    assert head == ["Method", *names, "Which is worst"]
    row = next(row for row in page.rows if row[0].startswith("fedsage") and row[-1] == "party-3, party-10")
    pooled = [run("fedsage", seed)["metrics"]["test_accuracy"] for seed in SEEDS]
    columns = [
        pooled,
        [value - 0.05 for value in pooled],
        [value - 0.01 * seed for value, seed in zip(pooled, SEEDS, strict=True)],
        [value - 0.2 for value in pooled],
    ]
    means = [f"{100 * statistics.mean(values):.1f} ± {100 * statistics.stdev(values):.1f}" for values in columns]
    assert row[1:-1] == means
    assert "At each party was evaluated: the model that the server sent (fedavg, fedsage)." in page.text


def test_one_seed_has_no_deviation_over_parties(build: Build) -> None:
    page = Page(write_report([build(seeds=(0,), methods=("fedavg",), change=with_entry)]))
    score = run("fedavg", 0)["metrics"]["test_accuracy"]
    shown = [f"{100 * value:.1f}" for value in (score, score - 0.05, score, score - 0.2)]
    assert ["fedavg", *shown, "party-3"] in page.rows


def test_the_model_that_was_evaluated_is_named_per_method_where_methods_differ(build: Build) -> None:
    change = partial(with_entry, evaluated={"fedsage": "trained"})
    text = Page(write_report([build(change=change)])).text
    assert (
        "At each party was evaluated: the model that the server sent (fedavg); the model that its own "
        "training made of it (fedsage)." in text
    )


def test_results_without_the_entry_have_no_table_over_parties(build: Build) -> None:
    text = Page(write_report([build()])).text
    assert "Worst party" not in text
    assert "Party by party" in text


def test_scores_over_parties_are_shown_where_single_parties_are_not_known(build: Build) -> None:
    def totals_only(parts: dict[str, Any]) -> None:
        with_entry(parts)
        for each in parts["results"]["runs"]:
            del each["parties"]

    page = Page(write_report([build(change=totals_only)]))
    assert "Party by party" in page.text
    assert "Worst party" in page.text
    assert "a dot per party" not in page.text


def test_a_party_has_its_mean_over_seeds(build: Build) -> None:
    page = Page(write_report([build()]))
    mean = 100 * sum(run("fedavg", seed)["parties"]["party-3"]["test_accuracy"] for seed in SEEDS) / len(SEEDS)
    assert page.row("party-3")[1] == f"{mean:.1f}"


def test_who_gains_over_training_alone(build: Build) -> None:
    def shift(parts: dict[str, Any]) -> None:
        for each in parts["results"]["runs"]:
            if each["method"] == "fedavg":
                each["parties"]["party-1"]["test_accuracy"] -= 0.5

    page = Page(write_report([build(change=shift)]))
    row = next(row for row in page.rows if row[0].startswith("fedavg") and row[1:3] == ["3", "1"])
    local, fedavg = (run(method, 0)["parties"]["party-1"]["test_accuracy"] for method in ("local", "fedavg"))
    assert row[4] == f"party-1 {100 * (fedavg - 0.5 - local):+.3g}"
    assert "against their own model, trained alone: test accuracy in points" in page.text
    without = Page(write_report([build("without", methods=("fedavg",))]))
    assert "trained alone" not in without.text


def test_who_trained_nothing_alone_is_not_compared(build: Build) -> None:
    def idle(parts: dict[str, Any]) -> None:
        for cut in parts["results"]["cuts"]:
            next(each for each in cut["parties"] if each["name"] == "party-1")["train"] = 0

    page = Page(write_report([build(change=idle)]))
    assert "Without party-1: no training item, so nothing was trained there." in page.text
    gains = [row for row in page.rows if row[0].startswith("fedavg") and len(row) == 5]
    assert gains
    assert not any("party-1 " in cell for row in gains for cell in row[3:])


def test_parties_of_another_study_are_not_compared(build: Build) -> None:
    def elsewhere(parts: dict[str, Any]) -> None:
        parts["results"]["study"]["data"]["name"] = "citeseer"

    other = build("other", methods=("fedavg",), change=elsewhere)
    both = page_on(build("alone", methods=("local", "fedsage")), other)
    gaining = [row[0].split()[0] for row in both.rows if len(row) == 5 and row[3].startswith("party-")]
    assert gaining == ["fedsage"], "parties of another study are others, even with the same names"
    assert "Bold:" not in both.text


def test_results_without_parties_have_no_section_on_them(build: Build) -> None:
    def strip(parts: dict[str, Any]) -> None:
        for each in parts["results"]["runs"]:
            del each["parties"]

    assert "Party by party" not in Page(write_report([build(methods=("fedavg",), change=strip)])).text


def test_small_test_sets_and_parties_that_are_left_out_are_named(build: Build) -> None:
    def change(parts: dict[str, Any]) -> None:
        with_entry(parts)
        for each in parts["results"]["runs"]:
            each["over_parties"]["test_accuracy"] |= {"worst_items": 7, "parties": 1}
            each["parties"] = {name: {"test_accuracy": 0.5} for name in ("party-1", "party-2", "party-3")}

    page = Page(write_report([build(change=change)]))
    assert any(row[-1] == "party-3 (7 test items), party-10 (7 test items)" for row in page.rows)
    assert "2 parties are left out, whose test items give no such score." in page.text
