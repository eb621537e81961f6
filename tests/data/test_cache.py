import os
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus import store
from isthmus.data import cache
from isthmus.data.cache import cache_root, cached, digest, hash_parties, hash_pool
from isthmus.data.datasets.banks import Banks
from isthmus.data.datasets.motifs import Motifs
from isthmus.data.partition.given import Given

PLAIN = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3) | st.binary(max_size=3)
)
GROUPS = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
)


def kind_and_value(value):
    """What tells two values apart: 1, 1.0 and True are three."""
    if isinstance(value, dict):
        return "group", sorted((key, kind_and_value(each)) for key, each in value.items())
    if isinstance(value, list):
        return "list", [kind_and_value(each) for each in value]
    return type(value).__name__, repr(value)


@given(st.lists(GROUPS, max_size=3), st.lists(GROUPS, max_size=3))
def test_only_what_is_the_same_has_the_same_digest(one, other):
    assert (digest(*one) == digest(*other)) == (kind_and_value(one) == kind_and_value(other))


def test_values_that_look_alike_have_digests_of_their_own():
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    sparse = x.to_sparse_csr()
    parts = [sparse.crow_indices(), sparse.col_indices(), sparse.values()]
    alike = [
        x,
        x.double(),
        x.flatten(),
        x.t().contiguous().flatten()[:2],
        x.tolist(),
        sparse,
        [list(x.shape), *parts],
        ("sparse", list(x.shape), *parts),
        x.int(),
        x.bool(),
        torch.tensor(1.0),
        torch.tensor([1.0]),
        torch.empty(0),
        torch.empty(0, 2),
        1.0,
        1,
        "1",
        b"1",
        True,
        None,
        [],
        {},
        [[], []],
        [[[], []]],
        ["ab", "c"],
        ["a", "bc"],
        ["abc"],
        {"a": "b"},
        ["a", "b"],
    ]
    for (at, one), (place, other) in combinations(enumerate(alike), 2):
        assert digest(one) != digest(other), (at, place)


def test_how_a_tensor_lies_in_memory_plays_no_part():
    x = torch.arange(6.0).view(2, 3)
    assert digest(x) == digest(x.t().contiguous().t()) == digest(torch.cat([x, x])[:2]) == digest(x.clone())
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})


def test_a_digest_is_the_same_in_every_process(monkeypatch):
    monkeypatch.setattr(cache, "VERSION", "1")
    found = digest("cora", 3, 0.5, None, {"b": [True], "a": b"x"}, torch.arange(3), torch.eye(2).to_sparse_csr())
    assert found == "1bcc878a0cfde0eb2f82c264da11a3491ba40a0c25081ecefae451772352f9c6"


def test_content_of_parties_is_what_they_hold_and_are_called():
    def parties(seed, *, count=2):
        return Given().cut(Banks(nodes=20, parties=2).load(seed), 2, 0)[:count]

    assert hash_parties(parties(0)) == hash_parties(parties(0))
    others = [parties(1), parties(0, count=1), parties(0)[::-1]]
    assert len({hash_parties(each) for each in [parties(0), *others]}) == 4
    renamed = [replace(each, name=f"x-{each.name}") for each in parties(0)]
    assert hash_parties(renamed) != hash_parties(parties(0))


def test_content_is_what_a_pool_holds(monkeypatch):
    assert hash_pool(Banks(nodes=20).load(0)) == hash_pool(Banks(nodes=20).load(0))
    assert hash_pool(Banks(nodes=20).load(0)) != hash_pool(Banks(nodes=20).load(1))
    pile = Motifs(graphs=4).load(0)
    before = hash_pool(pile)
    del pile.party.graph.ptr  # follows from the rest
    assert hash_pool(pile) == before


@pytest.fixture
def made():
    """What was made, one entry for every time."""
    return []


def maker(made, value=1):
    def make():
        made.append(value)
        return {"a": torch.full((1000,), value), "b": torch.empty(0)}

    return make


def test_what_is_kept_is_made_once(tmp_path, made):
    folder = tmp_path / "new" / "folder"
    for _ in range(3):
        found = cached(folder, "key", maker(made))
        assert torch.equal(found["a"], torch.ones(1000, dtype=torch.long))
        assert found["b"].numel() == 0
    assert made == [1]
    cached(folder, "another", maker(made, 2))
    assert made == [1, 2]


def packed(value):
    return store.pack({"format": store.FORMAT, "value": value})


DAMAGED = {
    "empty": lambda data: b"",
    "truncated": lambda data: data[: len(data) // 2],
    "one bit": lambda data: data[:-100] + bytes([data[-100] ^ 1]) + data[-99:],
    "noise": lambda data: bytes(range(256)) * 4,
    "something else": lambda data: packed(["a"]),
    "without a check": lambda data: packed({"tensors": {"a": torch.zeros(1)}}),
    "of another check": lambda data: packed({"tensors": {"a": torch.zeros(1)}, "check": ""}),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_is_made_anew(tmp_path, made, damage):
    cached(tmp_path, "key", maker(made))
    (path,) = tmp_path.iterdir()
    path.write_bytes(DAMAGED[damage](path.read_bytes()))
    for _ in range(2):
        assert cached(tmp_path, "key", maker(made))["a"].sum() == 1000
    assert made == [1, 1]


@given(st.data())
def test_any_flipped_bit_is_noticed(data):
    path = Path(os.environ["ISTHMUS_CACHE"]) / "flipped.kept"
    store.save(path, {"tensors": {"a": torch.arange(4)}, "check": digest({"a": torch.arange(4)})})
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    found = cache._read(path)
    assert found is None or torch.equal(found["a"], torch.arange(4))


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path, made, monkeypatch):
    file = tmp_path / "file"
    file.write_text("no folder", encoding="utf-8")
    assert cached(file, "key", maker(made))["a"].sum() == 1000

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    locked = tmp_path / "locked"
    monkeypatch.setattr(Path, "mkdir", refuse)
    assert cached(locked, "key", maker(made))["a"].sum() == 1000
    assert made == [1, 1]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_no_error(tmp_path, made):
    tmp_path.chmod(0o500)
    assert cached(tmp_path, "key", maker(made))["a"].sum() == 1000
    assert not list(tmp_path.iterdir())
    tmp_path.chmod(0o000)
    assert cached(tmp_path, "key", maker(made))["a"].sum() == 1000
    tmp_path.chmod(0o700)


def test_the_oldest_files_go(tmp_path, made, monkeypatch):
    monkeypatch.setattr(cache, "MAX_FILES", 2)
    for at, key in enumerate("abc"):
        cached(tmp_path, key, maker(made))
        os.utime(tmp_path / f"{key}.kept", (at, at))
    cached(tmp_path, "d", maker(made))
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["c", "d"]


def test_the_folder_is_that_of_the_environment(monkeypatch):
    monkeypatch.setenv("ISTHMUS_CACHE", "~/elsewhere")
    assert cache_root() == Path.home() / "elsewhere"
    monkeypatch.delenv("ISTHMUS_CACHE")
    assert cache_root() == Path.home() / ".cache" / "isthmus"
