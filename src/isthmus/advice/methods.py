"""Recommend methods for what parties have, from counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch

from isthmus.advice.counts import Counts
from isthmus.data.folder.reading import Contents
from isthmus.data.folder.shared_nodes import have_row_numbers
from isthmus.data.level import Level
from isthmus.data.skew import earth_movers, rare_class, rare_settings, rarest_class
from isthmus.errors import IsthmusError, flags_in_messages, format_options
from isthmus.methods.base import Method

LARGE = 0.5
"""The share of the items from which on one party of several has most of them."""
FEW = 20
"""Labelled items of a party below which a drawn split may leave it none to train on."""
RARELY = 0.01
"""The share of nodes up to which those that several parties hold may have equal ids by chance."""
UNLIKE = 0.5
"""The earth mover's distance from which on parties' labels count as different; it is below 2."""


@dataclass(frozen=True)
class Situation:
    """Counts of what parties have together.

    Attributes:
        items: nodes, or graphs.
        labelled: items with a label.
        crossing: edges to nodes of other parties.
        shared: nodes that several of these parties hold; None if unknown.
        classes: whether a label is one class; false for labels of several tasks.
        emd: the earth mover's distance of their labels; None if they are not classes.
        labels: labelled items of each class; empty if labels are not classes.
        largest: share of the items that the largest party has.
        typed: whether nodes are rows of several tables, which some methods refuse.
        directed: whether edges run one way only, which some refuse, too.
        fewest: labelled items of the party that has the fewest; a drawn split may leave it none to train on.
    """

    parties: int
    level: Level
    items: int
    labelled: int
    crossing: int
    shared: int | None
    classes: bool
    emd: float | None
    labels: tuple[int, ...] = ()
    largest: float = 0.0
    typed: bool = False
    directed: bool = False
    fewest: int = FEW

    @classmethod
    def of(cls, counts: Sequence[Counts], shared: int | None = None) -> Situation:
        """Add up the parties' counts; `shared` is the number of nodes that several of them hold."""
        if not counts:
            raise IsthmusError("there are no parties: give party folders, or files of isthmus party counts")
        if len({each.level for each in counts}) > 1:
            raise IsthmusError("some parties hold nodes and others graphs: run isthmus advise for each kind")
        names = [each.party for each in counts]
        if twice := next((name for at, name in enumerate(names) if name in names[:at]), None):
            raise IsthmusError(f"two parties with different counts are called '{twice}': give each its own name")
        return cls(
            parties=len(counts),
            level=counts[0].level,
            items=sum(each.items for each in counts),
            labelled=sum(each.labelled for each in counts),
            crossing=sum(each.crossing for each in counts),
            shared=0 if all(each.own_ids for each in counts) else shared,
            classes=counts[0].classes,
            emd=_distance([each.labels for each in counts if each.labels]),
            labels=tuple(map(sum, zip_longest(*(each.labels for each in counts), fillvalue=0))),
            largest=max(each.items for each in counts) / max(1, sum(each.items for each in counts)),
            typed=any(each.typed for each in counts),
            directed=any(each.directed for each in counts),
            fewest=min(each.labelled for each in counts),
        )

    def summary(self) -> str:
        """The situation in one line."""
        one = self.parties == 1
        what = "rows with labels of several tables" if self.typed else f"{self.level}s"
        parts = [f"{'1 party' if one else f'{self.parties:,} parties'} with {self.items:,} {what}"]
        parts.append(f"{self.labelled:,} labelled")
        if self.level == "node" and not self.typed:
            parts.append(f"{self.crossing:,} edges to nodes of others")
            parts.append(
                "nodes in common unknown" if self.shared is None else f"{self.shared:,} nodes at several of them"
            )
        if self.emd is not None and not one:
            parts.append(f"labels differ by {self.emd:.2f} of 2")
        return ", ".join(parts)

    def large_party(self) -> str:
        """A sentence on a party that has most of the items, and what to read and set then; empty if none has."""
        if self.parties < 3 or self.largest < LARGE:
            return ""
        return (
            f"the largest party has {self.largest:.0%} of the {self.level}s, so figures over all items are mostly its "
            "own: read the mean over parties and the worst party; averages of weights count a party by its training "
            "items, and all parties alike with --set weighting=even"
        )

    def one_way(self) -> str:
        """A sentence on what edges that run one way rule out; empty if they, or nothing else, rule it out."""
        if not (self.directed and self.crossing and self.labelled) or self.shared:
            return ""
        return (
            "methods for edges that cross between parties need edges that run both ways, and some of these run one "
            "way: to compare such methods, make the folders again without --directed"
        )

    def few_shared(self) -> str:
        """A sentence on nodes that several parties hold, where they are so few that ids may be equal by chance."""
        own = self.level == "node" and not self.typed and not self.crossing  # edges across need ids that parties share
        if not own or not self.shared or self.shared > RARELY * self.items:
            return ""
        return (
            f"only {self.shared:,} of {self.items:,} nodes are at several parties: if their ids are equal by chance, "
            "make the folders again with --ids own"
        )

    def rare_flags(self) -> str:
        """The flags of `isthmus run` by which a rare class counts; empty if none is rare."""
        if rarest_class(self.labels) is None:
            return ""
        with flags_in_messages():
            return format_options(rare_settings(self.labels))

    def rare_class(self, names: Sequence[str] = ()) -> str:
        """A sentence on the rarest class and what to do about it; empty if it is not rare.

        Arguments:
            names: of the classes, if they are known.
        """
        return rare_class(self.labels, names, self.rare_flags())


