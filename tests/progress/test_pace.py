"""The time left follows from the seconds of what is done."""

from __future__ import annotations

import pytest

from isthmus.progress.pace import Pace


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_nothing_is_estimated_before_a_round_is_done(clock: Clock) -> None:
    pace = Pace({"fedavg": 10}, [0], clock)
    assert pace.left_in_study() is None
    pace.run_started("fedavg", 0)
    assert pace.left_in_run("fedavg", 0) is None
    assert pace.left_in_study() is None


def test_the_set_up_does_not_count_for_later_rounds(clock: Clock) -> None:
    pace = Pace({"fedavg": 11}, [0], clock)
    pace.run_started("fedavg", 0)
    for at, clock.now in ((1, 100.0), (2, 102.0), (6, 110.0)):
        pace.round_done("fedavg", 0, at)
    assert pace.left_in_run("fedavg", 0) == 5 * 2.0
    assert pace.left_in_study() == pace.left_in_run("fedavg", 0)


def test_runs_that_are_due_take_as_long_as_those_of_their_method(clock: Clock) -> None:
    pace = Pace({"fast": 10, "slow": 10, "other": 20}, [0, 1], clock)
    pace.run_started("fast", 0)
    pace.run_done("fast", 0, 1.0)
    pace.run_started("slow", 0)
    pace.run_done("slow", 0, 9.0)
    a_round = (0.1 + 0.9) / 2
    assert pace.left_in_study() == pytest.approx(1.0 + 9.0 + 2 * 20 * a_round)


def test_runs_that_were_there_before_are_not_due(clock: Clock) -> None:
    pace = Pace({"fedavg": 10}, [0, 1, 2], clock)
    pace.run_done("fedavg", 0)
    pace.run_started("fedavg", 1)
    clock.now = 4.0
    pace.round_done("fedavg", 1, 2)
    assert pace.left_in_run("fedavg", 1) == 16.0
    assert pace.left_in_study() == 16.0 + 20.0
    pace.run_done("fedavg", 1, 20.0)
    pace.run_started("fedavg", 2)
    pace.run_done("fedavg", 2, 20.0)
    assert pace.left_in_study() == 0.0


def test_runs_side_by_side_share_what_is_due(clock: Clock) -> None:
    pace = Pace({"fedavg": 10}, [0, 1, 2, 3, 4], clock)
    pace.run_started("fedavg", 0)
    pace.run_started("fedavg", 1)
    clock.now = 4.0
    pace.round_done("fedavg", 0, 2)
    assert pace.left_in_run("fedavg", 0) == 16.0
    assert pace.left_in_study() == 16.0 + 20.0 + 20.0, (
        "the other run ends after 20 s, each that is due takes 20 s, two at a time"
    )
    pace.round_done("fedavg", 1, 4)
    assert pace.left_in_run("fedavg", 1) == 6.0
    assert pace.left_in_study() == 6.0 + 15.0 + 15.0
