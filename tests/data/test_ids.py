import hashlib
import os
import stat

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.data.ids import KEY_BYTES, PLAIN, KeyedHash, read_key, uniform, write_key
from isthmus.errors import IsthmusError

KEY = b"k" * KEY_BYTES


def test_known_answers_of_hmac_sha256():
    """RFC 4231, test cases 2 and 1: the first 63 bits after the sign bit."""
    assert KeyedHash(b"Jefe").numbers(["what do ya want for nothing?"]).tolist() == [0x5BDCC146BF60754E]
    assert KeyedHash(b"\x0b" * 20).numbers(["Hi There"]).tolist() == [0xB0344C61D8DB3853 & (2**63 - 1)]


def test_without_a_key_the_hash_is_plain():
    due = int.from_bytes(hashlib.sha256("Zürich".encode()).digest()[:8], "big") & (2**63 - 1)
    assert PLAIN.numbers(["Zürich"]).tolist() == [due]


def test_another_key_gives_other_numbers():
    names = [f"account-{at}" for at in range(1000)]
    one, two, none = (hashing.numbers(names) for hashing in (KeyedHash(KEY), KeyedHash(b"other" * 8), PLAIN))
    assert torch.cat([one, two, none]).unique().numel() == 3000


def test_numbers_and_texts_are_the_same_under_a_key():
    assert KeyedHash(KEY).numbers([17, -3]).equal(KeyedHash(KEY).numbers(["17", "-3"]))
    assert not KeyedHash(KEY).numbers(["17"]).equal(KeyedHash(KEY).numbers(["017"]))


def test_hashes_are_whole_numbers_that_are_never_negative():
    found = KeyedHash(KEY).numbers(range(2000))
    assert found.dtype == torch.int64
    assert int(found.min()) >= 0
    assert int(found.max()) > 2**62
    assert KeyedHash(KEY).numbers([]).shape == (0,)
    assert PLAIN.numbers([]).dtype == torch.int64


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=30), st.integers(0, 5), st.randoms())
def test_the_draw_of_an_id_depends_on_nothing_but_seed_and_purpose(ids, seed, order):
    whole = dict(zip(ids, uniform(torch.tensor(ids), seed, "split").tolist(), strict=True))
    some = order.sample(ids, len(ids))[: max(1, len(ids) // 2)]
    assert uniform(torch.tensor(some), seed, "split").tolist() == [whole[each] for each in some]
    assert all(0 <= value < 1 for value in whole.values())


def test_draws_are_even_and_differ_by_seed_and_purpose():
    ids = torch.arange(20_000)
    one = uniform(ids, 0, "split")
    counts = torch.histc(one, 10, 0, 1)
    assert float((counts - 2000).abs().max()) < 250  # six standard deviations
    for other in (uniform(ids, 1, "split"), uniform(ids, 0, "other"), one.roll(1)):
        assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 0.05


def test_a_key_file_is_its_owners_alone(tmp_path):
    file = tmp_path / "deep" / "key"
    before = os.umask(0)
    try:
        write_key(file)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(read_key(file)) == 2 * KEY_BYTES
    assert [each.name for each in file.parent.iterdir()] == ["key"]


def test_keys_differ(tmp_path):
    write_key(tmp_path / "a")
    write_key(tmp_path / "b")
    assert read_key(tmp_path / "a") != read_key(tmp_path / "b")


def test_a_key_that_is_there_is_not_overwritten(tmp_path):
    (tmp_path / "key").write_bytes(KEY)
    with pytest.raises(IsthmusError, match=r"exists: choose another file"):
        write_key(tmp_path / "key")
    assert (tmp_path / "key").read_bytes() == KEY


def test_a_key_that_could_be_guessed_is_refused(tmp_path):
    (tmp_path / "key").write_bytes(b"secret" + b"\n" * KEY_BYTES)
    with pytest.raises(IsthmusError, match=r"has 6 bytes, too few: create a key with isthmus party key"):
        read_key(tmp_path / "key")


def test_a_table_is_not_a_key(tmp_path):
    (tmp_path / "key").write_text("id,amount\n" + "7,1\n" * KEY_BYTES)
    with pytest.raises(IsthmusError, match=r"key is not a key, which is one line: give the file that"):
        read_key(tmp_path / "key")


def test_white_space_around_a_key_plays_no_part(tmp_path):
    (tmp_path / "key").write_bytes(b"\n" + KEY + b"\r\n")
    assert read_key(tmp_path / "key") == KEY


@pytest.mark.parametrize("path", ["nowhere", ".", "a\0b"])
def test_a_key_that_cannot_be_read_is_an_error_of_one_line(tmp_path, path):
    with pytest.raises(IsthmusError, match="cannot read the key") as caught:
        read_key(f"{tmp_path}/{path}")
    assert "\n" not in str(caught.value)
