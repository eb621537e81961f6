"""Read and check tables with labels and splits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from isthmus.data.folder.arrow import (
    blank_to_null,
    exceeds_float32,
    is_numeric,
    is_present,
    is_text,
    positions_in,
    to_array,
    to_floats,
    to_texts,
    wrong_type,
)
from isthmus.data.folder.checker import Checker, Positions, has_column
from isthmus.data.folder.problems import Problem, at_rows, join_names
from isthmus.data.folder.settings import FILE
from isthmus.data.folder.table import Table, Unreadable
from isthmus.data.party import SPLITS

BOOLEANS = {"false": 0.0, "true": 1.0}
"""Names of classes that are numbers in a column of booleans."""
UNLISTED = -2
"""The class of a label that is not declared."""


class ItemChecker(Checker):
    """Reads tables, and labels and splits in one of them.

    Attributes:
        label_column, split_column: the columns of labels and of splits.
        ignore: columns to leave out.
    """

    label_column, split_column = "label", "split"

    @property
    def ignore(self) -> Sequence[str]:
        return self.settings.ignore

    def table(
        self, file: str, needed: Sequence[str], known: Sequence[str], streamed: Sequence[str] = ()
    ) -> Table | None:
        """Return a file's table without repeated columns, or None if it cannot be read.

        Arguments:
            needed: columns that the file must have.
            known: columns that it may have; a table with labels must also have those of the tasks.
            streamed: columns that stay in the file if they are large.
        """
        try:
            table = Table.open(self.folder / file, without=self.ignore, streamed=streamed)
        except Unreadable as error:
            self.add_unreadable(file, error)
            return None
        names = table.column_names
        twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
        self.add(*[Problem(file, f"column '{name}' occurs twice: remove one") for name in twice])
        tasks = (self.settings.tasks or []) if self.label_column in known else []
        hint = f"declare it in {FILE}, or 'ignore' it"
        for name in needed:
            if name not in names:
                why = f"{FILE} lists it under 'ignore'" if name in self.ignore else "add it to the table"
                self.add(Problem(file, f"column '{name}' is missing: {why}"))
        for name in tasks:
            if name not in names and not set(names).isdisjoint([*tasks, self.split_column]):
                self.add(Problem(file, f"column '{name}' is missing: {FILE} lists it under 'tasks'"))
        for name in dict.fromkeys(names):
            if name not in (*needed, *known, *tasks):
                self.add(Problem(file, f"column '{name}' is not known: {hint}"))
        return table if not twice else table.select([name for name in names if name not in twice])

    def add_unreadable(self, file: str, error: Unreadable) -> None:
        self.add(Problem(file, str(error).replace(f"{self.folder / file}", "the file")))

    def labels(self, file: str, table: Any | None) -> tuple[Tensor | None, dict[str, Tensor] | None]:
        """Return labels and splits of the items; None if the labels are wrong, or if there is no column of splits."""
        if table is None:
            return None, None
        y = self._tasks(file, table) if self.settings.tasks else self._classes(file, table)
        splits = self._splits(file, table)
        present = [each for each in self.settings.tasks or [self.label_column] if has_column(table, each)]
        if y is not None and table.num_rows and present and bool((y == -1).all() if y.dim() == 1 else y.isnan().all()):
            what = f"column '{present[0]}' labels no row" if len(present) == 1 else "columns of labels label no row"
            self.add(Problem(file, f"{what}: no item can be learned", severe=False))
        if splits is None:
            return y, None
        if y is not None:
            unlabelled = (y == -1 if y.dim() == 1 else y.isnan().all(1)).numpy()
            assigned = torch.stack(list(splits.values())).any(0).numpy()
            what = "the row is in a split but has no label: add a label, or leave the split empty"
            self.add(*at_rows(file, what, assigned & unlabelled))
        for split, mask in splits.items():
            if not bool(mask.any()):
                self.add(Problem(file, f"no row is in the split '{split}'", severe=False))
        return y, splits

    def _classes(self, file: str, table: Any) -> Tensor | None:
        """Return classes 0, 1, ..., with -1 for a missing label and `UNLISTED` for an undeclared one."""
        if self.settings.unlabelled:
            what = f"label = '{self.settings.label}' names a table alone, so no row has a label, and only links can be"
            self.add(Problem(FILE, f"{what} predicted: give TABLE.COLUMN if one has", severe=False))
            return torch.full((table.num_rows,), -1)
        if not has_column(table, self.label_column):
            self._note_no_labels(file, f"column '{self.label_column}'")
            return torch.full((table.num_rows,), -1)
        values, names = blank_to_null(table.column(self.label_column)), self.settings.labels or []
        if not (is_text(values.type) or is_numeric(values.type)):
            self.add(wrong_type(file, self.label_column, values, "numbers or texts"))
            return None
        if is_text(values.type) and not names and is_present(values).any():
            self.add(Problem(file, f"column '{self.label_column}' holds texts: list them under 'labels' in {FILE}"))
            return None
        by_name = is_text(values.type) or any(_is_number(name) for name in names)
        if "-1" in names:
            what = "the class '-1' is learned as any other: leave the cells empty if it says that a label is not known"
            self.add(Problem(file, what, severe=False))
        position = _classes_by_name(values, names) if by_name else _classes_by_number(values, self.settings.outputs)
        allowed = f"one of {join_names(names)}" if by_name else f"a whole number from 0 to {self.settings.outputs - 1}"
        declare = "correct it, or declare it at all parties (in party.toml, or isthmus party new --classes)"
        missing = np.isnan(to_floats(values)) if is_numeric(values.type) else ~is_present(values)
        unlisted = (position < 0) & ~missing
        found = pc.unique(to_array(values).filter(pa.array(unlisted))).to_pylist()
        shown = join_names(f"{each:g}" if isinstance(each, float) else repr(each) for each in found)
        if found == [-1]:
            declare = "if that says that the label is not known, leave the cell empty"
        if not by_name and any(isinstance(each, float) and not each.is_integer() for each in found):
            declare = "correct it; if labels are measured (regression), list the column under tasks (party new --task)"
        self.add(*at_rows(file, f"label {shown} is not {allowed}: {declare}", unlisted))
        return torch.from_numpy(np.where(unlisted, UNLISTED, position))

    def _note_no_labels(self, file: str, what: str) -> None:
        what = f"there is no {what}: a trained model can predict this, and only methods without labels can train on it"
        self.add(Problem(file, what, severe=False))

    def _tasks(self, file: str, table: Any) -> Tensor | None:
        """Return one label per task, NaN where it is missing."""
        if not any(has_column(table, each) for each in [*(self.settings.tasks or []), self.split_column]):
            self._note_no_labels(file, f"column of labels ({join_names(self.settings.tasks or [])})")
            return torch.full((table.num_rows, len(self.settings.tasks or [])), torch.nan)
        columns = []
        for task in self.settings.tasks or []:
            values = self.values(file, table, task, is_numeric, "numbers")
            if values is None:
                continue
            number = to_floats(values)
            what = f"column '{task}' is infinite or beyond 3.4e38: correct it"
            self.add(*at_rows(file, what, exceeds_float32(number)))
            columns.append(torch.from_numpy(number.copy()).to(torch.get_default_dtype()))
        return torch.stack(columns, dim=1) if len(columns) == len(self.settings.tasks or []) else None

    def _splits(self, file: str, table: Any) -> dict[str, Tensor] | None:
        values = self.values(file, table, self.split_column, is_text, "texts")
        if values is None:
            return None
        position = positions_in(to_texts(values), pa.array(SPLITS, pa.string()))
        wrong = (position < 0) & is_present(values)
        if wrong.any():
            found = to_texts(values)[int(np.flatnonzero(wrong)[0])].as_py()
            what = f"column '{self.split_column}' must be empty or one of {', '.join(SPLITS)}, not '{found}'"
            self.add(*at_rows(file, what, wrong))
        return {split: torch.from_numpy(position == at) for at, split in enumerate(SPLITS)}


def _classes_by_name(values: Any, names: Sequence[str]) -> Positions:
    """Return the classes of labels that are names; numbers in the table match names such as "3" or "true"."""
    if is_text(values.type):
        return positions_in(to_texts(values), pa.array(names, pa.string()))
    numbers = [BOOLEANS[name] if name in BOOLEANS else float(name) if _is_number(name) else None for name in names]
    return positions_in(pa.array(to_floats(values)), pa.array(numbers, pa.float64()))


def _classes_by_number(values: Any, classes: int) -> Positions:
    number = to_floats(values)
    whole = (number >= 0) & (number < classes) & (number == np.floor(number))
    return np.where(whole, number, -1).astype(np.int64)


def _is_number(name: str) -> bool:
    return name in BOOLEANS or name.removeprefix("-").isdecimal()
