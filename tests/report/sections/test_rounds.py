"""Learning curves show every method in every round."""

from __future__ import annotations

import math
from typing import Any

import pytest
from result_folders import LEVEL, ROUNDS, SEEDS, Build, Page, curve, run, said_over

from isthmus.report.report import write_report


@pytest.mark.drawn
def test_every_method_has_its_curves_and_bars(build: Build) -> None:
    page = Page(write_report([build()]))
    for title in ("Validation accuracy", "Test accuracy"):
        chart = next(c for c in page.charts if c.findtext("title") == title)
        for method in LEVEL:
            band, line, end, name = (group for group in chart.iter("g") if said_over(group) == method)
            assert [len(path.attrib["d"].split("L")) for path in line.iter("path")] == [ROUNDS]
            (edge,) = band.iter("path")
            assert len(edge.attrib["d"].split("L")) == 2 * (ROUNDS + 1), "there and back"
            assert len(list(end.iter("use"))) == 1
            assert [text.text for text in name.iter("text")] == [method]
    assert [name.partition(":")[0] for name in page.names("Per round")] == list(LEVEL)
    assert [name.partition(":")[0] for name in page.names("In all")] == list(LEVEL)


def test_tables_have_the_numbers_of_the_charts(build: Build) -> None:
    page = Page(write_report([build()]))
    heads = ["Method", *(f"seed {seed}" for seed in SEEDS)]
    at = next(at for at, row in enumerate(page.rows) if row == heads)
    for row, method in zip(page.rows[at + 1 :], LEVEL, strict=False):
        assert row[0].split()[0] == method
        assert row[1:] == [f"{100 * run(method, seed)['metrics']['test_accuracy']:.1f}" for seed in SEEDS]
    at = next(at for at, row in enumerate(page.rows) if row == ["Round", *LEVEL, *LEVEL])
    for row, round_ in zip(page.rows[at + 1 :], range(1, ROUNDS + 1), strict=False):
        assert row[0] == str(round_)
        means = [sum(curve(method, seed, round_) for seed in SEEDS) / len(SEEDS) for method in LEVEL]
        assert row[1 : 1 + len(LEVEL)] == [f"{100 * mean:.1f}" for mean in means]


def test_a_table_of_many_rounds_has_some_of_them(build: Build) -> None:
    def longer(parts: dict[str, Any]) -> None:
        first = [row for row in parts["history"] if row["round"] == 1]
        parts["history"] = [{**row, "round": at} for at in range(1, 1001) for row in first]

    page = Page(write_report([build(change=longer)]))
    at = next(at for at, row in enumerate(page.rows) if row[:1] == ["Round"])
    told = [int(row[0]) for row in page.rows[at + 1 :] if row[0].isdigit()]
    rounds = told[: told.index(1000) + 1]
    assert rounds[0] == 1
    assert len(rounds) <= 25
    assert f"in {len(rounds)} of 1000 rounds" in page.text


def test_a_method_without_history_is_named(build: Build) -> None:
    def drop(parts: dict[str, Any]) -> None:
        parts["history"] = [row for row in parts["history"] if row["method"] != "local"]

    assert "No value per round was recorded for local." in Page(write_report([build(change=drop)])).text


def test_values_that_are_no_number_do_not_break_a_chart(build: Build) -> None:
    def diverge(parts: dict[str, Any]) -> None:
        for row in parts["history"]:
            if row["method"] == "fedavg" and row["round"] > 5:
                row["value"] = math.nan
        parts["results"]["summary"][0]["mean"] = math.nan

    page = Page(write_report([build(change=diverge)]))
    assert "nan" not in page.source.partition("</style>")[2]
    assert page.row("fedavg")[1].startswith("–")
