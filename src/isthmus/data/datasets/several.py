"""Several sets of small graphs, one per party."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, Any, ClassVar

import torch
from pydantic import AfterValidator, Field
from torch import Tensor
from torch_geometric.data import Data

from isthmus.data import rows
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


class Several(DataSet):
    """Several sets of small graphs, one party each: do parties learn from graphs of another kind?

    Sets with one encoding (molecules; graphs with degrees as features) share their feature columns; each other set has
    columns of its own. The classes of a set are numbered after those of the sets before it. Sets with several tasks
    keep their own tasks, and their graphs have no label for the tasks of the others.
    """

    name: ClassVar[str] = "several"

    sets: Annotated[list[str | dict[str, Any]], AfterValidator(_checked)] = Field(min_length=1)
    """The sets: names, or tables with a name and options. A party has the name of its set, or its `title`."""

    def load(self, seed: int) -> Pool:
        """One party per set.

        >>> pool = Several(sets=["motifs", {"name": "motifs", "features": 4}]).load(seed=0)
        >>> [(party.name, party.items) for party in pool.parties], pool.party.features, pool.classes
        ([('motifs', 300), ('motifs-2', 300)], 12, 6)
        """
        sets = [read_set(each) for each in self.sets]
        pools = [each.load(seed) for each in sets]
        wholes = [pool.party for pool in pools]
        names = unique_names(
            [getattr(each, "title", "") if "title" in type(each).model_fields else each.name for each in sets]
        )
        self._check(names, wholes)
        encodings = self._encodings(sets, names, wholes)
        x = concat_features([party.graph.x for party in wholes], encodings)
        structural = structural_columns(wholes, encodings)
        y = offset_labels([party.graph.y for party in wholes], [pool.classes for pool in pools])
        parties = [_party(*parts, structural) for parts in zip(names, wholes, x, y, strict=True)]
        smiles = [pool.smiles for pool in pools]
        return Pool(
            None,
            sum(pool.classes for pool in pools),
            parties=tuple(parties),
            smiles=tuple(text for each in smiles if each for text in each) if all(smiles) else None,
            note=" ".join(f"{name}: {pool.note}" for name, pool in zip(names, pools, strict=True) if pool.note),
        )

    def _check(self, names: Sequence[str], wholes: Sequence[Party]) -> None:
        kinds = [label_kind(party.graph.y) for party in wholes]
        for name, party, kind in zip(names, wholes, kinds, strict=True):
            if party.level != "graph":
                raise IsthmusError(f"data 'several': '{name}' is one graph: give sets of many graphs")
            if kind != kinds[0]:
                raise IsthmusError(
                    f"data 'several': '{name}' has {kind} and '{names[0]}' {kinds[0]}: give sets of one kind of labels"
                )

    def _encodings(self, sets: Sequence[DataSet], names: Sequence[str], wholes: Sequence[Party]) -> list[str]:
        encodings: list[str] = []
        widths: dict[str, tuple[str, int]] = {}
        for at, (each, name, party) in enumerate(zip(sets, names, wholes, strict=True)):
            shared = getattr(each, "shared_encoding", str)() or f"set {at}"
            other, width = widths.setdefault(shared, (name, party.features))
            if width != party.features:
                raise IsthmusError(
                    f"data 'several': '{name}' has {party.features} features and '{other}' {width}, both encoded as "
                    f"'{shared}': give them the same options"
                )
            encodings.append(shared)
        return encodings


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


def concat_features(matrices: Sequence[Tensor], encodings: Sequence[str]) -> list[Tensor]:
    """Features widened to the columns of all encodings, in order of appearance; sparse if any of them is.

    >>> [x.tolist() for x in concat_features([torch.ones(1, 2), torch.ones(1, 1)], ["a", "b"])]
    [[[1.0, 1.0, 0.0]], [[0.0, 0.0, 1.0]]]
    """
    widths = {encoding: x.size(1) for encoding, x in zip(encodings, matrices, strict=True)}
    if len(widths) == 1:
        return list(matrices)
    starts = dict(zip(widths, accumulate(widths.values(), initial=0), strict=False))
    width, sparse = sum(widths.values()), any(map(rows.is_sparse, matrices))
    return [_widen(x, starts[kind], width, sparse) for x, kind in zip(matrices, encodings, strict=True)]


def structural_columns(parties: Sequence[Party], encodings: Sequence[str]) -> Tensor:
    """Which of those columns follow from the edges, ascending."""
    of = dict(zip(encodings, parties, strict=True))
    starts = accumulate((party.features for party in of.values()), initial=0)
    known = [(start, party.structural) for start, party in zip(starts, of.values(), strict=False)]
    return torch.cat([torch.empty(0, dtype=torch.long), *(start + own for start, own in known if own is not None)])


def _widen(x: Tensor, start: int, width: int, sparse: bool) -> Tensor:
    """`x` in the columns from `start` on, zeros in the others."""
    if not sparse:
        wide = x.new_zeros(x.size(0), width)
        wide[:, start : start + x.size(1)] = x
        return wide
    x = x if rows.is_sparse(x) else rows.to_csr(x)
    return rows.csr(x.crow_indices(), x.col_indices() + start, x.values(), (x.size(0), width))


def offset_labels(labels: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
    """Labels whose classes (or tasks) are numbered after those before; `counts` has the number of each.

    >>> [y.tolist() for y in offset_labels([torch.tensor([0, 2]), torch.tensor([1])], [3, 2])]
    [[0, 2], [4]]
    """
    starts = list(accumulate(counts, initial=0))
    if not labels[0].is_floating_point():
        return [y + start for y, start in zip(labels, starts, strict=False)]
    widened = []
    for y, start in zip(labels, starts, strict=False):
        own = y if y.dim() == 2 else y.unsqueeze(1)
        wide = own.new_full((own.size(0), starts[-1]), torch.nan)
        wide[:, start : start + own.size(1)] = own
        widened.append(wide)
    return widened


def _party(name: str, whole: Party, x: Tensor, y: Tensor, structural: Tensor) -> Party:
    weight = whole.graph.get("edge_weight")
    graph = Data(x=x, y=y, edge_index=whole.graph.edge_index, edge_weight=weight, batch=whole.graph.batch)
    return Party.of_batch(name, graph, structural=structural, **{split: getattr(whole, split) for split in SPLITS})