def shared_nodes(contents: Sequence[Contents]) -> int | None:
    """Count the nodes that several parties hold, by id.

    None if that is unknown: for a single party, and if ids look like row numbers of each party.
    """
    if len(contents) < 2 or have_row_numbers(contents):
        return None
    ids = [each.ids for each in contents if each.ids is not None]
    return int((torch.cat(ids).unique(return_counts=True)[1] > 1).sum()) if ids else 0


def _distance(counts: Sequence[Sequence[int]]) -> float | None:
    """The earth mover's distance of labels counted by class; None without counts."""
    if not counts:
        return None
    classes = max(map(len, counts))
    return earth_movers(torch.tensor([[*of, *[0] * (classes - len(of))] for of in counts]))


@dataclass(frozen=True)
class Row:
    """A row of the decision table: a kind of setting. Methods declare by its name, in `listing`, that they are for it.

    Attributes:
        has: what parties have, as the guide names it.
        why: why such methods fit a situation; empty if they do not.
        study: the table of `benchmarks/papers/guide` that shows the gain, if it is not called as the setting.
        wish: what users may want whatever their data are; such rows are advised last.
        caveat: what real data say against the advice.
    """

    setting: str
    has: str
    why: Callable[[Situation], str]
    study: str = ""
    wish: bool = False
    caveat: str = ""

    def methods(self) -> list[type[Method]]:
        """Those that it recommends, the first one first."""
        fit = (kind for kind in Method.known().values() if kind.listing.setting == self.setting and kind.listing.place)
        return sorted(fit, key=lambda kind: kind.listing.place)


def leaving(methods: Sequence[type[Method]]) -> str:
    """What leaves a party with these methods, beside sums of model weights."""
    return _by_method({kind.name: kind.listing.leaves for kind in methods})


def costs(methods: Sequence[type[Method]]) -> str:
    """What time these methods take, where that is far above federated averaging's; empty if it is not."""
    return _by_method({kind.name: kind.listing.costs for kind in methods})


def _by_method(texts: Mapping[str, str]) -> str:
    """Texts with the methods that they are about; a text of all methods stands alone."""
    names: dict[str, list[str]] = {}
    for name, text in texts.items():
        names.setdefault(text, []).append(name)
    if len(names) == 1:
        return next(iter(names))
    return "; ".join(f"{', '.join(own)}: {text}" for text, own in names.items() if text)


@dataclass(frozen=True)
class Advice:
    """Methods for a situation, why they fit, what leaves a party beside sums of weights, and what time they take."""

    methods: tuple[str, ...]
    why: str
    leaves: str
    costs: str = ""


