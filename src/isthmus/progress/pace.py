"""How much longer a study takes, estimated from the seconds of finished rounds and runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heapreplace
from statistics import fmean
from typing import Any

from isthmus.study.results import methods_of

Key = tuple[str, int]
"""A run: its method's name, and its seed."""


class Pace:
    """Estimates the seconds left, for each current run and the whole study. A run that stops early takes less.

    As many runs are expected side by side as there were at most.

    Arguments:
        rounds: for each method.
        seeds: each has one run of every method.
        clock: returns seconds.

    >>> now = iter([0.0, 10.0])
    >>> pace = Pace({"fedavg": 5}, [0, 1], clock=lambda: next(now))
    >>> pace.run_started("fedavg", 0)
    >>> pace.round_done("fedavg", 0, 1)
    >>> pace.left_in_run("fedavg", 0), pace.left_in_study()
    (40.0, 90.0)
    """

    def __init__(
        self, rounds: Mapping[str, int], seeds: Iterable[int], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._rounds, self._clock = rounds, clock
        self._due = {(method, seed): None for seed in seeds for method in rounds}  # in the order of the study
        self._times: dict[Key, list[tuple[int, float]]] = {}
        self._side_by_side = 1
        self._seconds: dict[str, list[float]] = {}

    @classmethod
    def of_study(cls, study: Mapping[str, Any]) -> Pace:
        """For a study with all its options."""
        return cls({each.label: each.rounds for each in methods_of(study)}, study["seeds"])

    def run_started(self, method: str, seed: int) -> None:
        self._due.pop((method, seed), None)
        self._times[method, seed] = [(0, self._clock())]
        self._side_by_side = max(self._side_by_side, len(self._times))

    def round_done(self, method: str, seed: int, round_: int) -> None:
        self._times[method, seed].append((round_, self._clock()))

    def run_done(self, method: str, seed: int, seconds: float | None = None) -> None:
        """Take note of a finished run; one without seconds was restored and says nothing about the pace."""
        self._due.pop((method, seed), None)
        self._times.pop((method, seed), None)
        if seconds is not None and method in self._rounds:
            self._seconds.setdefault(method, []).append(seconds)

    def left_in_run(self, method: str, seed: int) -> float | None:
        """`None` before the first round is done, and for a method that the study does not have."""
        times, rounds = self._times.get((method, seed), []), self._rounds.get(method)
        if len(times) < 2 or rounds is None:
            return None
        first, (last, now) = times[0 if len(times) == 2 else 1], times[-1]  # the first round includes the set-up
        return (rounds - last) * (now - first[1]) / max(1, last - first[0])

    def left_in_study(self) -> float | None:
        """`None` before any round is done."""
        a_round = self._seconds_of_a_round()
        if a_round is None:
            return None

        def whole(method: str) -> float:
            return fmean(self._seconds.get(method) or [a_round * self._rounds.get(method, 0)])

        current = [self.left_in_run(*key) for key in self._times]
        runs = [whole(key[0]) if left is None else left for key, left in zip(self._times, current, strict=True)]
        ends = [0.0] * max(0, self._side_by_side - len(runs)) + runs
        heapify(ends)
        for method, _ in self._due:
            heapreplace(ends, ends[0] + whole(method))  # the next run starts when the first of the current ones ends
        return max(ends)

    def _seconds_of_a_round(self) -> float | None:
        """The mean over all methods, for those that have not had a run yet."""
        known = [seconds / self._rounds[method] for method, runs in self._seconds.items() for seconds in runs]
        known += [(times[-1][1] - times[0][1]) / times[-1][0] for times in self._times.values() if times[-1][0]]
        return fmean(known) if known else None
