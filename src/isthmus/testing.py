"""The conformance suite: checks that every method must pass, yours like the built-in ones.

>>> from isthmus.methods.fedavg import FedAvg
>>> check_method(FedAvg(rounds=3), checks=["same_seed_same_result"])
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from isthmus.data import rows
from isthmus.data.cohort import Block, Cohort
from isthmus.data.level import Level
from isthmus.data.partition import Partition
from isthmus.data.party import SPLITS, Party
from isthmus.data.pool import DataSet
from isthmus.data.pooled import pool_parties
from isthmus.data.schema import Schema
from isthmus.errors import IsthmusError, TooFewAnswers, did_you_mean
from isthmus.federation import wire
from isthmus.federation.answers import Reply
from isthmus.federation.ledger import DELIVERY, Ledger
from isthmus.federation.local import LocalTransport
from isthmus.federation.robust import Aggregation
from isthmus.federation.site import Site
from isthmus.federation.transport import Command, Each
from isthmus.methods.base import Averaging, Method
from isthmus.methods.training import LocalTraining
from isthmus.nn.encoders import Encoder
from isthmus.nn.per_party import PerParty
from isthmus.study.loop import Run, RunResult
from isthmus.study.setup import extended, module_for, task_for
from isthmus.tasks.clustering import GraphClustering
from isthmus.tasks.links import LinkPrediction

TOLERANCE = 1e-5
Labels = Literal["classes", "multilabel", "regression"]
"""Kinds of labels that generated parties can have."""


class Subject:
    """A method with its parties and encoder, that checks run in several ways."""

    def __init__(self, method: Method, parties: Sequence[Party], encoder: Encoder, seed: int = 0) -> None:
        self.method, self.parties, self.encoder, self.seed = method, list(parties), encoder, seed
        self.task = task_for(parties)
        if method.unsupervised:
            self.task = GraphClustering().complete_from(self.task)

    def run(self, *, parties: Sequence[Party] | None = None, seed: int | None = None, **options: Any) -> Run:
        parties = self.parties if parties is None else parties
        seed = self.seed if seed is None else seed
        module = module_for(self.encoder, parties, self.task, seed)
        return Run(options.pop("method", self.method), parties, self.task, module, seed=seed, **options)

    @cached_property
    def usual(self) -> RunResult:
        """The result of a run without further options, which several checks read."""
        return self.run().go()

    @cached_property
    def record(self) -> Recording:
        """Such a run with a record of everything that left the parties."""
        return Recording(self)


def check_method(
    method: Method | type[Method],
    parties: Sequence[Party] | None = None,
    *,
    encoder: Encoder | None = None,
    checks: Sequence[str] | None = None,
) -> None:
    """Run the conformance suite; the first check that fails raises an AssertionError with its name.

    Arguments:
        method: a method with few rounds (4 are enough), or a class, which then runs 4.
        parties: small parties; default: generated parties of every level that the method supports.
        encoder: default: the method's own, with 8 hidden features.
        checks: names of the checks to run; default: all of `CHECKS`.
    """
    if isinstance(method, type) and issubclass(method, Method):
        method = method(rounds=4, **method.soon)
    if not isinstance(method, Method):
        raise IsthmusError(f"check_method: method is {method!r}: give a Method, or its class")
    if unknown := next((name for name in checks or () if name not in CHECKS), None):
        raise IsthmusError(f"check_method: there is no check '{unknown}': {did_you_mean(unknown, CHECKS)}")
    subjects = [(small_parties(level), level) for level in method.levels] if parties is None else [(parties, "")]
    if parties is None and encoder is None and not method.unsupervised:
        subjects.append((small_parties(method.levels[0], typed=True), method.levels[0]))
    for held, level in subjects:
        subject = Subject(method, held, encoder or _encoder_of(method, held))
        if held[0].schema is not None and not method.typed:
            refuses_typed_graphs(subject)
            continue
        for name in CHECKS if checks is None else checks:
            try:
                with _quiet(), _one_thread():
                    CHECKS[name](subject)
            except AssertionError as error:
                called = method.name or type(method).__name__
                kind = f"{'typed ' * (held[0].schema is not None)}{level or held[0].level}"
                raise AssertionError(f"method '{called}' on {kind}s fails '{name}': {error}") from error


def _encoder_of(method: Method, parties: Sequence[Party]) -> Encoder:
    return Encoder.named(method.encoder if parties[0].schema is None else "rgcn")(hidden=8)


def refuses_typed_graphs(subject: Subject) -> None:
    """A method that does not declare `typed` refuses typed graphs in one line, before anything runs."""
    reason = ""
    try:
        subject.run()
    except IsthmusError as error:
        reason = str(error)
    assert "one type of nodes" in reason, f"typed graphs are not refused but end in: {reason or 'a run'}"


def small_parties(level: Level, parties: int = 4, labels: Labels = "classes", *, typed: bool = False) -> list[Party]:
    """Generate parties for quick checks.

    Arguments:
        labels: one class per item; or three yes-or-no labels per item, or three real numbers, with some missing.
        typed: nodes and edges have types, and some edges features.
    """
    if typed:
        return [_typed(party, at) for at, party in enumerate(small_parties(level, parties, labels))]
    if level == "graph":
        graphs = DataSet.named("motifs").read({"graphs": 12 * parties}, "motifs")
        cut = Partition.named("random")().cut(graphs.load(0), parties, 0)
    else:
        banks = DataSet.named("banks").read({"parties": parties, "nodes": 40 * parties}, "banks").load(0)
        given = Partition.named("given")()
        if level == "pair":
            task = LinkPrediction(val=0.2, test=0.2)
            return task.make_parties(banks, lambda pool: given.cut(pool, parties, 0), 0)
        cut = given.cut(banks, parties, 0)
        cut = [_with_labelled_edges(party) for party in cut] if level == "edge" else cut
    return cut if labels == "classes" else [_with_task_labels(party, labels) for party in cut]


def _typed(party: Party, at: int) -> Party:
    """Return the party with two nodes of another type in each graph, which all nodes are joined to both ways."""
    if party.level == "graph":
        block = Cohort((party,))
        graphs = [_typed_graph(block.graphs_of(torch.tensor([item]))) for item in range(party.items)]
        for graph, y in zip(graphs, party.graph.y, strict=True):
            graph.y = y[None]
        masks: dict[str, Any] = {split: getattr(party, split) for split in SPLITS}
        return Party.of_graphs(party.name, graphs, ids=party.ids, **masks)
    graph, border = _typed_graph(Cohort((party,)).block), party.border
    if party.level == "node":
        graph["item"].y = party.graph.y
        for split in SPLITS:
            graph["item"][f"{split}_mask"] = getattr(party, split)
    if border is not None:
        kind = Schema.of([graph], whole=True).edge_types.index(("item", "to", "item"))
        assert party.ids is not None
        ends = torch.stack([border.outer, party.ids[border.inner]])  # plain edges run both ways, typed ones do not
        both = border.where(torch.arange(len(border)).repeat(2))
        length, leaving = ends.flatten().remainder(7)[:, None] / 7, torch.arange(2).repeat_interleave(len(border)) > 0
        border = replace(both, edge_type=torch.full_like(both.inner, kind), edge_attr=length, leaving=leaving)
    ids = None if party.ids is None else {"item": party.ids, "shop": 10**6 + 2 * at + torch.arange(2)}
    if party.level == "node":
        return Party.of_graph(party.name, graph, ids=ids, border=border)
    labelled = graph["item", "to", "item"]
    labelled.edge_label, labelled.edge_label_index = party.graph.y, party.graph.edge_label_index
    labelled.edge_label_attr = party.graph.edge_label_attr
    masks = {split: getattr(party, split) for split in SPLITS}
    return Party.of_edges(party.name, graph, ids=ids, border=border, **masks)


def _with_labelled_edges(party: Party) -> Party:
    """Return the party with labels at every second edge, and at as many pairs without regard to edges."""
    own, nodes = party.graph.edge_index[:, ::2], party.nodes
    labelled = torch.cat([own, (own * 7 + 3).remainder(nodes)], dim=1)
    at, graph = torch.arange(labelled.size(1)), copy(party.graph)
    graph.edge_label_index, graph.edge_label = labelled, (party.graph.y[labelled] * torch.tensor([[1], [2]])).sum(0) % 3
    graph.edge_label_attr = (at % 5)[:, None] / 5
    masks: dict[str, Any] = {split: at % 4 == part for part, split in enumerate(SPLITS)}
    return Party.of_edges(party.name, graph, ids=party.ids, border=party.border, **masks)


def _typed_graph(block: Block) -> HeteroData:
    graph = HeteroData()
    graph["item"].x, graph["shop"].num_nodes = rows.to_dense(block.x), 2
    graph["item", "to", "item"].edge_index = block.edge_index
    graph["item", "to", "item"].edge_attr = block.edge_index.sum(0).remainder(7)[:, None] / 7
    item = torch.arange(block.nodes)
    graph["item", "at", "shop"].edge_index = torch.stack([item, item % 2])
    graph["shop", "has", "item"].edge_index = torch.stack([item % 2, item])
    return graph


def _with_task_labels(party: Party, labels: Labels) -> Party:
    """Return the party with labels for three tasks; every fifth label and all of one training item are missing."""
    y = (party.graph.y[:, None] == torch.arange(3)).float()
    y = y if labels == "multilabel" else y - 0.5 * party.graph.y[:, None]
    y.view(-1)[::5] = float("nan")
    y[party.train.nonzero().flatten()[:1]] = float("nan")
    graph = party.graph.clone()
    graph.y = y
    return replace(party, graph=graph)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread: with more, some of torch's kernels sum in another order each time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log, because the checks cause errors on purpose."""
    log = logging.getLogger("isthmus")
    before = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(before)


