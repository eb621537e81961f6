"""Audits of a result folder are a section of its report."""

from __future__ import annotations

import pytest
from result_folders import Build, Page, audit_record, page_on

from isthmus.errors import IsthmusError
from isthmus.report.report import write_report
from isthmus.result_files import write_audit


def test_an_audit_is_a_section_of_the_report(build: Build) -> None:
    folder = build()
    write_audit(folder, audit_record(folder))
    page = Page(write_report([folder]))
    assert page.row("AUC") == ["AUC", "0.612", "0.501"]
    assert page.row("rate") == ["rate at 1 %", "0.083", "0.010"]
    assert ["24 members", "none", "<b>noise"] in page.rows
    assert "fedavg: membership" in page.text
    assert "chance is 0.5; the cut and the first model are those of seed 3" in page.text
    assert "<b>noise" not in page.source


def test_an_audit_with_curves_draws_them(build: Build) -> None:
    folder = build()
    curves = {"fedavg, likelihood": [(0.0, 0.0), (0.005, 0.2), (0.5, 0.7), (1.0, 1.0)]}
    write_audit(folder, audit_record(folder, curves=curves))
    assert "fedavg, likelihood finds 20.0 % at 1 %" in Page(write_report([folder])).source


def test_no_audit_no_section(build: Build) -> None:
    assert 'id="audits"' not in Page(write_report([build()])).source


def test_an_audit_of_another_study_that_was_in_the_folder_is_not_shown(build: Build) -> None:
    folder = build()
    write_audit(folder, audit_record(folder, study="seeds = [7]\n"))
    assert 'id="audits"' not in Page(write_report([folder])).source


def test_of_two_folders_each_audit_has_its_methods_name_on_the_page(build: Build) -> None:
    first, second = build("a", ("fedavg",), (0,)), build("b", ("fedavg",), (1,))
    write_audit(second, audit_record(second))
    assert "fedavg (b): membership" in page_on(first, second).text


def test_a_broken_audit_is_named(build: Build) -> None:
    folder = build()
    write_audit(folder, audit_record(folder)).write_text("{}")
    with pytest.raises(
        IsthmusError, match=r"membership-fedavg.json: its content is not what .*\(study: .*; run the audit again"
    ):
        write_report([folder])
