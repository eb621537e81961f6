"""Attacks that read rows from their sums if features are not negative, sparse or flat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

from isthmus.audit.attacks import (
    ZERO,
    Attack,
    AttackState,
    RowClaim,
    dense_row,
    drop_rounding,
    entries,
    make_claim,
    rows_after_hop,
)
from isthmus.audit.knowledge import Knowledge, Reals
from isthmus.data.matrices import Ints

RTOL = 4e-6
"""Relative difference up to which two values in a sum of flat rows count as equal."""
MAX_ROWS = 10
"""Sums over more flat rows than this are not split."""


class Supports(Attack):
    """In sums of non-negative rows, find the entries that must be zero, and those that only one node can have.

    If a message has no entry in a column, none of its nodes has one. An entry that only one node can have belongs to
    that node, and is subtracted from all its sums. A node without an open column is read. Entries that stay open have
    bounds, which may still show where a node's entries are.
    """

    name = "supports"

    def run(self, findings: AttackState) -> None:
        known = findings.known
        if not (known.law.nonnegative and known.law.sparse):
            return
        edges = known.joined.tocoo()
        unknown = ~findings.settled[edges.col]
        message, node, weight = edges.row[unknown], edges.col[unknown], edges.data[unknown]
        sums = _remainder(findings)
        # for each column of each edge: its (node, column) pair, and the entry of the sums that it adds to
        lengths = np.diff(sums.indptr)[message]
        edge = np.repeat(np.arange(message.size), lengths)
        entry = np.arange(edge.size) - np.repeat(lengths.cumsum() - lengths - sums.indptr[message], lengths)
        key, pair = np.unique(node[edge] * known.features + sums.indices[entry], return_inverse=True)
        whose, column = np.divmod(key, known.features)
        count = np.bincount(node, minlength=findings.settled.size)
        equations = _Equations(sums.data, pair, entry, weight[edge])
        values, open_ = equations.solve(np.bincount(pair, minlength=key.size) == count[whose])
        if values is None:
            return
        rows = coo_array((values, (whose, column)), shape=findings.products.shape).tocsr()
        read = np.flatnonzero((count > 0) & (np.bincount(whose[open_], minlength=count.size) == 0))
        findings.settle(read, rows[read], self.name)
        nonzero = equations.nonzero(values, open_)
        readable = (count > 0) & (np.bincount(whose[open_ & ~nonzero], minlength=count.size) == 0)
        readable[read] = False
        ends = np.searchsorted(whose, np.arange(count.size + 1))
        for each in np.flatnonzero(readable).tolist():
            run = slice(ends[each], ends[each + 1])
            columns = column[run][(values[run] > 0) | nonzero[run]]
            claim = RowClaim(columns, np.ones(columns.size), "support", self.name, nodes=(int(known.ids[each]),))
            findings.claims.append(claim)


@dataclass(frozen=True, eq=False)
class _Equations:
    """Sums of unknown non-negative values: the value of a pair, times its weight, adds to an entry of the sums."""

    sums: Reals
    pair: Ints
    entry: Ints
    weight: Reals

    def solve(self, open_: NDArray[np.bool_]) -> tuple[Reals | None, NDArray[np.bool_]]:
        """Find values as far as possible, with zero for those not open; return them and which stay open.

        The values are None if none could add up to the sums.
        """
        values, left, open_ = np.zeros(open_.size), self.sums.copy(), open_.copy()
        while True:
            live = open_[self.pair]
            options = np.bincount(self.entry[live], minlength=left.size)
            if (left[options == 0] > 10 * ZERO * self.sums[options == 0]).any():
                return None, open_
            single = np.flatnonzero(live & (options[self.entry] == 1))
            if not single.size:
                return values, open_
            pairs, first = np.unique(self.pair[single], return_index=True)
            values[pairs] = left[self.entry[single[first]]] / self.weight[single[first]]
            open_[pairs] = False
            left = self._left(values)
            open_[self.pair[(left < ZERO * self.sums)[self.entry]]] = False

    def nonzero(self, values: Reals, open_: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Find open values that cannot be zero, because the others cannot make up the sum without them."""
        left, live = self._left(values), open_[self.pair]
        pair, entry, weight = self.pair[live], self.entry[live], self.weight[live]
        most = np.full(open_.size, np.inf)
        np.minimum.at(most, pair, left[entry] / weight)
        others = np.bincount(entry, weight * most[pair], minlength=left.size)[entry] - weight * most[pair]
        sure = np.zeros(open_.size, dtype=bool)
        sure[pair[left[entry] - others > 10 * ZERO * self.sums[entry]]] = True
        return sure

    def _left(self, values: Reals) -> Reals:
        return self.sums - np.bincount(self.entry, self.weight * values[self.pair], minlength=self.sums.size)


