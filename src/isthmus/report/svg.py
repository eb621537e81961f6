"""Matplotlib figures as SVG for a page: in its colours and fonts, with titles to hover over.

Colours become CSS variables, so that one drawing serves light mode, dark mode and paper. A drawing refers only to
its own markers, by names that follow from their shape, so one page can hold many drawings.
"""

from __future__ import annotations

import io
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unicodedata import category

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SERIES = ("#0067a5", "#c44f00", "#008064", "#7a0041", "#6200f5", "#a82a3b", "#1800b8", "#64006b")
REFERENCES = ("#5c3d00", "#101418", "#55606b")
INK, SOFT, LINE, PAPER = "#16191d", "#5a636d", "#dde1e6", "#fefefe"
"""Colours in light mode; each becomes a CSS variable of the page.

References are in the order of `wording.REFERENCES`. Any two colours differ by at least 7 in CIEDE2000 in light and dark
mode, two references by 20, also for readers who do not see red, green or blue; the contrast with the page is 4.5 to 1.
"""

_COLOURS = SERIES + REFERENCES
_DARK = ("#5cb3f0", "#ff9350", "#3fcfa4", "#f5e400", "#0083f5", "#e55c00", "#7af5ab", "#4c997f")
_DARK_REFERENCES = ("#a87654", "#f7f8f9", "#738c99")


def slot(style: int) -> int:
    """The number of a style's colour: series repeat theirs, references are numbered from -1 down."""
    return style % len(SERIES) if style >= 0 else len(_COLOURS) + style


def _variables(colours: Sequence[str]) -> str:
    return ";".join(f"--s{at}:{colour}" for at, colour in enumerate(colours))


STYLE = f"""
:root{{{_variables(_COLOURS)}}}
@media screen and (prefers-color-scheme:dark){{:root{{{_variables(_DARK + _DARK_REFERENCES)}}}}}
{"".join(f".s{at}{{--c:var(--s{at})}}" for at in range(len(_COLOURS)))}
{",".join(f".s{at + len(SERIES)} i" for at in range(len(REFERENCES)))}{{background:none;border:3px solid var(--c)}}
svg.chart{{display:block;width:100%;max-width:500px;height:auto;font:13px system-ui,-apple-system,"Segoe UI",Roboto,
sans-serif;font-variant-numeric:tabular-nums;stroke-linejoin:round}}
svg.wide{{max-width:none}}@media screen{{svg.wide{{min-width:1000px}}}}
"""

_VARIABLES = {colour: f"var(--s{at})" for at, colour in enumerate(_COLOURS)} | {
    INK: "var(--ink)",
    SOFT: "var(--soft)",
    LINE: "var(--line)",
    PAPER: "var(--paper)",
}
_SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "isthmus",
    "text.parse_math": False,
    "font.size": 13,
    "font.family": "DejaVu Sans",
    "text.color": SOFT,
    "axes.labelcolor": SOFT,
    "axes.edgecolor": SOFT,
    "axes.autolimit_mode": "round_numbers",
    "axes.xmargin": 0,
    "axes.ymargin": 0,
    "axes.axisbelow": True,
    "axes.unicode_minus": False,
    "grid.color": LINE,
    "grid.linewidth": 1,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "path.simplify": False,
}
_NAMESPACE = re.compile(r"\{.*\}")
_NUMBER = re.compile(r"-?\d+\.\d+")
_COLOUR = re.compile(r"#[0-9a-f]{6}")
_COMMAND = re.compile(r"\s*([A-Za-z])\s*")
_FONT = re.compile(r"font: (?:(\w+) )?([\d.]+px) [^;]*")


@contextmanager
def house_style() -> Iterator[None]:
    """Let matplotlib draw in the style of the page, while a figure is built and while it becomes SVG.

    There is no warning about missing letters: text is only measured in this font, and shown in another one.
    """
    import matplotlib

    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def inline_svg(
    figure: Figure, title: str, description: str, hover: Mapping[str, str | Sequence[str]], kind: str = "chart"
) -> str:
    """The SVG of a figure; screen readers read its title and description.

    Arguments:
        figure: built in `house_style`, in colours of this module.
        hover: the text over each artist, by its `gid`; markers have one text each.
        kind: the classes of the SVG element.
    """
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    drawn = ET.fromstring(file.getvalue())
    for extra in [each for each in drawn if not each.tag.endswith("}g")]:
        drawn.remove(extra)  # metadata, and a style that would apply to the whole page
    for element in drawn.iter():
        _simplify(element)
    _share_styles(drawn)
    _hover(drawn, hover)
    used = {element.attrib["href"][1:] for element in drawn.iter("use")}
    for element in drawn.iter():
        if element.attrib.get("id") not in used:
            element.attrib.pop("id", None)
    root = ET.Element("svg", {"class": kind, "role": "img", "viewBox": drawn.attrib["viewBox"]})
    for name, text in (("title", title), ("desc", description)):
        ET.SubElement(root, name).text = printable(text)
    root.extend(drawn)
    return ET.tostring(root, encoding="unicode")


def printable(text: str) -> str:
    """A text without characters that SVG forbids: control characters and lone surrogates."""
    return "".join("\N{REPLACEMENT CHARACTER}" if category(letter) in ("Cc", "Cs") else letter for letter in text)


def _simplify(element: ET.Element) -> None:
    """Remove namespaces and line breaks, round to a hundredth of a pixel, use the page's colours and fonts."""
    element.tag = _NAMESPACE.sub("", element.tag)
    element.tail = None
    if element.tag != "text":
        element.text = None
    attributes = {_NAMESPACE.sub("", name): value for name, value in element.attrib.items()}
    for name in attributes.keys() & {"d", "x", "y", "transform"}:
        short = _NUMBER.sub(lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), attributes[name])
        attributes[name] = _COMMAND.sub(r"\1", short).strip() if name == "d" else short
    if attributes.get("transform", "").startswith("rotate(-0 "):
        del attributes["transform"]
    if "style" in attributes:
        attributes["style"] = _page_style(attributes["style"])
    element.attrib.clear()
    element.attrib.update(attributes)


def _page_style(style: str) -> str:
    style = _FONT.sub(lambda font: f"font-weight: {font[1] or 'normal'}; font-size: {font[2]}", style)
    parts = [each for each in style.split("; ") if not each.startswith("font-family")]
    return _COLOUR.sub(lambda colour: _VARIABLES.get(colour[0], colour[0]), ";".join(parts)).replace(": ", ":")


def _share_styles(drawn: ET.Element) -> None:
    """Move a style that all markers of a group share to the group."""
    for group in drawn.iter("g"):
        styles = {each.attrib.get("style", "") for each in group}
        if len(styles) == 1 and all(each.tag == "use" for each in group) and len(group) > 1:
            group.attrib["style"] = styles.pop()
            for each in group:
                each.attrib.pop("style", None)


def _hover(drawn: ET.Element, hover: Mapping[str, str | Sequence[str]]) -> None:
    for group in [each for each in drawn.iter("g") if each.attrib.get("id") in hover]:
        texts = hover[group.attrib["id"]]
        if isinstance(texts, str):
            title = ET.Element("title")
            title.text = printable(texts)
            group.insert(0, title)
            continue
        for marker, text in zip(group.iter("use"), texts, strict=True):
            ET.SubElement(marker, "title").text = printable(text)
