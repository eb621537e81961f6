"""The set-up of a federation: before a method runs, the parties agree on the task and on one encoding of features.

The set-up uses the same verbs as a method, so it has a ledger too. The server learns the settings that must be equal in
every `party.toml`, the kind of labels, and sums over all parties that determine the encoding. For a category column
without declared values it also learns the keyed hashes, or pseudonyms, of each party's values. Where ids are matched
obliviously, sealed lists go round the parties first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from isthmus.data.folder.columns import Column, Totals
from isthmus.data.folder.encoding import Encoding, first_totals, second_totals
from isthmus.data.folder.reading import Contents
from isthmus.data.ids import PLAIN, Hashing, Pseudonyms
from isthmus.data.schema import Inputs
from isthmus.data.smiles import structural_columns
from isthmus.deploy.introductions import (
    KINDS,
    check_lists,
    check_shares,
    compare_introductions,
    compare_widths,
    items_level,
    read_columns,
    read_database,
    read_introduction,
    shares_values,
)
from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.federation.actions import Binding
from isthmus.federation.answers import Answer, Mail, Reply
from isthmus.federation.bounds import Introduced, ids_problem
from isthmus.federation.ledger import Verb
from isthmus.federation.transport import Each
from isthmus.federation.verbs import Federation
from isthmus.privacy.options import Privacy
from isthmus.study.config import Study
from isthmus.study.setup import check_kind, with_options
from isthmus.tasks.base import Task

if TYPE_CHECKING:  # it needs an extra
    from isthmus.deploy.matching import Match

SET_UP: dict[str, Verb] = {
    "introduce": "ask", "match": "exchange", "matched": "ask", "values": "ask", "first": "total", "second": "total",
    "encode": "ask",
}  # fmt: skip
"""The actions of the set-up, and the verb that each answers."""
COLUMN_STEPS = ("values",)
"""Those that are called once for each column of their kind; the others are called once, and `match` once a party."""

ONE = Introduced(1, 1, 1)
"""What each party introduces in a private federation, where all count the same."""

Step = Literal["first", "second"]
STEPS: tuple[Step, ...] = ("first", "second")
"""The sums of columns, in order: the second ones need the first."""


@dataclass(frozen=True)
class Agreement:
    """What the parties agreed on.

    Arguments:
        agreed: the settings that are equal in every `party.toml`.
        kind: the kind of labels, one of `KINDS`.
        features: width of the encoded features.
        totals: for each column in order, the sums that determine its encoding.
        introduced: by party how much it holds.
    """

    agreed: Mapping[str, Any]
    kind: str
    features: int
    totals: Sequence[Totals] = field(default=(), repr=False)
    introduced: Mapping[str, Introduced] = field(default_factory=dict, repr=False)

    @classmethod
    def of_party(cls, contents: Contents, kind: str, totals: Sequence[Totals]) -> Agreement:
        """What was agreed on, as a party knows it from its own folder; the server adds only kind and sums."""
        own = _label_kind(contents.y)
        if kind not in KINDS[KINDS.index(own) :]:
            raise IsthmusError(f"refused: the server says that labels are of kind '{kind}', here they are '{own}'")
        return cls(contents.settings.common, kind, 0, totals)

    def task(self, named: Task | None, options: Mapping[str, Any]) -> Task:
        """Return the named task, completed from the parties' labels, or the task that the labels ask for.

        Arguments:
            options: of the task, if none is named.
        """
        due = self._task_of_labels()
        if named is None:
            return with_options(due, options, self.labels)
        if named.level == "pair":
            raise IsthmusError(f"task '{named.name}' needs all parties' graphs: run it as a study, with isthmus run")
        if named.level != due.level:
            raise IsthmusError(f"task '{named.name}' is for {named.level}s, the parties hold {due.level}s")
        check_kind(named, due)
        return named.complete_from(due, self.labels)

    @property
    def inputs(self) -> Inputs:
        """What a model may read of the parties' data."""
        database, encoding = read_database(self.agreed), self._encoding
        if database is None:
            molecules = self.agreed["smiles.features"]
            structural = encoding.structural() if molecules is None else structural_columns(molecules)
            return Inputs(self.features, structural=tuple(structural.tolist()))
        schema = encoding.schema(database)
        return Inputs(self.features, schema.edge_width, schema, encoding.label_width(database))

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes, or of the tasks."""
        return tuple(self.agreed["labels"] or self.agreed["tasks"] or ())

    def encoding(self) -> dict[str, Any]:
        """How columns become features, as plain values."""
        return {**self._encoding.to_dict(), "molecules": self.agreed["smiles.features"]}

    @property
    def _encoding(self) -> Encoding:
        columns = read_columns(self.agreed)
        return Encoding(columns, dict(zip(columns, self.totals, strict=True)))

    def _task_of_labels(self) -> Task:
        count = len(self.agreed["labels"] or self.agreed["tasks"] or ()) or int(self.agreed["classes"] or 0)
        options = {"classes": max(2, count)} if self.kind == "classification" else {"tasks": count}
        return Task.named(f"{items_level(self.agreed)}-{self.kind}").read(options, "task")


def agree(federation: Federation, largest_share: float = 1.0, *, matching: bool = False) -> Agreement:
    """Do the set-up as the server and return the agreement.

    Arguments:
        matching: parties match ids, and values of categories, if these mean something to other parties.
        largest_share: the largest share of all items that one party may introduce.
    """
    found = {party: read_introduction(party, answer) for party, answer in federation.ask("introduce").items()}
    settings = compare_introductions(found)
    check_shares(found, largest_share)
    kind = max((each.kind for each in found.values()), key=KINDS.index)
    introduced = {party: each.size for party, each in found.items()}
    federation.transport.introduced = introduced
    columns = read_columns(settings)
    if matching and shares_values(settings):
        check_lists(found, sum(column.has_keyed_totals for column in columns.values()))
        sizes = torch.tensor([found[party].matched for party in sorted(found)])
        for step in range(len(found)):
            federation.exchange("match", {"step": step, "sizes": sizes})
        federation.ask("matched")
    federation.checks = {step: partial(_sums_problem, columns, step) for step in STEPS}
    federation.checks["values"] = lambda answer, own: ids_problem(answer.get("ids"), own.counted)
    totals: list[dict[str, Tensor]] = [{} for _ in columns]
    for at, column in enumerate(columns.values()):
        if column.has_keyed_totals:
            totals[at] = {"ids": federation.agree("values", {"column": at}).ids}
    for sums in STEPS:
        counted = [at for at, column in enumerate(columns.values()) if column.has_totals(sums)]
        if counted:
            request = {"known": known} if (known := totals_to_payload(totals)) else {}
            total = federation.total(sums, request)
            for at in counted:
                totals[at] = {**totals[at], **total.sum(str(at))}
    known = totals_to_payload(totals)
    widths = federation.ask("encode", {"known": known} if known else {})
    features = compare_widths({party: answer.get("features") for party, answer in widths.items()})
    return Agreement(settings, kind, features, totals, introduced)


def matches_ids(study: Study, parties: Sequence[str]) -> bool:
    """Whether the parties of a study match what they share obliviously; see `check_private` for private ones."""
    return study.protect.matching == "oblivious" and len(parties) > 1 and study.named_privacy() is None


def _sums_problem(columns: Mapping[str, Column], step: Step, answer: Mapping[str, Any], introduced: Introduced) -> str:
    """Say what is wrong with what parties add to the sums of the columns."""
    due = {str(at): name for at, name in enumerate(columns) if columns[name].has_totals(step)}
    if answer.keys() != due.keys():
        return "sums of other columns than those that need them"
    for at, name in due.items():
        if why := columns[name].totals_problem(step, answer[at], introduced.counted):
            return f"column '{name}': {why}"
    return ""


class SetUpHandler:
    """The party's side of the set-up.

    Arguments:
        contents: the contents of the party's files.
        hashing: how ids and values of categories become numbers.
        privacy: what the study hides: of items no sizes and no sums of columns leave, of edges no sums of columns that
            follow from edges.
        match: the party's part of a matching, before which nothing leaves that has ids; None if none is due.
        keep: gets the pseudonyms of a matching, and returns the contents with them.
    """

    def __init__(
        self,
        contents: Contents,
        hashing: Hashing = PLAIN,
        *,
        privacy: Privacy | None = None,
        match: Match | None = None,
        keep: Callable[[Pseudonyms], Contents] | None = None,
    ) -> None:
        self.contents, self.privacy = contents, privacy
        self.hashing, self.match, self.keep = hashing, match, keep
        self.columns = contents.settings.feature_columns()
        self.answered = [0]

    def calls(self) -> dict[str, int]:
        """How often the set-up calls each step, at most."""
        keyed = sum(column.has_keyed_totals for column in self.columns.values())
        due = 0 if self.match is None else self.match.steps
        return {step: keyed if step in COLUMN_STEPS else 1 for step in SET_UP} | {"match": due, "matched": min(due, 1)}

    def binding(self, name: str) -> Binding:
        if name not in SET_UP:
            raise IsthmusError(f"the set-up has no step '{name}': use one version of isthmus at server and parties")
        return Binding((SET_UP[name],), protected=name == "match")

    def least(self, name: str, request: wire.Payload | Each) -> int:
        return 1

    def answer(self, name: str, request: wire.Payload | Each, of: Sequence[str]) -> Reply:
        if self.privacy is not None and name in ("values", *STEPS):
            step: Any = name
            for key, column in self.columns.items():
                hidden = self.privacy.hides_items or column.structural
                if hidden and (column.has_keyed_totals or column.has_totals(step)):
                    raise IsthmusError(
                        f"refused: column '{key}' is encoded by sums over rows of all parties, which no noise covers: "
                        "give it in party.toml an encoding without them"
                    )
        actions: dict[str, Callable[[wire.Payload], dict[str, Any]]] = {
            "introduce": self._introduce, "matched": self._matched, "values": self._values, "first": self._first,
            "second": self._second, "encode": self._encode,
        }  # fmt: skip
        if name not in (*actions, "match") or isinstance(request, Each):
            raise IsthmusError(f"the set-up has no step '{name}': use one version of isthmus at server and parties")
        if self.match is not None and not self.match.done and name not in ("introduce", "match", "matched"):
            raise IsthmusError(f"refused: '{name}' is due after ids are matched")
        if name == "match":
            reply = Reply.of(tuple(of), Mail([self._match(request)]))
            self.answered = [self.answered[0] + 1]
            return reply
        self.answered = [self.answered[0] + 1]
        fields = actions[name](request)
        return Reply.of(tuple(of), Answer({field: _stack_one(value) for field, value in fields.items()}))

    def deliver(self, name: str, mail: Mapping[str, Any]) -> None:
        if name != "match":
            raise IsthmusError("nothing is delivered in the set-up but lists to match")
        for letters in mail.values():
            self._due_match().take(letters)

    def letter_problems(self, name: str, mail: Mapping[str, Any], norm: float) -> dict[str, str]:
        if name != "match":
            return {}
        found = {sender: self._due_match().letter_problem(sender, letter) for sender, letter in mail.items()}
        return {sender: why for sender, why in found.items() if why}

    def save(self) -> dict[str, Any]:
        return {}

    def models(self) -> dict[str, Any]:
        return {}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """There is nothing to go on from."""

    def _introduce(self, request: wire.Payload) -> dict[str, Any]:
        settings = {**self.contents.settings.common, "hashed": self.contents.hashed}
        kind, size = _label_kind(self.contents.y), introduced_of(self.contents)
        if self.privacy is not None and self.privacy.hides_items:  # how much a party holds is a release
            size = Introduced(size.nodes, size.nodes, size.nodes) if self.privacy.tells_nodes else ONE
        return {
            "agreed": json.dumps(settings),
            "kind": kind,
            "items": size.items,
            "labels": size.labels,
            "nodes": size.nodes,
            "rows": size.rows,
            **({} if self.match is None else {"matched": self.match.size}),
        }

    def _match(self, request: wire.Payload) -> dict[str, wire.Payload]:
        match, sizes = self._due_match(), request["sizes"].tolist()
        if len(sizes) != len(match.parties):
            raise IsthmusError("refused: the server announces other lists to match than the parties have")
        to, letter = match.letter(int(request["step"]), dict(zip(match.parties, sizes, strict=True)))
        return {to: letter}

    def _matched(self, request: wire.Payload) -> dict[str, Any]:
        match = self._due_match()
        assert self.keep is not None
        self.hashing = match.finish()
        self.contents = self.keep(self.hashing)
        return {}

    def _due_match(self) -> Match:
        if self.match is None or self.match.done:
            raise IsthmusError("refused: no matching is due")
        return self.match

    def _values(self, request: wire.Payload) -> dict[str, Any]:
        name, column = list(self.columns.items())[int(request["column"])]
        return {"ids": first_totals(name, column, self.contents, self.hashing)["ids"]}

    def _first(self, request: wire.Payload) -> dict[str, Any]:
        return {
            str(at): first_totals(name, column, self.contents, self.hashing)
            for at, (name, column) in enumerate(self.columns.items())
            if column.has_totals("first")
        }

    def _second(self, request: wire.Payload) -> dict[str, Any]:
        known = totals_from_payload(request.get("known", {}), len(self.columns))
        return {
            str(at): second_totals(name, column, self.contents, known[at])
            for at, (name, column) in enumerate(self.columns.items())
            if column.has_totals("second")
        }

    def _encode(self, request: wire.Payload) -> dict[str, Any]:
        totals = totals_from_payload(request.get("known", {}), len(self.columns))
        encoding = build_encoding(self.contents, totals)
        if self.contents.database is not None:
            return {"features": encoding.schema(self.contents.settings).width}
        return {"features": encoding.encode(self.contents, self.hashing)[0].size(1)}


def build_encoding(contents: Contents, totals: Sequence[Totals]) -> Encoding:
    """Return a party's encoding, given the sums that the parties agreed on."""
    columns = contents.settings.feature_columns()
    return Encoding(columns, dict(zip(columns, totals, strict=True)))


