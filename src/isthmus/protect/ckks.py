"""Sums of encrypted parts: CKKS (Cheon et al. 2017), by TenSEAL.

The first party of a sum makes the keys, anew for every run, and sends the secret one, sealed, to the other parties; the
server gets what it takes to add. A sum for the server is opened by one party, which returns it; a sum for the parties
goes to all of them as it is. A party that colludes with the server could open single parts: masks leave no such way.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.errors import IsthmusError, PayloadError, TooFewAnswers, missing_extra

try:
    import tenseal
except ImportError as error:
    raise missing_extra("TenSEAL", "he", "sums of encrypted parts") from error

from isthmus.federation import wire
from isthmus.protect.base import Book, Check, Closed, ClosedSums, Guard, Lines, Message, Step
from isthmus.protect.parts import Form, form_of, form_read, form_text
from isthmus.protect.sealing import Channel

Floats: TypeAlias = NDArray[np.float64]
DEGREE = 8192
"""Of the polynomials: half as many numbers are in one ciphertext."""
MODULI = (60, 40, 60)
"""Bits of the moduli; the last is for keys. 160 bits of 218 that leave 128 bits of security at this degree."""
SCALE = 2.0**40
SLOTS = DEGREE // 2
MOST = 2.0**24
"""Largest sum in single precision: beyond it, what is in the same ciphertext loses its last digits."""
ALONE = 2.0**56
"""The same in double precision: those numbers share a ciphertext with their own field alone."""
NEAR = 2.0**-20
"""A number in double precision that is nearer to a whole one is read as that; no farther than its precision."""
EXACT = 2.0**36
"""Largest sum of whole numbers: beyond it, rounding could miss one."""


def groups(form: Form) -> Iterator[list[int]]:
    """Columns that share ciphertexts: all of one type, but numbers in double precision, which may be large, alone."""
    for kind in dict.fromkeys(dtype for _, dtype, _ in form):
        mine = [at for at, (_, dtype, _) in enumerate(form) if dtype == kind]
        yield from [[at] for at in mine] if kind == "F64" else [mine]


class EncryptingGuard(Guard):
    """The party's side."""

    def __init__(self, channel: Channel, floor: int) -> None:
        super().__init__(channel, floor)
        self._context: Any = None
        self._name = ""

    def step(self, message: Message) -> Message:
        steps = {"make": self._make, "take": self._take, "open": self._open}
        if message["step"] not in steps:
            raise IsthmusError(f"an encrypted sum has no step '{message['step']}'")
        return steps[message["step"]](message)

    def _make(self, message: Message) -> Message:
        """Make the keys of this run."""
        self._name = str(message["agreement"])
        self._context = tenseal.context(tenseal.SCHEME_TYPE.CKKS, DEGREE, coeff_mod_bit_sizes=list(MODULI))
        self._context.global_scale = SCALE
        secret = _saved(self._context, secret=True)
        about = f"key {self._name}"
        others = [str(party) for party in message["of"] if party != self.name]
        return {
            "public": _saved(self._context, secret=False),
            "secret": {party: self.channel.sealed(party, secret, about) for party in others},
        }

    def _take(self, message: Message) -> Message:
        self._name = str(message["agreement"])
        secret = self.channel.opened(str(message["from"]), message["secret"], f"key {self._name}")
        self._context = tenseal.context_from(secret)
        return {}

    def close(self, columns: Mapping[str, Tensor], message: Message) -> list[bytes]:
        """Columns in ciphertexts, the first of which says of how many parties the sum is."""
        self._check(message)
        of, values = int(message["of"]), list(columns.values())
        closed = [_encrypted(self._context, np.ones(1))]
        for members in groups(tuple((name, wire.DTYPES[v.dtype], tuple(v.shape)) for name, v in columns.items())):
            flat = np.concatenate([values[at].double().reshape(-1).numpy() for at in members])
            kind = values[members[0]].dtype
            most = (ALONE if kind == torch.float64 else MOST if kind.is_floating_point else EXACT) / of
            if flat.size and not np.abs(flat).max() < most:  # NaN too
                field = list(columns)[members[0]]
                raise PayloadError(f"field '{field}' has a number beyond {most:.3g}, which a sum of {of} can hold")
            closed += [_encrypted(self._context, flat[at : at + SLOTS]) for at in range(0, len(flat), SLOTS)]
        return closed

    def _open(self, message: Message) -> Message:
        """A sum opened for the server."""
        self._check(message)
        self.permit_opening([str(party) for party in message["in"]], str(message["what"]))
        columns = self.open(message["closed"], form_read(message["form"]), None, message)
        return {"columns": wire.encode({str(at): value for at, value in enumerate(columns.values())})}

    def open(self, closed: Any, form: Form, at: Tensor | None, message: Message) -> dict[str, Tensor]:
        self._check(message)
        count, *ciphers = (_decrypted(self._context, cipher) for cipher in closed)
        if round(float(count[0])) < self.least:
            raise IsthmusError(f"refused: a sum of {count[0]:.0f} is not opened, at least {self.least} must be in it")
        found: dict[str, Tensor] = {}
        for members in groups(form):
            sizes = [math.prod(form[each][2]) for each in members]
            taken = -(-sum(sizes) // SLOTS)
            flat, ciphers = np.concatenate([np.zeros(0), *ciphers[:taken]]), ciphers[taken:]
            for each, value in zip(members, np.split(flat, np.cumsum(sizes)[:-1]), strict=True):
                name, dtype, shape = form[each]
                whole = torch.from_numpy(_read(value, dtype)).view(shape)
                found[name] = (whole if at is None else whole[at]).to(wire.NAMED[dtype])
        return {name: found[name] for name, _, _ in form}

    def _check(self, message: Message) -> None:
        if self._context is None or message["agreement"] != self._name:
            raise IsthmusError("there is no key for this sum")


class EncryptedSums(ClosedSums):
    """The server's side."""

    def __init__(self, lines: Lines, wrong: Check, tries: int) -> None:
        super().__init__(lines, wrong, tries)
        self._name = ""
        self._holders: frozenset[str] = frozenset()
        self._context: Any = None
        self._noughts: dict[int, Any] = {}

    def restart(self) -> None:
        self._holders = frozenset()

    def ready(self, action: str, asked: tuple[str, ...], book: Book) -> tuple[tuple[str, ...], dict[str, Message]]:
        while asked and not set(asked) <= self._holders:
            asked = self._agree(action, asked, book)
        return asked, {party: {"agreement": self._name, "of": len(asked)} for party in asked}

    def _agree(self, action: str, asked: tuple[str, ...], book: Book) -> tuple[str, ...]:
        """Have the first party make keys for all; those who are not heard of are not in the sum."""
        everyone, name = self.lines.there(self.lines.parties), secrets.token_hex(8)
        first = asked[0]
        head: Message = {"do": "shield", "agreement": name}
        message = {**head, "step": "make", "of": list(everyone)}
        made = self.tell(action, {first: message}, book, partial(_are_keys, everyone)).get(first)
        if made is None:
            return asked[1:]
        self._name, self._context, self._noughts = name, tenseal.context_from(made["public"]), {}
        taken = self.tell(action, {
            party: {**head, "step": "take", "from": first, "secret": sealed} for party, sealed in made["secret"].items()
        }, book)  # fmt: skip
        self._holders = frozenset({first, *taken})
        return tuple(party for party in asked if party in self._holders)

    def fits(self, closed: Any, form: Form) -> bool:
        sizes = [1]
        for members in groups(form):
            left = sum(math.prod(form[at][2]) for at in members)
            while left > 0:
                sizes.append(min(left, SLOTS))
                left -= SLOTS
        read = [tenseal.ckks_vector_from(self._context, cipher) for cipher in closed]
        for each in read:
            _ = each + self._nought(each.size())  # an error where it is of other keys, or of another scale
        return [each.size() for each in read] == sizes

    def _nought(self, size: int) -> Any:
        """Zeros that the server has encrypted."""
        if size not in self._noughts:
            self._noughts[size] = tenseal.ckks_vector(self._context, [0.0] * size)
        return self._noughts[size]

    def add(self, step: Step, parts: Mapping[str, Any], form: Form, book: Book) -> Closed:
        summed = list[Any]()
        for ciphers in parts.values():
            read = [tenseal.ckks_vector_from(self._context, cipher) for cipher in ciphers]
            summed = [one + other for one, other in zip(summed, read, strict=True)] if summed else read
        return Closed(tuple(parts), form, [each.serialize() for each in summed])

    def read(self, closed: Closed, step: Step, book: Book) -> dict[str, Tensor]:
        """Have a party open the sum; another one if that one is not heard of."""
        message: Message = {**self.parcel(closed, None), "do": "shield", "step": "open", "in": list(closed.of),
                            "what": step.what}  # fmt: skip

        def told(reply: Message) -> dict[str, Tensor]:
            columns = wire.decode(reply["columns"], limit=self.lines.limit)
            return _of_form(columns, closed.form)

        for party in closed.of:
            missing = dict(book.missing)
            replies = self.tell(step.wanted.action, {party: message}, book, lambda _, reply: bool(told(reply)))
            book.missing = missing  # its part is in the sum, whoever opens it
            if party in replies:
                return told(replies[party])
        raise TooFewAnswers(f"action '{step.wanted.action}': no party is left to open an encrypted sum")

    def parcel(self, closed: Closed, at: Tensor | None) -> Message:
        return {"agreement": self._name, "form": form_text(closed.form), "closed": closed.value}


def _are_keys(everyone: tuple[str, ...], first: str, reply: Message) -> bool:
    """Whether these are a context that adds up and, for all but one, an envelope with the secret key."""
    sealed = reply["secret"]
    envelopes = sealed.keys() == set(everyone) - {first} and all(isinstance(each, bytes) for each in sealed.values())
    return envelopes and tenseal.context_from(reply["public"]).is_public()


def _of_form(columns: Mapping[str, Any], form: Form) -> dict[str, Tensor]:
    """Columns by their names, if they are of this form."""
    found = {name: columns[str(at)] for at, (name, _, _) in enumerate(form)}
    if form_of(found) != form:
        raise PayloadError("an opened sum of another form")
    return found


def _read(value: Floats, dtype: str) -> Floats:
    """Numbers as they were before encryption made them a little wrong."""
    if dtype == "I64":
        return np.rint(value)
    if dtype == "F64":  # many are counts, and ties between them decide something
        return np.where(np.abs(value - np.rint(value)) < NEAR, np.rint(value), value)
    return value


def _saved(context: Any, secret: bool) -> bytes:
    data: bytes = context.serialize(
        save_public_key=True, save_secret_key=secret, save_galois_keys=False, save_relin_keys=False
    )
    return data


def _encrypted(context: Any, values: Floats) -> bytes:
    data: bytes = tenseal.ckks_vector(context, values.tolist()).serialize()
    return data


def _decrypted(context: Any, cipher: bytes) -> Floats:
    return np.asarray(tenseal.ckks_vector_from(context, cipher).decrypt())
