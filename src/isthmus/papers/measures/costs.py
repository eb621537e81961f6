"""What a method's set-up costs, compared with one of its rounds."""

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

from isthmus.data.party import Party
from isthmus.data.pooled import pool_parties
from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.federation.answers import Reply
from isthmus.federation.ledger import Ledger
from isthmus.federation.local import LocalTransport
from isthmus.federation.transport import Command
from isthmus.federation.verbs import Federation
from isthmus.methods.base import Method, Model, State
from isthmus.nn.encoders import Encoder
from isthmus.nn.weights import initial_weights
from isthmus.papers.measures import Measure, Measurement
from isthmus.study.config import Study
from isthmus.study.setup import extended, module_for
from isthmus.tasks.base import Task

MB = 2**20


class Costs(Measure):
    """Time and traffic of a method's set-up and of one round.

    Times are milliseconds that parties compute, summed over parties, the median over repeats: `set_up` for the method
    as it is, `alone` for the same parties without borders, `pooled` for one party with the whole graph, and `update`
    for one round. Traffic is in units of 2^20 bytes, read from the ledger: `set_up_mb` that parties send in the set-up,
    `update_mb` in both directions of a round, and `wide_mb` in a round of a model with `outputs` outputs. `crossing` is
    the share of edges between parties; `to_pooled`, `to_update`, `to_update_mb` and `to_wide_mb` are the set-up's cost
    divided by each of these.
    """

    name = "costs"
    repeats: int = Field(3, ge=1)
    """How often to measure everything."""
    outputs: int = Field(100, ge=1)
    """Outputs of the model of `wide_mb`; 100 give updates as large as in the paper, for any number of classes."""
    side_by_side: bool = True
    """Compute all parties at once; one after another needs less memory."""

    timed: ClassVar[int] = 3
    """Rounds to run; the first one fills caches, so it is not timed."""

    def run(self, study: Study, seed: int, checkpoint: Path | None) -> Measurement:
        loaded = study.load(seed)
        (planned,) = study.method_list()
        method = planned.model_copy(update={"rounds": self.timed, "every": self.timed})
        brief = method.model_copy(update={"rounds": 1})  # only the set-up of the other sides is reported
        held, task, encoder = loaded.parties, loaded.task, study.encoder(planned)
        if not isinstance(encoder, Encoder):
            raise IsthmusError(f"measure 'costs': name an encoder of isthmus encoders in place of '{encoder.name}'")
        module = extended(method, module_for(encoder, held, task, seed), seed)
        sides = {
            "set_up": held,
            "alone": [replace(party, border=None) for party in held],
            "pooled": [pool_parties(held)],
        }
        times: dict[str, list[float]] = {name: [] for name in (*sides, "update")}
        traffic: dict[str, float] = {}
        for _ in range(self.repeats):
            for side, parties in sides.items():
                ledger, spent = self._timed_run(method if side == "set_up" else brief, parties, task, module, seed)
                if not spent[0] or not ledger.sent:
                    raise IsthmusError(
                        f"measure 'costs': method '{method.name}' has no set-up with messages: choose another one"
                    )
                times[side].append(1000 * spent[0])
                if side == "set_up":
                    times["update"] += [1000 * seconds for seconds in spent[2:]]
                    traffic = _traffic(ledger)
                gc.collect()
        wide = {
            "weights": initial_weights(
                encoder.reading(held[0].inputs).build(held[0].features, self.outputs, task.level)
            )
        }
        crossing = sum(len(party.border) for party in held if party.border is not None)
        metrics = {name: statistics.median(each) for name, each in times.items()} | traffic
        metrics["wide_mb"] = 2 * len(held) * wire.size(wide) / MB
        metrics["crossing"] = crossing / max(crossing + sum(party.edges for party in held), 1)
        for share, whole in (("to_pooled", "pooled"), ("to_update", "update")):
            metrics[share] = metrics["set_up"] / metrics[whole]
        for share, whole in (("to_update_mb", "update_mb"), ("to_wide_mb", "wide_mb")):
            metrics[share] = metrics["set_up_mb"] / metrics[whole]
        return Measurement(metrics)

    def _timed_run(
        self, method: Method, parties: Sequence[Party], task: Task, module: nn.Module, seed: int
    ) -> tuple[Ledger, list[float]]:
        """Run a method; return the ledger, and the seconds parties computed in the set-up and in each round."""
        groups = [parties] if self.side_by_side else [[party] for party in parties]
        transport, state = Clocked([method.site(group, task, module, seed=seed) for group in groups]), State()
        told = method.follows_rounds()
        federation = Federation(transport, seed=seed, clock=lambda: int(state.round), tell_round=told)
        spent = [0.0] * (self.timed + 1)
        for current in method.server(federation, Model(module, task.outputs, parties[0].features), state):
            spent[current.round] += sum(transport.seconds.values())
            transport.seconds.clear()
        return federation.ledger, spent


class Clocked(LocalTransport):
    """A local transport that adds up the processor seconds of parties, by action (and hop)."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seconds: dict[str, float] = {}

    def send(self, command: Command) -> list[Reply]:
        if command.do != "answer":
            return super().send(command)
        start, name = time.process_time(), command.action
        if "hop" in command.payload:
            name = f"{name} {command.payload['hop']}"
        try:
            return super().send(replace(command, sum_only=False))  # the server adds up in its own time
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - start


def _traffic(ledger: Ledger) -> dict[str, float]:
    """Read from the ledger what parties send in the set-up, and both directions of the first round."""
    rows = list(ledger.rows())
    set_up = sum(row["sent"] for row in rows if row["round"] == 0)
    update = sum(row["sent"] + row["received"] for row in rows if row["round"] == 1)
    return {"set_up_mb": set_up / MB, "update_mb": update / MB}
