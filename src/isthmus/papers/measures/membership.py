"""The membership audit of a method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from isthmus.audit.membership import Membership
from isthmus.papers.measures import Measure, Measurement
from isthmus.study.config import Study
from isthmus.study.setup import module_for


class MembershipRisk(Measure):
    """How well attackers tell training items from others (`isthmus audit --by membership`), by round and at the end.

    Of the ways to query a released model, the one that is worst for privacy counts.
    """

    name = "membership"
    audit: dict[str, Any] = Field(default={})
    """Options of the audit."""

    def run(self, study: Study, seed: int, checkpoint: Path | None) -> Measurement:
        loaded = study.load(seed)
        (method,) = study.method_list()
        module = module_for(study.encoder(method), loaded.parties, loaded.task, seed)
        audit = Membership.read(self.audit, "measure.audit")
        (found,) = audit.compare({"": method}, loaded.parties, loaded.task, module, seed=seed)
        risks = ("auc", "f1", "likelihood", "tpr", "tpr_low")
        kept = {"value": [[each.round, each.value] for each in found.rounds]}
        kept |= {risk: [[each.round, each.worst(risk)] for each in found.rounds] for risk in ("auc", "likelihood")}
        last = {"value": found.last.value, **{risk: found.last.worst(risk) for risk in risks}}
        asked = {f"auc, {how}": risk.auc for how, risk in found.last.asked.items()}
        return Measurement({**last, **asked}, kept, {"round": found.chosen})
