"""The table `[privacy]`: its units and their options."""

import pytest

from isthmus.errors import IsthmusError
from isthmus.privacy.options import PartyPrivacy, Privacy


def test_epsilon_has_no_default():
    assert Privacy.named("party").read({"epsilon": 2}, "privacy") == PartyPrivacy(epsilon=2.0)
    with pytest.raises(IsthmusError, match="epsilon"):
        PartyPrivacy.read({}, "privacy")


@pytest.mark.parametrize(
    "wrong", [{"epsilon": 0}, {"epsilon": 1, "delta": 0}, {"epsilon": 1, "delta": 0.5}, {"epsilon": 1, "clip": 0}]
)
def test_values_without_a_meaning_are_refused(wrong):
    with pytest.raises(IsthmusError, match="give"):
        PartyPrivacy.read(wrong, "privacy")
