"""How a server may call an action, in a study and at a party."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import make_node_parties
from isthmus.errors import IsthmusError
from isthmus.federation.actions import Binding, action
from isthmus.federation.local import LocalTransport
from isthmus.federation.verbs import Federation
from isthmus.methods.base import Method
from isthmus.methods.shared.mixing import Mixing
from isthmus.study.loop import sites_of
from isthmus.study.setup import module_for, task_for

VERBS = ("ask", "total", "exchange")


@pytest.mark.parametrize("name", sorted(Method.known()))
def test_every_action_says_who_may_read_what(name: str) -> None:
    for each, function in Method.named(name).AtParty.actions().items():
        binding = function.binding
        assert binding.verbs, each
        assert set(binding.verbs) <= set(VERBS)
        assert binding.protected or "exchange" not in binding.verbs, f"{each}: messages are for parties only"
        assert each == "lend" or binding.form or "exchange" not in binding.verbs, (
            f"{each}: what form have its messages?"
        )
        if binding.to == "parties" and not issubclass(Method.named(name), Mixing):  # whose sums cannot be masked
            assert binding.verbs == ("total",)
            assert binding.protected
            assert binding.least > 1


@given(
    st.sets(st.sampled_from(VERBS), min_size=1), st.sampled_from(["server", "parties"]), st.booleans(),
    st.sampled_from(VERBS), st.sampled_from(["server", "parties"]), st.integers(1, 4), st.booleans(),
)  # fmt: skip
def test_a_call_is_permitted_if_everything_fits(verbs, to, needs, verb, eyes, under, protected):
    binding = Binding(tuple(sorted(verbs)), to, 3, needs)
    due = verb in verbs and (verb != "total" or (eyes == to and under >= 3)) and (protected or not needs)
    with nullcontext() if due else pytest.raises(IsthmusError, match="refused: "):
        binding.permit("say", verb, eyes)
        binding.permit_disclosure("say", verb, under, protected=protected)


def test_an_action_says_its_verb() -> None:
    with pytest.raises(IsthmusError, match="action 'train': say by which verb it is called"):

        @action
        def train(site, request): ...


def test_a_study_refuses_what_a_party_would() -> None:
    """So that a method is found wrong before its first federation."""
    parties = make_node_parties((5, 6))
    method, task = Method.named("fedgcn")(), task_for(parties)
    module = module_for(method_encoder(), parties, task, 0)
    federation = Federation(LocalTransport(sites_of(method, parties, task, method.extended(module), seed=0)))
    with pytest.raises(IsthmusError, match="refused: action 'sum_up' is answered by total, not by ask"):
        federation.ask("sum_up")
    with pytest.raises(
        IsthmusError, match="refused: a total of action 'sum_up' is for the parties, not for the server"
    ):
        federation.total("sum_up")
    with pytest.raises(IsthmusError, match="refused: action 'evaluate' is answered by total, not by ask"):
        federation.ask("evaluate")


def method_encoder():
    from isthmus.nn.encoders import Encoder

    return Encoder.named("gcn")()
