"""Runs of a table: processes, trials, failures, and what resumes."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from a_paper import TABLE1, written
from tests.deploy.real import until
from tests.papers.a_paper import NEVER, table

from command_line import Isthmus
from isthmus.errors import IsthmusError
from isthmus.papers import running
from isthmus.papers.markdown import trials_text
from isthmus.papers.plan import Table
from isthmus.papers.results import TableResults
from isthmus.papers.running import Progress, Runner
from isthmus.study.processes import Send
from isthmus.study.run import run_study


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path)


THREADS = 4
"""Of a process that computes: its own, that which looks after its parent, and two of its queues."""


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


def test_results_name_another_device_than_the_cpu(at_once: None, tmp_path: Path) -> None:
    plan = table(tmp_path)
    with pytest.raises(IsthmusError, match="unknown device 'gpu'"):
        Runner(plan, TableResults(), NEVER, device="gpu").run(1)
    elsewhere, here = TableResults(), TableResults()
    for results, device in ((elsewhere, "cpu:0"), (here, "cpu")):  # "cpu:0" is the CPU by another name
        assert Runner(plan, results, NEVER, max_seeds=1, device=device).run(1) == []
    for cell in plan.cells():
        (there,), (run,) = elsewhere.runs(cell), here.runs(cell)
        assert (there["device"], "device" in run) == ("cpu:0", False)
        assert there["figures"] == run["figures"]


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
    def broken(job: running.Job, send: Send) -> dict[str, object]:
        raise MemoryError(f"no room\nfor {job.cell.name}")

    monkeypatch.setattr(running, "run_job", broken)
    failed = Runner(table(tmp_path), TableResults(), NEVER, max_seeds=1).run(1)
    at = broken.__code__.co_firstlineno + 1
    assert failed[0] == f"120, fedavg, seed 0: test_running.py:{at}: MemoryError: no room for 120, fedavg"
    assert len(failed) == 4


def test_a_metric_that_there_is_not_is_named(at_once: None, tmp_path: Path) -> None:
    text = TABLE1.replace('"test_accuracy"', '"test_rmse"').replace('"val_accuracy"', '"val_mae"')
    (first, *_) = Runner(table(tmp_path, table1=text), TableResults(), NEVER, max_seeds=1).run(1)
    assert first == "120, fedavg, seed 0: no metric 'test_rmse': did you mean 'test_loss'?"


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


WIDE = """
title = "Tuned as far as it takes"
like = "table1"
where = []
seeds = 1
tune = { options = { "method.local.lr" = [0.1, 1.0], "model.hidden" = [4] }, seeds = [100], widen = 3 }

[[axes]]
name = "method"
values.fedavg.method.name = "fedavg"
"""


@pytest.fixture
def best_rate(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The learning rate that validation prefers, in place of training."""
    rate = [1.0]

    def measured(job: running.Job, send: Send) -> dict[str, object]:
        off = abs(math.log10(float(job.options["method.local.lr"]) / rate[0]))
        figures = dict.fromkeys(job.metrics, 1 / (1 + off))
        chosen = {} if job.trial else {"chosen": job.options}
        return {"seed": job.seed, "figures": figures, "seconds": 1.0, **chosen}

    monkeypatch.setattr(running, "run_job", measured)
    return rate


@pytest.mark.parametrize(
    ("best", "chosen", "tried"),
    [
        (100.0, 100.0, [0.1, 1.0, 10.0, 100.0, 1000.0]),
        (1e-5, 1e-4, [0.1, 1.0, 0.01, 0.001, 1e-4]),  # three steps at most
        (1.0, 1.0, [0.1, 1.0, 10.0]),
    ],
)
def test_a_best_end_is_not_the_end(
    at_once: None, tmp_path: Path, best_rate: list[float], best: float, chosen: float, tried: list[float]
) -> None:
    best_rate[0] = best
    plan, results = table(tmp_path, "wide", wide=WIDE), TableResults()
    assert Runner(plan, results, NEVER).run(1) == []
    (cell,) = plan.cells()
    (run,) = results.runs(cell)
    assert run["chosen"] == {"method.local.lr": chosen, "model.hidden": 4}
    assert [json.loads(trial)["method.local.lr"] for trial in results.tuned(cell)] == tried
    assert ("in 1 at an end" in trials_text(plan, results, "ends.json")) == (best < chosen)


