"""The report lists all settings that were tried, and shows the chosen one of each method everywhere else."""

from __future__ import annotations

from typing import Any

from result_folders import Build

from isthmus.report.loading import read_folders
from isthmus.report.report import write_report
from isthmus.report.sections import settings

GOOD, BAD = "fedavg local.lr=0.1", "fedavg local.lr=1"


def of_a_grid(parts: dict[str, Any]) -> None:
    spread = {"std": 0.01, "seeds": 3}
    tried = [
        {"of": "fedavg", "values": {"local.lr": 0.1}, "mean": 0.8, **spread, "label": GOOD, "chosen": True},
        {"of": "fedavg", "values": {"local.lr": 1}, "mean": 0.7, **spread, "label": BAD},
        {"of": "fedavg", "values": {"local.lr": 9}, "mean": None, "pruned": True},
    ]
    importance = {"fedavg": {"local.lr": 0.75, "<mu>": 0.25}}
    parts["results"]["search"] = {"metric": "val_accuracy", "tried": tried, "importance": importance}


def test_every_setting_has_its_validation_metric_and_only_the_chosen_one_a_test_metric(build: Build) -> None:
    html = settings.section(read_folders([build(methods=(GOOD, BAD), change=of_a_grid)]))
    rows = [row for row in html.split("<tr") if "local.lr = " in row]
    assert [("<b>" in row, "80.0 ± 1.0" in row, "pruned" in row) for row in rows] == [
        (True, True, False), (False, False, False), (False, False, True),
    ]  # fmt: skip
    assert "Settings tried: fedavg 3." in html
    assert "0.75" in html
    assert "<mu>" not in html


def test_other_parts_of_the_report_leave_out_settings_that_were_not_chosen(build: Build) -> None:
    folder = build(methods=(GOOD, BAD), change=of_a_grid)
    assert list(read_folders([folder]).methods) == [GOOD]
    assert BAD not in write_report([folder]).read_text(encoding="utf-8").split(">Settings tried<")[0]


def test_a_study_with_one_setting_per_method_has_no_such_section(build: Build) -> None:
    assert settings.section(read_folders([build()])) == ""
