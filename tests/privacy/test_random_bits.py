"""Streams differ by key and by purpose, and nobody can tell them from random bits."""

import numpy as np
import pytest

from isthmus.privacy.random_bits import NoiseKey, SecretBits, SeededBits, derive_key


def test_streams_of_different_keys_and_purposes_are_independent():
    keys = [NoiseKey(0), NoiseKey(1), NoiseKey(bytes(32)), NoiseKey(bytes(31) + b"1")]
    streams = [key.bits(*purpose).words(4000) for key in keys for purpose in (("a",), ("b",), ("a", 1), ("a1",))]
    same = [np.array_equal(one, other) for at, one in enumerate(streams) for other in streams[:at]]
    assert not any(same)
    bits = np.stack([np.unpackbits(stream.view(np.uint8)) for stream in streams]).astype(float)
    assert np.abs(bits.mean(1) - 0.5).max() < 0.006
    assert np.abs(np.corrcoef(bits) - np.eye(len(streams))).max() < 0.012
    assert np.array_equal(NoiseKey(bytes(32)).bits("a").words(9), NoiseKey(bytes(32)).bits("a").words(9))


def test_a_stream_goes_on_whatever_is_asked_at_a_time():
    for make in (lambda: SeededBits(3), lambda: SecretBits(bytes(32))):
        parts, whole = make(), make().words(10)
        assert np.array_equal(np.concatenate([parts.words(3), parts.words(7)]), whole)


def test_a_key_has_256_bits_and_gives_others_for_other_purposes():
    assert len({derive_key(bytes(32)), derive_key(bytes(32), 1), derive_key(bytes(31) + b"1", 1)}) == 3
    with pytest.raises(ValueError, match="32 bytes, not 8"):
        SecretBits(bytes(8))
