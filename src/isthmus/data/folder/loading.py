"""Load parties from party folders, and check that the folders fit together."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from isthmus.data.folder.columns import Category, Number
from isthmus.data.folder.database import Database
from isthmus.data.folder.encoding import Encoding, add_totals, first_totals, second_totals, unlike_others
from isthmus.data.folder.problems import Problem, at_rows, summarize_notes
from isthmus.data.folder.reading import Contents, check_folder
from isthmus.data.folder.relations import relations
from isthmus.data.folder.settings import FILE, PartyFile, differences, read_settings
from isthmus.data.folder.shared_nodes import problems_of_shared_nodes
from isthmus.data.folder.table import EDGES, GRAPHS, NODES
from isthmus.data.ids import PLAIN, Hashing, uniform
from isthmus.data.matrices import run_both_ways
from isthmus.data.party import MOST_EDGES, Party
from isthmus.data.pool import check_shares
from isthmus.errors import IsthmusError, did_you_mean, similar_path

MAX_NOTES = 3
"""How many notes on the folders a study shows."""


def find_folders(path: Path) -> list[Path]:
    """Return the party folders at a path: the path itself, or those directly inside it, sorted by name.

    A folder with tables but without `party.toml` counts too, so that a forgotten `party.toml` is reported.
    """
    try:
        if not path.is_dir():
            remedy = similar_path(path) or ": give a party folder, or a folder of party folders"
            raise IsthmusError(f"{path} is not a folder{remedy}")
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


def read_folders(path: Path, hashing: Hashing = PLAIN) -> tuple[list[Contents], str]:
    """Return the contents of all party folders at a path, and the first notes on them.

    A severe problem is an error.
    """
    return accept(path, [(folder, *check_folder(folder, hashing)) for folder in find_folders(path)])


def accept(path: Path, checked: Sequence[tuple[Path, Contents | None, list[Problem]]]) -> tuple[list[Contents], str]:
    """As `read_folders`, of folders that are checked each for itself."""
    contents, problems = _check_together(checked)
    severe = [(folder, problem) for folder, each in problems.items() for problem in each if problem.severe]
    if severe:
        folder, first = severe[0]
        own = sum(where == folder for where, _ in severe)
        count = "1 problem" if own == 1 else f"{own} problems"
        count += f", other folders have {len(severe) - own}" if own < len(severe) else ""
        raise IsthmusError(f"{folder} has {count}: {first} (all of them: isthmus party check {path})")
    notes = summarize_notes({folder.name: [p for p in each if not p.minor] for folder, each in problems.items()})
    text = " ".join(f"Note: {each}." for each in notes[:MAX_NOTES])
    more = len(notes) - MAX_NOTES
    return list(contents.values()), text + (f" {more} more: isthmus party check {path}." if more > 0 else "")


def check_folders(path: Path, hashing: Hashing = PLAIN) -> tuple[dict[Path, Contents], dict[Path, list[Problem]]]:
    """Return the contents of all usable party folders at a path, and the problems of each, also with the others."""
    contents, problems = _check_together([(folder, *check_folder(folder, hashing)) for folder in find_folders(path)])
    if not any(each.severe for found in problems.values() for each in found):
        for folder, lines in zip(contents, _unlike_others(list(contents.values()), hashing), strict=True):
            problems[folder] += [Problem(FILE, line, severe=False) for line in lines]
    return contents, problems


def _unlike_others(contents: Sequence[Contents], hashing: Hashing) -> list[list[str]]:
    """As `unlike_others`, from the folders."""
    columns = contents[0].settings.feature_columns()
    columns = {name: each for name, each in columns.items() if type(each) is Number or isinstance(each, Category)}
    first = [{name: first_totals(name, each, own, hashing) for name, each in columns.items()} for own in contents]
    known = {name: add_totals([own[name] for own in first]) for name in columns}
    second = [{name: second_totals(name, columns[name], own, known[name]) for name in columns} for own in contents]
    return unlike_others(columns, first, second)


def _check_together(
    checked: Sequence[tuple[Path, Contents | None, list[Problem]]],
) -> tuple[dict[Path, Contents], dict[Path, list[Problem]]]:
    usable = {folder: contents for folder, contents, _ in checked if contents is not None}
    more = _problems_between(usable, {folder.name for folder, contents, _ in checked if contents is None})
    # of tables that cannot be used nothing is known, but what party.toml says of them is compared all the same
    settings = {folder: contents.settings if contents else read_settings(folder)[0] for folder, contents, _ in checked}
    differ = _differing_settings({folder: each for folder, each in settings.items() if each is not None})
    return usable, {
        folder: [*differ.get(folder, []), *more.get(folder, []), *problems] for folder, _, problems in checked
    }


def build_party(
    contents: Contents, encoding: Encoding, *, seed: int, train: float, val: float, hashing: Hashing = PLAIN
) -> Party:
    """Return one party.

    Arguments:
        train, val: shares of the labelled items, where the files have no split; the rest is for testing.
    """
    if contents.database is not None:
        return _build_typed(contents, contents.database, encoding, _splits(contents, seed, train, val), hashing)
    x, structural = encoding.encode(contents, hashing)
    splits = _splits(contents, seed, train, val)
    graph = Data(x=x, edge_index=contents.edge_index, edge_weight=contents.edge_weight, y=contents.y)
    graph.num_nodes, graph.batch = x.size(0), contents.batch
    graph.num_graphs = None if contents.batch is None else contents.items
    name, level, ids, border = contents.settings.name, contents.settings.level, contents.ids, contents.border
    if level == "graph" and contents.item_ids.unique().numel() == contents.items:  # without ids, molecules may repeat
        ids = contents.item_ids
    more: dict[str, Any] = {"ids": ids, "border": border, "structural": structural, **splits}
    return Party(name, graph, level, **more)


def _build_typed(
    contents: Contents, database: Database, encoding: Encoding, splits: dict[str, Tensor], hashing: Hashing
) -> Party:
    """Return a party of several tables: each a type of nodes, or of edges."""
    graph, structural = encoding.encode_database(database, hashing)
    name, schema = contents.settings.name, encoding.schema(contents.settings)
    more: dict[str, Any] = {"ids": contents.ids, "structural": structural, "schema": schema}
    if database.labelled is not None:
        kind = next(kind for kind in graph.edge_types if "edge_label_index" in graph[kind])
        graph[kind].edge_label = contents.y
        more |= splits
        return Party.of_edges(name, graph, **more)
    graph[database.items].y = contents.y
    for split, mask in splits.items():
        graph[database.items][f"{split}_mask"] = mask
    border = contents.border
    if border is not None and schema.edge_width:
        border = replace(border, edge_attr=encoding.encode_across(database, schema, hashing))
    return Party.of_graph(name, graph, border=border, **more)


def _splits(contents: Contents, seed: int, train: float, val: float) -> dict[str, Tensor]:
    if contents.splits is not None:
        return contents.splits
    check_shares(train, val)
    draw = uniform(contents.item_ids, seed, "split")
    splits = {"train": draw < train, "val": (draw >= train) & (draw < train + val), "test": draw >= train + val}
    return {split: mask & contents.labelled for split, mask in splits.items()}


def _problems_between(usable: dict[Path, Contents], unusable: Collection[str]) -> dict[Path, list[Problem]]:
    """Return the problems of each folder with the others; of some only the names are known."""
    problems: dict[Path, list[Problem]] = {folder: [] for folder in usable}
    names: dict[str, Path] = {}
    hashed = [contents.hashed for contents in usable.values()]
    usual = next((each for each in usable.values() if each.hashed == (2 * sum(hashed) > len(hashed))), None)
    for folder, contents in usable.items():
        name = contents.settings.name
        if name in names:
            what = f"name '{name}' is also used in {names[name]}: give each party its own name"
            problems[folder].append(Problem(FILE, what))
        names[name] = folder
        problems[folder] += _differing_ids(contents, usual or contents)
    parties = {name: usable[folder] for name, folder in names.items()}
    for folder, contents in usable.items():
        problems[folder] += _problems_with_owners(contents, parties, unusable)
        problems[folder] += _rows_of_several(contents, parties)
    with_ids = {folder: contents for folder, contents in usable.items() if contents.ids is not None}
    for folder, found in problems_of_shared_nodes(with_ids).items():
        problems[folder] += found
    weighted = [contents.edge_weight is not None for contents in usable.values()]
    for folder, contents in usable.items():
        if any(weighted) and contents.edge_weight is None and contents.edge_index.numel():
            what = "no edge has a weight, at other parties edges have: 1 is used"
            problems[folder].append(Problem(EDGES, what, severe=False))
    joined = [(folder, each) for folder, each in usable.items() if each.edge_index.numel() and each.database is None]
    one_way = [
        folder
        for folder, each in joined
        if each.edge_index.size(1) <= MOST_EDGES and not run_both_ways(each.edge_index, None, each.nodes)
    ]
    if len(one_way) < len(joined):
        for folder in one_way:
            what = "edges run one way, those of other parties both ways: make 'directed' equal if they mean the same"
            problems[folder].append(Problem(EDGES, what, severe=False))
    for folder in list(usable)[:1]:
        problems[folder] += _problems_with_classes(list(usable.values()))
    return problems


def _problems_with_classes(contents: Sequence[Contents]) -> list[Problem]:
    """Return a note if all labels of all these parties are of one class."""
    settings = contents[0].settings
    if any(each.settings.tasks for each in contents):
        return []
    y = torch.cat([each.y for each in contents])
    found = y[y >= 0].unique().tolist()
    if len(found) != 1:
        return []
    name = settings.labels[int(found[0])] if settings.labels else int(found[0])
    whose = f" of all {len(contents):,} parties" if len(contents) > 1 else ""
    what = f"all labels{whose} are '{name}': with one class there is nothing to tell apart"
    return [Problem(settings.items_file, what, severe=False, minor=True)]


def _differing_settings(settings: Mapping[Path, PartyFile]) -> dict[Path, list[Problem]]:
    """Return settings that must be equal at all parties but differ from those that most have."""
    every = list(settings.values())
    common = [json.dumps(each.common, sort_keys=True, default=str) for each in every]
    usual = every[common.index(Counter(common).most_common(1)[0][0])] if every else None
    problems = {}
    for folder, own in settings.items():
        assert usual is not None
        differ = [key for key, value in own.common.items() if value != usual.common[key]]
        found = []
        if own.tables and usual.tables:
            found = list(differences(own, usual, usual.name))
            differ = [key for key in differ if key not in ("columns", "tables")]
        found += [f"'{key}' differs from that of party '{usual.name}': make them equal" for key in differ]
        problems[folder] = [Problem(FILE, each) for each in found]
    return problems


def _differing_ids(contents: Contents, first: Contents) -> list[Problem]:
    """Return a problem if ids have another type than another party's."""
    if contents.ids is None or contents.hashed == first.hashed:
        return []
    types = ("whole numbers", "texts")
    what = f"column 'id' holds {types[contents.hashed]}, that of party '{first.settings.name}' {types[first.hashed]}"
    return [Problem(NODES, f"{what}: use one type, or a key")]


