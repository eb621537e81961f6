"""Where items stand among each other, round by round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, PositiveInt
from sklearn.metrics import silhouette_score

from isthmus.errors import IsthmusError
from isthmus.papers.measures import Measure, Measured, prepared
from isthmus.study.config import Study
from isthmus.study.loop import Run
from isthmus.tasks.classification import Classification
from isthmus.tasks.clustering import GraphClustering
from isthmus.tasks.places import placed


class Embeddings(Measure):
    """Items of all parties together, embedded by the server's model and drawn in two dimensions by t-SNE.

    `silhouette` tells how much nearer an item is to items of its own class than to those of the next one, from -1 to 1,
    before t-SNE: of the model that the run releases, or as `silhouette after 10` of that after some rounds. Items are
    all graphs, or the test nodes of the graph that overlapping parties make together.
    """

    name = "embeddings"
    rounds: list[PositiveInt] = Field(default=[])
    """Rounds after which items are embedded; none takes the model that validation has chosen."""

    def of(self, study: Study, seed: int, checkpoint: Path | None) -> Measured:
        run = prepared(study, seed, checkpoint)
        if run.whole is None or not isinstance(run.task, Classification):
            raise IsthmusError(
                "measure 'embeddings': it is of classes of nodes that parties share, or of graphs that are clustered: "
                "cut with partition 'overlap', or set task 'graph-clustering'"
            )
        metrics: dict[str, float] = {}
        pictures: dict[str, list[list[float]]] = {}

        def look(name: str, title: str, weights: Any = None) -> None:
            if "weights" not in run.state:
                raise IsthmusError(f"measure 'embeddings': method '{run.method.name}' leaves no model at the server")
            z, y = _embedded(run, run.state.weights if weights is None else weights)
            metrics[name] = float(silhouette_score(z, y))
            pictures[title] = np.round(np.column_stack([placed(z), y]), 2).tolist()

        if not self.rounds:
            found = run.go()
            look("silhouette", "embeddings", found.weights)
            return Measured(metrics, about={"round": found.chosen_round}, pictures=pictures)
        run.checkpoint = None  # what was seen before a stop would be missing after it

        def after(now: int, told: Any) -> None:
            if now in self.rounds:
                look(f"silhouette after {now}", f"round {now}")

        run.on_round = after
        run.go()
        if missing := [at for at in self.rounds if f"round {at}" not in pictures]:
            why = f"nothing was evaluated after round {missing[0]}: see the method's rounds and every"
            raise IsthmusError(f"measure 'embeddings': {why}")
        return Measured(metrics, pictures=pictures)


def _embedded(run: Run, weights: Any) -> tuple[Any, Any]:
    """Embeddings `[items, width]` as the task compares them, and classes."""
    assert run.whole is not None
    z, y = run.whole.outputs(weights).double().cpu().numpy(), run.whole.hosted.y.cpu().numpy()
    if isinstance(run.task, GraphClustering):
        return run.task.scaled(z), y
    test = run.whole.hosted.masks["test"].cpu().numpy()
    return z[test], y[test]
