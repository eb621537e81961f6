"""Costs are those of the ledger and of the clock."""

from __future__ import annotations

import pytest
from tests.papers.a_paper import FEDAVG

from isthmus.errors import IsthmusError
from isthmus.papers.measures.costs import MB, Costs
from isthmus.study.config import Study
from isthmus.study.run import run_study


@pytest.mark.slow
def test_costs_are_those_of_the_ledger_and_of_all_sides() -> None:
    plan = Study.of(
        {
            "data": {"name": "banks"}, "parties": 3, "model": {"encoder": "sgc"},
            "methods": [{"name": "fedcog", "rounds": 2, "every": 2, "local": {"epochs": 1}}],
        }
    )  # fmt: skip
    found = Costs(repeats=1).run(plan, 0, None).metrics
    (run,) = run_study(plan).runs
    rows = list(run.ledger.rows())
    assert found["set_up_mb"] * MB == pytest.approx(sum(row["sent"] for row in rows if row["round"] == 0))
    trained = [row for row in rows if row["action"] == "train" and row["round"] == 1]
    assert found["update_mb"] * MB == pytest.approx(sum(row["sent"] + row["received"] for row in trained))
    parties = plan.load(0).parties
    crossing = sum(len(party.border) for party in parties)
    assert found["crossing"] == crossing / (crossing + sum(party.edges for party in parties))
    weights = 4 * 100 * (parties[0].features + 1)
    assert 2 * 3 * weights < found["wide_mb"] * MB < 2 * 3 * (weights + 600)
    assert found["to_wide_mb"] == found["set_up_mb"] / found["wide_mb"]
    assert all(found[side] > 0 for side in ("set_up", "alone", "pooled", "update"))
    apart = Costs(repeats=1, side_by_side=False).run(plan, 0, None).metrics
    assert {name: apart[name] for name in apart if name.endswith("_mb")} == {
        name: found[name] for name in found if name.endswith("_mb")
    }


def test_costs_of_a_method_without_set_up_are_one_line() -> None:
    for name in ("fedavg", "local"):
        with pytest.raises(IsthmusError, match=f"method '{name}' has no set-up with messages"):
            Costs(repeats=1).run(FEDAVG.model_copy(update={"methods": [{"name": name, "rounds": 1}]}), 0, None)
