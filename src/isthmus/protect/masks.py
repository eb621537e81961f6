"""Sums of masked parts: Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine Learning".

The protocol of its figure 4 for a server that follows it but reads all it gets. For every sum a party u has a key pair
(s_u) and a seed b_u, drawn for this sum alone, and both are in Shamir shares at all parties of the sum:

    keys     u sends the public key of s_u                        round 0; there the keys c_u too, which kits have
    shares   u sends v, sealed, its shares of s_u and of b_u      round 1; v gets them by take
    closed   y_u = x_u + PRG(b_u) + sum_{v > u} PRG(s_uv) - sum_{v < u} PRG(s_uv)   mod 2^64            round 2
    open     those heard of send the shares of b_u of all who are in the sum, of s_u of all who dropped out   round 4

s_uv is what u and v agree on by X25519, PRG is AES-256 in counter mode. Round 3, signatures on who is in the sum, is
against a server that breaks the protocol, and left out. Keys and shares are made for several sums at once.

A sum for the parties alone is closed once more, by PRG(g_u) of every party in it; g_u goes to the others with the
shares.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from isthmus.errors import IsthmusError, TooFewAnswers, missing_extra

try:
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.ciphers.modes import CTR
except ImportError as error:
    raise missing_extra("cryptography", "federation", "masked sums") from error

from isthmus.protect.base import Book, Check, Closed, ClosedSums, Guard, Lines, Message, Step
from isthmus.protect.parts import Form, Words, form_text, length, of_words, rows_of_words, to_words
from isthmus.protect.sealing import OVERHEAD, Channel, agreed, derived, is_public, public_of
from isthmus.protect.shamir import SHARE, join, split

AT_ONCE = 16
"""Sums that keys are made for at once, once a second sum is over the same parties."""
KEY = 32
"""Bytes of a key or a seed."""


def stream(seed: bytes, words: int) -> Words:
    """PRG: so many words that nobody can tell from random ones without the seed."""
    return np.frombuffer(Cipher(AES(seed), CTR(bytes(16))).encryptor().update(bytes(8 * words)), dtype=np.uint64)


@dataclass
class Agreement:
    """Keys for some sums over the same parties, at one of them.

    Attributes:
        of: the parties; the place of one among the shares is its position here, from 1 on.
        privates, seeds: s_u and b_u, one for each sum.
        group: g_u, of all of these sums.
        publics: by party the public keys of its s.
        shares: by party what this one holds of its secrets, one after the other.
        groups: by party its g.
    """

    of: tuple[str, ...]
    least: int
    privates: list[bytes]
    seeds: list[bytes]
    group: bytes
    publics: dict[str, list[bytes]] = field(default_factory=dict)
    shares: dict[str, bytes] = field(default_factory=dict)
    groups: dict[str, bytes] = field(default_factory=dict)
    spent: set[int] = field(default_factory=set)
    opened: set[int] = field(default_factory=set)

    def share(self, party: str, at: int, seed: bool) -> bytes:
        """What is held of a party's s, or b, for one sum."""
        begin = (2 * at + seed) * SHARE
        return self.shares[party][begin : begin + SHARE]


