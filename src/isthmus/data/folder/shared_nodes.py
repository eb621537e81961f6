"""Nodes that several parties hold: whether what the parties say of them fits together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from isthmus.data.folder.problems import Problem, at_rows
from isthmus.data.folder.reading import Contents

DISAGREE = 0.01
"""Share of shared ids with other features or labels from which on running numbers are taken for row numbers."""
ROW_NUMBERS = (
    "ids are numbered in order, and the same id has other features or labels at another party: if each party numbers "
    'its own rows, set ids = "own" at all parties (isthmus party new --ids own); if they are the same nodes, '
    'ids = "shared"'
)


def problems_of_shared_nodes(usable: dict[Path, Contents]) -> dict[Path, list[Problem]]:
    """Return contradictions about nodes that several parties hold."""
    if len(usable) < 2:
        return {}
    parties = list(usable.values())
    sizes = [each.items for each in parties]
    _, node = torch.unique(torch.cat([each.item_ids for each in parties]), return_inverse=True)
    trains, drawn, held_out = torch.zeros(3, node.numel(), dtype=torch.bool)
    start = 0
    for contents in parties:
        rows = slice(start, start + contents.items)
        start += contents.items
        drawn[rows] = contents.splits is None
        if contents.splits is not None:
            trains[rows] = contents.splits["train"]
            held_out[rows] = contents.splits["val"] | contents.splits["test"]
    leaks = held_out & _at_any_party(trains, node)
    unassigned = drawn & _at_any_party(~drawn, node)
    masks = (leaks, unassigned, _with_other_labels(parties, node))
    leaked = "is held out here, but another party trains on it: use one split, or remove the column at all parties"
    unsplit = "has no split here, but at another party that holds it: give all parties a column 'split', or none"
    label = "has another label at another party"
    if not any(each.settings.tables or each.settings.partners for each in parties):  # these set it elsewhere, or cannot
        label += " (if ids are equal by chance: isthmus party new --ids own, at all)"
    numbered = row_numbers(parties)
    problems: dict[Path, list[Problem]] = {}
    for at, (folder, one, two, three) in enumerate(zip(usable, *(mask.split(sizes) for mask in masks), strict=True)):
        file, items = parties[at].settings.items_file, parties[at].settings.items_table
        problems[folder] = [
            Problem(f"{table}.parquet" if table else file, what, severe=table == items and bool((one | two).any()))
            for table, what in numbered[at].items()
        ]
        if items in numbered[at]:  # explains all others
            continue
        problems[folder] += [
            *at_rows(file, leaked, one.numpy()),
            *at_rows(file, unsplit, two.numpy()),
            *at_rows(file, label, three.numpy(), severe=False),
        ]
    return problems


def have_row_numbers(parties: Sequence[Contents]) -> bool:
    """Whether the ids of items look like row numbers that each party counts for itself."""
    return any(each.settings.items_table in found for each, found in zip(parties, row_numbers(parties), strict=True))


def row_numbers(parties: Sequence[Contents]) -> list[dict[str, str]]:
    """Return for each party its tables ("" for nodes.parquet) whose ids look like row numbers of its own, and why.

    They do if they are running numbers that begin like those of another party (`Contents.first_rows`), and an id that
    both have stands for something else there.
    """
    found: list[dict[str, str]] = [{} for _ in parties]
    for table in sorted({name for each in parties for name in each.first_rows}):
        for at, (shared, differ) in _row_numbers_in(table, parties).items():
            found[at][table] = ROW_NUMBERS
            if table:
                found[at][table] = (
                    f"keys are numbered in order, and of {shared:,} rows whose keys other parties have too, {differ:,} "
                    f'differ in their columns: if each party numbers its own rows, set ids = "own" in [tables.{table}] '
                    'at all parties; if they are the same rows, ids = "shared"'
                )
    return found


def _row_numbers_in(table: str, parties: Sequence[Contents]) -> dict[int, tuple[int, int]]:
    """Return by party how many of the first rows of a table others have too, and how many of these differ there."""
    rows = {at: each.first_rows[table] for at, each in enumerate(parties) if table in each.first_rows}
    starts = [int(each[0, 0]) for each in rows.values()]
    rows = {at: each for (at, each), start in zip(rows.items(), starts, strict=True) if starts.count(start) > 1}
    found: dict[int, tuple[int, int]] = {}
    if not rows:
        return found
    suspects, samples = {at: parties[at] for at in rows}, list(rows.values())
    ids, features = torch.cat(samples, dim=1)
    parts = [(ids, features, [each.size(1) for each in samples])]
    has_labels = all(each.settings.items_table == table for each in suspects.values())
    if has_labels and all(each.y.dim() == 1 for each in suspects.values()):
        known = [(each, each.labelled) for each in suspects.values()]
        ids, labels = (torch.cat([getattr(each, of)[mask] for each, mask in known]) for of in ("item_ids", "y"))
        parts.append((ids, labels, [int(mask.sum()) for _, mask in known]))
    for ids, values, sizes in parts:
        _, node, holders = torch.unique(ids, return_inverse=True, return_counts=True)
        masks = (holders > 1)[node], _differ(node, values)
        for at, shared, differ in zip(suspects, *(mask.split(sizes) for mask in masks), strict=True):
            if int(differ.sum()) > DISAGREE * int(shared.sum()):
                found.setdefault(at, (int(shared.sum()), int(differ.sum())))
    return found


def _at_any_party(mask: Tensor, node: Tensor) -> Tensor:
    """Return a mask of the rows whose node has the mask set in any row."""
    return torch.zeros(int(node.max()) + 1, dtype=torch.bool).index_put((node[mask],), torch.tensor(True))[node]


def _with_other_labels(parties: Sequence[Contents], node: Tensor) -> Tensor:
    """Return a mask of the labelled rows whose node has another class in another row."""
    mask = torch.zeros_like(node, dtype=torch.bool)
    if all(each.y.dim() == 1 for each in parties):
        y = torch.cat([each.y for each in parties])
        mask[y >= 0] = _differ(node[y >= 0], y[y >= 0])
    return mask


def _differ(node: Tensor, values: Tensor) -> Tensor:
    """Return a mask of the rows whose node has another value in another row."""
    nothing = torch.zeros(int(node.max()) + 1 if node.numel() else 0, dtype=torch.long)
    low = nothing.scatter_reduce(0, node, values, "amin", include_self=False)
    high = nothing.scatter_reduce(0, node, values, "amax", include_self=False)
    return (low < high)[node]