def cohort_law(subject: Subject) -> None:
    """One cohort of K parties gives the same weights as K cohorts of one party."""
    method = subject.method
    if isinstance(local := getattr(method, "local", None), LocalTraining):
        # Adam would hide a gradient that is wrong by a factor, such as one over the number of parties
        method = method.model_copy(update={"local": local.model_copy(update={"optimizer": "sgd"})})
    together = subject.run(method=method).go()
    apart = subject.run(method=method, side_by_side=False).go()
    _assert_close(together.models, apart.models, "weights of one cohort and of cohorts of one party")
    assert together.chosen_round == apart.chosen_round, "one cohort and cohorts of one party choose different rounds"


def wire_equals_in_process(subject: Subject) -> None:
    """Encoding payloads to bytes and back changes no bit of the result."""
    _assert_same(subject.usual, subject.run(wire=True).go(), "payloads as bytes and as tensors")


def same_seed_same_result(subject: Subject) -> None:
    """The same seed gives the same result, bit for bit; another seed gives other weights."""
    _assert_same(subject.usual, subject.run().go(), "two runs with one seed")
    if subject.method.role == "constant":
        return  # it has no weights that a seed could draw
    other = subject.run(seed=subject.seed + 1).go()
    assert not _equal(subject.usual.models, other.models), "another seed gives the same weights: the seed does nothing"


