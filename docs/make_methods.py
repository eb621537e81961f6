"""Writes a page for each method into `methods/`: what its docstring says, what leaves a party, its options, and how our
figures stand beside those of papers.

What leaves a party is the ledger of a run on small generated data, and figures are read from the committed results: a
page is made, never written. Run `python docs/make_methods.py` after changing a method or its results; with `--check`
nothing is written, and pages that would change are an error.
"""

from __future__ import annotations

import inspect
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from make_tables import code, renewed, row, table

from isthmus.data.partition import Partition
from isthmus.data.party import Party
from isthmus.data.pool import DataSet
from isthmus.methods.base import Method
from isthmus.nn.encoders import Encoder
from isthmus.papers.claims import FIGURES, Claim, Verdict
from isthmus.papers.markdown import signed, verdicts
from isthmus.papers.plan import Cell, Table
from isthmus.papers.results import Runs, early_runs, figure_values
from isthmus.papers.shelf import ShelfEntry, entries
from isthmus.report.ledger_text import ActionSummary, Share, describe_action, merge_spans, parse_fields
from isthmus.testing import Subject, small_parties

HERE = Path(__file__).parent
PAPERS = HERE.parent / "benchmarks" / "papers"
ROUNDS = 3
OURS = "guide"
"""The folder of studies that are no paper's."""
MOST = 8
"""Settings of a table that a page has a line for; of more it tells the mean."""


def pages() -> dict[str, str]:
    """By name of the method the text of its page."""
    torch.set_num_threads(1)
    shelf = [each for each in entries(PAPERS) if not each.table.startswith("defaults-")]  # a page of its own shows them
    known = [kind for kind in Method.known().values() if kind.__module__.startswith("isthmus.")]
    return {kind.name: _page(kind, shelf) for kind in known}


def _page(kind: type[Method], shelf: Sequence[ShelfEntry]) -> str:
    page = f"{kind.listing.setting}.md"
    guide = page if (HERE / page).is_file() else "methods.md"
    parts = [
        f"# {kind.name}",
        *_said(inspect.getdoc(kind) or ""),
        f"For whom it is, and what to set first: [{guide.removesuffix('.md')}](../{guide}).",
        "## What leaves a party",
        _leaves(kind),
        "## Options",
        table(("option", "default", "values", "meaning"), [row(option) for option in kind.describe()["options"]]),
        "## Ours and the paper's",
        *_beside(kind, [each for each in shelf if each.paper != OURS]),
        *_of_ours(kind, [each for each in shelf if each.paper == OURS]),
    ]
    return "\n\n".join(parts) + "\n"


def _said(doc: str) -> Iterator[str]:
    """Paragraphs of a docstring; formulas, which are those that are indented or aligned, as they are."""
    for paragraph in re.split(r"\n\s*\n", doc):
        if re.search(r"\S {2,}\S|^ {2,}\S", paragraph, re.MULTILINE) and not paragraph.startswith("- "):
            yield f"```text\n{inspect.cleandoc(paragraph)}\n```"
        else:
            yield paragraph


def _leaves(kind: type[Method]) -> str:
    level = kind.levels[0]
    parties = overlapping_parties() if kind.listing.setting == "overlap" else small_parties(level)
    subject = Subject(kind(rounds=ROUNDS, **kind.soon), parties, Encoder.named(kind.encoder)(hidden=8))
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for each in subject.run().go().ledger.rows():
        if each["action"].endswith(": delivery"):
            continue  # the same messages, where they arrive
        groups.setdefault(tuple(each[key] for key in ("action", "verb", "eyes", "protection")), []).append(each)
    rows = []
    for (action, verb, eyes, protection), of in groups.items():
        answers = list(Counter(each["call"] for each in of).values())
        fields = list(parse_fields(each["fields"] for each in of))
        summary = ActionSummary(action, eyes, protection, fields, answers, _shares(of), subject.method.field_nouns())
        rows.append((_when({each["round"] for each in of}), code(action), verb, describe_action(summary)))
    if not rows:
        return "Nothing."
    but = "".join(f", `{name} = {value:g}`" for name, value in kind.soon.items())
    told = f"The ledger of a small run: four parties of generated {level}s, {ROUNDS} rounds, default options{but}."
    return f"{told}\n\n{table(('when', 'action', 'verb', 'who saw what'), rows)}"


