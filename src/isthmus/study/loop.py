"""One run: a method, a seed, and the parties; evaluated, saved and resumed between rounds."""

from __future__ import annotations

import logging
import math
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import ConfigDict, TypeAdapter
from torch import Tensor, nn

from isthmus import store
from isthmus.data.party import Party
from isthmus.data.pooled import pool_parties
from isthmus.errors import IsthmusError, format_option
from isthmus.federation.answers import Answers, PlainTotal, Reply
from isthmus.federation.bounds import Introduced
from isthmus.federation.ledger import Ledger
from isthmus.federation.local import LocalTransport
from isthmus.federation.models import Models
from isthmus.federation.pieces import pieces
from isthmus.federation.private import Private
from isthmus.federation.site import Site
from isthmus.federation.sums import positions_of
from isthmus.federation.transport import PartiesLost, Transport
from isthmus.federation.verbs import Federation
from isthmus.methods.base import Method, Model, State
from isthmus.nn.per_party import reach_of
from isthmus.privacy.options import Privacy
from isthmus.study.private import private_answers
from isthmus.study.setup import check_fit, extended, judged, whole_of
from isthmus.tasks.base import Task, names_of
from isthmus.tasks.metrics import metric_of

log = logging.getLogger(__name__)

LOSSES = 3
"""How often in a row parties may be lost before a round ends."""
SAVING = 0.1
"""Largest share of a run's time that goes into checkpoints: those of many parties are large."""

FEW_PARTIES = 100
"""Up to so many parties a result lists who counted in every round; the ledger has them all."""

History = list[tuple[int, str, float]]
OnRound = Callable[[int, Mapping[str, float]], None]


@dataclass
class RunResult:
    """The result of one run.

    Attributes:
        metrics: of the chosen round, pooled over all parties: `test_accuracy`, `val_accuracy`, ...
        history: (round, metric, value), every evaluated round.
        models: of the chosen round, `{"shared": weights, "groups": {group: weights}, "parties": {party: weights}}`; a
            federation's parties keep theirs. Where models need more to predict, such as prototypes, it is `context`.
        groups: by name, the parties that share a model.
        majority_score: the value that `metric` has on the test items if all get the most frequent class, or their mean
            label; None where one answer for all means nothing, or its value does not follow from sums.
        metric, select_by: the metric that judges the run, and the one that chose its round.
        by_label: of each class, or of each of several tasks, figures of the test items in the chosen round.
        privacy: the noise that parties added and the privacy it spends, see `Account`; empty without noise.
        graph: the graph that the method has made by the chosen round, such as a condensed one; empty without.
        coordinates: by round, of a task that is drawn, the coordinates and the class of all items, `[items, 3]`.
        parties: by party the metrics of its own test items in the chosen round.
        over_parties: by metric the mean over parties, plain and weighted by test items, and the worst party.
        evaluated: which model of a party was evaluated: the one that the server `sent` or the one `trained` from it.
        description: what the models need beside their weights to be used: see `study.models`.
        reconciled: of a federation, `differences` between the server's ledger and the parties' own, and the `heads` of
            those.
        stopped: why the run ended before its last round.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    method: str
    seed: int
    rounds: int
    chosen_round: int
    seconds: float
    metrics: dict[str, float]
    history: History = field(repr=False)
    ledger: Ledger = field(repr=False)
    models: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    privacy: dict[str, Any] = field(default_factory=dict)
    coordinates: dict[str, Tensor] = field(default_factory=dict, repr=False)
    graph: dict[str, Tensor] = field(default_factory=dict, repr=False)
    parties: dict[str, dict[str, float]] = field(default_factory=dict, repr=False)
    over_parties: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    evaluated: str = "sent"
    groups: dict[str, list[str]] = field(default_factory=dict)
    majority_score: float | None = None
    metric: str = ""
    select_by: str = ""
    by_label: dict[str, dict[str, float | None]] = field(default_factory=dict, repr=False)
    description: dict[str, Any] = field(default_factory=dict, repr=False)
    reconciled: dict[str, Any] = field(default_factory=dict)
    stopped: str = ""
    processor_seconds: float = 0.0

    @property
    def weights(self) -> dict[str, Any]:
        """The weights that all parties' models have in common."""
        return self.models.get("shared", {})

    def summary(self) -> dict[str, Any]:
        """The run's entry in `results.json`."""
        keys = ("method", "seed", "rounds", "chosen_round", "seconds", "evaluated", "metric", "select_by", "metrics")
        more = {
            key: getattr(self, key)
            for key in ("by_label", "privacy", "parties", "over_parties", "groups", "reconciled", "stopped")
            if getattr(self, key)
        }
        least = {} if self.majority_score is None else {"majority_score": self.majority_score}
        return {key: getattr(self, key) for key in keys} | least | more | self._turnout()

    def _turnout(self) -> dict[str, Any]:
        """Who counted in which rounds; of many parties only the rounds in which some did not."""
        spans = self.ledger.turnout()
        if max((len(span.counted) + len(span.missing) for span in spans), default=0) > FEW_PARTIES:
            spans = [span for span in spans if span.missing]
        return {"turnout": [{**asdict(span), "counted": list(span.counted)} for span in spans]} if spans else {}

    def dump(self) -> dict[str, Any]:
        more = {"models": self.models, "coordinates": self.coordinates, "graph": self.graph}
        more["description"] = self.description
        return {**self.summary(), "history": self.history, "ledger": self.ledger.dump(), **more}

    @classmethod
    def of_dump(cls, saved: Mapping[str, Any]) -> RunResult:
        """The result that `dump` gave; values of other types are an error of pydantic's."""
        ledger = Ledger()
        ledger.restore(saved["ledger"])
        known = {name: value for name, value in saved.items() if name != "turnout"}
        return TypeAdapter(cls).validate_python({**known, "ledger": ledger})


