"""Load parties from party folders, and check that the folders fit together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from isthmus.data.folder.encoding import Encoding
from isthmus.data.folder.problems import Problem, at_rows
from isthmus.data.folder.reading import Contents, check_folder
from isthmus.data.folder.settings import FILE
from isthmus.data.folder.table import EDGES, GRAPHS, NODES
from isthmus.data.ids import uniform
from isthmus.data.party import Party
from isthmus.data.pool import check_shares
from isthmus.errors import IsthmusError


def find_folders(path: Path) -> list[Path]:
    """Return the party folders at a path: the path itself, or those directly inside it, sorted by name.

    A folder with tables but without `party.toml` counts too, so that a forgotten `party.toml` is reported.
    """
    try:
        if not path.is_dir():
            raise IsthmusError(f"{path} is not a folder: give a party folder, or a folder of party folders")
        if _is_party(path):
            return [path]
        folders = sorted(each for each in path.iterdir() if each.is_dir() and _is_party(each))
    except OSError as error:
        raise IsthmusError(f"cannot read {path}: {error.strerror or error}; give a folder that can be read") from error
    if not folders:
        raise IsthmusError(f"{path} has no {FILE}, nor has a folder inside it: create one with isthmus party new")
    return folders


def _is_party(folder: Path) -> bool:
    return any((folder / file).exists() for file in (FILE, NODES, EDGES, GRAPHS))


def read_folders(path: Path, key: bytes | None = None) -> tuple[list[Contents], str]:
    """Return the contents of all party folders at a path, and a sentence about the first possible mistake in them.

    A severe problem is an error.
    """
    return accept(path, [(folder, *check_folder(folder, key)) for folder in find_folders(path)])


def accept(path: Path, checked: Sequence[tuple[Path, Contents | None, list[Problem]]]) -> tuple[list[Contents], str]:
    """As `read_folders`, of folders that are checked each for itself."""
    contents, problems = _check_together(checked)
    severe = [(folder, problem) for folder, each in problems.items() for problem in each if problem.severe]
    if severe:
        folder, first = severe[0]
        count = "1 problem" if len(severe) == 1 else f"{len(severe)} problems"
        raise IsthmusError(f"{folder} has {count}: {first} (all of them: isthmus party check {path})")
    notes = [f"{folder.name}: {problem}" for folder, each in problems.items() for problem in each]
    if not notes:
        return list(contents.values()), ""
    more = "" if len(notes) == 1 else f" ({len(notes)} such notes; see isthmus party check {path})"
    return list(contents.values()), f"Possible mistake: {notes[0]}{more}."


def check_folders(path: Path, key: bytes | None = None) -> tuple[dict[Path, Contents], dict[Path, list[Problem]]]:
    """Return the contents of all usable party folders at a path, and the problems of each, also with the others."""
    return _check_together([(folder, *check_folder(folder, key)) for folder in find_folders(path)])


def _check_together(
    checked: Sequence[tuple[Path, Contents | None, list[Problem]]],
) -> tuple[dict[Path, Contents], dict[Path, list[Problem]]]:
    usable = {folder: contents for folder, contents, _ in checked if contents is not None}
    more = _problems_between(usable)
    return usable, {folder: [*problems, *more.get(folder, [])] for folder, _, problems in checked}


def build_party(
    contents: Contents, encoding: Encoding, *, seed: int, train: float, val: float, key: bytes | None = None
) -> Party:
    """Return one party.

    Arguments:
        train, val: shares of the labelled items, where the files have no split; the rest is for testing.
    """
    x, structural = encoding.encode(contents, key)
    splits = _splits(contents, seed, train, val)
    graph = Data(x=x, edge_index=contents.edge_index, edge_weight=contents.edge_weight, y=contents.y)
    graph.num_nodes, graph.batch = x.size(0), contents.batch
    graph.num_graphs = None if contents.batch is None else contents.items
    name, level, ids, border = contents.settings.name, contents.settings.level, contents.ids, contents.border
    if level == "graph" and contents.item_ids.unique().numel() == contents.items:  # without ids, molecules may repeat
        ids = contents.item_ids
    return Party(name, graph, level, ids=ids, border=border, pairs=None, structural=structural, **splits)


def _splits(contents: Contents, seed: int, train: float, val: float) -> dict[str, Tensor]:
    if contents.splits is not None:
        return contents.splits
    check_shares(train, val)
    draw = uniform(contents.item_ids, seed, "split")
    splits = {"train": draw < train, "val": (draw >= train) & (draw < train + val), "test": draw >= train + val}
    return {split: mask & contents.labelled for split, mask in splits.items()}


def _problems_between(usable: dict[Path, Contents]) -> dict[Path, list[Problem]]:
    """Return the problems of each folder with the others."""
    problems: dict[Path, list[Problem]] = {folder: [] for folder in usable}
    names: dict[str, Path] = {}
    for folder, contents in usable.items():
        name, first = contents.settings.name, next(iter(usable.values()))
        if name in names:
            what = f"name '{name}' is also used in {names[name]}: give each party its own name"
            problems[folder].append(Problem(FILE, what))
        names[name] = folder
        problems[folder] += _differing_settings(contents, first)
    parties = {name: usable[folder] for name, folder in names.items()}
    for folder, contents in usable.items():
        problems[folder] += _problems_with_owners(contents, parties)
    with_ids = {folder: contents for folder, contents in usable.items() if contents.ids is not None}
    for folder, found in _problems_of_shared_nodes(with_ids).items():
        problems[folder] += found
    return problems


def _differing_settings(contents: Contents, first: Contents) -> list[Problem]:
    """Return settings that must be equal at all parties but differ from the first party's."""
    other = first.settings.name
    differ = [key for key, value in contents.settings.common.items() if value != first.settings.common[key]]
    found = [Problem(FILE, f"'{key}' differs from that of party '{other}': make them equal") for key in differ]
    if contents.ids is not None and contents.hashed != first.hashed:
        types = ("whole numbers", "texts")
        what = f"column 'id' holds {types[contents.hashed]}, that of party '{other}' {types[first.hashed]}"
        found.append(Problem(NODES, f"{what}: use one type, or a key"))
    return found


