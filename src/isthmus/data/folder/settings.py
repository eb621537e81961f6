"""Read `party.toml`: who the party is and what its files hold."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from isthmus import store
from isthmus.data.folder.columns import Column
from isthmus.data.folder.limits import Limits
from isthmus.data.folder.problems import Problem, join_names
from isthmus.data.party import NAME_RULE
from isthmus.data.smiles import AtomFeatures
from isthmus.errors import IsthmusError
from isthmus.options import Options
from isthmus.version import VERSION

FILE = "party.toml"
FORMAT = 1
"""Format number of a party folder. Raise it when older folders can no longer be read."""
RESERVED = frozenset({"id", "graph", "label", "split"})
"""Columns of nodes and graphs that cannot be feature columns."""
MAX_CLASSES = 100_000
"""More classes are a mistake, such as account numbers used as labels."""


class Smiles(Options):
    """A file of molecules, which replaces the files of nodes, edges and graphs."""

    file: str = "molecules.csv"
    """The CSV file."""
    column: str = "smiles"
    """The column of SMILES."""
    features: AtomFeatures = "one-hot"
    """Features of an atom: its nine categories one-hot, or as numbers."""


class PartyFile(Options):
    """The settings of a party: the content of `party.toml`."""

    format: int = FORMAT
    """Format number of the party folder."""
    name: str = Field(min_length=1, max_length=100)
    """The party's name."""
    level: Literal["node", "graph"] = "node"
    """Whether nodes or whole graphs are classified."""
    labels: list[str] | None = None
    """Names of the classes, in the order of their numbers."""
    classes: int | None = Field(None, ge=1, le=MAX_CLASSES)
    """Number of classes, if the labels are the numbers 0, 1, ..."""
    tasks: list[str] | None = None
    """Columns of labels, if there are several tasks; each holds a number per item, or no value where it is unknown."""
    directed: bool = False
    """Whether an edge runs from source to target only; otherwise each row counts in both directions."""
    ids: Literal["shared", "own"] = "shared"
    """Whether an id means the same node at every party (`shared`), or only at this one (`own`)."""
    partners: list[str] | None = None
    """Names of the parties that may hold the other end of an edge."""
    ignore: list[str] = Field([])
    """Columns of the files to ignore."""
    smiles: Smiles | None = None
    """The file of molecules, if the party holds molecules."""
    columns: dict[str, dict[str, Any]] = Field({})
    """Feature columns by name, each with its kind and the kind's options."""
    limits: Limits = Limits()
    """What the party allows in a federation."""

    @field_validator("format")
    @classmethod
    def _is_known(cls, number: int) -> int:
        if number != FORMAT:
            raise ValueError(
                f"isthmus {VERSION} reads format {FORMAT}; create the folder again with isthmus party new, or install "
                "the version that wrote it"
            )
        return number

    def feature_columns(self) -> dict[str, Column]:
        """Return the feature columns by name."""
        return {column: _column(column, table) for column, table in self.columns.items()}

    @property
    def outputs(self) -> int:
        """The number of classes, or of tasks."""
        return len(self.labels or self.tasks or ()) or self.classes or 0

    @property
    def common(self) -> dict[str, Any]:
        """The settings that must be equal at all parties, with defaults, in the order in which they are compared."""
        common = self.model_dump(include={"level", "labels", "classes", "tasks", "ids"})
        columns = {column: (kind.name, kind.model_dump()) for column, kind in self.feature_columns().items()}
        return {**common, "smiles.features": self.smiles and self.smiles.features, "columns": columns}


def read_settings(folder: Path) -> tuple[PartyFile | None, list[Problem]]:
    """Return the settings in `party.toml` of a folder, or None if they are wrong, and all problems."""
    path = folder / FILE
    try:
        values = tomllib.loads(store.read_text(path, within=folder))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        return None, [Problem(FILE, f"{reason}: every party folder needs this file; create one with isthmus party new")]
    except (ValueError, RecursionError) as error:  # also a number with thousands of digits, or very deep brackets
        return None, [Problem(FILE, f"not valid TOML: {error}")]
    wrong = PartyFile.problems(values)
    if wrong:
        return None, [Problem(FILE, each) for each in wrong]
    settings = PartyFile.read(values, FILE)
    problems = [*_contradictions(settings), *_wrong_columns(settings)]
    return (None if problems else settings), problems


