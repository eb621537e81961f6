"""What parties introduce themselves with; `test_lies.py` tells the lies about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from isthmus.deploy.introductions import Introduction, check_shares, compare_introductions, compare_widths
from isthmus.errors import IsthmusError
from isthmus.federation.bounds import Introduced

ONE = Introduction({"level": "node", "classes": 3}, "classification", Introduced(30, 20, 30))


def parties(**changed: Introduction) -> dict[str, Introduction]:
    return {name: changed.get(name, ONE) for name in ("a", "b", "c")}


def test_who_differs_from_most_is_named_even_if_it_comes_first() -> None:
    assert compare_introductions(parties()) == ONE.settings
    for liar in ("a", "c"):
        changed: Any = parties(**{liar: replace(ONE, settings={"level": "node", "classes": 4})})
        with pytest.raises(IsthmusError, match=f"party '{liar}': 'classes' in party.toml differs"):
            compare_introductions(changed)
        with pytest.raises(IsthmusError, match=f"party '{liar}': labels of another kind"):
            compare_introductions(parties(**{liar: replace(ONE, kind="regression")}))


def test_kinds_of_real_labels_may_differ() -> None:
    several = {"a": replace(ONE, kind="regression"), "b": replace(ONE, kind="multilabel")}
    assert compare_introductions(several) == ONE.settings


def test_a_party_with_nearly_all_items_is_named() -> None:
    large = parties(b=replace(ONE, size=Introduced(541, 0, 541)))
    check_shares(large, 0.91)
    with pytest.raises(IsthmusError, match="party 'b' introduced 541 of all 601 items"):
        check_shares(large, 0.9)
    check_shares({"alone": ONE}, 0.5)


def test_who_encodes_other_features_is_named() -> None:
    assert compare_widths({"a": 7, "b": 7}) == 7
    with pytest.raises(IsthmusError, match="party 'c': encodes another number of features than 'a'"):
        compare_widths({"a": 7, "b": 7, "c": 8})
