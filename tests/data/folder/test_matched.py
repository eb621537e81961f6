"""Which values of a party folder are matched, and what it looks like under pseudonyms."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.databases import dated_draft
from tests.party_folders import graph_draft, read

from isthmus.data.folder.encoding import first_totals
from isthmus.data.folder.matched import category_values, values_to_match, with_pseudonyms
from isthmus.data.ids import PLAIN, PlainHash, Pseudonyms
from isthmus.errors import IsthmusError

HASHED = PlainHash(of_integers=True)


def named(values: torch.Tensor) -> Pseudonyms:
    return Pseudonyms(values, torch.arange(len(values)) + 1000)


def test_ids_ends_of_edges_and_categories_are_matched(tmp_path: Path) -> None:
    contents = read(graph_draft(), tmp_path, HASHED)
    texts = [*range(8), 100, 102, "a", "b"]
    assert values_to_match(contents).equal(PLAIN.numbers(texts).unique())
    assert category_values(contents).equal(PLAIN.numbers(["a", "b"]).unique())


def test_all_numbers_are_replaced(tmp_path: Path) -> None:
    contents = read(graph_draft(), tmp_path, HASHED)
    pseudonyms = named(values_to_match(contents))
    found = with_pseudonyms(contents, pseudonyms)
    assert found.ids.equal(found.item_ids)
    assert found.ids.equal(pseudonyms.numbers(range(8)))
    assert found.border.outer.equal(pseudonyms.numbers([100, 102]))
    assert found.border.inner.equal(contents.border.inner)
    name, column = next(each for each in contents.settings.feature_columns().items() if each[1].has_keyed_totals)
    totals = first_totals(name, column, found, pseudonyms)
    assert int(totals["ids"].min()) >= 1000
    block = contents.features.take(torch.arange(8).numpy()).blocks([name])
    x = column.encode(name, next(block)[1], {"ids": totals["ids"].sort().values}, pseudonyms)
    due = column.encode(name, next(contents.features.blocks([name]))[1], {"ids": category_values(contents)}, PLAIN)
    assert x.equal(due)  # the pseudonyms here are in the order of the hashes


def test_tables_get_pseudonyms_for_all_of_their_rows(tmp_path: Path) -> None:
    contents = read(dated_draft(transfers=40), tmp_path, HASHED)
    found = with_pseudonyms(contents, named(values_to_match(contents)))
    assert found.ids.equal(torch.cat(list(found.database.ids.values())))
    assert all(int(each.min()) >= 1000 for each in (found.ids, found.item_ids, *found.database.ids.values()))
    assert found.database.ids.keys() == contents.database.ids.keys()


def test_ids_that_mean_nothing_to_others_stay(tmp_path: Path) -> None:
    contents = read(graph_draft(partner=None), tmp_path, HASHED)
    own = replace(contents, ids=None, settings=contents.settings.model_copy(update={"ids": "own"}))
    assert values_to_match(own).equal(category_values(own))
    assert with_pseudonyms(own, named(values_to_match(own))) is own


def test_a_folder_that_changed_after_the_matching_is_refused(tmp_path: Path) -> None:
    contents = read(graph_draft(), tmp_path, HASHED)
    with pytest.raises(IsthmusError, match="its folder changed after ids were matched"):
        with_pseudonyms(contents, named(values_to_match(contents)[1:]))
