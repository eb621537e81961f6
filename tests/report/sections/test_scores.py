"""Tables and charts of scores hold what the results say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from result_folders import Build, Page, of_another_task, page_on

from isthmus.report.report import write_report


def test_one_seed_shows_no_deviation(build: Build) -> None:
    page = Page(write_report([build(seeds=(0,))]))
    assert "One seed" in page.text
    assert "±" not in page.row("fedavg")[1]


def test_the_table_holds_the_summary(build: Build) -> None:
    folder = build()
    page = Page(write_report([folder]))
    for line in json.loads((folder / "results.json").read_text())["summary"]:
        scale, digits = (100, 1) if line["metric"].endswith("accuracy") else (1, 3)
        figure = f"{scale * line['mean']:.{digits}f} ± {scale * line['std']:.{digits}f}"
        column = ("test_accuracy", "test_loss", "val_accuracy").index(line["metric"])
        assert page.row(line["method"])[1 + column] == figure
    assert page.row("fedavg")[4:] == ["0 to 2", "10 of 12", "1.2 s"]
    assert "chosen on validation data" in page.text


def test_many_metrics_stand_in_several_tables(build: Build) -> None:
    more = (*(f"test_party_{at}" for at in range(4)), *(f"val_party_{at}" for at in range(4)), "pooled_test_accuracy")
    page = Page(write_report([build(change=partial(of_another_task, more=more))]))
    heads = [row for row in page.rows if row[0] == "Method"]
    assert heads[0][1:] == ["ROC AUC (%)", *(f"party {at}" for at in range(4)), *heads[0][-3:]]
    assert heads[0][-3:] == ["Seeds", "Round reported", "Time per run"]
    assert heads[1][1:] == ["ROC AUC (%)", *(f"party {at}" for at in range(4))]
    assert heads[2][1:] == ["accuracy (%)"]
    assert "More figures: pooled test" in page.text


def test_no_two_tables_of_figures_have_the_same_title(build: Build) -> None:
    parts = [f"{split}_{each}" for split in ("test", "val", "pooled_test", "pooled_val", "my") for each in range(8)]
    source = Page(write_report([build(change=partial(of_another_task, more=parts))])).source
    titles = re.findall("<summary>More figures: ([^<]+)</summary>", source)
    assert titles[:4] == ["test", "validation", "validation, part 2", "pooled test"]
    assert len(set(titles)) == len(titles) == 9


@pytest.mark.drawn
def test_folders_with_different_methods_stand_in_one_table(build: Build) -> None:
    first, second = build("a", ("fedavg",)), build("b", ("fedsage",))
    page = page_on(first, second)
    assert page.names("Validation accuracy") == ["fedavg", "fedsage"]
    assert "fedsage reached" in page.text
    assert "fedavg reached" not in page.text


def test_the_metric_of_the_runs_leads(build: Build) -> None:
    def judged_by_loss(parts: dict[str, Any]) -> None:
        for run in parts["results"]["runs"]:
            run["metric"] = "loss"

    page = Page(write_report([build(change=judged_by_loss)]))
    assert "Test loss: a dot per seed" in page.text


def test_figures_of_each_label_stand_in_a_table_by_their_names(build: Build) -> None:
    def with_labels(parts: dict[str, Any]) -> None:
        for run in parts["results"]["runs"]:
            recall = 0.5 + 0.25 * (run["seed"] > 0)
            run["by_label"] = {"ill": {"items": 8, "recall": recall}, "well": {"items": 40, "recall": None}}

    page = Page(write_report([build(methods=("fedavg", "local"), seeds=(0, 1), change=with_labels)]))
    assert "Recall (%) of the test items, mean ± standard deviation over seeds." in page.text
    assert page.row("ill") == ["ill", "8", "62.5 ± 17.7", "62.5 ± 17.7"]
    assert page.row("well") == ["well", "40", "–", "–"]


def test_the_last_round_is_chosen_or_reported_without_a_choice(build: Build) -> None:
    def last(select: str) -> Callable[[dict[str, Any]], None]:
        def change(parts: dict[str, Any]) -> None:
            for run in parts["results"]["runs"]:
                run["chosen_round"] = run["rounds"]
            for method in parts["results"]["methods"].values():
                method["select"] = select

        return change

    chosen = build("chosen", ("fedavg",), change=last("validation"))
    rule = "A run reports one round, chosen on validation data; test data chose nothing."
    assert f"{rule} For fedavg validation data chose the last round." in Page(write_report([chosen])).text
    folders = [chosen, build("fixed", ("local", "fedavg"), change=last("last")), build("early", ("fedsage",))]
    assert (
        "Runs of local and fedavg (fixed) report their last round; all other runs report one chosen on validation "
        "data; test data chose nothing. For fedavg (chosen) validation data chose the last round."
    ) in page_on(*folders).text