class Run:
    """Runs a method's server side to its end.

    Arguments:
        method: with its options.
        parties: all of them; a pooled method gets one, put together from all. Empty where a federation's transport
            reaches them: then nothing is measured that needs all parties' data in one place.
        task: loss and metrics.
        module: the model before training.
        seed: of all random draws.
        checkpoint: file to save to between rounds, and to resume from if it exists.
        save_every: least seconds between two checkpoints; 0 saves after every round.
        wire: encode every payload as bytes and decode it again.
        side_by_side: train parties side by side, in cohorts of some hundred; otherwise each is a cohort of one.
        on_round: called after each round with its metrics.
        transport: reaches the parties elsewhere than in this process.
        description: what the result says of its models beside method, seed and task.
        features: width of a node's features, where the parties are elsewhere.
        privacy: what the study hides of its parties; the method is `private.adapted` to it.
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
        description: Mapping[str, Any] | None = None,
        features: int = 0,
        privacy: Privacy | None = None,
    ) -> None:
        if parties:
            check_fit(method, parties, task, module)
            _check_own_rounds(method, task)
        elif method.select_over == "each":
            why = "a federation chooses one round for all: set 'items' or 'parties'"
            raise IsthmusError(f"method '{method.name}': select_over = 'each': {why}")
        elif method.select_over == "parties" and method.evaluate_by == "total":
            remedy = f"set {format_option('evaluate_by', 'ask')}, which shows the server each party's counts"
            raise IsthmusError(f"method '{method.name}': select_over = 'parties' needs the scores of parties: {remedy}")
        module, task = extended(method, module, seed), judged(task, method)
        self.method, self.task, self.seed = method, task, seed
        self.privacy, self.private = privacy, private_answers(privacy, method, module, task, len(parties))
        self.held_back = privacy is not None and privacy.hides_items
        self.module, self.device = module, device
        self.checkpoint, self.save_every, self.on_round = checkpoint, save_every, on_round
        self.description = description or {}
        self.features = parties[0].features if parties else features
        self.whole = None
        if self.private is not None and not self.held_back:
            pass  # the whole graph has edges of which no party has released sums
        elif parties and task.unsupervised:
            self.whole = method.site([pool_parties(parties)], task, module, device=device)
        elif parties and (whole := whole_of(parties)) is not None:
            self.whole = Site(method, [whole], task, module, device=device)
        parties = [pool_parties(parties)] if method.role == "pooled" and len(parties) > 1 else list(parties)
        self.here = bool(parties)
        if transport is None:
            ways: dict[str, Any] = {"device": device, "side_by_side": side_by_side, "private": self.private}
            sites = sites_of(method, parties, task, module, seed=seed, **ways)
            transport = LocalTransport(sites, [party.name for party in parties], wire=wire)
        self.transport = transport
        self.state, self.progress = State(), _progress()
        self.history: History = []
        self._validated: list[dict[str, Any]] = []
        self._tested: list[dict[str, Any]] = []
        self._told = 0
        self._snapshot: bytes | None = None
        self.federation = Federation(
            self.transport,
            seed=seed,
            quorum=method.quorum,
            everyone=method.everyone,
            clock=_weak(self._round),
            watch={"evaluate": _weak(self._watch)} if parties and method.role != "pooled" else None,
            checks=None if self.held_back else {"evaluate": _weak(self._check_counts)},
            bounds={name: each.binding.bounds for name, each in method.site_type().actions().items()},
            aggregation=method.aggregation(),
            tell_round=method.follows_rounds(),
            private=self.private,
        )

    def _round(self) -> int:
        return int(self.state.round)

    def go(self) -> RunResult:
        """Run to the end, from the checkpoint if it exists. Lost parties start again, if they can, and so do rounds."""
        self._resume()
        losses = 0
        while True:
            reached = int(self.state.round)
            try:
                return self._go()
            except PartiesLost as error:
                losses = 1 if int(self.state.round) > reached + 1 else losses + 1
                if not self.transport.recovers or losses > LOSSES:
                    raise
                log.warning("round %d: %s; going on from the last snapshot", int(self.state.round), error)
                self._begin_again()

    def so_far(self, stopped: str) -> RunResult | None:
        """Return the result of the rounds that are finished, of a run that stopped; none if nothing was evaluated."""
        if not self.progress["metrics"]:
            return None
        result = self._result()
        return replace(result, rounds=max(at for at, _, _ in self.history), stopped=stopped)

    def _go(self) -> RunResult:
        began, saved_at = time.perf_counter() - self.progress["seconds"], time.perf_counter()
        computed = time.process_time() - self.progress["processor_seconds"]

        def note_time() -> float:
            now = time.perf_counter()
            self.progress |= {"seconds": now - began, "processor_seconds": time.process_time() - computed}
            return now

        pause = self.save_every
        for _ in self._rounds():
            now = note_time()
            if (self.checkpoint is not None or self.transport.recovers) and now - saved_at >= pause:
                self._take_snapshot()
                saved_at = time.perf_counter()
                if self.save_every:
                    pause = max(self.save_every, (1 / SAVING - 1) * (saved_at - now))
        note_time()
        return self._result()

    def _take_snapshot(self) -> None:
        """Save the run: to the checkpoint, or in memory if it only serves to start lost parties again.

        A checkpoint that too few parties have as well could not be resumed, so it replaces nothing.
        """
        saved = self._save()
        if self.checkpoint is None:
            self._snapshot = store.pack(saved)
            return
        kept, needed = self.transport.kept_by(saved["sites"]), self.federation.needed()
        if len(kept) < needed:
            log.warning("round %d: only %d parties saved it, %d must", int(self.state.round), len(kept), needed)
            return
        if self.checkpoint.exists():
            self.checkpoint.replace(previous_of(self.checkpoint))
        store.save(self.checkpoint, saved)
        self.transport.confirm(saved["sites"])

    def _resume(self) -> bool:
        """Go back to the last checkpoint that enough parties have as well; return whether there is any checkpoint."""
        if self.checkpoint is None:
            return False
        found = [each for each in (self.checkpoint, previous_of(self.checkpoint)) if each.exists()]
        for at, path in enumerate(found):
            if at:
                self._start_over()
            with store.expected_content(path):
                self._restore(store.load(path))
            there = self.transport.present()
            if len(there) >= self.federation.needed():
                path.replace(self.checkpoint)
                return True
        if found:
            raise IsthmusError(
                f"only {len(there)} of {len(self.federation.parties)} parties can go on from round "
                f"{int(self.state.round)} ({self.federation.needed()} must): have the others join with the kit that "
                f"has their state, or start the study again with {format_option('force', True)}"
            )
        return False

    def _begin_again(self) -> None:
        """Start all parties again and go back to the last snapshot, or to the beginning."""
        self._start_over()
        if not self._resume() and self._snapshot is not None:
            self._restore(store.unpack(self._snapshot))

    def _start_over(self) -> None:
        self.transport.restart()
        self.state, self.progress, self.history = State(), _progress(), []
        self.federation.ledger = Ledger()

    def _rounds(self) -> Any:
        if self._is_over():
            return
        model = Model(self.module, self.task.outputs, self.features)
        if not isinstance(states := self.method.server(self.federation, model, self.state), Iterator):
            raise IsthmusError(f"method '{self.method.label}': its server side yields nothing: yield state every round")
        for state in states:
            if not isinstance(state, State):
                raise IsthmusError(
                    f"method '{self.method.label}': its server side yields {state!r}: yield its state every round"
                )
            if state.round > 0 and (state.round % self.method.every == 0 or state.round == self.method.rounds):
                self._evaluate(state)
            if state.round in self.task.picture_rounds and self.whole is not None:
                self._draw(self.whole, state)
            yield state
            if self._is_over():
                return

    def _is_over(self) -> bool:
        waited = int(self.state.round) - int(self.progress["best_round"])
        return self.progress["best"] is not None and 0 < self.method.patience <= waited

    def _evaluate(self, state: State) -> None:
        models = self.method.models(state)
        if self.task.level == "pair" and len(self.federation.parties) > 1:
            self.federation.exchange("lend", models.request(self.federation.parties))
        counts = self._evaluate_there(models) if self.held_back else self.method.evaluate(self.federation, state)
        if counts is None:  # they stay at the parties, and the last round is the result
            self.progress |= {"models": self._saved(models, self.task), "chosen_round": state.round}
            if self.on_round is not None and state.round > self._told:
                self._told = int(state.round)
                self.on_round(state.round, {})
            return
        if isinstance(counts, Answers):
            replies = [Reply.of_one(party, answer) for party, answer in counts.items()]
            if self.method.role != "pooled":
                self._watch(replies)
            counts = PlainTotal(replies, self.federation.positions)
        if own_rounds := self.method.select_over == "each" and self.method.select == "validation":
            counts = self._own_rounds(state.round)
        summed = {split: counts.sum(split) for split in ("val", "test")}
        task = self.task if self.held_back else self.task.fit_threshold(summed["val"])
        found = {split: task.metrics(of_split) for split, of_split in summed.items()}
        of_party, of_whole = ("party_", "") if self.task.unsupervised else ("", "pooled_")
        metrics = {f"{split}_{of_party}{name}": value for split, own in found.items() for name, value in own.items()}
        for split, own in self._on_whole(models, task).items():
            metrics |= {f"{of_whole}{split}_{name}": value for name, value in own.items()}
        self.history += [(state.round, name, value) for name, value in metrics.items()]
        value = self._selection_score(found["val"], task)
        if value is not None and math.isnan(value):  # any other round is better
            value = -math.inf
        best = self.progress["best"]
        chosen = value is None or self.method.select == "last"
        if own_rounds:
            chosen = any(own["round"] == state.round for own in self.progress["own_rounds"].values())
        if chosen or best is None or value > best:
            saved = self._of_own_rounds(models, state.round) if own_rounds else self._saved(models, task)
            kept = {"models": saved, "graph": self.method.product(state), "tested": self._tested}
            groups = {} if own_rounds else {name: list(group.parties) for name, group in models.groups.items()}
            self.progress |= {"metrics": metrics, **kept, "groups": groups, "chosen_round": state.round}
            self.progress["majority_score"] = self.task.majority_score(summed["test"])
            self.progress["by_label"] = self._by_label(summed["test"], task)
            self.progress["validated"] = {} if task is self.task else dict(summed["val"])
        if value is not None and (best is None or value > best):
            self.progress |= {"best": value, "best_round": state.round}
        if self.on_round is not None and state.round > self._told:  # a round that is repeated is no news
            self._told = int(state.round)
            self.on_round(state.round, metrics)

    def _evaluate_there(self, models: Models) -> PlainTotal | None:
        """Have the parties evaluate, and keep what they count; a study with all of them at hand measures it there."""
        self.federation.ask("evaluate", models.request(self.federation.parties))
        if not self.here:
            return None
        replies = [Reply.of_one(party, counts) for party, counts in self.federation.counted().items()]
        self._watch(replies)
        return PlainTotal(replies, self.federation.positions)

    def _check_counts(self, answer: Mapping[str, Any], introduced: Introduced) -> str:
        """Say what is wrong with the counts of one party, or with a sum of counts."""
        if answer.keys() != {"val", "test"}:
            return f"counts are of {', '.join(map(str, answer)) or 'nothing'}, not of val, test"
        for split, counts in answer.items():
            if why := self.task.counts_problem(counts, introduced.labels, introduced.parties):
                return f"{split} counts: {why}"
        counted = sum(self.task.count(counts) for counts in answer.values())
        return f"it counts {counted:g} labels and introduced {introduced.labels}" if counted > introduced.labels else ""

    def _watch(self, replies: Sequence[Reply]) -> None:
        """Keep each party's counts of the last evaluation."""
        self._validated, self._tested = (
            [
                {
                    "parties": list(reply.parties),
                    "counts": {name: column for name, column in reply.columns.items() if name.startswith(f"{split}/")},
                }
                for reply in replies
            ]
            for split in ("val", "test")
        )

    def _selection_score(self, pooled: Mapping[str, float], task: Task) -> float | None:
        """The figure that chooses between rounds, larger is better: of all items, or the mean of the parties'."""
        if self.method.select_over == "items" or self.method.role == "pooled":
            return self.task.score(pooled)
        scores = [self.task.score(metrics) for _, metrics in self._by_party(self._validated, "val", task).values()]
        known = [score for score in scores if score is not None and math.isfinite(score)]
        return math.fsum(known) / len(known) if known else None

    def _own_rounds(self, at: int) -> PlainTotal:
        """Put each party's counts of its best round so far, by its own validation score, in place of this round's."""
        own = self.progress["own_rounds"]
        for val, test in zip(self._validated, self._tested, strict=True):
            reply = Reply(tuple(val["parties"]), {**val["counts"], **test["counts"]})
            for position, party in enumerate(reply.parties):
                counts = reply.payload(position)
                score = self.task.score(self.task.metrics(counts["val"])) if self.task.count(counts["val"]) else None
                score = -math.inf if score is not None and math.isnan(score) else score
                if party not in own or score is None or score > own[party]["score"]:
                    own[party] = {"round": at, "score": score, "counts": counts}
        replies = [Reply.of_one(party, each["counts"]) for party, each in own.items()]
        self._watch(replies)
        return PlainTotal(replies, self.federation.positions)

    def _of_own_rounds(self, models: Models, at: int) -> dict[str, Any]:
        """The model of each party's best round so far, whole, as no model of all belongs to several rounds."""
        if models.context:
            why = "does not fit a method that predicts by what all share: set 'items' or 'parties'"
            raise IsthmusError(f"method '{self.method.name}': select_over = 'each' {why}")
        saved, kept = self._saved(models, self.task), dict(self.progress["models"].get("parties", {}))
        of_group = {party: group.weights for group in models.groups.values() for party in group.parties}
        for party, own in self.progress["own_rounds"].items():
            if own["round"] == at:
                its_own = saved.get("parties", {}).get(party, {})
                kept[party] = {**models.shared, **of_group.get(party, {}), **its_own}
        return {"parties": kept}

    def _saved(self, models: Models, task: Task) -> dict[str, Any]:
        """The models of this round as they are saved, each under its owner; a federation's parties write their own.

        Arguments:
            task: with the threshold that the validation items of this round chose.
        """
        personal = models.personal or self.method.evaluate_with == "trained"
        threshold = None if task is self.task else getattr(task, "threshold", None)
        own = self.federation.models(threshold) if personal or not self.here else {}
        groups = {name: dict(group.weights) for name, group in models.groups.items()}
        saved = {"shared": dict(models.shared), "groups": groups, "parties": own, "context": dict(models.context)}
        return {owner: weights for owner, weights in saved.items() if weights}

    def _by_party(
        self, counted: Sequence[Mapping[str, Any]], split: str, task: Task
    ) -> dict[str, tuple[float, dict[str, float]]]:
        """By party the number of its items (or labels) in a split and the metrics of these."""
        found: dict[str, tuple[float, dict[str, float]]] = {}
        for each in counted:
            reply = Reply(tuple(each["parties"]), dict(each["counts"]))
            for at, party in enumerate(reply.parties):
                counts = reply.payload(at).get(split, {})
                metrics = task.metrics(counts) if counts else {}
                finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
                if finite:
                    found[party] = self.task.count(counts), finite
        return {party: found[party] for party in self.federation.parties if party in found}

    def _by_label(self, counts: Mapping[str, Any], task: Task) -> dict[str, dict[str, float | None]]:
        """By class, or by task, its figures; None where the data do not give one."""
        figures = task.per_label(counts) if self.task.count(counts) else {}
        names = names_of(self.description.get("labels", ()), len(next(iter(figures.values()), ())))
        return {
            name: {key: values[at] if math.isfinite(values[at]) else None for key, values in figures.items()}
            for at, name in enumerate(names)
        }

    def _on_whole(self, models: Models, task: Task) -> dict[str, dict[str, float]]:
        """Metrics of the shared model on the graph that the parties' overlapping parts form together, or on the graphs
        of all parties."""
        trained = self.method.evaluate_with == "trained" and not self.task.unsupervised  # there is no such model of all
        if self.whole is None or trained or not models.one_for_all:
            return {}
        asked = self.whole.hosted.names
        reply = self.whole.answer("evaluate", {"weights": models.shared}, asked)
        if not reply.parties:  # a party's data may not fit; the ledger has named that party
            return {}
        counts = PlainTotal([reply], positions_of(asked))
        return {split: task.metrics(counts.sum(split)) for split in ("val", "test")}

    def _draw(self, whole: Site, state: State) -> None:
        """Record the coordinates of all items."""
        models = self.method.models(state)
        if not models.one_for_all or (points := self.task.coordinates(whole.predict_all(models.shared))) is None:
            return
        kinds = whole.hosted.y.cpu().to(points.dtype).unsqueeze(1)
        self.progress["coordinates"][str(state.round)] = torch.cat([points, kinds], dim=1)

    def _result(self) -> RunResult:
        if not self.progress["metrics"] and not self.task.unsupervised and (self.here or not self.held_back):
            why = "no test or validation item to evaluate"
            if not self.state.round:
                why = "its server side ended before its first round: yield its state every round"
            raise IsthmusError(f"method '{self.method.name}', seed {self.seed}: {why}")
        validated = self.progress["validated"]
        task = self.task.fit_threshold(validated) if validated else self.task
        fitted = {"task": task.to_dict()} if validated and self.description else {}
        name_of = "test_party_{}" if self.task.unsupervised else "test_{}"
        tested = {
            party: (size, {name_of.format(name): value for name, value in metrics.items()})
            for party, (size, metrics) in self._by_party(self.progress["tested"], "test", task).items()
        }
        return RunResult(
            method=self.method.label,
            seed=self.seed,
            rounds=int(self.state.round),
            chosen_round=int(self.progress["chosen_round"]),
            seconds=self.progress["seconds"],
            processor_seconds=self.progress["processor_seconds"],
            metrics=dict(self.progress["metrics"]),
            history=self.history,
            ledger=self.federation.ledger,
            models=self.progress["models"],
            coordinates=self.progress["coordinates"],
            graph=self.progress["graph"],
            parties={party: metrics for party, (_, metrics) in tested.items()},
            over_parties=over_parties(tested),
            evaluated=self._evaluated(),
            groups=self.progress["groups"],
            majority_score=self.progress["majority_score"],
            metric=self.task.judged_by,
            select_by=self.task.selected_by,
            by_label=self.progress["by_label"],
            description={**self.description, **fitted},
            privacy=self._spent(),
        )

    def _evaluated(self) -> str:
        """Which model of a party its figures are of; a method without the option evaluates what parties keep."""
        return "own" if "evaluate_with" in self.method.without else self.method.evaluate_with

    def _spent(self) -> dict[str, Any]:
        """The account of the run: what noise on updates and what noise of the method itself protects."""
        own = self.method.account(self.state)
        if self.private is None or self.privacy is None:
            return {} if own is None else own.to_dict()
        whole = self.private.account(self.federation.ledger)
        whole.releases += [] if own is None else own.releases
        return whole.to_dict(self.privacy.delta)

    def _save(self) -> dict[str, Any]:
        return {
            "state": self.state.save(),
            "progress": self.progress,
            "history": self.history,
            "ledger": self.federation.ledger.dump(),
            "sites": self.federation.save(),
        }

    def _restore(self, saved: Mapping[str, Any]) -> None:
        self.state.restore(saved["state"])
        self.progress = {**_progress(), **saved["progress"]}
        self.history = [(int(at), str(name), float(value)) for at, name, value in saved["history"]]
        self.federation.ledger.restore(saved["ledger"])
        self.federation.restore(saved["sites"])


