"""Several sets of small graphs, one per party."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any, ClassVar

import torch
from pydantic import AfterValidator, Field
from torch import Tensor
from torch_geometric.data import Data

from isthmus.data import rows
from isthmus.data.datasets.by_party import Loader, Moderator, PartyData
from isthmus.data.level import Level
from isthmus.data.party import SPLITS, Party
from isthmus.data.pool import DataSet, Pool
from isthmus.errors import IsthmusError


def read_set(each: str | dict[str, Any]) -> DataSet:
    """A data set from its name, or from a table with its name and options."""
    table = {"name": each} if isinstance(each, str) else each
    if not isinstance(table.get("name"), str):
        raise IsthmusError(f"data 'several': give every set a 'name' (a text), {table} has none")
    kind = DataSet.named(table["name"])
    return kind.read({key: value for key, value in table.items() if key != "name"}, f"data '{kind.name}'")


def _checked(sets: list[str | dict[str, Any]]) -> list[str | dict[str, Any]]:
    for each in sets:
        read_set(each)
    return sets


class Several(PartyData):
    """Several sets of small graphs, one party each: do parties learn from graphs of another kind?

    Sets with one encoding (molecules; graphs with degrees as features) share their feature columns; each other set has
    columns of its own. The classes of a set are numbered after those of the sets before it. Sets with several tasks
    keep their own tasks, and their graphs have no label for the tasks of the others.

    >>> pool = Several(sets=["motifs", {"name": "motifs", "features": 4}]).load(seed=0)
    >>> [(party.name, party.items) for party in pool.parties], pool.party.features, pool.classes
    ([('motifs', 300), ('motifs-2', 300)], 12, 6)
    """

    name: ClassVar[str] = "several"

    sets: Annotated[list[str | dict[str, Any]], AfterValidator(_checked)] = Field(min_length=1)
    """The sets: names, or tables with a name and options. A party has the name of its set, or its `title`."""

    def party_sizes(self) -> Sequence[int]:
        return [1] * len(self.sets)

    def loader(self, chosen: Sequence[int], seed: int) -> Loader:
        sets = [read_set(self.sets[at]) for at in chosen]
        pools = [each.load(seed) for each in sets]
        layouts: Sequence[Layout] = yield [_card(*each) for each in zip(sets, pools, strict=True)]
        return [_party(layouts[at], pool.party) for at, pool in zip(chosen, pools, strict=True)]

    def moderator(self) -> Moderator:
        cards: list[Card] = yield None
        sets = [read_set(each) for each in self.sets]
        names = unique_names(
            [getattr(each, "title", "") if "title" in type(each).model_fields else each.name for each in sets]
        )
        self._check(names, cards)
        columns, width, structural = column_starts(cards)
        labels = [0, *accumulate(card.classes for card in cards)]
        sparse = any(card.sparse for card in cards)
        parties = yield [
            Layout(name, columns[card.encoding], width, sparse, structural, first, labels[-1])
            for name, card, first in zip(names, cards, labels, strict=False)
        ]
        smiles = [card.smiles for card in cards]
        return Pool(
            None,
            labels[-1],
            parties=tuple(parties),
            smiles=tuple(text for each in smiles if each for text in each) if all(smiles) else None,
            note=" ".join(f"{name}: {card.note}" for name, card in zip(names, cards, strict=True) if card.note),
        )

    def _check(self, names: Sequence[str], cards: Sequence[Card]) -> None:
        """Refuse sets that do not fit together, and name the encoding of those that share none."""
        first: dict[str, tuple[str, int]] = {}
        for at, (name, card) in enumerate(zip(names, cards, strict=True)):
            if card.level != "graph":
                raise IsthmusError(f"data 'several': '{name}' is one graph: give sets of many graphs")
            if card.labels != cards[0].labels:
                raise IsthmusError(
                    f"data 'several': '{name}' has {card.labels} and '{names[0]}' {cards[0].labels}: "
                    "give sets of one kind of labels"
                )
            card.encoding = card.encoding or f"set {at}"
            other, width = first.setdefault(card.encoding, (name, card.features))
            if width != card.features:
                raise IsthmusError(
                    f"data 'several': '{name}' has {card.features} features and '{other}' {width}, both encoded as "
                    f"'{card.encoding}': give them the same options"
                )


@dataclass
class Card:
    """What the others must know of a set.

    Attributes:
        encoding: that sets share; empty if it shares none.
        structural: see `Party`.
    """

    level: Level
    labels: str
    classes: int
    features: int
    sparse: bool
    encoding: str = ""
    structural: Tensor | None = None
    smiles: tuple[str, ...] | None = None
    note: str = ""


@dataclass(frozen=True)
class Layout:
    """Where the columns and the labels of a set are among those of all.

    Attributes:
        column, label: the first of its own.
        width, labels: numbers of all.
        sparse: features are, because those of some set are.
        structural: of all columns those that follow from the edges.
    """

    name: str
    column: int
    width: int
    sparse: bool
    structural: Tensor
    label: int
    labels: int


def _card(each: DataSet, pool: Pool) -> Card:
    party = pool.party
    return Card(
        party.level, label_kind(party.graph.y), pool.classes, party.features, rows.is_sparse(party.graph.x),
        getattr(each, "shared_encoding", str)(), party.structural, pool.smiles, pool.note,
    )  # fmt: skip


def column_starts(cards: Sequence[Card]) -> tuple[dict[str, int], int, Tensor]:
    """The first column of each encoding, in order of appearance; how many columns there are; and the structural ones.

    >>> cards = [Card("graph", "classes", 2, width, False, str(width)) for width in (3, 2, 3)]
    >>> column_starts(cards)[:2]
    ({'3': 0, '2': 3}, 5)
    """
    of = {card.encoding: card for card in cards}
    ends = list(accumulate((card.features for card in of.values()), initial=0))
    starts = dict(zip(of, ends, strict=False))
    known = [starts[name] + card.structural for name, card in of.items() if card.structural is not None]
    return starts, ends[-1], torch.cat([torch.empty(0, dtype=torch.long), *known])


def label_kind(y: Tensor) -> str:
    """The kind of labels, in words.

    >>> label_kind(torch.tensor([0, 2])), label_kind(torch.tensor([[0.5], [torch.nan]]))
    ('classes', 'measured values')
    """
    if not y.is_floating_point():
        return "classes"
    return "labels of yes or no" if bool(((y == 0) | (y == 1) | y.isnan()).all()) else "measured values"


def unique_names(names: Sequence[str]) -> list[str]:
    """The names, with a number added to repeated ones.

    >>> unique_names(["tox", "bbbp", "tox"])
    ['tox', 'bbbp', 'tox-2']
    """
    unique: list[str] = []
    for name in names:
        numbers = (f"{name}-{number}" for number in range(2, len(names) + 2))
        unique.append(name if name not in unique else next(each for each in numbers if each not in (*unique, *names)))
    return unique


def widen(x: Tensor, start: int, width: int, *, sparse: bool) -> Tensor:
    """Features in the columns from `start` on, zeros in the others.

    >>> widen(torch.ones(1, 2), 1, 4, sparse=False).tolist()
    [[0.0, 1.0, 1.0, 0.0]]
    """
    if sparse:
        x = x if rows.is_sparse(x) else rows.to_csr(x)
        return rows.csr(x.crow_indices(), x.col_indices() + start, x.values(), (x.size(0), width))
    if x.size(1) == width:
        return x
    wide = x.new_zeros(x.size(0), width)
    wide[:, start : start + x.size(1)] = x
    return wide


def number_labels(y: Tensor, start: int, count: int) -> Tensor:
    """Labels whose classes (or tasks) are numbered from `start`; of `count` tasks the others are missing.

    >>> number_labels(torch.tensor([0, 2]), 3, 6).tolist()
    [3, 5]
    >>> number_labels(torch.tensor([[1.0]]), 1, 2).tolist()
    [[nan, 1.0]]
    """
    if not y.is_floating_point():
        return y + start
    own = y if y.dim() == 2 else y.unsqueeze(1)
    wide = own.new_full((own.size(0), count), torch.nan)
    wide[:, start : start + own.size(1)] = own
    return wide


def _party(layout: Layout, whole: Party) -> Party:
    x = widen(whole.graph.x, layout.column, layout.width, sparse=layout.sparse)
    y = number_labels(whole.graph.y, layout.label, layout.labels)
    weight, batch = whole.graph.get("edge_weight"), whole.graph.batch
    graph = Data(x=x, y=y, edge_index=whole.graph.edge_index, edge_weight=weight, batch=batch)
    masks = {split: getattr(whole, split) for split in SPLITS}
    return Party.of_batch(layout.name, graph, structural=layout.structural, **masks)
