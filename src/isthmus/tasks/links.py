"""Link prediction: is there a link between two nodes?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from isthmus.data.level import Level
from isthmus.data.pairs import assign_pairs, hold_out_links
from isthmus.data.party import Party
from isthmus.data.pool import Pool, Share
from isthmus.errors import IsthmusError
from isthmus.tasks.base import CountForm, Step, Task
from isthmus.tasks.multilabel import MultiLabel
from isthmus.tasks.ranking import areas


class LinkPrediction(Task):
    """Whether two nodes are linked: cross-entropy on the dot product of their embeddings; area under the ROC curve.

    The score of a pair (u, v) is <z_u, z_v>, where z is the encoder's output; 0 and above predicts a link. Areas are
    computed as in `tasks/ranking.py`: `auc` over the pairs of all parties together; `party_auc` is the mean of the
    parties' own areas, over the parties that have links as well as other pairs.

    >>> import torch
    >>> z = torch.tensor([[1.0, 0.0], [1.0, 1.0], [-1.0, 0.0]])
    >>> pairs = torch.tensor([[0, 1], [0, 2]])
    >>> step = Step(z[pairs], torch.tensor([1, 0]), (2,), torch.arange(2))
    >>> task = LinkPrediction(width=2)
    >>> task.metrics({name: count.sum(0) for name, count in task.counts(step).items()})["auc"]
    1.0
    """

    name: ClassVar[str] = "link-prediction"
    level: ClassVar[Level] = "pair"
    known_metrics: ClassVar[tuple[str, ...]] = ("auc", "party_auc", "average_precision", "accuracy", "loss")

    relation: str = ""
    """Of typed graphs the relation whose links are asked: its name, or its type as `source relation target`."""
    width: int = Field(100, ge=1)
    """Width of the embeddings."""
    val: Share = 0.05
    """Share of the links held out for validation."""
    test: Share = 0.1
    """Share of the links held out for testing."""
    train: Share = 1.0
    """Share of the remaining links, or of the `disjoint` ones, that models are trained to predict."""
    disjoint: Share | None = None
    """Share of the remaining links that leaves the graph and is trained on alone, so that pairs are trained on as they
    are asked; 0: the graph keeps all, and all are trained on. None is 0.5 for a relation in which each node at one side
    has one link, such as a foreign key, else 0."""

    def make_parties(self, pool: Pool, cut: Callable[[Pool], list[Party]], seed: int) -> list[Party]:
        """Hold out links, cut the graph, and give every party its pairs."""
        try:
            held = hold_out_links(pool, val=self.val, test=self.test, seed=seed, relation=self.relation)
        except IsthmusError as error:
            raise IsthmusError(f"task '{self.name}': {error}") from error
        return assign_pairs(cut(held.pool), held, train=self.train, seed=seed, disjoint=self.disjoint)

    @property
    def outputs(self) -> int:
        return self.width

    def loss(self, step: Step) -> Tensor:
        return _SCORES.loss(_score_pairs(step))

    def counts(self, step: Step) -> dict[str, Tensor]:
        """The counts of one yes-or-no label, the `areas` of parties, and the number of `parties` that have one."""
        counts = _SCORES.counts(_score_pairs(step))
        auc = areas(counts["scores"]).squeeze(1)
        return counts | {"areas": auc.nan_to_num(), "parties": (~auc.isnan()).long()}

    def count_forms(self) -> dict[str, CountForm]:
        return _SCORES.count_forms() | {"areas": CountForm(False, ()), "parties": CountForm(True, ())}

    def counts_problem(self, counts: Any, labels: int, parties: int = 1) -> str:
        if why := super().counts_problem(counts, labels, parties):
            return why
        fit = float(counts["areas"]) <= float(counts["parties"]) + 1e-6 and int(counts["parties"]) <= parties
        return "" if fit else f"there are areas of more than {parties} parties, or areas above 1"

    def count(self, counts: Mapping[str, Any]) -> float:
        return _SCORES.count(counts)

    def metrics(self, counts: Mapping[str, Any]) -> dict[str, float]:
        found = _SCORES.metrics(counts)
        metrics = {name: value for name, value in found.items() if name in self.known_metrics}
        if "roc_auc" in found:
            metrics["auc"] = found["roc_auc"]
        if counts["parties"]:
            metrics["party_auc"] = float(counts["areas"] / counts["parties"])
        return metrics


_SCORES = MultiLabel(tasks=1)


def _score_pairs(step: Step) -> Step:
    """Replace the outputs of both ends of each pair by the pair's score."""
    if step.output.dim() != 3 or step.output.size(1) != 2:
        raise IsthmusError(f"a pair needs outputs [2, width], one per end; an item has {list(step.output.shape[1:])}")
    source, target = step.output.unbind(1)
    scores = (source * target).sum(1, keepdim=True)
    return Step(scores, step.y.unsqueeze(1).to(scores.dtype), step.sizes, step.items)
