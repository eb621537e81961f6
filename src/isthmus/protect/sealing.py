"""Sealed envelopes between parties. The server carries them, and sees only sender, receiver and size.

A party's kit holds its long-lived X25519 key and the public keys of all other parties. For every run the party draws a
session key. Each direction between two parties has a key derived from two key agreements: one of the long-lived keys,
which authenticates the parties, and one of the session keys, so that recorded envelopes stay closed even if kits leak
later. Envelopes use ChaCha20-Poly1305, with their number as the nonce.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from isthmus.errors import IsthmusError, missing_extra

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256, Hash
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as error:
    raise missing_extra("cryptography", "federation", "sealed messages and masked sums") from error

OVERHEAD = 8 + 16
"""Bytes that an envelope adds to its content: its number and its authentication tag."""


@dataclass(frozen=True)
class Keyring:
    """A party's long-lived private key, and the public keys of all parties; each has 32 bytes."""

    name: str
    private_key: bytes
    public_keys: Mapping[str, bytes]

    def __repr__(self) -> str:
        return f"Keyring({self.name!r}, of {len(self.public_keys)} parties)"


def generate_keyrings(parties: tuple[str, ...]) -> dict[str, Keyring]:
    """Generate keys for all parties."""
    privates = {party: X25519PrivateKey.generate().private_bytes_raw() for party in parties}
    public_keys = {party: public_key(private) for party, private in privates.items()}
    return {party: Keyring(party, private, public_keys) for party, private in privates.items()}


def public_key(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def shared_secret(private: bytes, public: bytes) -> bytes:
    """Compute the secret that the holders of two keys share, 32 bytes."""
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise IsthmusError("this is not an X25519 public key") from error


def is_public_key(key: object) -> bool:
    """Whether a secret can be agreed on with this key."""
    try:
        private = X25519PrivateKey.generate().private_bytes_raw()
        return isinstance(key, bytes) and len(shared_secret(private, key)) == len(key)
    except IsthmusError:
        return False


def derive_key(secret: bytes, about: bytes) -> bytes:
    """Derive a key of 32 bytes for one purpose."""
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=b"isthmus " + about).derive(secret)


def fingerprint(*parts: str | bytes) -> str:
    """A hash of these parts, which no others have."""
    digest = Hash(SHA256())
    digest.update(_joined(*parts))
    return digest.finalize().hex()


def _joined(*parts: str | bytes) -> bytes:
    """Parts with their lengths before them, so that different parts give different bytes."""
    known = [part.encode() if isinstance(part, str) else part for part in parts]
    return b"".join(len(part).to_bytes(4, "big") + part for part in known)


class Channel:
    """One party's envelopes in one run.

    An envelope opens once, for its addressee, in the order of sending, and for its purpose (`about`).

    >>> rings = generate_keyrings(("a", "b"))
    >>> a, b = Channel(rings["a"], "run"), Channel(rings["b"], "run")
    >>> a.set_sessions({"b": b.session}); b.set_sessions({"a": a.session})
    >>> b.open("a", a.seal("b", b"hello", "lend"), "lend")
    b'hello'
    """

    def __init__(self, ring: Keyring, run: str) -> None:
        self.ring, self.run = ring, run
        self._session_key = X25519PrivateKey.generate().private_bytes_raw()
        self.session = public_key(self._session_key)
        self._sessions: dict[str, bytes] = {}
        self._keys: dict[tuple[str, bytes, bool], ChaCha20Poly1305] = {}
        self._last: dict[tuple[str, bytes, bool], int] = {}

    def set_sessions(self, sessions: Mapping[str, bytes]) -> None:
        """Set the public session keys of other parties; a party that restarted has a new one."""
        for party, session in sessions.items():
            if party not in self.ring.public_keys:
                raise IsthmusError(f"party '{party}' is not in the kit of '{self.ring.name}'")
            self._sessions[party] = bytes(session)

    def seal(self, to: str, data: bytes, about: str) -> bytes:
        """Make an envelope for another party."""
        key, direction = self._key(to, outward=True)
        number = self._last[direction] = self._last.get(direction, 0) + 1
        return number.to_bytes(8, "big") + key.encrypt(number.to_bytes(12, "big"), data, about.encode())

    def open(self, sender: str, envelope: bytes, about: str) -> bytes:
        """Open an envelope; one that was changed, repeated, or is older than the last one is refused."""
        key, direction = self._key(sender, outward=False)
        number = int.from_bytes(envelope[:8], "big")
        if number <= self._last.get(direction, 0):
            raise IsthmusError(f"refused: an envelope from '{sender}' came twice, or after a later one ('{about}')")
        try:
            data = key.decrypt(number.to_bytes(12, "big"), envelope[8:], about.encode())
        except InvalidTag as error:
            raise IsthmusError(f"refused: an envelope from '{sender}' does not open ('{about}')") from error
        self._last[direction] = number
        return data

    def _key(self, other: str, outward: bool) -> tuple[ChaCha20Poly1305, tuple[str, bytes, bool]]:
        if other not in self._sessions:
            raise IsthmusError(f"party '{other}' has not started this run")
        session = self._sessions[other]
        direction = (other, session, outward)
        if direction not in self._keys:
            secret = shared_secret(self.ring.private_key, self.ring.public_keys[other])
            secret += shared_secret(self._session_key, session)
            ends = [(self.ring.name, self.session), (other, session)]
            parts = [part for name, key in (ends if outward else ends[::-1]) for part in (name, key)]
            self._keys[direction] = ChaCha20Poly1305(derive_key(secret, _joined("envelope", self.run, *parts)))
        return self._keys[direction], direction
