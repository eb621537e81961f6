"""Typed options, and classes registered by name. The command line, TOML files, docs and reports all read them."""

from __future__ import annotations

import ast
import importlib
import inspect
import math
import pkgutil
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeGuard, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import ErrorDetails

from isthmus.errors import IsthmusError, closest_path, did_you_mean, how_to_import
from isthmus.own_code import is_own, load_entry_points, reference_of

MAX_SHOWN = 200
"""A message shows at most this many characters of a wrong value."""
LARGEST = 1e30
"""The largest size of a real number; single precision ends at some 3e38."""
NUMBERS = {int, float, complex}


class Options(BaseModel):
    """A frozen set of typed fields. The docstring under a field documents it in the help text, the docs and the report.

    >>> class Example(Options):
    ...     rounds: int = 100
    >>> Example.read({"rounds": 3}, "example").rounds
    3
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)

    without: ClassVar[tuple[str, ...]] = ()
    """Inherited options that have no effect here: no list shows them, and a value of them is refused."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Options by the values of an option `preset`: what it names goes below what is given, and above defaults."""

    if not TYPE_CHECKING:  # the checker knows the fields from the class

        def __init__(self, /, **values: Any) -> None:
            """Check the options; wrong ones are an error of one line, as in `read`."""
            try:
                super().__init__(**values)
            except ValidationError as error:
                kind = getattr(self, "kind", "")
                where = f"{kind} '{self.name}'" if kind else type(self).__name__
                raise IsthmusError(next(_messages(type(self), error, where))) from error

        __init__.__pydantic_base_init__ = True  # pydantic does not call it for options inside others

        def __setattr__(self, name: str, value: Any) -> None:
            """Refuse to change an option in one line."""
            if name.startswith("_"):
                super().__setattr__(name, value)
                return
            what = f"{type(self).__name__}: {name} cannot be changed"
            raise IsthmusError(f"{what}: make a new one with {name} = {_shortened(value)}")

        def __delattr__(self, name: str) -> None:
            """Refuse to delete an option in one line."""
            raise IsthmusError(f"{type(self).__name__}: {name} cannot be deleted")

    @field_validator("*", mode="before")
    @classmethod
    def _truth_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, bool | list | tuple | Mapping):
            return value
        kinds = _inner_kinds(cls.model_fields[info.field_name or ""].annotation)
        return _spelled(value) if kinds & NUMBERS and kinds <= NUMBERS | {NoneType} else value

    @model_validator(mode="before")
    @classmethod
    def _from_preset(cls, given: Any) -> Any:
        return _with_preset(cls, given) if cls.presets and isinstance(given, Mapping) else given

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
            value = getattr(self, name)
            if isinstance(value, float) and LARGEST < abs(value) < math.inf:
                raise ValueError(f"{name} = {value!r}: give at most {LARGEST:g} in size")
            for needs in field.metadata:
                if not isinstance(needs, OnlyWith) or getattr(self, needs.option) in needs.values:
                    continue
                other = getattr(self, needs.option)
                if value != field.get_default(call_default_factory=True):
                    values = " or ".join(map(repr, needs.values))
                    raise ValueError(
                        f"{name} = {value!r} has no effect with {needs.option} = {other!r}: "
                        f"leave it out, or set {needs.option} to {values}"
                    )
        return self

    @classmethod
    def paths_in_tables(cls) -> list[str]:
        """The paths of what it takes as tables of plain values, for hints on options that stand outside of them."""
        return []

    @classmethod
    def read(cls, values: Mapping[str, Any], where: str) -> Self:
        """Check `values` and return the options; the first problem becomes a one-line error that begins with `where`.

        A table for a field that holds options itself changes only the entries it names; the others keep their defaults.
        """
        if not isinstance(values, Mapping):
            raise IsthmusError(f"{where} is {_shortened(values)}: give a table of options")
        if missing := sorted(getattr(cls, "__abstractmethods__", ())):
            raise IsthmusError(f"{where}: {reference_of(cls)} does not define {', '.join(missing)}: define it")
        try:
            return cls.model_validate(_with_defaults(cls, values))
        except ValidationError as error:
            raise IsthmusError(next(_messages(cls, error, where))) from error

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> list[str]:
        """List everything that is wrong with `values`, one line each."""
        try:
            cls.model_validate(_with_defaults(cls, values))
        except ValidationError as error:
            return [each.removeprefix(": ") for each in _messages(cls, error, "")]
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


