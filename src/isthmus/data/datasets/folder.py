"""Party folders as a data set: a study on the files of real organisations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from isthmus.data.datasets.by_party import Loader, Moderator, PartyData
from isthmus.data.describe import note_on_splits
from isthmus.data.folder.columns import Column, Totals
from isthmus.data.folder.encoding import Encoding, add_totals, first_totals, second_totals, unlike_others
from isthmus.data.folder.loading import accept, build_party, find_folders
from isthmus.data.folder.reading import Contents, check_folder, outline
from isthmus.data.folder.relations import DatabaseSettings, tables_with_moments
from isthmus.data.ids import read_hashing
from isthmus.data.pool import Pool, Share, check_shares_read
from isthmus.errors import IsthmusError


class PartyFolders(PartyData):
    """Parties from their own files: one party folder, or a folder of party folders."""

    name: ClassVar[str] = "folder"
    natural: ClassVar[bool] = True

    path: str
    """The folder; on the command line also `--data PATH`."""
    key: str | None = None
    """File with the parties' common key; with it all ids are keyed hashes."""
    train: Share = 0.6
    """Share of the labelled items to train on, for parties whose files have no split."""
    val: Share = 0.2
    """Share of the labelled items to validate on, for parties whose files have no split; the rest is for testing."""

    def party_sizes(self) -> Sequence[int]:
        return [_bytes(folder) for folder in find_folders(_expanded(self.path))]

    def loader(self, chosen: Sequence[int], seed: int) -> Loader:
        """Read folders, count what the encoding depends on in two steps, and encode the features.

        The split depends only on the seed and an item's id, so an item that two parties hold is in the same split.
        """
        hashing = read_hashing(None if self.key is None else _expanded(self.key))
        folders = find_folders(_expanded(self.path))
        checked = [(folders[at], *check_folder(folders[at], hashing)) for at in chosen]
        yield [(folder, outline(contents), problems) for folder, contents, problems in checked]
        read = [contents for _, contents, _ in checked if contents is not None]
        columns = read[0].settings.feature_columns()
        first = yield [{name: first_totals(name, each, own, hashing) for name, each in columns.items()} for own in read]
        second = yield [
            {name: second_totals(name, each, own, first[name]) for name, each in columns.items()} for own in read
        ]
        encoding = Encoding(columns, {name: {**first[name], **second[name]} for name in columns})
        how: dict[str, Any] = {"seed": seed, "train": self.train, "val": self.val, "hashing": hashing}
        return [build_party(each, encoding, **how) for each in read]

    def moderator(self) -> Moderator:
        introduced = yield None
        contents, note = accept(_expanded(self.path), introduced)
        settings = contents[0].settings
        columns = settings.feature_columns()
        firsts = yield None
        first = {name: add_totals([own[name] for own in firsts]) for name in columns}
        seconds = yield first
        second = {name: add_totals([own[name] for own in seconds]) for name in columns}
        parties = yield second
        note = " ".join(filter(None, (_rows(contents), note, *_notes_on_columns(contents, columns, firsts, seconds))))
        labels = tuple(settings.labels or settings.tasks or ())
        known = Encoding(columns, {name: {**first[name], **second[name]} for name in columns}).to_dict()
        keyed = self.key is not None
        encoding = {**known, "molecules": settings.smiles and settings.smiles.features, "keyed": keyed}
        dated = isinstance(settings, DatabaseSettings) and bool(tables_with_moments(settings.tables))
        own = all(each.splits is not None for each in contents)
        if own:
            check_shares_read(self, "the parties' files say what each row is for (isthmus run --split draws anew)")
        why = "their files say so" if own else "to choose the splits, add a column 'split'"
        about: dict[str, Any] = {"note": note, "label_note": note_on_splits(parties, why), "labels": labels}
        about |= {"own_splits": own, "dated": dated}
        return Pool(None, settings.outputs, parties=tuple(parties), encoding=encoding, **about)


def _notes_on_columns(
    contents: Sequence[Contents],
    columns: Mapping[str, Column],
    first: Sequence[Mapping[str, Totals]],
    second: Sequence[Mapping[str, Totals]],
) -> Iterator[str]:
    for party, own in zip(contents, unlike_others(columns, first, second), strict=True):
        yield from (f"Note: {party.settings.name}: {line}." for line in own)


def _rows(contents: Sequence[Contents]) -> str:
    """Say how many different rows the parties' tables have together, if they have several; nothing otherwise."""
    databases = [each.database for each in contents if each.database is not None]
    if not databases:
        return ""
    texts = []
    for name in databases[0].ids:
        holders = torch.unique(torch.cat([each.ids[name] for each in databases]), return_counts=True)[1]
        shared = int((holders > 1).sum())
        at_several = f", {shared:,} of them at several parties" if shared else ""
        texts.append(f"{holders.numel():,} {name}{at_several}")
    return f"Nodes are rows of tables ({'; '.join(texts)}); labels are of {databases[0].items}."


def _bytes(folder: Path) -> int:
    try:
        return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    except OSError as error:
        raise IsthmusError(
            f"cannot read {folder}: {error.strerror or error}; give a folder that can be read"
        ) from error


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise IsthmusError(f"{path}: this machine has no such user: give the full path") from error