def test_no_step_leaves_the_range_of_an_option(at_once: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(job: running.Job, send: Send) -> dict[str, object]:
        figures = dict.fromkeys(job.metrics, job.options["method.fraction"])
        return {"seed": job.seed, "figures": figures, "seconds": 1.0, **({} if job.trial else {"chosen": job.options})}

    monkeypatch.setattr(running, "run_job", measured)
    text = WIDE.replace('"method.local.lr" = [0.1, 1.0], "model.hidden" = [4]', '"method.fraction" = [0.45, 0.6]')
    plan, results = table(tmp_path, "wide", wide=text), TableResults()
    assert Runner(plan, results, NEVER).run(1) == []
    (cell,) = plan.cells()
    assert [json.loads(trial)["method.fraction"] for trial in results.tuned(cell)] == [0.45, 0.6, 0.8]


def test_a_trial_that_diverges_is_the_worst_and_stops_nothing(at_once: None, tmp_path: Path) -> None:
    text = WIDE.replace("[0.1, 1.0]", "[0.1, 1e30]").replace("widen = 3", "widen = 0")
    text = text.replace("seeds = 1\n", 'seeds = 1\nstudy.method.local.optimizer = "sgd"\n')
    plan, results, path, lines = (
        table(tmp_path, "wide", wide=text),
        TableResults(),
        tmp_path / "results.json",
        list[str](),
    )
    runner = Runner(
        plan,
        results,
        tmp_path / "state",
        save=lambda now: now.write(path),
        on_progress=lambda at: lines.append(at.line),
    )
    assert runner.run(1) == []
    (cell,) = plan.cells()
    (run,) = TableResults.read(path).runs(cell)
    assert run["chosen"]["method.local.lr"] == 0.1
    assert TableResults.read(path).tuned(cell)['{"method.local.lr": 1e+30, "model.hidden": 4}'] == {"100": None}
    assert sum("seed 100: diverged, round 1, train: only 0 of" in line for line in lines) == 1
    assert not (tmp_path / "state").exists()


def test_a_cell_whose_trials_all_diverge_fails(at_once: None, tmp_path: Path) -> None:
    text = WIDE.replace("[0.1, 1.0]", "[1e29, 1e30]").replace("widen = 3", "widen = 0")
    plan = table(
        tmp_path, "wide", wide=text.replace("seeds = 1\n", 'seeds = 1\nstudy.method.local.optimizer = "sgd"\n')
    )
    (failed,) = Runner(plan, TableResults(), NEVER).run(1)
    assert failed.startswith("fedavg, seed 0: ")
    assert "if training diverged, lower its learning rate" in failed


@pytest.mark.parametrize("older", [False, True])
def test_runs_are_renewed_with_what_validation_now_chooses(
    at_once: None, tmp_path: Path, best_rate: list[float], older: bool
) -> None:
    text = WIDE.replace("seeds = 1\n", "seeds = 2\n")
    narrow = table(tmp_path / "narrow", "wide", wide=text.replace("widen = 3", "widen = 0"))
    wide = table(tmp_path / "wide", "wide", wide=text)
    best_rate[0], results = 10.0, TableResults()
    Runner(narrow, results, NEVER).run(1)
    (cell,) = wide.cells()
    assert [run["chosen"]["method.local.lr"] for run in results.runs(cell)] == [1.0, 1.0]
    Runner(wide, results, NEVER).run(1)
    assert [run["chosen"]["method.local.lr"] for run in results.runs(cell)] == [1.0, 1.0]
    if older:
        results.versions = [{"laws": "older"}]
    Runner(wide, results, NEVER, renew=True, max_seeds=1).run(1)
    assert [(run["seed"], run["chosen"]["method.local.lr"]) for run in results.runs(cell)] == [(0, 10.0)]
    results.runs(cell)[0]["kept"] = True
    Runner(wide, results, NEVER, renew=True, max_seeds=1).run(1)
    assert results.runs(cell)[0]["kept"], "its options are still the best"


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
        until("a checkpoint", lambda: any(state.glob("*.checkpoint")) or process.poll() is not None, 120)
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