class MaskingGuard(Guard):
    """The party's side."""

    def __init__(self, bits: int, channel: Channel, floor: int) -> None:
        super().__init__(channel, floor)
        self.bits = bits
        self._name = ""
        self._agreement: Agreement | None = None

    def step(self, message: Message) -> Message:
        steps = {"keys": self._keys, "shares": self._shares, "take": self._take, "open": self._open}
        if message["step"] not in steps:
            raise IsthmusError(f"a masked sum has no step '{message['step']}'")
        return steps[message["step"]](message)

    def _keys(self, message: Message) -> Message:
        """Round 0: keys for sums over these parties; those of earlier agreements have served."""
        of, count, least = tuple(map(str, message["of"])), int(message["count"]), int(message["least"])
        if self.name not in of or not len(of) / 2 < least <= len(of) or not 0 < count <= AT_ONCE:
            raise IsthmusError(f"refused: keys for {count} sums over {len(of)} parties, of whom {least} open them")
        self._name = str(message["agreement"])
        drawn = [secrets.token_bytes(KEY) for _ in range(count)]
        self._agreement = Agreement(of, least, drawn, [secrets.token_bytes(KEY) for _ in drawn],
                                    secrets.token_bytes(KEY))  # fmt: skip
        return {"keys": b"".join(map(public_of, drawn))}

    def _shares(self, message: Message) -> Message:
        """Round 1: shares of the secrets, sealed for each of the others."""
        mine = self._at(message)
        for party, keys in message["keys"].items():
            mine.publics[party] = [keys[at : at + KEY] for at in range(0, len(keys), KEY)]
        places = range(1, len(mine.of) + 1)
        hidden = [secret for both in zip(mine.privates, mine.seeds, strict=True) for secret in both]
        made = split(hidden, mine.least, places)
        sealed = {}
        for place, party in enumerate(mine.of, start=1):
            if party == self.name:
                mine.shares[party], mine.groups[party] = made[place], mine.group
            else:
                sealed[party] = self.channel.sealed(party, made[place] + mine.group, f"shares {self._name}")
        return {"shares": sealed}

    def _take(self, message: Message) -> Message:
        """Keep the shares of the others; those whose envelopes do not open are told of."""
        mine, bad = self._at(message), list[str]()
        for party, envelope in message["shares"].items():
            try:
                inside = self.channel.opened(party, envelope, f"shares {self._name}")
            except IsthmusError:
                bad.append(party)
                continue
            mine.shares[party], mine.groups[party] = inside[:-KEY], inside[-KEY:]
        return {"bad": bad}

    def close(self, columns: Mapping[str, Tensor], message: Message) -> bytes:
        """Round 2: the part under its masks."""
        mine, at = self._at(message), int(message["at"])
        missing = [party for party in mine.of if party not in mine.shares or party not in mine.publics]
        if missing or at in mine.spent or not 0 <= at < len(mine.privates):
            raise IsthmusError(f"refused: masks that were used, or are not agreed on with {missing or 'anyone'}")
        mine.spent.add(at)
        words = to_words(columns, len(mine.of), self.bits)
        words += stream(mine.seeds[at], len(words))
        place = mine.of.index(self.name)
        for other, party in enumerate(mine.of):
            if other != place:
                mask = stream(_common(mine.privates[at], mine.publics[party][at]), len(words))
                words = words + mask if other > place else words - mask
        if message["to"] == "parties" and message["what"] == "sums":
            words += stream(_group(mine.group, at), len(words))
        return words.tobytes()

    def _open(self, message: Message) -> Message:
        """Round 4: for each party one share, of its seed if it is in the sum, else of its key; never both."""
        mine, at, of = self._at(message), int(message["at"]), tuple(message["in"])
        if at not in mine.spent or at in mine.opened or not set(of) <= set(mine.of):
            raise IsthmusError("refused: this sum was opened, or is none")
        self.permit_opening(of, str(message["what"]))
        mine.opened.add(at)
        held = b"".join(mine.share(party, at, seed=party in of) for party in mine.of if party != self.name)
        seed, mine.seeds[at], mine.privates[at] = mine.seeds[at], b"", b""  # they have served
        return {"seed": seed, "held": held}

    def open(self, closed: Any, form: Form, at: Tensor | None, message: Message) -> dict[str, Tensor]:
        mine = self._at(message)
        taken, places = rows_of_words(form, at)
        words = np.frombuffer(closed, dtype=np.uint64).copy()
        for party in message["in"]:
            words -= stream(_group(mine.groups[party], int(message["at"])), length(form))[places]
        return of_words(words, taken, self.bits)

    def _at(self, message: Message) -> Agreement:
        if self._agreement is None or message["agreement"] != self._name:
            raise IsthmusError("keys for this sum are not agreed on")
        return self._agreement


