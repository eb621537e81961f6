"""Encode payloads as bytes and decode them, with checks.

A payload is a flat mapping of names to tensors and plain scalars; a field may also be a named group of tensors, such as
a model's weights. On the wire it is one safetensors blob, scalars as tensors of one element whose names say their type.
Nothing else can travel, so decoding never runs code.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from safetensors.torch import load
from torch import Tensor

from isthmus.errors import NotFinite, PayloadError

Scalar: TypeAlias = bool | int | float | str
Payload: TypeAlias = Mapping[str, Any]
"""Names to tensors, plain scalars, or groups of the same."""


@dataclass(frozen=True)
class Sealed:
    """A payload that only its addressee can read.

    Arguments:
        data: the envelope.
        inside: size of the payload in it, in bytes.
        fields: a short list of its fields, from its sender.
    """

    data: bytes
    inside: int
    fields: str


LIMIT = 2 * 1024**3
"""Default limit of a payload, in bytes."""

MOST_FIELDS = 4096
"""Most fields of a payload; models have some hundred. To check and add up a field takes 0.2 ms."""
LONGEST_HEADER = 256 * MOST_FIELDS
"""Most bytes of names, types and shapes, which are read before anything else."""

_DEEPEST = 8
"""Most groups within groups."""

_SCALARS: dict[type, tuple[str, torch.dtype]] = {
    bool: ("bool", torch.bool),
    int: ("int", torch.int64),
    float: ("float", torch.float64),
}


def flatten(payload: Payload, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Fields with the names of their groups before them: `weights/conv.bias`."""
    if not isinstance(payload, Mapping):
        raise PayloadError(f"a payload maps names to values, this is a {type(payload).__name__}")
    for name, value in payload.items():
        if not isinstance(name, str) or "/" in name or ":" in name or not name or not _is_unicode(name):
            raise PayloadError(f"field {prefix}{name!r}: a field's name is a text without '/' and ':'")
        if isinstance(value, Mapping):
            if not value or prefix.count("/") >= _DEEPEST:
                what = f"groups more than {_DEEPEST} deep" if value else "a group without fields"
                raise PayloadError(f"field '{prefix}{name}' is {what}: not carried")
            yield from flatten(value, f"{prefix}{name}/")
        else:
            yield prefix + name, value


