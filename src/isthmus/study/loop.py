"""One run: a method, a seed, and the parties; evaluated, saved and resumed between rounds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isthmus import store
from isthmus.data.party import Party, pool_parties
from isthmus.errors import IsthmusError
from isthmus.federation.answers import PlainTotal, Reply
from isthmus.federation.ledger import Ledger
from isthmus.federation.local import LocalTransport
from isthmus.federation.site import Site
from isthmus.federation.verbs import Federation, Transport
from isthmus.methods.base import Method, Model, State
from isthmus.study.setup import check_fit, extended, whole_of
from isthmus.tasks.base import Task

SAVING = 0.1
"""Most of a run's time that goes into checkpoints: those of many parties are large."""

History = list[tuple[int, str, float]]
OnRound = Callable[[int, Mapping[str, float]], None]


@dataclass
class RunResult:
    """What one run gave.

    Attributes:
        metrics: of the chosen round, `test_accuracy`, `val_accuracy`, ...
        history: (round, metric, value), every evaluated round.
        weights: the model of the chosen round; by party where parties keep their own.
        privacy: what noise the parties added and what that spends, as `Account` tells it; empty without noise.
        graph: that the method made up to the chosen round, such as a condensed one; empty without.
        places: by round, of a task that is drawn, where all items stand and what class they have, `[items, 3]`.
        parties: by party the metrics of its own test items in the chosen round; only a study can tell them.
    """

    method: str
    seed: int
    rounds: int
    chosen_round: int
    seconds: float
    metrics: dict[str, float]
    history: History = field(repr=False)
    ledger: Ledger = field(repr=False)
    weights: dict[str, Any] = field(default_factory=dict, repr=False)
    privacy: dict[str, Any] = field(default_factory=dict)
    places: dict[str, Any] = field(default_factory=dict, repr=False)
    graph: dict[str, Any] = field(default_factory=dict, repr=False)
    parties: dict[str, dict[str, float]] = field(default_factory=dict, repr=False)

    def summary(self) -> dict[str, Any]:
        """The run's entry in `results.json`."""
        keys = ("method", "seed", "rounds", "chosen_round", "seconds", "metrics")
        more = {key: getattr(self, key) for key in ("privacy", "parties") if getattr(self, key)}
        return {key: getattr(self, key) for key in keys} | more

    def dump(self) -> dict[str, Any]:
        more = {"weights": self.weights, "places": self.places, "graph": self.graph}
        return {**self.summary(), "history": self.history, "ledger": self.ledger.dump(), **more}

    @classmethod
    def of_dump(cls, saved: Mapping[str, Any]) -> RunResult:
        ledger = Ledger()
        ledger.restore(saved["ledger"])
        history = [(int(at), str(name), float(value)) for at, name, value in saved["history"]]
        return cls(**{**saved, "ledger": ledger, "history": history})


