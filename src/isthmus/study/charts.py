"""Charts as inline SVG text: lines, bars and dots, without a plotting library.

Colours are CSS variables, so one drawing serves light mode, dark mode and paper. Every series is labelled where it is
drawn; colour and dashes only help the eye along.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

STYLE = """
:root{--s0:#0067a5;--s1:#cf5300;--s2:#00876a;--s3:#a8327d;--s4:#3d8fc6;--s5:#8f6c00;--s6:#6a4fc0;--s7:#5c6670}
@media screen and (prefers-color-scheme:dark){
:root{--s0:#5cb3f0;--s1:#ff9350;--s2:#3fcfa4;--s3:#ee8fc8;--s4:#9cc9ee;--s5:#e2bd4a;--s6:#b3a0ff;--s7:#aab4be}}
.s0{--c:var(--s0)}.s1{--c:var(--s1)}.s2{--c:var(--s2)}.s3{--c:var(--s3)}
.s4{--c:var(--s4)}.s5{--c:var(--s5)}.s6{--c:var(--s6)}.s7{--c:var(--s7)}
svg.chart{display:block;width:100%;height:auto;font:13px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
@media screen{svg.wide{min-width:760px}}
.chart text{fill:var(--soft)}.chart .heading{fill:var(--ink);font-weight:600;font-size:14px}
.chart .name{fill:var(--c);font-weight:600}.chart .value{fill:var(--ink);font-variant-numeric:tabular-nums}
.chart .grid{stroke:var(--line);stroke-width:1}.chart .axis{stroke:var(--soft);stroke-width:1}
.chart .curve{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round}
.chart .d1 .curve{stroke-dasharray:7 3}.chart .d2 .curve{stroke-dasharray:2 3}
.chart .d3 .curve{stroke-dasharray:9 3 2 3}
.chart .band{fill:var(--c);opacity:.14}.chart .leader{stroke:var(--c);stroke-width:1;opacity:.45}
.chart .dot{fill:var(--c)}.chart .seen{fill:var(--c);opacity:.55}.chart .mark{stroke:var(--c);stroke-width:3}
.chart .part{fill:var(--c);stroke:var(--paper);stroke-width:1}.chart .inside{fill:var(--paper);font-size:12px}
.chart .cell{fill:var(--s0)}.chart .frame{fill:none;stroke:var(--line);stroke-width:1}
.chart .cloud{fill:none;stroke:var(--c);stroke-width:4;stroke-linecap:round;opacity:.6}
.chart .bar{fill:var(--c)}.chart .bar.second{fill:var(--c);fill-opacity:.22;stroke:var(--c);stroke-width:1}
"""

_LETTER = 8.6
"""Width of a letter in the charts' 13 px type, on the generous side: text cannot be measured here."""

_SHADES = 10
"""How many shades a heat map has."""


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
    """What one name has in each of the chart's columns, first column solid, second one pale."""

    name: str
    style: int
    values: Sequence[float]


@dataclass(frozen=True)
class Dots:
    """Single values of one name on a line, each with its own label, their mean, and a text that says it in figures."""

    name: str
    style: int
    points: Sequence[tuple[str, float]]
    mean: float
    text: str


@dataclass(frozen=True)
class Stack:
    """What one name has of each part, and a text that says how much that is in all."""

    name: str
    values: Sequence[float]
    text: str


@dataclass(frozen=True)
class Cloud:
    """Items of one kind, each at its place."""

    name: str
    style: int
    points: Sequence[tuple[float, float]]


def line_chart(
    title: str, curves: Sequence[Curve], show: Callable[[float], str], bounds: tuple[float, float] | None = None
) -> str:
    """Curves over rounds, each with a min..max band; `bounds` fixes the value axis, so that charts can be compared."""
    shown = [_thinned(curve) for curve in curves]
    names = _fitting([curve.name for curve in shown], 18)
    ticks = nice_ticks(*(bounds or value_range(shown)))
    width, left, top = 560.0, 58.0, 34.0
    right = width - 22 - _LETTER * max(map(len, names))
    bottom = top + max(230.0, 19.0 * len(shown))
    first, last = min(curve.rounds[0] for curve in shown), max(curve.rounds[-1] for curve in shown)

    def x(round_: float) -> float:
        return left + (round_ - first) / max(last - first, 1) * (right - left)

    def y(value: float) -> float:
        return bottom - (value - ticks[0]) / (ticks[-1] - ticks[0]) * (bottom - top)

    parts = [_text(0, 14, title, "heading")]
    for tick in ticks:
        parts += [_line(left, y(tick), right, y(tick), "grid"), _text(left - 8, y(tick) + 4, show(tick), "", "end")]
    parts.append(_line(left, bottom, right, bottom, "axis"))
    for tick in nice_ticks(first, last, whole=True):
        if first <= tick <= last:
            parts.append(_text(x(tick), bottom + 17, f"{tick:g}", "", "middle"))
    parts.append(_text((left + right) / 2, bottom + 34, "round", "", "middle"))
    heights = spread([y(curve.mean[-1]) for curve in shown], 16, top, bottom)
    for curve, name, height in zip(shown, names, heights, strict=True):
        parts.append(_curve(curve, name, x, y, right + 14, height))
    ends = "; ".join(f"{c.name} ends at {show(c.mean[-1])} in round {c.rounds[-1]}" for c in shown)
    return _svg(
        width, bottom + 42, title, f"One line per method, mean over seeds, band from lowest to highest. {ends}.", parts
    )


def bar_chart(title: str, columns: Sequence[str], groups: Sequence[Bars], show: Callable[[float], str]) -> str:
    """Horizontal bars from zero, one per column in every group, each with its value written at its end."""
    names = _fitting([group.name for group in groups], 18)
    width, thick = 560.0, 15.0
    left = 12 + _LETTER * max(map(len, names))
    longest = max((value for group in groups for value in group.values), default=0.0) or 1.0
    values = [[f"{show(value)} {column}" for value, column in zip(g.values, columns, strict=True)] for g in groups]
    room = width - left - 10 - _LETTER * max(len(text) for texts in values for text in texts)
    parts, at = [_text(0, 14, title, "heading")], 30.0
    top = at
    for group, name, texts in zip(groups, names, values, strict=True):
        block = thick * len(columns)
        drawn = [_text(left - 10, at + block / 2 + 4, name, "name", "end")]
        for order, (value, text) in enumerate(zip(group.values, texts, strict=True)):
            length = max(value / longest * room, 1.0 if value else 0.0)
            kind = "bar second" if order else "bar"
            drawn.append(_box(left, at + thick * order + 1, length, thick - 2, kind))
            drawn.append(_text(left + length + 6, at + thick * order + 12, text, "value"))
        parts.append(_group(group.style, f"{group.name}: {', '.join(texts)}", drawn))
        at += block + 10
    parts.append(_line(left, top - 4, left, at - 6, "axis"))
    said = "; ".join(f"{group.name}: {', '.join(texts)}" for group, texts in zip(groups, values, strict=True))
    return _svg(width, at, title, f"{said}.", parts)


def dot_chart(title: str, what: str, rows: Sequence[Dots], show: Callable[[float], str]) -> str:
    """One line per row with a dot per value and a stroke at the mean; `what` says what a dot is."""
    names = _fitting([row.name for row in rows], 24)
    width, top, step = 1120.0, 34.0, 26.0
    left = 16 + _LETTER * max(map(len, names))
    right = width - 24 - _LETTER * max(len(row.text) for row in rows)
    bottom = top + step * len(rows)
    values = [value for row in rows for _, value in row.points] + [row.mean for row in rows]
    ticks = nice_ticks(min(values), max(values), about=8)

    def x(value: float) -> float:
        return left + (value - ticks[0]) / (ticks[-1] - ticks[0]) * (right - left)

    parts = [_text(0, 14, title, "heading")]
    for tick in ticks:
        parts += [_line(x(tick), top, x(tick), bottom, "grid"), _text(x(tick), bottom + 17, show(tick), "", "middle")]
    for order, (row, name) in enumerate(zip(rows, names, strict=True)):
        middle = top + step * (order + 0.5)
        drawn = [_text(left - 14, middle + 4, name, "name", "end"), _text(right + 18, middle + 4, row.text, "value")]
        drawn += [_circle(x(value), middle, "seen", f"{label}: {show(value)}") for label, value in row.points]
        drawn.append(_line(x(row.mean), middle - 8, x(row.mean), middle + 8, "mark"))
        parts.append(_group(row.style, f"{row.name}: {row.text}", drawn))
    said = "; ".join(f"{row.name}: {row.text}" for row in rows)
    return _svg(width, bottom + 26, title, f"{what} {said}.", parts, "chart wide")


def stack_chart(title: str, parts: Sequence[str], rows: Sequence[Stack]) -> str:
    """One bar of the same length per row, cut by the shares of its parts, each with its number where there is room."""
    names = _fitting([row.name for row in rows], 24)
    width, top, step = 1120.0, 62.0, 25.0
    left = 16 + _LETTER * max(map(len, names))
    room = width - left - 18 - _LETTER * max(len(row.text) for row in rows)
    drawn, at = [_text(0, 14, title, "heading")], left
    for order, part in enumerate(parts):
        drawn += [_box(at, 32, 12, 12, f"part s{order % 8}"), _text(at + 18, 43, part, "")]
        at += 34 + _LETTER * len(part)
    for order, (row, name) in enumerate(zip(rows, names, strict=True)):
        height = top + step * order
        inside = [_text(left - 14, height + 14, name, "value", "end")]
        inside += _stacked(row, parts, left, height, room)
        inside.append(_text(left + room + 12, height + 14, row.text, "value"))
        drawn.append(f"<g><title>{escape(f'{row.name}: {row.text}')}</title>{''.join(inside)}</g>")
    said = "; ".join(f"{row.name}: {_shares_said(row, parts)}" for row in rows)
    return _svg(width, top + step * len(rows), title, f"{said}.", drawn, "chart wide")


def heat_map(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    show: Callable[[float], str],
) -> str:
    """A field per row and column, the darker the larger its value, with names along both sides where there is room."""
    names = _fitting(rows, 24)
    width, top = 1120.0, 52.0
    left = 16 + _LETTER * max(map(len, names))
    across, down = (width - left) / len(columns), min(20.0, max(2.0, 640 / len(rows)))
    bottom = top + down * len(rows)
    most, row, column = max((value, -at, -place) for at, line in enumerate(values) for place, value in enumerate(line))
    parts = [_text(0, 14, title, "heading"), _scale(width, show(most))]
    for level, path in sorted(_shades(values, most or 1.0, left, top, across, down).items()):
        parts.append(f'<path class="cell" fill-opacity="{level / _SHADES:.2f}" d="{path}"/>')
    parts.append(_frame(left, top, width - left, bottom - top))
    every = math.ceil(14 / down)
    parts += [
        _text(left - 14, top + down * (at + 0.5) + 4, names[at], "value", "end") for at in range(0, len(rows), every)
    ]
    parts += _column_names(_fitting(columns, 18), left, top - 8, across)
    said = f"The darkest field is {rows[-row]}, {columns[-column]}: {show(most)}."
    return _svg(width, bottom + 8, title, said, parts, "chart wide")


def scatter(title: str, groups: Sequence[Cloud]) -> str:
    """A dot for each item, a colour for each group; a legend says how many there are in each."""
    width, top, side = 420.0, 26.0, 400.0
    every = [point for group in groups for point in group.points]
    lows = [min(point[axis] for point in every) for axis in (0, 1)]
    spans = [max(point[axis] for point in every) - low or 1.0 for axis, low in enumerate(lows)]

    def placed(point: tuple[float, float]) -> str:
        x, y = ((value - low) / span for value, low, span in zip(point, lows, spans, strict=True))
        return f"M{18 + x * (side - 16):.1f} {top + 8 + (1 - y) * (side - 16):.1f}h0"

    parts = [_text(0, 14, title, "heading"), _frame(10, top, side, side)]
    for group in groups:
        cloud = f'<path class="cloud" d="{"".join(map(placed, group.points))}"/>'
        parts.append(_group(group.style, f"{group.name}: {len(group.points):,}", [cloud]))
    at, bottom = 10.0, top + side + 20
    for group in groups:
        text = f"{group.name}: {len(group.points):,}"
        if at > 10 and at + 24 + _LETTER * len(text) > width:
            at, bottom = 10.0, bottom + 18
        parts.append(_group(group.style, text, [_dot(at + 5, bottom - 4), _text(at + 16, bottom, text, "name")]))
        at += 34 + _LETTER * len(text)
    said = ", ".join(f"{group.name} {len(group.points):,}" for group in groups)
    return _svg(width, bottom + 8, title, f"One dot per item. {said}.", parts)


def value_range(curves: Sequence[Curve]) -> tuple[float, float]:
    """The lowest and the highest value that any of the curves reaches."""
    return min(min(curve.low) for curve in curves), max(max(curve.high) for curve in curves)


def nice_ticks(low: float, high: float, about: int = 5, whole: bool = False) -> list[float]:
    """Round numbers that enclose low..high, about as many as asked for.

    >>> nice_ticks(0.12, 0.91)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    span = high - low or abs(high) * 0.1 or 1.0
    power = 10.0 ** math.floor(math.log10(span / about))
    step = next(power * nice for nice in (1, 2, 5, 10) if power * nice * about >= span * 0.999)
    if whole:
        step = max(1.0, step)
    start, stop = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    digits = max(0, 1 - math.floor(math.log10(step)))
    return [round(count * step, digits) for count in range(start, max(stop, start + 1) + 1)]


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Moves positions until neighbours are `gap` apart: a crowd spreads around its middle, the order stays.

    >>> spread([30.0, 30.0, 50.0], 10, 0, 60)
    [25.0, 35.0, 50.0]
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    blocks: list[tuple[float, int]] = []
    for index in order:
        middle, count = wanted[index], 1
        while blocks and middle - blocks[-1][0] < gap * (count + blocks[-1][1]) / 2:
            before, others = blocks.pop()
            middle, count = (middle * count + before * others) / (count + others), count + others
        blocks.append((middle, count))
    flat = [middle + gap * (place - (count - 1) / 2) for middle, count in blocks for place in range(count)]
    last = len(flat) - 1
    placed = list(wanted)
    for place, (index, value) in enumerate(zip(order, flat, strict=True)):
        placed[index] = min(max(value, low + gap * place), high - gap * (last - place))
    return placed


def _curve(
    curve: Curve, name: str, x: Callable[[float], float], y: Callable[[float], float], label_x: float, label_y: float
) -> str:
    across = [x(round_) for round_ in curve.rounds]
    mean = _points(across, [y(value) for value in curve.mean])
    band = _points(across, [y(value) for value in curve.low])
    back = _points(across[::-1], [y(value) for value in curve.high][::-1])
    end = (across[-1], y(curve.mean[-1]))
    drawn = [
        f'<polygon class="band" points="{band} {back}"/>' if len(across) > 1 else "",
        f'<polyline class="curve" points="{mean}"/>',
        f'<circle class="dot" cx="{end[0]:.1f}" cy="{end[1]:.1f}" r="3"/>',
        _line(end[0] + 4, end[1], label_x - 3, label_y, "leader"),
        _text(label_x, label_y + 4, name, "name"),
    ]
    return _group(curve.style, curve.name, drawn)


def _stacked(row: Stack, parts: Sequence[str], left: float, top: float, room: float) -> list[str]:
    drawn, start, whole = [], left, sum(row.values) or 1.0
    for order, (part, value) in enumerate(zip(parts, row.values, strict=True)):
        length = value / whole * room
        if length:
            said = escape(f"{row.name}, {part}: {value:,g} ({100 * value / whole:.1f} %)")
            box = f'x="{start:.1f}" y="{top:.1f}" width="{length:.1f}" height="19"'
            drawn.append(f'<rect class="part s{order % 8}" {box}><title>{said}</title></rect>')
        text = f"{100 * value / whole:.0f} %"
        if length > _LETTER * len(text):
            drawn.append(_text(start + length / 2, top + 14, text, "inside", "middle"))
        start += length
    return drawn


def _shares_said(row: Stack, parts: Sequence[str]) -> str:
    whole = sum(row.values) or 1.0
    return ", ".join(f"{part} {100 * value / whole:.0f} %" for part, value in zip(parts, row.values, strict=True))


def _column_names(names: Sequence[str], left: float, y: float, across: float) -> list[str]:
    """Every name where all have room; else every second, third, ... at the left edge of its column."""
    every = math.ceil(_LETTER * (1 + max(map(len, names))) / across)
    if every == 1:
        return [_text(left + across * (at + 0.5), y, name, "", "middle") for at, name in enumerate(names)]
    return [_text(left + across * at, y, names[at], "") for at in range(0, len(names) - every + 1, every)]


def _shades(
    values: Sequence[Sequence[float]], most: float, left: float, top: float, across: float, down: float
) -> dict[int, str]:
    """For each shade the outline of all its fields; neighbours of one shade are one rectangle."""
    paths: dict[int, list[str]] = {}
    for at, line in enumerate(values):
        levels = [math.ceil(_SHADES * (value / most)) for value in line]
        start = 0
        for level, run in groupby(levels):
            count = len(list(run))
            if level > 0:
                x, y = left + across * start, top + down * at
                box = f"M{x:.1f} {y:.1f}h{across * count:.1f}v{down:.1f}h-{across * count:.1f}z"
                paths.setdefault(level, []).append(box)
            start += count
    return {level: "".join(boxes) for level, boxes in paths.items()}


def _scale(right: float, most: str) -> str:
    """What the lightest and the darkest shade stand for, at the upper right."""
    start = right - 14 * _SHADES - 16 - _LETTER * len(most)
    parts = [_text(start - 8, 14, "0", "", "end"), _text(right, 14, most, "", "end")]
    for level in range(1, _SHADES + 1):
        box = f'x="{start + 14 * (level - 1):.1f}" y="4" width="14" height="12"'
        parts.append(f'<rect class="cell" fill-opacity="{level / _SHADES:.2f}" {box}/>')
    return "".join(parts)


def _frame(x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="frame" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def _thinned(curve: Curve, most: int = 400) -> Curve:
    """More points than the chart has pixels only make the file large; the last round always stays."""
    skip = math.ceil(len(curve.rounds) / most)
    kept = sorted({*range(0, len(curve.rounds), skip), len(curve.rounds) - 1})
    columns = ([column[index] for index in kept] for column in (curve.mean, curve.low, curve.high))
    return Curve(curve.name, curve.style, [curve.rounds[index] for index in kept], *columns)


def _fitting(names: Sequence[str], letters: int) -> list[str]:
    return [name if len(name) <= letters else f"{name[: letters - 1]}…" for name in names]


def _points(across: Sequence[float], up: Sequence[float]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, up, strict=True))


def _svg(width: float, height: float, title: str, description: str, parts: Sequence[str], kind: str = "chart") -> str:
    return (
        f'<svg class="{kind}" role="img" viewBox="0 0 {width:.0f} {height:.0f}">'
        f"<title>{escape(title)}</title><desc>{escape(description)}</desc>{''.join(parts)}</svg>"
    )


def _group(style: int, title: str, parts: Sequence[str]) -> str:
    return f'<g class="s{style % 8} d{style // 4 % 4}"><title>{escape(title)}</title>{"".join(parts)}</g>'


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _box(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2"/>'


def _dot(x: float, y: float) -> str:
    return f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="5"/>'


def _circle(x: float, y: float, kind: str, title: str) -> str:
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="5"><title>{escape(title)}</title></circle>'