def _contradictions(settings: PartyFile) -> list[Problem]:
    """List settings that contradict each other."""
    wrong = []
    given = [name for name in ("labels", "classes", "tasks") if getattr(settings, name)]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        wrong.append(f"give one of labels, classes and tasks (found: {found})")
    for name in ("labels", "tasks", "partners"):
        values = getattr(settings, name) or []
        if len(set(values)) < len(values):
            wrong.append(f"'{name}' lists a value twice: {join_names(values)}")
        if "" in values:
            wrong.append(f"'{name}' lists an empty text, which means a missing value in the files: remove it")
    taken = (RESERVED - {"label"}).intersection(settings.tasks or ())
    if taken:
        wrong.append(f"'tasks' lists '{min(taken)}', which has another meaning: rename it")
    if settings.partners is not None and settings.ids == "own":
        wrong.append('a party with partners needs shared ids: set ids = "shared"')
    if settings.partners is not None and settings.level == "graph":
        wrong.append("parties with whole graphs have no partners: remove 'partners'")
    if settings.name in (settings.partners or []):
        wrong.append(f"'partners' lists the party itself: remove '{settings.name}'")
    if settings.name in (".", "..") or any(letter in settings.name for letter in "/\\\0"):
        wrong.append(f"name {settings.name!r}: a party's name may have {NAME_RULE}")
    elif not settings.name.isprintable():
        wrong.append(f"name {settings.name!r} has characters that cannot be printed: it may have {NAME_RULE}")
    if settings.smiles is not None:
        wrong += _smiles_contradictions(settings, settings.smiles)
    elif not settings.columns:
        wrong.append("there is no table [columns]: declare the feature columns")
    return [Problem(FILE, each) for each in wrong]


def _smiles_contradictions(settings: PartyFile, smiles: Smiles) -> Iterator[str]:
    if settings.level == "node" or settings.columns:
        yield 'molecules are whole graphs with their own features: set level = "graph" and remove [columns]'
    if smiles.file in ("", ".", "..") or any(letter in smiles.file for letter in "/\\\0"):
        yield f"smiles.file = {smiles.file!r} must be a file in this folder"
    if smiles.column in {*RESERVED, *(settings.tasks or ()), *settings.ignore}:
        yield f"smiles.column = '{smiles.column}' has another meaning: rename it"


def _wrong_columns(settings: PartyFile) -> list[Problem]:
    found: list[str] = []
    taken = {*RESERVED, *(settings.tasks or ())}
    for column, table in settings.columns.items():
        where, name = f"columns.{column}", table.get("kind")
        options = {key: value for key, value in table.items() if key != "kind"}
        if not isinstance(name, str):
            found.append(f"{where}: set 'kind' to one of {', '.join(Column.known())}")
            continue
        try:
            kind = Column.named(name)
        except IsthmusError as error:
            found.append(f"{where}: {error}")
            continue
        wrong = kind.problems(options)
        found += [f"{where}: {each}" for each in wrong]
        names = [column] if wrong else kind.read(options, where).file_columns(column)
        found += [f"{where}: '{each}' has another meaning: rename it" for each in names if each in taken]
        found += [f"{where}: '{each}' is also under 'ignore': remove it" for each in names if each in settings.ignore]
        taken.update(names)
    return [Problem(FILE, each) for each in found]


def _column(column: str, table: dict[str, Any]) -> Column:
    """Return a feature column of checked settings."""
    options = {key: value for key, value in table.items() if key != "kind"}
    return Column.named(table["kind"]).read(options, f"columns.{column}")
