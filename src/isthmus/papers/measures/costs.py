"""What a method does once, before its first round, against one round."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field
from torch import nn

from isthmus.data.party import Party, pool_parties
from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.federation.ledger import Ledger
from isthmus.federation.local import LocalTransport
from isthmus.federation.verbs import Federation
from isthmus.methods.base import Method, Model, State
from isthmus.nn.per_party import initial_weights
from isthmus.papers.measures import Measure, Measured
from isthmus.study.config import Study
from isthmus.study.setup import extended, module_for
from isthmus.tasks.base import Task

MB = 2**20


class Costs(Measure):
    """Time and bytes of a method's set-up, and of one of its rounds after it (FedCog's tables III and IV).

    Times are what the parties compute in milliseconds, the sum over all of them, medians over repeats: `set_up` as the
    method does it, `alone` for the same parties without their borders, `pooled` for one party with the whole graph, and
    an `update`, a round. Megabytes of 2^20 bytes are the ledger's: of the set-up all that parties send, of an update
    what goes to the parties and back; `wide_mb` are the bytes of an update of a model with `outputs` outputs. Shares:
    `crossing` of all edges, `to_pooled`, `to_update`, `to_update_mb` and `to_wide_mb` of the set-up's cost.
    """

    name = "costs"
    repeats: int = Field(3, ge=1)
    """How often everything is measured."""
    outputs: int = Field(100, ge=1)
    """Outputs of the model of `wide_mb`: with 100 the paper's updates are met, whatever the number of classes."""
    side_by_side: bool = True
    """All parties at once; one after another takes less memory."""

    timed: ClassVar[int] = 3
    """Rounds; in the first of them things are laid out once, so it is not counted."""

    def of(self, study: Study, seed: int, checkpoint: Path | None) -> Measured:
        loaded = study.load(seed)
        (planned,) = study.method_list()
        method = planned.model_copy(update={"rounds": self.timed, "every": self.timed})
        brief = method.model_copy(update={"rounds": 1})  # of the other sides only the set-up is told
        held, task, encoder = loaded.parties, loaded.task, study.encoder()
        module = extended(method, module_for(encoder, held, task, seed), seed)
        sides = {
            "set_up": held,
            "alone": [replace(party, border=None) for party in held],
            "pooled": [pool_parties(held)],
        }
        times: dict[str, list[float]] = {name: [] for name in (*sides, "update")}
        booked: dict[str, float] = {}
        for _ in range(self.repeats):
            for side, parties in sides.items():
                ledger, spent = self._driven(method if side == "set_up" else brief, parties, task, module, seed)
                if not spent[0] or not ledger.sent:
                    raise IsthmusError(
                        f"measure 'costs': method '{method.name}' sends nothing, or does nothing before its first "
                        "round: measure one that does"
                    )
                times[side].append(1000 * spent[0])
                if side == "set_up":
                    times["update"] += [1000 * seconds for seconds in spent[2:]]
                    booked = _booked(ledger)
                gc.collect()
        wide = {"weights": initial_weights(encoder.build(held[0].features, self.outputs, task.level))}
        crossing = sum(len(party.border) for party in held if party.border is not None)
        found = {name: statistics.median(each) for name, each in times.items()} | booked
        found["wide_mb"] = 2 * len(held) * wire.size(wide) / MB
        found["crossing"] = crossing / max(crossing + sum(party.edges for party in held), 1)
        for share, whole in (("to_pooled", "pooled"), ("to_update", "update")):
            found[share] = found["set_up"] / found[whole]
        for share, whole in (("to_update_mb", "update_mb"), ("to_wide_mb", "wide_mb")):
            found[share] = found["set_up_mb"] / found[whole]
        return Measured(found)

    def _driven(
        self, method: Method, parties: Sequence[Party], task: Task, module: nn.Module, seed: int
    ) -> tuple[Ledger, list[float]]:
        """The ledger, and seconds that parties computed before the first round and in each."""
        groups = [parties] if self.side_by_side else [[party] for party in parties]
        transport, state = Clocked([method.site(group, task, module, seed=seed) for group in groups]), State()
        federation = Federation(transport, seed=seed, clock=lambda: int(state.round))
        spent = [0.0] * (self.timed + 1)
        for now in method.server(federation, Model(module), state):
            spent[now.round] += sum(transport.seconds.values())
            transport.seconds.clear()
        return federation.ledger, spent


class Clocked(LocalTransport):
    """Parties in this process, and the seconds that they computed, by action (and hop)."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seconds: dict[str, float] = {}

    def call(self, verb: Any, action: str, request: Any, of: Any) -> Any:
        start, name = time.process_time(), f"{action} {request['hop']}" if "hop" in request else action
        try:
            return super().call(verb, action, request, of)
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - start


def _booked(ledger: Ledger) -> dict[str, float]:
    """Megabytes that parties send before the first round, and of the first round both ways."""
    rows = list(ledger.rows())
    set_up = sum(row["sent"] for row in rows if row["round"] == 0)
    update = sum(row["sent"] + row["received"] for row in rows if row["round"] == 1)
    return {"set_up_mb": set_up / MB, "update_mb": update / MB}
