"""Party folders as a data set: a study on the files of real organisations."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from isthmus.data.folder.loading import build_parties, read_folders
from isthmus.data.ids import read_key
from isthmus.data.pool import DataSet, Pool, Share
from isthmus.errors import IsthmusError


class PartyFolders(DataSet):
    """Parties from their own files: one party folder, or a folder of party folders."""

    name: ClassVar[str] = "folder"

    path: str
    """The folder; on the command line also `--data PATH`."""
    key: str | None = None
    """File with the parties' common key; with it all ids are keyed hashes."""
    train: Share = 0.6
    """Share of the labelled items to train on, for parties whose files have no split."""
    val: Share = 0.2
    """Share of the labelled items to validate on, for parties whose files have no split; the rest is for testing."""

    def load(self, seed: int) -> Pool:
        key = None if self.key is None else read_key(_expanded(self.key))
        contents, note = read_folders(_expanded(self.path), key)
        parties = build_parties(contents, seed=seed, train=self.train, val=self.val, key=key)
        settings = contents[0].settings
        labels = tuple(settings.labels or settings.tasks or ())
        return Pool(None, settings.outputs, parties=tuple(parties), note=note, labels=labels)


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise IsthmusError(f"{path}: this machine has no such user: give the full path") from error