def resume_equals_uninterrupted(subject: Subject) -> None:
    """A run that was stopped after any round and resumed gives the same result, bit for bit."""
    whole = subject.usual
    for stop_after in range(1, whole.rounds):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "checkpoint"

            def stop(at: int, metrics: Mapping[str, float], last: int = stop_after) -> None:
                if at > last:
                    raise KeyboardInterrupt

            with contextlib.suppress(KeyboardInterrupt):
                subject.run(checkpoint=file, save_every=0.0, on_round=stop).go()
            assert file.exists(), f"no checkpoint was written before round {stop_after + 1}"
            resumed = subject.run(checkpoint=file, save_every=0.0).go()
        _assert_same(whole, resumed, f"an uninterrupted run and one resumed after round {stop_after}")


def test_labels_decide_nothing(subject: Subject) -> None:
    """Wrong test labels change neither what training sends nor which round is chosen."""
    clean, poisoned = subject.record, Recording(subject, parties=[_poisoned(p) for p in subject.parties])
    _assert_equal_trees(clean.result.models, poisoned.result.models, "weights with clean and poisoned test labels")
    assert clean.result.chosen_round == poisoned.result.chosen_round, "the choice of the round depends on test labels"
    assert clean.training == poisoned.training, "what parties send in training depends on test labels"


test_labels_decide_nothing.__dict__["__test__"] = False  # a check, not a test that pytest should collect


def parties_without_test_items_count_for_nothing(subject: Subject) -> None:
    """Where one party has no test items, all else stays as it is: the weights, the round, and others' test metrics."""
    first, *others = subject.parties
    if first.level == "pair":
        return  # links that are held out for testing are not drawn as pairs without a link
    none = [replace(first, test=torch.zeros_like(first.test)), *others]
    usual, without = subject.usual, subject.run(parties=none).go()
    _assert_equal_trees(usual.models, without.models, "weights with and without a party's test items")
    assert usual.chosen_round == without.chosen_round, "the choice of the round depends on test items"
    kept = {party: metrics for party, metrics in usual.parties.items() if party != first.name}
    assert kept == {party: each for party, each in without.parties.items() if party != first.name}, (
        "another party's test metrics depend on a party's test items"
    )


