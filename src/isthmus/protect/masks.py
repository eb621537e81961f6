"""Sums of masked parts: Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine Learning".

The protocol of its figure 4, with the rounds against a server that does not follow it. For every sum, a party u draws a
key pair (s_u) and a seed b_u, and gives all parties of the sum Shamir shares of both:

    keys     u sends the public key of s_u                        round 0; the keys c_u are in the kits
    shares   u seals its shares of s_u and of b_u for v           round 1; v gets them in the step take
    closed   y_u = x_u + PRG(b_u) + sum_{v > u} PRG(s_uv) - sum_{v < u} PRG(s_uv)   mod 2^64            round 2
    confirm  u tells every v in the sum, sealed, which parties are in it                                round 3
    open     u sends shares of b_v for all v in the sum, of s_v for all who dropped out                     round 4

s_uv is derived from the shared X25519 secret of u and v and a digest of all that the server told a party about the sum:
the call, the request, the rows. Where it told two parties different things, their masks do not cancel. PRG is AES-256
in counter mode. Where the paper signs, envelopes are used,
which the server cannot make either: those of round 1 open only if both ends know the same keys of all parties, and u
takes part in round 4 only if enough others have confirmed the same parties to it. Keys and shares cover several sums at
once. docs/masks.md says what each side checks, and what it comes to.

In a sum for the parties alone, every part also gets the mask PRG(g_u); parties send each other g_u with the shares.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
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

from isthmus.protect.base import ClosedSum, Closing, Guard, Message, PartyLinks, ProtectedSums, SumCheck, SumStep, Tally
from isthmus.protect.parts import Form, Words, form_of, format_form, from_words, locate_rows, to_words, word_count
from isthmus.protect.sealing import (
    OVERHEAD,
    Channel,
    derive_key,
    fingerprint,
    is_public_key,
    public_key,
    shared_secret,
)  # fmt: skip
from isthmus.protect.shamir import SHARE, join, split

AT_ONCE = 16
"""Sums that one agreement covers, from the second sum over the same parties on."""
KEY = 32
"""Bytes of a key or a seed."""
HALVES = {"counts": 2, "sums": 1}
"""What is closed: counts and their proof, or sums."""


def stream(seed: bytes, words: int) -> Words:
    """PRG: expand a seed to words that look random without it."""
    return np.frombuffer(Cipher(AES(seed), CTR(bytes(16))).encryptor().update(bytes(8 * words)), dtype=np.uint64)


@dataclass
class PartyAgreement:
    """One party's keys for some sums over the same parties.

    Attributes:
        of: the parties; shares are at their positions, counted from 1.
        threshold: how many parties open a sum.
        privates, seeds: s_u and b_u of each sum.
        group: g_u, for all of these sums.
        publics: the public keys of s, by party.
        digest: of what all parties must know alike.
        shares: the shares that this party holds of others' secrets, one after the other, by party.
        groups: g by party.
        masked: sums that this party has masked a part of, and what it masked.
        confirmed: sums for which it has told the others which parties are in them, and these.
        needed: how many of these must have confirmed them before it helps to open the sum.
        opened: sums that it helped to open.
    """

    of: tuple[str, ...]
    threshold: int
    privates: list[bytes]
    seeds: list[bytes]
    group: bytes
    publics: dict[str, list[bytes]] = field(default_factory=dict)
    digest: str = ""
    shares: dict[str, bytes] = field(default_factory=dict)
    groups: dict[str, bytes] = field(default_factory=dict)
    masked: dict[int, Closing] = field(default_factory=dict)
    confirmed: dict[int, tuple[str, ...]] = field(default_factory=dict)
    needed: dict[int, int] = field(default_factory=dict)
    opened: set[int] = field(default_factory=set)

    def share(self, party: str, at: int, seed: bool) -> bytes:
        """Return the share of a party's b (`seed`) or s for one sum."""
        begin = (2 * at + seed) * SHARE
        return self.shares[party][begin : begin + SHARE]


