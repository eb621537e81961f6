"""Sums of encrypted parts: CKKS (Cheon et al. 2017), by TenSEAL.

In every run the first party of a sum makes new keys. It sends the secret key, sealed, to the other parties, and the
server gets what it needs for adding. One party opens a sum for the server; a sum for the parties goes to all of them.
It is for a server that follows the protocol: another one makes a part look like a sum, and an honest party opens it for
it. So could a party that colludes with the server. Masks prevent both.
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
from isthmus.protect.base import ClosedSum, Closing, Guard, Message, PartyLinks, ProtectedSums, SumCheck, SumStep, Tally
from isthmus.protect.parts import Form, form_of, format_form, parse_form
from isthmus.protect.sealing import Channel

Floats: TypeAlias = NDArray[np.float64]
DEGREE = 8192
"""Degree of the polynomials; a ciphertext holds half as many numbers."""
MODULI = (60, 40, 60)
"""Bits of the moduli; the last is for keys. Up to 218 bits give 128 bits of security at this degree."""
SCALE = 2.0**40
SLOTS = DEGREE // 2
MOST = 2.0**24
"""Largest sum in single precision; a larger one would cost its ciphertext's other numbers their last digits."""
ALONE = 2.0**56
"""Largest sum in double precision, whose fields do not share ciphertexts."""
NEAR = 2.0**-20
"""A double-precision number this close to an integer is rounded to it."""
EXACT = 2.0**36
"""Largest sum of integers that rounding recovers."""


def groups(form: Form) -> Iterator[list[int]]:
    """Yield the columns that share ciphertexts: all of one type, except that each double-precision column is alone."""
    for kind in dict.fromkeys(dtype for _, dtype, _ in form):
        mine = [at for at, (_, dtype, _) in enumerate(form) if dtype == kind]
        yield from [[at] for at in mine] if kind == "F64" else [mine]


