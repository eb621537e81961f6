"""What colluding parties know of a victim once FedCog has propagated: what is theirs, and what came to them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
ALIKE = 1e-4
"""Relative difference up to which numbers that were computed in single precision count as the same."""
SPARSE = 0.25
"""Share of entries that are not zero below which features count as sparse."""
FEW = 3
"""Of fewer rows than this all is alike by chance: they make no law."""
MEASURES = ("sum", "norm", "largest")
"""How large a row is: the sum of its entries, its Euclidean norm, its largest entry; signs do not count."""


@dataclass(frozen=True)
class Law:
    """What is true of feature rows: the colluders know it of their own and guess that the victim's are like them.

    Arguments:
        nonnegative: no entry is below zero.
        flat: the entries of a row that are not zero are the same, as in a bag of words that tells yes from no.
        sizes: by measure the size of all rows, where they have the same one.
        rows, filled: how many rows that are not empty, and what share of their entries is not zero.
    """

    nonnegative: bool = False
    flat: bool = False
    sizes: Mapping[str, float] | None = None
    rows: int = 0
    filled: float = 1.0

    @classmethod
    def of(cls, x: Any) -> Law:
        """The law of these rows; empty ones obey any.

        >>> law = Law.of(csr_array([[0.5, 0.5, 0, 0], [0, 0, 1, 0]]))
        >>> law.flat, law.sizes
        (True, {'sum': 1.0})
        """
        x = x[np.diff(x.indptr) > 0]
        if not x.shape[0]:
            return cls()
        found = {measure: measured(x, measure) for measure in MEASURES}
        return cls(
            nonnegative=bool(x.data.min() >= 0),
            flat=bool(np.allclose(np.minimum.reduceat(np.abs(x.data), x.indptr[:-1]), found["largest"], rtol=ALIKE)),
            sizes={name: float(size.mean()) for name, size in found.items() if np.ptp(size) < ALIKE * size.mean()},
            rows=x.shape[0],
            filled=x.nnz / (x.shape[0] * x.shape[1]),
        )

    @classmethod
    def common(cls, laws: Iterable[Law]) -> Law:
        """What several have in common."""
        laws = [law for law in laws if law.rows]
        rows = sum(law.rows for law in laws)
        if rows < FEW:
            return cls(rows=rows)
        first = laws[0].sizes or {}
        same = {
            name: size
            for name, size in first.items()
            if all(name in (law.sizes or {}) and np.isclose((law.sizes or {})[name], size, rtol=ALIKE) for law in laws)
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
        """What the rows were multiplied by, as their sizes tell; not a number where that stays open."""
        scale = np.full(rows.shape[0], np.nan)
        full = np.diff(rows.indptr) > 0
        for name, size in list((self.sizes or {}).items())[:1]:
            scale[full] = measured(rows[full], name) / size
        return scale


def measured(x: Any, measure: str) -> Reals:
    """The size of every row, `[rows]`; none of them is empty."""
    values = np.abs(x.data).astype(np.float64)
    if measure == "largest":
        return np.maximum.reduceat(values, x.indptr[:-1])
    if measure == "norm":
        return np.sqrt(np.add.reduceat(values**2, x.indptr[:-1]))
    return np.add.reduceat(values, x.indptr[:-1])


@dataclass(frozen=True, eq=False)
class Knowledge:
    """What the colluders know of one victim.

    Nodes are those of the victim that the colluders' border shows; V of them. Hop l is the exchange that carries
    sums of beta_v h_v^(l-1).

    Arguments:
        ids: of the nodes, `[V]`.
        joined: B: edges between those of the colluders' nodes that a message came for and the nodes, `[messages, V]`.
        messages: by hop what came, `[messages, features]`: B times the rows beta_v h_v.
        sent: by hop what the colluders sent for the nodes, `[V, features]`.
        edges: weights of the edges between each node and the colluders over which they sent something, added up,
            `[V]`: a part of its degree.
        law: of the colluders' own features.
        whole: whether edges have no weights, so that degrees are whole numbers.
        diffusion: the rules, known to all.
    """

    ids: Ints
    joined: Any
    messages: tuple[Any, ...]
    sent: tuple[Any, ...]
    edges: Reals
    law: Law
    whole: bool
    diffusion: Diffusion

    @property
    def features(self) -> int:
        return int(self.messages[0].shape[1])

    @property
    def has_second_hop(self) -> bool:
        """Whether there is one that tells degrees: beta gamma = 1 / (1 + d), and not all is restart."""
        exponent, restart = self.diffusion.left + self.diffusion.right, self.diffusion.restart
        return len(self.messages) > 1 and abs(exponent + 1) < 1e-9 and restart < 1

    def beta(self, degree: Reals) -> Reals:
        """What nodes of these degrees are multiplied by before they are summed up."""
        return (1 + degree) ** self.diffusion.right

    def share(self, degree: Reals) -> Reals:
        """beta gamma: what a sum is multiplied by from one hop to the next."""
        return (1 + degree) ** (self.diffusion.left + self.diffusion.right)

    def scaled(self, products: Any) -> tuple[Reals, Reals]:
        """beta and degree of rows beta_v x_v, by what the law says of sizes; not a number where they stay open."""
        unknown = np.full(products.shape[0], np.nan)
        if self.diffusion.right == 0:
            return np.ones(products.shape[0]), unknown
        beta = self.law.scale(products)
        with np.errstate(over="ignore"):
            degree = self.plausible(beta ** (1 / self.diffusion.right) - 1)
        return np.where(np.isnan(degree), np.nan, beta), degree

    def plausible(self, degree: Reals) -> Reals:
        """Degrees that can be such, the others not a number: there are the edges that the colluders know, and without
        weights degrees are whole numbers."""
        near, fewest = np.round(degree) if self.whole else degree, float(self.edges.min())
        with np.errstate(invalid="ignore"):
            good = (np.abs(degree - near) < ALIKE * (1 + near)) & (near >= fewest * (1 - ALIKE))
            return np.where(good, np.abs(near), np.nan)


Mail = Mapping[tuple[str, str], Sequence[tuple[Ints, Any]]]
"""By sender and addressee: of every hop the ids of the addressee's nodes and the sums for them."""


