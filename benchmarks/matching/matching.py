"""Time and bytes to match the ids of two parties obliviously, beside hashing them with a key.

OMP_NUM_THREADS=1 python benchmarks/matching/matching.py                          # a million ids against a million
OMP_NUM_THREADS=1 python benchmarks/matching/matching.py --write                  # also into results/ and README.md
OMP_NUM_THREADS=2 python benchmarks/matching/matching.py --values 50000 --json    # the figures as JSON, two threads
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import secrets
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))  # figures.py is there
from figures import keep, markdown, named, origin, print_table
from isthmus.data.ids import PLAIN, KeyedHash
from isthmus.protect.matching import blind, intersection, list_problem, multiply, secret_scalar, unblind

HERE = Path(__file__).parent
RESULTS, README = HERE / "results" / "matching.json", HERE / "README.md"
MARKS = "<!-- figures: written by matching.py --write -->", "<!-- end of figures of matching.py -->"
CONTEXT = b"benchmark"
HEAD = ["step of one party", "CPU s", "s passed", "us per id", "sends"]


def measured(values: int) -> dict[str, Any]:
    """Match two parties that share half of their ids; every step is that of the first party, except where it waits."""
    rows: list[dict[str, Any]] = []

    def step(name: str, do: Callable[[], Any], sends: Callable[[Any], int] = lambda found: 0) -> Any:
        cpu, passed = time.process_time(), time.perf_counter()
        found = do()
        times = {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - passed}
        rows.append({"step": name, **times, "bytes": sends(found)})
        return found

    one, two = ([f"patient-{at + first:09d}" for at in range(values)] for first in (0, values // 2))
    key = secrets.token_bytes(32)
    step('hash ids with a shared key (what `matching = "hashes"` does)', lambda: KeyedHash(key).numbers(one))
    mine, other = (PLAIN.numbers(each).numpy().astype(">u8").tobytes() for each in (one, two))
    own, theirs = ([held[at : at + 8] for at in range(0, len(held), 8)] for held in (mine, other))
    secret, their_secret = secrets.token_bytes(32), secrets.token_bytes(32)
    scalar, their_scalar = secret_scalar(secret), secret_scalar(their_secret)
    sent = step("blind own ids", lambda: blind(own, CONTEXT, secret), lambda found: found.points.nbytes)
    came = blind(theirs, CONTEXT, their_secret)
    why = step("check the list that came", lambda: list_problem(came.points, len(sent.points)))
    assert not why, why
    back = step("multiply the list that came", lambda: multiply(came.points, scalar), lambda found: found.nbytes)
    home = multiply(sent.points, their_scalar)
    names = step("read the own list that is home", lambda: unblind(sent, home, scalar, CONTEXT))
    their_names = unblind(came, back, their_scalar, CONTEXT)
    shared = step("compare pseudonyms", lambda: intersection([names, their_names]))
    assert len(shared) == values - values // 2, len(shared)
    return {"values": values, "points": len(sent.points), "shared": len(shared), "rows": rows}


def cells(found: dict[str, Any]) -> list[list[str]]:
    lines = [_cells(row, found["values"]) for row in found["rows"]]
    matched = found["rows"][1:]
    whole = {name: sum(row[name] for row in matched) for name in ("cpu_s", "wall_s", "bytes")}
    return [*lines, _cells({"step": "**oblivious matching, together**", **whole}, found["values"])]


def _cells(row: dict[str, Any], values: int) -> list[str]:
    sends = f"{row['bytes'] / 2**20:,.0f} MiB" if row["bytes"] else ""
    return [row["step"], f"{row['cpu_s']:,.1f}", f"{row['wall_s']:,.1f}", f"{1e6 * row['cpu_s'] / values:,.1f}", sends]


def title_of(figures: dict[str, Any]) -> str:
    rows = figures["rows"]
    ratio = sum(row["cpu_s"] for row in rows[1:]) / rows[0]["cpu_s"]
    return (
        f"{figures['values']:,} ids against {figures['values']:,}, {figures['shared']:,} shared, lists of "
        f"{figures['points']:,} points, threads: {figures['threads']}; matching takes {ratio:,.0f} times as long as "
        "hashing with a key"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=int, default=1_000_000, help="ids of each party")
    parser.add_argument("--write", action="store_true", help="save the figures in results/ and the README")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
    options = parser.parse_args()
    figures = {**origin(np), "threads": int(os.environ["OMP_NUM_THREADS"]), **measured(options.values)}
    figures["versions"] |= {"rbcl": version("rbcl")}
    if options.write:
        told = (
            f"Measured on {figures['date']}: {title_of(figures)}; {figures['machine']}; {named(figures['versions'])}."
        )
        keep(figures, RESULTS, README, MARKS, [told, markdown(HEAD, cells(figures))])
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        print_table(title_of(figures), HEAD, cells(figures))


if __name__ == "__main__":
    main()