class MaskingGuard(Guard):
    """The party's side of masked sums."""

    def __init__(self, bits: int, threshold: float, channel: Channel, min_parties: int) -> None:
        super().__init__(channel, min_parties)
        self.bits, self.threshold = bits, threshold
        self._name = ""
        self._agreement: PartyAgreement | None = None
        self._counts: tuple[PartyAgreement, int] | None = None

    def answer_step(self, message: Message) -> Message:
        steps = {
            "keys": self._keys, "shares": self._shares, "take": self._take, "confirm": self._confirm,
            "open": self._open,
        }  # fmt: skip
        if message["step"] not in steps:
            raise IsthmusError(f"a masked sum has no step '{message['step']}'")
        return steps[message["step"]](message)

    def _keys(self, message: Message) -> Message:
        """Round 0: draw keys for sums over these parties; they replace those of earlier agreements."""
        of, count = tuple(map(str, message["of"])), int(message["count"])
        known = self.channel.ring.public_keys.keys()
        few = len(set(of)) < max(len(of), self.min_parties)
        if self.name not in of or few or not known >= set(of) or not 0 < count <= AT_ONCE:
            raise IsthmusError(f"refused: keys for {count} sums over the parties {', '.join(of)}")
        threshold = openers(len(of), self.threshold)
        self._name = str(message["agreement"])
        drawn = [secrets.token_bytes(KEY) for _ in range(count)]
        self._agreement = PartyAgreement(of, threshold, drawn, [secrets.token_bytes(KEY) for _ in drawn],
                                    secrets.token_bytes(KEY))  # fmt: skip
        return {"keys": b"".join(map(public_key, drawn))}

    def _shares(self, message: Message) -> Message:
        """Round 1: split the secrets, and seal the shares for the other parties."""
        mine = self._current(message)
        if mine.publics or set(message["keys"]) != set(mine.of):
            raise IsthmusError("refused: keys were shared before, or are not those of the parties in the sum")
        for party, keys in message["keys"].items():
            mine.publics[party] = [keys[at : at + KEY] for at in range(0, len(keys), KEY)]
        if mine.publics[self.name] != list(map(public_key, mine.privates)):
            raise IsthmusError("refused: the server shows other keys of this party than it has sent")
        keys = [message["keys"][party] for party in mine.of]
        mine.digest = fingerprint(self._name, str(mine.threshold), *mine.of, *keys)
        hidden = [secret for both in zip(mine.privates, mine.seeds, strict=True) for secret in both]
        shares = split(hidden, mine.threshold, range(1, len(mine.of) + 1))
        sealed = {}
        for position, party in enumerate(mine.of, start=1):
            if party == self.name:
                mine.shares[party], mine.groups[party] = shares[position], mine.group
            else:
                sealed[party] = self.channel.seal(party, shares[position] + mine.group, f"shares {mine.digest}")
        return {"shares": sealed}

    def _take(self, message: Message) -> Message:
        """Keep the shares of others; name the parties whose envelopes do not open."""
        mine, bad = self._current(message), list[str]()
        for party, envelope in message["shares"].items():
            try:
                inside = self.channel.open(party, envelope, f"shares {mine.digest}")
            except IsthmusError:
                bad.append(party)
                continue
            mine.shares[party], mine.groups[party] = inside[:-KEY], inside[-KEY:]
        return {"bad": bad}

    def close(self, columns: Mapping[str, Tensor], message: Message, closing: Closing) -> bytes:
        """Round 2: mask the part."""
        mine, at = self._current(message), int(message["at"])
        missing = [party for party in mine.of if party not in mine.shares or party not in mine.publics]
        if missing or at in mine.masked or not 0 <= at < len(mine.privates):
            raise IsthmusError(f"refused: masks are used up, or not agreed on with {missing or 'anyone'}")
        mine.masked[at] = closing
        words = to_words(columns, len(mine.of), self.bits)
        if closing.what == "counts":
            self._counts = mine, at
            proof = words * _factor(mine, at) + stream(_group(mine.group, at), len(words))
            words = np.concatenate([words, proof])
        words += stream(mine.seeds[at], len(words))
        own = mine.of.index(self.name)
        for other, party in enumerate(mine.of):
            if other != own:
                mask = stream(_common(mine.privates[at], mine.publics[party][at], closing.about), len(words))
                words = words + mask if other > own else words - mask
        if message["to"] == "parties" and closing.what == "sums":
            words += stream(_group(mine.group, at), len(words))
        return words.tobytes()

    def counted(self, wanted: Message) -> tuple[dict[str, Tensor], tuple[str, ...]]:
        """Check counts, and their product with a factor that the parties share and the server does not know."""
        if self._part is None or self._counts is None or self._counts[1] not in self._counts[0].confirmed:
            raise IsthmusError("refused: contributors of this sum were not counted")
        mine, at = self._counts
        of, form = mine.confirmed[at], form_of(self._part.counts)
        both = np.frombuffer(wanted.get("counted", b""), dtype=np.uint64)
        if len(both) != 2 * word_count(form):
            raise IsthmusError("refused: contributors of this sum were not counted")
        words, proof = (each.copy() for each in np.split(both, 2))
        for party in of:
            proof -= stream(_group(mine.groups[party], at), len(words))
        if not np.array_equal(proof, words * _factor(mine, at)):
            raise IsthmusError("refused: the counts of contributors are not those that the parties sent")
        return from_words(words, form, self.bits), of

    def _confirm(self, message: Message) -> Message:
        """Round 3: tell every other party in the sum which parties are in it; once, and never another set."""
        mine, at, of = self._current(message), int(message["at"]), tuple(map(str, message["in"]))
        if at not in mine.masked or at in mine.confirmed or len(of) < mine.threshold:
            raise IsthmusError("refused: the parties of this sum were confirmed before, or are too few")
        if of != tuple(party for party in mine.of if party in of):
            raise IsthmusError("refused: these are not parties of this sum, in their order")
        self.permit_opening(of, mine.masked[at])
        # who has not seen how an earlier sum was opened relies on all others, one of whom has
        mine.needed[at] = len(of) if self.repeats(mine.masked[at]) else mine.threshold
        mine.confirmed[at] = of
        about = _about_parties(mine, at, of)
        return {"confirmed": {party: self.channel.seal(party, b"", about) for party in of if party != self.name}}

    def _open(self, message: Message) -> Message:
        """Round 4: give one share per party: of its seed if it is in the sum, otherwise of its key, never both."""
        mine, at = self._current(message), int(message["at"])
        if at not in mine.confirmed or at in mine.opened:
            raise IsthmusError("refused: the sum was opened before, or nobody has confirmed which parties are in it")
        of = mine.confirmed[at]
        about, agree = _about_parties(mine, at, of), 1
        for party, envelope in message["confirmed"].items():
            if party in of and party != self.name:
                with suppress(IsthmusError):
                    agree += self.channel.open(party, envelope, about) == b""
        if agree < mine.needed[at]:
            raise IsthmusError(
                f"refused: {agree} of {len(mine.of)} say the same parties are in the sum, {mine.needed[at]} must"
            )
        mine.opened.add(at)
        held = b"".join(mine.share(party, at, seed=party in of) for party in mine.of if party != self.name)
        seed, mine.seeds[at], mine.privates[at] = mine.seeds[at], b"", b""  # nobody may open this sum again
        return {"seed": seed, "held": held}

    def open(self, closed: Any, form: Form, rows: Tensor | None, message: Message) -> dict[str, Tensor]:
        mine = self._current(message)
        if mine.confirmed.get(int(message["at"])) != tuple(message["in"]):
            raise IsthmusError("refused: this party has not confirmed a sum over these parties")
        form_of_rows, positions = locate_rows(form, rows)
        words = np.frombuffer(closed, dtype=np.uint64).copy()
        for party in message["in"]:
            words -= stream(_group(mine.groups[party], int(message["at"])), word_count(form))[positions]
        return from_words(words, form_of_rows, self.bits)

    def _current(self, message: Message) -> PartyAgreement:
        if self._agreement is None or message["agreement"] != self._name:
            raise IsthmusError("there is no agreement on keys for this sum")
        return self._agreement


