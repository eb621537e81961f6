"""The size, labels and borders of each party of a cut, for the table before the results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any, TypeAlias

import torch
from torch import Tensor

from isthmus.data import rows
from isthmus.data.cohort import check_compatible
from isthmus.data.description import CutDescription, LabelKind, PartyDescription
from isthmus.data.party import SPLITS, Party
from isthmus.data.skew import earth_movers

_Labels: TypeAlias = tuple[LabelKind, dict[str, list[Any]], float | None]


def note_on_splits(parties: Sequence[Party], why: str) -> str:
    """Say how many parties have a split without a class that the party holds; nothing if none has.

    Arguments:
        why: what decides on the splits, or how to decide on them.
    """
    lacking: dict[str, int] = {}
    for party in parties:
        y = party.graph.y
        for split in SPLITS if y.dim() == 1 and not y.is_floating_point() else ():
            in_split = y[getattr(party, split)]
            if in_split.numel() and in_split[in_split >= 0].unique().numel() < y[y >= 0].unique().numel():
                lacking[split] = lacking.get(split, 0) + 1
    if not lacking:
        return ""
    counts = ", ".join(f"'{split}' at {count:,} of {len(parties):,} parties" for split, count in lacking.items())
    return f"Note: a split lacks a class that the party has: {counts} ({why})."


def describe(
    parties: Sequence[Party], classes: int | None = None, note: str = "", labels: tuple[str, ...] = ()
) -> CutDescription:
    """Count what each party of a cut holds.

    Arguments:
        classes: how many classes there are, where the parties' labels do not show the last of them.
        note: a sentence about the data, as a `Pool` has it.
        labels: names of the classes or tasks, likewise.

    >>> from isthmus.data.datasets.banks import Banks
    >>> from isthmus.data.partition.labels import Random
    >>> cut = describe(Random().cut(Banks(nodes=100).load(seed=0), 3, seed=0))
    >>> cut.nodes, [party.items for party in cut.parties]
    (100, [34, 33, 33])
    """
    check_compatible(parties)
    held = [party.nodes for party in parties]
    items = held if parties[0].level == "node" else [party.items for party in parties]
    y = torch.cat([party.graph.y for party in parties])
    of_tasks = y.is_floating_point() or y.dim() > 1
    kind, of_labels, emd = _of_tasks(y, items) if of_tasks else _of_classes(y, items, classes)
    of_labels["unlabelled"] = [
        count - _of_other_types(party) for count, party in zip(of_labels["unlabelled"], parties, strict=True)
    ]
    shared, nodes = _ids(parties, held)
    columns = {
        "items": items,
        "nodes": held,
        "edges": [party.edges for party in parties],
        "cross": [0 if party.border is None else len(party.border.arriving) for party in parties],
        "shared": shared.tolist(),
        **{split: _sums(torch.cat([getattr(party, split) for party in parties]), items).tolist() for split in SPLITS},
        **of_labels,
    }
    described = tuple(
        PartyDescription(party.name, **{key: column[at] for key, column in columns.items()})
        for at, party in enumerate(parties)
    )
    edges, cross = sum(columns["edges"]), sum(columns["cross"])
    structural = 0 if parties[0].structural is None else parties[0].structural.numel()
    sizes = {"features": parties[0].features, "structural": structural}
    return CutDescription(parties[0].level, kind, described, nodes, edges, cross, emd, note, labels, **sizes)


def _of_other_types(party: Party) -> int:
    """Count the nodes whose type has no labels."""
    labelled = party.labelled_type if party.level == "node" else None
    return 0 if labelled is None else int((~labelled).sum())


def _of_classes(y: Tensor, items: Sequence[int], classes: int | None) -> _Labels:
    """The kind, the columns, and the earth mover's distance of labels that are classes."""
    width = max(classes or 0, int(y.max()) + 1)
    party, known = rows.party_of_rows(items, y.device), y >= 0
    counts = torch.bincount(party[known] * width + y[known], minlength=len(items) * width).view(len(items), width)
    unlabelled = (torch.tensor(items) - counts.sum(1)).tolist()
    emd = earth_movers(counts) if bool(known.any()) else None
    return ("class", {"labels": _tuples(counts), "unlabelled": unlabelled}, emd)


def _of_tasks(y: Tensor, items: Sequence[int]) -> _Labels:
    """As `_of_classes`, for labels that are yes or no, or measured values."""
    y = y.reshape(y.size(0), -1)
    known = ~y.isnan() if y.is_floating_point() else y >= 0
    y = y.double().masked_fill(~known, 0.0)
    labelled = _sums(known, items)
    columns = {"labelled": _tuples(labelled), "unlabelled": _sums(~known.any(1), items).tolist()}
    if not bool(((y == 0) | (y == 1)).all()):
        means = rows.sum_per_party(y, items) / labelled
        finite = [tuple(value if math.isfinite(value) else None for value in row) for row in means.tolist()]
        return ("value", {**columns, "means": finite}, None)
    yes = rows.sum_per_party(y, items).long()
    tasks = [task for task, count in enumerate(labelled.sum(0).tolist()) if count]
    distances = [earth_movers(torch.stack([labelled[:, task] - yes[:, task], yes[:, task]], 1)) for task in tasks]
    return ("yes-no", {**columns, "labels": _tuples(yes)}, fmean(distances) if distances else None)


def _ids(parties: Sequence[Party], nodes: Sequence[int]) -> tuple[Tensor, int]:
    """The number of each party's nodes that others hold too, `[parties]`, and the number of different nodes."""
    if parties[0].level == "graph":
        return torch.zeros(len(parties), dtype=torch.long), sum(nodes)
    ids = [party.ids for party in parties if party.ids is not None]
    sizes = [0 if party.ids is None else count for party, count in zip(parties, nodes, strict=True)]
    without_ids = sum(nodes) - sum(sizes)
    if not ids:
        return torch.zeros(len(parties), dtype=torch.long), without_ids
    _, which, holders = torch.unique(torch.cat(ids), return_inverse=True, return_counts=True)
    return _sums(holders[which] > 1, sizes), without_ids + holders.numel()


def _sums(mask: Tensor, sizes: Sequence[int]) -> Tensor:
    return rows.sum_per_party(mask.long(), sizes)


def _tuples(counts: Tensor) -> list[tuple[int, ...]]:
    return [tuple(row) for row in counts.tolist()]