def mail_of(letters: Iterable[Letter], action: str = "propagate") -> Mail:
    """The messages of a propagation in the order of the hops, as matrices."""
    mail: dict[tuple[str, str], list[tuple[Ints, Any]]] = defaultdict(list)
    for letter in letters:
        if letter.action == action:
            sums = csr_array(matrices.from_tensor(matrices.unpack(letter.payload))).astype(np.float64)
            mail[letter.sender, letter.addressee].append((letter.payload["ids"].numpy(), sums))
    return mail


def known_of(victim: str, colluders: Sequence[Party], mail: Mail, diffusion: Diffusion, law: Law) -> Knowledge | None:
    """What these parties know of the victim; none where nothing came from it.

    Arguments:
        mail: of all messages those between the victim and the colluders are looked at.
        law: of the colluders' own features.
    """
    borders = [border for border in (_Border.to(victim, party) for party in colluders) if border is not None]
    came = [border for border in borders if (victim, border.party) in mail]
    if not came:
        return None
    ids, node = np.unique(np.concatenate([border.outer for border in borders]), return_inverse=True)
    weights = np.concatenate([_heard(border, mail.get((border.party, victim))) for border in borders])
    ends = np.cumsum([0, *[border.outer.size for border in borders]])
    rows, columns, values, messages = [], [], [], 0
    for at, border in enumerate(borders):
        if (victim, border.party) not in mail:
            continue
        over = mail[victim, border.party][0][0]
        row, here = _places(over, border.inner)
        rows.append(messages + row)
        columns.append(node[ends[at] : ends[at + 1]][here])
        values.append(border.weight[here])
        messages += over.size
    joined = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
    hops = range(diffusion.hops)
    sums = [vstack([mail[victim, border.party][hop][1] for border in came], format="csr") for hop in hops]
    answers = [mail[border.party, victim] for border in borders if (border.party, victim) in mail]
    return Knowledge(
        ids=ids,
        joined=coo_array(joined, shape=(messages, ids.size)).tocsr(),
        messages=tuple(map(csr_array, sums)),
        sent=tuple(_sent(ids, answers, hop, sums[0].shape[1]) for hop in hops),
        edges=np.bincount(node, weights).astype(np.float64),
        law=law,
        whole=all(border.whole for border in borders),
        diffusion=diffusion,
    )


@dataclass(frozen=True, eq=False)
class _Border:
    """A party's edges to another's nodes: ids of its own and of the other's, and weights."""

    party: str
    inner: Ints
    outer: Ints
    weight: Reals
    whole: bool

    @classmethod
    def to(cls, other: str, party: Party) -> _Border | None:
        border = party.border
        if border is None or party.ids is None or other not in border.owners:
            return None
        across = border.owner == border.owners.index(other)
        weight = np.ones(int(across.sum())) if border.weight is None else border.weight[across].double().numpy()
        inner, outer = party.ids[border.inner[across]].numpy(), border.outer[across].numpy()
        return cls(party.name, inner, outer, weight, border.weight is None)


def _heard(border: _Border, sent: Sequence[tuple[Ints, Any]] | None) -> Reals:
    """The weights of a border's edges, 0 where the party sent nothing for the node at the other end."""
    return border.weight * np.isin(border.outer, sent[0][0]) if sent else np.zeros_like(border.weight)


def law_of(party: Party) -> Law:
    """The law of a party's own features."""
    return Law.of(csr_array(matrices.from_tensor(party.graph.x)))


def _places(among: Ints, ids: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Where ids stand among others, for those that do, and which do."""
    order = np.argsort(among)
    at = np.searchsorted(among, ids, sorter=order).clip(max=among.size - 1)
    found = among[order[at]] == ids
    return order[at[found]], found


def _sent(ids: Ints, mail: Sequence[Sequence[tuple[Ints, Any]]], hop: int, features: int) -> Any:
    """What was sent for the victim's nodes in one hop, added up by node, `[V, features]`."""
    if not mail:
        return csr_array((ids.size, features))
    row, _ = _places(ids, np.concatenate([letters[hop][0] for letters in mail]))
    add = coo_array((np.ones(row.size), (row, np.arange(row.size))), shape=(ids.size, row.size)).tocsr()
    return csr_array(add @ vstack([letters[hop][1] for letters in mail], format="csr"))
