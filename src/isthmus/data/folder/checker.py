"""What checks of nodes, edges and labels have in common: they collect problems and read ids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.data.folder.arrow import (
    blank_to_null,
    is_present,
    is_text,
    positions_in,
    to_array,
    to_keys,
    to_texts,
    wrong_type,
)
from isthmus.data.folder.problems import Mask, Problem, at_rows, join_names, merge
from isthmus.data.folder.settings import FILE, PartyFile
from isthmus.data.ids import Hashing

Positions = NDArray[np.int64]
HERE, UNKNOWN = -1, -2
"""Owners of a node: this party, and a party that `party.toml` does not list."""


class Checker:
    """Checks the tables of one folder and collects their problems.

    Attributes:
        before: number of rows before the block that is checked; problems get it added to their row numbers.
    """

    def __init__(self, folder: Path, settings: PartyFile, hashing: Hashing, problems: list[Problem]) -> None:
        self.folder, self.settings, self.hashing, self.problems = folder, settings, hashing, problems
        self.before = 0

    @property
    def sound(self) -> bool:
        """Whether no severe problem was found so far."""
        return not any(each.severe for each in self.problems)

    def add(self, *problems: Problem) -> None:
        for each in problems:
            merge(self.problems, each.shifted(self.before))

    def ids(self, file: str, table: Any | None, column: str, *, unique: bool) -> Any | None:
        """Return a column of ids as whole numbers or texts, or None if the column is missing or wrong."""
        if table is None or not has_column(table, column):
            return None
        values = to_keys(table.column(column))
        if pa.types.is_integer(values.type):
            try:
                values = values.cast(pa.int64())
            except pa.ArrowInvalid:
                self.add(Problem(file, f"column '{column}' has numbers beyond 64 bits: write them as texts"))
                return None
        elif is_text(values.type):
            values = to_texts(values)
        else:
            self.add(wrong_type(file, column, values, "whole numbers or texts"))
            return None
        self.add(*at_rows(file, f"column '{column}' has no value: fill it in", ~is_present(values)))
        if unique and not len(values):
            self.add(Problem(file, "the file has no rows: a party holds at least one item"))
        if unique:
            what = f"column '{column}' repeats an earlier id: make ids unique"
            self.add(*at_rows(file, what, repeated(values)))
        return values

    def values(
        self, file: str, table: Any | None, column: str, has_type: Callable[[Any], bool], wanted: str
    ) -> Any | None:
        """Return a column, or None if it is missing or has a wrong type; only the type is a problem."""
        if table is None or not has_column(table, column):
            return None
        values = blank_to_null(table.column(column))
        if has_type(values.type):
            return values
        self.add(wrong_type(file, column, values, wanted))
        return None

    def owners(self, file: str, table: Any, column: str) -> Positions:
        """Return for every row the position in `partners` of the party that a column names, or `HERE`, or `UNKNOWN`."""
        if not has_column(table, column):
            return np.full(table.num_rows, HERE)
        values = self.values(file, table, column, is_text, "names of parties")
        if values is None:
            return np.full(table.num_rows, UNKNOWN)
        partners = self.settings.partners or []
        owner = positions_in(to_texts(values), pa.array([*partners, self.settings.name], pa.string()))
        known = f"{FILE} lists {join_names(partners)} as partners" if partners else f"{FILE} lists no 'partners'"
        unknown = (owner < 0) & is_present(values)
        what = "unknown owner" if column == "owner" else f"column '{column}' names an unknown owner"
        self.add(*at_rows(file, f"{what}: {known}", unknown))
        owner[(owner < 0) | (owner == len(partners))] = HERE
        owner[unknown] = UNKNOWN
        return owner

    def hashes(self, ids: Any) -> bool:
        """Whether these ids are hashed; under a plain hash, whole numbers stay as they are."""
        return self.hashing.of_integers or not pa.types.is_integer(ids.type)

    def id_numbers(self, ids: Any) -> Tensor:
        """Return ids as the numbers that all parties use for them."""
        if self.hashes(ids):
            return self.hashing.numbers(ids.to_pylist())
        return torch.from_numpy(np.array(ids.to_numpy(zero_copy_only=False), dtype=np.int64))


def has_column(table: Any | None, column: str) -> bool:
    return table is not None and column in table.column_names


def same_type(values: Any, names: Any) -> bool:
    """Whether ids have the same type; a column without values matches every type."""
    return bool(values.type == names.type) or not is_present(values).any()


def repeated(values: Any) -> Mask:
    """Return a mask of the rows whose value occurs in an earlier row."""
    codes = np.asarray(to_array(pc.dictionary_encode(values)).indices.fill_null(-1).to_numpy(zero_copy_only=False))
    order = np.argsort(codes, kind="stable")
    mask = np.zeros(codes.size, dtype=bool)
    mask[order[1:][codes[order][1:] == codes[order][:-1]]] = True
    return mask & (codes >= 0)
