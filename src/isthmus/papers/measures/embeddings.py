"""Embeddings of items in two dimensions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, PositiveInt
from sklearn.metrics import silhouette_score

from isthmus.errors import IsthmusError
from isthmus.papers.measures import Measure, Measurement, prepare_run
from isthmus.study.config import Study
from isthmus.study.loop import Run
from isthmus.tasks.classification import Classes
from isthmus.tasks.clustering import GraphClustering, scaled
from isthmus.tasks.coordinates import tsne


class Embeddings(Measure):
    """Items of all parties, embedded by the server's model and drawn in two dimensions by t-SNE.

    `silhouette`, from -1 to 1, compares an item's distances to its own class and to the next class, before t-SNE. It is
    of the model that the run releases or, as `silhouette after 10`, of the model after that round. Items are all
    graphs, or the test nodes of the union of overlapping parties.
    """

    name = "embeddings"
    rounds: list[PositiveInt] = Field(default=[])
    """Rounds after which to embed; if empty, embed with the model that validation chose."""

    def run(self, study: Study, seed: int, checkpoint: Path | None) -> Measurement:
        run = prepare_run(study, seed, checkpoint)
        if run.whole is None or not isinstance(run.task, Classes):
            raise IsthmusError(
                "measure 'embeddings' needs nodes that parties share, or graphs to cluster: set partition.name to "
                "'overlap', or task.name to 'graph-clustering'"
            )
        metrics: dict[str, float] = {}
        pictures: dict[str, list[list[float]]] = {}

        def look(name: str, title: str, weights: Any = None) -> None:
            if "weights" not in run.state:
                raise IsthmusError(f"measure 'embeddings': method '{run.method.name}' has no model at the server")
            z, y = _embedded(run, run.state.weights if weights is None else weights)
            metrics[name] = float(silhouette_score(z, y))
            pictures[title] = np.round(np.column_stack([tsne(z), y]), 2).tolist()

        if not self.rounds:
            result = run.go()
            look("silhouette", "embeddings", result.weights)
            return Measurement(metrics, about={"round": result.chosen_round}, pictures=pictures)
        run.checkpoint = None  # a resumed run would lack the rounds before the stop

        def after(number: int, metrics: Any) -> None:
            if number in self.rounds:
                look(f"silhouette after {number}", f"round {number}")

        run.on_round = after
        run.go()
        if missing := [at for at in self.rounds if f"round {at}" not in pictures]:
            raise IsthmusError(
                f"measure 'embeddings': round {missing[0]} was not evaluated: see the method's options rounds and every"
            )
        return Measurement(metrics, pictures=pictures)


def _embedded(run: Run, weights: Any) -> tuple[Any, Any]:
    """Return embeddings `[items, width]` as the task compares them, and classes."""
    assert run.whole is not None
    z, y = run.whole.predict_all(weights).double().cpu().numpy(), run.whole.hosted.y.cpu().numpy()
    if isinstance(run.task, GraphClustering):
        return scaled(z, run.task.scale), y
    test = run.whole.hosted.masks["test"].cpu().numpy()
    return z[test], y[test]
