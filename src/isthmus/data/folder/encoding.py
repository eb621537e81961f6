"""Encode the feature columns of all parties in the same way, from sums over the parties."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from scipy.sparse import hstack
from torch import Tensor
from torch_geometric.data import HeteroData

from isthmus.data import matrices, rows
from isthmus.data.cache import digest
from isthmus.data.folder.columns import Category, Column, Number, Totals
from isthmus.data.folder.database import Database
from isthmus.data.folder.problems import Problem, at_rows
from isthmus.data.folder.reading import Contents, hash_files
from isthmus.data.folder.relations import DatabaseSettings, relations, table_columns
from isthmus.data.folder.table import NODES, Table
from isthmus.data.ids import PLAIN, Hashing
from isthmus.data.mapped import Arrays, Series, cached
from isthmus.data.schema import Schema
from isthmus.data.smiles import structural_columns
from isthmus.errors import IsthmusError

LISTED = 6
"""Values of a list that a message shows."""
UNLIKE, SOME = 20.0, 10
"""So many times as large as at the others, or as small, a party's numbers are noted, if it has at least so many."""
FAR = 3.0
"""Deviations from the mean of training, on average over the rows of a new party, from which on a column is noted."""


@dataclass(frozen=True)
class Encoding:
    """The encoding of the feature columns, the same for all parties.

    Arguments:
        columns: the columns by name, in the order of their features.
        totals: for each column the sums over all parties that its encoding depends on.
    """

    columns: dict[str, Column]
    totals: dict[str, Totals] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The encoding as plain values, for JSON; of keyed totals only the ids, which are all that it needs."""
        columns = {name: {"kind": column.name, **column.model_dump()} for name, column in self.columns.items()}
        totals = {
            name: {"ids": each["ids"].tolist()} if "ids" in each else {key: value.item() for key, value in each.items()}
            for name, each in self.totals.items()
        }
        return {"columns": columns, "totals": totals}

    @classmethod
    def of_dict(cls, saved: Mapping[str, Any]) -> Encoding:
        """The encoding that `to_dict` gave."""
        columns = {
            name: Column.named(table["kind"]).read({key: table[key] for key in table if key != "kind"}, name)
            for name, table in saved["columns"].items()
        }
        totals: dict[str, Totals] = {}
        for name, each in saved["totals"].items():
            types = {key: torch.float64 if isinstance(value, float) else torch.long for key, value in each.items()}
            totals[name] = {key: torch.tensor(value, dtype=types[key]) for key, value in each.items()}
        return cls(columns, totals)

    def check_fit(self, contents: Contents, hashing: Hashing = PLAIN, *, keyed: bool = True) -> None:
        """Refuse a party whose columns differ from those of this encoding.

        Arguments:
            keyed: whether values may have been hashed with a key: values that are all new then tell that it is missing.
        """
        name, found = contents.settings.name, contents.settings.feature_columns()
        if found != self.columns:
            raise IsthmusError(f"party '{name}': {_difference(self.columns, found)}")
        for each, column in found.items():
            if keyed and column.has_keyed_totals:
                own = first_totals(each, column, contents, hashing)["ids"]
                if own.numel() and not bool(torch.isin(own, self.totals[each]["ids"]).any()):
                    raise IsthmusError(
                        f"party '{name}': column '{each}' has no value that occurred in training: correct it, or "
                        "give the parties' key (--key FILE); if ids were matched, use the party's own model"
                    )

    def notes(self, contents: Contents, hashing: Hashing = PLAIN) -> list[Problem]:
        """Return notes on values of a new party that are unlike those of all parties in training."""
        notes: list[Problem] = []
        for name, column in self.columns.items() if contents.x is None else ():
            table, own = contents.locate(name)
            file = NODES if contents.database is None else f"{name.partition('.')[0]}.parquet"
            if isinstance(column, Number) and column.has_totals("second"):
                blocks = (block for _, block in column.blocks(own, table))
                away = sum(float(column.encode(own, block, self.totals[name], hashing).abs().sum()) for block in blocks)
                if away > FAR * table.num_rows:
                    far = f"{away / table.num_rows:,.0f} deviations"
                    what = f"column '{own}' is {far} from training on average: check its unit"
                    notes.append(Problem(file, what, severe=False))
            if isinstance(column, Category):
                for _, block in column.blocks(own, table):
                    what = f"column '{own}' has a value that did not occur in training: all its features are 0"
                    unknown = column.unknown(own, block, self.totals[name], hashing)
                    notes += at_rows(file, what, unknown, severe=False)
        return notes

    def encode(self, contents: Contents, hashing: Hashing = PLAIN) -> tuple[Tensor, Tensor]:
        """Return a party's features and, in ascending order, the positions of those that are computed from the edges.

        The features, `[nodes, features]`, are sparse if those of any column are.
        """
        if contents.x is not None:
            assert contents.settings.smiles is not None
            return contents.x, structural_columns(contents.settings.smiles.features)
        assert contents.features is not None
        if contents.features.streamed:
            return self._cached(contents, contents.features, hashing)
        with Arrays() as memory:
            widths = self._append(contents.features, hashing, memory)
            return self._features(contents.features.num_rows, memory.tensors(), widths)

    def structural(self) -> Tensor:
        """Return, in ascending order, the positions of the features that are computed from the edges."""
        masks = [_structural(name, each, each.features_of(self.totals[name])) for name, each in self.columns.items()]
        return torch.cat(masks).nonzero().squeeze(1)

    def feature_names(self) -> list[str]:
        """Return what the features are called, in their order."""
        return [each for name, kind in self.columns.items() for each in kind.feature_names(name, self.totals[name])]

    def _features(self, count: int, arrays: dict[str, Tensor], widths: list[int]) -> tuple[Tensor, Tensor]:
        """Return what `encode` does, of so many rows that `_append` has encoded."""
        shape, structural = (count, sum(widths)), self.structural()
        if "x" in arrays:
            return arrays["x"].view(shape), structural
        crow = torch.cat([torch.zeros(1, dtype=torch.long), arrays["counts"].cumsum(0)])
        return rows.csr(crow, arrays["columns"], arrays["values"], shape), structural

    def _cached(self, contents: Contents, table: Table, hashing: Hashing) -> tuple[Tensor, Tensor]:
        """Return what `encode` does, in mapped files."""

        def build(arrays: Arrays) -> list[int]:
            widths = self._append(table, hashing, arrays)
            if hash_files(table.path.parent, hashing) != contents.files:
                raise IsthmusError(f"{table.path} changed after it was checked: start again")
            return widths

        use = partial(self._features, table.num_rows)
        found = cached(f"features-{contents.files}-{digest(self.totals)}", build, use)
        assert found is not None
        return found

    def _append(self, table: Table, hashing: Hashing, arrays: Arrays) -> list[int]:
        """Append the encoded features, a block of rows after the other, and return the widths of the columns.

        Dense features are one array `x`, row after row; sparse ones are `counts` (entries of each row), `columns` and
        `values`.
        """
        files = [name for column, kind in self.columns.items() for name in kind.file_columns(column)]
        series: dict[str, Series] = {}
        widths: list[int] = []
        for _, block in table.blocks(files):
            x, widths = self._encode(block, hashing)
            if rows.is_sparse(x):
                parts = {"counts": x.crow_indices().diff(), "columns": x.col_indices(), "values": x.values()}
            else:
                parts = {"x": x}
            for name, part in parts.items():
                values = part.numpy()
                if name not in series:
                    series[name] = arrays.series(name, values.dtype)
                series[name].append(values)
        return widths

    def _encode(self, table: pa.Table, hashing: Hashing) -> tuple[Tensor, list[int]]:
        """Return the features of these rows, and the widths of the columns."""
        parts = [column.encode(name, table, self.totals[name], hashing) for name, column in self.columns.items()]
        return _side_by_side(parts), [part.size(1) for part in parts]

    def schema(self, settings: DatabaseSettings) -> Schema:
        """Return the types of nodes and edges that several tables become, each with its number of features."""
        widths = {name: self._width(name) for name in settings.tables}
        nodes = [(name, widths[name]) for name, table in settings.tables.items() if table.as_ == "nodes"]
        days = {"before": 1, "refers": 0, "referred": 0}
        edges = [(each.type, days.get(each.how, widths.get(each.table, 0))) for each in relations(settings)]
        return Schema(tuple(sorted(nodes)), tuple(edges), "" if settings.labels_edges else settings.items_table)

    def label_width(self, settings: DatabaseSettings) -> int:
        """Return the number of features of a labelled edge, 0 where other rows have the labels."""
        return self._width(settings.items_table) if settings.labels_edges else 0

    def encode_database(self, database: Database, hashing: Hashing = PLAIN) -> tuple[HeteroData, Tensor]:
        """Return the typed graph of several tables, and the positions of flat features that follow from its edges.
        Edges with labels have `edge_label_index` and `edge_label_attr`.

        Edges from earlier to later rows have the logarithm of the days between as their feature.
        """
        graph = HeteroData()
        for name, ids in database.ids.items():
            graph[name].num_nodes = ids.numel()
            if self._width(name):
                graph[name].x = self._encode_table(name, database.tables[name], hashing)
        features = {
            name: self._encode_table(name, database.tables[name], hashing)
            for name in sorted({each.table for each in database.edges.values() if each.table})
        }
        for kind, each in database.edges.items():
            graph[kind].edge_index = each.index
            if each.days is not None:
                graph[kind].edge_attr = each.days.log1p().to(torch.get_default_dtype()).unsqueeze(1)
            elif each.rows is not None:
                graph[kind].edge_attr = features[each.table][each.rows]
        masks = [
            mask
            for name in database.ids
            for mask in [torch.zeros(1, dtype=torch.bool), *self._structural_masks(name)]  # the column of ones first
        ]
        if database.labelled is not None:
            kind = next(kind for kind in database.edges if kind[1] == database.items)
            graph[kind].edge_label_index = database.labelled.index
            if features[database.items].size(1):
                graph[kind].edge_label_attr = features[database.items][database.labelled.rows]
        return graph, torch.cat(masks).nonzero().squeeze(1)

    def encode_across(self, database: Database, schema: Schema, hashing: Hashing) -> Tensor:
        """Return the features of the edges across the border, in the order of `Database.border`."""
        found = [torch.empty(0, schema.edge_width)]
        for kind, each in database.across:
            own = torch.zeros(len(each.inner), schema.edge_width)
            columns = schema.edge_columns(schema.edge_types.index(kind))
            if columns.stop > columns.start:
                table = database.edges[kind].table
                own[:, columns] = self._encode_table(table, database.tables[table], hashing)[each.rows]
            found.append(own)
        return torch.cat(found)

    def _encode_table(self, name: str, table: Table, hashing: Hashing) -> Tensor:
        """Return the features of a table's rows."""
        blocks = []
        for column, kind in table_columns(self.columns, name).items():
            totals = self.totals[f"{name}.{column}"]
            parts = (kind.encode(column, block, totals, hashing) for _, block in kind.blocks(column, table))
            blocks.append(torch.cat([rows.to_dense(part) for part in parts]))
        return torch.cat(blocks, dim=1) if blocks else torch.zeros(table.num_rows, 0)

    def _width(self, name: str) -> int:
        return sum(self._widths(name).values())

    def _widths(self, name: str) -> dict[str, int]:
        """Return the number of features of each column of a table."""
        columns = table_columns(self.columns, name)
        return {each: kind.features_of(self.totals[f"{name}.{each}"]) for each, kind in columns.items()}

    def _structural_masks(self, name: str) -> list[Tensor]:
        columns = table_columns(self.columns, name)
        return [_structural(each, columns[each], width) for each, width in self._widths(name).items()]


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """Return features of the same rows as one matrix, sparse if any of them is."""
    if len(parts) == 1:
        return parts[0]
    if not any(rows.is_sparse(part) for part in parts):
        return torch.cat(list(parts), dim=1)
    blocks = [matrices.from_tensor(part if rows.is_sparse(part) else rows.to_csr(part)) for part in parts]
    return matrices.to_tensor(hstack(blocks, format="csr"))


