"""From party folders to parties."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from isthmus.data.folder.encoding import Encoding
from isthmus.data.folder.problems import Problem, at_rows
from isthmus.data.folder.reading import EDGES, Contents, inspected
from isthmus.data.folder.settings import FILE
from isthmus.data.ids import uniform
from isthmus.data.party import Party
from isthmus.errors import IsthmusError


def folders_in(path: Path) -> list[Path]:
    """The party folders that a path stands for: itself, or those directly inside it, in the order of their names."""
    if not path.is_dir():
        raise IsthmusError(f"{path} is no folder: give a party folder, or a folder of party folders")
    if (path / FILE).exists():
        return [path]
    found = sorted(each for each in path.iterdir() if each.is_dir() and (each / FILE).exists())
    if not found:
        raise IsthmusError(f"there is no {FILE} in {path}, nor in a folder inside it: make one with isthmus party new")
    return found


def read_folders(path: Path, key: bytes | None = None) -> list[Contents]:
    """The contents of all party folders of a path; what is wrong is an error that names the first problem."""
    contents, problems = checked_folders(path, key)
    severe = [(folder, problem) for folder, each in problems.items() for problem in each if problem.severe]
    if severe:
        folder, first = severe[0]
        count = "a problem" if len(severe) == 1 else f"{len(severe)} problems"
        raise IsthmusError(f"{folder} has {count}: {first} (all of them: isthmus party check {path})")
    return contents


def checked_folders(path: Path, key: bytes | None = None) -> tuple[list[Contents], dict[Path, list[Problem]]]:
    """The contents of those party folders that are sound, and what is wrong with each, also between them."""
    read = {folder: inspected(folder, key) for folder in folders_in(path)}
    problems = {folder: problems for folder, (_, problems) in read.items()}
    sound = {folder: contents for folder, (contents, _) in read.items() if contents is not None}
    for folder, found in _between(sound).items():
        problems[folder] = [*problems[folder], *found]
    return list(sound.values()), problems


def parties_of(
    contents: Sequence[Contents], *, seed: int, train: float, val: float, key: bytes | None = None
) -> list[Party]:
    """The parties, their features in one encoding.

    Arguments:
        train, val: shares of the labelled items, where a party's files have no split; the rest is for testing. The
            draw looks at the seed and the item's id only, so an item that two parties hold is in the same split.
    """
    encoding = Encoding.of(contents, key)
    return [_party(each, encoding.features(each, key), _splits(each, seed, train, val)) for each in contents]


def _party(contents: Contents, x: Tensor, splits: dict[str, Tensor]) -> Party:
    graph = Data(x=x, edge_index=contents.edge_index, y=contents.y)
    graph.num_nodes = x.size(0)
    if contents.edge_weight is not None:
        graph.edge_weight = contents.edge_weight
    name = contents.settings.name
    if contents.batch is None:
        return Party(name, graph, "node", ids=contents.ids, border=contents.border, **splits)
    graph.batch, graph.num_graphs = contents.batch, contents.items
    return Party(name, graph, "graph", border=None, **splits)


def _splits(contents: Contents, seed: int, train: float, val: float) -> dict[str, Tensor]:
    if contents.splits is not None:
        return contents.splits
    if train + val > 1:
        raise IsthmusError(f"train = {train} and val = {val} are more than the whole: lower one of them")
    y = contents.y
    labelled = y >= 0 if y.dim() == 1 else ~y.isnan().all(1)
    at = uniform(contents.item_ids, seed, "split")
    held = {"train": at < train, "val": (at >= train) & (at < train + val), "test": at >= train + val}
    return {split: mask & labelled for split, mask in held.items()}


def _between(sound: dict[Path, Contents]) -> dict[Path, list[Problem]]:
    """What parties contradict each other in."""
    problems: dict[Path, list[Problem]] = {folder: [] for folder in sound}
    if not sound:
        return problems
    first, *_ = sound.values()
    names: dict[str, Path] = {}
    by_name = {contents.settings.name: contents for contents in sound.values()}
    for folder, contents in sound.items():
        settings = contents.settings
        if settings.name in names:
            what = f"name '{settings.name}' is also that of {names[settings.name]}: give each party its own"
            problems[folder].append(Problem(FILE, what))
        names[settings.name] = folder
        for option, value in settings.agreed.items():
            if value != first.settings.agreed[option]:
                what = f"'{option}' differs from that of '{first.settings.name}': parties agree on it"
                problems[folder].append(Problem(FILE, what))
        problems[folder] += _unknown_to_owners(contents, by_name)
    return problems


def _unknown_to_owners(contents: Contents, parties: dict[str, Contents]) -> list[Problem]:
    """Edges to a node that its owner, who is here too, does not have."""
    border, lines = contents.border, contents.border_rows
    if border is None or lines is None:
        return []
    found: list[Problem] = []
    for at, owner in enumerate(border.owners):
        if owner not in parties:
            continue
        ids = parties[owner].ids
        wrong = border.owner == at
        if ids is not None:
            wrong &= ~torch.isin(border.outer, ids)
        mask = np.zeros(int(lines.max()) if len(border) else 0, dtype=bool)
        mask[(lines[wrong] - 1).numpy()] = True
        found += at_rows(EDGES, f"the other end is no node of its owner '{owner}'", mask)
    return found
