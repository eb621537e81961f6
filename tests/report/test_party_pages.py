"""A party's page has its own rows, and no other party's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from result_folders import PARTIES, ROUNDS, SEEDS, Build, Page, cut, run

from isthmus.errors import IsthmusError
from isthmus.report.party_pages import write_party_pages


def test_a_page_has_what_a_party_holds_reached_and_sent(build: Build) -> None:
    def noted(parts: dict[str, Any]) -> None:
        for each in parts["results"]["cuts"]:
            each["note"] = "5 rows of party-3 repeat"

    folder = build(change=noted)
    (path,) = write_party_pages([folder], ["party-2"])
    assert path == folder / "parties" / "party-2.html"
    page = Page(path)
    assert page.row("party-2")[1:4] == ["22", "1,002", "7"]
    own = [run("fedavg", seed)["parties"]["party-2"]["test_accuracy"] for seed in SEEDS]
    assert page.row("fedavg")[1] == f"{100 * sum(own) / len(own):.1f} ± 0.4"
    train = page.row("train", "server")
    assert train[3:5] == [str(ROUNDS), "1"]
    assert page.bytes[page.rows.index(train)] == [8000 * ROUNDS, 16000 * ROUNDS]
    assert "party-2: the server saw only the sum of model weights" in page.text
    assert f"over {PARTIES} parties" in page.text
    assert not [name for name in ("party-0", "party-1", "party-3") if name in page.source]


def test_names_are_patterns_and_files_have_safe_names(build: Build, tmp_path: Path) -> None:
    folder = build()
    pages = write_party_pages([folder], ["party-[01]", "party-1", "*-3"], tmp_path / "pages")
    assert [page.name for page in pages] == ["party-0.html", "party-1.html", "party-3.html"]

    def elsewhere(parts: dict[str, Any]) -> None:
        for row in parts["ledger"]:
            row["party"] = "../<b>"
        parts["results"]["runs"] = [{**each, "parties": {}} for each in parts["results"]["runs"]]
        parts["results"]["cuts"] = []

    (path,) = write_party_pages([build("federation", change=elsewhere)], ["../<b>"])
    assert path.parent == tmp_path / "federation" / "parties"
    assert "<b>" not in Page(path).source.partition("<body>")[2].partition("<main>")[0]
    assert "In a federation only a party itself knows its own" in Page(path).text


def test_a_page_for_nobody_and_for_too_many(build: Build) -> None:
    def many(parts: dict[str, Any]) -> None:
        parts["results"]["cuts"] = [cut((0,), parties=60)]

    folder = build(change=many)
    with pytest.raises(IsthmusError, match="no party 'north' in these results; they have party-0, party-1, "):
        write_party_pages([folder], ["party-1", "north"])
    with pytest.raises(IsthmusError, match="60 parties fit; name at most 50"):
        write_party_pages([folder], ["*"])
    assert not (folder / "parties").exists()
