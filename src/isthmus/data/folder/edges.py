"""Check the rows of edges.parquet block by block, and turn them into edges between positions of nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.data.folder.arrow import (
    exceeds_float32,
    is_numeric,
    is_present,
    positions_in,
    to_floats,
)
from isthmus.data.folder.checker import HERE, Checker, Positions, same_type
from isthmus.data.folder.problems import MAX_LISTED, Mask, Problem, at_rows
from isthmus.data.folder.table import EDGES, NODES, Table
from isthmus.data.mapped import Arrays, Series, repeats
from isthmus.data.party import Border

COLUMNS = ("source", "target", "weight", "owner")
APART = 0x1E3779B97F4A7C15
"""Times the number of a party, added to the numbers of its nodes, so that equal ids of two parties differ."""
ROWS = 1 << 21
"""Rows of edges in a block: each block looks its ends up among all ids, which costs as much as the ids are many."""


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges of a party folder.

    Arguments:
        index: edges within the party as positions, `[2, edges]`.
        weight: their weights, `[edges]`, or none.
        border: edges across the border; None if the party has no partners.
        border_rows: for each edge across the border its row in edges.parquet, counts from 1.
    """

    index: Tensor
    weight: Tensor | None
    border: Border | None
    border_rows: Tensor | None


@dataclass(frozen=True, eq=False)
class _Rows:
    """A block of rows of edges.parquet.

    Arguments:
        source, target: ids of the ends.
        source_at, target_at: their positions among the party's nodes, -1 for a node that the party does not have.
        owner: position in `partners` of the party that holds the other end, or `HERE`, or `UNKNOWN`.
        weight: NaN where a row has no weight; None if there is no column of weights.
    """

    source: Any
    target: Any
    source_at: Positions
    target_at: Positions
    owner: Positions
    weight: NDArray[np.float64] | None

    @property
    def within(self) -> Mask:
        """Return a mask of the rows whose ends are both this party's."""
        return np.asarray(self.owner == HERE)


