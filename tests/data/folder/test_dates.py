"""Dates are read from real ones and from texts."""

from datetime import UTC, date, datetime

import pyarrow as pa
import pytest

from isthmus.data.folder.dates import DAY, UNKNOWN, moment_of, read_dates, setting_text, text_of


@pytest.mark.parametrize(
    "values",
    [
        pa.array([date(1970, 1, 3), None]),
        pa.array([datetime(1970, 1, 3), None], pa.timestamp("ms")),
        pa.array([datetime(1970, 1, 3, tzinfo=UTC), None], pa.timestamp("us", "Europe/Berlin")),
        pa.array(["1970-01-03", None]),
        pa.array(["1970-01-03T02:00:00+02:00", ""]),
    ],
)
def test_every_type_gives_the_same_moments(values):
    moments, wrong = read_dates(values)
    assert moments.tolist() == [2 * DAY, UNKNOWN]
    assert not wrong.any()


def test_unreadable_texts_are_marked():
    moments, wrong = read_dates(pa.array(["2024-02-31", "soon", None, "2024-02-29"]))
    assert wrong.tolist() == [True, True, False, False]
    assert text_of(moments[3]) == "2024-02-29"


def test_settings_may_be_dates_of_toml():
    assert setting_text(date(2024, 6, 1)) == "2024-06-01"
    assert moment_of(setting_text(datetime(2024, 6, 1, 12))) == moment_of("2024-06-01") + DAY // 2
    with pytest.raises(ValueError, match="give a date"):
        setting_text("June")
