"""Payloads to bytes and back, checked.

A payload is a flat mapping of names to tensors and plain scalars; a field may also be a named group of tensors, such as
a model's weights. On the wire it is one safetensors blob, scalars as tensors of one element whose names say their type.
Nothing else can be carried, so nothing that runs code when it is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from isthmus.errors import PayloadError

Scalar: TypeAlias = bool | int | float | str
Payload: TypeAlias = Mapping[str, Any]
"""Names to tensors, plain scalars, or groups of the same."""

LIMIT = 2 * 1024**3
"""Largest payload that is read or written unless a caller says otherwise, in bytes."""

_SCALARS: dict[type, tuple[str, torch.dtype]] = {
    bool: ("bool", torch.bool),
    int: ("int", torch.int64),
    float: ("float", torch.float64),
}


def flatten(payload: Payload, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Fields with the names of their groups before them: `weights/conv.bias`."""
    for name, value in payload.items():
        if not isinstance(name, str) or "/" in name or ":" in name or not name:
            raise PayloadError(f"field {prefix}{name!r}: a field's name is a text without '/' and ':'")
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}/")
        else:
            yield prefix + name, value


def unflatten(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The way back from `flatten`."""
    payload: dict[str, Any] = {}
    for path, value in fields.items():
        *groups, name = path.split("/")
        inside = payload
        for group in groups:
            inside = inside.setdefault(group, {})
        inside[name] = value
    return payload


def check(payload: Payload, *, limit: int = LIMIT) -> None:
    """Refuse what a payload must not carry.

    >>> check({"weights": {"bias": torch.tensor([float("nan")])}})
    Traceback (most recent call last):
    isthmus.errors.PayloadError: field 'weights/bias' has 1 NaN or infinite value
    """
    for name, value in flatten(payload):
        if isinstance(value, Tensor):
            if value.dtype not in _NAMES or value.layout != torch.strided:
                raise PayloadError(f"field '{name}' is a tensor of {value.dtype}, {value.layout}: not carried")
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                bad = int((~torch.isfinite(value)).sum())
                raise PayloadError(f"field '{name}' has {bad} NaN or infinite value{'s' if bad > 1 else ''}")
        elif isinstance(value, float):
            if value != value or value in (float("inf"), float("-inf")):
                raise PayloadError(f"field '{name}' is {value}: not a finite number")
        elif not isinstance(value, bool | int | str):
            raise PayloadError(f"field '{name}' is a {type(value).__name__}: only tensors, numbers and texts travel")
    if size(payload) > limit:
        raise PayloadError(f"payload of {size(payload)} bytes is over the limit of {limit}")


def encode(payload: Payload, *, limit: int = LIMIT) -> bytes:
    """The bytes of a payload, after `check`.

    >>> decode(encode({"rounds": 3, "w": {"b": torch.ones(2)}}))
    {'rounds': 3, 'w': {'b': tensor([1., 1.])}}
    """
    check(payload, limit=limit)
    return save(dict(_tensors(payload)))


def decode(data: bytes, *, limit: int = LIMIT) -> dict[str, Any]:
    """The payload in these bytes, after `check`; anything else is refused."""
    if len(data) > limit:
        raise PayloadError(f"payload of {len(data)} bytes is over the limit of {limit}")
    try:
        tensors = load(bytes(data))
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise PayloadError("these bytes are no payload: not in safetensors form") from error
    fields = {}
    for name in sorted(tensors, key=_order):
        _, kind, path = name.split(":", 2) if name.count(":") >= 2 else ("", "", "")
        if kind not in ("tensor", "text", "bool", "int", "float") or not path:
            raise PayloadError(f"these bytes are no payload: field {name!r} has no known kind")
        fields[path] = _value(kind, path, tensors[name])
    payload = unflatten(fields)
    check(payload, limit=limit)
    return payload


def size(payload: Payload) -> int:
    """The length of `encode(payload)`, found without encoding the data."""
    signature = tuple((name, t.dtype, tuple(t.shape)) for name, t in _tensors(payload, copy=False))
    data = sum(t.numel() * t.element_size() for _, t in _tensors(payload, copy=False))
    return _header_size(signature) + data


def describe(payload: Payload) -> str:
    """Fields in short: `weights/conv.bias[64], count`."""
    parts = []
    for name, value in flatten(payload):
        parts.append(f"{name}{list(value.shape)}".replace(" ", "") if isinstance(value, Tensor) else name)
    return ", ".join(parts)


def _tensors(payload: Payload, copy: bool = True) -> Iterator[tuple[str, Tensor]]:
    # safetensors sorts by name; a number in front keeps the order in which the fields were given
    for at, (name, value) in enumerate(flatten(payload)):
        if isinstance(value, Tensor):
            yield f"{at}:tensor:{name}", value.detach().cpu().contiguous() if copy else value
        elif isinstance(value, str):
            yield f"{at}:text:{name}", torch.frombuffer(bytearray(value.encode() + b"\0"), dtype=torch.uint8)
        elif type(value) in _SCALARS:
            kind, dtype = _SCALARS[type(value)]
            yield f"{at}:{kind}:{name}", torch.tensor(value, dtype=dtype)
        else:
            raise PayloadError(f"field '{name}' is a {type(value).__name__}: only tensors, numbers and texts travel")


def _order(name: str) -> int:
    head = name.split(":", 1)[0]
    return int(head) if head.isdigit() else -1


def _value(kind: str, path: str, tensor: Tensor) -> Any:
    if kind == "tensor":
        return tensor
    if kind == "text":
        try:
            return bytes(tensor.tolist()[:-1]).decode()
        except (ValueError, TypeError) as error:
            raise PayloadError(f"field '{path}' is no text") from error
    if tensor.dim() != 0:
        raise PayloadError(f"field '{path}' is no single {kind}")
    return {"bool": bool, "int": int, "float": float}[kind](tensor.item())


# safetensors' names of the dtypes, in the order in which it lays tensors out (by dtype, then by name)
_NAMES = {
    torch.int64: "I64", torch.float64: "F64", torch.float32: "F32", torch.int32: "I32", torch.bfloat16: "BF16",
    torch.float16: "F16", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


@lru_cache(maxsize=256)
def _header_size(signature: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]) -> int:
    """Length of the safetensors header: JSON of names, dtypes, shapes and offsets, padded to eight bytes."""
    ranks = list(_NAMES)
    length, offset = 2 + max(0, len(signature) - 1), 0
    for name, dtype, shape in sorted(signature, key=lambda entry: (ranks.index(entry[1]), entry[0])):
        end = offset + math.prod(shape) * dtype.itemsize
        entry = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        text = json.dumps({name: entry}, ensure_ascii=False, separators=(",", ":"))
        length, offset = length + len(text.encode()) - 2, end
    return 8 + -(-length // 8) * 8
