"""Arrays in mapped files are what was appended to them, and an entry of the cache is complete or absent."""

import os
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus import store
from isthmus.data import mapped
from isthmus.data.cache import cache_root
from isthmus.data.mapped import Arrays, ranges, repeats
from isthmus.errors import IsthmusError


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ISTHMUS_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("in_files", [False, True])
def test_an_array_is_what_was_appended(tmp_path, monkeypatch, in_files):
    monkeypatch.setattr(mapped, "BLOCK", 4)
    with Arrays(tmp_path if in_files else None) as arrays:
        empty, numbers = arrays.series("empty", np.float32), arrays.series("numbers", np.int64)
        for part in ([1, 2, 3], [], [[4, 5], [6, 7]], [8, 9]):
            numbers.append(np.array(part, dtype=np.int64))
        assert [block.tolist() for block in numbers.blocks()] == [[1, 2, 3, 4], [5, 6, 7, 8], [9]]
        assert list(empty.blocks()) == []
        found = arrays.tensors()
    assert found["numbers"].tolist() == list(range(1, 10))
    assert (found["empty"].dtype, found["empty"].shape) == (torch.float32, (0,))


def cached(key, build):
    return mapped.cached(key, build, lambda *found: found)


def build(arrays: Arrays) -> list[str]:
    series, other = arrays.series("a", np.int64), arrays.temporary(np.int64)
    series.append([1, 2, 3])
    other.append([4])
    return ["a note"]


def refuse(arrays: Arrays) -> None:
    raise AssertionError("built again")


def test_an_entry_is_built_once():
    for function in (build, refuse):
        arrays, notes = cached("key", function)
        assert (arrays["a"].tolist(), notes) == ([1, 2, 3], ["a note"])
    assert sorted(file.name for file in (cache_root() / "mapped" / "key").iterdir()) == ["a.bin", "content.json"]


def test_what_is_written_into_a_mapped_tensor_stays_in_this_process():
    arrays, _ = cached("key", build)
    arrays["a"][0] = 7
    again, _ = cached("key", refuse)
    assert (arrays["a"].tolist(), again["a"].tolist()) == ([7, 2, 3], [1, 2, 3])


@pytest.mark.parametrize("name", ["a.bin", "content.json"])
def test_a_damaged_entry_is_built_again(name):
    cached("key", build)
    file = cache_root() / "mapped" / "key" / name
    file.write_bytes(file.read_bytes()[:-2])
    arrays, _ = cached("key", build)
    assert arrays["a"].tolist() == [1, 2, 3]
    cached("key", refuse)


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"arrays": [], "notes": []},
        {"arrays": {"a": ["<i8", -3]}, "notes": []},
        {"arrays": {"a": ["O", 3]}, "notes": []},
        {"arrays": {"a": [3, "x"]}, "notes": []},
        {"arrays": {"b": ["<i8", 3]}, "notes": []},
        {"arrays": {"a": ["<i8", 3]}, "notes": 3},
        {"arrays": {"a": ["<f8", 3]}},
    ],
)
def test_an_entry_with_wrong_content_is_built_again(content):
    def use(arrays, notes):
        return arrays["a"].tolist(), list(notes)

    mapped.cached("key", build, use)
    file = cache_root() / "mapped" / "key" / "content.json"
    file.write_text("[]") if content == [] else store.write_json(file, content)
    assert mapped.cached("key", build, use) == ([1, 2, 3], ["a note"])
    assert mapped.cached("key", refuse, use) == ([1, 2, 3], ["a note"])


def test_nothing_is_left_of_an_entry_that_could_not_be_built():
    def fail(arrays: Arrays) -> None:
        build(arrays)
        raise ValueError("no")

    def decline(arrays: Arrays) -> None:
        build(arrays)

    with pytest.raises(ValueError, match="no"):
        cached("key", fail)
    assert cached("key", decline) is None
    assert list((cache_root() / "mapped").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_a_one_line_error(tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(IsthmusError, match="set ISTHMUS_CACHE to another folder") as caught:
        cached("key", build)
    assert "\n" not in str(caught.value)


def test_a_full_disk_is_a_one_line_error(monkeypatch):
    def full(arrays: Arrays) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(IsthmusError, match="No space left on device; make room"):
        cached("key", full)


def test_entries_that_nobody_reads_are_deleted():
    for key in ("old", "read", "new"):
        if key == "new":
            for each in ("old", "read"):
                long_ago = time.time() - (mapped.DAYS + 1) * 24 * 3600
                os.utime(cache_root() / "mapped" / each, (long_ago, long_ago))
            cached("read", refuse)
        cached(key, build)
    assert sorted(entry.name for entry in (cache_root() / "mapped").iterdir()) == ["new", "read"]


@settings(max_examples=50)
@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=30), limit=st.integers(1, 12))
def test_ranges_cover_all_positions_and_are_as_long_as_the_limit_allows(counts, limit):
    found = ranges(np.array(counts), limit)
    assert [at for start, stop in found for at in range(start, stop)] == list(range(len(counts)))
    for start, stop in found:
        assert sum(counts[start:stop]) <= limit or stop == start + 1
        assert stop == len(counts) or sum(counts[start : stop + 1]) > limit


@settings(max_examples=50)
@given(pairs=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=60), limit=st.integers(1, 20))
def test_repeats_are_the_pairs_that_occurred_before(pairs, limit):
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    counts = np.bincount(ends[0], minlength=7)
    before = mapped.SORTED
    try:
        mapped.SORTED = limit
        blocks = [ends[:, at : at + 4] for at in range(0, len(pairs), 4)]
        found = repeats(lambda: ((block[0], block[1]) for block in blocks), counts)
    finally:
        mapped.SORTED = before
    assert found.tolist() == [at for at, pair in enumerate(pairs) if pair in pairs[:at]]
