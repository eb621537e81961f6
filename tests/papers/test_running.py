"""Running a table: processes, resuming, failures, and the command line of papers."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from a_paper import PAGE, TABLE1, written
from tests.deploy.real import until

from command_line import Isthmus
from isthmus import store
from isthmus.errors import IsthmusError
from isthmus.papers import running
from isthmus.papers.pictures import pictures_page
from isthmus.papers.plan import Table
from isthmus.papers.results import TableResults
from isthmus.papers.running import Progress, Runner
from isthmus.study.run import run_study

NEVER = Path("never")
THREADS = 4
"""Of a process that computes: its own, that which looks after its parent, and two of its queues."""


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this process: others take seconds to start."""

    @contextmanager
    def pool(processes: int) -> Iterator[ThreadPoolExecutor]:
        with ThreadPoolExecutor(1) as executor:
            yield executor

    monkeypatch.setattr(running, "_pool", pool)


def table(base: Path, name: str = "table1", **tables: str) -> Table:
    return Table.of_file(written(base, **tables) / "mine" / f"{name}.toml")


def test_figures_are_those_of_the_study(at_once: None, tmp_path: Path) -> None:
    plan, results, told = table(tmp_path), TableResults(), list[Progress]()
    assert Runner(plan, results, tmp_path / "state", on_progress=told.append).run(1) == []
    for cell in plan.cells():
        runs = results.runs(cell)
        assert [run["seed"] for run in runs] == [0, 1]
        for run in runs:
            due = run_study(cell.study_for(run["seed"])).metrics
            assert run["figures"] == {"test": round(due["test_accuracy"], 6), "val": round(due["val_accuracy"], 6)}
            assert run["rounds"] == 3
    assert not (tmp_path / "state").exists()
    counts = [(each.done, each.total) for each in told if each.total]
    assert counts == [(at, 8) for at in range(9)]
    assert told[-1].left == 0.0


def test_what_is_kept_is_not_run_again(at_once: None, tmp_path: Path) -> None:
    plan, path = table(tmp_path), tmp_path / "results.json"
    first = TableResults()
    Runner(plan, first, NEVER, max_seeds=1, only={"method": ["fedavg"]}, save=lambda now: now.write(path)).run(1)
    again, lines = TableResults.read(path), list[str]()
    assert {key: cell["runs"] for key, cell in again.cells.items()} == {
        key: cell["runs"] for key, cell in first.cells.items()
    }
    Runner(plan, again, NEVER, on_progress=lambda at: lines.append(at.line)).run(1)
    assert len([line for line in lines if line]) == 6
    assert [len(again.runs(cell)) for cell in plan.cells()] == [2, 2, 2, 2]
    assert json.loads(path.read_text())["threads"] == 1


def test_runs_of_another_setting_do_not_count(at_once: None, tmp_path: Path) -> None:
    results = TableResults()
    Runner(table(tmp_path / "a"), results, NEVER, max_seeds=1).run(1)
    other = table(tmp_path / "b", table1=TABLE1.replace("mu = 0.5", "mu = 0.6"))
    assert results.stale(other) == ["160, fedprox"]
    assert [len(results.runs(cell)) for cell in other.cells()] == [1, 1, 1, 0]
    Runner(other, results, NEVER, max_seeds=1).run(1)
    assert results.stale(other) == []


def test_a_run_that_fails_is_named_and_the_others_go_on(at_once: None, tmp_path: Path) -> None:
    text = TABLE1.replace("[120, 160]", "[120, 2]").replace('"160"', '"2"')
    plan, results = table(tmp_path, table1=text), TableResults()
    (first, *_) = failed = Runner(plan, results, NEVER, max_seeds=1).run(1)
    assert first.startswith("2, fedavg, seed 0: ")
    assert len(failed) == 2
    assert [len(results.runs(cell)) for cell in plan.cells()] == [1, 1, 0, 0]


