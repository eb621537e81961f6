"""Every party is sent its own model and no other."""

from __future__ import annotations

import pytest
import torch

from isthmus.errors import IsthmusError
from isthmus.federation.models import Group, Models
from isthmus.federation.transport import Each

W = {"w": torch.ones(2)}


def test_a_shared_model_is_one_request_for_all() -> None:
    assert Models(shared=W).request(["a", "b"]) == {"weights": W}


def test_nothing_is_sent_where_parties_keep_everything() -> None:
    assert Models(personal=True).request(["a", "b"]) == {}


def test_every_party_is_sent_the_model_of_its_group() -> None:
    other = {"w": torch.zeros(2)}
    models = Models(groups={"one": Group(("a", "c"), W), "two": Group(("b",), other)})
    request = models.request(["c", "b"])
    assert isinstance(request, Each)
    assert list(request.payloads) == ["c", "b"]
    assert request.payloads["c"]["weights"] is W
    assert request.payloads["b"]["weights"] is other


def test_a_party_in_no_group_is_an_error() -> None:
    with pytest.raises(IsthmusError, match=r"^party 'b' is in no group: give every party a model$"):
        Models(groups={"one": Group(("a",), W)}).request(["a", "b"])


@pytest.mark.parametrize(
    ("models", "one"),
    [
        (Models(shared=W), True),
        (Models(shared=W, personal=True), False),
        (Models(personal=True), False),
        (Models(groups={"one": Group(("a",), W)}), False),
        (Models(), False),
    ],
)
def test_one_model_for_all_is_shared_and_nowhere_personal(models: Models, one: bool) -> None:
    assert models.one_for_all is one


@pytest.mark.parametrize(
    ("models", "text"),
    [
        ({"shared": {"w": torch.ones(1)}, "groups": {"a": Group(("north",), {})}}, "leave one of the two out"),
        ({"groups": {"a": Group(("north",), {}), "b": Group(("north",), {})}}, "'north' is in two groups"),
        ({"groups": {"../a": Group(("north",), {})}}, "group '../a' cannot be a file's name"),
    ],
)
def test_models_that_contradict_each_other_are_refused(models, text):
    with pytest.raises(IsthmusError, match=text):
        Models(**models)
