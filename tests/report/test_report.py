"""The report of one or several result folders is one file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from result_folders import Build, Page, page_on

from isthmus.errors import IsthmusError
from isthmus.report.report import write_report
from isthmus.study.config import Study
from isthmus.study.run import run_study
from party_folders import two_drafts


@pytest.mark.drawn
def test_party_folders_are_named_by_their_folder_and_their_labels(tmp_path: Path) -> None:
    for draft in two_drafts():
        draft.write(tmp_path / "fraud" / draft.settings["name"])
    plan = {"data": {"name": "folder", "path": str(tmp_path / "fraud")}, "methods": [{"name": "local", "rounds": 1}]}
    run_study(Study.of(plan), tmp_path / "out")
    page = Page(write_report([tmp_path / "out"]))
    assert "<h1>fraud across 2 parties</h1>" in page.source
    assert ["Party", "low", "high"] in [[row[0], *row[-2:]] for row in page.rows if row]
    assert {"a: low", "b: high"} <= {text.text for text in page.chart("Labels of each party").iter("text")}
    assert "class 0" not in page.text


def test_the_same_results_give_the_same_page(build: Build, tmp_path: Path) -> None:
    folder = build()
    first = write_report([folder]).read_bytes()
    assert write_report([folder], tmp_path / "again" / "page.html").read_bytes() == first


def test_where_the_page_goes(build: Build, tmp_path: Path) -> None:
    folder = build()
    assert write_report([folder]) == folder / "report.html"
    assert write_report([folder, str(folder)]) == folder / "report.html"
    assert write_report([folder], tmp_path / "other.html") == tmp_path / "other.html"
    (folder / "report.html").unlink()
    with pytest.raises(IsthmusError, match="2 folders share a page: say where to write it with out"):
        write_report([folder, build("other")])
    assert not (folder / "report.html").exists()


@pytest.mark.drawn
def test_a_method_in_two_folders_has_two_names(build: Build) -> None:
    def elsewhere(parts: dict[str, Any]) -> None:
        parts["results"]["study"]["data"]["name"] = "citeseer"

    first, second = build("a", ("fedavg", "local")), build("b", ("fedavg",), change=elsewhere)
    page = page_on(first, second, first)
    assert page.names("Validation accuracy") == ["fedavg (a)", "local"]
    assert page.names("Validation accuracy", 1) == ["fedavg (b)"], "other data have a chart of their own"
    assert "cora and citeseer" in page.text
    assert "a fedavg reached" in page.text
    assert "b fedavg reached" in page.text
    assert "<td class=n><b>" not in page.source
    assert "a/study.toml" in page.text
    assert "b/study.toml" in page.text


def test_a_folder_that_cannot_be_read_makes_no_page(build: Build) -> None:
    folder = build()
    (folder / "results.json").write_text("{")
    with pytest.raises(IsthmusError, match=r"results\.json"):
        write_report([folder])
    assert not (folder / "report.html").exists()


def test_no_folder_and_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(IsthmusError, match="at least one"):
        write_report([])
    with pytest.raises(IsthmusError, match=r"study\.toml"):
        write_report([tmp_path / "nowhere"])


def test_a_failed_write_leaves_the_old_page(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = build()
    before = write_report([folder]).read_bytes()
    held = sorted(folder.iterdir())

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(IsthmusError, match="No space left on device") as caught:
        write_report([folder])
    assert "\n" not in str(caught.value)
    assert (folder / "report.html").read_bytes() == before
    assert sorted(folder.iterdir()) == held


def test_a_place_that_cannot_be_written(build: Build, tmp_path: Path) -> None:
    folder = build()
    taken = tmp_path / "taken"
    taken.mkdir()
    with pytest.raises(IsthmusError, match="cannot write"):
        write_report([folder], taken)
    with pytest.raises(IsthmusError, match="cannot write"):
        write_report([folder], folder / "study.toml" / "report.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results", "taken"]