def evaluation_draws_nothing(subject: Subject) -> None:
    """Evaluating a model again, with other draws at hand, gives the same counts: no dropout is left on.

    Methods that train a model in order to evaluate it are not checked.
    """
    subject.run(transport=_Twice([_site(subject, subject.method, subject.parties)])).go()


def weights_travel_or_are_kept(subject: Subject) -> None:
    """Training changes every trainable weight, and every weight is in a payload or among what the site keeps."""
    if subject.method.role == "constant":
        return  # it trains no model
    record = subject.record
    module = _module(subject, subject.method, subject.parties)
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        recorded = any(_is_weight(name, path) for path in record.fields | record.kept)
        assert recorded, f"weight '{name}' is neither sent nor kept"
        for path, value in wire.flatten(record.result.models):
            trained = not _is_weight(name, path) or not torch.equal(value.float(), parameter.detach().float())
            assert trained, f"weight '{name}' ({path}) is never trained"


def _is_weight(name: str, path: str) -> bool:
    return path == name or path.endswith(f"/{name}")


def calls_are_declared(subject: Subject) -> None:
    """No party is asked for an action more often than `calls` says: in a federation it answers no more."""
    declared = subject.method.calls(_module(subject, subject.method, subject.parties))
    for action, count in calls_in(subject.usual.ledger).items():
        most = declared.get(action, 0)
        assert count <= most, f"action '{action}' was called {count} times, `calls` says {most} at most"


def calls_in(ledger: Ledger) -> Counter[str]:
    """How often each action was called at the party that answered it most; deliveries are no calls."""
    calls = [entry for entry in ledger.entries if not entry.action.endswith(DELIVERY)]
    of_party = Counter((entry.action, party) for entry in calls for party in entry.parties)
    most: Counter[str] = Counter()
    for (action, _), count in of_party.items():
        most[action] = max(most[action], count)
    return most


def aggregations_run_or_refuse(subject: Subject) -> None:
    """A method that averages runs with every aggregation, or refuses it with an error that names the option."""
    if not isinstance(subject.method, Averaging):
        return
    for name in Aggregation.known():
        method = subject.method.model_copy(update={"aggregate": {"name": name}})
        try:
            models = subject.run(method=method).go().models
        except IsthmusError as error:
            if name in str(error) or "aggregate" in str(error):
                continue
            raise AssertionError(f"with aggregate = '{name}' it stops without naming the option: {error}") from error
        for path, value in wire.flatten(models):
            assert bool(torch.isfinite(value).all()), f"with aggregate = '{name}' weight '{path}' is not finite"


def faults_are_named(subject: Subject) -> None:
    """A party that fails, or answers with NaN, is named; the run goes on or stops as the method's quorum says."""
    if subject.method.role == "pooled":
        return  # all data are in one place, so no party can be missing
    victim = subject.parties[0].name
    lenient = subject.method.model_copy(update={"quorum": 0.0})
    strict = subject.method.model_copy(update={"quorum": 1.0})
    with_nan = [_with_nan(subject.parties[0]), *subject.parties[1:]]
    faults = (("NaN", with_nan, None), ("a failure", subject.parties, victim))
    for what, parties, failing in faults[subject.method.role == "constant" :]:  # which reads no features
        run = subject.run(method=lenient, parties=parties, transport=_transport(subject, lenient, parties, failing))
        try:
            result = run.go()
        except IsthmusError as error:
            if subject.method.everyone != "never" and victim in str(error):
                continue
            fault = "the error names no party" if subject.method.everyone != "never" else "the run stopped without need"
            raise AssertionError(f"{what} at '{victim}': {fault}: {error}") from error
        rows = list(result.ledger.rows())
        named = {row["party"] for row in rows if row["status"] == "failed"}
        assert named == {victim}, f"{what} at '{victim}': the ledger names {sorted(named) or 'nobody'}"
        used = _used_in_training(rows, victim)
        assert not used, f"{what} at '{victim}': action '{used}' used an answer of the failed party"
        for path, value in wire.flatten(result.models):
            if victim not in path:
                assert bool(torch.isfinite(value).all()), f"{what} at '{victim}' reached weight '{path}'"
        run = subject.run(method=strict, parties=parties, transport=_transport(subject, strict, parties, failing))
        message = _stopped(run)
        assert message, f"{what} at '{victim}' did not stop a run whose quorum is all parties"
        assert victim in message, f"{what} at '{victim}': the error does not name the party: {message}"


