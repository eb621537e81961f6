"""How much longer a study takes, from the seconds of rounds and runs that are done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from statistics import fmean
from typing import Any

Key = tuple[str, int]
"""A run: its method's name, and its seed."""


class Pace:
    """Seconds left, of the run that is under way and of the whole study; a run that stops early takes less.

    Arguments:
        rounds: of every method.
        seeds: each has one run of every method.
        clock: tells seconds.

    >>> now = iter([0.0, 10.0])
    >>> pace = Pace({"fedavg": 5}, [0, 1], clock=lambda: next(now))
    >>> pace.begun("fedavg", 0)
    >>> pace.came_to("fedavg", 0, 1)
    >>> pace.of_run("fedavg", 0), pace.of_study()
    (40.0, 90.0)
    """

    def __init__(
        self, rounds: Mapping[str, int], seeds: Iterable[int], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._rounds, self._clock = rounds, clock
        self._due = {(method, seed) for seed in seeds for method in rounds}
        self._came: dict[Key, list[tuple[int, float]]] = {}
        self._took: dict[str, list[float]] = {}

    @classmethod
    def of(cls, study: Mapping[str, Any]) -> Pace:
        """Of a study that is spelled out."""
        return cls({each["name"]: each["rounds"] for each in study["methods"]}, study["seeds"])

    def begun(self, method: str, seed: int) -> None:
        self._due.discard((method, seed))
        self._came = {(method, seed): [(0, self._clock())]}  # runs come one after another

    def came_to(self, method: str, seed: int, at: int) -> None:
        self._came[method, seed].append((at, self._clock()))

    def ended(self, method: str, seed: int, seconds: float | None = None) -> None:
        """It has ended; without its seconds it was there before, and tells nothing."""
        self._due.discard((method, seed))
        self._came.pop((method, seed), None)
        if seconds is not None and method in self._rounds:
            self._took.setdefault(method, []).append(seconds)

    def of_run(self, method: str, seed: int) -> float | None:
        """None before its first round is done, and of a method that the study does not have."""
        came, rounds = self._came.get((method, seed), []), self._rounds.get(method)
        if len(came) < 2 or rounds is None:
            return None
        first, (at, now) = came[0 if len(came) == 2 else 1], came[-1]  # the first round has the set-up in it
        return (rounds - at) * (now - first[1]) / max(1, at - first[0])

    def of_study(self) -> float | None:
        """None before anything tells how long a round takes."""
        going = [self.of_run(*key) for key in self._came]
        a_round = self._a_round()
        if None in going or a_round is None:
            return None
        due = [fmean(self._took.get(method) or [a_round * self._rounds[method]]) for method, _ in self._due]
        return sum(each for each in going if each is not None) + sum(due)

    def _a_round(self) -> float | None:
        """Of any method: all that is known of one that has not had a run yet."""
        known = [seconds / self._rounds[method] for method, took in self._took.items() for seconds in took]
        known += [(came[-1][1] - came[0][1]) / came[-1][0] for came in self._came.values() if came[-1][0]]
        return fmean(known) if known else None
