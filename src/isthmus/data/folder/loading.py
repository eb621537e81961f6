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
from isthmus.data.folder.reading import EDGES, GRAPHS, NODES, Contents, check_folder
from isthmus.data.folder.settings import FILE
from isthmus.data.ids import uniform
from isthmus.data.party import Party
from isthmus.data.pool import check_shares
from isthmus.errors import IsthmusError


def find_folders(path: Path) -> list[Path]:
    """The party folders that a path stands for: itself, or those directly inside it, in the order of their names.

    What holds tables but no `party.toml` counts as one: a party that is forgotten would be missed by nobody.
    """
    try:
        if not path.is_dir():
            raise IsthmusError(f"{path} is no folder: give a party folder, or a folder of party folders")
        if _is_party(path):
            return [path]
        found = sorted(each for each in path.iterdir() if each.is_dir() and _is_party(each))
    except OSError as error:
        raise IsthmusError(f"cannot read {path}: {error.strerror or error}; give a folder that can be read") from error
    if not found:
        raise IsthmusError(f"there is no {FILE} in {path}, nor in a folder inside it: make one with isthmus party new")
    return found


def _is_party(folder: Path) -> bool:
    return any((folder / file).exists() for file in (FILE, NODES, EDGES, GRAPHS))


def read_folders(path: Path, key: bytes | None = None) -> tuple[list[Contents], str]:
    """The contents of all party folders of a path, and a sentence on what may not be meant there.

    What is wrong is an error that names the first problem.
    """
    contents, problems = check_folders(path, key)
    severe = [(folder, problem) for folder, each in problems.items() for problem in each if problem.severe]
    if severe:
        folder, first = severe[0]
        count = "a problem" if len(severe) == 1 else f"{len(severe)} problems"
        raise IsthmusError(f"{folder} has {count}: {first} (all of them: isthmus party check {path})")
    notes = [f"{folder.name}: {problem}" for folder, each in problems.items() for problem in each]
    if not notes:
        return list(contents.values()), ""
    more = "" if len(notes) == 1 else f" ({len(notes)} such notes: isthmus party check {path})"
    return list(contents.values()), f"What may not be meant: {notes[0]}{more}."


def check_folders(path: Path, key: bytes | None = None) -> tuple[dict[Path, Contents], dict[Path, list[Problem]]]:
    """The contents of those party folders that are sound, and what is wrong with each, also between them."""
    read = {folder: check_folder(folder, key) for folder in find_folders(path)}
    problems = {folder: problems for folder, (_, problems) in read.items()}
    sound = {folder: contents for folder, (contents, _) in read.items() if contents is not None}
    for folder, found in _between(sound).items():
        problems[folder] = [*problems[folder], *found]
    return sound, problems


def build_parties(
    contents: Sequence[Contents], *, seed: int, train: float, val: float, key: bytes | None = None
) -> list[Party]:
    """The parties, their features in one encoding.

    Arguments:
        train, val: shares of the labelled items, where a party's files have no split; the rest is for testing. The
            draw looks at the seed and the item's id only, so an item that two parties hold is in the same split.
    """
    encoding = Encoding.fit(contents, key)
    return [build_party(each, encoding, seed=seed, train=train, val=val, key=key) for each in contents]


def build_party(
    contents: Contents, encoding: Encoding, *, seed: int, train: float, val: float, key: bytes | None = None
) -> Party:
    """One party, as `build_parties` makes it with all others."""
    x, structural = encoding.described(contents, key)
    splits = _splits(contents, seed, train, val)
    graph = Data(x=x, edge_index=contents.edge_index, y=contents.y)
    graph.num_nodes = x.size(0)
    if contents.edge_weight is not None:
        graph.edge_weight = contents.edge_weight
    name = contents.settings.name
    if contents.batch is None:
        ids, border = contents.ids, contents.border
        return Party(name, graph, "node", ids=ids, border=border, pairs=None, structural=structural, **splits)
    graph.batch, graph.num_graphs = contents.batch, contents.items
    return Party(name, graph, "graph", border=None, pairs=None, structural=structural, **splits)


def _splits(contents: Contents, seed: int, train: float, val: float) -> dict[str, Tensor]:
    if contents.splits is not None:
        return contents.splits
    check_shares(train, val)
    at = uniform(contents.item_ids, seed, "split")
    held = {"train": at < train, "val": (at >= train) & (at < train + val), "test": at >= train + val}
    return {split: mask & contents.labelled for split, mask in held.items()}


def _between(sound: dict[Path, Contents]) -> dict[Path, list[Problem]]:
    """What parties contradict each other in."""
    problems: dict[Path, list[Problem]] = {folder: [] for folder in sound}
    names: dict[str, Path] = {}
    for folder, contents in sound.items():
        name, first = contents.settings.name, next(iter(sound.values()))
        if name in names:
            what = f"name '{name}' is also that of {names[name]}: give each party its own"
            problems[folder].append(Problem(FILE, what))
        names[name] = folder
        problems[folder] += _unagreed(contents, first)
    parties = {name: sound[folder] for name, folder in names.items()}
    for folder, contents in sound.items():
        problems[folder] += _unknown_to_owners(contents, parties)
    for folder, found in _at_odds({folder: each for folder, each in sound.items() if each.ids is not None}).items():
        problems[folder] += found
    return problems