def ledger_counts_every_byte(subject: Subject) -> None:
    """The ledger's byte counts of every party equal the sizes of its encoded payloads."""
    record = subject.record
    sent: dict[str, int] = {}
    received: dict[str, int] = {}
    for row in record.result.ledger.rows():
        sent[row["party"]] = sent.get(row["party"], 0) + row["sent"]
        received[row["party"]] = received.get(row["party"], 0) + row["received"]
    assert sent == record.sent, f"sent: the ledger has {sent}, the payloads are {record.sent}"
    assert received == record.received, f"received: the ledger has {received}, the payloads are {record.received}"


CHECKS: dict[str, Callable[[Subject], None]] = {
    check.__name__: check
    for check in (
        cohort_law,
        wire_equals_in_process,
        same_seed_same_result,
        resume_equals_uninterrupted,
        test_labels_decide_nothing,
        parties_without_test_items_count_for_nothing,
        evaluation_draws_nothing,
        weights_travel_or_are_kept,
        calls_are_declared,
        aggregations_run_or_refuse,
        faults_are_named,
        ledger_counts_every_byte,
    )
}
"""The checks by name."""


class _Twice(LocalTransport):
    """A transport that asks for every evaluation twice."""

    def send(self, command: Command) -> list[Reply]:
        if command.action != "evaluate" or command.do != "answer":
            return super().send(command)
        start = PerParty.start_training
        with mock.patch.object(PerParty, "start_training", autospec=True, side_effect=start) as trains:
            replies = super().send(command)
        if not trains.called:  # what trains in order to evaluate may draw
            for one, other in zip(replies, super().send(command), strict=True):
                for at, party in enumerate(one.parties):
                    same = _equal(one.payload(at), other.payload(at))
                    assert same, f"party '{party}' evaluates one model twice and finds other counts"
        return replies


class _Recorder(LocalTransport):
    """A transport that encodes every payload and records sizes, field names and what training sent."""

    def __init__(self, sites: Sequence[Site]) -> None:
        super().__init__(sites)
        self.sent = dict.fromkeys(self.parties, 0)
        self.received = dict.fromkeys(self.parties, 0)
        self.training: list[tuple[str, str, bytes]] = []
        self.fields: set[str] = set()

    def send(self, command: Command) -> list[Reply]:
        if command.do == "answer":
            self._count_requests(command)
        if command.do == "deliver":
            self._count_mail(command.payload)
        replies = super().send(replace(command, sum_only=False))
        for reply in replies:
            for at, party in enumerate(reply.parties):
                for payload in list(reply.letters[at].values()) if reply.letters else [reply.payload(at)]:
                    data = wire.encode(payload)
                    self.sent[party] += len(data)
                    self.fields |= {name for name, _ in wire.flatten(payload)}
                    if command.action != "evaluate":
                        self.training.append((command.action, party, data))
        return replies

    def _count_requests(self, command: Command) -> None:
        for party in command.of:
            payload = command.payload.payloads[party] if isinstance(command.payload, Each) else command.payload
            self.received[party] += len(wire.encode(payload))
            self.fields |= {name for name, _ in wire.flatten(payload)}

    def _count_mail(self, mail: Mapping[str, Mapping[str, Any]]) -> None:
        for party, payload in mail.items():
            letters = payload.values() if all(isinstance(v, Mapping) for v in payload.values()) else [payload]
            self.received[party] += sum(len(wire.encode(letter)) for letter in letters)


class Recording:
    """One run, with a record of everything that left the parties."""

    def __init__(self, subject: Subject, parties: Sequence[Party] | None = None) -> None:
        parties = subject.parties if parties is None else parties
        site = _site(subject, subject.method, parties)
        transport = _Recorder([site])
        self.result = subject.run(parties=parties, transport=transport).go()
        self.sent, self.received = transport.sent, transport.received
        self.training, self.fields = transport.training, transport.fields
        self.kept = {name for saved in site.save().values() for name, _ in wire.flatten(_plain_names(saved["kept"]))}


