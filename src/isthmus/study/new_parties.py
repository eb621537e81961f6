"""New data for a trained model: its party folders are encoded as those in training were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from isthmus.data.folder.encoding import Encoding
from isthmus.data.folder.loading import build_party, read_folders
from isthmus.data.folder.problems import summarize_notes
from isthmus.data.folder.reading import Contents
from isthmus.data.ids import Pseudonyms, read_hashing
from isthmus.data.level import Level
from isthmus.data.party import Party
from isthmus.data.pool import DataSet, check_no_folder
from isthmus.errors import IsthmusError, path_of

NewData = Path | str | Party | Sequence[Party]
"""A party folder or a folder of them, the name of a data set, a party or several."""


@dataclass(frozen=True, eq=False)
class NewParty:
    """A party and the columns of a table that name its items: `id`, and of edges `source` and `target`.

    They are as in its files, else its own ids, else positions from 0. `notes` are about values that did not occur in
    training. `labels` are the names of its classes or tasks. `has_splits` says whether its splits are given: those of a
    named data set depend on the study's options.
    """

    party: Party
    names: Mapping[str, Any]
    notes: Sequence[str] = ()
    labels: Sequence[str] = ()
    has_splits: bool = False


def new_parties(
    data: NewData, encoding: Mapping[str, Any] | None, key: Path | str | None, seed: int, level: Level
) -> list[NewParty]:
    """Load the parties of new data.

    Arguments:
        level: what the model predicts for; folders that hold something else are refused.
        encoding: of the features in training; None if they were numbers.
        key: file with the parties' common key.
        seed: of a data set that is generated.
    """
    if isinstance(data, Party):
        data = [data]
    if isinstance(data, str) and data.lower() in DataSet.known():
        check_no_folder(data)
        pool = DataSet.named(data)().load(seed)
        return [NewParty(each, _own_names(each, level), labels=pool.labels) for each in pool.parties or [pool.party]]
    if not isinstance(data, Path | str):
        parties = [each for each in data if isinstance(each, Party)] if isinstance(data, Sequence) else []
        if not parties or len(parties) < len(data):
            what = "an empty list" if isinstance(data, Sequence) and not data else f"a {type(data).__name__}"
            raise IsthmusError(
                f"data is {what}: give the path of a party folder or of a folder of them, the name of a data set, "
                "a Party object, or a list of them"
            )
        return [NewParty(party, _own_names(party, level), has_splits=True) for party in parties]
    contents, _ = read_folders(Path(data).expanduser(), read_hashing(None if key is None else path_of(key, "key")))
    if encoding is None:
        raise IsthmusError(
            f"the model was not trained on party folders, so it cannot encode {data}: give the "
            "name of a data set, or Party objects in Python"
        )
    for each in contents:
        check_level(each.settings.name, each.settings.items_level, level)
    return [_encoded(each, encoding, key, level) for each in contents]


def check_level(party: str, held: Level, level: Level) -> None:
    """Raise an error if a party holds graphs and the model is for nodes, or nodes and the model is for graphs."""
    wanted = "node" if level == "pair" else level
    if held not in (wanted, level):
        raise IsthmusError(f"party '{party}' holds {held}s, the model is for {wanted}s: give other data")


def _encoded(contents: Contents, encoding: Mapping[str, Any], key: Path | str | None, level: Level) -> NewParty:
    hashing = read_hashing(None if key is None else path_of(key, "key"))
    if "pseudonyms" in encoding:  # a party's own model, where ids were matched: it knows the values that it trained on
        hashing = Pseudonyms(*map(torch.tensor, encoding["pseudonyms"]))
    found = contents.settings.smiles and contents.settings.smiles.features
    if found != encoding["molecules"]:
        raise IsthmusError(
            f"party '{contents.settings.name}': molecules have features '{found}', the model was trained on "
            f"'{encoding['molecules']}': make its party.toml say so"
        )
    known = Encoding.of_dict(encoding)
    keyed = encoding.get("keyed", True)
    if not keyed and key is not None:
        raise IsthmusError("the model was trained without a key: leave the key out")
    known.check_fit(contents, hashing, keyed=keyed)
    party = build_party(contents, known, seed=0, train=0.0, val=0.0, hashing=hashing)
    notes = summarize_notes({party.name: known.notes(contents, hashing)})
    names = _own_names(party, level) if contents.database is not None and level == "pair" else contents.item_names
    labels = contents.settings.labels or contents.settings.tasks or ()
    return NewParty(party, names, notes, labels, has_splits=contents.splits is not None)


def _own_names(party: Party, level: Level) -> dict[str, Any]:
    """Return the ids of the items of a model for this level: of a typed graph, of the nodes that have labels."""
    if party.level == "edge":
        ends = party.graph.edge_label_index if party.ids is None else party.ids[party.graph.edge_label_index]
        return {column: pa.array(end.numpy()) for column, end in zip(("source", "target"), ends, strict=True)}
    labelled = party.labelled_type if level == "node" else None
    if party.ids is not None:
        return {"id": pa.array((party.ids if labelled is None else party.ids[labelled]).numpy())}
    items = party.nodes if party.level == "pair" else party.items
    return {"id": pa.array(range(items if labelled is None else int(labelled.sum())), pa.int64())}