def _difference(trained: Mapping[str, Column], found: Mapping[str, Column]) -> str:
    """Say which columns a party lacks, has beside those in training, or declares otherwise, and how to mend that."""
    missing, extra = [each for each in trained if each not in found], [each for each in found if each not in trained]
    other = [each for each in found if each in trained and found[each] != trained[each]]
    renamed = {new: old for old in missing if (new := _renamed(old, missing, extra))}
    parts = [
        f"{what} {', '.join(map(repr, names))}" for what, names in (("missing", missing), ("extra", extra)) if names
    ]
    for each in other:
        one, two = (_declaration(first[each], second[each]) for first, second in ((found, trained), (trained, found)))
        parts.append(f"'{each}' is {one}, in training {two}")
    hints = [f"if '{new}' is '{old}', rename it in the table and in party.toml" for new, old in renamed.items()]
    if missing and not renamed:
        hints.append("add what is missing to the table and to party.toml")
    elif not renamed:
        hints.append(
            "remove what is extra from party.toml" if extra else "declare in party.toml what was so in training"
        )
    columns = ", ".join(trained) or "none"
    return f"its columns are not those in training ({columns}): {'; '.join(parts)}: {'; '.join(hints)}"


def _renamed(name: str, missing: Sequence[str], extra: Sequence[str]) -> str:
    """Return the column that probably is a missing one under another name: the most similar, or the only other one."""
    if len(missing) == len(extra) == 1:
        return extra[0]
    return next(iter(get_close_matches(name, extra, n=1)), "")


