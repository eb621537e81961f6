"""Which sums of the same answers may be opened together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.errors import IsthmusError
from isthmus.protect.sums_opened import SumRecord, too_few_shown

SETS = st.lists(st.frozensets(st.sampled_from("abcdef"), min_size=1), min_size=1, max_size=4)


@given(SETS)
@settings(deadline=None, max_examples=200)
def test_sums_that_may_be_opened_together_determine_no_single_part(sets: list[frozenset[str]]) -> None:
    """A part is determined if its unit vector is a combination of the sums, as of linear equations."""
    sums = np.array([[float(party in each) for party in "abcdef"] for each in sets])
    rank = np.linalg.matrix_rank(sums)
    shown = [p for p, unit in zip("abcdef", np.eye(6), strict=True) if np.linalg.matrix_rank([*sums, unit]) == rank]
    if not too_few_shown(sets, 2):
        assert not shown
    elif not shown:  # stricter than needed: two parts that nobody else is with
        assert len(sets) > 1


def test_a_record_is_of_one_state() -> None:
    record = SumRecord()
    record.open(frozenset("abcd"), 2, ("one", "two"))
    record.open(frozenset("abcd"), 2, ("one",))
    with pytest.raises(IsthmusError, match="would show the part of d alone"):
        record.open(frozenset("abc"), 2, ("two", "three"))
    record.open(frozenset("abc"), 2, ("three",))
    record.open(frozenset("ab"), 2, ("one",))
    with pytest.raises(IsthmusError, match="only the parts of a, b together"):
        record.open(frozenset("ab"), 3, ("one",))


def test_parts_are_counted_by_state() -> None:
    record = SumRecord()
    record.note_closed(("one", "two"))
    record.note_closed(("two",))
    assert [record.times_closed((state,)) for state in ("one", "two", "three")] == [1, 2, 0]
