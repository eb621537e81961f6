"""`party.toml`: who the party is and what its files hold."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from isthmus.data.folder.columns import Column
from isthmus.data.folder.limits import Limits
from isthmus.data.folder.problems import Problem, join_names
from isthmus.data.party import NAME_RULE
from isthmus.data.smiles import AtomFeatures
from isthmus.errors import IsthmusError
from isthmus.options import Options

FILE = "party.toml"
RESERVED = frozenset({"id", "graph", "label", "split"})
"""Columns of nodes and graphs with a meaning of their own."""
MAX_CLASSES = 100_000
"""More are a mistake, such as account numbers for labels."""


class Smiles(Options):
    """A file of molecules that stands in for nodes, edges and graphs."""

    file: str = "molecules.csv"
    """The CSV file."""
    column: str = "smiles"
    """Its column of SMILES."""
    features: AtomFeatures = "one-hot"
    """How an atom is told: its nine categories each one-hot, or their numbers as they are."""


class PartyFile(Options):
    """What `party.toml` says."""

    format: Literal[1] = 1
    """Version of this layout."""
    name: str = Field(min_length=1, max_length=100)
    """What the party is called."""
    level: Literal["node", "graph"] = "node"
    """Whether nodes or whole graphs are classified."""
    labels: list[str] | None = None
    """Names of the classes, in the order of their numbers."""
    classes: int | None = Field(None, ge=1, le=MAX_CLASSES)
    """Number of classes, where labels are the numbers 0, 1, ... themselves."""
    tasks: list[str] | None = None
    """Columns of labels, where there are several tasks with a number for each item, or none where it is not known."""
    directed: bool = False
    """Whether an edge runs from source to target only; otherwise each line stands for both directions."""
    ids: Literal["shared", "own"] = "shared"
    """Whether an id means the same node at every party, or is of this party's own making."""
    partners: list[str] | None = None
    """The parties that may hold the other end of an edge."""
    ignore: list[str] = Field([])
    """Columns of the files that are not used."""
    smiles: Smiles | None = None
    """The file of molecules, where the party holds those."""
    columns: dict[str, dict[str, Any]] = Field({})
    """Feature columns: name, kind and the kind's options."""
    limits: Limits = Limits()
    """What the party allows in a federation."""

    def feature_columns(self) -> dict[str, Column]:
        """The feature columns, each as what it is."""
        return {column: _kind(column, table) for column, table in self.columns.items()}

    @property
    def outputs(self) -> int:
        """Number of classes, or of tasks."""
        return len(self.labels or self.tasks or ()) or self.classes or 0

    @property
    def common(self) -> dict[str, Any]:
        """What all parties must say alike, in the order in which it is compared, defaults spelled out."""
        said = self.model_dump(include={"level", "labels", "classes", "tasks", "ids"})
        columns = {column: (kind.name, kind.model_dump()) for column, kind in self.feature_columns().items()}
        return {**said, "smiles.features": self.smiles and self.smiles.features, "columns": columns}


def read_settings(folder: Path) -> tuple[PartyFile | None, list[Problem]]:
    """`party.toml` of a folder, and everything that is wrong with it."""
    path = folder / FILE
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        return None, [Problem(FILE, f"{reason}: a party folder has one; make it with isthmus party new")]
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets in brackets in brackets
        return None, [Problem(FILE, f"no TOML: {error}")]
    faults = PartyFile.problems(values)
    if faults:
        return None, [Problem(FILE, fault) for fault in faults]
    settings = PartyFile.read(values, FILE)
    problems = [*_unclear(settings), *_wrong_columns(settings)]
    return (None if problems else settings), problems


def _unclear(settings: PartyFile) -> list[Problem]:
    """What fits no reading."""
    wrong = []
    given = [name for name in ("labels", "classes", "tasks") if getattr(settings, name)]
    if len(given) != 1:
        said = " and ".join(given) or "none"
        wrong.append(f"give one of labels, classes and tasks (there is {said}): they say what is to be learned")
    for name in ("labels", "tasks", "partners"):
        values = getattr(settings, name) or []
        if len(set(values)) < len(values):
            wrong.append(f"'{name}' lists something twice: {join_names(values)}")
        if "" in values:
            wrong.append(f"'{name}' lists an empty text: in the files that is no value; take it out")
    taken = (RESERVED - {"label"}).intersection(settings.tasks or ())
    if taken:
        wrong.append(f"'tasks' lists '{min(taken)}', which has another meaning already: rename it")
    if settings.partners is not None and settings.ids == "own":
        wrong.append('a party with partners needs ids that they share: set ids = "shared"')
    if settings.partners is not None and settings.level == "graph":
        wrong.append("graphs that stand alone have no partners: leave 'partners' out")
    if settings.name in (settings.partners or []):
        wrong.append(f"'partners' names the party itself: take '{settings.name}' out")
    if settings.name in (".", "..") or any(letter in settings.name for letter in "/\\\0"):
        wrong.append(f"name {settings.name!r}: a party's name may have {NAME_RULE}")
    elif not settings.name.isprintable():
        wrong.append(f"name {settings.name!r} holds what cannot be shown: it may have {NAME_RULE}")
    if settings.smiles is not None:
        wrong += _unclear_smiles(settings, settings.smiles)
    elif not settings.columns:
        wrong.append("there are no [columns]: declare the features")
    return [Problem(FILE, each) for each in wrong]


def _unclear_smiles(settings: PartyFile, smiles: Smiles) -> Iterator[str]:
    if settings.level == "node" or settings.columns:
        yield 'molecules are whole graphs with features of their own: set level = "graph", no columns'
    if smiles.file in ("", ".", "..") or any(letter in smiles.file for letter in "/\\\0"):
        yield f"smiles.file = {smiles.file!r} must be a file in this folder"
    if smiles.column in {*RESERVED, *(settings.tasks or ()), *settings.ignore}:
        yield f"smiles.column = '{smiles.column}' has another meaning already: rename it"


def _wrong_columns(settings: PartyFile) -> list[Problem]:
    found: list[str] = []
    taken = {*RESERVED, *(settings.tasks or ())}
    for column, table in settings.columns.items():
        where, name = f"columns.{column}", table.get("kind")
        options = {key: value for key, value in table.items() if key != "kind"}
        if not isinstance(name, str):
            found.append(f"{where}: give a 'kind' (a text): {', '.join(Column.known())}")
            continue
        try:
            kind = Column.named(name)
        except IsthmusError as error:
            found.append(f"{where}: {error}")
            continue
        faults = kind.problems(options)
        found += [f"{where}: {fault}" for fault in faults]
        names = [column] if faults else kind.read(options, where).file_columns(column)
        found += [f"{where}: '{each}' has another meaning already: rename it" for each in names if each in taken]
        found += [f"{where}: '{each}' is under 'ignore' too" for each in names if each in settings.ignore]
        taken.update(names)
    return [Problem(FILE, each) for each in found]


def _kind(column: str, table: dict[str, Any]) -> Column:
    """A feature column of settings that were found to be right."""
    options = {key: value for key, value in table.items() if key != "kind"}
    return Column.named(table["kind"]).read(options, f"columns.{column}")