def _problems_with_owners(contents: Contents, parties: dict[str, Contents], unusable: Collection[str]) -> list[Problem]:
    """Return edges across the border to a node that its owner lacks, or that the owner does not list."""
    border, rows = contents.border, contents.border_rows
    if border is None or rows is None or contents.ids is None:
        return []
    found: list[Problem] = []

    def add(what: str, wrong: Tensor, *, severe: bool) -> None:
        for file, of_file in _by_file(contents):
            mask = np.zeros(int(rows.max()) if len(border) else 0, dtype=bool)
            mask[(rows[wrong & of_file] - 1).numpy()] = True
            found.extend(at_rows(file, what, mask, severe=severe))

    for at, name in enumerate(border.owners):
        owner = parties.get(name)
        if owner is None:
            if len(parties) > 1 and name not in unusable:
                hint = did_you_mean(name, parties.keys() - {*border.owners, contents.settings.name})
                what = f"partner '{name}' is not among these folders: edges to it have no effect"
                what += f" ({hint})" if hint.startswith("did") else ""
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


def _rows_of_several(contents: Contents, parties: dict[str, Contents]) -> list[Problem]:
    """Return rows that other parties claim, too, of tables whose rows have owners."""
    tables, mine = contents.settings.tables, contents.database
    owned = {table.foreign.get(column, name) for name, table in tables.items() for column in table.owners}
    found: list[Problem] = []
    for other, name in itertools.product(parties.values(), sorted(owned)):
        if other is contents or mine is None or other.database is None or name not in other.database.ids:
            continue
        if several := int(torch.isin(mine.ids[name], other.database.ids[name]).sum()):
            what = f"{several} rows are also those of party '{other.settings.name}', and each has one owner"
            found.append(Problem(f"{name}.parquet", f"{what}: correct the owners at one of them"))
    return found


