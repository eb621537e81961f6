"""What parties on machines of their own are given, and what they may answer."""

import pytest

from isthmus.errors import IsthmusError
from isthmus.federation.rules import Rules


def test_a_study_without_rules_gives_parties_ten_minutes():
    assert Rules().seconds == 600


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"seconds": 0}, "option 'seconds' is 0"),
        ({"norm": 1}, "option 'norm' is 1"),
        ({"tries": 0}, "option 'tries' is 0"),
        ({"second": 5}, "unknown option 'second'"),
    ],
)
def test_rules_that_cannot_hold_are_one_line(values, text):
    with pytest.raises(IsthmusError, match=text) as error:
        Rules.read(values, "federation")
    assert "\n" not in str(error.value)