class EncryptingGuard(Guard):
    """The party's side of encrypted sums."""

    def __init__(self, channel: Channel, min_parties: int) -> None:
        super().__init__(channel, min_parties)
        self._context: Any = None
        self._name = ""

    def answer_step(self, message: Message) -> Message:
        steps = {"make": self._make, "take": self._take, "open": self._open}
        if message["step"] not in steps:
            raise IsthmusError(f"an encrypted sum has no step '{message['step']}'")
        return steps[message["step"]](message)

    def _make(self, message: Message) -> Message:
        """Make the keys of this run."""
        self._name = str(message["agreement"])
        self._context = tenseal.context(tenseal.SCHEME_TYPE.CKKS, DEGREE, coeff_mod_bit_sizes=list(MODULI))
        self._context.global_scale = SCALE
        secret = _serialize(self._context, secret=True)
        about = f"key {self._name}"
        others = [str(party) for party in message["of"] if party != self.name]
        return {
            "public": _serialize(self._context, secret=False),
            "secret": {party: self.channel.seal(party, secret, about) for party in others},
        }

    def _take(self, message: Message) -> Message:
        self._name = str(message["agreement"])
        secret = self.channel.open(str(message["from"]), message["secret"], f"key {self._name}")
        self._context = tenseal.context_from(secret)
        return {}

    def close(self, columns: Mapping[str, Tensor], message: Message, closing: Closing) -> list[bytes]:
        """Encrypt columns; the first ciphertext counts the parties of the sum."""
        self._check(message)
        of, values = int(message["of"]), list(columns.values())
        closed = [_encrypt(self._context, np.ones(1))]
        for members in groups(tuple((name, wire.DTYPES[v.dtype], tuple(v.shape)) for name, v in columns.items())):
            flat = np.concatenate([values[at].double().reshape(-1).numpy() for at in members])
            kind = values[members[0]].dtype
            most = (ALONE if kind == torch.float64 else MOST if kind.is_floating_point else EXACT) / of
            if flat.size and not np.abs(flat).max() < most:  # also true for NaN
                field = list(columns)[members[0]]
                raise PayloadError(f"field '{field}' has a number beyond {most:.3g}, the limit in a sum over {of}")
            closed += [_encrypt(self._context, flat[at : at + SLOTS]) for at in range(0, len(flat), SLOTS)]
        return closed

    def counted(self, wanted: Message) -> tuple[dict[str, Tensor], tuple[str, ...]]:
        """Contributors are the server's to count: it is trusted to follow the protocol."""
        return {}, ()

    def _open(self, message: Message) -> Message:
        """Open a sum for the server."""
        self._check(message)
        what = "counts" if message["what"] == "counts" else "sums"
        self.permit_opening([str(party) for party in message["in"]], Closing(what, "", self.required, self._states))
        columns = self.open(message["closed"], parse_form(message["form"]), None, message)
        return {"columns": wire.encode({str(at): value for at, value in enumerate(columns.values())})}

    def open(self, closed: Any, form: Form, rows: Tensor | None, message: Message) -> dict[str, Tensor]:
        self._check(message)
        count, *ciphers = (_decrypt(self._context, cipher) for cipher in closed)
        if round(float(count[0])) < self.required:
            raise IsthmusError(f"refused: a sum over {count[0]:.0f} is not opened, it needs {self.required} parties")
        columns: dict[str, Tensor] = {}
        for members in groups(form):
            sizes = [math.prod(form[each][2]) for each in members]
            used = -(-sum(sizes) // SLOTS)
            flat, ciphers = np.concatenate([np.zeros(0), *ciphers[:used]]), ciphers[used:]
            for each, value in zip(members, np.split(flat, np.cumsum(sizes)[:-1]), strict=True):
                name, dtype, shape = form[each]
                whole = torch.from_numpy(_read(value, dtype)).view(shape)
                columns[name] = (whole if rows is None else whole[rows]).to(wire.NAMED[dtype])
        return {name: columns[name] for name, _, _ in form}

    def _check(self, message: Message) -> None:
        if self._context is None or message["agreement"] != self._name:
            raise IsthmusError("this party has no key for this sum")


class EncryptedSums(ProtectedSums):
    """The server's side of encrypted sums."""

    def __init__(self, links: PartyLinks, check: SumCheck, tries: int) -> None:
        super().__init__(links, check, tries)
        self._name = ""
        self._holders: frozenset[str] = frozenset()
        self._context: Any = None
        self._zeros: dict[int, Any] = {}

    def restart(self) -> None:
        self._holders = frozenset()

    def ready(self, action: str, asked: tuple[str, ...], tally: Tally) -> tuple[tuple[str, ...], dict[str, Message]]:
        while asked and not set(asked) <= self._holders:
            asked = self._agree(action, asked, tally)
        return asked, {party: {"agreement": self._name, "of": len(asked)} for party in asked}

    def _agree(self, action: str, asked: tuple[str, ...], tally: Tally) -> tuple[str, ...]:
        """Have the first party make keys for all; parties that do not answer are not in the sum."""
        everyone, name = self.links.reachable(self.links.parties), secrets.token_hex(8)
        first = asked[0]
        head: Message = {"do": "shield", "agreement": name}
        message = {**head, "step": "make", "of": list(everyone)}
        keys = self.send_step(action, {first: message}, tally, partial(_are_keys, everyone)).get(first)
        if keys is None:
            return asked[1:]
        self._name, self._context, self._zeros = name, tenseal.context_from(keys["public"]), {}
        taken = self.send_step(action, {
            party: {**head, "step": "take", "from": first, "secret": sealed} for party, sealed in keys["secret"].items()
        }, tally)  # fmt: skip
        self._holders = frozenset({first, *taken})
        return tuple(party for party in asked if party in self._holders)

    def fits(self, closed: Any, form: Form, what: str) -> bool:
        sizes = [1]
        for members in groups(form):
            left = sum(math.prod(form[at][2]) for at in members)
            while left > 0:
                sizes.append(min(left, SLOTS))
                left -= SLOTS
        read = [tenseal.ckks_vector_from(self._context, cipher) for cipher in closed]
        for each in read:
            _ = each + self._zero_vector(each.size())  # raises an error for other keys or another scale
        return [each.size() for each in read] == sizes

    def _zero_vector(self, size: int) -> Any:
        """Return zeros that the server has encrypted."""
        if size not in self._zeros:
            self._zeros[size] = tenseal.ckks_vector(self._context, [0.0] * size)
        return self._zeros[size]

    def add(self, step: SumStep, parts: Mapping[str, Any], form: Form, tally: Tally) -> ClosedSum:
        summed = list[Any]()
        for ciphers in parts.values():
            read = [tenseal.ckks_vector_from(self._context, cipher) for cipher in ciphers]
            summed = [one + other for one, other in zip(summed, read, strict=True)] if summed else read
        return ClosedSum(tuple(parts), form, [each.serialize() for each in summed])

    def read(self, closed: ClosedSum, step: SumStep, tally: Tally) -> dict[str, Tensor]:
        """Have a party open the sum; if it does not answer, another one."""
        message: Message = {**self.parcel(closed, None), "do": "shield", "step": "open", "in": list(closed.of),
                            "what": step.what}  # fmt: skip

        def opened(reply: Message) -> dict[str, Tensor]:
            columns = wire.decode(reply["columns"], limit=self.links.limit)
            return _of_form(columns, closed.form)

        for party in closed.of:
            missing = dict(tally.missing)
            replies = self.send_step(step.wanted.action, {party: message}, tally, lambda _, reply: bool(opened(reply)))
            tally.missing = missing  # a party that does not open the sum is still in it
            if party in replies:
                return opened(replies[party])
        raise TooFewAnswers(f"action '{step.wanted.action}': no party is left to open an encrypted sum")

    def parcel(self, closed: ClosedSum, rows: Tensor | None) -> Message:
        return {"agreement": self._name, "form": format_form(closed.form), "closed": closed.value}


def _are_keys(everyone: tuple[str, ...], first: str, reply: Message) -> bool:
    """Whether a reply has a public context, and an envelope with the secret key for all other parties."""
    sealed = reply["secret"]
    envelopes = sealed.keys() == set(everyone) - {first} and all(isinstance(each, bytes) for each in sealed.values())
    return envelopes and tenseal.context_from(reply["public"]).is_public()


def _of_form(columns: Mapping[str, Any], form: Form) -> dict[str, Tensor]:
    """Name the columns of an opened sum, and check their form."""
    named = {name: columns[str(at)] for at, (name, _, _) in enumerate(form)}
    if form_of(named) != form:
        raise PayloadError("an opened sum has another form than its parts")
    return named


def _read(value: Floats, dtype: str) -> Floats:
    """Undo the small errors of encryption in numbers that should be integers."""
    if dtype == "I64":
        return np.rint(value)
    if dtype == "F64":  # many are counts, whose ties matter
        return np.where(np.abs(value - np.rint(value)) < NEAR, np.rint(value), value)
    return value


def _serialize(context: Any, secret: bool) -> bytes:
    data: bytes = context.serialize(
        save_public_key=True, save_secret_key=secret, save_galois_keys=False, save_relin_keys=False
    )
    return data


def _encrypt(context: Any, values: Floats) -> bytes:
    data: bytes = tenseal.ckks_vector(context, values.tolist()).serialize()
    return data


def _decrypt(context: Any, cipher: bytes) -> Floats:
    return np.asarray(tenseal.ckks_vector_from(context, cipher).decrypt())
