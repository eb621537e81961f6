"""What colluding parties know of a victim after FedCog's propagation: their own data, and the messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array, vstack

from isthmus.audit.base import Letter
from isthmus.data import matrices
from isthmus.data.matrices import Ints
from isthmus.data.party import Party
from isthmus.nn.diffusion import Diffusion

Reals = NDArray[np.float64]
RTOL = 1e-4
"""Relative difference up to which numbers computed in single precision count as equal."""
SPARSE = 0.25
"""Features count as sparse if a smaller share of their entries is not zero."""
FEW = 3
"""Fewer rows than this are too few for a law: they may agree by chance."""
MEASURES = ("sum", "norm", "largest")
"""Sizes of a row: the sum of absolute entries, the Euclidean norm, the largest absolute entry."""


@dataclass(frozen=True)
class Law:
    """Properties of feature rows, which colluders know of their own rows and assume of the victim's.

    Arguments:
        nonnegative: no entry is negative.
        flat: all non-zero entries of a row are equal, as in a binary bag of words.
        sizes: by measure, the size of all rows, if it is the same.
        rows, filled: the number of rows that are not empty, and the share of their entries that is not zero.
    """

    nonnegative: bool = False
    flat: bool = False
    sizes: Mapping[str, float] = field(default_factory=dict)
    rows: int = 0
    filled: float = 1.0

    @classmethod
    def of(cls, x: Any) -> Law:
        """Find the law of these rows; empty ones do not count.

        >>> law = Law.of(csr_array([[0.5, 0.5, 0, 0], [0, 0, 1, 0]]))
        >>> law.flat, law.sizes
        (True, {'sum': 1.0})
        """
        x = x[np.diff(x.indptr) > 0]
        if not x.shape[0]:
            return cls()
        sizes = {measure: row_sizes(x, measure) for measure in MEASURES}
        return cls(
            nonnegative=bool(x.data.min() >= 0),
            flat=bool(np.allclose(np.minimum.reduceat(np.abs(x.data), x.indptr[:-1]), sizes["largest"], rtol=RTOL)),
            sizes={name: float(size.mean()) for name, size in sizes.items() if np.ptp(size) < RTOL * size.mean()},
            rows=x.shape[0],
            filled=x.nnz / (x.shape[0] * x.shape[1]),
        )

    @classmethod
    def common(cls, laws: Iterable[Law]) -> Law:
        """Return what several laws have in common."""
        laws = [law for law in laws if law.rows]
        rows = sum(law.rows for law in laws)
        if rows < FEW:
            return cls(rows=rows)
        same = {
            name: size
            for name, size in laws[0].sizes.items()
            if all(name in law.sizes and np.isclose(law.sizes[name], size, rtol=RTOL) for law in laws)
        }
        return cls(
            nonnegative=all(law.nonnegative for law in laws),
            flat=all(law.flat for law in laws) and all(law.nonnegative for law in laws),
            sizes=same,
            rows=rows,
            filled=sum(law.filled * law.rows for law in laws) / rows,
        )

    @property
    def sparse(self) -> bool:
        return self.filled < SPARSE

    def scale(self, rows: Any) -> Reals:
        """Infer from sizes what the rows were multiplied by; NaN if unknown."""
        scale = np.full(rows.shape[0], np.nan)
        full = np.diff(rows.indptr) > 0
        for name, size in list(self.sizes.items())[:1]:
            scale[full] = row_sizes(rows[full], name) / size
        return scale


def row_sizes(x: Any, measure: str) -> Reals:
    """Compute the size of every row, `[rows]`; none of them is empty."""
    values = np.abs(x.data).astype(np.float64)
    if measure == "largest":
        return np.maximum.reduceat(values, x.indptr[:-1])
    if measure == "norm":
        return np.sqrt(np.add.reduceat(values**2, x.indptr[:-1]))
    return np.add.reduceat(values, x.indptr[:-1])


@dataclass(frozen=True, eq=False)
class Knowledge:
    """What the colluders know of one victim.

    The V nodes are those of the victim in the colluders' borders. Hop l is the exchange that carries sums of
    beta_v h_v^(l-1).

    Arguments:
        ids: ids of the nodes, `[V]`.
        joined: B, the edges between the colluders' nodes that got a message and the nodes, `[messages, V]`.
        messages: what the colluders received, by hop, `[messages, features]`: B times the rows beta_v h_v.
        sent: what the colluders sent for the nodes, by hop, `[V, features]`.
        edges: for each node, the total weight of its edges over which the colluders sent something, `[V]`; a part of
            its degree.
        law: the law of the colluders' own features.
        unweighted: whether edges have no weights, so that degrees are integers.
        diffusion: the rules of the propagation, known to all.
    """

    ids: Ints
    joined: Any
    messages: tuple[Any, ...]
    sent: tuple[Any, ...]
    edges: Reals
    law: Law
    unweighted: bool
    diffusion: Diffusion

    @property
    def features(self) -> int:
        return int(self.messages[0].shape[1])

    @property
    def has_second_hop(self) -> bool:
        """Whether a second hop reveals degrees: beta gamma = 1 / (1 + d), and not everything is restart."""
        exponent, restart = self.diffusion.left + self.diffusion.right, self.diffusion.restart
        return len(self.messages) > 1 and abs(exponent + 1) < 1e-9 and restart < 1

    def beta(self, degree: Reals) -> Reals:
        """Compute the factor of nodes with these degrees before they are summed."""
        return (1 + degree) ** self.diffusion.right

    def share(self, degree: Reals) -> Reals:
        """Compute beta gamma, the factor of a sum from one hop to the next."""
        return (1 + degree) ** (self.diffusion.left + self.diffusion.right)

    def beta_and_degree(self, products: Any) -> tuple[Reals, Reals]:
        """Infer beta and degree of rows beta_v x_v from the law's sizes; NaN if unknown."""
        unknown = np.full(products.shape[0], np.nan)
        if self.diffusion.right == 0:
            return np.ones(products.shape[0]), unknown
        beta = self.law.scale(products)
        with np.errstate(over="ignore"):
            degree = self.plausible(beta ** (1 / self.diffusion.right) - 1)
        return np.where(np.isnan(degree), np.nan, beta), degree

    def plausible(self, degree: Reals) -> Reals:
        """Replace impossible degrees by NaN: degrees cover the edges that the colluders know, and without weights they
        are integers."""
        near, fewest = np.round(degree) if self.unweighted else degree, float(self.edges.min())
        with np.errstate(invalid="ignore"):
            good = (np.abs(degree - near) < RTOL * (1 + near)) & (near >= fewest * (1 - RTOL))
            return np.where(good, np.abs(near), np.nan)


