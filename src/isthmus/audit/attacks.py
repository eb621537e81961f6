"""Ways to read a victim's features out of what colluders know after FedCog's propagation: by linear algebra."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array, hstack, vstack
from scipy.sparse.csgraph import connected_components

from isthmus.audit.knowledge import ALIKE, Knowledge, Reals
from isthmus.data.matrices import Ints

Level = Literal["features", "direction", "support"]
LARGEST = 1500
"""Of systems of equations with more messages and more nodes than this only what peeling reaches is read."""
ZERO = 1e-5
"""What is left of a sum counts as nothing below this share of it."""


@dataclass(frozen=True, eq=False)
class Claim:
    """A row that an attacker says it has read.

    Arguments:
        columns, values: its entries that are not zero.
        level: what is claimed: the features, their direction, or where they are not zero.
        attack: what read it.
        nodes: ids: it is the row of one of these.
        near: instead of `nodes`: it is the row of an inner neighbour of this node, of an id that the attacker lacks.
    """

    columns: Ints
    values: Reals
    level: Level
    attack: str
    nodes: tuple[int, ...] = ()
    near: int | None = None


@dataclass(eq=False)
class Findings:
    """What the attackers have worked out so far, and what they claim.

    Attributes:
        weights: of nodes told apart by linear algebra how messages add up to theirs alone, `[V, messages]`.
        resolved: which nodes these are, `[V]`.
        products: of nodes whose row beta_v x_v is known this row, `[V, features]`.
        settled: which nodes these are, `[V]`.
        degrees: of nodes, `[V]`; not a number where open.
    """

    known: Knowledge
    claims: list[Claim] = field(default_factory=list)

    def __post_init__(self) -> None:
        messages, nodes = self.known.joined.shape
        self.weights = csr_array((nodes, messages))
        self.resolved = np.zeros(nodes, dtype=bool)
        self.products = csr_array((nodes, self.known.features))
        self.settled = np.zeros(nodes, dtype=bool)
        self.degrees = np.full(nodes, np.nan)

    def resolve(self, nodes: Ints, weights: Any, attack: str) -> None:
        """Nodes told apart from others: their messages of all hops are known."""
        self.weights = self.weights + chosen(nodes, self.resolved.size).T @ weights
        self.resolved[nodes] = True
        self.settle(nodes, weights @ self.known.messages[0], attack)

    def settle(self, nodes: Ints, products: Any, attack: str) -> None:
        """Nodes whose rows beta_v x_v were found: this is the features' direction, and all where sizes tell beta."""
        products = cleaned(products)
        new = ~self.settled[nodes]
        self.products = self.products + chosen(nodes[new], self.settled.size).T @ products[new]
        self.settled[nodes] = True
        beta, degree = self.known.scaled(products)
        open_ = np.isnan(self.degrees[nodes])
        self.degrees[nodes[open_]] = degree[open_]
        self.claim(products, beta, attack, [(node,) for node in self.known.ids[nodes].tolist()])

    def claim(self, products: Any, beta: Reals, attack: str, nodes: Sequence[tuple[int, ...]]) -> None:
        """Claim the features of rows beta_v x_v, or their direction where beta is not a number."""
        for at, whose in enumerate(nodes):
            self.claims.append(claimed(*entries(products, at), float(beta[at]), attack, nodes=whose))


class Attack(ABC):
    """One way to read. It goes on from what those before it have found."""

    name: ClassVar[str]

    @abstractmethod
    def run(self, found: Findings) -> None:
        """Add what this attack finds."""


class OneNeighbour(Attack):
    """A message over one node is its row times beta; the border tells that it is one, and which."""

    name = "one neighbour"

    def run(self, found: Findings) -> None:
        joined = found.known.joined
        single = np.flatnonzero(np.diff(joined.indptr) == 1)
        entry = joined.indptr[single]
        nodes, first = np.unique(joined.indices[entry], return_index=True)
        weights = chosen(single[first], joined.shape[0])
        found.resolve(nodes, csr_array(diags_array(1 / joined.data[entry[first]]) @ weights), self.name)


