"""Ways to read features out of sums of them that rest on what features are like: not negative, sparse, flat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

from isthmus.audit.attacks import ZERO, Attack, Claim, Findings, claimed, cleaned, dense_row, entries, half_of
from isthmus.audit.knowledge import Knowledge, Reals
from isthmus.data.matrices import Ints

CLOSE = 4e-6
"""Relative difference up to which two values in a sum of flat rows count as the same."""
MANY = 10
"""Sums over more flat rows than this are not taken apart."""


class Supports(Attack):
    """Sums of rows that are not negative, column by column: what must be zero, and what can be one node's only.

    Where a message has no entry none of its nodes has one. An entry that one node is left for is that node's, and is
    subtracted wherever it was added. A node without an open column is read. Of what stays open only bounds are known,
    which may still tell where a node's entries are.
    """

    name = "supports"

    def run(self, found: Findings) -> None:
        known = found.known
        if not (known.law.nonnegative and known.law.sparse):
            return
        edges = known.joined.tocoo()
        unknown = ~found.settled[edges.col]
        message, node, weight = edges.row[unknown], edges.col[unknown], edges.data[unknown]
        sums = _rest(found)
        # one line for each column of each edge: which (node, column) it is, and to which entry of the sums it adds
        lengths = np.diff(sums.indptr)[message]
        edge = np.repeat(np.arange(message.size), lengths)
        entry = np.arange(edge.size) - np.repeat(lengths.cumsum() - lengths - sums.indptr[message], lengths)
        key, pair = np.unique(node[edge] * known.features + sums.indices[entry], return_inverse=True)
        whose, column = np.divmod(key, known.features)
        count = np.bincount(node, minlength=found.settled.size)
        adding = _Adding(sums.data, pair, entry, weight[edge])
        values, open_ = adding.solved(np.bincount(pair, minlength=key.size) == count[whose])
        if values is None:
            return
        rows = coo_array((values, (whose, column)), shape=found.products.shape).tocsr()
        read = np.flatnonzero((count > 0) & (np.bincount(whose[open_], minlength=count.size) == 0))
        found.settle(read, rows[read], self.name)
        surely = adding.surely(values, open_)
        told = (count > 0) & (np.bincount(whose[open_ & ~surely], minlength=count.size) == 0)
        told[read] = False
        ends = np.searchsorted(whose, np.arange(count.size + 1))
        for each in np.flatnonzero(told).tolist():
            run = slice(ends[each], ends[each + 1])
            columns = column[run][(values[run] > 0) | surely[run]]
            claim = Claim(columns, np.ones(columns.size), "support", self.name, nodes=(int(known.ids[each]),))
            found.claims.append(claim)


@dataclass(frozen=True, eq=False)
class _Adding:
    """Unknown values, none of them negative, and sums of them: pair p times its weight adds to entry e of the sums."""

    sums: Reals
    pair: Ints
    entry: Ints
    weight: Reals

    def solved(self, open_: NDArray[np.bool_]) -> tuple[Reals | None, NDArray[np.bool_]]:
        """Values as far as they can be told, those that are not open being zero, and which stay open; no values where
        none could add up to the sums."""
        values, left, open_ = np.zeros(open_.size), self.sums.copy(), open_.copy()
        while True:
            live = open_[self.pair]
            options = np.bincount(self.entry[live], minlength=left.size)
            if (left[options == 0] > 10 * ZERO * self.sums[options == 0]).any():
                return None, open_
            single = np.flatnonzero(live & (options[self.entry] == 1))
            if not single.size:
                return values, open_
            pairs, at = np.unique(self.pair[single], return_index=True)
            values[pairs] = left[self.entry[single[at]]] / self.weight[single[at]]
            open_[pairs] = False
            left = self._left(values)
            open_[self.pair[(left < ZERO * self.sums)[self.entry]]] = False

    def surely(self, values: Reals, open_: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which open values cannot be zero: the most that others can be does not make up the sum."""
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
    """Sums of flat rows: each row has one value, such as beta_v by the number of its entries, so that an entry of the
    sum is a sum of some of a few values and tells which rows have an entry there.

    The rows' own values are those that are no sums of others; there must be as many as the border tells. That each
    makes a whole degree, where sizes of rows tell degrees, is the test. Which row is whose shows in the other messages
    that its node is in, and stays open between nodes that are in the same ones.
    """

    name = "values"

    def run(self, found: Findings) -> None:
        if found.known.law.flat:
            while self._round(found):  # what has been read is subtracted: smaller sums are left
                pass

    def _round(self, found: Findings) -> bool:
        """Whether rows were read and it is known whose they are."""
        known, rest = found.known, _rest(found)
        taken = []
        for message in range(rest.shape[0]):
            nodes, edges = entries(known.joined, message)
            unknown = nodes[~found.settled[nodes]]
            if 0 < unknown.size <= MANY and (edges == 1).all():
                rows = taken_apart(*entries(rest, message), unknown.size)
                if rows and _sound(known, rows, known.edges[unknown].min()):
                    taken.append((frozenset(unknown.tolist()), rows))
        named = _named(taken)
        nodes = np.array(sorted(named), dtype=np.int64)
        found.settle(nodes, _stacked([named[node] for node in nodes.tolist()], known.features), self.name)
        if not nodes.size:
            for group, rows in taken:
                products = _stacked(rows, known.features)
                whose = tuple(known.ids[sorted(group)].tolist())
                found.claim(products, known.scaled(products)[0], self.name, [whose] * len(rows))
        return bool(nodes.size)


