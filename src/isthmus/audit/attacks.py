"""Attacks that read a victim's features from what colluders know after FedCog's propagation, by linear algebra."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import block_array, csr_array, diags_array, vstack
from scipy.sparse.csgraph import connected_components

from isthmus.audit.knowledge import RTOL, Knowledge, Reals
from isthmus.data.matrices import Ints

Level = Literal["features", "direction", "support"]
MAX_SYSTEM = 1500
"""Systems of equations with more messages and more nodes than this are not solved, only peeled."""
ZERO = 1e-5
"""A remainder below this share of a sum counts as zero."""


@dataclass(frozen=True, eq=False)
class RowClaim:
    """A row that an attacker claims to have read.

    Arguments:
        columns, values: its non-zero entries.
        level: what is claimed: the features, their direction, or where they are not zero.
        attack: the attack that read it.
        nodes: ids; the row belongs to one of these nodes.
        near: instead of `nodes`, an id; the row belongs to an inner neighbour of this node, whose own id is unknown.
    """

    columns: Ints
    values: Reals
    level: Level
    attack: str
    nodes: tuple[int, ...] = ()
    near: int | None = None


@dataclass(eq=False)
class AttackState:
    """What the attackers have found out so far, and what they claim.

    Attributes:
        weights: how messages combine to a single node's message, for resolved nodes, `[V, messages]`.
        resolved: nodes separated by linear algebra, `[V]`.
        products: the row beta_v x_v of settled nodes, `[V, features]`.
        settled: nodes whose row is known, `[V]`.
        degrees: degrees of nodes, `[V]`; NaN if unknown.
    """

    known: Knowledge
    claims: list[RowClaim] = field(default_factory=list)

    def __post_init__(self) -> None:
        messages, nodes = self.known.joined.shape
        self.weights = csr_array((nodes, messages))
        self.resolved = np.zeros(nodes, dtype=bool)
        self.products = csr_array((nodes, self.known.features))
        self.settled = np.zeros(nodes, dtype=bool)
        self.degrees = np.full(nodes, np.nan)

    def resolve(self, nodes: Ints, weights: Any, attack: str) -> None:
        """Add nodes that are separated from others: their own messages of all hops are known."""
        self.weights = self.weights + selection(nodes, self.resolved.size).T @ weights
        self.resolved[nodes] = True
        self.settle(nodes, weights @ self.known.messages[0], attack)

    def settle(self, nodes: Ints, products: Any, attack: str) -> None:
        """Add nodes with known rows beta_v x_v: the features' direction, or the features if row sizes give beta."""
        products = drop_rounding(products)
        new = ~self.settled[nodes]
        self.products = self.products + selection(nodes[new], self.settled.size).T @ products[new]
        self.settled[nodes] = True
        beta, degree = self.known.beta_and_degree(products)
        unknown = np.isnan(self.degrees[nodes])
        self.degrees[nodes[unknown]] = degree[unknown]
        self.claim(products, beta, attack, [(node,) for node in self.known.ids[nodes].tolist()])

    def claim(self, products: Any, beta: Reals, attack: str, nodes: Sequence[tuple[int, ...]]) -> None:
        """Claim the features of rows beta_v x_v, or their direction if beta is NaN."""
        for row, ids in enumerate(nodes):
            self.claims.append(make_claim(*entries(products, row), float(beta[row]), attack, nodes=ids))


class Attack(ABC):
    """A way to read rows, which builds on what earlier attacks found."""

    name: ClassVar[str]

    @abstractmethod
    def run(self, findings: AttackState) -> None:
        """Add what this attack finds to the findings."""


class OneNeighbour(Attack):
    """A message over one node is its row times beta; the border shows which node it is."""

    name = "one neighbour"

    def run(self, findings: AttackState) -> None:
        joined = findings.known.joined
        single = np.flatnonzero(np.diff(joined.indptr) == 1)
        entry = joined.indptr[single]
        nodes, first = np.unique(joined.indices[entry], return_index=True)
        weights = selection(single[first], joined.shape[0])
        findings.resolve(nodes, csr_array(diags_array(1 / joined.data[entry[first]]) @ weights), self.name)


