"""Charts are drawn to scale, and as they are said."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from isthmus.study import charts


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.5, 0.5), (0, 0), (-3, 7), (0.8123, 0.8125), (1, 1e7), (-2e-9, 1e-9)]
)
def test_ticks_enclose_the_values(low: float, high: float) -> None:
    ticks = charts.nice_ticks(low, high)
    assert ticks[0] <= low + 1e-12
    assert ticks[-1] >= high - 1e-12
    assert 2 <= len(ticks) <= 8
    assert len(set(ticks)) == len(ticks)


def test_labels_are_moved_apart_in_order() -> None:
    placed = charts.spread([50, 50, 49, 51, 10], 15, 0, 100)
    assert all(after - before >= 15 - 1e-9 for before, after in pairwise(sorted(placed)))
    assert placed[2] < placed[0] < placed[1] < placed[3]
    assert min(placed) >= 0
    assert max(placed) <= 100


def test_a_scatter_keeps_every_item_within_its_frame() -> None:
    points = [(-3.0, 1e6), (5.0, -2.0), (1.0, 0.0)]
    drawn = ET.fromstring(charts.scatter("t", [charts.Cloud("a", 0, points), charts.Cloud("<b>", 1, [(2.0, 3.0)])]))
    frame = next(e.attrib for e in drawn.iter() if e.attrib.get("class") == "frame")
    left, top, wide, high = (float(frame[name]) for name in ("x", "y", "width", "height"))
    paths = [e.attrib["d"] for e in drawn.iter() if e.attrib.get("class") == "cloud"]
    dots = [tuple(map(float, dot.split("h")[0].split())) for path in paths for dot in path.split("M")[1:]]
    assert len(dots) == 4
    assert all(left < x < left + wide and top < y < top + high for x, y in dots)
    assert dots[0][0] == min(x for x, _ in dots)
    assert dots[0][1] == min(y for _, y in dots), "up is more"


def test_items_at_one_place_are_drawn_too() -> None:
    assert "nan" not in charts.scatter("t", [charts.Cloud("a", 0, [(1.0, 1.0)] * 3)])


def test_a_long_curve_is_thinned_and_keeps_its_end() -> None:
    values = [float(each) for each in range(5000)]
    drawn = charts.line_chart("t", [charts.Curve("m", 0, range(1, 5001), values, values, values)], str)
    line = ET.fromstring(drawn).find(".//polyline")
    assert line is not None
    assert len(line.attrib["points"].split()) <= 401
    assert "m ends at 4999.0 in round 5000" in drawn
