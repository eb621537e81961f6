"""The privacy section shows what noise spent."""

from __future__ import annotations

from typing import Any

from result_folders import SEEDS, Build, Page, spends

from isthmus.report.report import write_report


def test_the_seed_that_spent_most_is_shown(build: Build) -> None:
    def noisy(parts: dict[str, Any]) -> None:
        for each in parts["results"]["runs"]:
            if each["method"] == "fedavg":
                each["privacy"] = spends(0.01 if each["seed"] == SEEDS[1] else 0.005)

    page = Page(write_report([build(change=noisy)]))
    row = next(row for row in page.rows if row[0] == "fedavg" and "1,200 of" in " ".join(row))
    assert row[1:] == ["one edge of <one> graph", "1,200 of ε = 0.01", "12", "0", "7", "1e-05", "99.9 %"]
    assert "No noise in fedsage, centralized, local." in page.text


def test_each_unit_has_a_row(build: Build) -> None:
    def noisy(parts: dict[str, Any]) -> None:
        for each in parts["results"]["runs"]:
            if each["method"] == "fedavg":
                release = {"what": "sums of updates", "multiplier": 2.5, "sampled": 0.1, "times": 30}
                composed = {"epsilon": 2.0, "delta": 1e-5}
                other = {"unit": "a party", "releases": [release], "basic": composed, "advanced": composed}
                each["privacy"] = {**spends(0.01), "others": [other]}

    page = Page(write_report([build(change=noisy)]))
    row = next(row for row in page.rows if "a party" in row)
    said = "30 with Gaussian noise of 2.5 times the change, of a share of 0.1 (sums of updates)"
    assert row == ["fedavg", "a party", said, "2", "1e-05", "2", "1e-05", "88.1 %"]


def test_without_noise_there_is_no_section(build: Build) -> None:
    assert 'id="privacy"' not in Page(write_report([build()])).source
