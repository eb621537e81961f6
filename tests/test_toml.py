"""Written TOML reads back unchanged."""

from __future__ import annotations

import math
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus import toml

texts = st.text(st.characters(codec="utf-8"), max_size=12)
scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | texts
lists = st.recursive(scalars, lambda inner: st.lists(inner | st.dictionaries(texts, inner, max_size=2), max_size=3))
tables = st.recursive(
    st.dictionaries(texts, lists, max_size=4),
    lambda inner: st.dictionaries(texts, scalars | inner | st.lists(inner, max_size=3), max_size=4),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(tables)
def test_any_table_reads_back(table: dict[str, Any]) -> None:
    assert tomllib.loads(toml.dumps(table)) == table


@pytest.mark.parametrize("value", ["\x7f", 'a"b\\c', "\n\t", "naïve ⟷ 𝔊", 1e-05, 1e16, -0.0, float("inf"), [[1], []]])
def test_awkward_value_reads_back(value: Any) -> None:
    assert tomllib.loads(toml.dumps({"value": value}))["value"] == value


@pytest.mark.parametrize("key", ["a.b", "", "with space", "é", '"', "#"])
def test_awkward_key_reads_back(key: str) -> None:
    assert tomllib.loads(toml.dumps({key: {key: 1}, "list": [{key: 2}]})) == {key: {key: 1}, "list": [{key: 2}]}


def test_nan_reads_back() -> None:
    assert math.isnan(tomllib.loads(toml.dumps({"value": float("nan")}))["value"])


def test_none_is_left_out() -> None:
    assert toml.dumps({"a": None, "b": {"c": None, "d": 1}}) == "\n[b]\nd = 1\n"


def test_tables_stand_below_values() -> None:
    table = {"methods": [{"name": "x", "local": {"lr": 0.1}}, {"name": "y"}], "seeds": [0, 1]}
    assert toml.dumps(table).splitlines() == [
        "seeds = [0, 1]", "", "[[methods]]", 'name = "x"', "", "[methods.local]", "lr = 0.1", "", "[[methods]]",
        'name = "y"',
    ]  # fmt: skip