def _shares(rows: Sequence[Mapping[str, Any]]) -> dict[str, Share]:
    times = Counter(each["party"] for each in rows)
    held = merge_spans((each["party"], (each["rows"], each["rows"])) for each in rows)
    return {party: Share((count, count), held[party]) for party, count in times.items()}


def overlapping_parties() -> list[Party]:
    """Generated parties that share nodes."""
    banks = DataSet.named("banks").read({"parties": 4, "nodes": 160, "overlap": 0.5}, "banks")
    return Partition.named("given")().cut(banks.load(0), 4, 0)


def _when(rounds: set[int]) -> str:
    if rounds == {0}:
        return "before the first round"
    if len(rounds) < ROUNDS:
        return f"in {len(rounds)} of {ROUNDS} rounds"
    return "at the start and in each round" if 0 in rounds else "in each round"


# ---- beside the papers' numbers


class Measured(NamedTuple):
    """A figure of a cell, of every seed, and the paper's number."""

    setting: str
    ours: Sequence[float]
    paper: float | None

    @property
    def mean(self) -> float:
        return statistics.fmean(self.ours)

    @property
    def above(self) -> float | None:
        return None if self.paper is None else self.mean - self.paper


def _beside(kind: type[Method], shelf: Sequence[ShelfEntry]) -> Iterator[str]:
    """Our figures and the papers', and the claims of papers about it."""
    lines = [line for each in shelf if kind.name in _methods(each) for line in _figures(kind, each)]
    if not any(paper for *_, paper, _ in lines):
        yield "No paper's table that was run prints a number for it: there is nothing to compare with."
    if lines:
        folders = ", ".join(f"`benchmarks/papers/{name}/README.md`" for name in _papers(lines))
        yield (
            "In its default setting, or what of a table is nearest to that: means over seeds ± their deviation, in "
            "brackets the range over settings. Where no number of the paper's stands, it draws a curve or has none. "
            f"All figures, variants and settings, and what explains differences: {folders}."
        )
        yield table(("table", "setting", "seeds", "ours", "paper", "difference"), lines)
    if claims := [line for each in shelf for line in _claims(kind, each, "subjects")]:
        yield "Claims of papers about it, by how much our figures are on their side, and what that rests on:"
        yield "\n".join(claims)


