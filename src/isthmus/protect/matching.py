"""Matching that reveals nothing: parties find the values that they share, and nobody can test for a value alone.

The parties evaluate a pseudo-random function on each other's values, of which each holds a part of the key. Points are
of ristretto255, a group of prime order in which nobody can compute logarithms; H maps values to it. In one matching:

1. Party i draws a blind r_i, and sends r_i H(v) of its values v, in random order, among random points that fill the
   list up to a coarse size.
2. The list passes through every other party j, which multiplies it by its secret k_j.
3. Party i multiplies what comes home by k_i / r_i and has k_1 ... k_n H(v). 63 bits of a hash of this point are v's
   pseudonym: equal at all parties that have v.

Comparing pseudonyms gives the intersection and the union (`intersection`, `union`), for two parties or many.

What each learns, if logarithms are hard and H is random:

- The owner of a list: the pseudonyms of its values, and nothing of values that it did not put into a list.
- A party that a list passes through: points that look random, the list's size and whose list it is.
- Several parties together: what each of them learns. As long as one party keeps its k to itself, they can compute no
  pseudonym but those of values in their lists, so they have as many guesses as they send points.
- Who carries sealed lists: their sizes.
- Whoever later sees the pseudonyms of several parties, as the server of a method that sums by id: which parties share
  how many values, not which values these are.

A size says within an eighth of an octave how many values a party has (`list_size`). The protocol assumes parties that
multiply whole lists by one secret. One that does not spoils its own study: values no longer meet. It learns nothing by
it, and points that repeat, or are none, are refused.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from isthmus.errors import IsthmusError, missing_extra

try:
    import rbcl
except ImportError as error:
    raise missing_extra("rbcl", "federation", "matching") from error

Points = NDArray[np.uint8]
"""Encoded points, `[points, 32]`."""
Numbers = NDArray[np.int64]

POINT = 32
"""Bytes of an encoded point, and of a scalar."""
SMALLEST = 64
"""Points in the smallest list."""
LARGEST = 1 << 25
"""Points in the largest list: 1 GiB."""
CHUNK = 4096
"""Points that a thread takes at a time."""
_DOMAIN = b"isthmus matching 1 "
_POSITIVE = np.uint64((1 << 63) - 1)


@dataclass(frozen=True, eq=False, repr=False)
class Blinded:
    """A list as it leaves its owner, and what the owner needs to read it when it comes home.

    Arguments:
        points: blinded values among random points, `[points, 32]`.
        at: by value its place in the list, `[values]`.
        blind: the scalar r_i.
    """

    points: Points
    at: Numbers
    blind: bytes


def list_size(values: int) -> int:
    """Return how many points a list of so many values has: eight sizes between a power of two and the next.

    >>> [list_size(values) for values in (0, 64, 65, 1000, 1_000_000)]
    [64, 64, 72, 1024, 1048576]
    """
    if values <= SMALLEST:
        return SMALLEST
    step = 1 << ((values - 1).bit_length() - 4)
    return -(-values // step) * step


def secret_scalar(secret: bytes) -> bytes:
    """Return the scalar k_i that follows from a secret of 32 random bytes."""
    return _reduced(hashlib.sha512(_DOMAIN + b"scalar" + secret).digest())


def blind(values: Sequence[bytes], context: bytes, secret: bytes) -> Blinded:
    """Return the list that leaves the owner of distinct values.

    Arguments:
        context: of the matching, equal at all parties; values give other points in another context.
        secret: 32 random bytes, for this matching alone. Blind, order and random points follow from it and the values:
            a matching that is repeated after a crash discloses nothing new.
    """
    size = list_size(len(values))
    if size > LARGEST:
        raise IsthmusError(f"matching: {len(values):,} values, a list holds at most {LARGEST:,}")
    seed = hashlib.sha256(_DOMAIN + b"list" + secret + hashlib.sha256(b"".join(values)).digest()).digest()
    scalar = _reduced(hashlib.sha512(seed + b"blind").digest())
    prefix = _DOMAIN + len(context).to_bytes(4, "big") + context

    def point(value: bytes) -> bytes:
        hashed = rbcl.crypto_core_ristretto255_from_hash(hashlib.sha512(prefix + value).digest())
        return bytes(rbcl.crypto_scalarmult_ristretto255(scalar, hashed))

    def filler(at: int) -> bytes:
        return bytes(rbcl.crypto_core_ristretto255_from_hash(hashlib.sha512(seed + at.to_bytes(8, "big")).digest()))

    real = _in_chunks(values, lambda chunk: b"".join(map(point, chunk)))
    order = int.from_bytes(hashlib.sha256(seed + b"order").digest(), "big")  # nobody sees numbers drawn with it
    at = np.random.Generator(np.random.PCG64(order)).permutation(size)[: len(values)].astype(np.int64)
    points = np.empty((size, POINT), dtype=np.uint8)
    free = np.ones(size, dtype=bool)
    free[at] = False
    points[at] = real
    points[free] = _in_chunks(range(size - len(values)), lambda chunk: b"".join(map(filler, chunk)))
    return Blinded(points, at, scalar)


def multiply(points: Points, scalar: bytes) -> Points:
    """Return a list multiplied by a party's secret; a list with a point that is none is refused."""

    def product(chunk: Points) -> bytes:
        data = chunk.tobytes()
        return b"".join(
            rbcl.crypto_scalarmult_ristretto255(scalar, data[start : start + POINT])
            for start in range(0, len(data), POINT)
        )

    try:
        return _in_chunks(points, product)
    except (RuntimeError, ValueError, TypeError) as error:  # what rbcl raises of a point that is none, or the identity
        raise IsthmusError("refused: a list to match has a point that is none") from error