class LinearSystem(Attack):
    """Messages over several nodes are equations B Y = M with B known: v is read if e_v is in the row space of B.

    Peeling subtracts known nodes until no message has a single unknown node. The remaining equations split into systems
    without common nodes; each is solved with its pseudo-inverse.
    """

    name = "linear system"

    def run(self, findings: AttackState) -> None:
        joined = findings.known.joined
        weights, resolved = self._peel(findings)
        known = np.flatnonzero(resolved)
        solved = [np.flatnonzero(resolved & ~findings.resolved)]
        rows = [csr_array(weights)[solved[0]]]
        for messages, nodes in self._systems(joined, resolved):
            inside, solution = self._solve(joined[messages][:, nodes])
            # Y_v = sum over messages of solution (M - B Y), with the known part of Y
            combined = csr_array(solution) @ selection(messages, joined.shape[0])
            rows.append(combined - (combined @ joined)[:, known] @ weights[known])
            solved.append(nodes[inside])
        findings.resolve(np.concatenate(solved), csr_array(vstack(rows, format="csr")), self.name)

    def _peel(self, findings: AttackState) -> tuple[Any, NDArray[np.bool_]]:
        """Resolve nodes until no message has a single unknown node; return all weights and resolved nodes."""
        joined, weights, resolved = findings.known.joined, findings.weights, findings.resolved.copy()
        while True:
            unknown, known = np.flatnonzero(~resolved), np.flatnonzero(resolved)
            rest = joined[:, unknown]
            single = np.flatnonzero(np.diff(rest.indptr) == 1)
            if not single.size:
                return weights, resolved
            entry = rest.indptr[single]
            nodes, first = np.unique(rest.indices[entry], return_index=True)
            single = single[first]
            rows = selection(single, joined.shape[0]) - joined[single][:, known] @ weights[known]
            rows = diags_array(1 / rest.data[entry[first]]) @ rows
            weights = csr_array(weights + selection(unknown[nodes], resolved.size).T @ rows)
            resolved[unknown[nodes]] = True

    def _systems(self, joined: Any, resolved: NDArray[np.bool_]) -> Iterator[tuple[Ints, Ints]]:
        """Yield messages and unknown nodes that belong together."""
        unknown = np.flatnonzero(~resolved)
        part = joined[:, unknown]
        messages = np.flatnonzero(np.diff(part.indptr) > 0)
        part = part[messages]
        both = block_array([[None, part], [part.T, None]], format="csr")
        count, label = connected_components(both, directed=False)
        order = np.argsort(label, kind="stable")
        ends = np.searchsorted(label[order], np.arange(count + 1))
        for start, stop in itertools.pairwise(ends.tolist()):
            members = order[start:stop]
            rows, columns = members[members < messages.size], members[members >= messages.size] - messages.size
            if rows.size > 1 and min(rows.size, columns.size) <= MAX_SYSTEM:
                yield messages[rows], unknown[columns]

    def _solve(self, system: Any) -> tuple[Ints, Reals]:
        """Return the unknowns that the equations determine, and how equations combine to each of them."""
        dense = system.toarray()
        wide = dense.shape[0] < dense.shape[1]
        inverse = np.linalg.pinv(dense @ dense.T if wide else dense.T @ dense, rcond=1e-9, hermitian=True)
        pseudo = dense.T @ inverse if wide else inverse @ dense.T
        inside = np.flatnonzero(np.einsum("vm,mv->v", pseudo, dense) > 1 - 1e-6)
        return inside, np.where(np.abs(pseudo[inside]) > 1e-9, pseudo[inside], 0.0)