class Values(Attack):
    """In sums of flat rows, every entry adds up some of a few values, and so shows which rows have an entry there.

    A flat row has one value, for example beta_v divided by the number of its entries. The rows' values are those that
    are not sums of others; the border says how many there must be. If row sizes give degrees, all degrees must be
    integers. Which row belongs to which node follows from the other messages with that node; nodes in the same messages
    cannot be told apart.
    """

    name = "values"

    def run(self, findings: AttackState) -> None:
        if findings.known.law.flat:
            while self._round(findings):  # rows read are subtracted, which leaves smaller sums
                pass

    def _round(self, findings: AttackState) -> bool:
        """Read rows; return whether some of them have a known node."""
        known, rest = findings.known, _remainder(findings)
        split = []
        for message in range(rest.shape[0]):
            nodes, edges = entries(known.joined, message)
            unknown = nodes[~findings.settled[nodes]]
            if 0 < unknown.size <= MAX_ROWS and (edges == 1).all():
                rows = split_flat_rows(*entries(rest, message), unknown.size)
                if rows and _plausible(known, rows, known.edges[unknown].min()):
                    split.append((frozenset(unknown.tolist()), rows))
        named = _assign(split)
        nodes = np.array(sorted(named), dtype=np.int64)
        findings.settle(nodes, _stack([named[node] for node in nodes.tolist()], known.features), self.name)
        if not nodes.size:
            for group, rows in split:
                products = _stack(rows, known.features)
                ids = tuple(known.ids[sorted(group)].tolist())
                findings.claim(products, known.beta_and_degree(products)[0], self.name, [ids] * len(rows))
        return bool(nodes.size)


class InnerNeighbours(Attack):
    """If a node's row and degree are known, what it gets from its inner neighbours is a sum over their rows.

    The degree gives their number. The direction of a single neighbour is read, such as the one that LNNC adds. The sum
    of several flat rows is split by their values. The neighbours' ids stay unknown.
    """

    name = "inner neighbours"

    def run(self, findings: AttackState) -> None:
        known = findings.known
        nodes = np.flatnonzero(findings.resolved & ~np.isnan(findings.degrees))
        if not (known.has_second_hop and known.unweighted and nodes.size):
            return
        before, after = csr_array(findings.products[nodes] + known.sent[0][nodes]), rows_after_hop(findings, nodes)
        for position, node in enumerate(nodes.tolist()):
            reached = (1 + findings.degrees[node]) * dense_row(after, position)
            inner = reached - dense_row(before, position)
            inner[np.abs(inner) < 10 * ZERO * np.abs(reached).max(initial=0)] = 0
            count = round(findings.degrees[node] - known.edges[node])
            if count < 1 or not inner.any() or (known.law.nonnegative and inner.min() < 0):
                continue
            products = self._rows(known, inner, count)
            for row, beta in enumerate(known.beta_and_degree(products)[0].tolist()):
                near = int(known.ids[node])
                findings.claims.append(make_claim(*entries(products, row), beta, self.name, near=near))

    def _rows(self, known: Knowledge, inner: Reals, count: int) -> Any:
        if count == 1:
            return drop_rounding(csr_array(inner[None]))
        columns = np.flatnonzero(inner)
        rows = split_flat_rows(columns, inner[columns], count) if known.law.flat and count <= MAX_ROWS else None
        return _stack(rows if rows and _plausible(known, rows, 1) else [], known.features)


