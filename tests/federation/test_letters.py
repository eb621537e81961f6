"""The form of messages between parties."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from isthmus.federation.letters import UpTo, letter_problem

FORM = {"ids": torch.tensor([3, 5]), "h": torch.zeros(2, 4), "more": UpTo(3, torch.ones(2))}
LETTER = {"ids": torch.tensor([3, 5]), "h": torch.full((2, 4), 99.0), "more": torch.ones(1, 2)}


def test_a_message_of_the_form_is_taken() -> None:
    assert not letter_problem(LETTER, FORM, 100)


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ({"ids": torch.tensor([5, 3])}, "other numbers"), ({"ids": "a"}, "'ids' is str"),
        ({"h": torch.zeros(4, 2)}, r"\[4, 2\]"), ({"h": torch.full((2, 4), 101.0)}, "beyond 100"),
        ({"h": torch.full((2, 4), torch.nan)}, "nan"), ({"h": torch.zeros(2, 4).double()}, "float64"),
        ({"more": torch.ones(4, 2)}, r"expected is \[3, 2\]"), ({"other": torch.ones(1)}, "its fields are"),
    ],
)  # fmt: skip
def test_another_message_is_refused(lie: dict[str, Any], why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        assert not letter_problem({**LETTER, **lie}, FORM, 100)
    assert letter_problem(LETTER, None, 100)


def test_a_list_of_whole_numbers_may_hold_any_up_to_its_length():
    form = {"ids": UpTo(3, torch.tensor(0))}
    assert letter_problem({"ids": torch.tensor([7, 9])}, form, 100) == ""
    assert "is [4], expected is [3]" in letter_problem({"ids": torch.arange(4)}, form, 100)
    assert "torch.float32, expected is torch.int64" in letter_problem({"ids": torch.ones(2)}, form, 100)
