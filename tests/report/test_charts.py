"""Charts are drawn to scale, and their descriptions name what they show."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from result_folders import said_over

from isthmus.report import charts, svg

pytestmark = pytest.mark.drawn


def parts(drawn: str, said: str) -> list[ET.Element]:
    """What shows a text."""
    return [group for group in ET.fromstring(drawn).iter("g") if said_over(group) == said]


def corners(element: ET.Element) -> list[tuple[float, float]]:
    """Of the only path in it, in order."""
    (path,) = element.iter("path")
    pairs = re.findall(r"(-?[\d.]+) (-?[\d.]+)", path.attrib["d"])
    return [(float(x), float(y)) for x, y in pairs]


def markers(element: ET.Element) -> list[tuple[float, float]]:
    return [(float(use.attrib["x"]), float(use.attrib["y"])) for use in element.iter("use")]


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.5, 0.5), (0, 0), (-3, 7), (0.8123, 0.8125), (1, 1e7), (-2e-9, 1e-9)]
)
def test_ticks_enclose_the_values(low: float, high: float) -> None:
    drawn = charts.line_chart("t", [charts.Curve("m", 0, [1, 2], [low, high], [low, low], [high, high])], str)
    texts = [text for text in ET.fromstring(drawn).iter("text") if "text-anchor:end" in text.attrib["style"]]
    ticks = sorted((float(text.text or ""), -float(text.attrib["y"])) for text in texts)
    assert ticks[0][0] <= low + 1e-12
    assert ticks[-1][0] >= high - 1e-12
    assert 2 <= len(ticks) <= 8
    assert all(y < above for (_, y), (_, above) in pairwise(ticks))


def test_labels_are_moved_apart_in_order() -> None:
    placed = charts.space_labels([50, 50, 49, 51, 10], 15, 0, 100)
    assert all(after - before >= 15 - 1e-9 for before, after in pairwise(sorted(placed)))
    assert placed[2] < placed[0] < placed[1] < placed[3]
    assert min(placed) >= 0
    assert max(placed) <= 100


def test_curves_share_one_scale() -> None:
    up, flat = [0.1, 0.2, 0.4], [0.3, 0.3, 0.3]
    curves = [charts.Curve("up", 0, [1, 2, 3], up, up, up), charts.Curve("flat", 1, [1, 2, 3], flat, flat, flat)]
    drawn = charts.line_chart("t", curves, str)
    (x0, y0), (x1, y1), (x2, y2) = corners(parts(drawn, "up")[1])
    middle = corners(parts(drawn, "flat")[1])[0][1]
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.02)
    assert (y0 - middle) / (y0 - y1) == pytest.approx(2, rel=1e-3)
    assert (y1 - y2) / (y0 - y1) == pytest.approx(2, rel=1e-3)


def test_fixed_bounds_give_charts_one_scale() -> None:
    heights = []
    for values in ([0.2, 0.4], [0.2, 0.9]):
        curve = charts.Curve("m", 0, [1, 2], values, values, values)
        heights.append(corners(parts(charts.line_chart("t", [curve], str, (0.1, 0.9)), "m")[1])[0][1])
    assert heights[0] == heights[1]


def test_bars_are_as_long_as_their_values() -> None:
    groups = [charts.Bars("a", 0, (10.0, 20.0)), charts.Bars("b", 1, (5.0, 0.0))]
    drawn = charts.bar_chart("t", ("sent", "received"), groups, str)
    said = ("a: 10.0 sent, 20.0 received", "b: 5.0 sent, 0.0 received")
    boxes = [corners(part) for each in said for part in parts(drawn, each)]
    lengths = [max(x for x, _ in box) - min(x for x, _ in box) for box in boxes]
    assert [length / lengths[1] for length in lengths] == pytest.approx([0.5, 1, 0.25, 0], abs=1e-3)


def test_dots_and_their_mean_lie_where_their_values_are() -> None:
    row = charts.Dots("m", 0, [("seed 0", 1.0), ("seed 1", 4.0)], 2.0, "2.0 ± 1")
    drawn = charts.dot_chart("t", "What.", [row], str)
    seeds = [use for use in ET.fromstring(drawn).iter("use") if "seed" in said_over(use)]
    assert [said_over(use) for use in seeds] == ["m, seed 0: 1.0", "m, seed 1: 4.0"]
    first, second = (float(use.attrib["x"]) for use in seeds)
    ((mean, _),) = markers(parts(drawn, "m: 2.0 ± 1")[0])
    assert (mean - first) / (second - first) == pytest.approx(1 / 3, abs=1e-3)


def test_shares_fill_the_bar() -> None:
    drawn = charts.stack_chart("t", ["x", "y"], [charts.Stack("a", (3, 1), "4"), charts.Stack("none", (0, 0), "0")])
    boxes = [corners(parts(drawn, said)[0]) for said in ("a, x: 3 (75.0 %)", "a, y: 1 (25.0 %)")]
    (left, middle), (again, right) = ((min(x for x, _ in box), max(x for x, _ in box)) for box in boxes)
    assert middle == again
    assert (middle - left) / (right - left) == pytest.approx(0.75, abs=1e-3)
    assert {"a 75 %", "b 25 %"} <= {text.text for text in ET.fromstring(drawn).iter("text")}


def test_parts_have_letters_for_readers_who_see_no_colours() -> None:
    """Letters inside are those of the legend, also where there is no room for the share; a sliver has neither."""
    drawn = charts.stack_chart("t", ["fraud", "other", "rare"], [charts.Stack("bank", (88, 10, 2), "100")])
    texts = [text.text for text in ET.fromstring(drawn).iter("text")]
    assert texts == ["bank  100", "a 88 %", "b", "t", "a: fraud", "b: other", "c: rare"]


def test_fields_of_a_heat_map_are_as_dark_as_their_values() -> None:
    drawn = charts.heat_map("t", ["a", "b"], ["x", "y", "z"], [[1.0, 1.0, 0.0], [0.5, 0.0, 0.1]], str)
    paths = [path.attrib for path in ET.fromstring(drawn).iter("path") if "fill:var(--s0)" in path.attrib["style"]]
    fields = [(path["style"].partition("opacity:")[2], path["d"].count("M")) for path in paths]
    assert fields[:3] == [("0.1", 1), ("0.5", 1), ("", 1)], "neighbours of one shade are one"
    assert "The darkest field is a, x: 1.0." in drawn


def test_a_scatter_keeps_every_item_within_its_frame() -> None:
    points = [(-3.0, 1e6), (5.0, -2.0), (1.0, 0.0)]
    drawn = charts.scatter("t", [charts.Cloud("a", 0, points), charts.Cloud("<b>", 1, [(2.0, 3.0)])])
    dots = markers(parts(drawn, "a: 3")[0]) + markers(parts(drawn, "<b>: 1")[0])
    assert len(dots) == 4
    assert all(0 < x < 420 and 0 < y < 460 for x, y in dots)
    assert dots[0][0] == min(x for x, _ in dots)
    assert dots[0][1] == min(y for _, y in dots), "up is more"


def test_classes_differ_in_shape_too() -> None:
    groups = charts.clouds([(float(kind), 0.0, kind) for kind in range(-1, 9)])
    drawn = ET.fromstring(charts.scatter("t", groups))
    said = {said_over(group): group for group in drawn.iter("g") if said_over(group)}
    shapes = [next(group.iter("use")).attrib["href"] for group in said.values()]
    assert len(set(shapes)) == len(groups) == 10, "nine classes and those without"


def test_items_at_one_place_are_drawn_too() -> None:
    assert "nan" not in charts.scatter("t", [charts.Cloud("a", 0, [(1.0, 1.0)] * 3)])


def test_a_long_curve_is_thinned_and_keeps_its_end() -> None:
    values = [float(each) for each in range(5000)]
    drawn = charts.line_chart("t", [charts.Curve("m", 0, range(1, 5001), values, values, values)], str)
    assert len(corners(parts(drawn, "m")[1])) <= 401
    assert "m ends at 4999.0 in round 5000" in drawn


@pytest.mark.parametrize(
    "name", ["$x$", "_hidden", "a\N{NO-BREAK SPACE}b", "银行", "a\x00\x1bb\n", "<script>", "]]>", "#0067a5 url(x)"]
)
def test_any_name_is_shown_as_it_is(name: str) -> None:
    shown = re.sub("[\x00\x1b\n]", "\N{REPLACEMENT CHARACTER}", name)
    curve = charts.Curve(name, 0, [1, 2], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0])
    for drawn in (
        charts.line_chart("t", [curve], str),
        charts.bar_chart("t", ("sent",), [charts.Bars(name, 0, (1.0,))], str),
        charts.dot_chart("t", "What.", [charts.Dots(name, 0, [("seed 0", 1.0)], 1.0, "1")], str),
        charts.stack_chart("t", ["x"], [charts.Stack(name, (1.0,), "1")]),
        charts.heat_map("t", [name], ["x"], [[1.0]], str),
        charts.roc_chart("t", [(name, [(0.0, 0.1), (1.0, 1.0)])]),
    ):
        chart = ET.fromstring(drawn)
        assert any((text.text or "").lstrip(" ").startswith(shown) for text in chart.iter("text"))
        assert chart.findtext("desc")


def test_long_labels_are_shown_in_full() -> None:
    """They differ at their ends: beside a row and at a curve's end there is no room for them."""
    names = [f"fedavg local.lr=0.01, local.weight_decay=0.0005, weighting={way}" for way in ("train", "even")]
    values = [0.2, 0.4]
    for drawn in (
        charts.line_chart("t", [charts.Curve(name, 0, [1, 2], values, values, values) for name in names], str),
        charts.bar_chart("t", ("sent",), [charts.Bars(name, 0, (1.0,)) for name in names], str),
        charts.dot_chart("t", "What.", [charts.Dots(name, 0, [("seed 0", 1.0)], 1.0, "1") for name in names], str),
        charts.stack_chart("t", ["x"], [charts.Stack(name, (1.0,), "1") for name in names]),
    ):
        shown = "".join(text.text or "" for text in ET.fromstring(drawn).iter("text")).replace(" ", "")
        assert [name.replace(" ", "") in shown for name in names] == [True, True]


def test_references_have_colours_and_lines_of_their_own() -> None:
    slots = [svg.slot(style) for style in range(-len(svg.REFERENCES), len(svg.SERIES))]
    assert len(set(slots)) == len(svg.SERIES + svg.REFERENCES)
    curves = [charts.Curve(str(style), style, [1, 2], [0, style], [0, style], [0, style]) for style in (0, -1, -2, -3)]
    lines = re.findall("stroke-dasharray:[^;]*", charts.line_chart("t", curves, str))
    assert len(set(lines)) == 3, "a line without dashes has no such attribute"


def test_colours_are_the_pages_own() -> None:
    drawn = charts.stack_chart("#0067a5", ["x"], [charts.Stack("a", (1.0,), "1")])
    assert re.findall(r"#[0-9a-f]{6}", drawn) == ["#0067a5", "#0067a5"], "in the title, and said"
    assert "fill:var(--s0)" in drawn
    assert all(f"--s{at}:" in svg.STYLE for at in range(11))
