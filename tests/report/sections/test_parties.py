"""The report's section on parties: a table, a chart that is drawn to scale, and the cut in words."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from result_folders import PARTIES, SEEDS, Build, Page, cut, page_on, said_over, write_folder

from isthmus.report.report import write_report

pytestmark = pytest.mark.drawn

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Makes a result folder; `change` may alter what is written."""
    return partial(write_folder, tmp_path, methods=("fedavg",))


def with_cuts(*cuts: dict[str, Any]) -> Change:
    """Puts other cuts into the results."""

    def change(parts: dict[str, Any]) -> None:
        parts["results"]["cuts"] = list(cuts)

    return change


def bars(page: Page) -> dict[str, list[int]]:
    """What the bars of labels are said to hold, by name."""
    found: dict[str, list[int]] = {}
    for said in page.names("Labels of each party"):
        ((name, count),) = re.findall(r"^(.*), class \d+: ([\d,]+) ", said)
        found.setdefault(name, []).append(int(count.replace(",", "")))
    return found


def shades(chart: ET.Element) -> dict[str, int]:
    """How many rectangles each shade of a heat map has, the lightest first; the legend's own are not among them."""
    found: dict[str, int] = {}
    for path in (path.attrib for path in chart.iter("path") if "fill:var(--s0)" in path.attrib["style"]):
        found.setdefault(path["style"].partition("opacity:")[2] or "1", path["d"].count("M"))
    return found


def section(page: Page) -> str:
    return page.source.partition('<section id="parties">')[2].partition("</section>")[0]


def test_section_has_a_row_and_a_bar_for_each_party(build: Build) -> None:
    page = Page(write_report([build(change=with_cuts(cut(SEEDS, note="Kept <apart>.")))]))
    assert "Kept &lt;apart&gt;." in section(page)
    assert f"{PARTIES} parties hold 86 nodes and 4,034 edges; 0.7 % of the edges cross" in page.text
    assert "is 0.75 (0: all have the same mix; at most 2)" in page.text
    assert "Each seed has a cut of its own" not in page.text
    head = next(row for row in page.rows if row[0] == "Party" and "nodes" in row)
    assert head[1:] == [
        "nodes", "edges", "cross", "train", "val", "test", "unlabelled", "class 0", "class 1", "class 2",
    ]  # fmt: skip
    rows = [row for row in page.rows if row[0] == "party-2" and len(row) == len(head)]
    assert rows == [["party-2", "22", "1,002", "7", "4", "5", "6", "10", "1", "1", "10"]]
    assert bars(page) == {
        "all": [22, 13, 13],
        **{f"party-{at}": [1 + 9 * (at % 3 == c) for c in range(3)] for at in range(PARTIES)},
    }
    assert {"all  48", "party-0  12", "a: class 0"} <= {
        text.text for text in page.chart("Labels of each party").iter("text")
    }


def test_bars_are_as_long_as_their_shares(build: Build) -> None:
    page = Page(write_report([build()]))
    for name, counts in bars(page).items():
        boxes = [box for box in page.chart("Labels of each party").iter("g") if said_over(box).startswith(f"{name}, ")]
        corners = [re.findall(r"[ML]([\d.]+)", box[1].attrib["d"]) for box in boxes]
        widths = [max(map(float, across)) - min(map(float, across)) for across in corners]
        assert widths == pytest.approx([count * sum(widths) / sum(counts) for count in counts], abs=0.2)
        assert [re.findall(r"fill:([^;]*)", box[1].attrib["style"]) for box in boxes] == [
            ["var(--s0)"],
            ["var(--s1)"],
            ["var(--s2)"],
        ]
    assert "party-1, class 1: 10 (83.3 %)" in page.source


def test_seeds_with_different_cuts_are_averaged(build: Build) -> None:
    cuts = cut((3, 5), emd=0.5), cut((4,), parties=2, emd=0.8)
    page = Page(write_report([build(change=with_cuts(*cuts))]))
    assert "is 0.60 ± 0.17 (0: all have the same mix" in page.text
    assert "single parties are shown as seed 3 has them" in page.text
    assert len(bars(page)) == 1 + PARTIES


