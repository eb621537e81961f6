"""Names in a party's limits that do not exist are reported."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.federated_studies import study_of
from tests.federation.by_hand import at_folders

from isthmus.data.folder.limits import Limits
from isthmus.data.folder.settings import PartyFile
from isthmus.deploy.limits import limit_problems
from isthmus.deploy.setup import SET_UP, SetUpHandler


def test_limits_may_name_actions_of_any_method_and_of_the_set_up() -> None:
    names = ["introduce", "train", "propagate"]
    assert limit_problems(Limits()) == []
    assert limit_problems(Limits(actions=names, methods=["fedavg"], totals=["masks", "none"])) == []


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"methods": ["fedavg", "fedvag"]}, "limits.methods: unknown name 'fedvag': did you mean 'fedavg'?"),
        ({"totals": ["mask"]}, "limits.totals: unknown name 'mask': did you mean 'masks'?"),
        ({"actions": ["evalute"]}, "limits.actions: unknown name 'evalute': did you mean 'evaluate'?"),
        ({"actions": ["total:train"]}, "limits.actions: unknown name 'total:train': did you mean 'train'?"),
    ],
)
def test_unknown_name_is_a_problem_of_party_toml(limits: dict[str, Any], text: str) -> None:
    (problem,) = limit_problems(Limits(**limits))
    assert problem.severe
    assert str(problem) == f"party.toml: {text}"


@pytest.mark.parametrize("action", SET_UP)
def test_party_answers_every_action_of_the_set_up(action: str) -> None:
    assert callable(getattr(SetUpHandler, f"_{action}"))


def test_a_new_party_folder_proposes_a_standing_approval_that_can_be_used(tmp_path: Path) -> None:
    at_folders(study_of("fedavg"), tmp_path)
    path = tmp_path / "party-0" / "party.toml"
    assert not PartyFile.read(tomllib.loads(path.read_text()), "party.toml").limits.standing
    lines = [line.removeprefix("# ") for line in path.read_text().splitlines()]
    lines = [line for line in lines if not line.startswith(("In a federation", "Remove the comment"))]
    limits = PartyFile.read(tomllib.loads("\n".join(lines)), "party.toml").limits
    assert limits.standing
    assert limits.totals == ["masks"]
