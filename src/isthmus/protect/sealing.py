"""Envelopes between parties: the server carries them, and sees sender, receiver and size.

A party has one long-lived X25519 key, in its kit; the public keys of all others are pinned there too. For every run it
draws another one. The key of a direction follows from both agreements (static with static: only that party; drawn with
drawn: what was recorded cannot be read later, even with the kits' keys). An envelope is ChaCha20-Poly1305, with its
number as the nonce.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from isthmus.errors import IsthmusError, missing_extra

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as error:
    raise missing_extra("cryptography", "federation", "sealed messages and masked sums") from error

OVERHEAD = 8 + 16
"""Bytes of an envelope beside what is in it: its number, and what shows that nobody changed it."""


@dataclass(frozen=True)
class Keyring:
    """A party's long-lived key, and the public ones of all parties.

    Arguments:
        own: the private key, 32 bytes.
        publics: by party, 32 bytes each.
    """

    name: str
    own: bytes
    publics: Mapping[str, bytes]

    def __repr__(self) -> str:
        return f"Keyring({self.name!r}, of {len(self.publics)} parties)"


def keyrings(parties: tuple[str, ...]) -> dict[str, Keyring]:
    """New keys for all parties."""
    privates = {party: X25519PrivateKey.generate().private_bytes_raw() for party in parties}
    publics = {party: public_of(private) for party, private in privates.items()}
    return {party: Keyring(party, private, publics) for party, private in privates.items()}


def public_of(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, public: bytes) -> bytes:
    """What the holders of two keys have in common, 32 bytes."""
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise IsthmusError("a public key that is none") from error


def is_public(key: object) -> bool:
    """Whether this is a key that can be agreed with."""
    try:
        return isinstance(key, bytes) and len(agreed(X25519PrivateKey.generate().private_bytes_raw(), key)) == len(key)
    except IsthmusError:
        return False


def derived(secret: bytes, about: bytes) -> bytes:
    """A key of 32 bytes for one purpose."""
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=b"isthmus " + about).derive(secret)


class Channel:
    """One party's envelopes of one run.

    An envelope opens once, for the one to whom it is addressed, in the order of sending, for what it was made.

    >>> rings = keyrings(("a", "b"))
    >>> a, b = Channel(rings["a"], "run"), Channel(rings["b"], "run")
    >>> a.meet({"b": b.session}); b.meet({"a": a.session})
    >>> b.opened("a", a.sealed("b", b"hello", "lend"), "lend")
    b'hello'
    """

    def __init__(self, ring: Keyring, run: str) -> None:
        self.ring, self.run = ring, run
        self._drawn = X25519PrivateKey.generate().private_bytes_raw()
        self.session = public_of(self._drawn)
        self._sessions: dict[str, bytes] = {}
        self._keys: dict[tuple[str, bytes, bool], ChaCha20Poly1305] = {}
        self._last: dict[tuple[str, bytes, bool], int] = {}

    def meet(self, sessions: Mapping[str, bytes]) -> None:
        """The drawn keys of the others; one that was started anew has another one."""
        for party, session in sessions.items():
            if party not in self.ring.publics:
                raise IsthmusError(f"party '{party}' is not in the kit of '{self.ring.name}'")
            self._sessions[party] = bytes(session)

    def sealed(self, to: str, data: bytes, about: str) -> bytes:
        """An envelope for another party."""
        key, place = self._key(to, outward=True)
        number = self._last[place] = self._last.get(place, 0) + 1
        return number.to_bytes(8, "big") + key.encrypt(number.to_bytes(12, "big"), data, about.encode())

    def opened(self, sender: str, envelope: bytes, about: str) -> bytes:
        """What is in an envelope; one that was changed, came before, or is older than the last one is refused."""
        key, place = self._key(sender, outward=False)
        number = int.from_bytes(envelope[:8], "big")
        if number <= self._last.get(place, 0):
            raise IsthmusError(f"refused: an envelope from '{sender}' came twice, or after a later one ('{about}')")
        try:
            data = key.decrypt(number.to_bytes(12, "big"), envelope[8:], about.encode())
        except InvalidTag as error:
            raise IsthmusError(f"refused: an envelope from '{sender}' does not open ('{about}')") from error
        self._last[place] = number
        return data

    def _key(self, other: str, outward: bool) -> tuple[ChaCha20Poly1305, tuple[str, bytes, bool]]:
        if other not in self._sessions:
            raise IsthmusError(f"party '{other}' has not begun this run")
        place = (other, self._sessions[other], outward)
        if place not in self._keys:
            session = self._sessions[other]
            secret = agreed(self.ring.own, self.ring.publics[other]) + agreed(self._drawn, session)
            ends = [(self.ring.name, self.session), (other, session)]
            told = [part for name, drawn in (ends if outward else ends[::-1]) for part in (name.encode(), drawn)]
            # each part with its length, so that no two lists of parts read the same
            about = b"".join(len(part).to_bytes(4, "big") + part for part in (b"envelope", self.run.encode(), *told))
            self._keys[place] = ChaCha20Poly1305(derived(secret, about))
        return self._keys[place], place