class NoInnerNeighbour(Attack):
    """Theorem 2: if all neighbours of a node belong to colluders, only its features are unknown.

    Its degree is the number of its border edges, and what it receives in a hop is what the colluders sent. So n such
    nodes in one message are n unknown rows, and every hop gives one more equation. To recognise a message over such
    nodes alone, the attack needs one equation more than unknowns; or, if features are not negative and mostly zero, a
    solution with these properties. LNNC leaves no such node.
    """

    name = "no inner neighbour"

    def run(self, findings: AttackState) -> None:
        known, joined = findings.known, findings.known.joined
        if known.diffusion.restart == 1:  # nothing spreads, so another hop says nothing new
            return
        factors, sums = self._equations(known)
        sizes = np.diff(joined.indptr)
        read: dict[int, Reals] = {}
        few = np.flatnonzero((sizes > 0) & (sizes <= known.diffusion.hops))
        for message in few[np.argsort(sizes[few], kind="stable")].tolist():
            nodes, edges = entries(joined, message)
            if not read.keys() >= set(nodes.tolist()):
                right = np.stack([dense_row(each, message) for each in sums])
                rows = self._solve(known, factors[:, nodes] * edges, right, nodes)
                read |= {} if rows is None else dict(zip(nodes.tolist(), rows, strict=True))
        if not read:
            return
        nodes = np.array(sorted(read))
        rows = csr_array(np.stack([read[node] for node in nodes.tolist()]))
        findings.degrees[nodes] = known.edges[nodes]
        findings.settle(nodes, rows, self.name)
        ids = [(node,) for node in known.ids[nodes].tolist()]
        findings.claim(drop_rounding(rows), known.beta(known.edges[nodes]), self.name, ids)

    def _equations(self, known: Knowledge) -> tuple[Reals, list[Any]]:
        """Return, by hop, the factor of beta_v x_v in node v's summand, `[hops, V]`, and messages minus known parts.

        beta h^(l) = (1 - alpha) share (beta h^(l-1) + sent by colluders) + alpha beta x, with share = gamma beta.
        """
        alpha, share = known.diffusion.restart, known.share(known.edges)
        factor, rest = np.ones(known.edges.size), csr_array(known.sent[0].shape)
        factors, sums = [], []
        for message, sent in zip(known.messages, known.sent, strict=True):
            factors.append(factor)
            sums.append(csr_array(message - known.joined @ rest))
            factor = (1 - alpha) * share * factor + alpha
            rest = diags_array((1 - alpha) * share) @ (rest + sent)
        return np.stack(factors), sums

    def _solve(self, known: Knowledge, factors: Reals, sums: Reals, nodes: Ints) -> Reals | None:
        """Solve for the rows beta_v x_v of one message's nodes, `[nodes, features]`; None if they are not plausible."""
        columns = np.flatnonzero(sums.any(0))
        if not sums[0].any() or np.linalg.cond(factors) > 1e4:
            return None
        rows = np.zeros((factors.shape[1], sums.shape[1]))
        rows[:, columns] = np.linalg.lstsq(factors, sums[:, columns], rcond=None)[0]
        rounding = RTOL * np.abs(sums).max()
        if factors.shape[0] > factors.shape[1]:
            return rows if np.abs(factors @ rows[:, columns] - sums[:, columns]).max() < rounding else None
        if not (known.law.nonnegative and known.law.sparse) or rows.min() < -rounding:
            return None
        _, degree = known.beta_and_degree(drop_rounding(csr_array(rows)))
        return rows if np.isnan(degree).all() or np.allclose(degree, known.edges[nodes]) else None


