"""Settings: methods with their options, as a study lists them, a grid combines them, or tuning chooses them."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from isthmus.data.level import Level
from isthmus.errors import IsthmusError, closest_path, format_option, writes_flags
from isthmus.methods.base import Method
from isthmus.options import Options, option_paths, suggest_option
from isthmus.result_files import Search as Search  # also for whoever shows a search
from isthmus.result_files import Tried as Tried
from isthmus.study.loop import RunResult
from isthmus.study.option_hints import ONE_VALUE, TABLES, missing_option, paths_of_tables
from isthmus.study.own_models import ENCODER
from isthmus.study.setup import suited
from isthmus.tasks.metrics import METRICS, metric_of

MODEL = "model."
"""The beginning of the path of a model's option."""


@dataclass(frozen=True)
class Setting:
    """A method of a study with values for some of its options, or for some of its model's.

    Attributes:
        method: with these values.
        of: the label of the method that it is a setting of, as the study lists it.
        values: by option, `local.lr`, the value that was given; empty if nothing varies.
    """

    method: Method
    of: str
    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def make(cls, method: Method, values: Mapping[str, Any]) -> Setting:
        """A setting of a method: its options, with these values in place of its own, and a label that has them."""
        words = [f"{name}={_word(value)}" for name, value in values.items()]
        own = {name: value for name, value in values.items() if not name.startswith(MODEL)}
        label = " ".join([method.label, *words])
        return cls(with_values(method, {**own, "label": label}), method.label, dict(values))

    @property
    def model(self) -> dict[str, Any]:
        """The values of the model's options, by their names in `[model]`."""
        return {name[len(MODEL) :]: value for name, value in self.values.items() if name.startswith(MODEL)}


def with_values(method: Method, values: Mapping[str, Any]) -> Method:
    """A method with these values of options, by path, in place of its own."""
    options = method.model_dump()
    for name, value in values.items():
        *path, last = name.split(".")
        inside = options
        for key in path:
            inside = inside[key]
        inside[last] = value
    return type(method).read(options, f"method '{method.name}'")