def test_what_no_message_tells_is_named_by_its_kind(
    at_once: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(job: running.Job) -> dict[str, object]:
        raise MemoryError(f"no room\nfor {job.cell.name}")

    monkeypatch.setattr(running, "run_job", broken)
    failed = Runner(table(tmp_path), TableResults(), NEVER, max_seeds=1).run(1)
    assert failed[0] == "120, fedavg, seed 0: MemoryError: no room for 120, fedavg"
    assert len(failed) == 4


def test_a_metric_that_there_is_not_is_named(at_once: None, tmp_path: Path) -> None:
    text = TABLE1.replace('"test_accuracy"', '"test_acuracy"').replace('"val_accuracy"', '"val_acuracy"')
    (first, *_) = Runner(table(tmp_path, table1=text), TableResults(), NEVER, max_seeds=1).run(1)
    assert "no metric 'test_acuracy': " in first
    assert "test_accuracy" in first


def test_options_are_chosen_by_validation_on_other_seeds(at_once: None, tmp_path: Path) -> None:
    plan, results, path = table(tmp_path, "table2"), TableResults(), tmp_path / "results.json"
    Runner(plan, results, NEVER, max_seeds=1, save=lambda now: now.write(path)).run(1)
    (cell,) = plan.cells()
    means = {}
    for lr in (0.1, 0.01):
        found = [
            run_study(cell.study_for(seed, {"method": {"local": {"lr": lr}}, "model": {"hidden": 4}})).metrics
            for seed in (100, 101)
        ]
        means[lr] = sum(each["val_accuracy"] for each in found) / 2
    best = max(means, key=means.__getitem__)
    (run,) = results.runs(cell)
    assert run["chosen"] == {"method.local.lr": best, "model.hidden": 4}
    assert TableResults.read(path).options(cell) == run["chosen"]
    assert TableResults.read(path).tuned(cell) == results.tuned(cell)
    due = run_study(cell.study_for(0, {"method": {"local": {"lr": best}}, "model": {"hidden": 4}})).metrics
    assert run["figures"]["test"] == round(due["test_accuracy"], 6)


def test_curves_are_kept_where_they_are_asked_for(at_once: None, tmp_path: Path) -> None:
    text = TABLE1.replace("seeds = 2", 'seeds = 2\nmeasure = { name = "training", curves = ["test_accuracy"] }', 1)
    plan, results = table(tmp_path, table1=text), TableResults()
    Runner(plan, results, NEVER, max_seeds=1, only={"size": ["120"], "method": ["fedavg"]}).run(1)
    ((run,),) = [results.runs(cell) for cell in plan.cells() if results.runs(cell)]
    assert [at for at, _ in run["curves"]["test_accuracy"]] == [1, 2, 3]
    page = pictures_page(plan, results)
    assert page.count("<svg") == 1
    assert "size: 120" in page
    assert "test_accuracy" not in page
    assert "fedavg ends at" in page
    told = "".join(f"<td class=n>{value:.3g}</td>" for _, value in run["curves"]["test_accuracy"])
    assert f"<tr><th scope=row>fedavg</th>{told}</tr>" in page
    assert pictures_page(table(tmp_path / "without"), results) == ""


def test_pictures_are_kept_where_items_are_embedded(at_once: None, tmp_path: Path) -> None:
    text = TABLE1.replace("seeds = 2", 'seeds = 2\nmeasure = { name = "embeddings" }', 1)
    text = text.replace('"test_accuracy"', '"silhouette"').replace("[study]", '[study]\npartition.name = "overlap"', 1)
    plan, results = table(tmp_path, table1=text), TableResults()
    Runner(plan, results, NEVER, max_seeds=1, only={"size": ["120"], "method": ["fedavg"]}).run(1)
    ((run,),) = [results.runs(cell) for cell in plan.cells() if results.runs(cell)]
    (items,) = run["pictures"].values()
    page = pictures_page(plan, results)
    assert page.count("<svg") == 1
    assert sum(map(int, dict(re.findall(r">class (\d): (\d+)<", page)).values())) == len(items)


def test_what_is_no_result_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "table1.json"
    path.write_text('{"cells": 3}')
    with pytest.raises(IsthmusError, match=r"table1\.json is not a file of results"):
        TableResults.read(path)


# ---- the command line


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
    assert "mine/table1: FedProx is not much worse than FedAvg: holds" in done.out
    assert "Both are as in the paper: fails" in done.out
    assert isthmus("papers", "page", *where).code == 0
    page = (folder / "mine" / "README.md").read_text()
    assert "\nold\n" not in page
    assert page.endswith("Words of ours.\n")
    assert "| 120 | 2 |" in page
    isthmus("papers", "page", "mine/table1", *where)
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
        (("run", "mine/table1", "--only", "sizes=3"), "no such axis"),
        (("run", "mine/table1", "--only", "size=3"), "no such value"),
        (("run", "mine/table1", "--only", "size"), "say which values of which axis"),
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
    assert f"not table1: the page has no line {lines}" in done.out
    page.unlink()
    done = isthmus("papers", "page", "mine/table1", "--folder", str(folder))
    assert done.code == 0
    assert f"0 tables in {page}\n  not table1: the page is not there: make it, with the line {lines}" in done.out
    assert not page.exists()


def children(pid: int) -> list[int]:
    """Processes that compute for this one."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((each / "stat").read_text().rpartition(")")[2].split()[1])
            words = (each / "cmdline").read_bytes().decode()
        except OSError:  # it has ended meanwhile
            continue
        if parent == pid and "spawn_main" in words:
            found.append(int(each.name))
    return found


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


def test_runs_of_other_versions_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, path = table(tmp_path), tmp_path / "results.json"
    cell, results = next(plan.cells()), TableResults()
    results.add(cell, {"seed": 0, "figures": {}})
    monkeypatch.setattr("isthmus.papers.results.versions", lambda: {"torch": "9"})
    results.add(cell, {"seed": 1, "figures": {}})
    results.write(path)
    again = TableResults.read(path)
    assert [run.get("with", 0) for run in again.runs(cell)] == [0, 1]
    assert again.versions[1] == {"torch": "9"}


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


@pytest.mark.slow
def test_what_was_killed_goes_on_to_the_same_figures(folder: Path, isthmus: Isthmus) -> None:
    only = ("--only", "size=120", "--seeds", "1", "--jobs", "2")
    words = ("papers", "run", "mine/table1", "--folder", str(folder), *only)
    text = (folder / "mine" / "table1.toml").read_text()
    (folder / "mine" / "table1.toml").write_text(text.replace("method.rounds = 3", "method.rounds = 400"))
    results = folder / "mine" / "results" / "table1.json"
    state = results.parent / ".state" / "table1"
    process = subprocess.Popen([sys.executable, "-m", "isthmus", *words], stderr=subprocess.DEVNULL)
    try:
        until("two checkpoints", lambda: len(list(state.glob("*.checkpoint"))) == 2 or process.poll() is not None, 120)
        own = children(process.pid)
        counts = [threads(each) for each in own]
    finally:
        process.kill()
    assert len(own) == 2
    assert max(counts) <= THREADS, "they compute with one thread each"
    assert process.wait() == -signal.SIGKILL
    until("the end of its processes", lambda: not any(Path(f"/proc/{each}").exists() for each in own), 30)
    assert any(state.glob("*.checkpoint"))
    plan = Table.of_file(folder / "mine" / "table1.toml")
    before = TableResults.read(results)
    done = isthmus(*words, "--resume")
    assert done.code == 0, done.err
    results = TableResults.read(results)
    cells = list(plan.cells())[:2]
    assert [len(results.runs(cell)) for cell in plan.cells()] == [1, 1, 0, 0]
    for cell in cells:
        assert before.runs(cell) in ([], results.runs(cell))
        (run,) = results.runs(cell)
        assert run["figures"]["test"] == round(run_study(cell.study_for(0)).metrics["test_accuracy"], 6)
    assert not state.parent.exists()