def _problems_with_owners(contents: Contents, parties: dict[str, Contents]) -> list[Problem]:
    """Return edges across the border to a node that its owner lacks, or that the owner does not list."""
    border, rows = contents.border, contents.border_rows
    if border is None or rows is None or contents.ids is None:
        return []
    found: list[Problem] = []

    def add(what: str, wrong: Tensor, *, severe: bool) -> None:
        mask = np.zeros(int(rows.max()) if len(border) else 0, dtype=bool)
        mask[(rows[wrong] - 1).numpy()] = True
        found.extend(at_rows(EDGES, what, mask, severe=severe))

    for at, name in enumerate(border.owners):
        owner = parties.get(name)
        if owner is None:
            if len(parties) > 1:
                what = f"partner '{name}' is not among these folders: edges to it have no effect"
                found.append(Problem(FILE, what, severe=False))
            continue
        to_owner = border.owner == at
        missing = torch.ones_like(to_owner) if owner.ids is None else ~torch.isin(border.outer, owner.ids)
        add(f"the other end is not a node of its owner '{name}'", to_owner & missing, severe=True)
        if not (contents.settings.directed or owner.settings.directed) and owner.ids is not None:
            unlisted = to_owner & ~missing & ~torch.isin(contents.ids[border.inner], owner.ids)
            unlisted &= ~_listed_by(owner, contents)
            add(f"party '{name}' does not list this edge: both sides should", unlisted, severe=False)
    return found


def _listed_by(owner: Contents, contents: Contents) -> Tensor:
    """Return a mask of a party's edges across the border that the owner of the other end lists too."""
    assert contents.border is not None
    if owner.border is None:
        return torch.zeros(len(contents.border), dtype=torch.bool)
    mine = torch.stack([contents.item_ids[contents.border.inner], contents.border.outer])
    theirs = torch.stack([owner.border.outer, owner.item_ids[owner.border.inner]])
    ids, position = torch.unique(torch.cat([mine, theirs], 1), return_inverse=True)
    edge = position[0] * ids.numel() + position[1]
    return torch.isin(edge[: mine.size(1)], edge[mine.size(1) :])


def _problems_of_shared_nodes(usable: dict[Path, Contents]) -> dict[Path, list[Problem]]:
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
    return {
        folder: [
            *at_rows(NODES, leaked, one.numpy()),
            *at_rows(NODES, unsplit, two.numpy()),
            *at_rows(NODES, label, three.numpy(), severe=False),
        ]
        for folder, one, two, three in zip(usable, *(mask.split(sizes) for mask in masks), strict=True)
    }


def _at_any_party(mask: Tensor, node: Tensor) -> Tensor:
    """Return a mask of the rows whose node has the mask set in any row."""
    return torch.zeros(int(node.max()) + 1, dtype=torch.bool).index_put((node[mask],), torch.tensor(True))[node]


def _with_other_labels(parties: Sequence[Contents], node: Tensor) -> Tensor:
    """Return a mask of the labelled rows whose node has another class in another row."""
    if any(each.y.dim() > 1 for each in parties):
        return torch.zeros_like(node, dtype=torch.bool)
    y = torch.cat([each.y for each in parties])
    known, nothing = y >= 0, torch.zeros(int(node.max()) + 1, dtype=torch.long)
    low = nothing.scatter_reduce(0, node[known], y[known], "amin", include_self=False)
    high = nothing.scatter_reduce(0, node[known], y[known], "amax", include_self=False)
    return known & (low < high)[node]