class SecondHop(Attack):
    """A node's row after one hop reveals its degree, whether it has inner neighbours or not.

    (1 + d) beta_v h_v^(1) = beta_v x_v + sums of others + a sum over inner neighbours. If features are sparse,
    the last sum is zero in some columns. There the quotient of the known rows is 1 + d, an integer; elsewhere it is
    smaller, if features are not negative.
    """

    name = "second hop"

    def run(self, findings: AttackState) -> None:
        known, nodes = findings.known, np.flatnonzero(findings.resolved)
        if not (known.has_second_hop and nodes.size):
            return
        before, after = csr_array(findings.products[nodes] + known.sent[0][nodes]), rows_after_hop(findings, nodes)
        degrees = np.array(
            [
                self._degree(known, dense_row(before, row), dense_row(after, row), edges)
                for row, edges in enumerate(known.edges[nodes].tolist())
            ]
        )
        known_degree = ~np.isnan(degrees)
        nodes, degrees = nodes[known_degree], degrees[known_degree]
        findings.degrees[nodes] = np.where(np.isnan(findings.degrees[nodes]), degrees, findings.degrees[nodes])
        ids = [(node,) for node in known.ids[nodes].tolist()]
        findings.claim(findings.products[nodes], known.beta(degrees), self.name, ids)

    def _degree(self, known: Knowledge, before: Reals, after: Reals, edges: float) -> float:
        filled = (np.abs(before) > ZERO * np.abs(before).max()) & (np.abs(after) > ZERO * np.abs(after).max())
        quotient = before[filled] / after[filled]
        best = self._most_frequent(quotient, edges) if not known.law.nonnegative else quotient.max(initial=0)
        equal = int((np.abs(quotient - best) < RTOL * best).sum())
        degree = float(known.plausible(np.array(best - 1)))
        return degree if equal >= 3 and degree >= edges * (1 - RTOL) else np.nan

    def _most_frequent(self, quotient: Reals, edges: float) -> float:
        """Return the most frequent integer."""
        near = np.round(quotient)
        near = near[(np.abs(quotient - near) < RTOL * near) & (near > edges)]
        values, counts = np.unique(near, return_counts=True)
        return float(values[counts.argmax()]) if counts.size else 0.0


def rows_after_hop(findings: AttackState, nodes: Ints) -> Any:
    """Compute beta_v h_v^(1) of resolved nodes without the restart's part, `[nodes, features]`."""
    alpha = findings.known.diffusion.restart
    after = findings.weights[nodes] @ findings.known.messages[1]
    return drop_rounding((after - alpha * findings.products[nodes]) / (1 - alpha))


def make_claim(columns: Ints, values: Reals, beta: float, attack: str, **target: Any) -> RowClaim:
    """Claim a row beta_v x_v, or only its direction if beta is NaN; an empty row needs no beta."""
    if columns.size and np.isnan(beta):
        return RowClaim(columns, values, "direction", attack, **target)
    return RowClaim(columns, values / beta if columns.size else values, "features", attack, **target)


def entries(matrix: Any, row: int) -> tuple[Ints, NDArray[Any]]:
    """Return the columns and values of one row."""
    run = slice(matrix.indptr[row], matrix.indptr[row + 1])
    return matrix.indices[run], matrix.data[run]


def dense_row(matrix: Any, row: int) -> Reals:
    dense = np.zeros(matrix.shape[1])
    columns, values = entries(matrix, row)
    dense[columns] = values
    return dense


def selection(rows: Ints, count: int) -> Any:
    """Return the matrix that selects these of `count` rows, `[rows, count]`; its transpose puts them back."""
    return csr_array((np.ones(rows.size), rows, np.arange(rows.size + 1)), shape=(rows.size, count))


def drop_rounding(rows: Any) -> Any:
    """Return rows without entries that are only rounding errors."""
    rows = csr_array(rows)
    sizes = np.diff(rows.indptr)
    largest = np.zeros(rows.shape[0])
    largest[sizes > 0] = np.maximum.reduceat(np.abs(rows.data), rows.indptr[:-1][sizes > 0]) if rows.nnz else 0
    rows.data[np.abs(rows.data) < ZERO * np.repeat(largest, sizes)] = 0
    rows.eliminate_zeros()
    return rows