ROWS = (
    Row(
        "coupled",
        "One graph each; every node has one owner; edges cross between parties",
        lambda s: (
            f"{s.crossing:,} edges lead to nodes of other parties; a party alone cannot follow them"
            if s.level == "node" and s.crossing and s.labelled
            else ""
        ),
    ),
    Row(
        "overlap",
        "One graph each; several parties hold the same nodes",
        lambda s: (
            f"several parties hold the same {s.shared:,} nodes and can combine what they know of them"
            if s.shared and s.labelled and s.classes
            else ""
        ),
    ),
    Row(
        "condensed",
        "One graph each; every node has one owner; you want a small graph that you can give away",
        lambda s: (
            "if you want to train models later, or elsewhere, on a synthetic graph instead of the parties' data"
            if s.level == "node" and s.labelled and s.classes
            else ""
        ),
        wish=True,
    ),
    Row(
        "secret-edges",
        "Many small graphs each, whose edges are secret",
        lambda s: "if a model must not reveal which edges a graph has" if s.level == "graph" and s.labelled else "",
        wish=True,
        caveat="first try a model that reads no edges, --encoder deepsets --set model.counts=true: on two of four sets "
        "of molecules it is as good, and spends nothing",
    ),
    Row(
        "unlabelled",
        "Many small graphs each, without labels",
        lambda s: (
            f"{s.items - s.labelled:,} of {s.items:,} graphs have no label: learn embeddings without labels"
            if s.level == "graph" and s.classes and 2 * s.labelled < s.items
            else ""
        ),
        caveat="compare with an encoder that is not trained: no gain over one is shown on real sets",
    ),
    Row(
        "labels",
        "Parties whose labels differ",
        lambda s: (
            f"labels differ by {s.emd:.2f} of 2, so models drift apart, which these correct; compare with local"
            if s.emd is not None and s.parties > 1 and s.emd >= UNLIKE
            else ""
        ),
    ),
    Row(
        "any",
        "None of the above",
        lambda s: "the baseline for all others" if s.labelled else "",
        study="coupled",
    ),
)
"""The first row that fits is the one to try first, apart from wishes."""


def advised(situation: Situation) -> Iterator[Advice]:
    """What fits a situation, without the methods that refuse nodes of several owners or types, or directed edges."""
    for row in sorted(ROWS, key=lambda row: row.wish):
        fit = [kind for kind in row.methods() if not (situation.shared and kind.disjoint)]
        fit = [kind for kind in fit if kind.typed or not situation.typed]
        fit = [kind for kind in fit if not (kind.both_ways and situation.directed)]
        if fit and (why := row.why(situation)):
            apart = situation.shared is None and all(kind.disjoint for kind in fit)
            condition = "only if no other party holds the same nodes, which is unknown here" if apart else ""
            why = "; ".join(filter(None, (why, condition, row.caveat)))
            yield Advice(tuple(kind.name for kind in fit), why, leaving(fit), costs(fit))


def flags(method: str) -> str:
    """Flags that `isthmus run` needs beside a method's name, if the default encoder or task does not fit it.

    >>> flags("fedcog"), flags("fclg"), flags("fedavg")
    ('--encoder sgc', '--set task.name=graph-clustering', '')
    """
    kind, found = Method.named(method), []
    if kind.encoder != Method.encoder:
        found.append(f"--encoder {kind.encoder}")
    if kind.unsupervised:
        found.append("--set task.name=graph-clustering")
    return " ".join(found)


def commands(situation: Situation, methods: Sequence[str], data: str) -> list[str]:
    """The commands that run methods on a folder, beside training alone and the default method where these can run."""
    alone = [name for name, kind in Method.known().items() if kind.role == "alone"]
    by_flags: dict[str, list[str]] = {}
    for name in methods:
        by_flags.setdefault(flags(name), []).append(name)
    found = []
    for more, names in by_flags.items():
        without_labels = any(Method.named(name).unsupervised for name in names)
        listed = names if without_labels else dict.fromkeys([*alone, Method.default_name(), *names])
        rare = "" if without_labels else situation.rare_flags()
        idle = "" if without_labels or situation.fewest >= FEW else "--unlabelled idle"
        more = more or ("--encoder hetero-sage" if situation.typed else "")
        found.append(
            " ".join(["isthmus run --data", data, "--method", ",".join(listed), *filter(None, (more, rare, idle))])
        )
    return found