def _weak(method: Callable[..., Any]) -> Callable[..., Any]:
    """A bound method that does not keep its object: with it, a run and its data would stay until a collection."""
    held = weakref.WeakMethod(method)

    def call(*given: Any) -> Any:
        if (own := held()) is None:
            raise IsthmusError("the run of this federation is gone: keep the Run while its federation is used")
        return own(*given)

    return call


def previous_of(checkpoint: Path) -> Path:
    """Return where the checkpoint before this one is kept."""
    return checkpoint.with_name(f"{checkpoint.name}-before")


def _progress() -> dict[str, Any]:
    """How far a run is that has not begun."""
    return {
        "best": None, "best_round": 0, "metrics": {}, "models": {}, "graph": {}, "coordinates": {}, "seconds": 0.0,
        "processor_seconds": 0.0, "tested": [], "groups": {}, "majority_score": None, "by_label": {},
        "validated": {}, "own_rounds": {},
    }  # fmt: skip


def _check_own_rounds(method: Method, task: Task) -> None:
    """Raise an error if parties have rounds of their own, and what is chosen on validation items of all does not."""
    if method.select_over == "each" and (task.unsupervised or isinstance(getattr(task, "threshold", None), str)):
        why = "needs labels and a threshold that is a number: set 'items' or 'parties'"
        raise IsthmusError(f"method '{method.name}': select_over = 'each' {why}")