def unflatten(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Reverse `flatten`."""
    payload: dict[str, Any] = {}
    for path, value in fields.items():
        *groups, name = path.split("/")
        inside = payload
        for group in groups:
            inside = inside.setdefault(group, {})
        inside[name] = value
    return payload


def check(payload: Payload | Sealed, *, limit: int = LIMIT) -> None:
    """Raise an error for a payload that must not travel.

    >>> check({"bias": torch.tensor([float("nan")])})
    Traceback (most recent call last):
    isthmus.errors.NotFinite: field 'bias' has 1 NaN or infinite value: if training diverged, lower its learning rate
    """
    for count, (name, value) in enumerate(() if isinstance(payload, Sealed) else flatten(payload), 1):
        if count > MOST_FIELDS:
            raise PayloadError(f"a payload of more than {MOST_FIELDS} fields: not carried")
        _check_kind(name, value)
        if isinstance(value, Tensor):
            if not _is_finite(value):
                bad = int((~torch.isfinite(value)).sum())
                raise NotFinite(
                    f"field '{name}' has {bad} NaN or infinite value{'s' if bad > 1 else ''}: {NotFinite.HINT}"
                )
        elif isinstance(value, float) and not math.isfinite(value):
            raise NotFinite(f"field '{name}' is {value}: {NotFinite.HINT}")
    if (bytes_ := size(payload)) > limit:
        raise PayloadError(f"payload of {bytes_} bytes is over the limit of {limit}")


def _is_finite(value: Tensor) -> bool:
    """Whether all values are finite; a finite sum has only finite terms, and costs a tenth of looking at each."""
    return not value.is_floating_point() or bool(torch.isfinite(value.sum())) or bool(torch.isfinite(value).all())


def _check_kind(name: str, value: Any) -> None:
    """Raise an error for a value whose type cannot travel."""
    if isinstance(value, Tensor):
        if value.is_nested or value.is_meta or value.dtype not in DTYPES or value.layout != torch.strided:
            raise PayloadError(f"field '{name}' is a tensor of {value.dtype}, {value.layout}: not carried")
    elif type(value) not in (bool, int, float, str):
        raise PayloadError(f"field '{name}' is a {type(value).__name__}: only tensors, numbers and texts travel")
    elif type(value) is int and not -(2**63) <= value < 2**63:
        raise PayloadError(f"field '{name}' is a whole number of more than 64 bits: not carried")
    elif isinstance(value, str) and not _is_unicode(value):
        raise PayloadError(f"field '{name}' is a text with half a character: not carried")


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def encode(payload: Payload, *, limit: int = LIMIT) -> bytes:
    """The bytes of a payload, after `check`.

    >>> decode(encode({"rounds": 3, "w": {"b": torch.ones(2)}}))
    {'rounds': 3, 'w': {'b': tensor([1., 1.])}}
    """
    check(payload, limit=limit)
    tensors = dict(_tensors(payload))
    signature = tuple((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items())
    header, order = _header(signature)
    # the bytes that safetensors' `save` makes, without its two further copies of every tensor
    return b"".join([header, *(tensors[name].reshape(-1).view(torch.uint8).numpy().data for name in order)])


def decode(data: bytes, *, limit: int = LIMIT) -> dict[str, Any]:
    """Decode a payload and `check` it; other bytes are an error."""
    if len(data) > limit:
        raise PayloadError(f"payload of {len(data)} bytes is over the limit of {limit}")
    _check_header(data)
    try:
        tensors = load(bytes(data))
    except Exception as error:  # bytes from outside may break a reader in any way
        raise PayloadError("these bytes are no payload: not in safetensors form") from error
    found: dict[int, tuple[str, Any]] = {}
    for name, tensor in tensors.items():
        known = _NAME.fullmatch(name)
        if known is None or int(known[1]) in found:
            raise PayloadError(f"these bytes are no payload: field {name[:200]!r} has no known kind and place")
        found[int(known[1])] = known[3], _value(known[2], known[3], tensor)
    fields = dict(found[at] for at in sorted(found))
    groups = {path[:at] for path in fields for at, letter in enumerate(path) if letter == "/"}
    if len(fields) < len(found) or not groups.isdisjoint(fields):
        raise PayloadError("these bytes are no payload: two fields of one name")
    payload = unflatten(fields)
    check(payload, limit=limit)
    return payload


def _check_header(data: bytes) -> None:
    """Refuse bytes with too many fields before anything parses them: to parse 100,000 takes seconds."""
    length = int.from_bytes(data[:8], "little")
    if length > len(data) - 8:
        return  # no header, so nothing to parse
    if length > LONGEST_HEADER or bytes(data[: 8 + length]).count(b"data_offsets") > MOST_FIELDS:
        raise PayloadError(f"these bytes are no payload: more than {MOST_FIELDS} fields, or names too long")


def size(payload: Payload | Sealed) -> int:
    """Return the length of `encode(payload)` without encoding the data."""
    if isinstance(payload, Sealed):
        return payload.inside
    signature, data = [], 0
    for at, (name, value) in enumerate(flatten(payload)):  # as `_tensors`, without making tensors
        _check_kind(name, value)
        if isinstance(value, Tensor):
            kind, dtype, shape = "tensor", value.dtype, tuple(value.shape)
            data += value.nbytes
        elif isinstance(value, str):
            kind, dtype, shape = "text", torch.uint8, (len(value.encode()) + 1,)
            data += shape[0]
        else:
            kind, dtype = _SCALARS[type(value)]
            shape = ()
            data += dtype.itemsize
        signature.append((f"{at}:{kind}:{name}", dtype, shape))
    return len(_header(tuple(signature))[0]) + data


def describe(payload: Payload | Sealed) -> str:
    """Fields in short: `weights/conv.bias[64], count`."""
    if isinstance(payload, Sealed):
        return payload.fields
    parts = []
    for name, value in flatten(payload):
        parts.append(f"{name}[{','.join(map(str, value.shape))}]" if isinstance(value, Tensor) else name)
    return ", ".join(parts)


def _tensors(payload: Payload) -> Iterator[tuple[str, Tensor]]:
    # safetensors sorts by name; a number in front keeps the order in which the fields were given
    for at, (name, value) in enumerate(flatten(payload)):
        _check_kind(name, value)
        if isinstance(value, Tensor):
            yield f"{at}:tensor:{name}", value.detach().cpu().resolve_neg().contiguous()
        elif isinstance(value, str):
            yield f"{at}:text:{name}", torch.frombuffer(bytearray(value.encode() + b"\0"), dtype=torch.uint8)
        else:
            kind, dtype = _SCALARS[type(value)]
            yield f"{at}:{kind}:{name}", torch.tensor(value, dtype=dtype)


_NAME = re.compile(r"([0-9]{1,9}):(tensor|text|bool|int|float):(.+)", re.DOTALL)
"""Place, kind and path of a field, as safetensors names it."""


def _value(kind: str, path: str, tensor: Tensor) -> Any:
    if kind == "tensor":
        return tensor
    if kind == "text":
        if tensor.dtype == torch.uint8 and tensor.dim() == 1 and tensor.numel() and tensor[-1] == 0:
            try:
                return tensor[:-1].numpy().tobytes().decode()
            except ValueError:
                pass
        raise PayloadError(f"field '{path}' is no text")
    if tensor.dim() != 0 or tensor.dtype != dict(_SCALARS.values())[kind]:
        raise PayloadError(f"field '{path}' is no single {kind}")
    return tensor.item()


# Names of the dtypes in safetensors, in the order in which it lays tensors out (by dtype, then by name)
DTYPES = {
    torch.int64: "I64", torch.float64: "F64", torch.float32: "F32", torch.int32: "I32", torch.bfloat16: "BF16",
    torch.float16: "F16", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
NAMED = {name: dtype for dtype, name in DTYPES.items()}


@lru_cache(maxsize=256)
def _header(signature: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]) -> tuple[bytes, list[str]]:
    """Return what safetensors writes before the data, and the names in the order of the data.

    It is the length of what follows, in eight bytes, then JSON of names, dtypes, shapes and offsets, padded to eight.
    """
    ranks = {dtype: rank for rank, dtype in enumerate(DTYPES)}
    entries, offset = {}, 0
    for name, dtype, shape in sorted(signature, key=lambda entry: (ranks[entry[1]], entry[0])):
        end = offset + math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": DTYPES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, list(entries)
