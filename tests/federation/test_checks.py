"""Faulty answers are left out of a reply before anybody reads it, and the reply says what the ledger records."""

from __future__ import annotations

import math

import pytest
import torch

from isthmus.errors import IsthmusError
from isthmus.federation import wire
from isthmus.federation.answers import Answer, Mail, Reply
from isthmus.federation.checks import check_reply, norm_problem
from isthmus.federation.transport import Command

REQUEST = {"w": torch.zeros(2)}
FINE = {"w": torch.ones(2)}
AT = {"a": 0, "b": 1, "c": 2, "d": 3}


def command(verb: str = "total", *, same_form: bool = True) -> Command:
    return Command("answer", ("a", "b", "c", "d"), "say", verb, REQUEST, same_form=same_form)  # type: ignore[arg-type]


def test_the_fields_booked_are_those_of_the_first_party_in_the_federation() -> None:
    reply = Reply.of(("c", "a", "d"), Answer({"w": [torch.ones(3), torch.ones(2), torch.ones(4)]}))
    found = check_reply(reply, command(same_form=False), 1000, AT)
    assert found.arrival is not None
    assert found.arrival.fields == {0: "w[2]"}


def test_each_faulty_answer_is_named_and_only_what_travelled_is_booked() -> None:
    values = [FINE["w"], torch.tensor([1, math.nan]), torch.ones(999), torch.ones(3)]
    found = check_reply(Reply.of("abcd", Answer({"w": values})), command(), 1000, AT)
    assert found.parties == ("a",)
    assert list(found.failures) == ["b", "c", "d"]
    assert [why.split(", ")[1].split(" ")[0] for why in found.failures.values()] == ["field", "payload", "field"]
    assert found.arrival is not None
    assert found.arrival.sent == {"a": wire.size(FINE), "c": 0, "d": wire.size({"w": torch.ones(3)})}
    assert found.arrival.fields == {0: "w[2]"}


def test_a_reply_is_checked_once() -> None:
    once = check_reply(Reply.of("a", Answer({"w": torch.ones(1, 2)})), command(), 1000, AT)
    assert check_reply(once, command("exchange"), 0, AT) is once


def test_fields_may_change_where_the_request_is_no_model() -> None:
    reply = Reply.of("a", Answer({"w": torch.ones(1, 3)}))
    assert check_reply(reply, command(same_form=False), 1000, AT).parties == ("a",)


def test_rows_by_id_are_counted_in_answers_and_messages() -> None:
    ids = [torch.arange(3), torch.arange(0)]
    found = check_reply(Reply.of("ab", Answer({"ids": ids})), command(), 1000, AT)
    assert found.arrival is not None
    assert found.arrival.rows == {"a": 3}
    mail = Mail([{"b": {"ids": torch.arange(2)}, "c": {"ids": torch.arange(4)}}])
    found = check_reply(Reply.of("a", mail), command("exchange"), 1000, AT)
    assert found.arrival is not None
    assert found.arrival.rows == {"a": 6}


def test_the_verb_must_fit_the_answer() -> None:
    with pytest.raises(IsthmusError, match="action 'say' was called by exchange and makes an answer"):
        check_reply(Reply.of("a", Answer({"w": torch.ones(1, 2)})), command("exchange"), 1000, AT)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("large", [1.0, 30.0])
def test_the_limit_of_an_answer_holds_to_a_part_in_a_thousand(dtype: torch.dtype, large: float) -> None:
    sent = {"w": torch.full((40,), large, dtype=dtype), "b": torch.full((3, 2), -large, dtype=dtype)}
    limit = 100 * (1 + large * 46**0.5)
    for factor, allowed in ((0.998, True), (1.002, False)):
        value = limit * factor / 46**0.5
        fields = {name: torch.full_like(each, value) for name, each in sent.items()}
        assert (norm_problem(fields, sent, 100.0) == "") == allowed


def test_an_answer_whose_squares_are_infinite_in_single_precision_is_too_large() -> None:
    assert norm_problem({"w": torch.full((4,), 1e30)}, {"w": torch.ones(4)}, 1000.0)
    assert not norm_problem({"w": torch.full((4,), 1e30)}, {"w": torch.full((4,), 1e30)}, 1000.0)