def _papers(lines: Sequence[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(line[0].strip("`").partition("/")[0] for line in lines))


def _figures(kind: type[Method], each: ShelfEntry) -> Iterator[tuple[str, ...]]:
    """A line for each setting of a table, or one for all: of its headline, or of all other figures that are printed."""
    plan, cells = each.plan, [cell for cell in _own(kind, each.plan) if each.results.runs(cell)]
    published = plan.published_value
    printed = [name for name in plan.figures if any(published(name, cell.place) is not None for cell in cells)]
    headline = next(iter(plan.figures))
    for name in printed if printed and headline not in printed else [headline]:
        found = [
            Measured(_setting(cell, cells) + _early(plan, runs), values, published(name, cell.place))
            for cell in cells
            if (values := figure_values(plan, runs := each.results.runs(cell), name))
        ]
        found = [one for one in found if one.paper is not None] or found
        of = f"`{each.name}`, {name}"
        digits = plan.figures[name].digits
        if len(found) > MOST or (found and name not in printed):
            yield (of, *_together(found, digits))
        else:
            yield from ((of, *_alone(one, digits)) for one in found)


def _own(kind: type[Method], plan: Table) -> list[Cell]:
    """Cells of a method: where an axis sets options of methods, those with the fewest that are not as by default.

    Beside them are other forms on the axis of methods that share the paper's number, or alone have one.
    """
    cells = [cell for cell in plan.cells() if _method(cell.study) == kind.name and cell.read_measure().runs_method]
    for axis in plan.axes:
        changes = axis.changes()
        options = {value: change.get("method", {}) for value, change in changes.items()}
        named = all(options.values()) and any("name" in each for each in options.values())
        if named or all(set(change) <= {"method"} for change in changes.values()):
            far = {value: _apart(kind, options[value]) for value in {cell.place[axis.name] for cell in cells}}
            usual = [value for value in far if far[value] == min(far.values())]
            kept = {value for value in far if named and _shares_numbers(plan, cells, axis.name, value, usual)}
            cells = [cell for cell in cells if cell.place[axis.name] in kept.union(usual)]
    return cells


def _shares_numbers(plan: Table, cells: Sequence[Cell], axis: str, value: str, usual: Sequence[str]) -> bool:
    """Whether every number that the paper has at this value of an axis is that of the usual values, or stands alone."""
    numbers = [
        (own, plan.published_value(name, {**cell.place, axis: other}))
        for cell in cells
        if cell.place[axis] == value
        for name in plan.figures
        if (own := plan.published_value(name, cell.place)) is not None
        for other in usual
    ]
    return bool(numbers) and all(theirs in (None, own) for own, theirs in numbers)


def _apart(kind: type[Method], options: Mapping[str, Any]) -> int:
    """How many options these change."""
    given, usual = kind.read({name: value for name, value in options.items() if name != "name"}, kind.name), kind()
    return sum(getattr(given, name) != getattr(usual, name) for name in kind.model_fields)


def _early(plan: Table, runs: Runs) -> str:
    """Marks a mean that supports no claim."""
    early = early_runs(plan, runs)
    return f", of the first {plan.early} rounds" if 2 * sum(early) > len(early) else ""


def _setting(cell: Cell, among: Sequence[Cell]) -> str:
    """A cell's place, by what is not the same for all of them."""
    told = [value for axis, value in cell.place.items() if len({each.place[axis] for each in among}) > 1]
    return ", ".join(told) or cell.name


def _alone(one: Measured, digits: int) -> tuple[str, ...]:
    spread = f" ± {statistics.stdev(one.ours):.{digits}f}" if len(one.ours) > 1 else ""
    paper = "" if one.paper is None else f"{one.paper:.{digits}f}"
    above = "" if one.above is None else signed(one.above, digits)
    return one.setting, str(len(one.ours)), f"{one.mean:.{digits}f}{spread}", paper, above


def _together(found: Sequence[Measured], digits: int) -> tuple[str, ...]:
    """All of them in a line."""
    above = [one.above for one in found if one.above is not None]
    paper = [one.paper for one in found if one.paper is not None]
    ours = [one.mean for one in found]
    return (
        f"{len(found)} settings" if len(found) > 1 else found[0].setting,
        _range([len(one.ours) for one in found], 0),
        f"{statistics.fmean(ours):.{digits}f}" + (f" ({_range(ours, digits)})" if len(ours) > 1 else ""),
        f"{statistics.fmean(paper):.{digits}f}" if paper else "",
        f"{signed(statistics.fmean(above), digits)} ({_range(above, digits, gains=True)})" if above else "",
    )


def _range(values: Sequence[float], digits: int, *, gains: bool = False) -> str:
    told = [signed(each, digits) if gains else f"{each:.{digits}f}" for each in (min(values), max(values))]
    return " to ".join(dict.fromkeys(told))


class Judged(NamedTuple):
    """A claim that was run, the methods that it is about, and all that it compares."""

    verdict: Verdict
    subjects: set[str]
    compared: set[str]


@cache
def _judged(each: ShelfEntry) -> list[Judged]:
    plan, found = each.plan, [verdict for verdict in verdicts(each.plan, each.results) if verdict.places]
    return [Judged(one, _subjects(plan, one.claim), _compared(plan, one.claim)) for one in found]


@cache
def _methods(each: ShelfEntry) -> set[str]:
    """The methods of a table's cells."""
    return {_method(cell.study) for cell in each.plan.cells()}


def _claims(kind: type[Method], each: ShelfEntry, about: Literal["subjects", "compared"]) -> Iterator[str]:
    """What became of the claims that were run and are about a method."""
    for judged in _judged(each):
        verdict = judged.verdict
        if kind.name in getattr(judged, about):
            compared = verdict.claim.groups[0] if verdict.claim.along == FIGURES else each.plan.figures
            figure = verdict.claim.figure or next(iter(compared))
            by = _margin(verdict, each.plan.figures[figure].digits)
            yield f"- {verdict.claim.says}: **{verdict.word}**, {by}, {verdict.basis} (`{each.name}`)"


def _margin(verdict: Verdict, digits: int) -> str:
    """How far the means of an order are apart, or those that should be near each other."""
    if not verdict.claim.order:
        apart = [abs(each.means[0] - each.means[1]) for each in verdict.places]
        return f"{'off' if verdict.claim.near else 'apart'} by {_range(apart, digits)}"
    gains = []
    for each in verdict.places:
        steps = [high - low for high, low in zip(each.means, each.means[1:], strict=False)]
        gains.append(-max(steps) if verdict.claim.lower else min(steps))
    return f"by {_range(gains, digits, gains=True)}"


def _subjects(plan: Table, claim: Claim) -> set[str]:
    """The methods that a claim is about: of an order of cells those at its head; none if nothing was trained there."""
    cells = [cell for cell in plan.cells() if claim.covers(cell.place) and cell.read_measure().runs_method]
    heads = [cell for cell in cells if claim.order and cell.place.get(claim.along) in claim.groups[0]]
    return {_method(cell.study) for cell in heads or cells}


def _compared(plan: Table, claim: Claim) -> set[str]:
    return {_method(cell.study) for cell in plan.cells() if claim.covers(cell.place)}


def _method(study: Mapping[str, Any]) -> str:
    given = study.get("method") or study["methods"][0]
    return str(given if isinstance(given, str) else given["name"])


# ---- our own studies


def _of_ours(kind: type[Method], shelf: Sequence[ShelfEntry]) -> Iterator[str]:
    """What studies of our own on generated data have found, which no paper has a number for."""
    lines = [line for each in shelf if kind.name in _methods(each) for line in _found(kind, each)]
    claims = [line for each in shelf for line in _claims(kind, each, "compared")]
    if lines:
        yield "## On generated data"
        yield "Studies of our own, of which no paper has a number; settings: `benchmarks/papers/guide/README.md`."
        yield "\n".join(lines)
    if claims:
        yield "What we expected of them, by how much it is so, and what that rests on:"
        yield "\n".join(claims)


def _found(kind: type[Method], each: ShelfEntry) -> Iterator[str]:
    """A line on all methods of a study that this one is in, by its headline."""
    plan, name = each.plan, next(iter(each.plan.figures))
    cells = [cell for cell in plan.cells() if each.results.runs(cell)]
    if any(_method(cell.study) == kind.name for cell in cells):
        told = []
        for cell in cells:
            *others, last = cell.place.items()
            setting = ", ".join([*(f"{axis} {value}" for axis, value in others), last[1]])
            one = Measured(setting, figure_values(plan, each.results.runs(cell), name), None)
            _, seeds, ours, *_ = _alone(one, plan.figures[name].digits)
            told.append(f"{one.setting} {ours}")
        yield f"- `{each.name}`, {name}, {seeds} seeds: {'; '.join(told)}"


def main(arguments: Sequence[str]) -> int:
    return renewed(
        {HERE / "methods" / f"{name}.md": text for name, text in pages().items()}, arguments, "make_methods.py"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
