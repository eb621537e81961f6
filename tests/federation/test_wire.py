"""Payloads come back bit for bit; nothing else goes out or comes in."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from scripted import bits

from isthmus.errors import PayloadError
from isthmus.federation import wire

quick = settings(max_examples=60, deadline=None, derandomize=True)

letters = st.characters(exclude_categories=["Cs"], exclude_characters="/:")
names = st.text(letters, min_size=1, max_size=6)
scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(list(wire.DTYPES)))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    source = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    if dtype.is_floating_point:
        value = (torch.randn(shape, generator=source, dtype=torch.float64) * 100).round(decimals=3).to(dtype)
        return value.neg() if draw(st.booleans()) else value
    if dtype == torch.bool:
        return torch.rand(shape, generator=source) < 0.5
    info = torch.iinfo(dtype)
    high = min(info.max, 2**62)
    value = torch.randint(max(info.min, -high), high, shape, generator=source, dtype=torch.int64).to(dtype)
    return value.t() if value.dim() == 2 else value


fields = st.recursive(
    st.one_of(tensors(), scalars), lambda inner: st.dictionaries(names, inner, min_size=1, max_size=3), max_leaves=5
)
payloads = st.dictionaries(names, fields, max_size=5)


def bomb(*_: Any) -> None:
    raise AssertionError("bytes from outside were executed")


class Bomb:
    def __reduce__(self) -> Any:
        return bomb, ()


# ---- there and back


@quick
@given(payloads)
def test_a_payload_comes_back_bit_for_bit_in_its_order(payload: dict[str, Any]) -> None:
    back = wire.decode(wire.encode(payload))
    assert bits(list(wire.flatten(back))) == bits(list(wire.flatten(payload)))
    assert bits(back) == bits(payload)


@quick
@given(payloads)
def test_size_is_the_length_of_the_bytes(payload: dict[str, Any]) -> None:
    assert wire.size(payload) == len(wire.encode(payload))


@quick
@given(payloads)
def test_bytes_are_those_that_safetensors_writes(payload: dict[str, Any]) -> None:
    encoded = wire.encode(payload)
    assert save(load(encoded)) == encoded


@quick
@given(st.integers(0, 300), st.integers(0, 12))
def test_size_is_right_at_every_length_of_the_header(count: int, length: int) -> None:
    payload = {"n" * (length + 1): torch.zeros(count), **{f"f{at}": at for at in range(length)}}
    assert wire.size(payload) == len(wire.encode(payload))


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(12.0).view(3, 4).t(),
        torch.arange(12.0)[::5],
        torch.ones(1).expand(4, 3),
        torch._neg_view(torch.ones(2)),
        torch.ones(2, requires_grad=True),
        torch.tensor([-0.0, 5e-324, 1.7976931348623157e308], dtype=torch.float64),
    ],
    ids=["transposed", "strided", "expanded", "negated", "trained", "extreme"],
)
def test_any_view_travels_as_the_values_it_shows(value: torch.Tensor) -> None:
    encoded = wire.encode({"v": value})
    assert len(encoded) == wire.size({"v": value})
    assert torch.equal(wire.decode(encoded)["v"], value.detach())


def test_fields_that_share_memory_travel_each_on_its_own() -> None:
    base = torch.arange(6.0)
    payload = {"whole": base, "again": base, "part": base[2:4], "group": {"whole": base}}
    encoded = wire.encode(payload)
    assert len(encoded) == wire.size(payload)
    assert bits(wire.decode(encoded)) == bits(payload)


def test_describe_names_fields_and_shapes() -> None:
    assert wire.describe({"w": {"bias": torch.ones(2, 3)}, "count": 3}) == "w/bias[2,3], count"


def test_large_finite_values_travel_though_their_sum_is_infinite() -> None:
    value = torch.full((8,), torch.finfo(torch.float32).max)
    assert torch.equal(wire.decode(wire.encode({"v": value}))["v"], value)


# ---- refused, on the way out


class Whole(int):
    pass


REFUSED = {
    "object": (object(), "object"),
    "none": (None, "NoneType"),
    "list": ([1.0], "list"),
    "bytes": (b"x", "bytes"),
    "function": (len, "builtin_function_or_method"),
    "subclass": (Whole(3), "Whole"),
    "sparse coo": (torch.eye(2).to_sparse(), "sparse_coo"),
    "sparse csr": (torch.eye(2).to_sparse_csr(), "sparse_csr"),
    "complex": (torch.ones(2, dtype=torch.complex64), "complex64"),
    "float8": (torch.ones(2, dtype=torch.float8_e4m3fn), "float8"),
    "uint16": (torch.ones(2, dtype=torch.uint16), "uint16"),
    "meta": (torch.ones(2, device="meta"), "not carried"),
    "nan tensor": (torch.tensor([1.0, math.nan]), "1 NaN or infinite value: if training diverged, lower"),
    "nan half": (torch.tensor([math.nan, -math.inf]).bfloat16(), "2 NaN or infinite values"),
    "nan": (math.nan, "nan: if training diverged, lower its learning rate"),
    "inf": (-math.inf, "-inf: if training diverged, lower its learning rate"),
    "huge int": (2**63, "64 bits"),
    "half a character": ("\ud800", "half a character"),
    "empty group": ({}, "without fields"),
}


@pytest.mark.parametrize(("value", "says"), REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("refuse", [wire.check, wire.encode])
def test_what_must_not_travel_is_refused_by_name(refuse: Any, value: Any, says: str) -> None:
    with pytest.raises(PayloadError, match=r"field 'group/bad' ") as caught:
        refuse({"fine": 1, "group": {"bad": value}})
    assert says in str(caught.value)


@pytest.mark.parametrize("value", [torch.eye(2).to_sparse(), torch.ones(1, dtype=torch.complex64), None, 2**64])
def test_what_cannot_travel_has_no_size(value: Any) -> None:
    with pytest.raises(PayloadError, match="'bad'"):
        wire.size({"bad": value})


@pytest.mark.parametrize("name", ["a/b", "a:b", "", 3, "\ud800"])
def test_a_name_that_is_no_name_is_refused(name: Any) -> None:
    with pytest.raises(PayloadError, match="field's name"):
        wire.encode({"group": {name: 1}})


@pytest.mark.parametrize("payload", [[1], "text", None, torch.ones(1)])
def test_what_is_no_mapping_is_no_payload(payload: Any) -> None:
    with pytest.raises(PayloadError, match="maps names to values"):
        wire.encode(payload)


def test_groups_go_only_so_deep() -> None:
    payload: Any = 1
    for _ in range(12):
        payload = {"g": payload}
    with pytest.raises(PayloadError, match=r"field 'g/g/.* deep"):
        wire.encode(payload)


def test_the_limit_holds_both_ways() -> None:
    payload = {"w": torch.ones(100)}
    encoded = wire.encode(payload)
    assert bits(wire.decode(wire.encode(payload, limit=len(encoded)), limit=len(encoded))) == bits(payload)
    for refuse in (
        lambda: wire.encode(payload, limit=len(encoded) - 1),
        lambda: wire.decode(encoded, limit=len(encoded) - 1),
    ):
        with pytest.raises(PayloadError, match=f"{len(encoded)} bytes is over the limit of {len(encoded) - 1}"):
            refuse()


# ---- refused, on the way in


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_refused_and_never_run(protocol: int) -> None:
    pickled = pickle.dumps(Bomb(), protocol)
    with pytest.raises(AssertionError, match="executed"):
        pickle.loads(pickled)
    text = save({"0:text:bad": torch.frombuffer(bytearray(pickled), dtype=torch.uint8)})
    for data in (pickled, text, wire.encode({"a": 1}) + pickled):
        with pytest.raises(PayloadError):
            wire.decode(data)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(PayloadError):
        wire.decode(data)


VALID = wire.encode({"w": {"a": torch.arange(3.0), "b": torch.ones(2, 2)}, "n": 3, "x": 0.5, "yes": True, "t": "text"})


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), max_size=4), st.integers(0, len(VALID)))
def test_mangled_bytes_are_read_whole_or_refused(changes: list[tuple[int, int]], end: int) -> None:
    data = bytearray(VALID)
    for at, value in changes:
        data[at] = value
    for cut in (bytes(data), bytes(data[:end])):
        try:
            payload = wire.decode(cut)
        except PayloadError:
            continue
        assert bits(wire.decode(wire.encode(payload))) == bits(payload)


ONE = torch.tensor(1)
CRAFTED = {
    "no kind": {"a": ONE},
    "unknown kind": {"0:pickle:a": ONE},
    "no place": {"x:int:a": ONE},
    "superscript place": {"²:int:a": ONE},
    "endless place": {"9" * 5000 + ":int:a": ONE},
    "two in one place": {"0:int:a": ONE, "00:int:b": ONE},
    "two of one name": {"0:int:a": ONE, "1:int:a": ONE},
    "a field and a group": {"0:tensor:a": ONE, "1:tensor:a/b": ONE},
    "a group and a field": {"0:tensor:a/b": ONE, "1:tensor:a": ONE},
    "no name": {"0:int:": ONE},
    "no name in a group": {"0:int:a//b": ONE},
    "colon": {"0:int:a:b": ONE},
    "fraction as int": {"0:int:a": torch.tensor(1.5)},
    "nan as int": {"0:int:a": torch.tensor(math.nan)},
    "nan": {"0:float:a": torch.tensor(math.nan, dtype=torch.float64)},
    "many as one": {"0:int:a": torch.tensor([1, 2])},
    "number as text": {"0:text:a": ONE},
    "text without end": {"0:text:a": torch.tensor([104, 105], dtype=torch.uint8)},
    "empty text": {"0:text:a": torch.tensor([], dtype=torch.uint8)},
    "text of no encoding": {"0:text:a": torch.tensor([255, 0], dtype=torch.uint8)},
    "complex": {"0:tensor:a": torch.ones(1, dtype=torch.complex64)},
    "float8": {"0:tensor:a": torch.ones(1, dtype=torch.float8_e4m3fn)},
    "nan tensor": {"0:tensor:a": torch.tensor([math.inf])},
    "endless groups": {"0:tensor:" + "a/" * 5000 + "a": ONE},
}


@pytest.mark.parametrize("tensors", CRAFTED.values(), ids=CRAFTED.keys())
def test_crafted_safetensors_are_refused(tensors: dict[str, torch.Tensor]) -> None:
    with pytest.raises(PayloadError):
        wire.decode(save({name: tensor.clone() for name, tensor in tensors.items()}))
