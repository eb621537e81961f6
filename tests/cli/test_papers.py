"""`isthmus papers`: run, resume, show, check and page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from a_paper import PAGE, written
from tests.papers.a_paper import run_in_this_process

from command_line import Isthmus
from isthmus import store
from isthmus.papers import shelf
from isthmus.papers.plan import Table
from isthmus.papers.results import TableResults


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run_in_this_process(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path)


def test_a_paper_from_start_to_page(at_once: None, folder: Path, isthmus: Isthmus) -> None:
    where = ("--folder", str(folder))
    done = isthmus("papers", *where)
    assert "mine/table1" in done.out
    assert "0 of     8 runs  Who learns what" in done.out
    assert "not run" in isthmus("papers", "check", *where).out
    done = isthmus(
        "papers", "run", "mine/table1", *where, "--only", "method=fedavg", "--only", "size=120", "--seeds", "1"
    )
    assert "Run so far: 1 of 8; nothing yet of size `160`; method `fedprox`." in done.out
    done = isthmus("papers", "run", "mine/table1", *where, "--resume")
    assert done.code == 0
    assert "120, fedavg, seed 1: test 0." in done.err
    assert "Run so far" not in done.out
    assert "| 120 | 2 |" in done.out
    assert "| *paper* |  | 70.0 | 80.0 |" in done.out
    ours = next(line for line in done.out.splitlines() if line.startswith("| 120 |")).split(" | ")[2:]
    above = [float(cell.split(" ± ")[0].strip("| ")) - number for cell, number in zip(ours, (70.0, 80.0), strict=True)]
    assert f"| *difference* |  | {above[0]:+.1f} | {above[1]:+.1f} |" in done.out
    done = isthmus("papers", "check", "mine", *where)
    assert "mine/table1: FedProx is not much worse than FedAvg: points to" in done.out
    assert "Both are as in the paper: points against" in done.out
    assert isthmus("papers", "page", "mine/table1", *where).code == 0
    page = (folder / "mine" / "README.md").read_text()
    assert "\nold\n" not in page
    assert page.endswith("Words of ours.\n")
    assert "| 120 | 2 |" in page
    done = isthmus("papers", "page", *where)
    assert (done.code, done.out.split(" in ")[0]) == (2, "1 tables")
    assert "table2 was not written: there is no line" in done.err
    assert (folder / "mine" / "README.md").read_text() == page
    told = json.loads(isthmus("papers", "show", "mine/table1", *where, "--json").out)["mine/table1"]
    assert [len(cell["runs"]) for cell in told["cells"]] == [2, 2, 2, 2]


def test_results_are_not_written_over_without_a_word(at_once: None, folder: Path, isthmus: Isthmus) -> None:
    command = ("papers", "run", "mine/table1", "--folder", str(folder), "--only", "size=120", "--seeds", "1")
    assert isthmus(*command).code == 0
    results = folder / "mine" / "results" / "table1.json"
    before = results.read_bytes()
    done = isthmus(*command)
    assert done.code == 2
    assert "--resume adds what is missing, --force starts again" in done.err
    assert results.read_bytes() == before
    done = isthmus(*command, "--resume")
    assert (done.code, done.err) == (0, "")
    assert isthmus(*command, "--force").err.count("seed 0") == 2


def test_a_quick_run_keeps_nothing(at_once: None, folder: Path, isthmus: Isthmus) -> None:
    done = isthmus("papers", "run", "mine/table2", "--folder", str(folder), "--quick", "--json")
    assert done.code == 0
    (cell,) = json.loads(done.out)["cells"]
    assert [run["rounds"] for run in cell["runs"]] == [1]
    assert not (folder / "mine" / "results").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run", "mine/table3"), "there is no table 'mine/table3'"),
        (("run", "mine/table1", "--only", "sizes=3"), "--only: there is no axis 'sizes'"),
        (("run", "mine/table1", "--only", "size=3"), "--only: axis 'size' has no '3'"),
        (("run", "mine/table1", "--only", "size"), "name an axis and its values"),
        (("check", "nobody"), "there is no table 'nobody'"),
        (("show", "--folder", "nowhere"), "run this in a checkout of Isthmus"),
        (("--folder", "nowhere", "show"), "say --folder nowhere after 'show'"),
    ],
)
def test_mistakes_are_one_line(words: tuple[str, ...], says: str, folder: Path, isthmus: Isthmus) -> None:
    where = () if "--folder" in words else ("--folder", str(folder))
    done = isthmus("papers", *words, *where)
    assert done.code == 2
    assert says in done.err
    assert done.err.count("\n") == 1


def test_a_page_without_its_end_is_named(folder: Path, isthmus: Isthmus) -> None:
    (folder / "mine" / "README.md").write_text(PAGE.replace("<!-- end of table1 -->", ""))
    done = isthmus("papers", "page", "--folder", str(folder))
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "<!-- end of table1 -->" in done.err


def test_what_a_page_lacks_is_said(folder: Path, isthmus: Isthmus) -> None:
    lines = "'<!-- table1: written by isthmus papers page -->', and below it '<!-- end of table1 -->'"
    page = folder / "mine" / "README.md"
    page.write_text("# A paper\n")
    done = isthmus("papers", "page", "mine/table1", "--folder", str(folder))
    why = f"there is no line {lines}"
    assert (done.code, done.err) == (2, f"isthmus: {page}: table1 was not written: {why}\n")
    page.unlink()
    done = isthmus("papers", "page", "mine/table1", "--folder", str(folder))
    why = f"there is no such page: make it, with the line {lines}"
    assert (done.code, done.err) == (2, f"isthmus: {page}: table1 was not written: {why}\n")
    assert not page.exists()


def test_tables_of_the_package_are_read_and_left_as_they_are(
    at_once: None, folder: Path, isthmus: Isthmus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf, "PACKAGED", folder)
    assert "mine/table1" in isthmus("papers").out
    assert "mine/table1" in isthmus("papers", "check").out
    assert isthmus("papers", "run", "mine/table2", "--quick").code == 0
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for words in (("run", "mine/table1", "--force"), ("page",), ("page", "--folder", str(folder))):
        done = isthmus("papers", *words)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert f"copy the folder {folder} and name the copy with --folder" in done.err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    (shelf.CHECKOUT / "own").mkdir(parents=True)  # below the working directory, so it goes before the package's
    (shelf.CHECKOUT / "own" / "table1.toml").write_bytes((folder / "mine" / "table1.toml").read_bytes())
    assert isthmus("papers").out.startswith("own/table1 ")


def test_only_some_cells_are_started_anew(at_once: None, folder: Path, isthmus: Isthmus) -> None:
    command = ("papers", "run", "mine/table1", "--folder", str(folder), "--seeds", "1")
    assert isthmus(*command).code == 0
    done = isthmus(*command, "--force", "--only", "size=120")
    assert done.err.count("seed 0") == 2
    plan = Table.of_file(folder / "mine" / "table1.toml")
    results = TableResults.read(folder / "mine" / "results" / "table1.json")
    assert [len(results.runs(cell)) for cell in plan.cells()] == [1, 1, 1, 1]


def test_a_table_is_run_by_one_process(at_once: None, folder: Path, isthmus: Isthmus) -> None:
    with store.lock(folder / "mine" / "results" / ".table1.lock", "mine/table1"):
        done = isthmus("papers", "run", "mine/table1", "--folder", str(folder))
    assert (done.code, done.err) == (
        2, "isthmus: mine/table1 is in use by another process: stop that process first\n"
    )  # fmt: skip


def test_a_table_that_cannot_be_read_is_in_the_way_of_no_other(
    at_once: None, folder: Path, isthmus: Isthmus, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "mine" / "broken.toml").write_text("title = 3\n")
    (folder / "mine" / "results").mkdir()
    (folder / "mine" / "results" / "table2.json").write_text("{")
    listed = isthmus("papers", "--folder", folder)
    assert listed.code == 2
    assert "mine/table1" in listed.out
    assert all("broken.toml" in line or "table2.json" in line for line in listed.err.splitlines())
    done = isthmus("papers", "run", "mine/table1", "--folder", folder, "--seeds", "1", "--only", "size=120")
    assert done.code == 0, done.err
    for name in ("broken", "table2"):
        assert f"mine/{name} is left out, as it cannot be read: " in caplog.text
