"""What audits found is kept in a result folder, and told by its report; so is what noise spent."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from result_folders import SEEDS, Build, Page, write_folder

from isthmus.errors import IsthmusError
from isthmus.report.report import write_report
from isthmus.result_files import AuditRecord, write_audit


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Makes a result folder; `change` may alter what is written."""
    return partial(write_folder, tmp_path)


def found(folder: Path, **changes: Any) -> AuditRecord:
    what: dict[str, Any] = {
        "study": (folder / "study.toml").read_text(),
        "audit": {"name": "membership", "shadows": 4},
        "method": "fedavg",
        "seed": 3,
        "corner": "24 members",
        "columns": ["none", "<b>noise"],
        "sections": [[("AUC", ["0.612", "0.501"])], [("rate at 1 %", ["0.083", "0.010"])]],
        "notes": ["chance is 0.5"],
        "protections": [{"auc": 0.612}, {"auc": float("inf")}],
    }
    return AuditRecord.model_validate({**what, **changes})


def test_an_audit_is_a_section_of_the_report(build: Build) -> None:
    folder = build()
    write_audit(folder, found(folder))
    page = Page(write_report([folder]))
    assert page.row("AUC") == ["AUC", "0.612", "0.501"]
    assert page.row("rate") == ["rate at 1 %", "0.083", "0.010"]
    assert ["24 members", "none", "<b>noise"] in page.rows
    assert "fedavg: membership" in page.text
    assert "chance is 0.5; the cut and the first model are those of seed 3" in page.text
    assert "<b>noise" not in page.source


def test_no_audit_no_section(build: Build) -> None:
    assert 'id="audits"' not in Page(write_report([build()])).source


def test_an_audit_of_another_study_that_was_in_the_folder_is_not_shown(build: Build) -> None:
    folder = build()
    write_audit(folder, found(folder, study="seeds = [7]\n"))
    assert 'id="audits"' not in Page(write_report([folder])).source


def test_of_two_folders_each_audit_has_its_methods_name_on_the_page(build: Build) -> None:
    first, second = build("a", ("fedavg",), (0,)), build("b", ("fedavg",), (1,))
    write_audit(second, found(second))
    assert "fedavg (b): membership" in Page(write_report([first, second])).text


def test_a_broken_audit_is_named(build: Build) -> None:
    folder = build()
    write_audit(folder, found(folder)).write_text("{}")
    with pytest.raises(
        IsthmusError, match=r"membership-fedavg.json': it is not what an audit writes: run the audit again"
    ):
        write_report([folder])


def spends(epsilon: float) -> dict[str, Any]:
    return {
        "unit": "one edge of <one> graph",
        "releases": [{"epsilon": epsilon, "delta": 0.0, "times": 1200}],
        "basic": {"epsilon": 1200 * epsilon, "delta": 0.0},
        "advanced": {"epsilon": 700 * epsilon, "delta": 1e-5},
    }


def test_what_noise_spent_is_told_of_the_seed_that_spent_most(build: Build) -> None:
    def noisy(parts: dict[str, Any]) -> None:
        for each in parts["results"]["runs"]:
            if each["method"] == "fedavg":
                each["privacy"] = spends(0.01 if each["seed"] == SEEDS[1] else 0.005)

    page = Page(write_report([build(change=noisy)]))
    row = next(row for row in page.rows if row[0] == "fedavg" and "1,200 of" in " ".join(row))
    assert row[1:] == ["one edge of <one> graph", "1,200 of ε = 0.01", "12", "0", "7", "1e-05"]
    assert "No noise in fedsage, centralized, local." in page.text


def test_without_noise_no_section_on_privacy(build: Build) -> None:
    assert 'id="privacy"' not in Page(write_report([build()])).source
