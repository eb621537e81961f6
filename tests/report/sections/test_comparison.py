"""The best method of each setting is compared with the others."""

from __future__ import annotations

from typing import Any

from result_folders import Build, Page, page_on

from isthmus.report.report import write_report


def test_the_report_sets_the_best_against_the_others(build: Build) -> None:
    def vary(parts: dict[str, Any]) -> None:
        for run in parts["results"]["runs"]:
            run["metrics"]["test_accuracy"] += 0.001 * run["seed"] * (run["method"] == "fedavg")

    page = Page(write_report([build(change=vary)]))
    assert "Is the lead more than luck?" in page.text
    compared = [row[0] for row in page.rows if len(row) == 5 and row[-1] == "3"]
    assert compared == ["centralized", "fedavg", "local"]
    assert "Gain of fedsage" in page.text
    assert "not corrected for 3 comparisons" in page.text
    few = Page(write_report([build("few", seeds=(0, 1))]))
    assert "That takes 3 seeds at least which two methods have in common." in few.text
    assert "Gain of" not in few.text


def test_every_setting_has_its_own_best_method(build: Build) -> None:
    due = {"fedavg": 0.9, "fedsage": 0.5}

    def other(parts: dict[str, Any]) -> None:
        parts["results"]["study"]["data"] = {"name": "pubmed"}
        for run in parts["results"]["runs"]:
            run["metrics"]["test_accuracy"] = due.get(run["method"], 0.4) + 0.01 * run["seed"]
        for line in parts["results"]["summary"]:
            if line["metric"] in ("test_accuracy", "val_accuracy"):
                line["mean"] = due.get(line["method"], 0.4) + 0.01

    page = page_on(build("first"), build("other", change=other))
    assert page.text.count("Is the lead more than luck?") == 1
    assert "Gain of fedsage (first)" in page.text
    assert "Gain of fedavg (other)" in page.text
    gains = {row[0]: row[1] for row in page.rows if len(row) == 5 and row[-1] == "3"}
    assert gains["fedsage (other)"] == "+40"
    assert {name.rpartition(" ")[2] for name in gains} == {"(first)", "(other)"}
    assert len(gains) == 6
