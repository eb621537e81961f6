"""Lists of whole numbers or texts in a table of nodes become bags: positions of entries other than 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from isthmus.data.folder.arrow import is_list, is_text, list_lengths, positions_in, to_array, to_floats, to_texts
from isthmus.data.folder.columns import MAX_WIDTH, Bag
from isthmus.data.folder.problems import Problem
from isthmus.data.folder.settings import FILE
from isthmus.errors import IsthmusError, did_you_mean

AT, VALUE = Bag(width=0).file_columns("")
"""How the names of a bag's two columns end."""
MAX_WORDS = 20_000
"""Different texts in the lists of one column; all stand in `party.toml`."""


def make_bags(
    nodes: pa.Table, widths: Mapping[str, int | None], known: Mapping[str, Sequence[str] | None]
) -> tuple[Any, dict[str, list[str]], list[Problem]]:
    """Return the nodes with two columns for each bag, the words of each bag of texts, and notes.

    A list column becomes a bag if it is named, or if it has lists of whole numbers of different lengths, or lists of
    texts, whose positions are those among all texts in order. The value of an entry is how often the list has its
    position.

    Arguments:
        widths: columns that are bags, with their width if it is given.
        known: columns that are bags at another party, with their words.
    """
    names = nodes.column_names
    for name in widths:
        if name not in names and name not in bag_columns(nodes):
            raise IsthmusError(f"--bag {name}: the nodes have no such column: {did_you_mean(name, names)}")
    notes: list[Problem] = []
    words: dict[str, list[str]] = {}
    for name in [name for name in names if name not in column_parts(nodes)]:
        values = to_array(nodes.column(name))
        if is_list(values.type) and is_text(values.type.value_type):
            if widths.get(name):
                raise IsthmusError(f"--bag {name}={widths[name]}: the texts of its lists give the width: leave it out")
            values, words[name], note = _positions(name, values, known.get(name))
            notes += [Problem("nodes", note, severe=False)] if note else []
        whole = is_list(values.type) and pa.types.is_integer(values.type.value_type)
        if name in widths and not whole:
            raise IsthmusError(
                f"--bag {name}: the column holds values of type {values.type}, a bag needs lists of whole numbers, the "
                "positions of its entries, or lists of texts (a CSV file has no lists: use Parquet)"
            )
        if not whole or not (name in widths or name in known or name in words or is_ragged(values)):
            continue
        if name + AT in names or name + VALUE in names:
            raise IsthmusError(f"columns '{name}' and '{name}{AT}' are one bag: leave one out with --ignore")
        if lacking := int((list_lengths(values) < 0).sum()):
            what = f"column '{name}': {lacking:,} of {len(values):,} rows have no list: they are read as empty lists"
            notes.append(Problem("nodes", what, severe=False))
        at, value = _count(name, values)
        if name not in widths and name not in known and name not in words:
            width = width_of(name, at)
            what = f"column '{name}' holds lists of whole numbers: it is a bag of width {width:,}, its largest number "
            what += f"plus 1 (for a larger one: --bag {name}=WIDTH)"
            notes.append(Problem("nodes", what, severe=False))
        nodes = nodes.drop_columns([name]).append_column(name + AT, at).append_column(name + VALUE, value)
    return nodes, words, notes


def bag_columns(nodes: pa.Table) -> list[str]:
    """Return the names of the bags whose two columns the nodes have."""
    lists = [name for name in nodes.column_names if is_list(nodes.schema.field(name).type)]
    names = [name.removesuffix(AT) for name in lists if name.endswith(AT)]
    return [name for name in names if name and name + VALUE in lists]


def column_parts(nodes: pa.Table) -> list[str]:
    """Return the columns that make up these bags."""
    return [name + end for name in bag_columns(nodes) for end in (AT, VALUE)]


def is_ragged(values: Any) -> bool:
    """Whether a column has lists of different lengths."""
    lengths = list_lengths(values)
    return np.unique(lengths[lengths >= 0]).size > 1


def width_of(name: str, at: Any) -> int:
    """Return the width that a bag needs for these positions."""
    most = int(pc.max(pc.list_flatten(to_array(at))).as_py() or 0)
    if most >= MAX_WIDTH:
        raise IsthmusError(
            f"column '{name}' has the number {most:,}, a bag has positions below {MAX_WIDTH:,}: number them from 0"
        )
    return most + 1


def _positions(name: str, values: Any, words: Sequence[str] | None) -> tuple[Any, list[str], str]:
    """Return lists of texts as lists of positions among words, these words, and a note.

    Arguments:
        words: those of another party; without them, all texts that occur, in order.
    """
    texts = to_texts(pc.list_flatten(values))
    found = sorted(pc.unique(texts.drop_null()).to_pylist())
    if words is None and len(found) > MAX_WORDS:
        raise IsthmusError(
            f"column '{name}' has lists of {len(found):,} different texts, more than {MAX_WORDS:,}: leave rare ones "
            f"out, or number the texts yourself and give lists of numbers, or leave the column out with --ignore {name}"
        )
    chosen = found if words is None else list(words)
    position = positions_in(texts, pa.array(chosen, pa.string()))
    inside = position >= 0
    lengths = list_lengths(values)
    row = np.repeat(np.arange(len(values)), lengths.clip(min=0))
    ends = np.concatenate([[0], np.bincount(row[inside], minlength=len(values)).cumsum()])
    missing = pa.array(lengths < 0)
    lists = pa.LargeListArray.from_arrays(pa.array(ends), pa.array(position[inside]), mask=missing)
    if words is None:
        note = (
            f"column '{name}' holds lists of texts: it is a bag of the {len(chosen):,} different texts of all parties"
        )
        return lists, chosen, f"{note} (in {FILE} as words)"
    if not (new := sorted(set(found) - set(chosen))):
        return lists, chosen, ""
    rows = f"{np.unique(row[~inside]).size:,} of {len(values):,} rows"
    note = f"column '{name}': {rows} have texts that are not among the {len(chosen):,} of --like, such as '{new[0]}'"
    return lists, chosen, f"{note}: they are left out"


def _count(name: str, values: Any) -> tuple[Any, Any]:
    """Return the different numbers of each list, ascending, and how often each occurs; a missing list becomes empty."""
    lengths = list_lengths(values)
    flat = pc.list_flatten(values)
    wrong = np.isnan(to_floats(flat)) | (to_floats(flat) < 0)
    row = np.repeat(np.arange(len(values)), lengths.clip(min=0))
    if wrong.any():
        raise IsthmusError(
            f"column '{name}', row {row[wrong][0] + 1}: a bag has positions from 0, this list has a number that is "
            "negative or missing: correct it"
        )
    pairs, counts = np.unique(np.stack([row, np.asarray(flat.cast(pa.int64()))]), axis=1, return_counts=True)
    ends = np.searchsorted(pairs[0], np.arange(len(values) + 1))
    return (
        pa.LargeListArray.from_arrays(pa.array(ends), pa.array(pairs[1])),
        pa.LargeListArray.from_arrays(pa.array(ends), pa.array(counts)),
    )
