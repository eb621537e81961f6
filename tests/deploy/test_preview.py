"""What a federation would disclose, before anything runs."""

from __future__ import annotations

import pytest

from isthmus.deploy.preview import preview
from isthmus.study.config import Study
from isthmus.study.run import run_study


def study(total: str, rounds: int) -> Study:
    return Study.of(
        {
            "data": {"name": "banks", "nodes": 300},
            "parties": 3,
            "unlabelled": "idle",
            "protect": {"total": total},
            "model": {"encoder": "sgc"},
            "methods": [{"name": "fedcog", "rounds": rounds}],
        }
    )


@pytest.mark.parametrize("total", ["none", "masks"])
def test_it_says_what_leaves_each_party_how_often_and_under_what(total: str) -> None:
    found = {each.action: each for each in preview(study(total, 40)) if each.method == "fedcog"}
    assert found["train"].eyes == "server sees the sum"
    assert found["train"].protection == total
    assert found["train"].times == 40
    assert found["train"].parties == 3
    assert found["propagate"].protection == "sealed"
    assert found["propagate"].eyes == "the addressed party"


def test_totals_are_those_of_a_whole_run() -> None:
    plan = study("none", 3)
    found = [each for each in preview(plan) if each.method == "fedcog"]
    rows = list(run_study(plan).runs[0].ledger.rows())
    assert sum(each.sent for each in found) == sum(row["sent"] for row in rows)
    assert sum(each.received for each in found) == sum(row["received"] for row in rows)
    by_party = [sum(row["sent"] for row in rows if row["party"] == party) for party in {row["party"] for row in rows}]
    assert max(by_party) <= sum(each.most_sent for each in found) < sum(by_party)


def test_masks_cost_bytes_and_say_so() -> None:
    plain, masked = (
        {each.action: each.sent for each in preview(study(total, 40)) if each.method == "fedcog"}
        for total in ("none", "masks")
    )
    assert plain["train"] < masked["train"] < 3 * plain["train"]
    assert plain["propagate"] == masked["propagate"]