@dataclass
class ServerAgreement:
    """What the server knows of an agreement.

    Attributes:
        threshold: how many parties open a sum.
        keys: the public keys of s, by party.
        count, used: how many sums it covers, and how many of them were used.
    """

    name: str
    of: tuple[str, ...]
    threshold: int
    keys: dict[str, bytes]
    count: int
    used: int = 0


class MaskedSums(ProtectedSums):
    """The server's side of masked sums."""

    def __init__(self, bits: int, threshold: float, links: PartyLinks, check: SumCheck, tries: int) -> None:
        super().__init__(links, check, tries)
        self.bits, self.threshold = bits, threshold
        self._agreement: ServerAgreement | None = None

    def restart(self) -> None:
        self._agreement = None

    def ready(self, action: str, asked: tuple[str, ...], tally: Tally) -> tuple[tuple[str, ...], dict[str, Message]]:
        if self._agreement is None or self._agreement.of != asked or self._agreement.used == self._agreement.count:
            again = self._agreement is not None and self._agreement.of == asked
            asked = self._agree(action, asked, AT_ONCE if again else 1, tally)
        agreed = self._agreement
        assert agreed is not None
        agreed.used += 1
        return asked, {party: {"agreement": agreed.name, "at": agreed.used - 1} for party in asked}

    def _agree(self, action: str, asked: tuple[str, ...], count: int, tally: Tally) -> tuple[str, ...]:
        """Run rounds 0 and 1; parties that do not answer, or answer wrongly, are not in the sum."""
        while len(asked) > 1:
            name, threshold = secrets.token_hex(8), openers(len(asked), self.threshold)
            head = {"do": "shield", "agreement": name}
            request = {"of": list(asked), "count": count}
            messages: dict[str, Message] = {party: {**head, "step": "keys", **request} for party in asked}
            found = keys = self.send_step(action, messages, tally, lambda _, reply: _are_keys(reply["keys"], count))
            if found.keys() == set(asked):
                publics = {party: reply["keys"] for party, reply in keys.items()}
                messages = {party: {**head, "step": "shares", "keys": publics} for party in asked}
                found = shares = self.send_step(action, messages, tally, partial(_has_shares, asked, count))
            if found.keys() == set(asked):
                messages = {
                    party: {
                        **head,
                        "step": "take",
                        "shares": {s: shares[s]["shares"][party] for s in asked if s != party},
                    }
                    for party in asked
                }
                found = self._take_shares(action, messages, tally)
            if found.keys() == set(asked):
                self._agreement = ServerAgreement(name, asked, threshold, publics, count)
                return asked
            asked = tuple(party for party in asked if party in found)
        raise TooFewAnswers(f"action '{action}': fewer than two parties are left to agree on masks")

    def _take_shares(self, action: str, messages: Mapping[str, Message], tally: Tally) -> dict[str, Message]:
        """Deliver shares; return replies of parties that have all, and whose own shares open at most other parties."""
        taken = self.send_step(action, messages, tally, lambda _, reply: set(reply["bad"]) <= messages.keys())
        blamed = Counter(party for reply in taken.values() for party in reply["bad"])
        for party in [party for party, times in blamed.items() if 2 * times > len(messages) - 1 and party in taken]:
            tally.missing[party] = f"action '{action}', its shares do not open"
            del taken[party]
        # a party that blames another one which most others do not blame is itself faulty
        for party in [party for party, reply in taken.items() if any(each in taken for each in reply["bad"])]:
            tally.missing[party] = f"action '{action}', it cannot open the shares of others"
            del taken[party]
        return taken

    def fits(self, closed: Any, form: Form, what: str) -> bool:
        return isinstance(closed, bytes) and len(closed) == 8 * word_count(form) * HALVES[what]

    def add(self, step: SumStep, parts: Mapping[str, Any], form: Form, tally: Tally) -> ClosedSum:
        """Rounds 2 and 4: add masked parts, and remove the masks that do not cancel."""
        agreed, size = self._agreement, word_count(form) * HALVES[step.what]
        assert agreed is not None
        summed, inside = np.zeros(size, dtype=np.uint64), []
        for party in agreed.of:
            if party in parts:
                summed += np.frombuffer(parts[party], dtype=np.uint64)
                inside.append(party)
        at = agreed.used - 1
        head: Message = {"do": "shield", "agreement": agreed.name, "at": at}
        missing = dict(tally.missing)
        said = self.send_step(
            step.wanted.action,
            {party: {**head, "step": "confirm", "in": inside} for party in inside},
            tally,
            lambda party, reply: _has_envelopes(reply["confirmed"], set(inside) - {party}, OVERHEAD),
        )
        opened = self.send_step(
            step.wanted.action,
            {
                party: {
                    **head,
                    "step": "open",
                    "confirmed": {other: said[other]["confirmed"][party] for other in said if other != party},
                }
                for party in said
            },
            tally,
            lambda _, reply: _is_of(reply["seed"], KEY) and _is_of(reply["held"], SHARE * (len(agreed.of) - 1)),
        )
        reasons = [f"'{party}' ({why})" for party, why in tally.missing.items() if party not in missing][:3]
        tally.missing = missing  # a party lost from here on has its part in the sum
        if len(opened) < agreed.threshold:
            raise TooFewAnswers(
                f"action '{step.wanted.action}': opening a masked sum needs {agreed.threshold} of {len(agreed.of)} "
                f"parties, {len(opened)} are left{'; missing: ' * bool(reasons)}{', '.join(reasons)}"
            )
        self._unmask(summed, agreed, at, inside, opened, self.about(step))
        counted = step.what == "counts"
        return ClosedSum(tuple(inside), form, summed[: word_count(form)], summed.tobytes() if counted else b"")

    def _unmask(
        self,
        summed: Words,
        agreed: ServerAgreement,
        at: int,
        inside: Sequence[str],
        opened: Mapping[str, Message],
        about: str,
    ) -> None:
        helpers = list(opened)[: agreed.threshold]
        secret = {party: _join_shares(agreed.of, party, helpers, opened) for party in agreed.of if party not in opened}
        for party in inside:
            summed -= stream(opened[party]["seed"] if party in opened else secret[party], len(summed))
        for position, party in enumerate(agreed.of):
            if party in inside:
                continue
            for other, neighbour in enumerate(agreed.of):
                if neighbour in inside:
                    public = agreed.keys[neighbour][KEY * at : KEY * (at + 1)]
                    mask = stream(_common(secret[party], public, about), len(summed))
                    if position > other:  # the neighbour has added it
                        summed -= mask
                    else:
                        summed += mask

    def read(self, closed: ClosedSum, step: SumStep, tally: Tally) -> dict[str, Tensor]:
        return from_words(closed.value, closed.form, self.bits)

    def parcel(self, closed: ClosedSum, rows: Tensor | None) -> Message:
        assert self._agreement is not None
        _, positions = locate_rows(closed.form, rows)
        words = np.ascontiguousarray(closed.value[positions])
        return {
            "agreement": self._agreement.name, "at": self._agreement.used - 1, "in": list(closed.of),
            "form": format_form(closed.form), "closed": words.tobytes(),
        }  # fmt: skip


