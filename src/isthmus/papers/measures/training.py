"""Training the method of a study."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import Field

from isthmus.data.party import SPLITS
from isthmus.errors import IsthmusError, did_you_mean
from isthmus.papers.measures import Measure, Measurement, prepare_run
from isthmus.study.config import Study
from isthmus.study.loop import RunResult
from isthmus.tasks.metrics import METRICS, metric_of, suggest_metric

COSTS = ("sent", "seconds", "processor_seconds", "epsilon", "epsilon_advanced")
"""Metrics of a run that no split of the data has."""


class Training(Measure):
    """Train the method; metrics are those of the round that validation chose.

    Also: `sent` bytes, `seconds` by the clock, `processor_seconds`, which other work on the machine leaves alone, and
    what noise on edges spends, `epsilon` by basic composition and `epsilon_advanced` by advanced composition where that
    is less. Of each metric that parties have, such as `test_accuracy`: `test_accuracy over parties`, the plain mean,
    and `test_accuracy of the worst party`.
    """

    name = "training"
    curves: list[str] = Field(default=[])
    """Metrics to keep by round."""
    side_by_side: bool = True
    """Compute all parties at once; one after another needs less memory."""
    by_party: bool = False
    """Also give each party's own metrics, such as `test_accuracy of party-0`."""

    def check_metric(self, metric: str) -> None:
        name = re.split(" of | over ", metric)[0]
        of_split = re.fullmatch(rf"((?:pooled_)?(?:{'|'.join(SPLITS)}))_(.+)", name)
        if name in COSTS or (of_split and metric_of(of_split[2]).name in METRICS):
            return
        if of_split:
            hint = suggest_metric(of_split[2], list(METRICS)).replace("'", f"'{of_split[1]}_", 1)
        else:
            hint = did_you_mean(name, [*COSTS, *(f"{split}_{each}" for split in SPLITS for each in METRICS)])
        raise IsthmusError(f"no run has the metric '{metric}': {hint}")

    def run(self, study: Study, seed: int, checkpoint: Path | None) -> Measurement:
        run = prepare_run(study, seed, checkpoint, side_by_side=self.side_by_side)
        result = run.go()
        curves = {name: [[at, value] for at, metric, value in result.history if metric == name] for name in self.curves}
        costs = {
            "sent": float(result.ledger.sent), "seconds": result.seconds, "processor_seconds": result.processor_seconds
        }  # fmt: skip
        own = {f"{name} of {party}": value for party, of in result.parties.items() for name, value in of.items()}
        over = party_metrics(result)
        metrics = {**result.metrics, **costs, **over, **privacy_metrics(result), **(own if self.by_party else {})}
        return Measurement(metrics, curves, {"round": result.chosen_round, "rounds": result.rounds})


def party_metrics(result: RunResult) -> dict[str, float]:
    """Return the plain mean over parties and the worst party of every metric that parties have."""
    means = {f"{name} over parties": float(each["mean"]) for name, each in result.over_parties.items()}
    return means | {f"{name} of the worst party": float(each["worst"]) for name, each in result.over_parties.items()}


def privacy_metrics(result: RunResult) -> dict[str, float]:
    """Return what a run's noise spends, by basic and by advanced composition; nothing without noise."""
    names = {"basic": "epsilon", "advanced": "epsilon_advanced"}
    return {name: float(result.privacy[how]["epsilon"]) for how, name in names.items() if result.privacy}
