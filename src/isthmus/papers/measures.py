"""What is done with the study of a cell: it is trained, or what it releases is attacked, or used by other models."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field
from torch_geometric.data import Data

from isthmus.audit.membership import Membership
from isthmus.federation.answers import PlainTotal
from isthmus.federation.local import LocalTransport
from isthmus.methods.condensing import Condensing
from isthmus.nn.encoders import Encoder
from isthmus.options import Registered
from isthmus.study.config import Study
from isthmus.study.engine import Run, module_for
from isthmus.tasks.classification import Classification


@dataclass(frozen=True)
class Measured:
    """What one run gave.

    Attributes:
        metrics: by name.
        curves: of some of these `[round, value]`, round by round.
        about: what else is worth keeping: rounds, seconds.
    """

    metrics: Mapping[str, float]
    curves: Mapping[str, list[list[float]]] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)


class Measure(Registered):
    """What is done with the study of a cell."""

    kind: ClassVar[str] = "measure"
    home: ClassVar[str] = "isthmus.papers.measures"

    @abstractmethod
    def of(self, study: Study, seed: int, checkpoint: Path | None) -> Measured:
        """What one run gives.

        Arguments:
            study: with one method and one seed.
            checkpoint: where the run's state may be kept, so that it can go on.
        """


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


class Attacked(Measure):
    """Who was trained on is guessed from what is released (`isthmus audit --by membership`), by round and at the end.

    Of several ways to ask a released model the one that is worst for privacy counts.
    """

    name = "membership"
    audit: dict[str, Any] = Field(default={})
    """Options of the audit."""

    def of(self, study: Study, seed: int, checkpoint: Path | None) -> Measured:
        loaded = study.load(seed)
        module = module_for(study.encoder(), loaded.parties, loaded.task, seed)
        (method,) = study.method_list()
        audit = Membership.read(self.audit, "measure.audit")
        (found,) = audit.against({"": method}, loaded.parties, loaded.task, module, seed=seed)
        risks = ("auc", "f1", "likelihood", "tpr")
        kept = {"value": [[each.round, each.value] for each in found.rounds]}
        kept |= {risk: [[each.round, each.worst(risk)] for each in found.rounds] for risk in ("auc", "likelihood")}
        last = {"value": found.last.value, **{risk: found.last.worst(risk) for risk in risks}}
        asked = {f"auc, {how}": risk.auc for how, risk in found.last.asked.items()}
        return Measured({**last, **asked}, kept, {"round": found.chosen})


class OnOtherModels(Measure):
    """One condensed graph trains one model after another; the parties fine-tune and test each of them."""

    name = "other-models"
    models: list[str] = Field(default=["mlp", "appnp", "cheb", "gcn", "sage", "sgc"])
    """Encoders, which are 256 wide."""

    def of(self, study: Study, seed: int, checkpoint: Path | None) -> Measured:
        run = prepared(study, seed, checkpoint)
        found = run.go()
        method, task = run.method, run.task
        assert isinstance(task, Classification)
        assert isinstance(method, Condensing)
        assert isinstance(run.transport, LocalTransport)
        (site,) = run.transport.sites
        site.outputs(found.weights)  # from here on it is at what the parties train on, z
        told = {}
        for name in self.models:
            other = module_for(Encoder.named(name)(hidden=256), site.cohort.parties, task, seed)
            weights = method.trained(other, Data(**found.graph), task.classes, seed)
            at_parties = method.site(site.cohort.parties, task, other, seed=seed)
            names = at_parties.hosted.names
            counts = PlainTotal([at_parties.answer("evaluate", {"weights": weights}, names)], names)
            told[name] = task.metrics(counts.sum("test"))["accuracy"]
        return Measured(told, {}, {"round": found.chosen_round})


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
