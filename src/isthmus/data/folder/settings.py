"""`party.toml`: who the party is and what its files hold."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from isthmus.data.folder.columns import Column
from isthmus.data.folder.problems import Problem
from isthmus.data.party import Level
from isthmus.errors import IsthmusError
from isthmus.options import Options

FILE = "party.toml"


class Smiles(Options):
    """A file of molecules that stands in for nodes, edges and graphs."""

    file: str = "molecules.csv"
    """The CSV file."""
    column: str = "smiles"
    """Its column of SMILES."""
    features: Literal["one-hot", "raw"] = "one-hot"
    """How atoms are encoded."""


class PartyFile(Options):
    """What `party.toml` says. All but `name`, `partners` and `ignore` is agreed between the parties."""

    format: Literal[1] = 1
    """Version of this layout."""
    name: str = Field(min_length=1)
    """What the party is called."""
    level: Level = "node"
    """Whether nodes or whole graphs are classified."""
    labels: list[str] | None = None
    """Names of the classes, in the order of their numbers."""
    classes: int | None = Field(None, ge=1)
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

    def kinds(self) -> dict[str, Column]:
        """The feature columns, each as what it is; the first that is wrong is an error."""
        return {column: _kind(column, table) for column, table in self.columns.items()}

    @property
    def outcomes(self) -> int:
        """Number of classes, or of tasks."""
        return len(self.labels or self.tasks or ()) or self.classes or 0

    @property
    def agreed(self) -> dict[str, Any]:
        """What all parties must say alike, in the order in which it is compared."""
        return self.model_dump(exclude={"name", "partners", "ignore", "directed"})


def read_settings(folder: Path) -> tuple[PartyFile | None, list[Problem]]:
    """`party.toml` of a folder, and everything that is wrong with it."""
    path = folder / FILE
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        return None, [Problem(FILE, f"no TOML: {error}")]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        return None, [Problem(FILE, f"{reason}: a party folder has one; make it with isthmus party new")]
    faults = PartyFile.faults(values)
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
            wrong.append(f"'{name}' lists something twice: {values}")
    if settings.partners is not None and settings.ids == "own":
        wrong.append('a party with partners needs ids that they share: set ids = "shared"')
    if settings.partners is not None and settings.level == "graph":
        wrong.append("graphs that stand alone have no partners: leave 'partners' out")
    if settings.name in (settings.partners or []):
        wrong.append(f"'partners' names the party itself: take '{settings.name}' out")
    if settings.name in (".", "..") or any(letter in settings.name for letter in "/\\\0"):
        wrong.append(f"name {settings.name!r} is also that of a file: a text without '/' and '\\'")
    if settings.smiles is not None and (settings.level == "node" or settings.columns):
        wrong.append('molecules are whole graphs with features of their own: set level = "graph", no columns')
    if settings.smiles is not None and Path(settings.smiles.file).name != settings.smiles.file:
        wrong.append(f"smiles.file = {settings.smiles.file!r} must be a file in this folder")
    if settings.smiles is None and not settings.columns:
        wrong.append("there are no [columns]: declare the features")
    return [Problem(FILE, each) for each in wrong]


def _wrong_columns(settings: PartyFile) -> list[Problem]:
    problems: list[Problem] = []
    used: set[str] = set()
    for column, table in settings.columns.items():
        try:
            names = _kind(column, table).reads(column)
        except IsthmusError as error:
            problems.append(Problem(FILE, str(error)))
            continue
        taken = used.intersection(names) | {"id", "graph", "label", "split", *(settings.tasks or [])}.intersection(
            names
        )
        if taken:
            problems.append(Problem(FILE, f"columns.{column}: '{min(taken)}' has another meaning already: rename it"))
        used.update(names)
    return problems


def _kind(column: str, table: dict[str, Any]) -> Column:
    where = f"columns.{column}"
    name = table.get("kind")
    if not isinstance(name, str):
        raise IsthmusError(f"{where}: give a 'kind' (a text): {', '.join(Column.known())}")
    return Column.named(name).read({key: value for key, value in table.items() if key != "kind"}, where)
