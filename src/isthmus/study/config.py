"""A study as a user writes it: data x partition x methods x seeds, from a TOML file or flags."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ConfigDict, Field, NonNegativeInt, field_validator

from isthmus import store
from isthmus.data.cache import cache_root
from isthmus.data.datasets.by_party import PartyData
from isthmus.data.describe import note_on_splits
from isthmus.data.fingerprint import fingerprint, joined
from isthmus.data.level import Level
from isthmus.data.partition import Partition
from isthmus.data.partition.given import Given
from isthmus.data.party import Party
from isthmus.data.pool import DataSet, Pool, check_shares_read, with_path
from isthmus.errors import IsthmusError, closest_path
from isthmus.federation.rules import Rules
from isthmus.methods.base import Method
from isthmus.nn.encoders import Encoder
from isthmus.options import Options, merge, option_paths, suggest_option
from isthmus.own_code import identify, import_files
from isthmus.privacy.options import Privacy
from isthmus.protect.options import Protect
from isthmus.study.option_hints import missing_option, paths_of_tables
from isthmus.study.own_models import (
    GIVEN,
    OwnModel,
    code_of,
    model_table,
    named_encoder,
    refuse_given,
    with_model_options,
)
from isthmus.study.private import adapted, check_no_search, privacy_of, privacy_table, private_answers
from isthmus.study.protocol import preset_for
from isthmus.study.settings import Setting, check_options, combine, flatten, recorded
from isthmus.study.setup import check_fit, check_labelled, device_named, module_for, task_of
from isthmus.tasks.base import Task

DRAWN = "Note: the study draws its own split (partition.split): that of the parties' files is not used."
LATER = "Note: rows have dates, and the split is drawn: training reads later rows than those that a test is on."
MOST_SEEDS = 10_000
"""The largest number of seeds that a study may ask for by their number."""


def _notes_on_cut(pool: Pool, partition: Partition, parties: Sequence[Party]) -> Iterator[str]:
    """Notes on parties that are not as the data have them, or whose splits are not."""
    if partition.split is not None and pool.own_splits:
        yield DRAWN
    if partition.split is not None and pool.dated and pool.own_splits:
        yield LATER
    if pool.encoding is not None:  # of files: that a public data set lacks a class somewhere is nobody's mistake
        yield note_on_splits(parties, "the study draws the splits" if partition.split else "the study cuts the parties")


@dataclass(frozen=True)
class Loaded:
    """The parties of a run.

    Arguments:
        classes: number of classes, or of tasks if items have several labels; 0 if only the labels show it.
        partition: the partition that made the parties.
        note: what the data set says about its data.
        named_task: the task that the study names, if it names one.
        task_options: options of the task, if the study gives some without naming a task.
        labels: names of the classes, if they have names.
        by_workers: workers of a cluster hold the parties; these are only their outlines.
        digests: of what each party holds, where these are only outlines.
        encoding: how columns of files became features, see `Pool`.
    """

    parties: list[Party]
    classes: int
    partition: Partition
    note: str = ""
    named_task: Task | None = None
    task_options: Mapping[str, Any] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    by_workers: bool = False
    encoding: Mapping[str, Any] | None = None
    digests: tuple[str, ...] = ()

    @cached_property
    def task(self) -> Task:
        """The named task, or else the task that the labels ask for."""
        return task_of(self.named_task, self.parties, self.classes or None, self.task_options, self.labels)

    @cached_property
    def fingerprint(self) -> str:
        """By which the data of a resumed study are known again."""
        return joined(self.digests) if self.by_workers else fingerprint(self.parties)


cut_elsewhere: Callable[[Study, int], Loaded] | None = None
"""In a process that does jobs for another machine: asks that machine for the parties of a run, which are cut there."""


class Study(Options):
    """What to run: every method with every seed, on the same data and partition.

    Each table names something registered and sets its options; `training` holds options for all methods.

    >>> study = Study.of({"data": {"name": "banks"}, "methods": [{"name": "fedavg", "rounds": 3}]})
    >>> study.method_list()[0].rounds
    3
    """

    model_config = ConfigDict(populate_by_name=True)

    protocol: str | None = None
    """A published protocol whose options the study starts from (isthmus protocols); what the study sets itself wins."""
    purpose: str = ""
    """A sentence on what the study is for; parties approve it, and the dossier states it."""
    imports: list[str] = Field(default=[], alias="import")
    """Python files to import first, with methods, encoders or data sets of your own."""
    data: dict[str, Any] = Field(default={"name": "banks"})
    """The data set: its name and options."""
    partition: dict[str, Any] = Field(default={})
    """The partition: its name and options. By default, data go to their owners, or are cut at random; `edges` and
    `split` need no name."""
    parties: int | None = Field(None, ge=1)
    """Number of parties; by default, the data's natural number of owners, or else 4."""
    task: dict[str, Any] = Field(default={})
    """The task: its name and options. Without a name, the options are those of the task that the labels ask for."""
    model: dict[str, Any] = Field(default={"encoder": "gcn"})
    """The encoder and its options; `module:Class` names one of your own."""
    training: dict[str, Any] = Field(default={})
    """Options for all methods that have them: rounds, patience, local = { epochs = 5 }, ..."""
    methods: list[dict[str, Any]] = Field(default_factory=lambda: [{"name": Method.default_name()}])
    """The methods: their names and options."""
    grid: dict[str, Any] = Field(default={})
    """Values to compare, `local.lr = [0.01, 0.1]`: each method runs with every combination for options that it has, or
    that its model has, `model.hidden = [32, 64]`."""
    tune: dict[str, Any] = Field(default={})
    """Ranges in which `isthmus tune` searches: `local.lr = "0.001..0.1"`; a list is of choices, one value fixes."""
    seeds: list[NonNegativeInt] = Field(default=[0], min_length=1)
    """Seeds: one run of every method for each. A number N stands for the seeds 0 to N - 1."""
    data_seed: NonNegativeInt | None = None
    """Seed of the split and the cut in all runs; by default, or with "run", each run uses its own seed."""
    unlabelled: Literal["error", "idle"] = "error"
    """Parties without a training label: 'error' refuses them, 'idle' lets them take part with weight 0."""
    device: str = "cpu"
    """Device to train on: cpu, cuda or mps."""
    wire: bool = False
    """Encode every payload to bytes and back, as between machines; results are the same."""
    federation: Rules = Rules()
    """Time and size limits of a federation; unused in a study."""
    protect: Protect = Protect()
    """What a federation's server cannot read; unused in a study."""
    privacy: dict[str, Any] = Field(default={})
    """Differential privacy: the `unit` (party), `epsilon`, and its other options. Empty: none."""
    code: dict[str, str] = Field(default={})
    """Written by Isthmus: by `module:Class` the source hash of your own code that ran; other code is refused."""

    @field_validator("data_seed", mode="before")
    @classmethod
    def _own_of_each_run(cls, given: Any) -> Any:
        return None if given == "run" else given

    @field_validator("seeds", mode="before")
    @classmethod
    def _first_seeds(cls, given: Any) -> Any:
        if type(given) is int and 1 <= given <= MOST_SEEDS:
            return list(range(given))
        if not isinstance(given, list | tuple | range):
            raise ValueError(f"give their number, from 1 to {MOST_SEEDS:,}, or a list of them")
        return list(given)

    @classmethod
    def paths_in_tables(cls) -> list[str]:
        return [*option_paths(Method.known().values(), "training."), *paths_of_tables()]

    @classmethod
    def of(cls, values: Mapping[str, Any], where: str = "study") -> Study:
        """Return a study from plain values, after all checks that need no data."""
        study = cls.read(values, where)
        import_files(study.imports)
        preset = preset_for(values)
        check_no_effect(study.training, study.grid, preset.get("training", {}), where)
        if study.protocol is not None:
            study = cls.read(merge(preset, values), where)
        study.data_set()
        study.named_partition()
        study.named_task()
        study.encoder()
        study.protect.protection()
        check_no_search(study.named_privacy(), bool(study.grid))
        check_distinct(study.method_list(), where)
        if study.tune:
            check_options(study.listed_methods(), flatten(study.tune), "tune")
        study.trained_encoders()
        if len(set(study.seeds)) < len(study.seeds):
            raise IsthmusError(f"{where}: a seed is listed twice: give each of {study.seeds} once")
        study.torch_device()
        study.check_code(where)
        return study

    @classmethod
    def of_federation(cls, values: Mapping[str, Any], where: str = "study") -> Study:
        """As `of`; code that comes with a study is refused, for parties and server run only what they installed."""
        study = cls.read(values, where)
        if study.imports or ":" in str(study.model.get("encoder", "")):
            raise IsthmusError(
                f"{where}: a federation runs no code from a study: install the package with your code at the server "
                "and at every party, let it declare entry points, and name the method or encoder by its name"
            )
        whole = cls.of(values, where)
        if any(method.label != method.name for method in whole.method_list()):
            raise IsthmusError(
                f"{where}: a federation runs each method once: leave out the grid and labels, and choose settings on "
                "data that lie in one place, or in a study for each"
            )
        task = whole.named_task()  # without one, what the parties hold decides on the learning rate of encoders
        return whole if task is None else whole.suited(task.level)

    def own_code(self) -> dict[str, dict[str, str]]:
        """By `module:Class` the source hash and the package of everything of a user's own that the study names."""
        return identify(code_of(each) if isinstance(each, OwnModel) else type(each) for each in self._named() if each)

    def check_code(self, where: str) -> None:
        """Refuse own code whose source is not that with which the study was recorded."""
        for name, found in self.own_code().items() if self.code else ():
            if self.code.get(name, found["source"]) != found["source"]:
                raise IsthmusError(
                    f"{where}: the source of '{name}' is not the one that this study ran with: restore it, or delete "
                    "its line below [code] to run the present one"
                )

    def data_set(self) -> DataSet:
        table = with_path(self.data)
        _refuse_unknown_data(table.get("name"))
        kind, options = _named(DataSet, table, "name", "data", default="banks")
        if self.parties and "parties" in kind.model_fields:
            options = {"parties": self.parties, **options}
        return kind.read(options, f"data '{kind.name}'")

    def named_partition(self) -> Partition | None:
        if self.partition.keys() <= Partition.model_fields.keys():
            self._default_partition("random")
            return None
        kind, options = _named(Partition, self.partition, "name", "partition")
        return kind.read(options, f"partition '{kind.name}'")

    def _default_partition(self, name: str) -> Partition:
        return Partition.named(name).read(self.partition, "partition")

    def named_privacy(self) -> Privacy | None:
        return privacy_of(self.privacy)

    def named_task(self) -> Task | None:
        if "name" not in self.task:
            known = ["name", *option_paths(Task.known().values())]
            if key := next((key for key in self.task if key not in known), ""):
                raise IsthmusError(f"task: no task has an option '{key}': {suggest_option(key, known)}")
            return None
        kind, options = _named(Task, self.task, "name", "task")
        return kind.read(options, f"task '{kind.name}'")

    def task_options(self) -> dict[str, Any]:
        """Options of the task that the labels ask for, if the study names none."""
        return {} if "name" in self.task else self.task

    def encoder(self, method: Method | None = None) -> Encoder | OwnModel:
        """The encoder that the study names; of a method, with the values that the grid has for it."""
        refuse_given(self.model, "model")
        table = {key: value for key, value in self.model.items() if key != GIVEN}
        name, options = _name_of(table, "encoder", "model", default="gcn")
        settings = self.settings() if method is not None and self.grid else []
        varied = next((each.model for each in settings if method and each.method.label == method.label), {})
        encoder: Encoder | OwnModel = with_model_options(named_encoder(name, options), varied)
        return encoder

    def trained_encoders(self) -> list[Encoder | OwnModel]:
        """The encoder of every setting that trains one."""
        plain, settings = self.encoder(), self.settings()
        return [with_model_options(plain, each.model) for each in settings if each.method.role != "constant"]

    def method_list(self) -> list[Method]:
        """Return all that runs: the methods, each with every combination of the grid's values that applies to it."""
        return [setting.method for setting in self.settings()]

    def settings(self) -> list[Setting]:
        """Return the same with what varies in each."""
        return combine(self.listed_methods(), self.grid)

    def listed_methods(self) -> list[Method]:
        """Return the methods with their options, including those of `training` that they have, without the grid."""
        if not self.methods:
            raise IsthmusError("there is no method: name at least one in methods")
        found: list[Method] = []
        used: set[str] = set()
        for each in self.methods:
            kind, options = _named(Method, each, "name", "methods")
            given = {key: value for key, value in self.training.items() if key in kind.option_names()}
            used |= given.keys()
            found.append(adapted(kind.read(merge(given, options), f"method '{kind.name}'"), self.named_privacy()))
        for key in self.training:
            if key not in used:
                raise IsthmusError(f"training: {missing_option(key, None, found)}")
        return found

    def suited(self, level: Level) -> Study:
        """The same study with the number for every local learning rate that it leaves to the encoder."""
        return self.with_methods(recorded(self.listed_methods(), self.encoder(), level, self.grid))

    def with_methods(self, methods: Sequence[Method]) -> Study:
        """The same study with these methods."""
        tables = [each.to_dict() for each in methods]
        return self.model_copy(update={"methods": tables, "training": {}})

    def load(self, seed: int) -> Loaded:
        """Return the parties of a run with this seed, after checks that they fit the methods."""
        return self.checked(self.cut_data(seed), seed)

    def checked(self, loaded: Loaded, seed: int) -> Loaded:
        """The parties of a run with this seed, which must fit the methods."""
        if self.unlabelled == "error":
            check_labelled(loaded.parties)
        plain = self.encoder()
        for setting in self.settings():
            module = module_for(with_model_options(plain, setting.model), loaded.parties, loaded.task, seed)
            check_fit(setting.method, loaded.parties, loaded.task, module)
            private_answers(self.named_privacy(), setting.method, module, loaded.task, len(loaded.parties))
        return loaded

    def cut_data(self, seed: int) -> Loaded:
        """Return the parties of a run with this seed, without checks."""
        return self.cut_here(seed) if cut_elsewhere is None else cut_elsewhere(self, seed)

    def cut_here(self, seed: int) -> Loaded:
        """Cut them in this process, whatever `cut_elsewhere` says."""
        draw = self.draw_of(seed)
        data_set = self.data_set()
        pool = data_set.load(draw)
        default = "random" if Given().natural_count(pool) is None else "given"
        partition, task = self.named_partition() or self._default_partition(default), self.named_task()
        number = self.parties or partition.natural_count(pool) or 4
        if partition.split is not None and task is not None and task.level == "pair":
            raise IsthmusError("links are held out by task.val and task.test: leave out partition.split")

        def take_apart(pool: Pool) -> list[Party]:
            return partition.cut(pool, number, draw, cache_folder=cache_root() / "cuts")

        if partition.split is not None:
            check_shares_read(data_set, "partition.split says what items are for")
        parties = take_apart(pool) if task is None else task.make_parties(pool, take_apart, draw)
        if parties[0].level == "pair":
            return Loaded(parties, 2, partition, pool.note, task, encoding=pool.encoding)
        about = self.task_options(), pool.labels
        if partition.split is None and isinstance(partition, Given):
            note = pool.notes
        else:
            note = " ".join(filter(None, (pool.note, *_notes_on_cut(pool, partition, parties))))
        return Loaded(parties, pool.classes, partition, note, task, *about, encoding=pool.encoding)

    def draw_of(self, seed: int) -> int:
        """The seed of the data's draws in a run with this seed."""
        return seed if self.data_seed is None else self.data_seed

    def party_data(self) -> PartyData | None:
        """The data set, if several machines can load the parties, each some of them."""
        data, task = self.data_set(), self.named_task()
        partition = self.named_partition() or self._default_partition("given")
        cut = not isinstance(partition, Given) or partition.split is not None
        if not isinstance(data, PartyData) or cut or (task and task.level == "pair"):
            return None  # what is cut, or drawn from all parties, must be in one place first
        return data if self.parties in (None, len(data.party_sizes())) else None

    def as_cut(self, parties: Sequence[Party]) -> list[Party]:
        """Some of the parties that `party_data` loads as this study uses them."""
        partition, task = self.named_partition() or self._default_partition("given"), self.named_task()
        cut = partition.cut(Pool(None, 1, parties=tuple(parties)), len(parties), 0)
        return cut if task is None else task.set_masks(cut)

    def loaded_by_workers(self, pool: Pool) -> Loaded:
        """What is known here of parties on other machines, from the pool of their outlines."""
        partition = self.named_partition() or self._default_partition("given")
        parties = list(pool.parties or ())
        about = self.named_task(), self.task_options(), pool.labels
        return Loaded(parties, pool.classes, partition, pool.notes, *about, True, pool.encoding)

    def modules(self) -> frozenset[str]:
        """The modules that define what the study names, which another process imports; some may be the user's own."""
        things = (code_of(each) for each in self._named())
        modules = {(each if hasattr(each, "__qualname__") else type(each)).__module__ for each in things}
        return frozenset(modules - {"__main__"})  # which processes import anyway

    def check_importable(self) -> None:
        """Refuse what is defined in the script that runs: other machines cannot import it."""
        for each in self._named():
            if type(each).__module__ == "__main__" and each is not None:
                raise IsthmusError(
                    f"{each.kind} '{each.name}' is defined in the script itself, which no worker of a cluster imports: "
                    "move it to a module that every machine has"
                )

    def _named(self) -> list[Any]:
        """What the study names."""
        models = [self.encoder(), *self.trained_encoders()]
        return [self.data_set(), self.named_partition(), self.named_task(), *models, *self.method_list()]

    def torch_device(self) -> torch.device:
        return device_named(self.device)

    def resolved(self, loaded: Loaded | None = None) -> dict[str, Any]:
        """Return the study with all defaults filled in, as `study.toml` records it.

        Arguments:
            loaded: parties of a run; they determine the number of parties and the partition if the study does not.
        """
        partition, task = self.named_partition() if loaded is None else loaded.partition, self.named_task()
        task = task if loaded is None else loaded.task
        return {
            **({"purpose": self.purpose} if self.purpose else {}),
            **({"import": self.imports} if self.imports else {}),
            "parties": self.parties if loaded is None else len(loaded.parties),
            "seeds": self.seeds,
            "data_seed": self.data_seed,
            "unlabelled": self.unlabelled,
            "device": self.device,
            "wire": self.wire,
            "data": self.data_set().to_dict(),
            "partition": self.partition if partition is None else partition.to_dict(),
            "task": self.task_options() if task is None else task.to_dict(),
            "model": model_table(self.encoder()),
            "methods": [method.to_dict() for method in self.listed_methods()],
            **({"grid": self.grid} if self.grid else {}),
            **({} if (privacy := self.named_privacy()) is None else {"privacy": privacy_table(privacy)}),
            **code_table(self.own_code()),
        }