def _declaration(column: Column, other: Column) -> str:
    """Return a column's kind and its options other than the defaults, as party.toml has them.

    Of a long list it shows the first value that another column of the kind does not have there.
    """
    options = column.model_dump(exclude_defaults=True)
    theirs = other.model_dump() if other.name == column.name else {}
    for key, value in options.items():
        if isinstance(value, list | tuple) and len(value) > LISTED and theirs.get(key):
            at = next((at for at, (one, two) in enumerate(zip(value, theirs[key], strict=False)) if one != two), None)
            options[key] = f"[{len(value)} values{'' if at is None else f', at {at} {value[at]!r}'}]"
    return ", ".join([column.name, *(f"{key} = {value}" for key, value in options.items())])


def first_totals(name: str, column: Column, contents: Contents, hashing: Hashing) -> Totals:
    """Return what a party adds to the first totals of a column."""
    return _over_blocks(name, column, contents, lambda own, table: column.first_totals(own, table, hashing))


def second_totals(name: str, column: Column, contents: Contents, first: Totals) -> Totals:
    """Return what a party adds to the second totals of a column, given the first totals of all parties."""
    return _over_blocks(name, column, contents, lambda own, table: column.second_totals(own, table, first))


def other_values(columns: Mapping[str, Column], first: Sequence[Mapping[str, Totals]]) -> list[list[str]]:
    """For each party the columns of categories with several values, none of them another party's: a line for each.

    Arguments:
        first: for each party the first totals of each column.
    """
    lines: list[list[str]] = [[] for _ in first]
    for name, column in columns.items():
        if not isinstance(column, Category):
            continue
        values = {at: each[name]["ids"].unique() for at, each in enumerate(first) if "ids" in each[name]}
        several = {at: own for at, own in values.items() if own.numel() > 1}
        if len(several) < 2:
            continue
        known, holders = torch.unique(torch.cat(list(several.values())), return_counts=True)
        for at, own in several.items():
            if not bool(torch.isin(own, known[holders > 1]).any()):
                what = f"column '{name}' has no value that another party has"
                lines[at].append(f"{what}: where they mean the same, write them alike")
    return lines