def _plain_names(kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return kept values under their names in a payload: `control:conv.bias` becomes `conv.bias`."""
    return {
        name.split(":", 1)[-1]: _plain_names(value) if isinstance(value, Mapping) else value
        for name, value in kept.items()
    }


def _site(subject: Subject, method: Method, parties: Sequence[Party]) -> Site:
    hosted = [pool_parties(parties)] if method.role == "pooled" else list(parties)
    return method.site(hosted, subject.task, _module(subject, method, parties), seed=subject.seed)


def _module(subject: Subject, method: Method, parties: Sequence[Party]) -> nn.Module:
    return extended(method, module_for(subject.encoder, parties, subject.task, subject.seed), subject.seed)


def _transport(subject: Subject, method: Method, parties: Sequence[Party], failing: str | None) -> LocalTransport:
    """Return a transport of one cohort; `failing` raises when it draws a random number, or else at the action's end."""
    site = _site(subject, method, parties)
    draws, perform = site.draws, site.perform
    failed = False

    def failing_draws(*purpose: object) -> Any:
        nonlocal failed
        if failing in site.cohort.names:
            failed = True
            raise RuntimeError("disk on fire")
        return draws(*purpose)

    def failing_perform(function: Any, request: Any, positions: tuple[int, ...]) -> Reply:
        nonlocal failed
        failed = False
        reply = perform(function, request, positions)
        if failing in reply.parties and not failed:
            raise RuntimeError("disk on fire")
        return reply

    # patches this one object, not its class
    site.draws, site.perform = failing_draws, failing_perform  # type: ignore[method-assign]
    return LocalTransport([site])


def _used_in_training(rows: Sequence[Mapping[str, Any]], victim: str) -> str:
    """Return an action in which the failed party answered in training, unless the ledger marks it as failed there."""
    own = [row for row in rows if row["party"] == victim and row["action"] != "evaluate"]
    if any(row["status"] == "failed" for row in own):
        return ""
    return next((row["action"] for row in own if row["round"] > 0 and row["sent"] and row["fields"]), "")


def _stopped(run: Run) -> str:
    """Return the error of a run that too few parties answered, or an empty text."""
    try:
        run.go()
    except TooFewAnswers as error:
        return str(error)
    return ""


def _poisoned(party: Party) -> Party:
    """Return the party with every test label changed and none missing."""
    y = party.graph.y.clone()
    if y.is_floating_point():
        known = y.nan_to_num(nan=0.0)
        binary = bool(((known == 0) | (known == 1)).all())
        y[party.test] = (1.0 - known if binary else known + 1.0)[party.test]
    else:
        y[party.test] = (y[party.test] + 1) % max(int(y.max()) + 1, 2)
    graph = party.graph.clone()
    graph.y = y
    return replace(party, graph=graph)


def _with_nan(party: Party) -> Party:
    graph = party.graph.clone()
    graph.x = torch.full((party.nodes, party.features), float("nan"))
    return replace(party, graph=graph)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Mapping):
        return isinstance(b, Mapping) and a.keys() == b.keys() and all(_equal(a[name], b[name]) for name in a)
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and torch.equal(a, b)
    return bool(a == b)


def _assert_equal_trees(a: Any, b: Any, what: str) -> None:
    assert _equal(a, b), f"{what} differ"


def _assert_same(a: RunResult, b: RunResult, what: str) -> None:
    _assert_equal_trees(a.models, b.models, f"weights of {what}")
    assert a.history == b.history, f"histories of {what} differ"
    assert list(a.ledger.rows()) == list(b.ledger.rows()), f"ledgers of {what} differ"
    assert (a.chosen_round, a.rounds) == (b.chosen_round, b.rounds), f"rounds of {what} differ"


def _assert_close(a: Mapping[str, Any], b: Mapping[str, Any], what: str) -> None:
    ours, theirs = dict(wire.flatten(a)), dict(wire.flatten(b))
    assert ours.keys() == theirs.keys(), f"{what} have different names"
    for name, value in ours.items():
        gap = float((value.double() - theirs[name].double()).abs().max()) if value.numel() else 0.0
        assert gap <= TOLERANCE, f"{what} differ by {gap:.1e} at '{name}'"


__all__ = ["CHECKS", "check_method", "small_parties"]