@dataclass
class Agreed:
    """What the server knows of an agreement.

    Attributes:
        keys: by party the public ones of its s.
        count, used: sums that there are keys for, and those that were made.
    """

    name: str
    of: tuple[str, ...]
    least: int
    keys: dict[str, bytes]
    count: int
    used: int = 0


class MaskedSums(ClosedSums):
    """The server's side."""

    def __init__(self, bits: int, threshold: float, lines: Lines, wrong: Check, tries: int) -> None:
        super().__init__(lines, wrong, tries)
        self.bits, self.threshold = bits, threshold
        self._agreed: Agreed | None = None

    def restart(self) -> None:
        self._agreed = None

    def ready(self, action: str, asked: tuple[str, ...], book: Book) -> tuple[tuple[str, ...], dict[str, Message]]:
        if self._agreed is None or self._agreed.of != asked or self._agreed.used == self._agreed.count:
            again = self._agreed is not None and self._agreed.of == asked
            asked = self._agree(action, asked, AT_ONCE if again else 1, book)
        agreed = self._agreed
        assert agreed is not None
        agreed.used += 1
        return asked, {party: {"agreement": agreed.name, "at": agreed.used - 1} for party in asked}

    def _agree(self, action: str, asked: tuple[str, ...], count: int, book: Book) -> tuple[str, ...]:
        """Rounds 0 and 1; those who are not heard of in them, or send what is none, are not in the sum."""
        while len(asked) > 1:
            name, least = secrets.token_hex(8), math.floor(len(asked) * self.threshold) + 1
            head = {"do": "shield", "agreement": name}
            told = {"of": list(asked), "count": count, "least": least}
            messages: dict[str, Message] = {party: {**head, "step": "keys", **told} for party in asked}
            found = keys = self.tell(action, messages, book, lambda _, reply: _are_keys(reply["keys"], count))
            if found.keys() == set(asked):
                publics = {party: reply["keys"] for party, reply in keys.items()}
                messages = {party: {**head, "step": "shares", "keys": publics} for party in asked}
                found = shares = self.tell(action, messages, book, partial(_has_shares, asked, count))
            if found.keys() == set(asked):
                messages = {
                    party: {
                        **head,
                        "step": "take",
                        "shares": {s: shares[s]["shares"][party] for s in asked if s != party},
                    }
                    for party in asked
                }
                found = self._taken(action, messages, book)
            if found.keys() == set(asked):
                self._agreed = Agreed(name, asked, least, publics, count)
                return asked
            asked = tuple(party for party in asked if party in found)
        raise TooFewAnswers(f"action '{action}': no two parties are left to agree on the masks of a sum")

    def _taken(self, action: str, messages: Mapping[str, Message], book: Book) -> dict[str, Message]:
        """Replies of those who have all shares, and whose own opened at more than half of the others."""
        taken = self.tell(action, messages, book, lambda _, reply: set(reply["bad"]) <= messages.keys())
        blamed = Counter(party for reply in taken.values() for party in reply["bad"])
        for party in [party for party, times in blamed.items() if 2 * times > len(messages) - 1 and party in taken]:
            book.missing[party] = f"action '{action}', its shares do not open"
            del taken[party]
        # who blames somebody that most others do not is wrong itself
        for party in [party for party, reply in taken.items() if any(each in taken for each in reply["bad"])]:
            book.missing[party] = f"action '{action}', it cannot open the shares of others"
            del taken[party]
        return taken

    def fits(self, closed: Any, form: Form) -> bool:
        return isinstance(closed, bytes) and len(closed) == 8 * length(form)

    def add(self, step: Step, parts: Mapping[str, Any], form: Form, book: Book) -> Closed:
        """Rounds 2 and 4: the sum of what came, less the masks that do not cancel."""
        agreed, size = self._agreed, length(form)
        assert agreed is not None
        summed, inside = np.zeros(size, dtype=np.uint64), []
        for party in agreed.of:
            if party in parts:
                summed += np.frombuffer(parts[party], dtype=np.uint64)
                inside.append(party)
        at = agreed.used - 1
        message = {"do": "shield", "step": "open", "agreement": agreed.name, "at": at, "in": inside, "what": step.what}
        missing = dict(book.missing)
        opened = self.tell(
            step.wanted.action,
            dict.fromkeys(inside, message),
            book,
            lambda _, reply: _is_of(reply["seed"], KEY) and _is_of(reply["held"], SHARE * (len(agreed.of) - 1)),
        )
        book.missing = missing  # who is gone now has its part in the sum
        if len(opened) < agreed.least:
            raise TooFewAnswers(
                f"action '{step.wanted.action}': {len(opened)} of {len(agreed.of)} parties are left to open a masked "
                f"sum, at least {agreed.least} must be"
            )
        self._unmask(summed, agreed, at, inside, opened)
        return Closed(tuple(inside), form, summed)

    def _unmask(
        self, summed: Words, agreed: Agreed, at: int, inside: Sequence[str], opened: Mapping[str, Message]
    ) -> None:
        helpers = list(opened)[: agreed.least]
        secret = {party: _joined(agreed.of, party, helpers, opened) for party in agreed.of if party not in opened}
        for party in inside:
            summed -= stream(opened[party]["seed"] if party in opened else secret[party], len(summed))
        for place, party in enumerate(agreed.of):
            if party in inside:
                continue
            for other, neighbour in enumerate(agreed.of):
                if neighbour in inside:
                    public = agreed.keys[neighbour][KEY * at : KEY * (at + 1)]
                    mask = stream(_common(secret[party], public), len(summed))
                    if place > other:  # the neighbour has added it
                        summed -= mask
                    else:
                        summed += mask

    def read(self, closed: Closed, step: Step, book: Book) -> dict[str, Tensor]:
        return of_words(closed.value, closed.form, self.bits)

    def parcel(self, closed: Closed, at: Tensor | None) -> Message:
        assert self._agreed is not None
        _, places = rows_of_words(closed.form, at)
        words = np.ascontiguousarray(closed.value[places])
        return {
            "agreement": self._agreed.name, "at": self._agreed.used - 1, "in": list(closed.of),
            "form": form_text(closed.form), "closed": words.tobytes(),
        }  # fmt: skip