def unlike_others(
    columns: Mapping[str, Column], first: Sequence[Mapping[str, Totals]], second: Sequence[Mapping[str, Totals]]
) -> list[list[str]]:
    """For each party a line on each column that is unlike the other parties': its unit, or how its values are written.

    Arguments:
        first, second: for each party the totals of each column.
    """
    whole = [{name: {**one[name], **two[name]} for name in one} for one, two in zip(first, second, strict=True)]
    return [
        [*units, *values]
        for units, values in zip(other_units(columns, whole), other_values(columns, first), strict=True)
    ]


def other_units(columns: Mapping[str, Column], totals: Sequence[Mapping[str, Totals]]) -> list[list[str]]:
    """For each party the columns of numbers that it seems to have in another unit than the others: a line for each.

    Compared are root mean squares, which follow from the totals, and only where the other parties' are alike.

    Arguments:
        totals: for each party the first and second totals of each column.
    """
    lines: list[list[str]] = [[] for _ in totals]
    for name, column in columns.items():
        own = [each[name] for each in totals]
        if type(column) is not Number or not all("squares" in each for each in own):
            continue
        count, sums, squares = (np.array([float(each[key]) for each in own]) for key in ("count", "sum", "squares"))
        many = np.flatnonzero(count >= SOME)
        if many.size < 2:
            continue
        mean = sums.sum() / max(count.sum(), 1)  # squares are of differences from it
        size = np.sqrt(np.maximum(squares[many] + 2 * mean * sums[many] - count[many] * mean**2, 0) / count[many])
        order, middle = np.sort(size), np.median(size) if many.size > 2 else size[::-1]
        least, most = np.where(size == order[0], order[1], order[0]), np.where(size == order[-1], order[-2], order[-1])
        alike = (size > 0) & (least > 0) & (most < UNLIKE * least)  # the others
        ratio = size / np.where(alike, middle, 1)
        than = "at the others" if many.size > 2 else "at the other party"
        for at in np.flatnonzero(alike & ((ratio > UNLIKE) | (ratio < 1 / UNLIKE))):
            what = f"column '{name}' is about {float(f'{ratio[at]:.1g}'):g} times as large as {than}"
            lines[many[at]].append(f"{what}: check its unit")
    return lines