def list_problem(points: object, size: int) -> str:
    """Say what is wrong with the form of a list that came: nothing, or why it must not be multiplied."""
    if not isinstance(points, np.ndarray) or points.dtype != np.uint8 or points.ndim != 2 or points.shape[1] != POINT:
        return "it is no list of points"
    if len(points) != size:
        return f"it has {len(points):,} points, announced were {size:,}"
    if len(np.unique(np.ascontiguousarray(points).view(f"V{POINT}"))) < size:
        return "it has a point twice"
    return ""


def unblind(blinded: Blinded, returned: Points, scalar: bytes, context: bytes) -> Numbers:
    """Return the pseudonyms of a list's values, `[values]`, when it has passed through all other parties.

    Arguments:
        returned: the list as it came home.
        scalar: the owner's own secret k_i.
    """
    last = rbcl.crypto_core_ristretto255_scalar_mul(scalar, rbcl.crypto_core_ristretto255_scalar_invert(blinded.blind))
    prefix = _DOMAIN + b"pseudonym" + len(context).to_bytes(4, "big") + context
    whole = multiply(returned[blinded.at], last).tobytes()
    points = (whole[start : start + POINT] for start in range(0, len(whole), POINT))
    digests = b"".join(hashlib.sha256(prefix + point).digest()[:8] for point in points)
    return (np.frombuffer(digests, dtype=">u8").astype(np.uint64) & _POSITIVE).astype(np.int64)


def pseudonyms(
    values: Mapping[str, Sequence[bytes]], secret: Mapping[str, bytes], context: bytes
) -> dict[str, Numbers]:
    """Do the whole protocol in one process; return by party the pseudonyms of its values.

    >>> found = pseudonyms({"a": [b"1", b"2"], "b": [b"2"]}, {"a": b"x" * 32, "b": b"y" * 32}, b"doctest")
    >>> set(found["a"]) & set(found["b"]) == {found["a"][1]}
    True
    """
    scalars = {party: secret_scalar(own) for party, own in secret.items()}
    found: dict[str, Numbers] = {}
    for party, own in values.items():
        sent = blind(own, context, secret[party])
        others = (scalar for other, scalar in scalars.items() if other != party)
        found[party] = unblind(sent, reduce(multiply, others, sent.points), scalars[party], context)
    return found


def intersection(of: Iterable[Numbers]) -> Numbers:
    """Return the pseudonyms that all parties have, ascending."""
    return reduce(np.intersect1d, of)


def union(of: Iterable[Numbers]) -> Numbers:
    """Return the pseudonyms that any party has, ascending."""
    return reduce(np.union1d, of)


def _in_chunks(items: Sequence[bytes] | Points | range, to_bytes: Callable[..., bytes]) -> Points:
    """Return what a function makes of the items, computed in threads: libsodium runs beside Python's lock."""
    chunks = [items[start : start + CHUNK] for start in range(0, len(items), CHUNK)]
    threads = min(len(chunks), int(os.environ.get("OMP_NUM_THREADS", 0)) or os.cpu_count() or 1)
    if threads > 1:
        with ThreadPoolExecutor(threads, thread_name_prefix="matching") as pool:
            parts = list(pool.map(to_bytes, chunks))
    else:
        parts = [to_bytes(chunk) for chunk in chunks]
    return np.frombuffer(b"".join(parts), dtype=np.uint8).reshape(len(items), POINT)


def _reduced(data: bytes) -> bytes:
    return bytes(rbcl.crypto_core_ristretto255_scalar_reduce(data))