def _by_file(contents: Contents) -> list[tuple[str, Tensor]]:
    """Return the files whose rows are edges across the border, or have the keys of such edges, each with its edges."""
    assert contents.border is not None
    kind = contents.border.edge_type
    if kind is None:
        return [(EDGES, torch.ones(len(contents.border), dtype=torch.bool))]
    tables = [each.keyed for each in relations(contents.settings)]
    of_table = {name: [at for at, each in enumerate(tables) if each == name] for name in sorted(set(tables))}
    return [(f"{name}.parquet", torch.isin(kind, torch.tensor(at))) for name, at in of_table.items()]


def _listed_by(owner: Contents, contents: Contents) -> Tensor:
    """Return a mask of a party's edges across the border that the owner of the other end lists too."""
    assert contents.border is not None
    if owner.border is None or owner.ids is None or contents.ids is None:
        return torch.zeros(len(contents.border), dtype=torch.bool)
    mine = torch.stack([contents.ids[contents.border.inner], contents.border.outer])
    theirs = torch.stack([owner.border.outer, owner.ids[owner.border.inner]])
    ids, position = torch.unique(torch.cat([mine, theirs], 1), return_inverse=True)
    edge = position[0] * ids.numel() + position[1]
    return torch.isin(edge[: mine.size(1)], edge[mine.size(1) :])
