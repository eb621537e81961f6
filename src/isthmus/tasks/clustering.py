"""Clustering of whole graphs: models learn without labels; labels only measure the embeddings."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, PositiveInt, field_validator
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from isthmus.data.level import Level
from isthmus.data.party import Party
from isthmus.errors import IsthmusError, NotFinite
from isthmus.nn.encoders import Encoder
from isthmus.tasks.base import CountForm, Step
from isthmus.tasks.classification import Classes
from isthmus.tasks.coordinates import tsne

Numbers = NDArray[np.float64]
Scale = Literal["unit", "standard", "log", "raw", "whitened"]


def check_folds(count: int) -> int:
    """Refuse a single fold."""
    if count == 1:
        raise ValueError("a probe has at least 2 folds, or 0 for none")
    return count


class GraphClustering(Classes):
    """K-means on embeddings of graphs; how well clusters and classes agree.

    Every cluster is matched with another class, so that as many graphs as possible are right (scipy's assignment).
    Metrics are accuracy and macro-F1 of that matching, and the normalised mutual information and adjusted Rand index of
    clusters and classes. Metrics over all graphs together, FCLG's (section IV-B), exist only in a study. A party
    clusters and matches its own graphs; the fewer it has, the better chance alone does.

    Models are trained on all graphs, without labels, and all are clustered. The labels of the validation split are for
    choosing settings; metrics on test data use the others.

    >>> z = torch.tensor([[0.0, 1.0], [0.1, 1.0], [1.0, 0.0], [1.0, 0.1]])
    >>> task = GraphClustering(classes=2)
    >>> counts = task.counts(Step(task.postprocess(z, (4,)), torch.tensor([1, 1, 0, 1]), (4,), torch.arange(4)))
    >>> task.metrics({name: count.sum(0) for name, count in counts.items()})["accuracy"]
    0.75
    """

    name: ClassVar[str] = "graph-clustering"
    level: ClassVar[Level] = "graph"
    known_metrics: ClassVar[tuple[str, ...]] = (
        "accuracy", "balanced_accuracy", "macro_f1", "nmi", "ari", "probe_accuracy",
    )  # fmt: skip
    unsupervised: ClassVar[bool] = True

    classes: int = Field(0, ge=0)
    """Number of clusters; 0 takes the number of classes."""
    scale: Scale = "unit"
    """How embeddings are scaled before clustering. unit: each to length 1; standard: each column to mean 0 and standard
    deviation 1; log: each entry z to log(1 + |z|) with the sign of z; raw: not at all; whitened: principal components,
    each to standard deviation 1."""
    more_scales: list[Scale] = Field([])
    """Other ways to scale the same embeddings; their metrics have the scale in the name: `test_raw_accuracy`."""
    probe: Annotated[int, AfterValidator(check_folds)] = Field(0, ge=0)
    """Folds of a linear probe, a logistic regression on the scaled embeddings, cross-validated; 0 for no probe."""
    drawn: list[PositiveInt] = Field([])
    """Rounds after which a study projects all graphs to two dimensions by t-SNE; the report draws them."""

    @field_validator("select_by")
    @classmethod
    def _selects_nothing(cls, metric: str | None) -> str | None:
        if metric:
            raise ValueError("nothing chooses between rounds without labels: leave it out")
        return metric

    @property
    def selected_by(self) -> str:
        return ""

    @property
    def picture_rounds(self) -> Sequence[int]:
        return self.drawn

    def coordinates(self, output: Tensor) -> Tensor:
        return torch.from_numpy(tsne(scaled(output.double().cpu().numpy(), self.scale)))

    def model(self, encoder: Encoder, features: int) -> nn.Module:
        return encoder.embedder(features)

    def set_masks(self, parties: list[Party]) -> list[Party]:
        if parties[0].level != "graph" or parties[0].graph.y.dim() > 1:
            raise IsthmusError(
                f"task '{self.name}' needs whole graphs with one class each; these data have nodes or several labels"
            )
        return [_unsupervised(party) for party in parties]

    def score(self, metrics: Mapping[str, float]) -> float | None:
        """None: to choose between rounds would take labels."""
        return None

    def loss(self, step: Step) -> Tensor:
        raise IsthmusError(f"task '{self.name}' has no loss of its own: choose a method that learns without labels")

    @property
    def scales(self) -> dict[Scale, str]:
        """All ways to scale embeddings, each with what precedes the names of its metrics."""
        return {**{scale: f"{scale}_" for scale in self.more_scales}, self.scale: ""}

    def counts(self, step: Step) -> dict[str, Tensor]:
        """1 for each of the `parties` with graphs; for each scale the `confusion` of their classes and clusters, and
        how many graphs were `probed` and `hit`, that is, classified right by the probe."""
        counts: dict[str, list[Any]] = defaultdict(list)
        for output, y in zip(step.output.split(step.sizes), step.y.split(step.sizes), strict=True):
            classes = y.cpu().numpy()
            counts["parties"].append(torch.tensor(len(classes) > 0).long())
            for prefix, part in zip(self.scales.values(), output.chunk(len(self.scales), dim=1), strict=True):
                table = self.confusion(part[:, -1].long().cpu().numpy(), classes)
                probed, hit = self.run_probe(part[:, :-1].double().cpu().numpy(), classes)
                counts[f"{prefix}confusion"].append(torch.from_numpy(table))
                counts[f"{prefix}probed"].append(torch.tensor(probed))
                counts[f"{prefix}hit"].append(torch.tensor(hit))
        return {name: torch.stack(values) for name, values in counts.items()}

    def postprocess(self, output: Tensor, sizes: Sequence[int]) -> Tensor:
        """For each scale, embeddings and, in a further column, the cluster of each among its party's graphs."""
        parties = []
        for part in output.split(list(sizes)):
            z = part.double().cpu().numpy()
            if not np.isfinite(z).all():
                raise NotFinite(f"embeddings to cluster are not finite: {NotFinite.HINT}, or set local.clip")
            of_scales = [scaled(z, scale) for scale in self.scales]
            parties.append(np.hstack([np.column_stack([each, self.cluster(each)]) for each in of_scales]))
        return torch.from_numpy(np.concatenate(parties)).to(output)

    def cluster(self, z: Numbers) -> NDArray[np.int64]:
        """The cluster of each scaled embedding, `[graphs]`."""
        from sklearn.cluster import KMeans  # slow to import, and only clustering needs it
        from sklearn.exceptions import ConvergenceWarning

        if not len(z):
            return np.zeros(0, dtype=np.int64)
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):  # equal embeddings
            clusters = KMeans(min(self.classes, len(z)), n_init=10, random_state=0).fit_predict(z)
        return np.asarray(clusters, dtype=np.int64)

    def confusion(self, cluster: NDArray[np.int64], y: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many graphs of each class are in the cluster matched with each class, `[classes, classes]`."""
        table = np.zeros((self.classes, self.classes), dtype=np.int64)
        np.add.at(table, (y, cluster), 1)
        return table[:, linear_sum_assignment(table, maximize=True)[1]]

    def run_probe(self, z: Numbers, y: NDArray[np.int64]) -> tuple[int, int]:
        """How many graphs the linear probe was tested on, and how many of them it got right."""
        counts = np.bincount(y)
        if not self.probe or (counts > 0).sum() < 2 or counts[counts > 0].min() < self.probe:
            return 0, 0
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import StratifiedKFold, cross_val_predict
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        split = StratifiedKFold(self.probe, shuffle=True, random_state=0)
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):  # the metric shows it
            predicted = cross_val_predict(model, z, y, cv=split)
        return len(y), int((predicted == y).sum())

    def count_forms(self) -> dict[str, CountForm]:
        confusion = (self.classes, self.classes)
        return {
            "parties": CountForm(True, ()),
            "confusion": CountForm(True, confusion),
            "probed": CountForm(True, ()),
            "hit": CountForm(True, ()),
        }

    def counts_problem(self, counts: Any, labels: int, parties: int = 1) -> str:
        if why := super().counts_problem(counts, labels, parties):
            return why
        numbers = {name: int(counts[name]) for name in ("parties", "probed", "hit")}
        fit = numbers["parties"] <= parties and numbers["hit"] <= numbers["probed"] <= labels
        return "" if fit else f"numbers of parties, and of graphs of the probe, do not fit: {numbers}"

    def metrics(self, counts: Mapping[str, Any]) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for prefix in self.scales.values():
            own = {name: counts[f"{prefix}{name}"] for name in ("confusion", "probed", "hit")}
            metrics |= {f"{prefix}{name}": value for name, value in self._metrics(own, int(counts["parties"])).items()}
        return metrics

    def _metrics(self, counts: Mapping[str, Any], parties: int) -> dict[str, float]:
        confusion = counts["confusion"].cpu()
        if not confusion.sum():
            return {}
        metrics = self.confusion_metrics(confusion)
        if parties == 1:  # clusters of several parties correspond only through labels
            from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

            y, cluster = np.indices(confusion.shape).reshape(2, -1).repeat(confusion.flatten().numpy(), axis=1)
            metrics["nmi"] = float(normalized_mutual_info_score(y, cluster))
            metrics["ari"] = float(adjusted_rand_score(y, cluster))
        return metrics | ({"probe_accuracy": float(counts["hit"] / counts["probed"])} if counts["probed"] else {})


def scaled(z: Numbers, scale: Scale) -> Numbers:
    """Embeddings scaled, `[graphs, width]`.

    >>> scaled(np.array([[3.0, 4.0], [0.0, 2.0]]), "unit").tolist()
    [[0.6, 0.8], [0.0, 1.0]]
    """
    from sklearn.preprocessing import StandardScaler, normalize

    if not len(z) or scale == "raw":
        return z
    if scale == "unit":
        return np.asarray(normalize(z))
    if scale == "standard":
        return np.asarray(StandardScaler().fit_transform(z))
    return np.sign(z) * np.log1p(np.abs(z)) if scale == "log" else _whitened(z)


def _whitened(z: Numbers) -> Numbers:
    """Principal components, each to standard deviation 1; components without variance are columns of zeros."""
    u, spread, _ = np.linalg.svd(z - z.mean(0), full_matrices=False)
    keep = spread > max(z.shape) * np.finfo(np.float32).eps * spread.max(initial=0.0)
    out = np.zeros_like(z)
    out[:, : keep.sum()] = u[:, keep] * np.sqrt(len(z))
    return out


def _unsupervised(party: Party) -> Party:
    """The party with all graphs to train on, and tested on the labelled ones outside its validation split."""
    labelled = party.graph.y >= 0
    val = party.val & labelled
    return replace(party, train=torch.ones_like(party.train), val=val, test=labelled & ~val)