def _word(value: Any) -> str:
    """A value in a label, which names files.

    >>> _word(0.01), _word([10, 5]), _word({"name": "krum"}), _word(True)
    ('0.01', '10,5', 'name=krum', 'true')
    """
    if isinstance(value, Mapping):
        return ",".join(f"{key}={_word(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ",".join(map(_word, value))
    return str(value).lower() if isinstance(value, bool) else re.sub(r"[^\w.+-]+", "-", str(value))


def combine(methods: Sequence[Method], grid: Mapping[str, Any]) -> list[Setting]:
    """Every method with every combination of the grid's values for options that it has.

    Arguments:
        grid: lists of values in tables as of a method, and of its model in `model`; `METHOD.OPTION` is for one method.
    """
    lists = flatten(grid)
    for name, values in lists.items():
        listed = values if isinstance(values, list) else [values]
        if ranges := [each for each in listed if is_range(each)]:
            search = f"--range {name}={ranges[0]}" if writes_flags() else f"{{'{name}': '{ranges[0]}'}} in `tune`"
            raise IsthmusError(
                f"grid: '{name}' is the range {ranges[0]}: a grid lists values, such as 0.01,0.1; isthmus tune "
                f"searches ranges, {search}"
            )
        if not isinstance(values, list) or not values:
            raise IsthmusError(f"grid: '{name}' is {values!r}: give a list of values, such as [0.01, 0.1]")
        if len({_word(value) for value in values}) < len(values):
            raise IsthmusError(f"grid: '{name}' lists a value twice: give each of {values} once")
    check_options(methods, lists, "grid")
    found = []
    for method in methods:
        own = options_for(method, lists)
        combinations = [dict(zip(own, values, strict=True)) for values in itertools.product(*own.values())]
        found += [Setting.make(method, values) if values else Setting(method, method.label) for values in combinations]
    return found


def is_range(value: Any) -> bool:
    """Whether a value is written as a range of numbers.

    >>> is_range("0.01..0.1"), is_range("1..10"), is_range("gcn..sage"), is_range(0.1)
    (True, True, False, False)
    """
    number = r"[+-]?\d[\d_.]*?(e[+-]?\d+)?"
    return isinstance(value, str) and re.fullmatch(rf"{number}\.\.{number}", value.strip(), re.IGNORECASE) is not None


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with paths for keys.

    >>> flatten({"local": {"lr": [0.1, 1]}, "mu": [0]})
    {'local.lr': [0.1, 1], 'mu': [0]}
    """
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return found


def recorded(methods: Sequence[Method], model: Any, level: Level, grid: Mapping[str, Any]) -> list[Method]:
    """The methods as a study records them: with the rates that they train with, unless its grid varies the encoder."""
    varied = any(f".{name}".endswith(f".{ENCODER}") for name in flatten(grid))
    return [each if varied else suited(each, model, level) for each in methods]


def options_for(method: Method, given: Mapping[str, Any]) -> dict[str, Any]:
    """Of what is given by option those that a method has; what is given for this method alone comes last."""
    own = {name: value for name, value in given.items() if has_option(method, name)}
    for name, value in given.items():
        owner, _, option = name.partition(".")
        if owner in (method.name, method.label) and has_option(method, option):
            own[option] = value
    return own


def check_options(methods: Sequence[Method], given: Mapping[str, Any], where: str) -> None:
    """Refuse an option that no method has."""

    def in_place(path: str, _: Any) -> str:
        table = path.partition(".")[0]
        fixed = table in TABLES and not path.startswith(MODEL)
        return f"{path}, which has one value in each study" if fixed else f"'{path}'"

    for name, values in given.items():
        if any(options_for(method, {name: None}) for method in methods):
            continue
        if name in ONE_VALUE or (name in paths_of_tables() and not name.startswith(MODEL)):
            raise IsthmusError(
                f"{where}: '{name}' has one value in each study: only options of methods, of local training and of the "
                "model vary; run a study for each value, and isthmus compare them"
            )
        owner, _, option = name.partition(".")
        own = [method for method in methods if owner in (method.name, method.label)]
        if own and option:
            paths = [path for path, _ in option_fields(own[0])]
            _, close = closest_path(option, paths, cutoff=0.5)  # of few names; some have two letters
            hint = f"did you mean '{owner}.{close}'?" if close else suggest_option(option, paths)
            raise IsthmusError(f"{where}: '{owner}' has no option '{option}': {hint}")
        groups = {path.partition(".")[0] for path in option_paths(map(type, methods))}
        if option and owner in Method.known() and owner not in groups:
            add = format_option("method", owner) if writes_flags() else f"{{ name = '{owner}' }} in [[methods]]"
            raise IsthmusError(f"{where}: '{name}': method '{owner}' is not in this study: add it with {add}")
        raise IsthmusError(f"{where}: {missing_option(name, values, methods, in_place)}")


def has_option(method: Method, name: str) -> bool:
    """Whether a method has this option, or trains a model that may have it."""
    return name in dict(option_fields(method)) or (name.startswith(MODEL) and method.role != "constant")


def option_fields(options: Options, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The options of a method, also those in its tables, by path; and their fields. A label is none."""
    for name, info in type(options).model_fields.items():
        value = getattr(options, name)
        if isinstance(value, Options):
            yield from option_fields(value, f"{prefix}{name}.")
        elif prefix + name != "label":
            yield prefix + name, info


def rank(tried: Sequence[Tried], metric: str) -> list[Tried]:
    """Settings by their validation metric, best first, and the best of each method chosen; equals keep their order.

    Those that diverged come last, after what has no such metric.
    """
    sign = 1 if metric_of(metric).smaller_is_better else -1
    order = sorted(tried, key=lambda each: (each.mean is None, each.diverged, sign * (each.mean or 0.0)))
    best: dict[str, Tried] = {}
    for each in order:
        best.setdefault(each.of, each)
    return [Tried(**{**vars(each), "chosen": best.get(each.of) is each}) for each in order]


class LeftOut:
    """The settings of a grid with which training diverged.

    Arguments:
        settings: of all methods. A method whose settings have all diverged ends the study.
    """

    def __init__(self, settings: Sequence[Setting] = ()) -> None:
        self._of = {each.method.label: each.of for each in settings if each.values}
        self.labels: set[str] = set()

    def add(self, label: str, seed: int, error: IsthmusError) -> None:
        """Leave a setting out; raise the error of its run if its method has no other."""
        if label not in self._of:
            raise type(error)(f"{label}, seed {seed}: {error}") from error
        self.labels.add(label)
        of = self._of[label]
        if all(each in self.labels for each, method in self._of.items() if method == of):
            raise IsthmusError(f"{of} diverged with every value of the grid, at last {label}: {error}") from error


def search_of_grid(
    settings: Sequence[Setting], runs: Sequence[RunResult], selected_by: str, diverged: Container[str] = ()
) -> Search:
    """Rank the settings of a grid by the means of their runs' validation metric; labels in `diverged` have none."""
    known = {name for run in runs for name in run.metrics}
    metric = next((f"val_{name}" for name in (selected_by, *METRICS) if f"val_{name}" in known), f"val_{selected_by}")
    tried = []
    for each in settings:
        label = each.method.label
        values = [run.metrics[metric] for run in runs if run.method == label and metric in run.metrics]
        tried.append(Tried.of_values(each.of, each.values, [math.nan] if label in diverged else values, label=label))
    return Search(metric, rank(tried, metric))


def effect_notes(settings: Sequence[Setting], runs: Sequence[RunResult]) -> list[str]:
    """A line for each option of a method whose values made no difference in any evaluated round of any seed."""
    histories: dict[str, dict[int, Any]] = {}
    for run in runs:
        histories.setdefault(run.method, {})[run.seed] = run.history
    found: dict[tuple[str, ...], str] = {}
    for one, other in itertools.combinations(settings, 2):
        own = histories.get(one.method.label, {})
        if one.of == other.of and any(own.values()) and own == histories.get(other.method.label):
            varied = [name for name in one.values if one.values[name] != other.values.get(name)]
            alike = f"{one.method.label} and {other.method.label} are the same in every round: "
            found.setdefault(
                (one.of, *varied), alike + ", ".join(f"'{each}'" for each in varied) + " has no effect there"
            )
    return list(found.values())


def budget_notes(settings: Sequence[Setting]) -> list[str]:
    """A line for each method that has fewer settings than another: it lacks an option, or the grid is not for it."""
    counts = Counter(each.of for each in settings)
    varied = {each.of: set(each.values) for each in settings}
    every = dict.fromkeys(name for each in settings for name in each.values)
    return [
        f"{of} ran with {count} of up to {max(counts.values())} settings: the grid does not vary "
        + ", ".join(f"'{name}'" for name in every if name not in varied[of])
        + " for it"
        for of, count in counts.items()
        if count < max(counts.values())
    ]
