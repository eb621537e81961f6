"""A study as a person writes it: data x partition x methods x seeds, from a TOML file or from flags."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, NonNegativeInt

from isthmus.data.cache import cache_root
from isthmus.data.partition import Partition
from isthmus.data.partition.given import Given
from isthmus.data.party import Party
from isthmus.data.pool import DataSet, Pool
from isthmus.errors import IsthmusError, did_you_mean
from isthmus.federation.rules import Rules
from isthmus.methods.base import Method
from isthmus.nn.encoders import Encoder
from isthmus.options import Options
from isthmus.protect.options import Protect
from isthmus.study.setup import check_fit, check_labelled, device_named, module_for, task_of
from isthmus.tasks.base import Task


@dataclass(frozen=True)
class Loaded:
    """What a run works on: parties, the number of classes (or of tasks) and their names where they have any, the cut
    that made them, and a named task."""

    parties: list[Party]
    classes: int
    cut: Partition
    note: str = ""
    named: Task | None = None
    labels: tuple[str, ...] = ()

    @property
    def task(self) -> Task:
        """What is learned: the task that is named, else the one that the labels ask for."""
        return task_of(self.named, self.parties, self.classes)


class Study(Options):
    """What is run: every method with every seed on the same data and cut.

    Each table names what it is and gives it options; `training` holds options for all methods that have them.

    >>> study = Study.of({"data": {"name": "banks"}, "methods": [{"name": "fedavg", "rounds": 3}]})
    >>> study.method_list()[0].rounds
    3
    """

    data: dict[str, Any] = Field(default={"name": "banks"})
    """The data set: its name and options."""
    partition: dict[str, Any] = Field(default={})
    """The cut: its name and options. Without one, data with natural owners go to them, other data are cut at random."""
    parties: int | None = Field(None, ge=1)
    """Number of parties; without one, the data's own number where they have one, else 4."""
    task: dict[str, Any] = Field(default={})
    """What is learned: a task's name and options. Without one, what the data's labels ask for."""
    model: dict[str, Any] = Field(default={"encoder": "gcn"})
    """The encoder and its options."""
    training: dict[str, Any] = Field(default={})
    """Options for all methods that have them: rounds, patience, local = { epochs = 5 }, ..."""
    methods: list[dict[str, Any]] = Field(default_factory=lambda: [{"name": Method.default_name()}])
    """The methods: names and options."""
    seeds: list[NonNegativeInt] = Field(default=[0], min_length=1)
    """One run of every method for each."""
    data_seed: NonNegativeInt | None = None
    """Seed of the data's split and of the cut in all runs; without it each run draws its own by its seed."""
    unlabelled: Literal["error", "idle"] = "error"
    """Parties without a training label: an error, or they take part without weight."""
    device: str = "cpu"
    """Where models are trained: cpu, cuda or mps."""
    wire: bool = False
    """Send every payload through bytes, as between machines; results are the same."""
    federation: Rules = Rules()
    """Of a federation with parties on machines of their own, and of hosts; a study in one process has no use for it."""
    protect: Protect = Protect()
    """What a federation's server cannot read; in a study in one process there is no such server."""

    @classmethod
    def of(cls, values: Mapping[str, Any], where: str = "study") -> Study:
        """A study from plain values, everything checked that can be checked without the data."""
        study = cls.read(values, where)
        study.data_set()
        study.cut()
        study.named_task()
        study.encoder()
        study.protect.protection()
        check_once([method.name for method in study.method_list()], where)
        if len(set(study.seeds)) < len(study.seeds):
            raise IsthmusError(f"{where}: a seed is listed twice: {study.seeds}")
        study.torch_device()
        return study

    def data_set(self) -> DataSet:
        kind, options = _named(DataSet, _with_path(self.data), "name", "data", default="banks")
        if self.parties and "parties" in kind.model_fields:
            options = {"parties": self.parties, **options}
        return kind.read(options, f"data '{kind.name}'")

    def cut(self) -> Partition | None:
        if not self.partition:
            return None
        kind, options = _named(Partition, self.partition, "name", "partition")
        return kind.read(options, f"partition '{kind.name}'")

    def named_task(self) -> Task | None:
        if not self.task:
            return None
        kind, options = _named(Task, self.task, "name", "task")
        return kind.read(options, f"task '{kind.name}'")

    def encoder(self) -> Encoder:
        kind, options = _named(Encoder, self.model, "encoder", "model", default="gcn")
        return kind.read(options, f"encoder '{kind.name}'")

    def method_list(self) -> list[Method]:
        """The methods with their options; `training` gives each what it has a field for."""
        if not self.methods:
            raise IsthmusError("there is no method: name at least one")
        found: list[Method] = []
        used: set[str] = set()
        for each in self.methods:
            kind, options = _named(Method, each, "name", "methods")
            given = {key: value for key, value in self.training.items() if key in kind.model_fields}
            used |= given.keys()
            found.append(kind.read(merged(given, options), f"method '{kind.name}'"))
        for key in self.training:
            if key not in used:
                known = {name for method in found for name in type(method).model_fields}
                raise IsthmusError(f"training: no method has an option '{key}': {did_you_mean(key, known)}")
        return found

    def load(self, seed: int) -> Loaded:
        """The parties of a run with this seed, checked to be fit for the methods."""
        loaded = self.cut_data(seed)
        if self.unlabelled == "error":
            check_labelled(loaded.parties)
        module = module_for(self.encoder(), loaded.parties, loaded.task, seed)
        for method in self.method_list():
            check_fit(method, loaded.parties, loaded.task, module)
        return loaded

    def cut_data(self, seed: int) -> Loaded:
        """The parties of a run with this seed, whether or not methods can train on them."""
        draw = seed if self.data_seed is None else self.data_seed
        data_set = self.data_set()
        pool = data_set.load(draw)
        cut = self.cut() or Partition.named("random" if Given().natural_count(pool) is None else "given")()
        number, task = self.parties or cut.natural_count(pool) or 4, self.named_task()

        def take_apart(pool: Pool) -> list[Party]:
            return cut.cut(pool, number, draw, cache_folder=cache_root() / "cuts")

        parties = take_apart(pool) if task is None else task.make_parties(pool, take_apart, draw)
        if parties[0].level == "pair":
            return Loaded(parties, 2, cut, pool.note, task)
        return Loaded(parties, pool.classes, cut, pool.note, task, pool.labels)

    def torch_device(self) -> torch.device:
        return device_named(self.device)

    def resolved(self, loaded: Loaded | None = None) -> dict[str, Any]:
        """Everything spelled out, defaults included, as `study.toml` records it.

        Arguments:
            loaded: parties of a run, which tell the number and the cut where the study leaves them to the data.
        """
        cut, task = self.cut() if loaded is None else loaded.cut, self.named_task()
        return {
            "parties": self.parties if loaded is None else len(loaded.parties),
            "seeds": self.seeds,
            "data_seed": self.data_seed,
            "unlabelled": self.unlabelled,
            "device": self.device,
            "wire": self.wire,
            "data": {"name": self.data_set().name, **self.data_set().model_dump()},
            "partition": {} if cut is None else {"name": cut.name, **cut.model_dump()},
            "task": {} if task is None else {"name": task.name, **task.model_dump()},
            "model": {"encoder": self.encoder().name, **self.encoder().model_dump()},
            "methods": [{"name": method.name, **method.model_dump()} for method in self.method_list()],
        }


