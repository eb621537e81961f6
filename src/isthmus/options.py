"""Typed options and registration by class definition: what the CLI, the TOML file, the docs and the report all read."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, ClassVar, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from isthmus.errors import IsthmusError, did_you_mean

LONGEST = 200
"""Characters of a wrong value that a message shows."""


class Options(BaseModel):
    """A frozen set of typed fields. A docstring under a field is its documentation everywhere.

    >>> class Example(Options):
    ...     rounds: int = 100
    >>> Example.read({"rounds": 3}, "example").rounds
    3
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )

    @classmethod
    def read(cls, values: Mapping[str, Any], where: str) -> Self:
        """Check `values` against the fields; the first thing wrong becomes one line that names `where`.

        A table for a field that holds options itself changes the entries it names, not the field's other defaults.
        """
        try:
            return cls.model_validate(_on_defaults(cls, values))
        except ValidationError as error:
            raise IsthmusError(_one_line(cls, error.errors()[0], where)) from error

    @classmethod
    def faults(cls, values: Mapping[str, Any]) -> list[str]:
        """Everything that is wrong with `values`, a line each."""
        try:
            cls.model_validate(_on_defaults(cls, values))
        except ValidationError as error:
            return [_one_line(cls, each, "").removeprefix(": ") for each in error.errors()]
        return []


class Registered(Options):
    """Options of a kind that is found by name: a subclass that gives itself a `name` is registered by being defined."""

    name: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    """What one of these is called in messages: method, data set, partition, ..."""
    built_in_module: ClassVar[str] = ""
    """The module that holds the built-in ones, or a package: then every module in it is imported before a look-up."""

    @classmethod
    def known(cls) -> dict[str, type[Self]]:
        """All registered subclasses by name, in alphabetical order."""
        if cls.built_in_module:
            _import_all(cls.built_in_module)
        return {each.name: each for each in sorted(_named_subclasses(cls), key=lambda each: each.name)}

    @classmethod
    def named(cls, name: str) -> type[Self]:
        """The subclass called `name`, or an error with the nearest right name."""
        known = cls.known()
        if name.lower() not in known:
            raise IsthmusError(f"unknown {cls.kind} '{name}': {did_you_mean(name, known)}")
        return known[name.lower()]

    @classmethod
    def describe(cls) -> dict[str, Any]:
        """Name, summary and typed options with their defaults, as the CLI lists them and the docs print them."""
        return {
            "name": cls.name,
            "summary": (cls.__doc__ or "").strip().split("\n")[0],
            "options": list(_fields(cls, "")),
        }


Kind = TypeVar("Kind", bound=Registered)


def _named_subclasses(base: type[Kind]) -> Iterator[type[Kind]]:
    for each in base.__subclasses__():
        if each.__dict__.get("name"):
            yield each
        yield from _named_subclasses(each)


@cache
def _import_all(home: str) -> None:
    """Once: names are looked up by the thousand where tables of studies are read."""
    package = importlib.import_module(home)
    for module in pkgutil.iter_modules(getattr(package, "__path__", [])):
        importlib.import_module(f"{home}.{module.name}")


def _fields(cls: type[BaseModel], prefix: str) -> Iterator[dict[str, Any]]:
    for name, field in cls.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            default = field.get_default(call_default_factory=True)
            for inner in _fields(kind, f"{prefix}{name}."):
                key = inner["name"].removeprefix(f"{prefix}{name}.")
                yield {**inner, "default": getattr(default, key, inner["default"])}
            continue
        yield {
            "name": prefix + name,
            "required": field.is_required(),
            "type": kind.__name__ if isinstance(kind, type) else _spelled(kind),
            "default": None if field.is_required() else field.get_default(call_default_factory=True),
            "help": " ".join((field.description or "").split()),
        }


def _spelled(kind: Any) -> str:
    """A type as people read it, bounds left out."""
    return re.sub(r"Annotated\[(\w+), .*?\)\]", r"\1", str(kind).replace("typing.", ""))


def _on_defaults(cls: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    whole = dict(values)
    for name, field in cls.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, Options) and isinstance(values.get(name), Mapping):
            whole[name] = {**default.model_dump(), **_on_defaults(type(default), values[name])}
    return whole


def _one_line(cls: type[BaseModel], error: ErrorDetails, where: str) -> str:
    path = [str(part) for part in error["loc"]]
    key = ".".join(path)
    if error["type"] == "extra_forbidden":
        owner: Any = cls
        for part in path[:-1]:
            field = getattr(owner, "model_fields", {}).get(part)
            kinds = (field.annotation, *get_args(field.annotation)) if field else ()
            owner = next((kind for kind in kinds if hasattr(kind, "model_fields")), None)
        known = getattr(owner, "model_fields", {})
        return f"{where}: unknown option '{key}': {did_you_mean(path[-1], known)}"
    if error["type"] == "missing":
        return f"{where}: option '{key}' is required"
    why = error["msg"].removeprefix("Value error, ")
    return f"{where}: option '{key}' is {_shown(error['input'])}: {why[0].lower()}{why[1:]}"


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # a whole number of more digits than Python writes out
        return "a number too long to show"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
