"""What a federation would disclose, before anything runs."""

from __future__ import annotations

import pytest

from isthmus.study.config import Study
from isthmus.study.preview import preview


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


def test_masks_cost_bytes_and_say_so() -> None:
    plain, masked = (
        {each.action: each.total for each in preview(study(total, 40)) if each.method == "fedcog"}
        for total in ("none", "masks")
    )
    assert plain["train"] < masked["train"] < 3 * plain["train"]
    assert plain["propagate"] == masked["propagate"]
