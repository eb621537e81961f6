"""Pictures of embeddings, and the same in numbers."""

from __future__ import annotations

import pytest
from result_folders import Build, Page, curve, said_over, with_pictures

from isthmus.errors import IsthmusError
from isthmus.report.report import write_report


@pytest.mark.drawn
def test_embeddings_are_drawn_for_the_first_seed(build: Build) -> None:
    page = Page(write_report([build(change=with_pictures)]))
    titles = [chart[0].text for chart in page.charts]
    assert [title for title in titles if title and "seed" in title and "round" in title] == [
        "fedavg, seed 0, round 1",
        "fedavg, seed 0, round 10",
        "fedsage, seed 0, round 1",
    ]
    chart = page.chart("fedavg, seed 0, round 1")
    clouds = {said_over(group): len(list(group.iter("use"))) for group in chart.iter("g") if said_over(group)}
    assert clouds == {"class 0: 1": 1, "class 1: 2": 2, "no label: 1": 1}
    assert set(clouds) == {text.text for text in chart.iter("text")} - {"fedavg, seed 0, round 1"}


def test_a_table_has_what_the_pictures_show(build: Build) -> None:
    page = Page(write_report([build(change=with_pictures)]))
    values = [f"{100 * (curve('fedavg', 0, round_) - 0.01):.1f}" for round_ in (1, 10)]
    counts = "no label: 1, class 0: 1, class 1: 2"
    rows = [row for row in page.rows if row[-1:] == [counts]]
    assert [row[:2] for row in rows[:2]] == [["1", values[0]], ["10", values[1]]]
    assert len(rows) == 3


def test_without_pictures_there_is_no_section(build: Build) -> None:
    assert "t-SNE" not in Page(write_report([build()])).text


def test_a_broken_file_of_coordinates_is_named(build: Build) -> None:
    folder = build(change=with_pictures)
    (folder / "places.parquet").write_bytes(b"PAR1")
    with pytest.raises(IsthmusError, match=r"cannot read '.*places.parquet'"):
        write_report([folder])
