"""Which method for whom: what parties have, in totals, and the methods that are for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from isthmus.advice.counts import Counts
from isthmus.data.folder.reading import Contents
from isthmus.data.party import Level
from isthmus.data.skew import earth_movers
from isthmus.errors import IsthmusError
from isthmus.methods.base import Method

UNLIKE = 0.5
"""The earth mover's distance of parties' labels, below 2, from which on they are called unlike."""


@dataclass(frozen=True)
class Situation:
    """What parties have together: counts, of no row of theirs.

    Attributes:
        items: what is learned about: nodes, or graphs.
        labelled: items with a label.
        crossing: edges to nodes of other parties.
        shared: nodes that several of these parties hold; none where it is not known.
        classes: whether an item's label is one class, and not labels of several tasks.
        emd: the earth mover's distance of their labels; none where they are not one class each.
    """

    parties: int
    level: Level
    items: int
    labelled: int
    crossing: int
    shared: int | None
    classes: bool
    emd: float | None

    @classmethod
    def of(cls, counts: Sequence[Counts], shared: int | None = None) -> Situation:
        """Of some parties' counts, and of how many nodes they have in common."""
        if not counts:
            raise IsthmusError("there are no parties: give party folders, or files of isthmus party counts")
        if len({each.level for each in counts}) > 1:
            raise IsthmusError("some parties hold nodes and others graphs: advise them by kind")
        names = [each.party for each in counts]
        if twice := next((name for at, name in enumerate(names) if name in names[:at]), None):
            raise IsthmusError(f"two parties are called '{twice}' and have other counts: give each its own name")
        return cls(
            parties=len(counts),
            level=counts[0].level,
            items=sum(each.items for each in counts),
            labelled=sum(each.labelled for each in counts),
            crossing=sum(each.crossing for each in counts),
            shared=shared,
            classes=counts[0].classes,
            emd=_distance([each.labels for each in counts if each.labels]),
        )

    def said(self) -> str:
        """In a line."""
        one = self.parties == 1
        told = [f"{'1 party' if one else f'{self.parties:,} parties'} with {self.items:,} {self.level}s"]
        told.append(f"{self.labelled:,} labelled")
        if self.level == "node":
            told.append(f"{self.crossing:,} edges to nodes of others")
            told.append(
                "nodes in common unknown" if self.shared is None else f"{self.shared:,} nodes at several of them"
            )
        if self.emd is not None and not one:
            told.append(f"labels unlike by {self.emd:.2f} of 2")
        return ", ".join(told)


def shared_nodes(contents: Sequence[Contents]) -> int | None:
    """How many nodes several parties hold, by their ids; one party alone cannot know."""
    if len(contents) < 2:
        return None
    ids = [each.ids for each in contents if each.ids is not None]
    return int((torch.cat(ids).unique(return_counts=True)[1] > 1).sum()) if ids else 0


def _distance(counts: Sequence[Sequence[int]]) -> float | None:
    """Of the parties that have labels of one class each."""
    if not counts:
        return None
    classes = max(map(len, counts))
    return earth_movers(torch.tensor([[*of, *[0] * (classes - len(of))] for of in counts]))


@dataclass(frozen=True)
class Row:
    """A row of the decision table: a kind of setting. Methods declare by its name, in `listing`, that they are for it.

    Attributes:
        has: what parties have, as the guide names it.
        study: the table of `benchmarks/papers/guide` that shows the gain.
        why: why such methods fit a situation; nothing where they do not.
    """

    setting: str
    has: str
    study: str
    why: Callable[[Situation], str]

    def methods(self) -> list[type[Method]]:
        """Those that it recommends, the first one first."""
        fit = (kind for kind in Method.known().values() if kind.listing.setting == self.setting and kind.listing.place)
        return sorted(fit, key=lambda kind: kind.listing.place)


def leaving(methods: Sequence[type[Method]]) -> str:
    """What leaves a party with these methods, beside sums of model weights."""
    names: dict[str, list[str]] = {}
    for kind in methods:
        names.setdefault(kind.listing.leaves, []).append(kind.name)
    return (
        next(iter(names)) if len(names) == 1 else "; ".join(f"{', '.join(own)}: {text}" for text, own in names.items())
    )


@dataclass(frozen=True)
class Advice:
    """Methods for a situation, why they fit, and what leaves a party beside sums of model weights."""

    methods: tuple[str, ...]
    why: str
    leaves: str


ROWS = (
    Row(
        "coupled",
        "One graph each, nodes with one owner; edges lead to nodes of other parties",
        "coupled",
        lambda s: (
            f"{s.crossing:,} edges lead to nodes of other parties; each party by itself cannot follow them"
            if s.level == "node" and s.crossing and s.labelled
            else ""
        ),
    ),
    Row(
        "overlap",
        "One graph each; several parties hold the same nodes",
        "overlap",
        lambda s: (
            f"{s.shared:,} nodes are with several parties, and what each knows of them can be put together"
            if s.shared and s.labelled and s.classes
            else ""
        ),
    ),
    Row(
        "condensed",
        "One graph each, nodes with one owner; a small graph that may be handed out is wanted",
        "condensed",
        lambda s: (
            "where models are to be trained later, or by others: on a synthetic graph in place of the parties' data"
            if s.level == "node" and s.labelled and s.classes
            else ""
        ),
    ),
    Row(
        "secret-edges",
        "Many small graphs each, whose edges are secret",
        "secret-edges",
        lambda s: (
            "where it must not be told from a model which edges a graph has"
            if s.level == "graph" and s.labelled
            else ""
        ),
    ),
    Row(
        "unlabelled",
        "Many small graphs each, without labels",
        "unlabelled",
        lambda s: (
            f"{s.items - s.labelled:,} of {s.items:,} graphs have no label: embeddings are learned without"
            if s.level == "graph" and s.classes and 2 * s.labelled < s.items
            else ""
        ),
    ),
    Row(
        "labels",
        "Labels of different kinds at each party",
        "labels",
        lambda s: (
            f"labels are unlike by {s.emd:.2f}: models drift apart, which these correct; compare with local"
            if s.emd is not None and s.parties > 1 and s.emd >= UNLIKE
            else ""
        ),
    ),
    Row(
        "any",
        "Nothing of this",
        "coupled",
        lambda s: "what all others are to be compared with" if s.labelled else "",
    ),
)
"""From what parties have most in common to what they have least."""


def advised(situation: Situation) -> Iterator[Advice]:
    """What fits a situation, without the methods that refuse nodes with several owners where there are such nodes."""
    for row in ROWS:
        fit = [kind for kind in row.methods() if not (situation.shared and kind.disjoint)]
        if fit and (why := row.why(situation)):
            yield Advice(tuple(kind.name for kind in fit), why, leaving(fit))


def flags(method: str) -> str:
    """What `isthmus run` is told beside a method's name, for one that a study with no further word cannot train.

    >>> flags("fedcog"), flags("fclg"), flags("fedavg")
    ('--encoder sgc', '--set task.name=graph-clustering', '')
    """
    kind, told = Method.named(method), []
    if kind.encoder != Method.encoder:
        told.append(f"--encoder {kind.encoder}")
    if kind.unsupervised:
        told.append("--set task.name=graph-clustering")
    return " ".join(told)
