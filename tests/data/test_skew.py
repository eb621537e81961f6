import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus.data.skew import earth_movers

COUNTS = st.integers(1, 5).flatmap(
    lambda classes: st.lists(st.lists(st.integers(0, 20), min_size=classes, max_size=classes), min_size=1, max_size=6)
)


@given(COUNTS)
def test_the_distance_is_that_of_a_literal_loop(counts):
    whole = sum(sum(row) for row in counts)
    due = 0.0
    for row in counts:
        for label, count in enumerate(row):
            if sum(row):
                share = sum(each[label] for each in counts) / whole
                due += sum(row) / whole * abs(count / sum(row) - share)
    assert earth_movers(torch.tensor(counts)) == pytest.approx(due, abs=1e-12)


def test_the_distance_lies_between_nought_and_two():
    alike = torch.ones(7, 3, dtype=torch.long) * torch.arange(1, 8)[:, None]
    assert earth_movers(alike) == pytest.approx(0, abs=1e-12)
    assert earth_movers(torch.eye(50, dtype=torch.long)) == pytest.approx(2 - 2 / 50)
    assert earth_movers(torch.zeros(3, 2, dtype=torch.long)) == 0.0
    assert earth_movers(torch.zeros(3, 0, dtype=torch.long)) == 0.0