def openers(parties: int, threshold: float) -> int:
    """How many parties open a sum: more than this share of them.

    >>> openers(4, 0.5), openers(5, 0.5), openers(9, 2 / 3)
    (3, 3, 7)
    """
    return math.floor(parties * threshold + 1e-9) + 1


def _common(private: bytes, public: bytes, about: str) -> bytes:
    """s_uv: the seed that two parties share in a sum of which they were told the same."""
    return derive_key(shared_secret(private, public), b"mask " + about.encode())


def _group(group: bytes, at: int) -> bytes:
    """Derive the seed of a party's mask in a sum that only the parties read."""
    return derive_key(group, b"group %d" % at)


def _factor(mine: PartyAgreement, at: int) -> np.uint64:
    """An odd number that all parties of a sum know, and nobody else."""
    secret = b"".join(mine.groups[party] for party in mine.of)
    return np.uint64(int.from_bytes(derive_key(secret, b"factor %d" % at)[:8]) | 1)


def _join_shares(of: Sequence[str], party: str, helpers: Sequence[str], opened: Mapping[str, Message]) -> bytes:
    """Join a party's secret from the shares that helpers hold."""
    shares, position = {}, of.index(party)
    for helper in helpers:
        own = of.index(helper)
        at = (position - (position > own)) * SHARE  # a helper holds no share of its own secret
        shares[own + 1] = opened[helper]["held"][at : at + SHARE]
    return join(shares)


def _is_of(data: Any, size: int) -> bool:
    return isinstance(data, bytes) and len(data) == size


def _has_shares(of: Sequence[str], count: int, party: str, reply: Message) -> bool:
    """Whether a reply has an envelope of shares for every other party."""
    return _has_envelopes(reply["shares"], set(of) - {party}, OVERHEAD + 2 * count * SHARE + KEY)


def _has_envelopes(found: Mapping[str, Any], due: set[str], size: int) -> bool:
    """Whether there is an envelope of this size for each of these parties."""
    return found.keys() == due and all(_is_of(each, size) for each in found.values())


def _about_parties(mine: PartyAgreement, at: int, of: Sequence[str]) -> str:
    """What the envelopes are about that confirm which parties are in a sum."""
    return f"parties {fingerprint(mine.digest, mine.masked[at].about, str(at), *of)}"


def _are_keys(keys: Any, count: int) -> bool:
    """Whether these are so many usable public keys."""
    return _is_of(keys, count * KEY) and all(is_public_key(keys[at : at + KEY]) for at in range(0, len(keys), KEY))
