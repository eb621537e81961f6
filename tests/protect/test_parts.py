"""Parts of sums as whole numbers."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.errors import PayloadError
from isthmus.federation.answers import Answer, IdUnion, PlainTotal, Reply
from isthmus.federation.sums import positions_of
from isthmus.protect.parts import (
    Part,
    form_of,
    format_form,
    from_words,
    locate_rows,
    parse_form,
    split_weights,
    to_words,
    word_count,
)

COLUMNS = {
    "w": torch.tensor([[1.5, -2.25], [1e-9, 3e8]]),
    "n": torch.tensor([5, -(2**40)]),
    "d": torch.tensor([1e15, -0.1, 2.0**-40], dtype=torch.float64),
    "h": torch.tensor([0.5, -3.0], dtype=torch.bfloat16),
    "one": torch.tensor(7.0, dtype=torch.float64),
    "none": torch.zeros(0, 3),
}


def test_there_and_back_is_right_to_the_stated_precision() -> None:
    words = to_words(COLUMNS, 1, 32)
    assert words.dtype == np.uint64
    assert len(words) == word_count(form_of(COLUMNS))
    found = from_words(words, form_of(COLUMNS), 32)
    for name, value in COLUMNS.items():
        assert found[name].dtype == value.dtype
        assert found[name].shape == value.shape
        step = 2.0**-33 if value.dtype != torch.float64 else 2.0**-45
        assert torch.allclose(found[name].double(), value.double(), atol=step, rtol=1e-7)


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), min_size=2, max_size=9))
def test_sums_of_words_are_words_of_sums(parts: list[list[float]]) -> None:
    columns = [{"x": torch.tensor(part), "y": torch.tensor(part, dtype=torch.float64)} for part in parts]
    words = [to_words(each, len(parts), 32) for each in columns]
    found = from_words(np.sum(words, axis=0, dtype=np.uint64), form_of(columns[0]), 32)
    due = torch.tensor([math.fsum(column) for column in zip(*parts, strict=True)], dtype=torch.float64)
    assert torch.allclose(found["y"], due, atol=len(parts) * 2.0**-44, rtol=1e-14)
    single = torch.stack([each["x"].double() for each in columns]).sum(0)
    assert torch.allclose(found["x"].double(), single, atol=len(parts) * 2.0**-33, rtol=1e-7)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (torch.tensor([2.0**31]), "a number beyond"),
        (torch.tensor([float("inf")]), "a number beyond"),
        (torch.tensor([float("nan")]), "a number beyond"),
        (torch.tensor([2.0**62], dtype=torch.float64), "a number beyond"),
        (torch.tensor([2**62]), "integers too large for a sum over 4"),
        (torch.tensor([-(2**62)]), "integers too large for a sum over 4"),
    ],
)
def test_what_could_run_over_is_an_error(value: torch.Tensor, what: str) -> None:
    with pytest.raises(PayloadError, match=what):
        to_words({"x": value}, 4, 32)


def test_the_largest_that_may_be_there_does_not_run_over() -> None:
    value = torch.tensor([2.0**29 - 64, -(2.0**29) + 64])  # of four, 32 bits: 2^31 in all
    words = to_words({"x": value}, 4, 32)
    assert torch.equal(from_words(words * np.uint64(4), form_of({"x": value}), 32)["x"], 4 * value)


def test_some_rows_are_where_they_are_said_to_be() -> None:
    columns = {"a": torch.randn(5, 3), "b": torch.randn(5, dtype=torch.float64), "c": torch.arange(10).view(5, 2)}
    at = torch.tensor([4, 0, 4])
    form, places = locate_rows(form_of(columns), at)
    found = from_words(to_words(columns, 1, 40)[places], form, 40)
    for name, value in columns.items():
        assert torch.allclose(found[name].double(), value[at].double(), atol=1e-6)


def test_parts_add_up_to_the_total() -> None:
    union = IdUnion(torch.tensor([2, 5, 9]), torch.tensor([1, 2, 1]))
    replies = [
        Reply.of("a", Answer({"ids": torch.tensor([[5, 2]]), "x": torch.randn(1, 2, 4)}, torch.tensor([[1.0, 3.0]]))),
        Reply.of("b", Answer({"ids": torch.tensor([[9, 5]]), "x": torch.randn(1, 2, 4)}, torch.tensor([[0.0, 2.0]]))),
    ]
    due = PlainTotal(replies, positions_of("ab"), union)
    parts = [Part.of(reply, union, weights=True) for reply in replies]
    columns = {name: sum(part.columns[name] for part in parts) for name in parts[0].columns}
    sums, weights = split_weights(columns)  # type: ignore[arg-type]
    assert torch.allclose(sums["x"], due.sums["x"])
    assert torch.equal(weights["x"], due.weights["x"])
    assert sum(part.counts["x"] for part in parts).tolist() == [1, 2, 0]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text", ["", "[]x", "3", '[["x"]]', '[["x", "I128", [1]]]', '[["x", "F32", [-1]]]', '[["x","F32",["a"]]]']
)
def test_a_form_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(PayloadError, match="a part of a sum"):
        parse_form(text)


def test_a_form_comes_back() -> None:
    assert parse_form(format_form(form_of(COLUMNS))) == form_of(COLUMNS)
    assert json.loads(format_form(form_of(COLUMNS)))[0] == ["w", "F32", [2, 2]]
