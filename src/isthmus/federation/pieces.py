"""How many parties in one process are split into cohorts.

With thousands of parties the weights of one cohort fill more memory than a processor's caches hold, and every step
waits for memory. Pieces of some hundred parties are trained one after another instead; their answers are added up as
they come. A piece is an aligned block of positions, so its sum is a node of the tree of sums (`federation.sums`).
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.data.cohort import Cohort
from isthmus.data.party import Party

PARTIES = 512
"""Most parties of a piece: 10,000 parties with 20 nodes each train twice as fast as in one cohort, in half the memory.
The best number was between 256 and 1,024 for models of 64 and 256 hidden units."""
SORTED_FROM = 32
"""Parties of a piece from which they are sorted: among fewer, hardly two have equally many rows."""
NODES = 2**16
"""Most nodes of a piece, unless a single party has more: the rows of a layer then still fit into some megabytes."""


def pieces(parties: Sequence[Party], *, reach: int | None, first: int = 0) -> list[list[Party]]:
    """Split parties into the cohorts that train side by side; large ones are sorted by the rows of each training step.

    Parties of about equal size that follow each other share one matrix product.

    Arguments:
        reach: how many hops of edges an output row depends on (`PerParty.reach`); None: on all.
        first: position of the first party, if others come before.
    """
    found = []
    for piece in aligned([party.nodes for party in parties], PARTIES, NODES, first):
        of = [parties[at] for at in piece]
        if len(of) >= SORTED_FROM:
            rows = training_rows(of, reach=reach)
            of = [of[at] for at in sorted(range(len(of)), key=rows.__getitem__)]
        found.append(of)
    return found


def aligned(nodes: Sequence[int], most_parties: int, most_nodes: int, first: int = 0) -> list[range]:
    """The largest blocks of positions [k 2^l, (k + 1) 2^l) within the limits, in order, as ranges of `nodes`.

    Arguments:
        first: position of the first party, if others come before.

    >>> aligned((1,) * 7, most_parties=4, most_nodes=99)
    [range(0, 4), range(4, 7)]
    >>> aligned((1, 1, 1, 9, 1, 1), most_parties=4, most_nodes=8)
    [range(0, 2), range(2, 3), range(3, 4), range(4, 6)]
    >>> aligned((1,) * 5, most_parties=4, most_nodes=99, first=3)
    [range(0, 1), range(1, 5)]
    """
    before = [0]
    for count in nodes:
        before.append(before[-1] + count)
    found: list[range] = []

    def split(block: int, width: int) -> None:
        start, stop = max(0, block - first), min(block + width - first, len(nodes))
        if start >= stop:
            return
        if width == 1 or (stop - start <= most_parties and before[stop] - before[start] <= most_nodes):
            found.append(range(start, stop))
        else:
            split(block, width // 2)
            split(block + width // 2, width // 2)

    split(0, 1 << max(0, first + len(nodes) - 1).bit_length())
    return found


def training_rows(parties: Sequence[Party], *, reach: int | None) -> list[tuple[int, ...]]:
    """How many rows each party's model has in a step on all its training items: at one hop from them, and in all."""
    if parties[0].level == "graph":
        return [(int(party.train[party.graph.batch].sum()),) for party in parties]
    if parties[0].level == "pair" or reach is None:
        return [(party.nodes,) for party in parties]
    cohort = Cohort(tuple(parties))
    hops = [min(1, reach), reach]
    return list(zip(*(cohort.around_training(each, trims=False)[0].sizes for each in hops), strict=True))