def code_table(own: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """The table `[code]` of a study: the source hash of each own class; no table where there is none."""
    return {"code": {name: each["source"] for name, each in own.items()}} if own else {}


def _refuse_unknown_data(name: Any) -> None:
    """Refuse a name that is no data set; folders of the working folder are suggested, too."""
    if isinstance(name, str) and name.lower() not in DataSet.known():
        with os.scandir() as found:
            folders = [each.name for each in found if each.is_dir() and not each.name.startswith(".")]
        near, hint = closest_path(name, [*DataSet.known(), *folders])
        hint = f"did you mean '{hint}'?" if near else "give the name of one (isthmus datasets) or a folder of parties"
        raise IsthmusError(f"unknown data set '{name}': {hint}")


def check_no_effect(options: Mapping[str, Any], grid: Mapping[str, Any], preset: Mapping[str, Any], where: str) -> None:
    """Refuse an option for all methods whose value the grid replaces; what a protocol sets may stand there."""
    set_by_protocol = flatten(preset)
    varied = flatten(grid)
    for path, value in flatten(options).items():
        if path in varied and set_by_protocol.get(path) != value:
            raise IsthmusError(f"{where}: '{path}' has a value of its own and values in the grid: leave one out")


def check_distinct(methods: Sequence[Method], where: str) -> None:
    """Refuse two methods with one label, because results are identified by it."""
    labels = [method.label.lower() for method in methods]  # files that are named after them may ignore case
    for method in methods:
        if labels.count(method.label.lower()) > 1:
            raise IsthmusError(f"{where}: method '{method.label}' is listed twice: give each a label, label = \"...\"")


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(store.read_text(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise IsthmusError(f"cannot read the study {path}: {reason}; give the path of a TOML file") from error
    except (ValueError, RecursionError) as error:  # also a number with thousands of digits, or very deep brackets
        raise IsthmusError(f"{path} is not TOML: {error}; correct the file") from error


def parse_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """Return `key.path=value` texts as nested tables; values are TOML, or plain text if they are not valid TOML.

    >>> parse_assignments(["local.lr=0.1", "data.name=cora"])
    {'local': {'lr': 0.1}, 'data': {'name': 'cora'}}
    """
    parts = (assignment.partition("=") for assignment in assignments)
    return _nested((path, equals, _toml_value(text.strip())) for path, equals, text in parts)


def parse_grid(assignments: Sequence[str]) -> dict[str, Any]:
    """Return `key.path=value,value` texts as nested tables of lists.

    >>> parse_grid(["local.lr=0.01,0.1", "aggregate=mean,median", "local.fan_out=[5, 5],[10, 10]"])
    {'local': {'lr': [0.01, 0.1], 'fan_out': [[5, 5], [10, 10]]}, 'aggregate': ['mean', 'median']}
    """
    listed = []
    _refuse_repeated("--grid", assignments, "put all its values into one, such as --grid local.lr=0.01,0.1")
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise IsthmusError(f"--grid {path}: write it with its values, such as --grid {path}=1,2")
        listed.append((path, equals, _values(text)))
    return _nested(listed)


def parse_ranges(assignments: Sequence[str]) -> dict[str, Any]:
    """Return `key.path=RANGE` texts as nested tables: `low..high` stays a text, choices are a list.

    >>> parse_ranges(["local.lr=0.001..0.1", "local.optimizer=adam,sgd", "mu=0", "local.fan_out=[5, 5],[3, 3]"])
    {'local': {'lr': '0.001..0.1', 'optimizer': ['adam', 'sgd'], 'fan_out': [[5, 5], [3, 3]]}, 'mu': 0}
    """

    def value(text: str) -> Any:
        return _values(text) if "," in text else _toml_value(text)

    _refuse_repeated("--range", assignments, "give it one range, such as --range local.lr=0.001..0.1")
    parts = (assignment.partition("=") for assignment in assignments)
    return _nested((path, equals, value(text.strip())) for path, equals, text in parts)


def _refuse_repeated(flag: str, assignments: Sequence[str], remedy: str) -> None:
    """Refuse an option that is given twice, of which the last would win."""
    paths = [each.partition("=")[0].strip() for each in assignments]
    if repeated := next((path for path in paths if paths.count(path) > 1), ""):
        raise IsthmusError(f"{flag} {repeated} is given {paths.count(repeated)} times: {remedy}")


def _nested(assignments: Iterable[tuple[str, str, Any]]) -> dict[str, Any]:
    """Paths of keys, with the equals sign behind them, and values as nested tables."""
    table: dict[str, Any] = {}
    for path, equals, value in assignments:
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise IsthmusError(f"setting '{path}': write it as key=value")
        inside = table
        for key in keys[:-1]:
            inside = inside.setdefault(key, {})
            if not isinstance(inside, dict):
                raise IsthmusError(f"setting '{path}': '{key}' already has a value: set either it or its options")
        inside[keys[-1]] = value
    return table


def _values(text: str) -> list[Any]:
    """The values in a list without its brackets; plain text if they are not valid TOML."""
    values = _toml_value(f"[{text}]")
    return values if isinstance(values, list) else [_toml_value(each) for each in text.split(",")]


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _named(kind: Any, table: Mapping[str, Any], key: str, where: str, default: str | None = None) -> tuple[Any, Any]:
    name, options = _name_of(table, key, where, default)
    return kind.named(name), options


def _name_of(table: Mapping[str, Any], key: str, where: str, default: str | None = None) -> tuple[str, dict[str, Any]]:
    close = [] if key in table else difflib.get_close_matches(key, table, n=1) or ["name"] * ("name" in table)
    name = None if close else table.get(key, default)
    if not isinstance(name, str):
        mistyped = "".join(f"; is '{word}' meant to be '{key}'?" for word in close)
        raise IsthmusError(f"{where}: give '{key}' (a text){mistyped}")
    return name, {option: value for option, value in table.items() if option != key}
