"""The numbers of a cut: what each party holds, and how much labels differ between parties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from isthmus.data.level import Level

LabelKind = Literal["class", "yes-no", "value"]
"""The kind of labels: one of several classes; yes or no per task; or a measured value per task."""
FEW = 10
"""A score of fewer test items is mostly chance."""


@dataclass(frozen=True)
class PartyDescription:
    """The numbers of one party.

    Attributes:
        items: labelled things: its nodes, its graphs, or pairs with its nodes.
        edges: directed edges between its own nodes.
        cross: edges of its border, from nodes of other parties.
        shared: its nodes that other parties hold too (with the same id).
        train, val, test: items in each split.
        unlabelled: items without any label.
        labels: items of each class; for yes-no labels the items with "yes", for each task.
        labelled: for labels with tasks, the items with a label, for each task.
        means: for measured values their mean, for each task; none for a task without labels.
    """

    name: str
    items: int
    nodes: int
    edges: int
    cross: int
    shared: int
    train: int
    val: int
    test: int
    unlabelled: int
    labels: tuple[int, ...] = ()
    labelled: tuple[int, ...] = ()
    means: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class CutDescription:
    """The numbers of all parties of a cut, and how much their labels differ.

    Attributes:
        kind: the kind of labels.
        nodes: different nodes; one that several parties hold counts once.
        edges, cross: sums over the parties.
        emd: the earth mover's distance of the parties' labels (see `earth_movers`), the mean over tasks; none for
            measured values and without labels.
        note: a sentence about the data.
        labels: names of the classes, or of the tasks, if they have any.
        features, structural: how many features a node has, and how many of these follow from the edges.
    """

    level: Level
    kind: LabelKind
    parties: tuple[PartyDescription, ...]
    nodes: int
    edges: int
    cross: int
    emd: float | None = None
    note: str = ""
    labels: tuple[str, ...] = ()
    features: int = 0
    structural: int = 0

    def label(self, at: int) -> str:
        """The name of a class or task."""
        return self.labels[at] if at < len(self.labels) else f"{'class' if self.kind == 'class' else 'task'} {at}"

    @property
    def crossing(self) -> float:
        """Share of the edges that cross between parties."""
        return self.cross / max(1, self.edges + self.cross)

    @property
    def split_note(self) -> str:
        """A sentence on parties that have no item in a split, or none to train, validate or test; empty if all have.

        It says if a party's score, and so perhaps the worst party's, rests on few test items.
        """
        held = [party for party in self.parties if party.train + party.val + party.test]
        idle = [party.name for party in self.parties if not party.train + party.val + party.test]
        lacks = [f"no item in any split at {few_names(idle)}"] if held and idle else []
        lacks += [
            f"no {name} item at {few_names(without)}"
            for split, name in (("train", "training"), ("test", "test"), ("val", "validation"))
            if 0 < len(without := [party.name for party in held if not getattr(party, split)]) < len(held)
        ]
        if not lacks:
            return ""
        tested = [party for party in held if party.test]
        smallest = min(tested, key=lambda party: party.test, default=None)
        few = f"; scores of parties rest on few test items, {smallest.name} has {smallest.test}" if smallest else ""
        return f"there is {' and '.join(lacks)}{few if smallest and smallest.test < FEW else ''}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: without empty fields, and with the share of crossing edges."""
        whole = {**vars(self), "crossing": self.crossing}
        if not self.labels:
            del whole["labels"]
        parties = [{key: value for key, value in vars(party).items() if value != ()} for party in whole.pop("parties")]
        return {**whole, "parties": parties}


def few_names(names: Sequence[str]) -> str:
    """Return the first three names, and how many more there are.

    >>> few_names(["a", "b", "c", "d"])
    'a, b, c and 1 more'
    """
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
