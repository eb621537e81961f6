"""Traffic is the sum of the ledger."""

from __future__ import annotations

from typing import Any

import pytest
from result_folders import ROUNDS, Build, Page, ledger_rows

from isthmus.report.report import write_report


def test_traffic_equals_the_ledger(build: Build) -> None:
    page = Page(write_report([build()]))
    rows = ledger_rows("fedavg", 0)
    setup = sum(row["sent"] for row in rows if row["round"] == 0)
    total = sum(row["sent"] for row in rows)
    rounds = round((total - setup) / ROUNDS)
    expected = [setup, 2 * setup, rounds, round(2 * (total - setup) / ROUNDS), total, 2 * total]
    assert next(each for each in page.bytes if len(each) == 6) == expected
    assert "centralized All data were pooled" in page.text
    assert "local Nothing left any party" in page.text


@pytest.mark.drawn
def test_a_method_that_only_the_ledger_knows_is_shown(build: Build) -> None:
    def forget(parts: dict[str, Any]) -> None:
        parts["ledger"] += ledger_rows("unfinished", 0)

    page = Page(write_report([build(change=forget)]))
    assert "unfinished" in page.names("In all")[-1]
    assert page.row("unfinished")[1] == "–"
