"""Charts of the report: lines, bars, dots, shares, a heat map and a scatter plot, drawn by matplotlib.

Every series is labelled where it is drawn, or in a legend with its line style; no chart depends on its colours. Charts
are about as wide as a phone, so that text is legible there. Text is measured in a wider font than the one of the page,
so labels that fit here fit there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from string import ascii_lowercase
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from isthmus.report.svg import INK, LINE, PAPER, REFERENCES, SERIES, house_style, inline_svg, printable, slot

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.path import Path
    from matplotlib.ticker import Locator

_SHADES = 10
"""Shades of a heat map."""

_NAMED_SHADES = (2, 6, 10)
"""Shades in the legend."""

_WIDTH = 400
"""Width of a chart whose text is legible on a phone."""

_LETTER, _LINE = 8.6, 18
"""Width of a letter and height of a line, rather too large than too small."""

_BESIDE, _AT_END = 26, 16
"""Letters of the longest label beside a row, and at the end of a curve. Longer labels get lines of their own."""

_MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*", "<", ">", "p", "h")
"""Of clouds, for readers who do not see the colours."""

_DASHES: tuple[str | tuple[float, tuple[float, ...]], ...] = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))
"""Line styles of curves: of four series in turn, and of the references."""


@dataclass(frozen=True)
class Curve:
    """A mean with the lowest and the highest value around it, over rounds."""

    name: str
    style: int
    rounds: Sequence[int]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


@dataclass(frozen=True)
class Bars:
    """The values of one name, one per column of the chart; the first is drawn solid, the second pale."""

    name: str
    style: int
    values: Sequence[float]


@dataclass(frozen=True)
class Dots:
    """The single values of one name, each with a label, their mean, and a text with the numbers."""

    name: str
    style: int
    points: Sequence[tuple[str, float]]
    mean: float
    text: str


@dataclass(frozen=True)
class Stack:
    """The parts of one name, and a text with the total."""

    name: str
    values: Sequence[float]
    text: str


@dataclass(frozen=True)
class Cloud:
    """The items of one kind, by their coordinates."""

    name: str
    style: int
    points: Sequence[tuple[float, float]]


@house_style()
def line_chart(
    title: str, curves: Sequence[Curve], show: Callable[[float], str], bounds: tuple[float, float] | None = None
) -> str:
    """Curves over rounds, each with a min..max band; `bounds` fixes the value axis, so that charts can be compared."""
    thin = [_thinned(curve) for curve in curves]
    at_end = max(len(curve.name) for curve in thin) <= _AT_END
    height = max(230.0, 19.0 * len(thin) * at_end)
    canvas = _Canvas(title, _WIDTH, height + 80)
    axes = canvas.axes
    axes.grid(axis="y", clip_on=False)
    axes.spines[["left", "top", "right"]].set_visible(False)
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(_round_numbers(whole=True))
    first, last = min(curve.rounds[0] for curve in thin), max(curve.rounds[-1] for curve in thin)
    axes.set_xlim(first, max(last, first + 1))
    axes.yaxis.set_major_locator(_round_numbers())
    axes.yaxis.set_major_formatter(lambda value, _: show(value))
    low, high = axes.set_ylim(axes.yaxis.get_major_locator().view_limits(*(bounds or value_range(thin))))
    heights = space_labels([(curve.mean[-1] - low) / (high - low) for curve in thin], 17 / height, 0, 1)
    for curve, height in zip(thin, heights, strict=True):
        canvas.over(curve.name, *_curve(axes, curve, height if at_end else None))
    if not at_end:
        canvas.legend(1)
    ends = "; ".join(f"{c.name} ends at {show(c.mean[-1])} in round {c.rounds[-1]}" for c in thin)
    return canvas.svg(f"One line per method, mean over seeds, band from lowest to highest. {ends}.")


@house_style()
def bar_chart(title: str, columns: Sequence[str], groups: Sequence[Bars], show: Callable[[float], str]) -> str:
    """Horizontal bars from zero, one per column in every group, with the value at the end."""
    texts = [[f"{show(value)} {column}" for value, column in zip(g.values, columns, strict=True)] for g in groups]
    canvas = _Canvas(title, _WIDTH, 36)
    places = canvas.rows([(group.name, _colour(group.style)) for group in groups], 15, len(columns) + 0.7)
    canvas.axes.xaxis.set_visible(False)
    canvas.axes.spines[["top", "right", "bottom"]].set_visible(False)
    for place, group, labels in zip(places, groups, texts, strict=True):
        for order, (value, text) in enumerate(zip(group.values, labels, strict=True)):
            fill = {"facecolor": _colour(group.style), "linewidth": 0} if not order else _pale(group.style)
            height = place + order - (len(columns) - 1) / 2
            bar = canvas.axes.barh(height, value, 0.88, clip_on=False, **fill)
            canvas.axes.bar_label(bar, [text], padding=6, color=INK)
            canvas.over(f"{group.name}: {', '.join(labels)}", *bar)
    canvas.axes.set_xlim(0, max((value for group in groups for value in group.values), default=0.0) or 1.0)
    return canvas.svg(
        "; ".join(f"{g.name}: {', '.join(labels)}" for g, labels in zip(groups, texts, strict=True)) + "."
    )


@house_style()
def dot_chart(title: str, what: str, rows: Sequence[Dots], show: Callable[[float], str]) -> str:
    """One line per row with a dot per value and a stroke at the mean; `what` begins the description."""
    canvas = _Canvas(title, _WIDTH, 62)
    places = canvas.rows([(f"{row.name}  {row.text}", _colour(row.style)) for row in rows], 26)
    axes = canvas.axes
    axes.grid(axis="x", clip_on=False)
    axes.spines[:].set_visible(False)
    axes.xaxis.set_major_locator(_round_numbers(4))
    axes.xaxis.set_major_formatter(lambda value, _: show(value))
    for at, row in zip(places, rows, strict=True):
        drawn: dict[str, Any] = {"color": _colour(row.style), "clip_on": False}
        values = [value for _, value in row.points]
        (dots,) = axes.plot(values, [at] * len(values), "o", markersize=10, markeredgewidth=0, alpha=0.55, **drawn)
        canvas.over([f"{row.name}, {label}: {show(value)}" for label, value in row.points], dots)
        (mean,) = axes.plot(row.mean, at, "|", markersize=16, markeredgewidth=3, **drawn)
        canvas.over(f"{row.name}: {row.text}", mean)
    return canvas.svg(f"{what} {'; '.join(f'{row.name}: {row.text}' for row in rows)}.")


@house_style()
def stack_chart(title: str, parts: Sequence[str], rows: Sequence[Stack]) -> str:
    """One bar of the same length per row, divided by the shares of its parts.

    A part with enough room shows its letter in the legend, for readers who do not see the colours, and its share.
    """
    canvas = _Canvas(title, _WIDTH, 36)
    places = canvas.rows([(f"{row.name}  {row.text}", INK) for row in rows], 25)
    axes = canvas.axes
    axes.xaxis.set_visible(False)
    axes.spines[:].set_visible(False)
    axes.set_xlim(0, 1)
    start = [0.0] * len(rows)
    for order, part in enumerate(parts):
        shares = [row.values[order] / (sum(row.values) or 1) for row in rows]
        drawn: dict[str, Any] = {
            "facecolor": _colour(order),
            "edgecolor": PAPER,
            "linewidth": 1,
            "clip_on": False,
            "label": f"{ascii_lowercase[order]}: {part}",
        }
        bars = axes.barh(places, shares, 0.78, start, **drawn)
        inside = [_inside(ascii_lowercase[order], share) for share in shares]
        axes.bar_label(bars, inside, label_type="center", color=PAPER, fontsize=12)
        for row, share, bar in zip(rows, shares, bars, strict=True):
            canvas.over(f"{row.name}, {part}: {row.values[order]:,g} ({100 * share:.1f} %)", bar)
        start = [before + share for before, share in zip(start, shares, strict=True)]
    canvas.legend()
    description = "; ".join(f"{row.name}: {_shares_text(row, parts)}" for row in rows)
    return canvas.svg(f"{description}.")


@house_style()
def heat_map(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    show: Callable[[float], str],
) -> str:
    """A cell per row and column, darker for larger values, with names along both sides as far as there is room."""
    from matplotlib.patches import PathPatch

    down = min(20.0, max(2.0, 640 / len(rows)))
    canvas = _Canvas(title, 1120, 56)
    every = math.ceil(14 / down)
    shown = _fitting(rows, 30)
    canvas.rows([(name if at % every == 0 else "", INK) for at, name in enumerate(shown)], down, beside=30)
    axes = canvas.axes
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.spines[:].set_edgecolor(LINE)
    axes.xaxis.tick_top()
    every = math.ceil(_LETTER * (1 + max(map(len, _fitting(columns, 18)))) / (900 / len(columns)))
    axes.set_xticks(range(0, len(columns), every), _fitting(columns[::every], 18))
    most, row, column = max((value, -at, -place) for at, line in enumerate(values) for place, value in enumerate(line))
    for level, path in sorted(_shades(values, most or 1.0).items()):
        label = (
            f"{'' if level == _SHADES else 'up to '}{show(most * level / _SHADES)}" if level in _NAMED_SHADES else None
        )
        shade = {"facecolor": SERIES[0], "alpha": level / _SHADES, "linewidth": 0, "clip_on": False}
        axes.add_patch(PathPatch(path, label=label if level in _NAMED_SHADES else None, **shade))
    canvas.legend()
    description = f"The darkest field is {rows[-row]}, {columns[-column]}: {show(most)}."
    return canvas.svg(description, "chart wide")


def clouds(
    items: Iterable[tuple[float, float, int]], class_name: Callable[[int], str] = "class {}".format
) -> list[Cloud]:
    """A cloud for each class of items `(x, y, class)`; `class_name` names it, and a class below 0 is unknown."""
    points: dict[int, list[tuple[float, float]]] = {}
    for x, y, kind in items:
        points.setdefault(int(kind), []).append((x, y))
    return [Cloud("no label" if kind < 0 else class_name(kind), kind, at) for kind, at in sorted(points.items())]


@house_style()
def scatter(title: str, groups: Sequence[Cloud]) -> str:
    """A mark for each item, with a colour and a shape per group; the legend has the sizes of the groups."""
    counted = [f"{group.name}: {len(group.points):,}" for group in groups]
    canvas = _Canvas(title, 340, 340)
    canvas.axes.set(xticks=[], yticks=[])
    canvas.axes.margins(0.02)
    canvas.axes.spines[:].set_edgecolor(LINE)
    for group, text in zip(groups, counted, strict=True):
        drawn: dict[str, Any] = {
            "color": _colour(group.style),
            "markeredgewidth": 0,
            "alpha": 0.6,
            "clip_on": False,
            "label": text,
        }
        marker = _MARKERS[group.style % len(_MARKERS)]
        canvas.over(text, *canvas.axes.plot(*zip(*group.points, strict=True), marker, markersize=6, **drawn))
    canvas.legend(3)
    return canvas.svg(f"One mark per item. {', '.join(counted)}.")


@house_style()
def roc_chart(title: str, curves: Sequence[tuple[str, Sequence[tuple[float, float]]]]) -> str:
    """True over false positive rates, both on a scale of powers of ten: a leak shows where few others are accused."""
    canvas = _Canvas(title, 340, 340)
    axes = canvas.axes
    axes.set(xscale="log", yscale="log", xlabel="false positive rate", ylabel="true positive rate")
    low = min([0.01, *(rate for _, points in curves for point in points for rate in point if rate > 0)])
    axes.set(xlim=(low, 1), ylim=(low, 1))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda rate, _: f"{100 * rate:g} %")
        axis.set_minor_formatter("")
    axes.plot((low, 1), (low, 1), color=LINE, linewidth=1, label="chance")
    for style, (name, points) in enumerate(curves):
        false, true = ([max(rate, low) for rate in rates] for rates in zip(*points, strict=True))
        dash = _DASHES[style // len(SERIES) % len(_DASHES)]
        drawn: dict[str, Any] = {"color": _colour(style % len(SERIES)), "linestyle": dash, "label": f" {name}"}
        canvas.over(name, *axes.plot(false, true, linewidth=2, clip_on=False, **drawn))
    canvas.legend(1)
    texts = [f"{name} finds {100 * _found(points, 0.01):.1f} % at 1 %" for name, points in curves]
    return canvas.svg(f"One line per attack; the diagonal is chance. {'; '.join(texts)}.")


def _found(points: Sequence[tuple[float, float]], few: float) -> float:
    return max((true for false, true in points if false <= few), default=0.0)


def value_range(curves: Sequence[Curve]) -> tuple[float, float]:
    """The lowest and the highest value of all curves."""
    return min(min(curve.low) for curve in curves), max(max(curve.high) for curve in curves)


def space_labels(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move positions until neighbours are `gap` apart: a crowd spreads around its middle, the order stays.

    >>> space_labels([30.0, 30.0, 50.0], 10, 0, 60)
    [25.0, 35.0, 50.0]
    """
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    blocks: list[tuple[float, int]] = []
    for index in order:
        middle, count = positions[index], 1
        while blocks and middle - blocks[-1][0] < gap * (count + blocks[-1][1]) / 2:
            before, others = blocks.pop()
            middle, count = (middle * count + before * others) / (count + others), count + others
        blocks.append((middle, count))
    flat = [middle + gap * (place - (count - 1) / 2) for middle, count in blocks for place in range(count)]
    last = len(flat) - 1
    placed = list(positions)
    for place, (index, value) in enumerate(zip(order, flat, strict=True)):
        placed[index] = min(max(value, low + gap * place), high - gap * (last - place))
    return placed