class EdgeChecker(Checker):
    """Checks edges.parquet and collects its edges in arrays.

    Arguments:
        ids: the ids of the nodes; None if they are wrong, and then only the rows themselves are checked.
        graph: the graph of every node, if the party has many.
    """

    def read(self, table: Table, ids: Any | None, graph: Positions | None, arrays: Arrays) -> bool:
        """Check all rows; return whether all could be read. The arrays are of use only if no problem is severe."""
        inner, border = _Within(arrays, self.settings.directed), _Across(arrays)
        sound = True
        for self.before, block in table.blocks([name for name in COLUMNS if name in table.column_names], ROWS):
            edges = self._rows(block, ids)
            if edges is None:
                sound = False
                continue
            if graph is not None:
                self._check_within_graphs(edges, graph)
            if self.sound:
                inner.append(edges)
                border.append(edges, self)
        self.before = 0
        if sound and self.sound and ids is not None:
            self._note_repeats(inner, border, len(ids))
            inner.finish()
            border.finish()
        return sound

    def edges(self, arrays: dict[str, Tensor]) -> Edges:
        """Return the edges in the arrays that `read` filled."""
        index, weight = arrays["index"].view(2, -1), arrays.get("weight")
        if self.settings.partners is None:
            return Edges(index, weight, None, None)
        border = Border(
            arrays["border-inner"],
            arrays["border-outer"],
            arrays["border-owner"],
            tuple(self.settings.partners),
            arrays.get("border-weight"),
        )
        return Edges(index, weight, border, arrays["border-row"])

    def _rows(self, table: Any, ids: Any | None) -> _Rows | None:
        """Return a block of rows, or None if their ends cannot be read."""
        source = self.ids(EDGES, table, "source", unique=False)
        target = self.ids(EDGES, table, "target", unique=False)
        weight, owner = self._weights(table), self.owners(EDGES, table, "owner")
        if source is None or target is None or ids is None:
            return None
        if not (same_type(source, ids) and same_type(target, ids)):
            types = f"{source.type} and {target.type}, ids of nodes {ids.type}"
            self.add(Problem(EDGES, f"source and target have type {types}: use one type"))
            return None
        edges = _Rows(source, target, positions_in(source, ids), positions_in(target, ids), owner, weight)
        complete = is_present(source) & is_present(target)
        across = edges.owner >= 0
        own_ends = (edges.source_at >= 0).astype(np.int8) + (edges.target_at >= 0)
        alone = self.settings.partners is None
        hint = "add a column 'owner' (isthmus party new --owner)" if alone else "name its party in 'owner'"
        what = f"source or target is not in {NODES}: add the node, or {hint}"
        has_nodes = len(ids) > 0  # without nodes, that is the problem to report
        self.add(*at_rows(EDGES, what, complete & edges.within & (own_ends < 2) & has_nodes))
        what = "both nodes are in this party: leave 'owner' empty"
        self.add(*at_rows(EDGES, what, complete & across & (own_ends == 2)))
        what = f"neither source nor target is in {NODES}: remove the edge, or add a node"
        self.add(*at_rows(EDGES, what, complete & across & (own_ends == 0) & has_nodes))
        return edges

    def _weights(self, table: Any) -> Any | None:
        """Return the weights of the edges, NaN where a row has none, or None if there is no column of them."""
        values = self.values(EDGES, table, "weight", is_numeric, "numbers")
        if values is None:
            return None
        number = to_floats(values)
        wrong = exceeds_float32(number) | (np.isnan(number) & is_present(values))
        self.add(*at_rows(EDGES, "column 'weight' is not a finite number: correct it", wrong))
        below = "column 'weight' is negative, and a larger weight means nearer: give 0 or more"
        self.add(*at_rows(EDGES, below, number < 0, severe=False))
        if (present := is_present(values)).any():
            self.add(
                *at_rows(
                    EDGES, "column 'weight' is empty: 1 is used, fill it in if that is wrong", ~present, severe=False
                )
            )
        return number

    def _check_within_graphs(self, edges: _Rows, graph: Positions) -> None:
        here = (edges.source_at >= 0) & (edges.target_at >= 0)
        source, target = graph[edges.source_at[here]], graph[edges.target_at[here]]
        across = np.zeros(here.size, dtype=bool)
        across[here] = (source != target) & (source >= 0) & (target >= 0)
        self.add(*at_rows(EDGES, "the edge joins nodes of two graphs: remove it", across))

    def _note_repeats(self, inner: _Within, border: _Across, nodes: int) -> None:
        repeated, across = inner.repeats(nodes), border.repeats(nodes)
        if not repeated.size + across.size:
            return
        others = border.rows_not_within()
        first = repeated[:MAX_LISTED]
        rows = first + np.searchsorted(others - np.arange(others.size), first, side="right") + 1
        listed = np.sort(np.concatenate([rows, across[:MAX_LISTED]]))[:MAX_LISTED]
        what, count = "repeats an earlier edge: both count", int(repeated.size + across.size)
        self.add(Problem(EDGES, what, tuple(listed.tolist()), count, severe=False, minor=True))


class _Weights:
    """A growing array of weights: 1 where a row has none, and nothing at all if no row has one."""

    def __init__(self, arrays: Arrays) -> None:
        self.dtype = torch.empty(0).numpy().dtype
        self.values, self.declared, self.known = arrays.temporary(self.dtype), False, False

    def append(self, values: NDArray[np.float64]) -> None:
        missing = np.isnan(values)
        self.declared, self.known = True, self.known or not missing.all()
        self.values.append(np.where(missing, 1.0, values))

    @property
    def exist(self) -> bool:
        return self.known or (self.declared and not self.values.size)


