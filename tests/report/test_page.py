"""The page stands alone, can be read aloud, and never takes data for markup."""

from __future__ import annotations

import re
from typing import Any

from result_folders import Build, Page, hostile

from isthmus.report.report import write_report


def test_text_from_the_data_is_never_markup(build: Build) -> None:
    def poison(parts: dict[str, Any]) -> None:
        for key, value in parts.items():
            parts[key] = hostile(value)
        parts["ledger"][0]["status"] = "<script>"
        parts["results"]["summary"].append({"method": "m", "metric": "test_<script>", "mean": 0.1})

    page = Page(write_report([build("<script>", change=poison)]))
    assert "<script" not in page.source
    assert "script" not in page.tags
    assert page.open == []
    assert page.source.count("&lt;script&gt;") > 100


def test_the_page_stands_alone(build: Build) -> None:
    page = Page(write_report([build()]))
    assert not re.search(r"https?://", page.source.replace("http://www.w3.org/2000/svg", ""))
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not re.search(r"@import|url\(", page.source)


def test_the_page_can_be_read_aloud(build: Build) -> None:
    page = Page(write_report([build()]))
    assert page.open == []
    assert page.heads
    assert all(head.get("scope") for head in page.heads)
    assert page.charts
    for chart in page.charts:
        assert chart.get("role") == "img"
        assert chart.findtext("title")
        assert chart.findtext("desc")