def totals_from_payload(known: Mapping[str, Any], columns: int) -> list[Totals]:
    """Return the sums of each column from a payload."""
    return [dict(known.get(str(at), {})) for at in range(columns)]


def totals_to_payload(totals: Sequence[Totals]) -> dict[str, Any]:
    """Return the sums of each column as a payload; columns without sums are left out."""
    return {str(at): dict(each) for at, each in enumerate(totals) if each}


def introduced_of(contents: Contents) -> Introduced:
    """How much a party introduces: its items, and their labels."""
    y = contents.y
    labels = int((~y.isnan() if y.is_floating_point() else y >= 0).sum())
    database, settings = contents.database, contents.settings
    if database is None:
        return Introduced(contents.items, labels, contents.nodes)
    items = contents.items if settings.labels_edges else contents.nodes  # rows without labels count as nodes do
    edges = [table.num_rows for name, table in database.tables.items() if settings.tables[name].as_ == "edges"]
    return Introduced(items, labels, contents.nodes, rows=sum(edges))


def _label_kind(y: Tensor) -> str:
    """Return the kind of labels, by the same rule as `task_for`."""
    if not y.is_floating_point():
        return "classification"
    known = y[~y.isnan()]
    return "multilabel" if bool(((known == 0) | (known == 1)).all()) else "regression"


def _stack_one(value: Any) -> Any:
    """Return one party's value as a stack, or list, over one party."""
    if isinstance(value, Mapping):
        return {name: _stack_one(inner) for name, inner in value.items()}
    return torch.as_tensor(value).unsqueeze(0) if isinstance(value, Tensor) else [value]