def sites_of(
    method: Method,
    parties: Sequence[Party],
    task: Task,
    module: nn.Module,
    *,
    seed: int,
    device: torch.device | None = None,
    side_by_side: bool = True,
    first: int = 0,
    private: Private | None = None,
) -> list[Site]:
    """The sites that host parties in one process.

    Arguments:
        module: what the method trains.
        side_by_side: parties share sites, some hundred each; otherwise each has its own.
        first: position of the first party in the federation.
        private: hides each party's data in what it answers.
    """
    groups = pieces(parties, reach=reach_of(module), first=first) if side_by_side else [[party] for party in parties]
    return [method.site(each, task, module, seed=seed, device=device, private=private) for each in groups]


def over_parties(tested: Mapping[str, tuple[float, Mapping[str, float]]]) -> dict[str, dict[str, Any]]:
    """By metric the mean over parties, plain and weighted by size, and the worst party.

    >>> over_parties({"a": (10, {"test_loss": 1.0}), "b": (30, {"test_loss": 2.0})})["test_loss"]
    {'mean': 1.5, 'weighted': 1.75, 'worst': 2.0, 'worst_party': 'b', 'worst_items': 30, 'parties': 2}
    """
    found: dict[str, dict[str, Any]] = {}
    for metric in dict.fromkeys(name for _, metrics in tested.values() for name in metrics):
        values = {party: (size, metrics[metric]) for party, (size, metrics) in tested.items() if metric in metrics}
        sign = -1 if metric_of(metric).smaller_is_better else 1
        worst = min(values, key=lambda party: sign * values[party][1])
        total = sum(size for size, _ in values.values())
        found[metric] = {
            "mean": math.fsum(value for _, value in values.values()) / len(values),
            "weighted": math.fsum(size * value for size, value in values.values()) / total,
            "worst": values[worst][1],
            "worst_party": worst,
            "worst_items": values[worst][0],
            "parties": len(values),
        }
    return found
