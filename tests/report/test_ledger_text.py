"""The sentences on who saw what follow from the ledger."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from isthmus.report.ledger_text import ActionSummary, Share, describe_action, parse_fields


def action(eyes: str, **changes: Any) -> ActionSummary:
    whole: dict[str, Any] = {
        "action": "train", "protection": "none", "fields": ["weights/a", "weights/b"], "answers": [2, 2],
        "shares": {"a": Share((2, 2)), "b": Share((2, 2))},
    }  # fmt: skip
    return ActionSummary(eyes=eyes, **{**whole, **changes})


@pytest.mark.parametrize(
    ("eyes", "text"),
    [
        ("server sees each answer", "Each of 2 parties: the server saw its model weights, twice."),
        (
            "server sees the sum",
            "Each of 2 parties: the server saw only the sum of model weights over 2 parties, twice. "
            "The summands were not hidden from whoever operates the server.",
        ),
        (
            "the addressed party",
            "Each of 2 parties: only the addressed party saw its model weights, twice. The server's side of the method "
            "learned sizes alone. The messages were not sealed against whoever operates the server.",
        ),
        ("somebody", "Each of 2 parties: its model weights was seen by: somebody, twice."),
    ],
)
def test_eyes_decide_who_is_said_to_have_seen_what(eyes: str, text: str) -> None:
    assert describe_action(action(eyes)) == text


def test_a_protection_is_named() -> None:
    text = describe_action(action("server sees the sum", protection="pairwise masks"))
    assert text.endswith("over 2 parties, twice. Protected by pairwise masks.")


def test_an_action_without_answers_or_fields_says_so() -> None:
    assert describe_action(action("server sees the sum", answers=[0], shares={})) == "No party answered."
    assert "no field left it, twice." in describe_action(action("server sees each answer", fields=[]))
    matched = replace(action("server sees each answer", fields=[]), action="matched")
    assert "nobody can compute one alone" in describe_action(matched)


def test_nouns_of_the_method_name_its_own_fields() -> None:
    own = action("server sees each answer", fields=["gini", "train/x"], nouns={"gini": "indices"})
    assert "the server saw its indices and 'train'," in describe_action(own)


def test_parties_with_equal_shares_are_one_group_and_many_groups_are_their_extremes() -> None:
    shares = {"a": Share((3, 3), (5, 5)), "b": Share((1, 1), (5, 7)), "c": Share((1, 1), (5, 7))}
    text = describe_action(action("server sees each answer", shares=shares))
    assert text == "a: the server saw its model weights, 3 times, 5 rows each time; b and c: once, 5 to 7 rows."
    many = {f"p{count}": Share((count, count), (count, count)) for count in range(1, 6)}
    text = describe_action(action("server sees each answer", shares=many))
    assert text.endswith("1 (p1) to 5 (p5) times, 1 (p1) to 5 (p5) rows each time.")


def test_fields_are_read_with_all_their_shapes() -> None:
    fields = parse_fields(["weights/a[2, 3], count", "weights/a[4, 3]", None, "count"])
    assert fields == {"weights/a": ["[2, 3]", "[4, 3]"], "count": [""]}
