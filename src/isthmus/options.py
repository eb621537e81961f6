"""Typed options, and classes registered by name. The command line, TOML files, docs and reports all read them."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails

from isthmus.errors import IsthmusError, did_you_mean
from isthmus.own_code import is_own, load_entry_points, reference_of

MAX_SHOWN = 200
"""A message shows at most this many characters of a wrong value."""


class Options(BaseModel):
    """A frozen set of typed fields. The docstring under a field documents it in the help text, the docs and the report.

    >>> class Example(Options):
    ...     rounds: int = 100
    >>> Example.read({"rounds": 3}, "example").rounds
    3
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )

    without: ClassVar[tuple[str, ...]] = ()
    """Inherited options that have no effect here: no list shows them, and a value of them is refused."""

    if not TYPE_CHECKING:  # the checker knows the fields from the class

        def __init__(self, /, **values: Any) -> None:
            """Check the options; wrong ones are an error of one line, as in `read`."""
            try:
                super().__init__(**values)
            except ValidationError as error:
                kind = getattr(self, "kind", "")
                where = f"{kind} '{self.name}'" if kind else type(self).__name__
                raise IsthmusError(_message(type(self), error.errors()[0], where)) from error

        __init__.__pydantic_base_init__ = True  # pydantic does not call it for options inside others

    @classmethod
    def option_names(cls) -> list[str]:
        """The names of the options that have an effect."""
        return [name for name in cls.model_fields if name not in cls.without]

    @model_validator(mode="after")
    def _have_an_effect(self) -> Self:
        for name in self.without:
            if getattr(self, name) != type(self).model_fields[name].get_default(call_default_factory=True):
                raise ValueError(f"{name} has no effect here: leave it out")
        for name, field in type(self).model_fields.items():
            for needs in field.metadata:
                if not isinstance(needs, OnlyWith) or getattr(self, needs.option) in needs.values:
                    continue
                value, other = getattr(self, name), getattr(self, needs.option)
                if value != field.get_default(call_default_factory=True):
                    values = " or ".join(map(repr, needs.values))
                    raise ValueError(
                        f"{name} = {value!r} has no effect with {needs.option} = {other!r}: "
                        f"leave it out, or set {needs.option} to {values}"
                    )
        return self

    @classmethod
    def read(cls, values: Mapping[str, Any], where: str) -> Self:
        """Check `values` and return the options; the first problem becomes a one-line error that begins with `where`.

        A table for a field that holds options itself changes only the entries it names; the others keep their defaults.
        """
        try:
            return cls.model_validate(_with_defaults(cls, values))
        except ValidationError as error:
            raise IsthmusError(_message(cls, error.errors()[0], where)) from error

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> list[str]:
        """List everything that is wrong with `values`, one line each."""
        try:
            cls.model_validate(_with_defaults(cls, values))
        except ValidationError as error:
            return [_message(cls, each, "").removeprefix(": ") for each in error.errors()]
        return []


@dataclass(frozen=True)
class OnlyWith:
    """Marks an option that has an effect only if another one has one of some values; else a value of it is refused.

    `momentum: Annotated[float, OnlyWith("optimizer", "sgd")] = 0.0`
    """

    option: str
    values: tuple[Any, ...]

    def __init__(self, option: str, *values: Any) -> None:
        object.__setattr__(self, "option", option)
        object.__setattr__(self, "values", values)


