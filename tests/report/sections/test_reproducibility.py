"""The page has what is needed to run its studies again."""

from __future__ import annotations

from result_folders import Build, Page

from isthmus.report.report import write_report


def test_versions_seeds_and_the_study_are_shown(build: Build) -> None:
    page = Page(write_report([build()]))
    assert page.row("torch") == ["torch", "2.13.0"]
    assert page.row("seeds") == ["seeds", "0, 1, 2"]
    assert 'name = "cora"' in page.text.replace("&quot;", '"')
