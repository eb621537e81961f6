"""What parties on machines of their own settle before a method runs: what they hold, and one encoding of features.

It goes by the same verbs as a method, so a ledger has it too. The server learns what `party.toml` must say alike at
all parties, what kind of labels there are, and sums over all parties from which the encoding follows; of a category
whose values are not declared, it learns which party has which value's keyed hash.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from isthmus.data.folder.columns import Column, Totals
from isthmus.data.folder.encoding import Encoding
from isthmus.data.folder.reading import Contents
from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.federation.answers import Answer, Reply
from isthmus.federation.transport import Each
from isthmus.federation.verbs import Federation
from isthmus.tasks.base import Task

KINDS = ("classification", "multilabel", "regression")
"""Kinds of labels; where parties differ, the one that stands last here holds for all."""


@dataclass(frozen=True)
class Joined:
    """What was settled.

    Arguments:
        agreed: what `party.toml` says alike at all parties.
        kind: of labels, one of `KINDS`.
        features: width of the encoded features.
        totals: by column, in their order, the sums from which its encoding follows.
    """

    agreed: Mapping[str, Any]
    kind: str
    features: int
    totals: Sequence[Totals] = field(default=(), repr=False)

    def task(self, named: Task | None) -> Task:
        """The task that is named, fitted to the parties' labels; without one, the one that these ask for."""
        due = self._due()
        if named is None:
            return due
        if named.level == "pair":
            raise IsthmusError(f"task '{named.name}': pairs are drawn from all parties' graphs, which only a study has")
        if named.level != due.level:
            raise IsthmusError(f"task '{named.name}' is for {named.level}s, the parties hold {due.level}s")
        return named.complete_from(due)

    def _due(self) -> Task:
        count = len(self.agreed["labels"] or self.agreed["tasks"] or ()) or int(self.agreed["classes"] or 0)
        options = {"classes": max(2, count)} if self.kind == "classification" else {"tasks": count}
        return Task.named(f"{self.agreed['level']}-{self.kind}").read(options, "task")


def join(federation: Federation) -> Joined:
    """The server's side of the set-up."""
    said = federation.ask("introduce")
    agreed = {party: json.loads(str(answer["agreed"])) for party, answer in said.items()}
    first, settings = next(iter(agreed.items()))
    for party, own in agreed.items():
        for key, value in own.items():
            if value != settings[key]:
                raise IsthmusError(f"party '{party}': '{key}' in party.toml differs from that of '{first}'")
    kind = max((str(answer["kind"]) for answer in said.values()), key=KINDS.index)
    columns = _columns(settings)
    totals: list[dict[str, Tensor]] = [{} for _ in columns]
    for at, column in enumerate(columns.values()):
        if column.has_keyed_totals:
            totals[at] = {"ids": federation.agree("values", {"column": at}).ids}
    for step in ("first", "second"):
        counted = [at for at, column in enumerate(columns.values()) if column.has_totals(step)]
        if counted:
            request = {"known": known} if (known := named_totals(totals)) else {}
            total = federation.total(step, request)
            for at in counted:
                totals[at] = {**totals[at], **total.sum(str(at))}
    known = named_totals(totals)
    widths = federation.ask("encode", {"known": known} if known else {})
    found = {int(answer["features"]) for answer in widths.values()}
    if len(found) > 1:
        raise IsthmusError(f"parties have {min(found)} and {max(found)} features: give all the same columns")
    return Joined(settings, kind, found.pop(), totals)


class Introduction:
    """The party's side of the set-up.

    Arguments:
        contents: of the party's files.
        key: that the parties share.
    """

    def __init__(self, contents: Contents, key: bytes | None = None) -> None:
        self.contents = contents
        self.key = key
        self.columns = contents.settings.feature_columns()
        self.answered = [0]

    def answer(self, name: str, request: wire.Payload | Each, of: Sequence[str]) -> Reply:
        actions: dict[str, Callable[[wire.Payload], dict[str, Any]]] = {
            "introduce": self._introduce, "values": self._values, "first": self._first, "second": self._second,
            "encode": self._encode,
        }  # fmt: skip
        if name not in actions or isinstance(request, Each):
            raise IsthmusError(f"there is no step '{name}' of the set-up")
        self.answered = [self.answered[0] + 1]
        fields = actions[name](request)
        return Reply.of(tuple(of), Answer({field: _one(value) for field, value in fields.items()}))

    def deliver(self, name: str, mail: Mapping[str, Any]) -> None:
        raise IsthmusError("nothing is delivered in the set-up")

    def save(self) -> dict[str, Any]:
        return {}

    def models(self) -> dict[str, Any]:
        return {}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """There is nothing to go on from."""

    def _introduce(self, request: wire.Payload) -> dict[str, Any]:
        settings = {**self.contents.settings.common, "hashed": self.contents.hashed}
        return {"agreed": json.dumps(settings), "kind": _kind_of(self.contents.y)}

    def _values(self, request: wire.Payload) -> dict[str, Any]:
        name, column = list(self.columns.items())[int(request["column"])]
        return {"ids": column.first_totals(name, self.contents.features, self.key)["ids"]}

    def _first(self, request: wire.Payload) -> dict[str, Any]:
        return {
            str(at): column.first_totals(name, self.contents.features, self.key)
            for at, (name, column) in enumerate(self.columns.items())
            if column.has_totals("first")
        }

    def _second(self, request: wire.Payload) -> dict[str, Any]:
        known = of_named(request.get("known", {}), len(self.columns))
        return {
            str(at): column.second_totals(name, self.contents.features, known[at])
            for at, (name, column) in enumerate(self.columns.items())
            if column.has_totals("second")
        }

    def _encode(self, request: wire.Payload) -> dict[str, Any]:
        totals = of_named(request.get("known", {}), len(self.columns))
        return {"features": encoding_of(self.contents, totals).encode(self.contents, self.key)[0].size(1)}


def encoding_of(contents: Contents, totals: Sequence[Totals]) -> Encoding:
    """A party's encoding, of the sums that were settled."""
    columns = contents.settings.feature_columns()
    return Encoding(columns, dict(zip(columns, totals, strict=True)))


def of_named(known: Mapping[str, Any], columns: int) -> list[Totals]:
    """Sums by column, of a payload."""
    return [dict(known.get(str(at), {})) for at in range(columns)]


def named_totals(totals: Sequence[Totals]) -> dict[str, Any]:
    """Sums by column as a payload carries them; columns without any are left out."""
    return {str(at): dict(each) for at, each in enumerate(totals) if each}


def _columns(agreed: Mapping[str, Any]) -> dict[str, Column]:
    return {
        column: Column.named(str(kind)).read(options, f"columns.{column}")
        for column, (kind, options) in agreed["columns"].items()
    }


def _kind_of(y: Tensor) -> str:
    """What kind of labels these are, as `task_for` reads those of all parties."""
    if not y.is_floating_point():
        return "classification"
    known = y[~y.isnan()]
    return "multilabel" if bool(((known == 0) | (known == 1)).all()) else "regression"


def _one(value: Any) -> Any:
    """One party's value as the stack, or list, of one party."""
    if isinstance(value, Mapping):
        return {name: _one(inner) for name, inner in value.items()}
    return torch.as_tensor(value).unsqueeze(0) if isinstance(value, Tensor) else [value]