def _with_path(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """A path where a data set's name is expected stands for the party folders in it."""
    name = data.get("name")
    if not isinstance(name, str) or not (os.sep in name or name in (".", "..") or Path(name).is_dir()):
        return data
    if name in DataSet.known():
        return data
    return {"path": name, **data, "name": "folder"}


def check_once(methods: Sequence[str], where: str) -> None:
    """Results are told apart by the names of their methods, so each is there once."""
    for name in methods:
        if methods.count(name) > 1:
            raise IsthmusError(f"{where}: method '{name}' is listed twice: compare its settings in two studies")


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise IsthmusError(f"cannot read the study {path}: {reason}; give the path of a TOML file") from error
    except tomllib.TOMLDecodeError as error:
        raise IsthmusError(f"{path} is no TOML: {error}") from error


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` on top, table by table.

    >>> merged({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    """
    result = dict(base)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else value
    return result


def settings(assignments: Sequence[str]) -> dict[str, Any]:
    """`key.path=value` texts as nested tables; values are read as TOML, and as plain text where they are none.

    >>> settings(["local.lr=0.1", "data.name=cora"])
    {'local': {'lr': 0.1}, 'data': {'name': 'cora'}}
    """
    table: dict[str, Any] = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise IsthmusError(f"setting '{assignment}' is not of the form key=value")
        inside = table
        for key in keys[:-1]:
            inside = inside.setdefault(key, {})
            if not isinstance(inside, dict):
                raise IsthmusError(f"setting '{assignment}': '{key}' has a value already")
        inside[keys[-1]] = _toml_value(text.strip())
    return table


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _named(kind: Any, table: Mapping[str, Any], key: str, where: str, default: str | None = None) -> tuple[Any, Any]:
    close = difflib.get_close_matches(key, [] if key in table else table, n=1)
    name = None if close else table.get(key, default)
    if not isinstance(name, str):
        mistyped = "".join(f"; is '{word}' meant to be '{key}'?" for word in close)
        raise IsthmusError(f"{where}: give a '{key}' (a text){mistyped}")
    return kind.named(name), {option: value for option, value in table.items() if option != key}
