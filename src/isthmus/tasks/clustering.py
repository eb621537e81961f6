"""Whole graphs in clusters: nothing is learned from labels, they only tell what embeddings are worth."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, PositiveInt
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, normalize
from torch import Tensor, nn

from isthmus.data.party import Party
from isthmus.errors import IsthmusError
from isthmus.nn.encoders import Encoder
from isthmus.tasks.base import Step, Task
from isthmus.tasks.classification import GraphClassification
from isthmus.tasks.coordinates import tsne

Numbers = NDArray[np.float64]


def folds(count: int) -> int:
    """The same, if a probe can have so many folds."""
    if count == 1:
        raise ValueError("a probe has at least 2 folds, or 0 for none")
    return count


class GraphClustering(GraphClassification):
    """K-means on embeddings of graphs; how well clusters and classes agree.

    Every cluster is taken for another class, so that most graphs are right (scipy's assignment); of that accuracy and
    macro-F1, and mutual information and the Rand index of the two ways to divide the graphs. Metrics of all graphs
    together, FCLG's (section IV-B), only a study has. A party tells of its own graphs, clustered and matched by
    themselves: the fewer they are, the better chance does.

    All graphs are trained on and clustered, without their labels. Labels of those that the data set has for validation
    are for choosing settings; the others are tested on.

    >>> z = torch.tensor([[0.0, 1.0], [0.1, 1.0], [1.0, 0.0], [1.0, 0.1]])
    >>> task = GraphClustering(classes=2)
    >>> counts = task.counts(Step(task.postprocess(z, (4,)), torch.tensor([1, 1, 0, 1]), (4,), torch.arange(4)))
    >>> task.metrics({name: count.sum(0) for name, count in counts.items()})["accuracy"]
    0.75
    """

    name: ClassVar[str] = "graph-clustering"
    unsupervised: ClassVar[bool] = True

    classes: int = Field(0, ge=0)
    """Number of clusters; 0 takes as many as there are classes."""
    scale: Literal["unit", "standard", "log", "raw"] = "unit"
    """What is done to embeddings before they are clustered: each has length 1; each of their columns has mean 0 and
    deviation 1; each entry is log(1 + |z|) with its sign; or nothing."""
    probe: Annotated[int, AfterValidator(folds)] = Field(0, ge=0)
    """Folds of a linear probe: a logistic regression on embeddings, tested on what it was not fitted to; 0 has none."""
    drawn: list[PositiveInt] = Field([])
    """Rounds after which a study keeps where all graphs stand, in two dimensions by t-SNE; the report draws them."""

    @property
    def picture_rounds(self) -> Sequence[int]:
        return self.drawn

    def coordinates(self, output: Tensor) -> Tensor:
        return torch.from_numpy(tsne(self.scaled(output.double().cpu().numpy())))

    def model(self, encoder: Encoder, features: int) -> nn.Module:
        return encoder.embedder(features)

    def complete_from(self, inferred: Task) -> Task:
        return self if self.classes else self.model_copy(update={"classes": inferred.outputs})

    def set_masks(self, parties: list[Party]) -> list[Party]:
        if parties[0].level != "graph" or parties[0].graph.y.dim() > 1:
            raise IsthmusError(
                f"task '{self.name}': it is of whole graphs with one class each, not of nodes, nor of several tasks"
            )
        return [_unsupervised(party) for party in parties]

    def score(self, metrics: Mapping[str, float]) -> float | None:
        """Nothing chooses between rounds: that would take labels."""
        return None

    def loss(self, step: Step) -> Tensor:
        raise IsthmusError(f"task '{self.name}' has no loss of its own: what is learned without labels a method says")

    def counts(self, step: Step) -> dict[str, Tensor]:
        """Of each party that it is one of the `parties` with graphs, the `confusion` of their classes and clusters, and
        how many of them were `probed` and `hit`."""
        found: dict[str, list[Any]] = {"parties": [], "confusion": [], "probed": [], "hit": []}
        for output, y in zip(step.output.split(step.sizes), step.y.split(step.sizes), strict=True):
            z, kinds = output[:, :-1].double().cpu().numpy(), y.cpu().numpy()
            table = self.confusion(output[:, -1].long().cpu().numpy(), kinds)
            found["parties"].append(torch.tensor(len(kinds) > 0).long())
            found["confusion"].append(torch.from_numpy(table))
            probed, hit = self.probed(z, kinds)
            found["probed"].append(torch.tensor(probed))
            found["hit"].append(torch.tensor(hit))
        return {name: torch.stack(each) for name, each in found.items()}

    def postprocess(self, output: Tensor, sizes: Sequence[int]) -> Tensor:
        """Embeddings, and in a column after them the cluster that each is in among all of its party."""
        parts = [self.cluster(part.double().cpu().numpy()) for part in output.split(list(sizes))]
        return torch.cat([output, torch.from_numpy(np.concatenate(parts)).to(output).unsqueeze(1)], dim=1)

    def cluster(self, z: Numbers) -> NDArray[np.int64]:
        """The cluster of each embedding, `[graphs]`."""
        if not len(z):
            return np.zeros(0, dtype=np.int64)
        if not np.isfinite(z).all():
            raise IsthmusError("embeddings to cluster are not finite: set a smaller local.lr, or local.clip")
        with _quiet():
            found = KMeans(min(self.classes, len(z)), n_init=10, random_state=0).fit_predict(self.scaled(z))
        return np.asarray(found, dtype=np.int64)

    def scaled(self, z: Numbers) -> Numbers:
        """Embeddings `[graphs, width]` as they are clustered."""
        return z if self.scale == "raw" else _SCALES[self.scale](z)

    def confusion(self, cluster: NDArray[np.int64], y: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many graphs of each class are in the cluster that stands for each class, `[classes, classes]`."""
        table = np.zeros((self.classes, self.classes), dtype=np.int64)
        np.add.at(table, (y, cluster), 1)
        return table[:, linear_sum_assignment(table, maximize=True)[1]]

    def probed(self, z: Numbers, y: NDArray[np.int64]) -> tuple[int, int]:
        """How many graphs a linear probe was tested on, and how many of them it got right."""
        counts = np.bincount(y)
        if not self.probe or (counts > 0).sum() < 2 or counts[counts > 0].min() < self.probe:
            return 0, 0
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        split = StratifiedKFold(self.probe, shuffle=True, random_state=0)
        with _quiet():
            guess = cross_val_predict(model, z, y, cv=split)
        return len(y), int((guess == y).sum())

    def count(self, counts: Mapping[str, Any]) -> float:
        return float(counts["confusion"].sum())

    def metrics(self, counts: Mapping[str, Any]) -> dict[str, float]:
        confusion = counts["confusion"].cpu()
        if not confusion.sum():
            return {}
        found = self.confusion_metrics(confusion)
        if counts["parties"] == 1:  # clusters of several parties are alike in that all were matched with labels
            y, cluster = (each.repeat_interleave(confusion.flatten()).numpy() for each in _cells(self.classes))
            found["nmi"] = float(normalized_mutual_info_score(y, cluster))
            found["ari"] = float(adjusted_rand_score(y, cluster))
        return found | ({"probe_accuracy": float(counts["hit"] / counts["probed"])} if counts["probed"] else {})


_SCALES: dict[str, Callable[[Numbers], Numbers]] = {
    "unit": normalize,
    "standard": lambda z: StandardScaler().fit_transform(z),
    "log": lambda z: np.sign(z) * np.log1p(np.abs(z)),
}


def _unsupervised(party: Party) -> Party:
    labelled = party.graph.y >= 0
    val = party.val & labelled
    return replace(party, train=torch.ones_like(party.train), val=val, test=labelled & ~val)


@contextmanager
def _quiet() -> Iterator[None]:
    """Embeddings that are all alike, or a probe that does not settle, show in the metrics."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def _cells(classes: int) -> tuple[Tensor, Tensor]:
    """Rows and columns of the cells of a square table."""
    at = torch.arange(classes)
    return at.repeat_interleave(classes), at.repeat(classes)
