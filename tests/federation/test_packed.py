"""Requests, replies and mail come back from their bytes as they were; what cannot is the fault of one party."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scripted import bits

from isthmus.errors import NotFinite, PayloadError
from isthmus.federation import wire
from isthmus.federation.answers import Answer, Mail, Reply
from isthmus.federation.packed import PackedReply, open_mail, open_request, pack_mail, pack_request
from isthmus.federation.transport import Each

LIMIT = wire.LIMIT
PARTIES = ("a", "b")


def there_and_back(answer: Answer | Mail, limit: int = LIMIT) -> Reply:
    return PackedReply.of("say", Reply.of(PARTIES, answer), limit).open("say", limit)


@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 2.0]), {"w": torch.tensor([[1.0], [0.0]]), "n": [3, 4]}])
def test_answers_keep_their_fields_and_weights(weight: Any) -> None:
    answer = Answer({"w": {"x": torch.arange(4.0).view(2, 2)}, "n": [1, 2], "name": ["ä", ""]}, weight)
    before, after = Reply.of(PARTIES, answer), there_and_back(answer)
    assert after.parties == PARTIES
    assert after.weights.keys() == before.weights.keys()
    assert [bits(after.payload(at)) for at in (0, 1)] == [bits(before.payload(at)) for at in (0, 1)]


def test_letters_keep_their_addressees_whatever_these_are_called() -> None:
    letters = [{"b/1:": {"x": torch.ones(2)}}, {}]
    assert bits(list(there_and_back(Mail(letters)).letters)) == bits(letters)


def test_a_sealed_letter_passes_as_it_is() -> None:
    sealed = wire.Sealed(b"envelope", 7, "x[2]")
    packed = PackedReply(("a",), [wire.encode({})], [{"b": sealed}])
    assert packed.open("say", LIMIT).letters == [{"b": sealed}]


def test_an_answer_that_cannot_travel_is_the_fault_of_its_party() -> None:
    reply = there_and_back(Answer({"x": [float("nan"), 1.0]}))
    assert (reply.parties, reply.failures) == (("b",), {"a": f"action 'say', field 'x' is nan: {NotFinite.HINT}"})


def test_a_letter_over_the_limit_is_the_fault_of_its_sender() -> None:
    reply = there_and_back(Mail([{"b": {"x": torch.ones(999)}}, {"a": {"x": torch.ones(2)}}]), limit=1000)
    assert (reply.parties, list(reply.failures)) == (("b",), ["a"])
    assert "over the limit of 1000" in reply.failures["a"]


@pytest.mark.parametrize("data", [b"", b"nothing", wire.encode({"y": 1})], ids=["empty", "no payload", "other fields"])
def test_bytes_that_are_no_answer_like_the_first_are_the_fault_of_their_party(data: bytes) -> None:
    reply = PackedReply(PARTIES, [wire.encode({"x": 1}), data]).open("say", LIMIT)
    assert (reply.parties, reply.columns, list(reply.failures)) == (("a",), {"x": [1]}, ["b"])


def test_where_nobody_has_an_answer_the_failures_are_left() -> None:
    assert PackedReply(("a",), [b""], failures={"b": "slow"}).open("say", LIMIT).failures.keys() == {"a", "b"}


def test_requests_come_back_one_for_all_or_one_for_each() -> None:
    plain = {"w": {"x": torch.ones(2)}, "n": 1}
    assert bits(open_request(pack_request(plain, PARTIES, LIMIT), LIMIT)) == bits(plain)
    each = pack_request(Each({"a": plain, "b": {"n": 2}, "c": {"n": 3}}), PARTIES, LIMIT)
    opened = open_request(each, LIMIT)
    assert isinstance(opened, Each)
    assert bits(dict(opened.payloads)) == bits({"a": plain, "b": {"n": 2}})
    with pytest.raises(PayloadError):
        open_request(b"nothing", LIMIT)


@pytest.mark.parametrize(
    ("mail", "kind"),
    [
        ({"a": {"x": torch.ones(1)}, "b": {"n": 1}}, dict),
        ({"w": {"x": torch.ones(1)}, "n": 1}, bytes),
        ({"a": 1}, bytes),
        ({}, dict),
    ],
    ids=["letters", "sum", "sum with a party's name as field", "nothing"],
)
def test_mail_comes_back_as_letters_or_as_a_sum(mail: dict[str, Any], kind: type) -> None:
    packed = pack_mail(mail, PARTIES, LIMIT)
    assert isinstance(packed, kind)
    assert bits(dict(open_mail(packed, LIMIT))) == bits(mail)
