"""A matplotlib figure becomes SVG in the page's colours, with titles to hover over."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from isthmus.report import svg


@svg.house_style()
def drawn(title: str = "A title") -> str:
    from matplotlib.figure import Figure

    figure = Figure((4, 3))
    axes = figure.add_subplot()
    (line,) = axes.plot([0, 1], [0, 1], color=svg.SERIES[2])
    (dots,) = axes.plot([0.2, 0.4], [0.5, 0.6], "o", color=svg.INK)
    line.set_gid("line")
    dots.set_gid("dots")
    return svg.inline_svg(figure, title, "It rises.", {"line": "up", "dots": ["first", "second"]}, "chart wide")


def test_colours_are_variables_of_the_page() -> None:
    text = drawn()
    assert "stroke:var(--s2)" in text
    assert "fill:var(--ink)" in text
    assert svg.SERIES[2] not in text
    assert "font-family" not in text


def test_a_title_and_a_description_are_read_aloud() -> None:
    root = ET.fromstring(drawn("a\x00b"))
    assert (root.get("class"), root.get("role")) == ("chart wide", "img")
    assert [(each.tag, each.text) for each in root][:2] == [("title", "a\ufffdb"), ("desc", "It rises.")]


def test_an_artist_has_one_text_and_markers_have_one_each() -> None:
    root = ET.fromstring(drawn())
    titles = [(element.tag, title.text) for element in root.iter() for title in element.findall("title")]
    assert titles == [("svg", "A title"), ("g", "up"), ("use", "first"), ("use", "second")]


def test_only_markers_of_the_same_drawing_are_referred_to() -> None:
    root = ET.fromstring(drawn())
    ids = {element.attrib["id"] for element in root.iter() if "id" in element.attrib}
    assert ids == {use.attrib["href"].removeprefix("#") for use in root.iter("use")}


def test_the_same_figure_gives_the_same_text() -> None:
    assert drawn() == drawn()


def test_text_without_forbidden_characters_stays() -> None:
    assert svg.printable("银行 <b>") == "银行 <b>"
    assert svg.printable("a\nb\ud800") == "a\ufffdb\ufffd"
