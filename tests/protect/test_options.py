"""The table `[protect]` of a study."""

from __future__ import annotations

import pytest

from isthmus.errors import IsthmusError
from isthmus.protect.masks import MaskedSums, MaskingGuard
from isthmus.protect.options import Protect
from isthmus.protect.sealing import Channel, generate_keyrings


def test_a_protection_is_given_by_name_or_as_a_table() -> None:
    assert Protect.read({"total": "masks"}, "protect").protection().name == "masks"
    own = Protect.read({"total": {"name": "masks", "bits": 20, "threshold": 0.75}}, "protect").protection()
    assert own.model_dump() == {"bits": 20, "threshold": 0.75}


def test_without_a_protection_the_server_adds_readable_summands() -> None:
    plain = Protect.read({"total": "none"}, "protect").protection()
    channel = Channel(generate_keyrings(("a", "b"))["a"], "run")
    assert plain.sums(None, lambda *sum_of: "", 1) is None  # type: ignore[arg-type]
    assert plain.guard(channel, 2) is None


def test_both_sides_of_masks_get_the_options() -> None:
    masks = Protect.read({"total": {"name": "masks", "bits": 20, "threshold": 0.75}}, "protect").protection()
    sums = masks.sums(None, lambda *sum_of: "", 1)  # type: ignore[arg-type]
    guard = masks.guard(Channel(generate_keyrings(("a", "b"))["a"], "run"), 3)
    assert isinstance(sums, MaskedSums)
    assert isinstance(guard, MaskingGuard)
    assert (sums.bits, sums.threshold, guard.bits, guard.min_parties) == (20, 0.75, 20, 3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"total": "mask"}, "unknown protection of totals 'mask'"),
        ({"total": {"name": "masks", "bits": 60}}, "protect.total: option 'bits' is 60"),
        ({"exchange": "open"}, "option 'exchange' is 'open'"),
    ],
)
def test_mistakes_name_the_option(given: dict[str, object], message: str) -> None:
    with pytest.raises(IsthmusError, match=message):
        Protect.read(given, "protect").protection()