NAME = r"\w[\w-]*"
"""What a name may be: files are named after it, and settings begin with it."""


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
        _by_name.cache_clear()
        name = cls.__dict__.get("name")
        if name and not isinstance(name, str):
            cls.name = ""  # Python keeps this class a while: it must not be in the way of a corrected one
            raise IsthmusError(f"{cls.kind} {reference_of(cls)}: its name is {_shortened(name)}: give a text")
        if name and not re.fullmatch(NAME, name):
            cls.name = ""  # as above
            raise IsthmusError(
                f"{cls.kind} {reference_of(cls)}: its name is '{name}': use letters, digits, '-' and '_' alone"
            )
        if name and is_own(cls):
            base = next(each for each in cls.__mro__ if Registered in each.__bases__)
            if cls.built_in_module:
                _import_all(cls.built_in_module)
            names = (each.__dict__.get("name") or "" for each in _subclasses(base) if not is_own(each))
            if any(each.lower() == name.lower() for each in names):
                cls.name = ""  # as above
                raise IsthmusError(f"{cls.kind} '{name}' is built in: give {reference_of(cls)} another name")

    @classmethod
    def known(cls) -> dict[str, type[Self]]:
        """Return all registered subclasses by name, in alphabetical order."""
        if cls.built_in_module:
            _import_all(cls.built_in_module)
        if cls.entry_points:
            load_entry_points(cls.entry_points)
        return dict(_by_name(cls))

    @classmethod
    def named(cls, name: str) -> type[Self]:
        """Return the subclass called `name`; an unknown name is an error that suggests a known one."""
        known = cls.known()
        if not isinstance(name, str):
            raise IsthmusError(f"{cls.kind} is {_shortened(name)}: give its name")
        found = known.get(name) or {each.lower(): kind for each, kind in known.items()}.get(name.lower())
        if found is None:
            hint = did_you_mean(name, known)
            if cls.entry_points and hint.startswith("known"):
                hint += f"; one of your own: {how_to_import()}"
            raise IsthmusError(f"unknown {cls.kind} '{name}': {hint}")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return its name and the options that have an effect, as files have them."""
        return {"name": self.name, **self.model_dump(exclude=set(self.without))}

    @classmethod
    def describe(cls) -> dict[str, Any]:
        """Return name, summary and typed options with their defaults, for the command line and the docs."""
        return {
            "name": cls.name,
            "summary": (cls.__doc__ or "").strip().split("\n")[0],
            "options": list(_fields(cls, "")),
        }


def _subclasses(base: Any) -> list[Any]:
    return [found for each in base.__subclasses__() for found in (each, *_subclasses(each))]


@cache
def _by_name(base: Any) -> dict[str, Any]:
    """Subclasses by name; cached until another one is defined, because reading a study looks up hundreds of names."""
    found: dict[str, Any] = {}
    for each in sorted((each for each in _subclasses(base) if each.__dict__.get("name")), key=lambda each: each.name):
        found[each.name] = each
    return found


@cache
def _import_all(name: str) -> None:
    """Import a module and everything directly in it; cached, because reading tables of studies looks up many names."""
    package = importlib.import_module(name)
    for module in pkgutil.iter_modules(getattr(package, "__path__", [])):
        importlib.import_module(f"{name}.{module.name}")


def _shown(cls: type[BaseModel]) -> list[str]:
    return [name for name in cls.model_fields if name not in getattr(cls, "without", ())]


def _is_group(kind: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _fields(cls: type[BaseModel], prefix: str) -> Iterator[dict[str, Any]]:
    for name in _shown(cls):
        field = cls.model_fields[name]
        kind = field.annotation
        if _is_group(kind):
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
            "help": " ".join(_docstring(cls, name).split()),
        }


def _docstring(cls: type[BaseModel], field: str) -> str:
    """What stands under a field in the class that declares it last."""
    declaring = next(each for each in cls.__mro__ if field in inspect.get_annotations(each))
    return _docstrings(declaring).get(field, "")


@cache
def _docstrings(cls: type) -> dict[str, str]:
    """What stands under the fields of a class, from its source: pydantic would read it when it makes the class.

    That takes every process half a second, and few show the text.
    """
    try:
        (made,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError, SyntaxError):  # a class that was typed in has no source
        return {}
    found: dict[str, str] = {}
    for field, text in pairwise(made.body if isinstance(made, ast.ClassDef) else []):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                found[name] = said
    return found


def option_paths(kinds: Iterable[type[BaseModel]], prefix: str = "") -> list[str]:
    """The dotted names of all options of these classes, and of their groups of options."""
    paths = [path for kind in kinds for path in _paths(kind)]
    groups = [path.partition(".")[0] for path in paths]
    return [f"{prefix}{path}" for path in dict.fromkeys([*groups, *paths])]


@cache
def _paths(kind: type[BaseModel]) -> tuple[str, ...]:
    """The options of a class; cached, because reading a study looks them up in many classes."""
    found: list[str] = []
    for name in _shown(kind):
        inner = kind.model_fields[name].annotation
        found += [f"{name}.{path}" for path in _paths(inner)] if _is_group(inner) else [name]
    return tuple(found)


def suggest_option(key: str, paths: Sequence[str]) -> str:
    """A hint for a mistyped option: the path that ends with its name, or with the most similar one; else all.

    >>> suggest_option("lr", ["rounds", "local.lr"]), suggest_option("local.epoch", ["rounds", "local.epochs"])
    ("did you mean 'local.lr'?", "did you mean 'local.epochs'?")
    """
    _, found = closest_path(key, paths)
    if found:
        return f"did you mean '{found}'?"
    group = key.lower().rpartition(".")[0]
    return did_you_mean("", {path for path in paths if path.rpartition(".")[0] == group} or set(paths))


def _type_text(kind: Any) -> str:
    """Return a type as text, without its bounds."""
    return re.sub(r"Annotated\[(\w+), .*?\)\]", r"\1", str(kind).replace("typing.", ""))


def _with_defaults(cls: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    merged = _with_preset(cls, values) if issubclass(cls, Options) else dict(values)
    for name, field in cls.model_fields.items():
        if not isinstance(merged.get(name), Mapping):
            continue
        default = field.get_default(call_default_factory=True)
        if isinstance(default, Options):
            merged[name] = {**default.model_dump(), **_with_defaults(type(default), merged[name])}
    return merged


def _with_preset(cls: type[Options], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, and below them those of the preset that they name, in whole tables."""
    chosen = values.get("preset")
    below = cls.presets.get(chosen) if isinstance(chosen, str) else None
    return merge(_with_defaults(cls, below), values) if below else dict(values)


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `changes` applied on top, table by table.

    >>> merge({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    """
    result = dict(base)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merge(result[key], value) if both else value
    return result


def _messages(cls: type[BaseModel], error: ValidationError, where: str) -> Iterator[str]:
    """A line for each problem; what the kinds of value that one option may have find wrong is one problem.

    Unknown options come first: one that is misspelt is also missing.
    """
    found: dict[tuple[str, ...], list[ErrorDetails]] = {}
    for each in sorted(error.errors(), key=lambda each: each["type"] != "extra_forbidden"):
        found.setdefault(_path(cls, each["loc"]), []).append(each)
    for path, errors in found.items():
        if not any(other[: len(path)] == path for other in found if other != path):  # else the inner one says more
            yield _message(cls, ".".join(path), errors, where)


def _path(cls: type[BaseModel], location: Sequence[int | str]) -> tuple[str, ...]:
    """The keys to a wrong value, without what pydantic calls the kinds of value that an option may have."""
    path: list[str] = []
    kinds: list[Any] = [cls]
    of_several = False
    for part in location:
        if of_several:
            of_several = False  # part is pydantic's name of one of them
            continue
        path.append(str(part))
        kinds = _inside(kinds, part)
        of_several = len(kinds) > 1
    return tuple(path)


def _inside(kinds: Iterable[Any], part: int | str) -> list[Any]:
    """The kinds of value of an option of a class, of an entry of a list or of a value of a table."""
    found = []
    for kind in kinds:
        if get_origin(kind) in (list, dict):
            found += _kinds(get_args(kind)[-1])
        elif field := getattr(kind, "model_fields", {}).get(part):
            found += _kinds(field.annotation)
    return found


def _kinds(annotation: Any) -> list[Any]:
    """The kinds of value that an option may have."""
    if get_origin(annotation) in (Union, UnionType):
        return [each for each in get_args(annotation) if each is not NoneType]
    return [annotation]


def _inner_kinds(annotation: Any) -> set[Any]:
    """The kinds of value that an option may have, or hold in lists and tables; of its words none.

    >>> _inner_kinds(list[int] | Literal["all", 3] | None) == {int, NoneType}
    True
    """
    annotation = getattr(annotation, "__supertype__", annotation)
    if get_origin(annotation) is Literal:
        return {type(each) for each in get_args(annotation)} - {str}
    if get_origin(annotation) is dict:
        return _inner_kinds(get_args(annotation)[1])
    inner = get_args(annotation)[:1] if get_origin(annotation) is Annotated else get_args(annotation)
    return set().union(*(_inner_kinds(each) for each in inner if each is not ...)) if inner else {annotation}


def _spelled(value: Any) -> Any:
    """Words for what is true or false, which pydantic would take for 1 and 0."""
    if isinstance(value, list | tuple):
        return [_spelled(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _spelled(each) for key, each in value.items()}
    return str(value).lower() if isinstance(value, bool) else value


def _message(cls: type[BaseModel], key: str, errors: Sequence[ErrorDetails], where: str) -> str:
    error = errors[0]
    *groups, option = key.split(".")
    kinds: list[Any] = [cls]
    for part in groups:
        kinds = _inside(kinds, part)
    owner: Any = next((kind for kind in kinds if hasattr(kind, "model_fields")), None)
    if error["type"] == "extra_forbidden":
        own = [] if owner is None else option_paths([owner], "".join(f"{part}." for part in groups))
        more = [] if groups or not issubclass(cls, Options) else cls.paths_in_tables()
        return f"{where}: unknown option '{key}': {suggest_option(key, [*own, *option_paths([cls]), *more])}"
    if error["type"] == "missing":
        name, _, last = key.rpartition(".")
        if last.isdecimal():
            return f"{where}: option '{name}' is {_shortened(error['input'])}: give more values"
        known = option in getattr(owner, "model_fields", {})
        what = " ".join(_docstring(owner, option).split()).partition(". ")[0].rstrip(".") if known else ""
        return f"{where}: option '{key}' is required" + (f": {what[0].lower()}{what[1:]}" if what else "")
    why = " or ".join(dict.fromkeys(remedy(each) for each in errors)).replace(" or give ", ", or ")
    if error["type"] == "value_error" and isinstance(
        error["input"], Mapping | BaseModel
    ):  # of several options together
        return f"{where}: {f'option {key!r}: ' if key else ''}{why}"
    return f"{where}: option '{key}' is {_shortened(error['input'])}: {why}"


_REMEDIES = {
    "int": "give a whole number",
    "float": "give a number",
    "finite_number": "give a finite number",
    "bool": "give true or false",
    "string": "give a text",
    "list": "give a list",
    "tuple": "give a list",
    "dict": "give a table of options",
    "model": "give a table of options",
    "greater_than": "give more than {gt:.15g}",
    "greater_than_equal": "give at least {ge:.15g}",
    "less_than": "give less than {lt:.15g}",
    "less_than_equal": "give at most {le:.15g}",
    "too_short": "give at least {min_length}",
    "too_long": "give at most {max_length}",
    "string_pattern_mismatch": "give a text that fits {pattern}",
    "string_too_short": "give a text of length {min_length} or more",
    "string_too_long": "give a text of length {max_length} or less",
    "literal_error": "give {expected}",
}
"""What to do about an error, by its type for pydantic, or by the first word of the type."""


def remedy(error: ErrorDetails) -> str:
    """What to do about a wrong value, in our words."""
    kind, first = error["type"], error["type"].partition("_")[0]
    text = _REMEDIES.get(kind, _REMEDIES.get(first, ""))
    if text:
        return text.format(**error.get("ctx", {}))
    text = error["msg"].removeprefix("Value error, ").replace("Input should be", "give")
    return text[0].lower() + text[1:]


def _shortened(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print an integer with thousands of digits
        return "a number too long to show"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