def _over_blocks(name: str, column: Column, contents: Contents, count: Callable[[str, pa.Table], Totals]) -> Totals:
    if not (column.has_keyed_totals or column.has_totals("first") or column.has_totals("second")):
        return {}  # without reading the file
    if contents.database is None:
        table, own = contents.locate(name)
    else:
        table, own = contents.database.counted(name, contents.settings.train_until)
    totals = [count(own, block) for _, block in column.blocks(own, table)]
    return totals[0] if len(totals) == 1 else add_totals(totals)


def _structural(name: str, column: Column, width: int) -> Tensor:
    """Return a mask of the column's features that are computed from the edges."""
    if isinstance(column.structural, bool):
        return torch.full((width,), column.structural)
    if isinstance(column, Category) and column.values is None:
        raise IsthmusError(f"column '{name}': its features have no fixed order: set structural = true or false")
    if max(column.structural, default=0) >= width:
        raise IsthmusError(
            f"column '{name}': structural has position {max(column.structural)}, but its features are 0 to {width - 1}"
        )
    return torch.isin(torch.arange(width), torch.tensor(column.structural, dtype=torch.long))


def add_totals(totals: Sequence[Totals]) -> Totals:
    """Add up the totals of several parties; totals with `ids` are added row by row, for every id that occurs.

    Numbers are added as in a federation, two by two (see `federation.sums`), so that both get the same bits.

    >>> first = {"ids": torch.tensor([3, 9]), "counts": torch.tensor([1, 2])}
    >>> both = add_totals([first, {"ids": torch.tensor([9]), "counts": torch.tensor([5])}])
    >>> both["ids"].tolist(), both["counts"].tolist()
    ([3, 9], [1, 7])
    """
    parts = list(totals)
    if "ids" in parts[0]:
        ids, position = torch.unique(torch.cat([part["ids"] for part in parts]), return_inverse=True)
        keyed = {name: torch.cat([part[name] for part in parts]) for name in parts[0] if name != "ids"}
        sums = {name: value.new_zeros(ids.numel()).index_add(0, position, value) for name, value in keyed.items()}
        return {"ids": ids, **sums}
    while len(parts) > 1:
        parts = [_add(*parts[at : at + 2]) for at in range(0, len(parts), 2)]
    return parts[0]


def _add(one: Totals, *other: Totals) -> Totals:
    return {name: sum((each[name] for each in other), value) for name, value in one.items()}