class LinearSystem(Attack):
    """Messages over several nodes are equations B Y = M with B known: v is read where e_v is in the row space of B.

    Known nodes are subtracted until no message has one unknown node left. What remains falls into systems without a
    node in common; each is solved by its pseudo-inverse.
    """

    name = "linear system"

    def run(self, found: Findings) -> None:
        joined = found.known.joined
        weights, resolved = self._peeled(found)
        known = np.flatnonzero(resolved)
        solved = [np.flatnonzero(resolved & ~found.resolved)]
        rows = [csr_array(weights)[solved[0]]]
        for messages, nodes in self._systems(joined, resolved):
            inside, solution = self._solved(joined[messages][:, nodes])
            # Y_v = sum over messages of solution (M - B Y), Y where it is known
            adding = csr_array(solution) @ chosen(messages, joined.shape[0])
            rows.append(adding - (adding @ joined)[:, known] @ weights[known])
            solved.append(nodes[inside])
        found.resolve(np.concatenate(solved), csr_array(vstack(rows, format="csr")), self.name)

    def _peeled(self, found: Findings) -> tuple[Any, NDArray[np.bool_]]:
        """Weights and nodes that are resolved once every message with one unknown node is used."""
        joined, weights, resolved = found.known.joined, found.weights, found.resolved.copy()
        while True:
            unknown, known = np.flatnonzero(~resolved), np.flatnonzero(resolved)
            rest = joined[:, unknown]
            single = np.flatnonzero(np.diff(rest.indptr) == 1)
            if not single.size:
                return weights, resolved
            entry = rest.indptr[single]
            nodes, first = np.unique(rest.indices[entry], return_index=True)
            single = single[first]
            rows = chosen(single, joined.shape[0]) - joined[single][:, known] @ weights[known]
            rows = diags_array(1 / rest.data[entry[first]]) @ rows
            weights = csr_array(weights + chosen(unknown[nodes], resolved.size).T @ rows)
            resolved[unknown[nodes]] = True

    def _systems(self, joined: Any, resolved: NDArray[np.bool_]) -> Iterator[tuple[Ints, Ints]]:
        """Messages and unknown nodes that belong together."""
        unknown = np.flatnonzero(~resolved)
        part = joined[:, unknown]
        messages = np.flatnonzero(np.diff(part.indptr) > 0)
        part = part[messages]
        both = vstack([hstack([_zeros(messages.size), part]), hstack([part.T, _zeros(unknown.size)])])
        count, label = connected_components(both, directed=False)
        order = np.argsort(label, kind="stable")
        ends = np.searchsorted(label[order], np.arange(count + 1))
        for start, stop in itertools.pairwise(ends.tolist()):
            members = order[start:stop]
            rows, columns = members[members < messages.size], members[members >= messages.size] - messages.size
            if rows.size > 1 and min(rows.size, columns.size) <= LARGEST:
                yield messages[rows], unknown[columns]

    def _solved(self, system: Any) -> tuple[Ints, Reals]:
        """The unknowns that the equations determine, and how equations add up to each of them."""
        dense = system.toarray()
        wide = dense.shape[0] < dense.shape[1]
        inverse = np.linalg.pinv(dense @ dense.T if wide else dense.T @ dense, rcond=1e-9, hermitian=True)
        pseudo = dense.T @ inverse if wide else inverse @ dense.T
        inside = np.flatnonzero(np.einsum("vm,mv->v", pseudo, dense) > 1 - 1e-6)
        return inside, np.where(np.abs(pseudo[inside]) > 1e-9, pseudo[inside], 0.0)


class NoInnerNeighbour(Attack):
    """Theorem 2: where all neighbours of a node are the colluders', nothing of it is unknown but its features.

    Its degree is the number of its edges at the border, and what reaches it in a hop is what the colluders sent. So n
    such nodes in one message are n unknown rows, and every hop gives one more equation for them. That a message is
    over such nodes alone shows where there is an equation too many; or else, where features are not negative and
    mostly zero, in a solution that is so too. LNNC leaves no such node.
    """

    name = "no inner neighbour"

    def run(self, found: Findings) -> None:
        known, joined = found.known, found.known.joined
        if known.diffusion.restart == 1:  # nothing spreads, so nothing more is told by another hop
            return
        factors, due = self._equations(known)
        sizes = np.diff(joined.indptr)
        read: dict[int, Reals] = {}
        few = np.flatnonzero((sizes > 0) & (sizes <= known.diffusion.hops))
        for message in few[np.argsort(sizes[few], kind="stable")].tolist():
            nodes, edges = entries(joined, message)
            if not read.keys() >= set(nodes.tolist()):
                right = np.stack([dense_row(each, message) for each in due])
                rows = self._solved(known, factors[:, nodes] * edges, right, nodes)
                read |= {} if rows is None else dict(zip(nodes.tolist(), rows, strict=True))
        if not read:
            return
        nodes = np.array(sorted(read))
        rows = csr_array(np.stack([read[node] for node in nodes.tolist()]))
        found.degrees[nodes] = known.edges[nodes]
        found.settle(nodes, rows, self.name)
        whose = [(node,) for node in known.ids[nodes].tolist()]
        found.claim(cleaned(rows), known.beta(known.edges[nodes]), self.name, whose)

    def _equations(self, known: Knowledge) -> tuple[Reals, list[Any]]:
        """By hop how often beta_v x_v is in what v adds to a message, `[hops, V]`; messages less all that is known.

        beta h^(l) = (1 - alpha) share (beta h^(l-1) + what colluders sent) + alpha beta x, share = gamma beta.
        """
        alpha, share = known.diffusion.restart, known.share(known.edges)
        factor, rest = np.ones(known.edges.size), csr_array(known.sent[0].shape)
        factors, due = [], []
        for message, sent in zip(known.messages, known.sent, strict=True):
            factors.append(factor)
            due.append(csr_array(message - known.joined @ rest))
            factor = (1 - alpha) * share * factor + alpha
            rest = diags_array((1 - alpha) * share) @ (rest + sent)
        return np.stack(factors), due

    def _solved(self, known: Knowledge, factors: Reals, due: Reals, nodes: Ints) -> Reals | None:
        """The rows beta_v x_v of the nodes of one message, `[nodes, features]`; none where they cannot be such."""
        told = np.flatnonzero(due.any(0))
        if not due[0].any() or np.linalg.cond(factors) > 1e4:
            return None
        rows = np.zeros((factors.shape[1], due.shape[1]))
        rows[:, told] = np.linalg.lstsq(factors, due[:, told], rcond=None)[0]
        rounding = ALIKE * np.abs(due).max()
        if factors.shape[0] > factors.shape[1]:
            return rows if np.abs(factors @ rows[:, told] - due[:, told]).max() < rounding else None
        if not (known.law.nonnegative and known.law.sparse) or rows.min() < -rounding:
            return None
        _, degree = known.scaled(cleaned(csr_array(rows)))
        return rows if np.isnan(degree).all() or np.allclose(degree, known.edges[nodes]) else None