class InnerNeighbours(Attack):
    """What reaches a node from its inner neighbours, once its row and degree are known, is a sum over their rows.

    The degree tells how many they are. Of a single one the direction shows: of the neighbour, say, that LNNC gives to
    a node without any. Several flat rows are taken apart by their values. Their ids stay unknown.
    """

    name = "inner neighbours"

    def run(self, found: Findings) -> None:
        known = found.known
        nodes = np.flatnonzero(found.resolved & ~np.isnan(found.degrees))
        if not (known.has_second_hop and known.whole and nodes.size):
            return
        before, after = csr_array(found.products[nodes] + known.sent[0][nodes]), half_of(found, nodes)
        for at, node in enumerate(nodes.tolist()):
            reached = (1 + found.degrees[node]) * dense_row(after, at)
            inner = reached - dense_row(before, at)
            inner[np.abs(inner) < 10 * ZERO * np.abs(reached).max(initial=0)] = 0
            count = round(found.degrees[node] - known.edges[node])
            if count < 1 or not inner.any() or (known.law.nonnegative and inner.min() < 0):
                continue
            products = self._rows(known, inner, count)
            for row, beta in enumerate(known.scaled(products)[0].tolist()):
                near = int(known.ids[node])
                found.claims.append(claimed(*entries(products, row), beta, self.name, near=near))

    def _rows(self, known: Knowledge, inner: Reals, count: int) -> Any:
        if count == 1:
            return cleaned(csr_array(inner[None]))
        columns = np.flatnonzero(inner)
        rows = taken_apart(columns, inner[columns], count) if known.law.flat and count <= MANY else None
        return _stacked(rows if rows and _sound(known, rows, 1) else [], known.features)


@dataclass(frozen=True, eq=False)
class FlatRow:
    """A row that has the same value wherever it is not zero."""

    columns: Ints
    value: float

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FlatRow) or abs(self.value - other.value) > 10 * CLOSE * self.value:
            return False
        return np.array_equal(self.columns, other.columns)

    def __hash__(self) -> int:
        return hash(self.columns.tobytes())


def taken_apart(columns: Ints, values: Reals, count: int) -> list[FlatRow]:
    """The `count` flat rows that add up to these values; none where there is no way, or more than one, to see it.

    >>> for row in taken_apart(np.arange(4), np.array([0.5, 0.5, 0.2, 0.7]), 2):
    ...     print(row.columns.tolist(), row.value)
    [2, 3] 0.2
    [0, 1, 3] 0.5
    """
    order = np.argsort(values, kind="stable")
    steps = np.flatnonzero(np.diff(values[order]) > CLOSE * values[order][1:]) + 1
    own: list[float] = []
    inside: list[list[Ints]] = []
    sums, members = np.zeros(1), [frozenset[int]()]  # of all sets of rows what they add up to
    for level in np.split(order, steps) if order.size else ():
        value = float(values[level].mean())
        same = np.flatnonzero(np.abs(sums - value) < 2 * CLOSE * value)
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
    if len(own) < count or _sums_of_others(np.array(own)):
        return []
    return [FlatRow(np.sort(np.concatenate(parts)), value) for parts, value in zip(inside, own, strict=True)]


def _sums_of_others(own: Reals) -> bool:
    """Whether a value is the sum of two to four, repeated or not: then it may be that two rows have equal values."""
    sums = own
    for _ in range(3):
        sums = np.unique(sums[:, None] + own)
        if (np.abs(sums[:, None] - own) < 4 * CLOSE * own).any():
            return True
    return False


def _sound(known: Knowledge, rows: Sequence[FlatRow], edges: float) -> bool:
    """Whether each row can be beta_v x_v of a node with so many edges at least; where sizes do not tell, it can."""
    _, degree = known.scaled(_stacked(rows, known.features))
    return not known.law.sizes or bool((degree >= edges).all())


def _named(taken: Sequence[tuple[frozenset[int], Sequence[FlatRow]]]) -> dict[int, FlatRow]:
    """Whose row it is: a node's row is in every message that the node is in, and no other node's of that message."""
    options: dict[int, set[FlatRow]] = {}
    for group, rows in taken:
        for node in group:
            options[node] = options.get(node, set(rows)) & set(rows)
    named: dict[int, FlatRow] = {}
    while new := {node: next(iter(rows)) for node, rows in options.items() if len(rows) == 1 and node not in named}:
        named |= new
        for group, _ in taken:
            for node in group & new.keys():
                for other in group - {node}:
                    options[other].discard(new[node])
    return named


def _stacked(rows: Sequence[FlatRow], features: int) -> Any:
    sizes = [row.columns.size for row in rows]
    columns = np.concatenate([np.empty(0, np.int64), *(row.columns for row in rows)])
    values = np.repeat([row.value for row in rows], sizes).astype(np.float64)
    return csr_array((values, columns, np.cumsum([0, *sizes])), shape=(len(rows), features))


def _rest(found: Findings) -> Any:
    """What is left of the messages without the nodes that were read, `[messages, features]`."""
    whole = found.known.messages[0]
    rest = csr_array(whole - found.known.joined @ found.products)
    row = np.repeat(np.arange(rest.shape[0]), np.diff(rest.indptr))
    rest.data[rest.data < ZERO * np.asarray(whole[row, rest.indices]).ravel()] = 0
    rest.eliminate_zeros()
    rest.sort_indices()
    return rest
