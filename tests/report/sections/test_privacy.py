"""The privacy section shows what noise spent."""

from __future__ import annotations

from typing import Any

from result_folders import SEEDS, Build, Page, audit_record, spends

from isthmus.report.report import write_report
from isthmus.result_files import write_audit


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


def test_an_epsilon_that_an_audit_shows_is_a_column(build: Build) -> None:
    def noisy(parts: dict[str, Any]) -> None:
        for each in parts["results"]["runs"]:
            if each["method"] in ("fedavg", "fedsage"):
                each["privacy"] = {**spends(0.01), "of": "edge"}

    folder = build(change=noisy)
    both = (("edge", 0.5), ("item", 3.0))
    shown = [{"of": unit, "claimed": 7.0, "shown": epsilon, "said": ""} for unit, epsilon in both]
    write_audit(folder, audit_record(folder, lower_bounds=shown))
    rows = {row[0]: row for row in Page(write_report([folder])).rows if "1,200 of" in " ".join(row)}
    assert rows["fedavg"][-2:] == ["99.9 %", "at least 0.50"]
    assert rows["fedsage"][-2:] == ["99.9 %", "–"]


def test_without_noise_there_is_no_section(build: Build) -> None:
    assert 'id="privacy"' not in Page(write_report([build()])).source
