"""What is done with the study of a cell: it is trained, attacked, drawn, or measured otherwise."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from isthmus.options import Registered
from isthmus.study.config import Study
from isthmus.study.loop import Run
from isthmus.study.setup import module_for


@dataclass(frozen=True)
class Measured:
    """What one run gave.

    Attributes:
        metrics: by name.
        curves: of some of these `[round, value]`, round by round.
        about: what else is worth keeping: rounds, seconds.
        pictures: by title a place and a class for each item, `[x, y, class]`.
    """

    metrics: Mapping[str, float]
    curves: Mapping[str, list[list[float]]] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    pictures: Mapping[str, list[list[float]]] = field(default_factory=dict)


class Measure(Registered):
    """What is done with the study of a cell."""

    kind: ClassVar[str] = "measure"
    built_in_module: ClassVar[str] = "isthmus.papers.measures"

    @abstractmethod
    def of(self, study: Study, seed: int, checkpoint: Path | None) -> Measured:
        """What one run gives.

        Arguments:
            study: with one method and one seed.
            checkpoint: where the run's state may be kept, so that it can go on.
        """


def prepared(study: Study, seed: int, checkpoint: Path | None, *, side_by_side: bool = True) -> Run:
    """The only run of a study, ready to go."""
    loaded = study.load(seed)
    module = module_for(study.encoder(), loaded.parties, loaded.task, seed)
    (method,) = study.method_list()
    return Run(
        method,
        loaded.parties,
        loaded.task,
        module,
        seed=seed,
        device=study.torch_device(),
        checkpoint=checkpoint,
        side_by_side=side_by_side,
    )