class SecondHop(Attack):
    """What has become of a node's row after a hop tells its degree, whether it has inner neighbours or not.

    (1 + d) beta_v h_v^(1) = beta_v x_v + what others sent + a sum over the inner neighbours. Where features are sparse
    the last sum is zero in some columns. There the quotient of what is known is 1 + d, a whole number; elsewhere, if
    features are not negative, it is smaller.
    """

    name = "second hop"

    def run(self, found: Findings) -> None:
        known, nodes = found.known, np.flatnonzero(found.resolved)
        if not (known.has_second_hop and nodes.size):
            return
        before, after = csr_array(found.products[nodes] + known.sent[0][nodes]), half_of(found, nodes)
        degrees = np.array(
            [
                self._degree(known, dense_row(before, at), dense_row(after, at), edges)
                for at, edges in enumerate(known.edges[nodes].tolist())
            ]
        )
        told = ~np.isnan(degrees)
        nodes, degrees = nodes[told], degrees[told]
        found.degrees[nodes] = np.where(np.isnan(found.degrees[nodes]), degrees, found.degrees[nodes])
        whose = [(node,) for node in known.ids[nodes].tolist()]
        found.claim(found.products[nodes], known.beta(degrees), self.name, whose)

    def _degree(self, known: Knowledge, before: Reals, after: Reals, edges: float) -> float:
        told = (np.abs(before) > ZERO * np.abs(before).max()) & (np.abs(after) > ZERO * np.abs(after).max())
        quotient = before[told] / after[told]
        best = self._most_frequent(quotient, edges) if not known.law.nonnegative else quotient.max(initial=0)
        alike = int((np.abs(quotient - best) < ALIKE * best).sum())
        degree = float(known.plausible(np.array(best - 1)))
        return degree if alike >= 3 and degree >= edges * (1 - ALIKE) else np.nan

    def _most_frequent(self, quotient: Reals, edges: float) -> float:
        """The whole number that is there most often."""
        near = np.round(quotient)
        near = near[(np.abs(quotient - near) < ALIKE * near) & (near > edges)]
        values, counts = np.unique(near, return_counts=True)
        return float(values[counts.argmax()]) if counts.size else 0.0


def half_of(found: Findings, nodes: Ints) -> Any:
    """beta_v h_v^(1) of resolved nodes, less what a restart adds, `[nodes, features]`."""
    alpha = found.known.diffusion.restart
    after = found.weights[nodes] @ found.known.messages[1]
    return cleaned((after - alpha * found.products[nodes]) / (1 - alpha))


def claimed(columns: Ints, values: Reals, beta: float, attack: str, **whose: Any) -> Claim:
    """A claim on a row beta_v x_v, on its direction alone where beta is not a number; of an empty row all is known."""
    if columns.size and np.isnan(beta):
        return Claim(columns, values, "direction", attack, **whose)
    return Claim(columns, values / beta if columns.size else values, "features", attack, **whose)


def entries(matrix: Any, row: int) -> tuple[Ints, NDArray[Any]]:
    """Columns and values of one row."""
    run = slice(matrix.indptr[row], matrix.indptr[row + 1])
    return matrix.indices[run], matrix.data[run]


def dense_row(matrix: Any, row: int) -> Reals:
    dense = np.zeros(matrix.shape[1])
    columns, values = entries(matrix, row)
    dense[columns] = values
    return dense


def chosen(at: Ints, count: int) -> Any:
    """The matrix that picks rows `at` of `count`, `[at, count]`; its transpose puts them there."""
    return csr_array((np.ones(at.size), at, np.arange(at.size + 1)), shape=(at.size, count))


def cleaned(rows: Any) -> Any:
    """Rows without the entries that rounding left where there is nothing."""
    rows = csr_array(rows)
    sizes = np.diff(rows.indptr)
    largest = np.zeros(rows.shape[0])
    largest[sizes > 0] = np.maximum.reduceat(np.abs(rows.data), rows.indptr[:-1][sizes > 0]) if rows.nnz else 0
    rows.data[np.abs(rows.data) < ZERO * np.repeat(largest, sizes)] = 0
    rows.eliminate_zeros()
    return rows


def _zeros(size: int) -> Any:
    return csr_array((size, size))
