"""The values of a party folder that parties match with each other, and its contents under the pseudonyms they get."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from isthmus.data.folder.encoding import first_totals
from isthmus.data.folder.reading import Contents
from isthmus.data.ids import PLAIN, Pseudonyms
from isthmus.errors import IsthmusError


def values_to_match(contents: Contents) -> Tensor:
    """Return the plain hashes of ids and of values of categories that mean something to other parties, ascending.

    The contents are read with `PlainHash(of_integers=True)`.
    """
    found = [category_values(contents)]
    if contents.settings.ids != "own":
        found += [contents.item_ids, *([] if contents.ids is None else [contents.ids])]
        found += [] if contents.border is None else [contents.border.outer]
    return torch.cat(found).unique()


def category_values(contents: Contents) -> Tensor:
    """Return the plain hashes of the values of all categories without declared values."""
    columns = contents.settings.feature_columns().items()
    keyed = [first_totals(name, each, contents, PLAIN)["ids"] for name, each in columns if each.has_keyed_totals]
    return torch.cat(keyed or [torch.empty(0, dtype=torch.long)]).unique()


def with_pseudonyms(contents: Contents, pseudonyms: Pseudonyms) -> Contents:
    """Return the contents with pseudonyms instead of plain hashes as ids."""
    if contents.settings.ids == "own":
        return contents

    def renamed(hashes: Tensor) -> Tensor:
        found = pseudonyms.of(hashes)
        if bool((found < 0).any()):
            raise IsthmusError("its folder changed after ids were matched: start the study again")
        return found

    ids, border, database = contents.ids, contents.border, contents.database
    if database is not None:
        across = [(kind, replace(each, outer=renamed(each.outer))) for kind, each in database.across]
        by_table = {name: renamed(each) for name, each in database.ids.items()}
        database = replace(database, ids=by_table, item_ids=renamed(database.item_ids), across=across)
    return replace(
        contents,
        item_ids=renamed(contents.item_ids),
        ids=None if ids is None else renamed(ids),
        border=None if border is None else replace(border, outer=renamed(border.outer)),
        database=database,
        first_rows={},
    )
