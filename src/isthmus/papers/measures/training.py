"""A study's method is trained."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from isthmus.papers.measures import Measure, Measured, prepared
from isthmus.study.config import Study


class Training(Measure):
    """The method is trained: its metrics are those of the round that validation has chosen."""

    name = "training"
    curves: list[str] = Field(default=[])
    """Metrics that are kept round by round."""
    side_by_side: bool = True
    """All parties at once; one after another takes less memory."""
    by_party: bool = False
    """Also each party's own metrics, as `test_accuracy of party-0`."""

    def of(self, study: Study, seed: int, checkpoint: Path | None) -> Measured:
        run = prepared(study, seed, checkpoint, side_by_side=self.side_by_side)
        found = run.go()
        kept = {name: [[at, value] for at, metric, value in found.history if metric == name] for name in self.curves}
        spent = {"sent": float(found.ledger.sent), "seconds": found.seconds}
        own = {f"{name} of {party}": value for party, of in found.parties.items() for name, value in of.items()}
        metrics = {**found.metrics, **spent, **(own if self.by_party else {})}
        return Measured(metrics, kept, {"round": found.chosen_round, "rounds": found.rounds})