def test_results_without_cuts_still_make_a_page(build: Build) -> None:
    def forget(parts: dict[str, Any]) -> None:
        del parts["results"]["cuts"]

    page = Page(write_report([build(change=forget)]))
    assert not section(page)
    assert '"#parties"' not in page.source
    assert "fedavg reached" in page.text


def test_folders_with_the_same_cuts_share_a_part(build: Build) -> None:
    first, second = build("a"), build("b")
    third = build("c", change=with_cuts(cut(SEEDS, parties=3)))
    text = section(page_on(first, second, third))
    assert "<h3>a and b</h3>" in text
    assert "<h3>c</h3>" in text
    assert text.count("<svg") == 2


def test_long_tables_are_folded_and_longer_ones_summarised(build: Build) -> None:
    folded = Page(write_report([build("folded", change=with_cuts(cut((0,), parties=30)))]))
    assert section(folded).count("<details>") == 1
    assert folded.row("party-29")
    long = Page(write_report([build("long", change=with_cuts(cut((0,), parties=61)))]))
    assert "<details>" not in section(long)
    assert "61 parties: too many for a line each, all are in results.json." in long.text
    assert [long.row(name)[1] for name in ("fewest", "median", "most")] == ["20", "50", "80"]


@pytest.mark.parametrize(("parties", "classes"), [(4, 12), (40, 3), (400, 20)])
def test_many_parties_or_classes_are_a_heat_map(build: Build, parties: int, classes: int) -> None:
    page = Page(write_report([build(change=with_cuts(cut((0,), parties=parties, classes=classes)))]))
    chart = page.chart("Labels of each party: share of each class among its labels")
    assert {"party-0", "class 0"} == set(re.findall(r"party-\d+|class \d+", chart.findtext("desc") or ""))
    drawn = shades(chart)
    assert list(drawn) == ["0.1", "1"]  # one label of each other class, or ten
    assert drawn["1"] == parties  # each party has one class of its own, and no neighbour has the same
    names = {text.text for text in chart.iter("text")}
    assert {"party-0", "class 0", f"{1000 / (classes + 9):.0f} %"} <= names


def test_a_chart_of_too_many_fields_is_left_out(build: Build) -> None:
    page = Page(write_report([build(change=with_cuts(cut((0,), parties=600, classes=100)))]))
    assert "<svg" not in section(page)


def of_tasks(**labels: Any) -> dict[str, Any]:
    whole = cut((0,), parties=2)
    for party in whole["parties"]:
        del party["labels"]
        party.update(labels)
    return whole


def test_labels_that_say_yes_or_no_are_shares_of_what_is_labelled(build: Build) -> None:
    told = {**of_tasks(labels=[1, 3], labelled=[4, 4]), "kind": "yes-no"}
    page = Page(write_report([build(change=with_cuts(told))]))
    chart = page.chart("Labels of each party: share of yes among its labels of each task")
    assert "75 %" in (chart.findtext("desc") or "")
    assert list(shades(chart)) == ["0.4", "1"]
    assert [row[-2:] for row in page.rows if row[0] == "party-1" and len(row) > 5] == [["1/4", "3/4"]]


def test_measured_values_have_no_chart(build: Build) -> None:
    told = {**of_tasks(labelled=[4], means=[0.5]), "kind": "value", "emd": None}
    page = Page(write_report([build(change=with_cuts(told))]))
    assert "<svg" not in section(page)
    assert "earth mover" not in page.text
    assert [row[-1] for row in page.rows if row[0] == "party-1" and len(row) > 5] == ["0.5"]


def test_a_party_without_labels_has_an_empty_bar(build: Build) -> None:
    told = cut((0,))
    told["parties"][1]["labels"] = [0, 0, 0]
    page = Page(write_report([build(change=with_cuts(told))]))
    assert bars(page)["party-1"] == [0, 0, 0]
    assert "party-1, class 0: 0 (0.0 %)" in page.source