def _unagreed(contents: Contents, first: Contents) -> list[Problem]:
    """What `party.toml` says otherwise than the first party's."""
    other = first.settings.name
    differ = [key for key, value in contents.settings.common.items() if value != first.settings.common[key]]
    found = [Problem(FILE, f"'{key}' differs from that of '{other}': parties agree on it") for key in differ]
    if contents.ids is not None and contents.hashed != first.hashed:
        kinds = ("whole numbers", "texts")
        what = f"column 'id' holds {kinds[contents.hashed]}, that of '{other}' {kinds[first.hashed]}"
        found.append(Problem(NODES, f"{what}: use one type, or a key"))
    return found


def _unknown_to_owners(contents: Contents, parties: dict[str, Contents]) -> list[Problem]:
    """Edges to nodes that their owners, who are here too, do not have; or to owners that do not know the edge."""
    border, rows = contents.border, contents.border_rows
    if border is None or rows is None or contents.ids is None:
        return []
    found: list[Problem] = []

    def at_border(what: str, wrong: Tensor, *, severe: bool) -> None:
        mask = np.zeros(int(rows.max()) if len(border) else 0, dtype=bool)
        mask[(rows[wrong] - 1).numpy()] = True
        found.extend(at_rows(EDGES, what, mask, severe=severe))

    for at, name in enumerate(border.owners):
        owner = parties.get(name)
        if owner is None:
            if len(parties) > 1:
                what = f"partner '{name}' is not among these folders: nothing comes over the edges to it"
                found.append(Problem(FILE, what, severe=False))
            continue
        to_it = border.owner == at
        there = torch.ones_like(to_it) if owner.ids is None else ~torch.isin(border.outer, owner.ids)
        at_border(f"the other end is no node of its owner '{name}'", to_it & there, severe=True)
        if not (contents.settings.directed or owner.settings.directed) and owner.ids is not None:
            unknown = to_it & ~there & ~torch.isin(contents.ids[border.inner], owner.ids) & ~_known(contents, owner)
            at_border(f"'{name}' does not list this edge: both sides do", unknown, severe=False)
    return found


def _known(contents: Contents, owner: Contents) -> Tensor:
    """Which edges of a party's border are in another party's border too, seen from the other side."""
    assert contents.border is not None
    if owner.border is None:
        return torch.zeros(len(contents.border), dtype=torch.bool)
    mine = torch.stack([contents.item_ids[contents.border.inner], contents.border.outer])
    theirs = torch.stack([owner.border.outer, owner.item_ids[owner.border.inner]])
    known, place = torch.unique(torch.cat([mine, theirs], 1), return_inverse=True)
    edge = place[0] * known.numel() + place[1]
    return torch.isin(edge[: mine.size(1)], edge[mine.size(1) :])


def _at_odds(sound: dict[Path, Contents]) -> dict[Path, list[Problem]]:
    """What parties say differently of the nodes that several of them hold."""
    if len(sound) < 2:
        return {}
    parties = list(sound.values())
    sizes = [each.items for each in parties]
    _, node = torch.unique(torch.cat([each.item_ids for each in parties]), return_inverse=True)
    nothing = torch.zeros(node.numel(), dtype=torch.bool)
    trains, drawn, held = nothing.clone(), nothing.clone(), nothing.clone()
    start = 0
    for contents in parties:
        rows = slice(start, start + contents.items)
        start += contents.items
        drawn[rows] = contents.splits is None
        if contents.splits is not None:
            trains[rows] = contents.splits["train"]
            held[rows] = contents.splits["val"] | contents.splits["test"]
    leaks = held & _anywhere(trains, node)
    undrawn = drawn & _anywhere(~drawn, node)
    what = "is held out here but another party trains on it: agree on one split, or take out the column at all parties"
    also = "has no split here but at another party that holds it: give all a column 'split', or none"
    label = "has another label at another party"
    return {
        folder: [
            *at_rows(NODES, what, one.numpy()),
            *at_rows(NODES, also, two.numpy()),
            *at_rows(NODES, label, three.numpy(), severe=False),
        ]
        for folder, one, two, three in zip(
            sound, leaks.split(sizes), undrawn.split(sizes), _relabelled(parties, node).split(sizes), strict=True
        )
    }


def _anywhere(mask: Tensor, node: Tensor) -> Tensor:
    """Whether the mask is set at any row of the same node."""
    return torch.zeros(int(node.max()) + 1, dtype=torch.bool).index_put((node[mask],), torch.tensor(True))[node]


def _relabelled(parties: Sequence[Contents], node: Tensor) -> Tensor:
    """Labelled rows of nodes that are of one class here and of another there."""
    if any(each.y.dim() > 1 for each in parties):
        return torch.zeros_like(node, dtype=torch.bool)
    y = torch.cat([each.y for each in parties])
    known, nothing = y >= 0, torch.zeros(int(node.max()) + 1, dtype=torch.long)
    low = nothing.scatter_reduce(0, node[known], y[known], "amin", include_self=False)
    high = nothing.scatter_reduce(0, node[known], y[known], "amax", include_self=False)
    return known & (low < high)[node]