@dataclass(frozen=True, eq=False)
class FlatRow:
    """A row whose non-zero entries all have one value."""

    columns: Ints
    value: float

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FlatRow) or abs(self.value - other.value) > 10 * RTOL * self.value:
            return False
        return np.array_equal(self.columns, other.columns)

    def __hash__(self) -> int:
        return hash(self.columns.tobytes())


def split_flat_rows(columns: Ints, values: Reals, count: int) -> list[FlatRow]:
    """Split values into the `count` flat rows that add up to them; empty unless there is exactly one way.

    >>> for row in split_flat_rows(np.arange(4), np.array([0.5, 0.5, 0.2, 0.7]), 2):
    ...     print(row.columns.tolist(), row.value)
    [2, 3] 0.2
    [0, 1, 3] 0.5
    """
    order = np.argsort(values, kind="stable")
    steps = np.flatnonzero(np.diff(values[order]) > RTOL * values[order][1:]) + 1
    own: list[float] = []
    inside: list[list[Ints]] = []
    sums, members = np.zeros(1), [frozenset[int]()]  # the sum of every set of rows
    for level in np.split(order, steps) if order.size else ():
        value = float(values[level].mean())
        same = np.flatnonzero(np.abs(sums - value) < 2 * RTOL * value)
        if same.size > 1 or (not same.size and len(own) == count):
            return []
        if not same.size:
            same = np.array([sums.size])
            sums = np.concatenate([sums, sums + value])
            members += [each | {len(own)} for each in members]
            own.append(value)
            inside.append([])
        for row in members[same[0]]:
            inside[row].append(columns[level])
    if len(own) < count or _has_sums(np.array(own)):
        return []
    return [FlatRow(np.sort(np.concatenate(parts)), value) for parts, value in zip(inside, own, strict=True)]


def _has_sums(own: Reals) -> bool:
    """Whether a value is the sum of two to four others, repeated or not: then two rows may have equal values."""
    sums = own
    for _ in range(3):
        sums = np.unique(sums[:, None] + own)
        if (np.abs(sums[:, None] - own) < 4 * RTOL * own).any():
            return True
    return False


def _plausible(known: Knowledge, rows: Sequence[FlatRow], edges: float) -> bool:
    """Whether each row can be beta_v x_v of a node with at least so many edges; true if sizes do not say."""
    _, degree = known.beta_and_degree(_stack(rows, known.features))
    return not known.law.sizes or bool((degree >= edges).all())


def _assign(split: Sequence[tuple[frozenset[int], Sequence[FlatRow]]]) -> dict[int, FlatRow]:
    """Assign rows to nodes: a node's row is in all its messages, and belongs to no other node of these messages."""
    options: dict[int, set[FlatRow]] = {}
    for group, rows in split:
        for node in group:
            options[node] = options.get(node, set(rows)) & set(rows)
    named: dict[int, FlatRow] = {}
    while new := {node: next(iter(rows)) for node, rows in options.items() if len(rows) == 1 and node not in named}:
        named |= new
        for group, _ in split:
            for node in group & new.keys():
                for other in group - {node}:
                    options[other].discard(new[node])
    return named


def _stack(rows: Sequence[FlatRow], features: int) -> Any:
    sizes = [row.columns.size for row in rows]
    columns = np.concatenate([np.empty(0, np.int64), *(row.columns for row in rows)])
    values = np.repeat([row.value for row in rows], sizes).astype(np.float64)
    return csr_array((values, columns, np.cumsum([0, *sizes])), shape=(len(rows), features))


def _remainder(findings: AttackState) -> Any:
    """Return the messages without the nodes that were read, `[messages, features]`."""
    whole = findings.known.messages[0]
    rest = csr_array(whole - findings.known.joined @ findings.products)
    row = np.repeat(np.arange(rest.shape[0]), np.diff(rest.indptr))
    rest.data[rest.data < ZERO * np.asarray(whole[row, rest.indices]).ravel()] = 0
    rest.eliminate_zeros()
    rest.sort_indices()
    return rest