class Run:
    """Drives a method's server side to its end.

    Arguments:
        method: with its options.
        parties: all of them; a pooled method gets one, put together from all. None where a federation's transport
            reaches them: what only a study can measure, which holds all of them, is left out then.
        task: loss and metrics.
        module: the model before training.
        seed: of everything drawn.
        checkpoint: file to save to between rounds, and to go on from if it is there.
        save_every: seconds between two of these, at least; 0 saves after every round.
        wire: send every payload through bytes.
        side_by_side: parties on this machine as one cohort; otherwise each as a cohort of one.
        on_round: called after each round with its metrics.
        transport: another way to reach the parties than in this process.
    """

    def __init__(
        self,
        method: Method,
        parties: Sequence[Party],
        task: Task,
        module: nn.Module,
        *,
        seed: int = 0,
        device: torch.device | None = None,
        checkpoint: Path | None = None,
        save_every: float = 2.0,
        wire: bool = False,
        side_by_side: bool = True,
        on_round: OnRound | None = None,
        transport: Transport | None = None,
    ) -> None:
        if parties:
            check_fit(method, parties, task, module)
        module = extended(method, module, seed)
        self.method, self.task, self.seed = method, task, seed
        self.module, self.device = module, device
        self.checkpoint, self.save_every, self.on_round = checkpoint, save_every, on_round
        self.whole = None
        if parties and task.unsupervised:
            self.whole = method.site([pool_parties(parties)], task, module, device=device)
        elif parties and (whole := whole_of(parties)) is not None:
            self.whole = Site(method, [whole], task, module, device=device)
        parties = [pool_parties(parties)] if method.role == "pooled" and len(parties) > 1 else list(parties)
        groups = [parties] if side_by_side else [[party] for party in parties]
        self.transport = transport or LocalTransport(
            [method.site(group, task, module, seed=seed, device=device) for group in groups], wire=wire
        )
        self.state = State()
        self.progress: dict[str, Any] = {
            "best": None, "best_round": 0, "metrics": {}, "weights": {}, "graph": {}, "places": {}, "seconds": 0.0,
            "tested": [],
        }  # fmt: skip
        self.history: History = []
        self.federation = Federation(
            self.transport, seed=seed, quorum=method.quorum, clock=lambda: int(self.state.round)
        )

    def go(self) -> RunResult:
        """Run to the end, from the checkpoint if there is one."""
        if self.checkpoint is not None and self.checkpoint.exists():
            self._restore(store.load(self.checkpoint))
        began, saved_at = time.perf_counter() - self.progress["seconds"], time.perf_counter()
        pause = self.save_every
        for _ in self._rounds():
            now = time.perf_counter()
            self.progress["seconds"] = now - began
            if self.checkpoint is not None and now - saved_at >= pause:
                store.save(self.checkpoint, self._save())
                saved_at = time.perf_counter()
                if self.save_every:
                    pause = max(self.save_every, (1 / SAVING - 1) * (saved_at - now))
        return self._result(time.perf_counter() - began)

    def _rounds(self) -> Any:
        if self._is_over():
            return
        for state in self.method.server(self.federation, Model(self.module), self.state):
            if state.round > 0 and (state.round % self.method.every == 0 or state.round == self.method.rounds):
                self._evaluate(state)
            if state.round in self.task.picture_rounds and self.whole is not None and "weights" in state:
                self._draw(self.whole, state)
            yield state
            if self._is_over():
                return

    def _is_over(self) -> bool:
        waited = int(self.state.round) - int(self.progress["best_round"])
        return self.progress["best"] is not None and 0 < self.method.patience <= waited

    def _evaluate(self, state: State) -> None:
        if self.task.level == "pair" and len(self.federation.parties) > 1:
            self.federation.exchange("lend", self.method.evaluated(state))
        total = self.method.evaluate(self.federation, state)
        tested = self._tested()
        found = {split: self.task.metrics(total.sum(split)) for split in ("val", "test")}
        of_party, of_whole = ("party_", "") if self.task.unsupervised else ("", "pooled_")
        metrics = {f"{split}_{of_party}{name}": value for split, own in found.items() for name, value in own.items()}
        for split, own in self._on_whole(state).items():
            metrics |= {f"{of_whole}{split}_{name}": value for name, value in own.items()}
        self.history += [(state.round, name, value) for name, value in metrics.items()]
        value = self.task.score(found["val"])
        best = self.progress["best"]
        chosen = value is None or self.method.select == "last"
        if chosen or best is None or value > best:
            kept = {"weights": self._weights(state), "graph": self.method.product(state)}
            self.progress |= {"metrics": metrics, **kept, "chosen_round": state.round, "tested": tested}
        if value is not None and (best is None or value > best):
            self.progress |= {"best": value, "best_round": state.round}
        if self.on_round is not None:
            self.on_round(state.round, metrics)

    def _tested(self) -> list[dict[str, Any]]:
        """Each party's own counts of the evaluation just made; a federation's server has their sum alone."""
        if not isinstance(self.transport, LocalTransport) or self.method.role == "pooled":
            return []
        return [
            {
                "parties": list(reply.parties),
                "counts": {name: column for name, column in reply.columns.items() if name.startswith("test/")},
            }
            for reply in self.transport.evaluated
        ]

    def _by_party(self) -> dict[str, dict[str, float]]:
        """Metrics of every party's own test items; of those that have some."""
        found, name_of = {}, "test_party_{}" if self.task.unsupervised else "test_{}"
        for tested in self.progress.get("tested", ()):
            reply = Reply(tuple(tested["parties"]), dict(tested["counts"]))
            for at, party in enumerate(reply.parties):
                counts = reply.payload(at).get("test")
                metrics = self.task.metrics(counts) if counts else {}
                told = {name_of.format(name): value for name, value in metrics.items() if math.isfinite(value)}
                if told:
                    found[party] = told
        return found

    def _on_whole(self, state: State) -> dict[str, dict[str, float]]:
        """Metrics of the server's weights on the graph that the parties' overlapping parts are put together to, or on
        the graphs of all parties that are embedded."""
        if self.whole is None or "weights" not in state:
            return {}
        asked = self.whole.hosted.names
        reply = self.whole.answer("evaluate", {"weights": state.weights}, asked)
        if not reply.parties:  # what one party holds may be unfit for it; the ledger names that one
            return {}
        counts = PlainTotal([reply], asked)
        return {split: self.task.metrics(counts.sum(split)) for split in ("val", "test")}

    def _draw(self, whole: Site, state: State) -> None:
        """Where all items stand now."""
        if (places := self.task.coordinates(whole.outputs(state.weights))) is None:
            return
        kinds = whole.hosted.y.cpu().to(places.dtype).unsqueeze(1)
        self.progress["places"][str(state.round)] = torch.cat([places, kinds], dim=1)

    def _weights(self, state: State) -> dict[str, Any]:
        if "weights" in state:
            return dict(state.weights)
        return self.transport.own_weights()

    def _result(self, seconds: float) -> RunResult:
        if not self.progress["metrics"] and not self.task.unsupervised:
            raise IsthmusError(f"method '{self.method.name}', seed {self.seed}: no test or validation item to evaluate")
        return RunResult(
            method=self.method.name,
            seed=self.seed,
            rounds=int(self.state.round),
            chosen_round=int(self.progress["chosen_round"]),
            seconds=seconds,
            metrics=dict(self.progress["metrics"]),
            history=self.history,
            ledger=self.federation.ledger,
            weights=self.progress["weights"],
            places=self.progress["places"],
            graph=self.progress["graph"],
            parties=self._by_party(),
            privacy={} if (account := self.method.account(self.state)) is None else account.to_dict(),
        )

    def _save(self) -> dict[str, Any]:
        return {
            "state": self.state.save(),
            "progress": self.progress,
            "history": self.history,
            "ledger": self.federation.ledger.dump(),
            "sites": self.transport.save(),
        }

    def _restore(self, saved: Mapping[str, Any]) -> None:
        self.state.restore(saved["state"])
        self.progress = dict(saved["progress"])
        self.history = [(int(at), str(name), float(value)) for at, name, value in saved["history"]]
        self.federation.ledger.restore(saved["ledger"])
        self.transport.restore(saved["sites"])