class _Within:
    """The edges within a party, in the order of their rows; then, unless edges are directed, the same backwards."""

    def __init__(self, arrays: Arrays, directed: bool) -> None:
        self.arrays, self.directed = arrays, directed
        self.source, self.target = arrays.temporary(np.int64), arrays.temporary(np.int64)
        self.weights = _Weights(arrays)

    def append(self, edges: _Rows) -> None:
        within = edges.within
        self.source.append(edges.source_at[within])
        self.target.append(edges.target_at[within])
        if edges.weight is not None:
            self.weights.append(edges.weight[within])

    def repeats(self, nodes: int) -> Positions:
        """Return the positions of the edges that are equal to an earlier one."""
        counts = np.zeros(nodes, dtype=np.int64)
        for first, _ in self._pairs():
            counts += np.bincount(first, minlength=nodes)
        return repeats(self._pairs, counts)

    def _pairs(self) -> Iterator[tuple[Positions, Positions]]:
        """Yield both ends of the edges in blocks; if edges are undirected, the lower position first."""
        for source, target in zip(self.source.blocks(), self.target.blocks(), strict=True):
            yield (source, target) if self.directed else (np.minimum(source, target), np.maximum(source, target))

    def finish(self) -> None:
        index = self.arrays.series("index", np.int64)
        for one, other in ((self.source, self.target), (self.target, self.source)):
            self._both_ways(one, other, index)
        if self.weights.exist:
            self._both_ways(self.weights.values, None, self.arrays.series("weight", self.weights.dtype))

    def _both_ways(self, there: Series, back: Series | None, into: Series) -> None:
        """Append the values of the edges, and then, unless edges are directed, those of the edges backwards."""
        for block in there.blocks():
            into.append(block)
        if self.directed:
            return
        for block, source, target in zip(
            (back or there).blocks(), self.source.blocks(), self.target.blocks(), strict=True
        ):
            into.append(block[source != target])  # a loop backwards is the same loop


class _Across:
    """The edges across a party's border, and all rows that are no edges within it."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays, self.names = arrays, ("inner", "outer", "owner", "row")
        self.series = {name: arrays.temporary(np.int64) for name in self.names}
        self.weights, self.others = _Weights(arrays), arrays.temporary(np.int64)

    def append(self, edges: _Rows, checker: Checker) -> None:
        self.others.append(np.flatnonzero(~edges.within) + checker.before)
        arrives = (edges.owner >= 0) & (edges.target_at >= 0)
        leaves = (edges.owner >= 0) & (edges.source_at >= 0) & (not checker.settings.directed)
        rows = np.flatnonzero(arrives | leaves)
        outer = torch.empty(rows.size, dtype=torch.long)
        for end, here in ((edges.source, arrives), (edges.target, leaves)):
            outer[torch.from_numpy(here[rows])] = checker.id_numbers(end.take(pa.array(np.flatnonzero(here))))
        found = (np.where(arrives, edges.target_at, edges.source_at)[rows], outer.numpy(), edges.owner[rows])
        for name, values in zip(self.names, (*found, rows + checker.before + 1), strict=True):
            self.series[name].append(values)
        if edges.weight is not None:
            self.weights.append(edges.weight[rows])

    def repeats(self, nodes: int) -> Positions:
        """Return the rows, from 1, of the edges that are equal to an earlier one."""
        ends = [np.unique(block) for block in self._outer_ends()]
        known = np.unique(np.concatenate(ends)) if ends else np.empty(0, np.int64)
        counts = np.zeros(max(nodes, known.size), dtype=np.int64)
        for inner in self.series["inner"].blocks():
            counts += np.bincount(inner, minlength=counts.size)
        found = repeats(
            lambda: (
                (inner, np.searchsorted(known, outer))
                for inner, outer in zip(self.series["inner"].blocks(), self._outer_ends(), strict=True)
            ),
            counts,
        )
        return self.series["row"].array()[found]

    def _outer_ends(self) -> Iterator[Positions]:
        """Yield the nodes at the other side in blocks, as numbers that also tell parties with the same ids apart."""
        for outer, owner in zip(self.series["outer"].blocks(), self.series["owner"].blocks(), strict=True):
            yield outer + owner * APART

    def rows_not_within(self) -> Positions:
        return self.others.array()

    def finish(self) -> None:
        for name, series in self.series.items():
            _copy(series, self.arrays.series(f"border-{name}", np.int64))
        if self.weights.exist:
            _copy(self.weights.values, self.arrays.series("border-weight", self.weights.dtype))


def _copy(series: Series, into: Series) -> None:
    for block in series.blocks():
        into.append(block)
