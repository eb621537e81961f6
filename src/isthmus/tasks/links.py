"""Pairs of nodes: is there a link between the two?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from isthmus.data.pairs import assign_pairs, hold_out_links
from isthmus.data.party import Level, Party
from isthmus.data.pool import Pool, Share
from isthmus.errors import IsthmusError
from isthmus.tasks.base import Step, Task
from isthmus.tasks.multilabel import MultiLabel, areas


class LinkPrediction(Task):
    """Whether two nodes are linked: cross-entropy on the dot product of their embeddings; area under the ROC curve.

    The score of a pair (u, v) is <z_u, z_v>, z being the encoder's output; 0 and above counts as a link. Areas are
    those of `MultiLabel`: `auc` over the pairs of all parties together; `party_auc` the mean over the parties, each
    over its own pairs, of those that have both links and other pairs.

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
    select_by: ClassVar[str] = "auc"

    width: int = Field(100, ge=1)
    """Width of the embeddings."""
    val: Share = 0.05
    """Share of the links that is held out to validate on."""
    test: Share = 0.1
    """Share of the links that is held out to test on."""
    train: Share = 1.0
    """Share of the links left that is trained on; the graph has all of them."""

    def make_parties(self, pool: Pool, cut: Callable[[Pool], list[Party]], seed: int) -> list[Party]:
        """Links are held out before the graph is cut; then every party gets its pairs."""
        try:
            held = hold_out_links(pool, val=self.val, test=self.test, seed=seed)
        except IsthmusError as error:
            raise IsthmusError(f"task '{self.name}': {error}") from error
        return assign_pairs(cut(held.pool), held, train=self.train, seed=seed)

    @property
    def outputs(self) -> int:
        return self.width

    def loss(self, step: Step) -> Tensor:
        return _YES_OR_NO.loss(_scored(step))

    def counts(self, step: Step) -> dict[str, Tensor]:
        """What a yes-or-no label has, the `areas` of parties, and how many `parties` have one."""
        counts = _YES_OR_NO.counts(_scored(step))
        under = areas(counts["scores"]).squeeze(1)
        return counts | {"areas": under.nan_to_num(), "parties": (~under.isnan()).long()}

    def count(self, counts: Mapping[str, Any]) -> float:
        return _YES_OR_NO.count(counts)

    def metrics(self, counts: Mapping[str, Any]) -> dict[str, float]:
        found = _YES_OR_NO.metrics(counts)
        if "roc_auc" in found:
            found["auc"] = found.pop("roc_auc")
        if counts["parties"]:
            found["party_auc"] = float(counts["areas"] / counts["parties"])
        return found


_YES_OR_NO = MultiLabel(tasks=1)
"""What a score says is one label."""


def _scored(step: Step) -> Step:
    """Scores of pairs in place of the outputs of their ends."""
    if step.output.dim() != 3 or step.output.size(1) != 2:
        raise IsthmusError(f"a pair has two outputs, one for each end; here an item has {list(step.output.shape[1:])}")
    one, other = step.output.unbind(1)
    scores = (one * other).sum(1, keepdim=True)
    return Step(scores, step.y.unsqueeze(1).to(scores.dtype), step.sizes, step.items)
