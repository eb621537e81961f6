"""Checks of replies as they come, before anything reads or adds up an answer."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from statistics import median
from typing import Any, get_args

import torch
from torch import Tensor

from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.federation.answers import Arrival, Reply, Total
from isthmus.federation.bounds import Held, Introduced, weight_faults
from isthmus.federation.ledger import Verb
from isthmus.federation.transport import Command, Each
from isthmus.nn.stacks import is_stack, outline, slice_of

_IDS = re.compile(r"(?:^|, )ids\[([0-9]{1,12})\]")
"""The field that has a row's ids, as `wire.describe` writes it."""
LEAST_COMPARED = 3
"""Parties whose answers are compared, at least: of two, neither is the common one."""
HELD = get_args(Held)


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


def size_problems(
    replies: Sequence[Reply],
    request: wire.Payload | Each,
    introduced: Mapping[str, Introduced],
    norm: float,
    counts: Collection[str] = (),
) -> dict[str, str]:
    """By party the field of its part of a total that is too large, where the server sees parts.

    The norm of a field is at most `norm` times 1 and the norm of all that was sent. If no real number was sent it is at
    most `norm` times 1 and the median over the parties, and as many times more as the party introduced more than the
    median; of fewer than three parties none is compared.

    Arguments:
        counts: fields with a bound of their own.
    """
    sizes: dict[str, dict[str, float]] = {}
    for reply in replies:
        for at, party in enumerate(reply.parties):
            for name, values in _groups(reply.fields(at)).items():
                sizes.setdefault(name, {})[party] = _norm(values, torch.float64)
    sent = _groups({} if isinstance(request, Each) else dict(wire.flatten(request)))
    problems: dict[str, str] = {}
    for name, own in sizes.items():
        if name in counts or (not sent and len(own) < LEAST_COMPARED):
            continue
        like = _norm(list(chain(*sent.values())), torch.float64) if sent else median(own.values())
        for party, size in own.items():
            most = norm * (1 + like) * (1 if sent else _share(party, own, introduced))
            if not size <= most:
                problems.setdefault(party, _beyond(name, size, most))
    return problems


def sum_problem(total: Total, request: wire.Payload | Each, norm: float) -> str:
    """Say which field of a sum of hidden parts is too large: in the mean, more than any part may be (`size_problems`).

    Nothing is compared where no real number was sent.
    """
    sent = _groups({} if isinstance(request, Each) else dict(wire.flatten(request)))
    most = norm * (1 + _norm(list(chain(*sent.values())), torch.float64))
    for path, value in total.sums.items() if sent else ():
        weight = float(torch.linalg.vector_norm(torch.as_tensor(total.weights[path], dtype=torch.float64)))
        size = _norm([value], torch.float64) / weight if value.is_floating_point() and weight else 0.0
        if not size <= most:
            return _beyond(path, size, most)
    return ""


def _beyond(name: str, size: float, most: float) -> str:
    return f"field '{name}' has the norm {size:.3g}, beyond {most:.3g} (federation.norm)"


def _groups(fields: Mapping[str, Any]) -> dict[str, list[Tensor]]:
    """The real numbers in fields, by the part of their name before the first `/`."""
    found: dict[str, list[Tensor]] = {}
    for path, value in fields.items():
        if isinstance(value, float) or (isinstance(value, Tensor) and value.is_floating_point()):
            found.setdefault(path.split("/", 1)[0], []).append(torch.as_tensor(value))
    return found


def _share(party: str, of: Collection[str], introduced: Mapping[str, Introduced]) -> float:
    """How many times as much as the median of these parties a party introduced, of whatever it has most; at least 1."""
    held = [(getattr(introduced[party], name), [getattr(introduced[each], name) for each in of]) for name in HELD]
    return max(1.0, *(own / max(1.0, median(all_)) for own, all_ in held))


def _norm(values: Sequence[Tensor], dtype: torch.dtype | None = None) -> float:
    """The root of the sum of squares of all values."""
    floats = [value if value.is_floating_point() else value.double() for value in values]
    return math.hypot(*(float(torch.linalg.vector_norm(value, dtype=dtype)) for value in floats))
