"""Limits refuse what a party does not allow, in one line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from isthmus.data.folder.limits import Limits
from isthmus.errors import IsthmusError


@dataclass
class StubMethod:
    name: str = "fedavg"
    epsilon: float | None = None
    rounds: int = 5
    every: int = 2
    evaluate_by: str = "total"

    def model_dump(self) -> dict[str, Any]:
        return {"rounds": self.rounds, "local": {"epochs": 4}, "head_epochs": 7}

    def most_spent(self) -> float | None:
        return self.epsilon


def refusal(call: Any, *arguments: Any) -> str:
    """The text of the refusal, or an empty text."""
    try:
        call(*arguments)
    except IsthmusError as error:
        return str(error)
    return ""


def test_without_limits_everything_is_allowed_but_a_sum_over_one() -> None:
    limits = Limits()
    assert not refusal(limits.permit_method, StubMethod(), "study", 1, None)
    assert not refusal(limits.permit_protection, "none")
    assert not any(refusal(limits.permit_call, verb, "train", 2) for verb in ("ask", "total", "exchange"))


@pytest.mark.parametrize(
    ("limits", "method", "noise", "text"),
    [
        ({"methods": ["fedprox"]}, StubMethod(), "own", "method 'fedavg' is not among limits.methods (fedprox)"),
        ({"methods": []}, StubMethod(), "own", "method 'fedavg' is not among limits.methods (none)"),
        ({"epsilon": 1}, StubMethod(), "own", "method 'fedavg' adds no noise, but limits.epsilon demands it"),
        (
            {"epsilon": 1}, StubMethod(epsilon=0.5), "study",
            "limits.epsilon demands noise of the party's own: set protect.noise = 'own'",
        ),
        ({"epsilon": 1}, StubMethod(epsilon=1.5), "own", "method 'fedavg' spends epsilon 1.5, limits.epsilon is 1"),
        ({"epsilon": 1, "methods": ["fedavg"]}, StubMethod(epsilon=1.0), "own", ""),
        ({"rounds": 4}, StubMethod(), "own", "method 'fedavg' has 5 rounds, limits.rounds is 4"),
        ({"epochs": 6}, StubMethod(), "own", "method 'fedavg' has 7 epochs, limits.epochs is 6"),
        ({"evaluations": 2}, StubMethod(), "own", "method 'fedavg' has 3 evaluations, limits.evaluations is 2"),
        (
            {}, StubMethod(evaluate_by="ask"), "own",
            "method 'fedavg' evaluates by 'ask', limits.evaluate_by accepts total",
        ),
    ],
)  # fmt: skip
def test_method_is_held_to_the_limits(limits: dict[str, Any], method: StubMethod, noise: str, text: str) -> None:
    assert refusal(Limits(**limits).permit_method, method, noise, 1, method.most_spent()) == (
        text and f"refused: {text}"
    )


@pytest.mark.parametrize(
    ("calls", "text"), [(None, ""), (60, ""), (59, "method 'm' calls 'train' 60 times, limits.calls is 59")]
)
def test_the_calls_of_a_run_are_held_to_the_limits(calls: int | None, text: str) -> None:
    found = refusal(Limits(calls=calls).permit_plan, "m", {"train": 60, "evaluate": 2})
    assert found == (text and f"refused: {text}")


@pytest.mark.parametrize(("totals", "text"), [(["masks"], ""), (["ckks"], "accepts ckks"), ([], "accepts none")])
def test_protection_is_held_to_the_limits(totals: list[str], text: str) -> None:
    found = refusal(Limits(totals=totals).permit_protection, "masks")
    assert found == (text and f"refused: protect.total is 'masks', limits.totals {text}")


@pytest.mark.parametrize(
    ("limits", "call", "text"),
    [
        ({"actions": ["train"]}, ("ask", "train", 1), ""),
        ({"verbs": ["ask"]}, ("total", "train", 9), "'total' is not among limits.verbs (ask), action 'train'"),
        ({"min_contributors": 3}, ("total", "train", 3), ""),
        ({"min_contributors": 3}, ("ask", "train", 1), ""),
        ({"min_contributors": 3}, ("total", "train", 2), "a total of 2, limits.min_contributors is 3, action 'train'"),
    ],
)
def test_call_is_held_to_the_limits(limits: dict[str, Any], call: tuple[str, str, int], text: str) -> None:
    assert refusal(Limits(**limits).permit_call, *call) == (text and f"refused: {text}")