Mail = Mapping[tuple[str, str], Sequence[tuple[Ints, Any]]]
"""By sender and addressee, for every hop: ids of the addressee's nodes, and the sums for them."""


def collect_mail(letters: Iterable[Letter], action: str = "propagate") -> Mail:
    """Collect the messages of a propagation, in the order of hops, as matrices."""
    mail: dict[tuple[str, str], list[tuple[Ints, Any]]] = defaultdict(list)
    for letter in letters:
        if letter.action == action:
            sums = csr_array(matrices.from_tensor(matrices.unpack(letter.payload))).astype(np.float64)
            mail[letter.sender, letter.addressee].append((letter.payload["ids"].numpy(), sums))
    return mail


def knowledge_of(
    victim: str, colluders: Sequence[Party], mail: Mail, diffusion: Diffusion, law: Law
) -> Knowledge | None:
    """Gather what these parties know of the victim; None if it sent them nothing.

    Arguments:
        mail: all messages; only those between the victim and the colluders are used.
        law: the law of the colluders' own features.
    """
    borders = [border for border in (_Border.to(victim, party) for party in colluders) if border is not None]
    received = [border for border in borders if (victim, border.party) in mail]
    if not received:
        return None
    ids, node = np.unique(np.concatenate([border.outer for border in borders]), return_inverse=True)
    weights = np.concatenate([_used_weights(border, mail.get((border.party, victim))) for border in borders])
    ends = np.cumsum([0, *[border.outer.size for border in borders]])
    rows, columns, values, messages = [], [], [], 0
    for position, border in enumerate(borders):
        if (victim, border.party) not in mail:
            continue
        receivers = mail[victim, border.party][0][0]
        row, among = _find(receivers, border.inner)
        rows.append(messages + row)
        columns.append(node[ends[position] : ends[position + 1]][among])
        values.append(border.weight[among])
        messages += receivers.size
    joined = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
    hops = range(diffusion.hops)
    sums = [vstack([mail[victim, border.party][hop][1] for border in received], format="csr") for hop in hops]
    answers = [mail[border.party, victim] for border in borders if (border.party, victim) in mail]
    return Knowledge(
        ids=ids,
        joined=coo_array(joined, shape=(messages, ids.size)).tocsr(),
        messages=tuple(map(csr_array, sums)),
        sent=tuple(_sent(ids, answers, hop, sums[0].shape[1]) for hop in hops),
        edges=np.bincount(node, weights).astype(np.float64),
        law=law,
        unweighted=all(border.unweighted for border in borders),
        diffusion=diffusion,
    )


@dataclass(frozen=True, eq=False)
class _Border:
    """A party's edges to another party: ids of its own and of the other's nodes, and weights."""

    party: str
    inner: Ints
    outer: Ints
    weight: Reals
    unweighted: bool

    @classmethod
    def to(cls, other: str, party: Party) -> _Border | None:
        border = party.border
        if border is None or party.ids is None or other not in border.owners:
            return None
        across = border.owner == border.owners.index(other)
        weight = np.ones(int(across.sum())) if border.weight is None else border.weight[across].double().numpy()
        inner, outer = party.ids[border.inner[across]].numpy(), border.outer[across].numpy()
        return cls(party.name, inner, outer, weight, border.weight is None)


def _used_weights(border: _Border, sent: Sequence[tuple[Ints, Any]] | None) -> Reals:
    """Return the weights of a border's edges, 0 if the party sent nothing for the node at the other end."""
    return border.weight * np.isin(border.outer, sent[0][0]) if sent else np.zeros_like(border.weight)


def law_of(party: Party) -> Law:
    """Find the law of a party's features."""
    return Law.of(csr_array(matrices.from_tensor(party.graph.x)))


def _find(among: Ints, ids: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Find ids among others: the positions of those that are there, and which are."""
    order = np.argsort(among)
    ranks = np.searchsorted(among, ids, sorter=order).clip(max=among.size - 1)
    present = among[order[ranks]] == ids
    return order[ranks[present]], present


def _sent(ids: Ints, mail: Sequence[Sequence[tuple[Ints, Any]]], hop: int, features: int) -> Any:
    """Add up by node what was sent for the victim's nodes in one hop, `[V, features]`."""
    if not mail:
        return csr_array((ids.size, features))
    row, _ = _find(ids, np.concatenate([letters[hop][0] for letters in mail]))
    add = coo_array((np.ones(row.size), (row, np.arange(row.size))), shape=(ids.size, row.size)).tocsr()
    return csr_array(add @ vstack([letters[hop][1] for letters in mail], format="csr"))
