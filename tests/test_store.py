"""A file is written completely or not at all; packed values come back bit for bit."""

from __future__ import annotations

import errno
import os
import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from isthmus import __version__, store
from isthmus.errors import IsthmusError

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    values = draw(st.lists(st.integers(0, 100), min_size=1, max_size=4))
    tensor = torch.tensor(values).repeat(27)[: torch.Size(shape).numel()].view(shape).to(draw(st.sampled_from(DTYPES)))
    return tensor.t() if tensor.dim() == 2 else tensor


keys = st.text(max_size=8) | st.sampled_from(["$tensor", "$$tensor", "$", "tree", "t0"])
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | tensors()
trees = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=8
)


def same(a: Any, b: Any) -> bool:
    """Whether values are equal bit for bit, in type and in order; NaN equals NaN."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and a.shape == b.shape and a.tolist() == b.tolist()
    if isinstance(a, Mapping):
        return isinstance(b, Mapping) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and repr(a) == repr(b)


@settings(deadline=None, derandomize=True)
@given(trees)
def test_packed_value_is_unpacked(value: Any) -> None:
    assert same(value, store.unpack(store.pack(value)))


def test_a_tensor_in_several_places_is_packed_once() -> None:
    whole = torch.arange(1000)
    data = store.pack({name: {"sum": whole, "own": whole[:2].clone()} for name in "abcde"})
    assert len(data) < 2 * whole.numel() * whole.element_size()
    assert all(same(each, {"sum": whole, "own": whole[:2]}) for each in store.unpack(data).values())


class CreatedOnAccess(Mapping[str, Tensor]):
    """A mapping that creates a new tensor on every access."""

    def __getitem__(self, key: str) -> Tensor:
        return torch.tensor([float(key)])

    def __iter__(self) -> Iterator[str]:
        return iter("123456789")

    def __len__(self) -> int:
        return 9


def test_short_lived_tensors_are_not_confused() -> None:
    back = store.unpack(store.pack(CreatedOnAccess()))
    assert {key: value.item() for key, value in back.items()} == {key: float(key) for key in "123456789"}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.0, 5e-324, 0.1 + 0.2])
def test_number_comes_back_bit_for_bit(value: float) -> None:
    tensor = torch.tensor([value], dtype=torch.float64)
    back = store.unpack(store.pack({"plain": value, "tensor": tensor}))
    assert repr(back["plain"]) == repr(value)
    assert torch.equal(back["tensor"].view(torch.int64), tensor.view(torch.int64))


def test_tensors_that_share_memory_come_back_separate() -> None:
    whole = torch.arange(6.0).view(2, 3)
    back = store.unpack(
        store.pack({"row": whole[0], "column": whole[:, 0], "again": whole, "grown": whole[:1].expand(4, 3)})
    )
    assert back["column"].tolist() == [0.0, 3.0]
    assert back["grown"].shape == (4, 3)
    back["row"].zero_()
    assert back["again"][0].tolist() == [0.0, 1.0, 2.0]


def test_tuples_come_back_as_lists() -> None:
    assert store.unpack(store.pack({"a": (1, (2, 3))})) == {"a": [1, [2, 3]]}


@pytest.mark.parametrize("value", [{1, 2}, b"bytes", object(), 1j])
def test_other_things_are_refused(value: Any) -> None:
    with pytest.raises(IsthmusError, match=f"cannot save a {type(value).__name__}: "):
        store.pack({"a": [value]})


def test_key_that_is_not_a_text_is_refused() -> None:
    with pytest.raises(IsthmusError, match="cannot save under the key 1: use a text as key"):
        store.pack({"a": {1: 2}})


def full(*_: Any, **__: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def half_then_full(temporary: Path) -> None:
    temporary.write_bytes(b"ha")
    full()


def test_write_creates_the_folder_and_leaves_only_the_file(tmp_path: Path) -> None:
    store.write(tmp_path / "a" / "b" / "file", "text ⟷")
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["file"]
    assert (tmp_path / "a" / "b" / "file").read_text(encoding="utf-8") == "text ⟷"


@pytest.mark.parametrize(("where", "name"), [(os, "fsync"), (os, "open"), (Path, "replace")])
def test_full_disk_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any, name: str
) -> None:
    file = tmp_path / "file"
    store.write(file, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(where, name, full)
        with pytest.raises(IsthmusError, match=r"cannot write .*: No space left on device"):
            store.write(file, b"new and longer")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("stop", [half_then_full, lambda temporary: (temporary.write_bytes(b"ha"), 1 / 0)])
def test_library_that_fails_halfway_leaves_the_old_file(tmp_path: Path, stop: Any) -> None:
    file = tmp_path / "file"
    store.write(file, b"old")
    with pytest.raises((IsthmusError, ZeroDivisionError)):
        store.write_with(file, stop)
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_impossible_folder_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(IsthmusError, match="cannot write") as caught:
        store.write(tmp_path / "file" / "inside", b"")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"no" * 40])
def test_damaged_file_is_an_error_that_names_it(tmp_path: Path, damage: Any) -> None:
    file = tmp_path / "file"
    store.write(file, damage(store.pack({"a": torch.ones(9)})))
    with pytest.raises(IsthmusError, match=rf"^cannot read {file}: .*delete the file"):
        store.load(file)


def test_saved_value_is_loaded_back(tmp_path: Path) -> None:
    value = {"a": [1, torch.ones(2)], "format": 7}
    store.save(tmp_path / "file", value, private=True)
    assert same(store.load(tmp_path / "file"), value)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("content", "found", "writer"),
    [
        ({"format": 99, "isthmus": "0.9.0", "value": 1}, "format 99", " (isthmus 0.9.0)"),
        ({"format": 0, "value": 1}, "format 0", ""),
        ({"state": {}}, "no format number", ""),
        ([1], "no format number", ""),
    ],
)
def test_another_format_is_an_error_that_says_what_to_do(tmp_path: Path, content: Any, found: str, writer: str) -> None:
    file = tmp_path / "file"
    store.write(file, store.pack(content))
    with pytest.raises(IsthmusError) as caught:
        store.load(file)
    assert str(caught.value) == (
        f"cannot read {file}: it has {found}, and isthmus {__version__} reads format {store.FORMAT}; "
        f"run the study again with --force, or install the version that wrote it{writer}"
    )


def test_locked_file_is_refused_until_it_is_released(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "lock"
    used = r"^the study is in use by another process: stop that process first$"
    with store.lock(file, "the study"), pytest.raises(IsthmusError, match=used):
        store.lock(file, "the study").__enter__()
    with store.lock(file, "the study"):
        pass


def test_lock_passes_on_the_errors_of_its_block(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="gone"), store.lock(tmp_path / "lock", "the study"):
        (tmp_path / "gone").read_bytes()


def test_lock_in_an_impossible_folder_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(IsthmusError, match=r"^cannot lock .*; make its folder writable$"):
        store.lock(tmp_path / "file" / "lock", "the study").__enter__()


def test_flipped_bytes_of_a_saved_value_are_noticed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    store.save(file, {"a": [1, torch.ones(2)], "b": "text"})
    data, draw = file.read_bytes(), random.Random(0)
    for at in range(len(data)):
        file.write_bytes(data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :])
        with pytest.raises(IsthmusError, match=rf"^cannot read {file}: .*; delete the file to start that run again$"):
            store.load(file)


def test_value_that_was_saved_without_a_checksum_is_loaded(tmp_path: Path) -> None:
    store.write(tmp_path / "file", store.pack({"format": store.FORMAT, "isthmus": "0.1.0", "value": [1]}))
    assert store.load(tmp_path / "file") == [1]


def test_flipped_bytes_of_json_are_noticed_or_change_nothing(tmp_path: Path) -> None:
    file, content = tmp_path / "file.json", {"name": "north", "parties": ["a", "b"], "port": 8002}
    store.write_json(file, content)
    data, draw = file.read_bytes(), random.Random(0)
    for at in range(len(data)):
        file.write_bytes(data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :])
        try:
            found = store.read_json(file)
        except ValueError:
            continue
        assert {key: found[key] for key in found if not key.startswith("s")} == content or set(found) != set(content)


def test_file_other_than_its_checksum_says_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    store.write_sums(tmp_path, ["a"])
    store.check_sum(tmp_path, "a")
    (tmp_path / "a").write_text("b")
    with pytest.raises(ValueError, match="its checksum is wrong"):
        store.check_sum(tmp_path, "a")


def test_only_regular_files_within_their_folder_and_limit_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    (tmp_path / "outside").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / "inside").write_text("12345")
    (folder / "alias").symlink_to(folder / "inside")
    for path, reason in [
        (folder / "pipe", "not a regular file but a pipe"),
        (Path("/dev/zero"), "not a regular file but a pipe, socket or device"),
        (folder / "link", "a link that leaves its folder"),
    ]:
        with pytest.raises(store.UnusableFile, match=reason):
            store.read(path, within=path.parent)
    with pytest.raises(store.UnusableFile, match="5 bytes, more than the 4"):
        store.read(folder / "inside", limit=4)
    assert store.read(folder / "alias", within=folder) == b"12345"


@pytest.mark.parametrize("content", [b"[" * 200_000, b'{"a": ' * 100_000, b"{", b"\xff"])
def test_json_that_cannot_be_parsed_is_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - what is wrong differs
        store.parse_json(content)


def test_content_of_another_kind_is_one_line(tmp_path: Path) -> None:
    said = r"its content is not what isthmus writes \(AttributeError\); delete"
    with pytest.raises(IsthmusError, match=said), store.expected_content(tmp_path / "file"):
        [].items()  # type: ignore[attr-defined]


def test_free_memory_is_known_on_linux() -> None:
    free = store.free_memory()
    assert (free is not None and free > 0) or sys.platform != "linux"