def _common(private: bytes, public: bytes) -> bytes:
    """s_uv: the seed that two parties agree on."""
    return derived(agreed(private, public), b"mask")


def _group(group: bytes, at: int) -> bytes:
    """The seed under which a party closes its part of a sum that only the parties read."""
    return derived(group, b"group %d" % at)


def _joined(of: Sequence[str], party: str, helpers: Sequence[str], opened: Mapping[str, Message]) -> bytes:
    """A party's secret, of the shares that helpers hold."""
    shares, place = {}, of.index(party)
    for helper in helpers:
        own = of.index(helper)
        at = (place - (place > own)) * SHARE  # a helper holds none of its own
        shares[own + 1] = opened[helper]["held"][at : at + SHARE]
    return join(shares)


def _is_of(data: Any, size: int) -> bool:
    return isinstance(data, bytes) and len(data) == size


def _has_shares(of: Sequence[str], count: int, party: str, reply: Message) -> bool:
    """Whether there is an envelope with shares for each of the others."""
    size = OVERHEAD + 2 * count * SHARE + KEY
    return reply["shares"].keys() == set(of) - {party} and all(_is_of(each, size) for each in reply["shares"].values())


def _are_keys(keys: Any, count: int) -> bool:
    """Whether these are so many public keys that can be agreed with."""
    return _is_of(keys, count * KEY) and all(is_public(keys[at : at + KEY]) for at in range(0, len(keys), KEY))