class Registered(Options):
    """Options with a name. Defining a subclass with a `name` registers it."""

    name: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    """The word for one of these in messages: method, data set, partition, ..."""
    built_in_module: ClassVar[str] = ""
    """The module or package that defines the built-in subclasses; it is imported, with all its modules, on look-up."""
    entry_points: ClassVar[str] = ""
    """The group of entry points by which installed packages bring more of them."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        _subclasses.cache_clear()

    @classmethod
    def known(cls) -> dict[str, type[Self]]:
        """Return all registered subclasses by name, in alphabetical order."""
        if cls.built_in_module:
            _import_all(cls.built_in_module)
        if cls.entry_points:
            load_entry_points(cls.entry_points)
        found: dict[str, type[Self]] = {}
        subclasses: list[type[Self]] = _subclasses(cls)
        for each in sorted((each for each in subclasses if each.__dict__.get("name")), key=lambda each: each.name):
            other = found.get(each.name)
            if other is not None and is_own(each) != is_own(other):
                own = reference_of(each if is_own(each) else other)
                raise IsthmusError(f"{cls.kind} '{each.name}' is built in: give {own} another name")
            found[each.name] = each
        return found

    @classmethod
    def named(cls, name: str) -> type[Self]:
        """Return the subclass called `name`; an unknown name is an error that suggests a known one."""
        known = cls.known()
        if name.lower() not in known:
            raise IsthmusError(f"unknown {cls.kind} '{name}': {did_you_mean(name, known)}")
        return known[name.lower()]

    @classmethod
    def describe(cls) -> dict[str, Any]:
        """Return name, summary and typed options with their defaults, for the command line and the docs."""
        return {
            "name": cls.name,
            "summary": (cls.__doc__ or "").strip().split("\n")[0],
            "options": list(_fields(cls, "")),
        }


@cache
def _subclasses(base: Any) -> list[Any]:
    """All subclasses; cached until another one is defined, because reading a study looks up hundreds of names."""
    return [found for each in base.__subclasses__() for found in (each, *_subclasses(each))]


@cache
def _import_all(name: str) -> None:
    """Import a module and everything directly in it; cached, because reading tables of studies looks up many names."""
    package = importlib.import_module(name)
    for module in pkgutil.iter_modules(getattr(package, "__path__", [])):
        importlib.import_module(f"{name}.{module.name}")


def _fields(cls: type[BaseModel], prefix: str) -> Iterator[dict[str, Any]]:
    for name, field in cls.model_fields.items():
        if name in getattr(cls, "without", ()):
            continue
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
            "type": kind.__name__ if isinstance(kind, type) else _type_text(kind),
            "default": None if field.is_required() else field.get_default(call_default_factory=True),
            "help": " ".join((field.description or "").split()),
        }


def option_paths(kinds: Iterable[type[BaseModel]], prefix: str = "") -> list[str]:
    """The dotted names of all options of these classes, and of their groups of options."""
    paths = [line["name"] for kind in kinds for line in _fields(kind, "")]
    groups = [path.partition(".")[0] for path in paths]
    return [f"{prefix}{path}" for path in dict.fromkeys([*groups, *paths])]


def suggest_option(key: str, paths: Sequence[str]) -> str:
    """A hint for a mistyped option: the path that ends with its name, or with the most similar one; else all.

    >>> suggest_option("lr", ["rounds", "local.lr"]), suggest_option("local.epoch", ["rounds", "local.epochs"])
    ("did you mean 'local.lr'?", "did you mean 'local.epochs'?")
    """
    group, _, leaf = key.lower().rpartition(".")
    same = [path for path in paths if path.rpartition(".")[2] == leaf]
    by_leaf = {path.rpartition(".")[2]: path for path in reversed(paths)}
    close = difflib.get_close_matches(leaf, by_leaf, n=1, cutoff=0.6)
    if found := same or [by_leaf[each] for each in close]:
        return f"did you mean '{found[0]}'?"
    return did_you_mean("", [path for path in paths if path.rpartition(".")[0] == group])


def _type_text(kind: Any) -> str:
    """Return a type as text, without its bounds."""
    return re.sub(r"Annotated\[(\w+), .*?\)\]", r"\1", str(kind).replace("typing.", ""))


def _with_defaults(cls: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for name, field in cls.model_fields.items():
        if not isinstance(values.get(name), Mapping):
            continue
        default = field.get_default(call_default_factory=True)
        if isinstance(default, Options):
            merged[name] = {**default.model_dump(), **_with_defaults(type(default), values[name])}
    return merged


def _message(cls: type[BaseModel], error: ErrorDetails, where: str) -> str:
    path = [str(part) for part in error["loc"]]
    key = ".".join(path)
    if error["type"] == "extra_forbidden":
        owner: Any = cls
        for part in path[:-1]:
            field = getattr(owner, "model_fields", {}).get(part)
            kinds = (field.annotation, *get_args(field.annotation)) if field else ()
            owner = next((kind for kind in kinds if hasattr(kind, "model_fields")), None)
        own = [] if owner is None else option_paths([owner], "".join(f"{part}." for part in path[:-1]))
        return f"{where}: unknown option '{key}': {suggest_option(key, [*own, *option_paths([cls])])}"
    if error["type"] == "missing":
        return f"{where}: option '{key}' is required"
    why = error["msg"].removeprefix("Value error, ").replace("valid tuple", "list")
    if error["type"] == "value_error" and isinstance(
        error["input"], Mapping | BaseModel
    ):  # of several options together
        return f"{where}: {f'option {key!r}: ' if key else ''}{why}"
    return f"{where}: option '{key}' is {_shortened(error['input'])}: {why[0].lower()}{why[1:]}"


def _shortened(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print an integer with thousands of digits
        return "a number too long to show"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
