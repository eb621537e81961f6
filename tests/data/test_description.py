"""What a description of a cut says in words and in plain values."""

from __future__ import annotations

from dataclasses import replace

import torch

from isthmus.data.describe import describe
from isthmus.data.description import few_names
from isthmus.testing import small_parties


def test_parties_without_test_or_validation_items_are_named_in_one_note() -> None:
    parties = [replace(party, name=f"p{at}") for at, party in enumerate(small_parties("node", parties=3))]
    assert describe(parties).split_note == ""
    none, few = torch.zeros_like(parties[0].test), parties[1].test & (parties[1].test.cumsum(0) <= 2)
    lacking = [replace(parties[0], test=none, val=none), replace(parties[1], test=few), parties[2]]
    due = "there is no test item at p0 and no validation item at p0; scores of parties rest on few test items, p1 has 2"
    assert describe(lacking).split_note == due
    idle = replace(lacking[0], train=none)
    said = (
        f"there is no item in any split at p0{due[len('there is no test item at p0 and no validation item at p0') :]}"
    )
    assert describe([idle, *lacking[1:]]).split_note == said
    untrained = [replace(parties[0], train=none), *parties[1:]]
    assert describe(untrained).split_note.startswith("there is no training item at p0")
    every = [replace(party, val=torch.zeros_like(party.val)) for party in parties]
    assert describe(every).split_note == ""  # a study without validation is meant so


def test_few_names_are_all_named() -> None:
    assert [few_names(list("abcd")[:count]) for count in (0, 1, 3, 4)] == ["", "a", "a, b, c", "a, b, c and 1 more"]
