"""Error classes, and the hints in their messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.errors import (
    DIVERGED,
    IsthmusError,
    PartyFailed,
    PayloadError,
    TooFewAnswers,
    did_you_mean,
    missing_extra,
    similar_path,
)


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("fedavgg", ["local", "fedavg"], "did you mean 'fedavg'?"),
        ("FedAvg", ["local", "fedavg"], "did you mean 'fedavg'?"),
        ("xyz", ["local", "fedavg"], "known: fedavg, local"),
        ("gnc", ["gcn", "sgc"], "did you mean 'gcn'?"),
        ("", ["local"], "known: local"),
        ("xyz", ["a, 2", "b"], "known: 'a, 2', 'b'"),
        ("xyz", [], "there are none"),
    ],
)
def test_hint_is_the_most_similar_name_or_all_names(name: str, known: list[str], hint: str) -> None:
    assert did_you_mean(name, known) == hint


@pytest.mark.parametrize("kind", [PayloadError, PartyFailed, TooFewAnswers, *DIVERGED])
def test_every_error_is_an_isthmus_error(kind: type[Exception]) -> None:
    assert issubclass(kind, IsthmusError)


def test_failed_party_is_named_with_the_reason() -> None:
    error = PartyFailed("bank-a", "disk on fire")
    assert (str(error), error.party, error.reason) == ("party 'bank-a': disk on fire", "bank-a", "disk on fire")


def test_missing_extra_says_what_to_install() -> None:
    text = str(missing_extra("pymetis", "metis", "partition 'metis'"))
    assert text == "partition 'metis' needs pymetis: install it with pip install 'isthmus[metis]'"


def test_a_path_that_is_not_there_is_told_a_similar_one(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "first").mkdir()

    assert similar_path(tmp_path / "runs" / "frist") == f": did you mean '{tmp_path / 'runs' / 'first'}'?"
    assert similar_path(tmp_path / "runs" / "first") == "", "it is there"
    assert similar_path(tmp_path / "runs" / "zz") == similar_path(tmp_path / "no" / "first") == ""
