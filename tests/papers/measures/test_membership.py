"""The membership audit as a measure."""

from __future__ import annotations

from tests.papers.a_paper import FEDGC

from isthmus.papers.measures.membership import MembershipRisk


def test_members_are_guessed_round_by_round() -> None:
    found = MembershipRisk(audit={"shadows": 2, "others": 30, "shadow": {"epochs": 3}}).run(FEDGC, 0, None)
    assert [at for at, _ in found.curves["auc"]] == [1, 2]
    assert all(0 <= found.metrics[risk] <= 1 for risk in ("value", "auc", "f1", "likelihood", "tpr", "tpr_low"))
    asked = [value for name, value in found.metrics.items() if name.startswith("auc, ")]
    assert found.metrics["auc"] == max(asked)
