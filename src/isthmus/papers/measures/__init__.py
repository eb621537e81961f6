"""Measures: what to do with the study of a cell, such as training or attacking it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from isthmus.options import Registered
from isthmus.study.config import Study
from isthmus.study.loop import Run
from isthmus.study.run import build_run


@dataclass(frozen=True)
class Measurement:
    """What one run gave.

    Attributes:
        metrics: by name.
        curves: some metrics by round, as `[round, value]`.
        about: other entries for the results, such as the number of rounds.
        pictures: by title, coordinates and class of each item, `[x, y, class]`.
    """

    metrics: Mapping[str, float]
    curves: Mapping[str, list[list[float]]] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    pictures: Mapping[str, list[list[float]]] = field(default_factory=dict)


class Measure(Registered):
    """Something to do with the study of a cell."""

    kind: ClassVar[str] = "measure"
    built_in_module: ClassVar[str] = "isthmus.papers.measures"
    runs_method: ClassVar[bool] = True
    """Whether its figures are of the study's method."""

    def check_metric(self, metric: str) -> None:
        """Raise an error if it is known before a run that no run has this metric."""

    @abstractmethod
    def run(self, study: Study, seed: int, checkpoint: Path | None) -> Measurement:
        """Measure one run.

        Arguments:
            study: with one method and one seed.
            checkpoint: where the run may save its state, to resume from.
        """


def prepare_run(study: Study, seed: int, checkpoint: Path | None, **options: Any) -> Run:
    """Return the run of a study with one method; `options` are those of `Run`."""
    (method,) = study.method_list()
    return build_run(study, method, seed, study.load(seed), checkpoint=checkpoint, **options)
