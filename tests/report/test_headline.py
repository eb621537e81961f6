"""The headline gives each setting a verdict, and says how certain it is."""

from __future__ import annotations

import re
from html import escape
from typing import Any

import pytest
from result_folders import SEEDS, Build, Page, of_another_task, page_on, run, summary

from isthmus.report.compare import list_runs
from isthmus.report.report import write_report


def test_the_headline_names_the_study_and_its_best_method(build: Build) -> None:
    page = Page(write_report([build()]))
    mean = 100 * sum(run("fedsage", seed)["metrics"]["test_accuracy"] for seed in SEEDS) / len(SEEDS)
    assert "cora across 4 parties" in page.text
    assert f"fedsage reached {mean:.1f} ± 0.4 % test accuracy at the round that validation chose;" in page.text
    assert "centralized (all data pooled)" in page.text
    assert "gcn (hidden 64)" in page.text
    assert "over 3 seeds" in page.text


def test_a_lead_within_one_deviation_is_called_so(build: Build) -> None:
    def closer(parts: dict[str, Any]) -> None:
        for line in parts["results"]["summary"]:
            line["std"] = 0.05

    assert "is within one standard deviation" in Page(write_report([build(change=closer)])).text
    assert "within one standard deviation" not in Page(write_report([build("clear")])).text


@pytest.mark.parametrize(("gap", "word"), [(0.02, "is more than luck would explain"), (0.0004, "may be luck")])
def test_the_headline_says_of_a_lead_what_the_paired_test_says(build: Build, gap: float, word: str) -> None:
    wide, gains = (0.0, 0.1, 0.3), (0.9, 1.0, 1.3) if gap > 0.01 else (-9.0, 1.0, 11.0)

    def near(parts: dict[str, Any]) -> None:
        for each in parts["results"]["runs"]:
            lead = gap * gains[each["seed"]] * (each["method"] == "fedsage")
            each["metrics"]["test_accuracy"] = 0.5 + wide[each["seed"]] + lead
        parts["results"]["summary"] = summary(parts["results"]["runs"])

    text = Page(write_report([build(methods=("fedavg", "fedsage"), change=near)])).text
    found = re.search(rf"The lead of fedsage over fedavg {word} \(paired over 3 seeds, p = ([\d.]+)\)", text)
    assert found
    assert f" {found[1]} 3 " in text.partition("more than luck?")[2], "the table has the same p"
    assert "within one standard deviation" not in text


def test_the_headline_says_which_round_was_chosen(build: Build) -> None:
    def last(parts: dict[str, Any]) -> None:
        for each in parts["results"]["runs"]:
            each["chosen_round"] = each["rounds"]
        for method in parts["results"]["methods"].values():
            method["select"] = "last"

    assert "test accuracy at the last round;" in Page(write_report([build(change=last)])).text

    def chosen(parts: dict[str, Any]) -> None:
        last(parts)
        for method in parts["results"]["methods"].values():
            method["select"] = "validation"

    text = Page(write_report([build("chosen", change=chosen)])).text
    assert "test accuracy at the round that validation chose;" in text
    assert "Every run reports its last round" not in text

    def unlabelled(parts: dict[str, Any]) -> None:
        chosen(parts)
        parts["results"]["study"]["task"] = {"name": "graph-clustering"}

    assert "test accuracy at the last round;" in Page(write_report([build("un", change=unlabelled)])).text


def test_validation_data_choose_the_method_of_the_headline(build: Build) -> None:
    def preferred(parts: dict[str, Any]) -> None:
        for line in parts["results"]["summary"]:
            line["mean"] += 0.1 * (line["method"] == "fedavg" and line["metric"] == "val_accuracy")

    folder = build(change=preferred)
    text = Page(write_report([folder])).text
    assert "fedavg reached" in text
    assert "on test data, which choose nothing, fedsage is best" in text
    assert "Gain of fedavg" in text
    assert list_runs(folder.parent)[0]["headline"].startswith("fedavg ")
    assert "which choose nothing" not in Page(write_report([build("other")])).text


def test_means_that_are_equal_are_no_lead(build: Build) -> None:
    def equal(parts: dict[str, Any]) -> None:
        for line in parts["results"]["summary"]:
            line |= {"mean": 0.5, "std": 0.0}

    text = Page(write_report([build(change=equal)])).text
    assert "fedavg and fedsage are equal." in text
    assert "The lead of" not in text


