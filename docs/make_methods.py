"""Writes a page for each method into `methods/`: what its docstring says, what leaves a party, its options, and which
claims of papers hold.

What leaves a party is the ledger of a run on small generated data, and what holds is read from the committed results: a
page is made, never written. Run `python docs/make_methods.py` after changing a method or its results; with `--check`
nothing is written, and pages that would change are an error.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from make_tables import code, renewed, row, table

from isthmus.data.partition import Partition
from isthmus.data.party import Party
from isthmus.data.pool import DataSet
from isthmus.methods.base import Method
from isthmus.nn.encoders import Encoder
from isthmus.papers.claims import Claim
from isthmus.papers.plan import Table
from isthmus.papers.shelf import entries
from isthmus.papers.shown import verdicts
from isthmus.study.seen import fields_in, in_plain_words
from isthmus.testing import Subject, small_parties

HERE = Path(__file__).parent
PAPERS = HERE.parent / "benchmarks" / "papers"
ROUNDS = 3
GUIDES = {
    "coupled.md": ("fedcog", "fedcog-gcn", "fedgcn", "fedsage", "fedsage-plus", "bds-gcn"),
    "overlap.md": ("fedgl",),
    "secret-edges.md": ("fgcl",),
    "unlabelled.md": ("fclg", "infograph", "mvgrl"),
    "condensed.md": ("fedgc", "gcond", "doscond", "sfgc"),
}
"""The page that says what the parties of a method have, and how to choose."""


def pages() -> dict[str, str]:
    """By name of the method the text of its page."""
    torch.set_num_threads(1)
    judged = list(_judged())
    known = [kind for kind in Method.known().values() if kind.__module__.startswith("isthmus.")]
    return {kind.name: _page(kind, judged) for kind in known}


def _page(kind: type[Method], judged: Sequence[tuple[str, set[str], str]]) -> str:
    guide = next((page for page, names in GUIDES.items() if kind.name in names), "methods.md")
    parts = [
        f"# {kind.name}",
        *_said(inspect.getdoc(kind) or ""),
        f"For whom it is, and what to set first: [{guide.removesuffix('.md')}](../{guide}).",
        "## What leaves a party",
        _leaves(kind),
        "## Options",
        table(("option", "default", "values", "meaning"), [row(option) for option in kind.describe()["options"]]),
    ]
    claims = [(name, says) for name, methods, says in judged if kind.name in methods]
    if claims:
        parts += ["## Ours and the paper's", _claimed(claims)]
    return "\n\n".join(parts) + "\n"


def _said(doc: str) -> Iterator[str]:
    """Paragraphs of a docstring; those that are formulas as they are."""
    for paragraph in re.split(r"\n\s*\n", doc):
        marks = r"\S {2,}\S|<-|^ {2,}\S" if "\n" in paragraph.strip() else r"\S {2,}\S"
        if re.search(marks, paragraph, re.MULTILINE) and not paragraph.startswith("- "):
            yield f"```text\n{inspect.cleandoc(paragraph)}\n```"
        else:
            yield paragraph


def _leaves(kind: type[Method]) -> str:
    level = kind.levels[0]
    parties = overlapping_parties() if kind.name in GUIDES["overlap.md"] else small_parties(level)
    subject = Subject(kind(rounds=ROUNDS), parties, Encoder.named(kind.encoder)(hidden=8))
    calls: dict[tuple[str, ...], dict[str, Any]] = {}
    answered: dict[tuple[Any, ...], int] = {}
    for each in subject.run().go().ledger.rows():
        if each["action"].endswith(": delivery"):
            continue  # the same messages, where they arrive
        kept = calls.setdefault(tuple(each[key] for key in ("action", "verb", "eyes", "protection")), {})
        kept.setdefault("rounds", set()).add(each["round"])
        kept.setdefault("fields", {})[each["fields"]] = None
        of = kept.setdefault("of", (each["action"], each["eyes"]))
        answered[of, each["call"]] = answered.get((of, each["call"]), 0) + 1
    rows = []
    for (action, verb, eyes, protection), kept in calls.items():
        counts = [count for (of, _), count in answered.items() if of == kept["of"]]
        fields = fields_in(kept["fields"])
        said = in_plain_words({"eyes": eyes, "protection": protection, "answers": counts}, fields)
        rows.append((_when(kept["rounds"]), code(action), verb, said))
    if not rows:
        return "Nothing."
    told = f"The ledger of a small run: four parties of generated {level}s, {ROUNDS} rounds, default options."
    return f"{told}\n\n{table(('when', 'action', 'verb', 'who saw what'), rows)}"


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


def _judged() -> Iterator[tuple[str, set[str], str]]:
    """Every claim that was run: its table, the methods that it compares, and what became of it."""
    for entry in entries(PAPERS):
        plan = entry.plan
        for verdict in verdicts(plan, entry.kept):
            if verdict.places:
                says = f"{verdict.claim.says}: **{verdict.word}**, {verdict.rests}"
                yield entry.name, _compared(plan, verdict.claim), says


def _compared(plan: Table, claim: Claim) -> set[str]:
    return {_method(cell.study) for cell in plan.cells() if claim.covers(cell.place)}


def _method(study: Mapping[str, Any]) -> str:
    given = study.get("method") or study["methods"][0]
    return str(given if isinstance(given, str) else given["name"])


def _claimed(claims: Sequence[tuple[str, str]]) -> str:
    lines = [f"- {says} (`{name}`)" for name, says in claims]
    told = (
        "Claims of papers in which it is compared, by the committed results; `isthmus papers check` says the same, and "
    )
    told += "`benchmarks/papers/` has the figures, seeds and settings."
    return told + "\n\n" + "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    return renewed(
        {HERE / "methods" / f"{name}.md": text for name, text in pages().items()}, arguments, "make_methods.py"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
