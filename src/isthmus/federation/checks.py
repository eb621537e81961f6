"""Checks of replies as they come, before anything reads or adds up an answer."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.federation.answers import Arrival, Reply
from isthmus.federation.bounds import weight_faults
from isthmus.federation.ledger import Verb
from isthmus.federation.transport import Command, Each
from isthmus.nn.stacks import is_stack, outline, slice_of

_IDS = re.compile(r"(?:^|, )ids\[([0-9]{1,12})\]")
"""The field that has a row's ids, as `wire.describe` writes it."""


def check_reply(reply: Reply, command: Command, limit: int, positions: Mapping[str, int]) -> Reply:
    """Return the reply without faulty answers, and with what the ledger records of it.

    Arguments:
        command: what it replies to.
        limit: largest payload, in bytes.
        positions: by party its position in the federation.
    """
    if reply.arrival is not None:  # checked where it was made
        return reply
    action, verb = command.action, command.verb
    assert verb is not None
    _check_verb(verb, action, reply)
    arrived = leave_out(action, reply, reply.unsendable())
    sizes = _sizes(arrived)
    over = _too_large(arrived, sizes, limit)
    sent = {party: 0 if at in over else sizes[at] for at, party in enumerate(arrived.parties)}
    arrived = leave_out(action, arrived, over)
    arrived = leave_out(action, arrived, weight_faults(arrived))
    arrived = leave_out(action, arrived, changed_fields(arrived, command.payload if command.same_form else {}))
    return replace(arrived, arrival=Arrival(sent, _fields(verb, arrived, positions), _rows_sent(arrived)))


def _check_verb(verb: Verb, action: str, reply: Reply) -> None:
    """Messages to other parties go by `exchange`, answers by `ask` and `total`."""
    if reply.parties and bool(reply.letters) != (verb == "exchange"):
        made = "mail, which goes by exchange" if reply.letters else "an answer, which goes by ask or total"
        raise IsthmusError(f"action '{action}' was called by {verb} and makes {made}")


def _rows_sent(reply: Reply) -> dict[str, int]:
    """By party how many rows by id it sent."""
    if reply.letters:
        return {p: sum(map(count_rows, of.values())) for p, of in zip(reply.parties, reply.letters, strict=True)}
    if "ids" not in reply.columns:
        return {}
    found = {party: slice_of(reply.columns["ids"], at) for at, party in enumerate(reply.parties)}
    return {party: count for party, ids in found.items() if (count := count_rows({"ids": ids}))}


def count_rows(payload: Any) -> int:
    """The number of rows by id in a message; for a sealed one, as its sender states."""
    if isinstance(payload, wire.Sealed):
        stated = _IDS.search(payload.fields)
        return int(stated[1]) if stated else 0
    ids = payload.get("ids") if isinstance(payload, Mapping) else None
    return len(ids) if isinstance(ids, Tensor) and ids.dim() else 0


def _sizes(reply: Reply) -> tuple[int, ...]:
    """Bytes that each party of the reply sent."""
    if not reply.letters:
        return reply.sizes()
    return tuple(sum(wire.size(payload) for payload in letters.values()) for letters in reply.letters)


def _too_large(reply: Reply, sizes: Sequence[int], limit: int) -> dict[int, str]:
    """Positions of parties with a payload over the limit; each message counts on its own."""
    over: dict[int, str] = {}
    for at, size in enumerate(sizes):
        if size > limit and reply.letters:
            size = max(wire.size(payload) for payload in reply.letters[at].values())
        if size > limit:
            over[at] = f"payload of {size} bytes is over the limit of {limit}"
    return over


def changed_fields(reply: Reply, request: wire.Payload | Each) -> dict[int, str]:
    """Positions of parties that returned a field of the request in another shape or type."""
    expected = {} if isinstance(request, Each) else dict(wire.flatten(request))
    faulty: dict[int, str] = {}
    for name, column in reply.columns.items():
        like = expected.get(name)
        if not isinstance(like, Tensor):
            continue
        for at in range(len(reply.parties)):
            value = outline(column, at)
            if not isinstance(value, Tensor) or value.shape != like.shape or value.dtype != like.dtype:
                tensor = isinstance(value, Tensor)
                got = f"{value.dtype} {list(value.shape)}" if tensor else f"a {type(value).__name__}"
                faulty.setdefault(at, f"field '{name}' is {got}, expected is {like.dtype} {list(like.shape)}")
            elif is_stack(column):
                break  # all slices have one shape and type
    return faulty


def leave_out(action: str, reply: Reply, faulty: Mapping[int, str]) -> Reply:
    """Move parties with faulty answers to the failures of the reply, each with its reason."""
    if not faulty:
        return reply
    kept = reply.keep([at for at in range(len(reply.parties)) if at not in faulty])
    kept.failures |= {reply.parties[at]: f"action '{action}', {why}" for at, why in faulty.items()}
    return kept


def _fields(verb: Verb, reply: Reply, positions: Mapping[str, int]) -> dict[int, str]:
    """By position the fields, in short, of the first party that has any."""
    if not reply.columns and not reply.letters:
        return {}
    for at in sorted(range(len(reply.parties)), key=lambda at: positions[reply.parties[at]]):
        letter = next(iter(reply.letters[at].values()), None) if verb == "exchange" else None
        if found := wire.describe(letter) if letter else reply.describe(at):
            return {positions[reply.parties[at]]: found}
    return {}


def norm_problem(fields: Mapping[str, Any], request: wire.Payload | Each, norm: float) -> str:
    """Return a complaint if an answer, or a mean of answers, is more than `norm` times as large as the request."""
    sent = {} if isinstance(request, Each) else dict(wire.flatten(request))
    pairs = [
        (value, sent[name])
        for name, value in fields.items()
        if isinstance(value, Tensor) and value.is_floating_point()
        and isinstance(sent.get(name), Tensor) and sent[name].shape == value.shape
    ]  # fmt: skip
    values, likes = [value for value, _ in pairs], [like for _, like in pairs]
    # single precision is a tenth of the work, and enough for all answers but those near the limit
    if 2 * _norm(values) <= norm * (1 + _norm(likes) / 2):
        return ""
    within = _norm(values, torch.float64) <= norm * (1 + _norm(likes, torch.float64))
    return "" if within else f"more than {norm:g} times as large as what was sent (federation.norm)"


def _norm(values: Sequence[Tensor], dtype: torch.dtype | None = None) -> float:
    """The root of the sum of squares of all values."""
    floats = [value if value.is_floating_point() else value.double() for value in values]
    return math.hypot(*(float(torch.linalg.vector_norm(value, dtype=dtype)) for value in floats))