def test_the_headline_says_when_training_alone_is_better(build: Build) -> None:
    def better(parts: dict[str, Any]) -> None:
        for line in parts["results"]["summary"]:
            line["mean"] = 0.9 if line["method"] == "local" else line["mean"]
        for each in parts["results"]["runs"]:
            each["metrics"]["test_accuracy"] += 0.2 if each["method"] == "local" else 0.0

    note = "local is better than every federated method: by these results, parties gain nothing together"

    def noted(parts: dict[str, Any]) -> None:
        better(parts)
        parts["results"]["notes"] = [note]

    for folders in (
        [build("one", change=better)],
        [build("noted", change=noted)],
        [build("together", ("fedavg",)), build("alone", ("local", "fedprox"), change=better)],
    ):
        source = page_on(*folders).source
        assert source.count(note) == 1
        assert f"<p class=verdict><b>Note:</b> {note}.</p>" in source
    assert "gain nothing together" not in Page(write_report([build("other")])).text

    def worse(parts: dict[str, Any]) -> None:
        noted(parts)
        for line in parts["results"]["summary"]:
            line["mean"] -= 0.3

    both = page_on(build("low", ("fedavg", "local"), change=worse), build("high", ("fedavg",))).source
    assert both.count("gain nothing together") == 1
    assert f"<b>Note on low:</b> {note}." in both, "over both folders, fedavg is best"
    few = Page(write_report([build("few", seeds=(0, 1), change=better)])).text
    assert "local is ahead of every federated method, but fewer than 3 seeds do not show" in few


def test_the_headline_marks_a_method_that_is_no_better_than_the_majority_class(build: Build) -> None:
    def many(parts: dict[str, Any]) -> None:
        for each in parts["results"]["runs"]:
            each["metric"] = "accuracy"
            each["majority_score"] = 0.99 if each["method"] in ("fedsage", "local") else 0.01

    text = Page(write_report([build(change=many)])).text
    assert "fedsage (no better than the majority class) reached" in text
    assert "; fedavg 7" in text


def test_the_smaller_loss_leads(build: Build) -> None:
    def losses(parts: dict[str, Any]) -> None:
        parts["results"]["summary"] = [
            {"method": "fedavg", "metric": "test_loss", "mean": 0.9, "std": 0.01, "seeds": 3},
            {"method": "fedsage", "metric": "test_loss", "mean": 0.4, "std": 0.01, "seeds": 3},
        ]

    assert "fedsage reached 0.400 ± 0.010 test loss" in Page(write_report([build(change=losses)])).text


def test_each_setting_is_judged_by_the_metric_of_its_task(build: Build) -> None:
    def motifs(parts: dict[str, Any]) -> None:
        parts["results"]["study"]["data"]["name"] = "motifs"

    first, motif = build("first"), build("motif", change=motifs)
    page = page_on(first, build("mol", change=of_another_task), motif)
    assert "No metric was recorded" not in page.text
    mean = 100 * sum(run("fedsage", seed)["metrics"]["test_accuracy"] for seed in SEEDS) / len(SEEDS)
    for name, metric in (("first", "accuracy"), ("mol", "ROC AUC"), ("motif", "accuracy")):
        assert f"{name} fedsage reached {mean:.1f} ± 0.4 % test {metric} at the round" in page.text
        assert f"Gain of fedsage ({name})" in page.text
        assert [row[1:3] for row in page.rows if row[0].startswith(f"fedavg ({name})")].count(["4", "0"]) == 1, "gains"
    titles = [title for chart in page.charts if "a dot per seed" in (title := chart.findtext("title") or "")]
    assert [title.partition(":")[0] for title in titles] == ["Test accuracy", "Test ROC AUC", "Test accuracy"]
    seeds = [row for row in page.rows if row[0].startswith("fedavg (") and len(row) == 1 + len(SEEDS)]
    assert len(seeds) == 3
    assert all("–" not in row for row in seeds)


def test_one_method_of_one_setting_in_two_folders(build: Build) -> None:
    text = page_on(build("a", ("fedavg",), (0,)), build("b", ("fedavg",), (1, 2))).text
    assert "fedavg (b) reached" in text
    assert "; fedavg (a) " in text
    assert "Mean ± standard deviation over 1 or 2 seeds." in text


def test_results_in_which_a_party_is_missing_cannot_be_overlooked(build: Build) -> None:
    assert "not results of all parties" not in Page(write_report([build("whole")])).text

    def without(parts: dict[str, Any]) -> None:
        first, second, *_ = parts["results"]["runs"]
        first["turnout"] = [
            {"first": 1, "last": 2, "counted": ["a", "b & c"], "missing": {}},
            {"first": 3, "last": 9, "counted": ["a"], "missing": {"b & c": "no answer within 8 s"}},
        ]
        first["rounds"] = 9
        second["stopped"] = "round 4, train: only 1 of 3"

    text = Page(write_report([build("part", change=without)])).text
    assert "These are not results of all parties in all rounds." in text
    line = "party 'b & c' did not count in 7 of 9 rounds, first in round 3: no answer within 8 s"
    assert escape(line) in text
    assert "stopped early. round 4, train: only 1 of 3" in text
    assert text.index("not results of all parties") < text.index(" reached ")
