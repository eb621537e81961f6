"""What all measures share."""

from __future__ import annotations

from tests.papers.a_paper import FEDAVG

from isthmus.papers.measures import Measure, prepare_run
from isthmus.study.run import run_study


def test_measures_are_found_by_name() -> None:
    assert {"training", "membership", "costs", "embeddings", "other-models"} <= Measure.known().keys()


def test_a_prepared_run_is_that_of_the_study() -> None:
    found = prepare_run(FEDAVG, 0, None).go()
    (due,) = run_study(FEDAVG).runs
    assert found.metrics == due.metrics