class _Canvas:
    """A figure with a title, one pair of axes, and texts to hover over."""

    def __init__(self, title: str, width: float, height: float) -> None:
        from matplotlib.figure import Figure

        self.title = title
        lines = wrap(printable(title), int(width / _LETTER)) or [""]
        self.figure: Figure = Figure((width / 72, height / 72), layout="constrained")  # an inch is 72 units of SVG
        self.grow(_LINE * (len(lines) - 1))
        self.figure.suptitle("\n".join(lines), x=0, ha="left", fontsize=14, fontweight="bold", color=INK)
        self.axes: Axes = self.figure.add_subplot()
        for ground in (self.figure.patch, self.axes.patch):
            ground.set_visible(False)
        self.hover: dict[str, str | Sequence[str]] = {}

    def grow(self, height: float) -> None:
        self.figure.set_figheight(self.figure.get_figheight() + height / 72)

    def rows(
        self, labels: Sequence[tuple[str, str]], unit: float, step: float = 1, beside: int = _BESIDE
    ) -> list[float]:
        """Make room for rows from top to bottom, `step` units each, and label each in its colour.

        Labels stand at the left, the part of a chart that a narrow screen shows first; if one is too long for that,
        they stand in full above their rows.

        Returns:
            The middle of each row, on the axis that grows downwards.
        """
        above = max(len(label) for label, _ in labels) > beside
        blocks = [_wrapped(label, _WIDTH) if above else printable(label) for label, _ in labels]
        room = [_LINE * (block.count("\n") + 1) / unit if above else 0.0 for block in blocks]
        tops = [step * at + sum(room[:at]) for at in range(len(blocks) + 1)]
        places = [top + own + step / 2 for top, own in zip(tops, room, strict=False)]
        self.axes.set_yticks([] if above else places, [] if above else blocks)
        texts = (
            [self.axes.text(0, place - step / 2, block, va="bottom", transform=self.axes.get_yaxis_transform())
             for place, block in zip(places, blocks, strict=True)]
            if above else self.axes.get_yticklabels()
        )  # fmt: skip
        for text, (_, colour) in zip(texts, labels, strict=True):
            text.set(color=colour, fontweight="bold")
        self.axes.tick_params("y", pad=12)
        self.axes.set_ylim(tops[-1], 0)
        self.grow(unit * tops[-1])
        return places

    def legend(self, columns: int = 8) -> None:
        """The legend, in as many columns as there is room for."""
        handles, labels = self.axes.get_legend_handles_labels()
        width = 72 * self.figure.get_figwidth()
        blocks = [_wrapped(label, width - 60) for label in labels]
        longest = max((len(line) for block in blocks for line in block.split("\n")), default=1)
        columns = max(1, min(columns, int(width // (_LETTER * longest + 60))))
        lines = max((block.count("\n") + 1 for block in blocks), default=1)
        self.grow(_LINE * 1.2 * lines * math.ceil(len(blocks) / columns) + 10)
        self.figure.legend(handles, blocks, loc="outside lower left", ncols=columns)

    def over(self, text: str | Sequence[str], *artists: Artist) -> None:
        """Show a text over artists; markers have one each."""
        for artist in artists:
            artist.set_gid(f"over-{len(self.hover)}")
            self.hover[f"over-{len(self.hover)}"] = text

    def svg(self, description: str, kind: str = "chart") -> str:
        return inline_svg(self.figure, self.title, description, self.hover, kind)


def _curve(axes: Axes, curve: Curve, height: float | None) -> list[Artist]:
    """The band, the line with a dot at its end, and its name at a share of the axes' height, or in the legend."""
    colour = _colour(curve.style)
    band = axes.fill_between(curve.rounds, curve.low, curve.high, color=colour, alpha=0.14, linewidth=0, clip_on=False)
    drawn: dict[str, Any] = {"color": colour, "clip_on": False}
    dash = _DASHES[curve.style // 4 % 4 if curve.style >= 0 else curve.style % 4]
    label = None if height is not None else f" {curve.name}"  # the legend leaves out what begins with an underscore
    (line,) = axes.plot(curve.rounds, curve.mean, linestyle=dash, linewidth=2, label=label, **drawn)
    (end,) = axes.plot(curve.rounds[-1], curve.mean[-1], "o", markersize=6, markeredgewidth=0, **drawn)
    if height is None:
        return [band, line, end]
    name = axes.annotate(
        printable(curve.name),
        (curve.rounds[-1], curve.mean[-1]),
        (1.04, height),
        textcoords="axes fraction",
        color=colour,
        fontweight="bold",
        va="center",
        annotation_clip=False,
        arrowprops={"arrowstyle": "-", "color": colour, "alpha": 0.45, "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 5},
    )
    return [band, line, end, name]


def _round_numbers(about: int = 5, whole: bool = False) -> Locator:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(about, steps=[1, 2, 5, 10], integer=whole, min_n_ticks=2)


def _colour(style: int) -> str:
    return (SERIES + REFERENCES)[slot(style)]


def _pale(style: int) -> dict[str, Any]:
    return {"facecolor": (_colour(style), 0.22), "edgecolor": _colour(style), "linewidth": 1}


def _inside(letter: str, share: float) -> str:
    return f"{letter} {100 * share:.0f} %" if share > 0.14 else letter if share > 0.03 else ""


def _shares_text(row: Stack, parts: Sequence[str]) -> str:
    whole = sum(row.values) or 1.0
    return ", ".join(f"{part} {100 * value / whole:.0f} %" for part, value in zip(parts, row.values, strict=True))


def _shades(values: Sequence[Sequence[float]], most: float) -> dict[int, Path]:
    """For each shade the outline of all its cells; neighbours with one shade are one rectangle, to keep pages small."""
    from matplotlib.path import Path

    boxes: dict[int, list[Path]] = {}
    for at, line in enumerate(values):
        start = -0.5
        for level, run in groupby(math.ceil(_SHADES * (value / most)) for value in line):
            stop = start + len(list(run))
            if level > 0:
                corners = [(start, at - 0.5), (stop, at - 0.5), (stop, at + 0.5), (start, at + 0.5), (start, at - 0.5)]
                boxes.setdefault(level, []).append(Path(corners, closed=True))
            start = stop
    return {level: Path.make_compound_path(*each) for level, each in boxes.items()}


def _thinned(curve: Curve, most: int = 400) -> Curve:
    """The curve with fewer points than the chart has pixels; the last round always stays."""
    skip = math.ceil(len(curve.rounds) / most)
    kept = sorted({*range(0, len(curve.rounds), skip), len(curve.rounds) - 1})
    columns = ([column[index] for index in kept] for column in (curve.mean, curve.low, curve.high))
    return Curve(curve.name, curve.style, [curve.rounds[index] for index in kept], *columns)


def _wrapped(text: str, width: float) -> str:
    """A text in lines as wide as there is room, in full."""
    letters = int(width / _LETTER)
    return "\n".join(wrap(printable(text), letters)) if len(text) > letters else printable(text)


def _fitting(names: Iterable[str], letters: int) -> list[str]:
    return [printable(name if len(name) <= letters else f"{name[: letters - 1]}…") for name in names]
