"""A study's folder holds what it gave; a killed study goes on to the same bits; nobody's files are overwritten."""

from __future__ import annotations

import errno
import importlib
import json
import multiprocessing
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pyarrow import parquet
from safetensors.torch import load_file
from tests.party_folders import two_drafts
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

import isthmus
from helpers import make_graph_parties, make_node_parties
from in_this_process import InThisProcess
from isthmus.data.describe import describe
from isthmus.data.description import CutDescription
from isthmus.data.party import Party
from isthmus.errors import Diverged, IsthmusError
from isthmus.federation.ledger import COLUMNS
from isthmus.methods.base import Method
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.fedrep import FedRep
from isthmus.methods.local import Local
from isthmus.methods.scaffold import Scaffold
from isthmus.methods.training import LocalTraining
from isthmus.nn.decoupled import Sgc
from isthmus.nn.encoders import Gat, Gcn, Gin
from isthmus.options import merge
from isthmus.progress.live_page import RunningReport
from isthmus.report.report import write_report
from isthmus.result_files import STATE
from isthmus.study import run as study_run
from isthmus.study.config import Study, read_toml
from isthmus.study.loop import RunResult
from isthmus.study.processes import ProcessKilled
from isthmus.study.run import Watcher, Watchers, run, run_study
from isthmus.study.setup import module_for, task_for
from isthmus.tasks.classification import NodeClassification

SMALL: dict[str, Any] = {"data": {"name": "banks", "nodes": 100}, "model": {"hidden": 8}, "training": {"rounds": 4}}


def small(**changes: Any) -> Study:
    return Study.of(merge(SMALL, changes))


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


TWO = small(methods=[{"name": "fedavg"}, {"name": "local"}], seeds=[0, 3])


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of two methods with two seeds."""
    out = tmp_path_factory.mktemp("runs") / "two"
    run_study(TWO, out)
    return out


# ---- the folder


def test_folder_holds_results_and_nothing_else(two: Path) -> None:
    weights = {f"weights/fedavg-{seed}.safetensors" for seed in (0, 3)} | {
        f"weights/local-{seed}/party-{at}.safetensors" for seed in (0, 3) for at in range(4)
    }
    about = {
        f"weights/{name}-{seed}.{kind}" for name in ("fedavg", "local") for seed in (0, 3) for kind in ("json", "md")
    }
    tables = {"results.json", "study.toml", "history.parquet", "ledger.parquet", "SHA256SUMS"}
    assert files(two) == tables | weights | about
    assert not (two / STATE).exists()


def test_results_have_a_run_for_each_method_and_seed(two: Path) -> None:
    found = json.loads((two / "results.json").read_text())
    about = {"format", "isthmus", "created", "versions", "study", "methods"}
    assert set(found) == about | {"runs", "summary", "cuts", "notes", "fingerprint"}
    assert [(each["method"], each["seed"]) for each in found["runs"]] == [
        ("fedavg", 0), ("fedavg", 3), ("local", 0), ("local", 3),
    ]  # fmt: skip
    assert {each["rounds"] for each in found["runs"]} == {4}
    assert {each["seeds"] for each in found["summary"]} == {2}


def test_results_hold_what_the_parties_held(two: Path) -> None:
    cuts = json.loads((two / "results.json").read_text())["cuts"]
    assert [cut.pop("seeds") for cut in cuts] == [[0], [3]]
    for cut, seed in zip(cuts, (0, 3), strict=True):
        loaded = TWO.load(seed)
        assert cut == json.loads(json.dumps(describe(loaded.parties, loaded.classes, loaded.note).to_dict()))
        assert sum(party["items"] for party in cut["parties"]) == 100


def test_one_cut_for_all_seeds_is_told_once() -> None:
    results = run_study(small(data_seed=5, seeds=[2, 0]))
    assert [cut["seeds"] for cut in results.to_dict()["cuts"]] == [[2, 0]]


def test_history_has_a_row_for_each_metric_of_each_round(two: Path) -> None:
    table = parquet.read_table(two / "history.parquet")
    assert table.column_names == ["method", "seed", "round", "metric", "value"]
    assert table.num_rows == 4 * 4 * 8
    assert set(table["round"].to_pylist()) == {1, 2, 3, 4}
    rows = {(row["method"], row["seed"], row["round"], row["metric"]): row["value"] for row in table.to_pylist()}
    assert len(rows) == table.num_rows
    for each in json.loads((two / "results.json").read_text())["runs"]:
        for metric, value in each["metrics"].items():
            assert rows[each["method"], each["seed"], each["chosen_round"], metric] == value


def test_ledger_has_a_row_for_each_action_and_party(two: Path) -> None:
    table = parquet.read_table(two / "ledger.parquet")
    assert table.column_names == ["method", "seed", *COLUMNS]
    fedavg, local = 4 * (1 + 1), 1 + 4 * (1 + 1)  # training and evaluation per round; one start
    assert table.num_rows == 2 * 4 * (fedavg + local)
    assert set(table["status"].to_pylist()) == {"answered"}
    assert min(table["sent"].to_pylist()) > 0


def test_written_study_gives_the_same_results_again(two: Path, tmp_path: Path) -> None:
    run_study(Study.of(read_toml(two / "study.toml")), tmp_path / "again")
    assert outline(tmp_path / "again") == outline(two)


def module_of(study: Study, parties: list[Party], seed: int) -> nn.Module:
    return module_for(study.encoder(), parties, task_for(parties), seed).eval()


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_saved_weights_give_the_reported_accuracy_in_plain_pyg(two: Path, method: str, seed: int) -> None:
    parties = TWO.load(seed).parties
    module = module_of(TWO, parties, seed)
    hits = items = 0
    for party in parties:
        file = f"{method}-{seed}" if method == "fedavg" else f"{method}-{seed}/{party.name}"
        module.load_state_dict(load_file(two / "weights" / f"{file}.safetensors"))
        with torch.no_grad():
            guess = module(party.graph.x, party.graph.edge_index).argmax(1)
        hits += int((guess == party.graph.y)[party.test].sum())
        items += int(party.test.sum())
    reported = next(
        each["metrics"]["test_accuracy"]
        for each in json.loads((two / "results.json").read_text())["runs"]
        if (each["method"], each["seed"]) == (method, seed)
    )
    assert hits / items == reported


def test_run_with_the_same_parties_gives_the_same_results(two: Path) -> None:
    parties = TWO.load(3).parties
    results = run(["fedavg", "local"], parties, model=Gcn(hidden=8), seed=3, rounds=4)
    saved = [each for each in json.loads((two / "results.json").read_text())["runs"] if each["seed"] == 3]
    assert [each.metrics for each in results.runs] == [each["metrics"] for each in saved]
    assert [each.chosen_round for each in results.runs] == [each["chosen_round"] for each in saved]
    weights = load_file(two / "weights" / "fedavg-3.safetensors")
    assert all(torch.equal(results.runs[0].weights[name], weight) for name, weight in weights.items())


def test_wire_changes_nothing_but_the_study(two: Path, tmp_path: Path) -> None:
    study = small(methods=TWO.methods, seeds=TWO.seeds, wire=True)
    run_study(study, tmp_path / "wire")
    assert outline(tmp_path / "wire")["runs"] == outline(two)["runs"]
    assert outline(tmp_path / "wire")["files"] == outline(two)["files"]


def test_study_without_a_folder_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_study(small()).metrics["test_accuracy"] > 0
    assert not list(tmp_path.iterdir())


# ---- killed and resumed


LONG = Study.of(
    {
        **SMALL,
        "training": {"rounds": 12},
        "methods": [
            {"name": "fedavg", "fraction": 0.5},
            {"name": "fedadam"},
            {"name": "scaffold", "local": {"momentum": 0.5}},
            {"name": "local", "patience": 4, "rounds": 40},
        ],
    }
)


def outline(folder: Path) -> dict[str, Any]:
    """Everything in a result folder that must be alike: the files by their bytes, the runs but for their seconds."""
    results = json.loads((folder / "results.json").read_text())
    runs = [{name: value for name, value in each.items() if name != "seconds"} for each in results["runs"]]
    kept = files(folder) - {"results.json", "study.toml", "SHA256SUMS"}
    return {
        "study": results["study"],
        "runs": runs,
        "summary": results["summary"],
        "cuts": results["cuts"],
        "files": {name: (folder / name).read_bytes() for name in sorted(kept)},
    }


class Killed(Watcher):
    """Kills its own process, as the kernel would, in the middle of a run."""

    def __init__(self, method: str, at: int) -> None:
        self.method, self.at = method, at

    def round_done(self, method: Method, seed: int, at: int, metrics: Mapping[str, float]) -> None:
        if (method.name, at) == (self.method, self.at):
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def kill() -> Iterator[Callable[[Path, str, int], None]]:
    """Starts a study in a process of its own that is killed in a round of a method."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["isthmus.study.run", "isthmus.study.results", "pyarrow.parquet"])

    def start(out: Path, method: str, at: int) -> None:
        process = context.Process(
            target=run_study, args=(LONG, out), kwargs={"watcher": Killed(method, at), "save_every": 0.0}
        )
        process.start()
        process.join(120)
        assert process.exitcode == -signal.SIGKILL

    return start


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("runs") / "whole"
    run_study(LONG, out)
    return outline(out)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "at"), [("fedavg", 2), ("fedavg", 9), ("fedadam", 5), ("scaffold", 6), ("local", 4)]
)
def test_killed_study_goes_on_to_the_same_bits(
    tmp_path: Path, kill: Any, uninterrupted: dict[str, Any], method: str, at: int
) -> None:
    out = tmp_path / "out"
    kill(out, method, at)
    assert f"{STATE}/{method}-0.checkpoint" in files(out)
    assert "results.json" not in files(out)
    rounds: list[tuple[str, int]] = []
    watcher = Watcher()
    watcher.round_done = lambda method, seed, at, metrics: rounds.append((method.name, at))  # type: ignore[method-assign]
    run_study(LONG, out, resume=True, watcher=watcher)
    assert rounds[0] == (method, at)
    assert outline(out) == uninterrupted
    assert not (out / STATE).exists()


def test_killed_before_the_first_checkpoint_starts_over(
    tmp_path: Path, kill: Any, uninterrupted: dict[str, Any]
) -> None:
    out = tmp_path / "out"
    kill(out, "fedavg", 1)
    assert files(out) == {f"{STATE}/study"}
    run_study(LONG, out, resume=True)
    assert outline(out) == uninterrupted


def test_full_disk_at_the_end_keeps_the_runs_for_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(parquet.ParquetWriter, "write_table", full)
        with pytest.raises(IsthmusError, match=r"cannot write .*No space left on device"):
            run_study(small(), out)
    assert "results.json" not in files(out)
    assert not [name for name in files(out) if name.endswith(".part")]
    run_study(small(), out, resume=True)
    run_study(small(), tmp_path / "whole")
    assert outline(out) == outline(tmp_path / "whole")


def test_damaged_checkpoint_is_an_error_that_names_the_file(tmp_path: Path, kill: Any) -> None:
    out = tmp_path / "out"
    kill(out, "fedavg", 5)
    file = out / STATE / "fedavg-0.checkpoint"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(IsthmusError, match=rf"cannot read {file}: .*delete the file to start that run again"):
        run_study(LONG, out, resume=True)


# ---- side by side


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let jobs run in this process."""
    monkeypatch.setattr(study_run, "Processes", InThisProcess)


class Listed(Watcher):
    """Notes what it hears."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.left_out: list[tuple[str, int, str]] = []

    def cut_made(self, seed: int, cut: CutDescription) -> None:
        self.events.append(("cut_made", seed))

    def run_started(self, method: Method, seed: int) -> None:
        self.events.append(("run_started", seed, method.name))

    def round_done(self, method: Method, seed: int, at: int, metrics: Mapping[str, float]) -> None:
        self.events.append(("round_done", seed, method.name, at, *sorted(metrics.items())))

    def run_done(self, result: RunResult) -> None:
        self.events.append(("run_done", result.seed, result.method))

    def run_restored(self, result: RunResult) -> None:
        self.events.append(("run_restored", result.seed, result.method))

    def run_left_out(self, method: Method, seed: int, why: str) -> None:
        self.left_out.append((method.label, seed, why))

    @property
    def restored(self) -> list[tuple[Any, ...]]:
        """Seed and method of each run that was restored."""
        return [event[1:] for event in self.events if event[0] == "run_restored"]


def test_jobs_give_the_same_results_and_events(two: Path, tmp_path: Path, here: None) -> None:
    heard, in_turn = Listed(), Listed()
    run_study(TWO, tmp_path / "jobs", jobs=2, watcher=heard)
    run_study(TWO, watcher=in_turn)
    assert outline(tmp_path / "jobs") == outline(two)
    assert sorted(heard.events) == sorted(in_turn.events)
    assert not (tmp_path / "jobs" / STATE).exists()


def test_jobs_without_a_folder_write_nothing(tmp_path: Path, here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(run_study(TWO, jobs=2).runs) == 4
    assert not list(tmp_path.iterdir())


def test_jobs_restore_finished_runs(tmp_path: Path, here: None, two: Path) -> None:
    class Stopped(Listed):
        def run_done(self, result: RunResult) -> None:
            super().run_done(result)
            if len([event for event in self.events if event[0] == "run_done"]) == 3:
                raise KeyboardInterrupt

    out, heard = tmp_path / "out", Listed()
    with pytest.raises(KeyboardInterrupt):
        run_study(TWO, out, jobs=2, watcher=Stopped())
    run_study(TWO, out, jobs=3, resume=True, watcher=heard)
    assert heard.restored == [
        (0, "fedavg"), (0, "local"), (3, "fedavg"),
    ]  # fmt: skip
    assert [event[1:] for event in heard.events if event[0] == "run_done"] == [(3, "local")]
    assert outline(out) == outline(two)


def test_all_runs_restored_still_tell_the_cuts(tmp_path: Path, here: None, two: Path) -> None:
    class Stopped(Watcher):
        left = 4

        def run_done(self, result: RunResult) -> None:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run_study(TWO, out, watcher=Stopped())
    run_study(TWO, out, jobs=2, resume=True)
    assert outline(out) == outline(two)


def test_an_error_in_a_job_is_that_of_the_run(tmp_path: Path, here: None) -> None:
    study = small(methods=[{"name": "fedgc", "min_contributors": 9}])
    messages = []
    for jobs in (1, 2):
        with pytest.raises(IsthmusError) as caught:
            run_study(study, tmp_path / "out", jobs=jobs)
        messages.append(str(caught.value))
        assert not (tmp_path / "out").exists()
    assert messages[0] == messages[1]


DEADLY = """
import os, signal
from pathlib import Path
from isthmus.methods.fedavg import FedAvg

class Deadly(FedAvg):
    name = "deadly"

    def server(self, *arguments):
        for state in super().server(*arguments):
            if state.round == 4 and not (mark := Path(__file__).with_name("mark")).exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield state
"""


@pytest.mark.slow
def test_processes_give_the_same_bits_and_a_killed_one_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deadly.py").write_text(DEADLY)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("deadly")
    study = small(
        training={"rounds": 12}, methods=[{"name": "fedavg", "fraction": 0.5}, {"name": "deadly"}, {"name": "local"}]
    )
    out = tmp_path / "out"
    with pytest.raises(ProcessKilled, match="a process was killed"):
        run_study(study, out, jobs=2, save_every=0.0)
    assert not multiprocessing.active_children()
    assert f"{STATE}/deadly-0.checkpoint" in files(out)
    rounds = []
    watcher = Watcher()
    watcher.round_done = lambda method, seed, at, metrics: rounds.append((method.name, at))  # type: ignore[method-assign]
    run_study(study, out, jobs=2, resume=True, watcher=watcher)
    assert min(at for name, at in rounds if name == "deadly") == 4
    run_study(study, tmp_path / "whole")
    assert outline(out) == outline(tmp_path / "whole")


# ---- what is there is not overwritten


@pytest.fixture
def finished(two: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(two, tmp_path / "finished"))


@pytest.fixture
def started(tmp_path: Path) -> Path:
    """A study that was stopped in its first round."""
    out = tmp_path / "started"

    class Stopped(Watcher):
        def round_done(self, *_: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(small(), out, watcher=Stopped())
    return out


def test_resume_of_a_finished_study_is_refused(finished: Path) -> None:
    with pytest.raises(IsthmusError, match="holds a finished study: there is nothing to resume; use force=True"):
        run_study(TWO, finished, resume=True)
    table = TWO.model_dump()
    more = Study.of({**table, "methods": [*table["methods"], {"name": "majority"}], "wire": not TWO.wire})
    with pytest.raises(IsthmusError, match=r"nothing to resume \(this one differs in 'wire', method 'majority'\); use"):
        run_study(more, finished, resume=True)


def test_resume_of_another_study_is_refused(started: Path) -> None:
    with pytest.raises(IsthmusError, match=r"holds another study, which differs in 'rounds' of method '.*': resume it"):
        run_study(small(training={"rounds": 5}), started, resume=True)
    with pytest.raises(IsthmusError, match=r"holds another study, which differs in 'wire': .* may be added or"):
        run_study(small(wire=True), started, resume=True)


def test_a_resumed_study_may_have_more_methods_and_seeds_and_fewer(tmp_path: Path) -> None:
    class Stopped(Watcher):
        def run_started(self, method: Method, seed: int) -> None:
            if method.name == "fedprox":
                raise KeyboardInterrupt

    def named(*methods: str, seeds: Sequence[int] = (0,)) -> Study:
        return small(seeds=list(seeds), methods=[{"name": name, "rounds": 2} for name in methods])

    out, heard = tmp_path / "out", Listed()
    with pytest.raises(KeyboardInterrupt):
        run_study(named("fedavg", "fedprox"), out, watcher=Stopped())
    results = run_study(named("fedavg", "local", seeds=(0, 1)), out, resume=True, watcher=heard)

    assert heard.restored == [(0, "fedavg")]
    assert [(each.method, each.seed) for each in results.runs] == [
        (method, seed) for method in ("fedavg", "local") for seed in (0, 1)
    ]
    run_study(named("fedavg", "local", seeds=(0, 1)), tmp_path / "whole")
    assert outline(out) == outline(tmp_path / "whole")


def rates(*values: float, **more: Any) -> Study:
    """A grid of learning rates; training diverges with 1e30."""
    method = {"name": "fedavg", "rounds": 2, "local": {"optimizer": "sgd"}}
    return small(methods=[method], grid={"local": {"lr": list(values)}}, **more)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_value_of_a_grid_that_diverges_is_left_out_and_said(tmp_path: Path, jobs: int) -> None:
    heard, page = Listed(), RunningReport(rates(1e30, 0.01, seeds=[0, 3]))
    results = run_study(
        rates(1e30, 0.01, seeds=[0, 3]), tmp_path / "out", jobs=jobs, watcher=Watchers(heard, page), save_every=0
    )
    assert [(run.method, run.seed) for run in results.runs] == [("fedavg local.lr=0.01", seed) for seed in (0, 3)]
    assert results.search is not None
    assert [(each.values["local.lr"], each.mean is None, each.chosen) for each in results.search.tried] == [
        (0.01, False, True), (1e30, True, False),
    ]  # fmt: skip
    (label, seed, why), again = heard.left_out
    assert (label, seed, again[:2]) == ("fedavg local.lr=1e+30", 0, ("fedavg local.lr=1e+30", 3))
    assert "if training diverged, lower its learning rate" in why
    assert not again[2] or jobs == 2, "the seeds that follow are not tried"
    assert "2 of 2 runs have finished" in page.page()
    for found in (page.page(), write_report([tmp_path / "out"]).read_text()):
        assert len(re.findall("<td[^>]*>diverged</td>", found)) == 1
    alone = run_study(rates(0.01, seeds=[0, 3]))
    assert [run.metrics for run in results.runs] == [run.metrics for run in alone.runs]


def test_a_method_all_of_whose_values_diverge_ends_the_study_which_goes_on_with_others(tmp_path: Path) -> None:
    out, heard = tmp_path / "out", Listed()
    methods = [{"name": "majority"}, {"name": "fedavg", "rounds": 2, "local": {"optimizer": "sgd"}}]
    of_both = {"methods": methods}
    with pytest.raises(IsthmusError, match=r"fedavg diverged with every value of the grid, at last .*=1e\+30: .*lower"):
        run_study(small(**of_both, grid={"local": {"lr": [1e29, 1e30]}}), out)
    results = run_study(small(**of_both, grid={"local": {"lr": [1e30, 0.01]}}), out, resume=True, watcher=heard)
    assert heard.restored == [(0, "majority")]
    assert [run.method for run in results.runs] == ["majority", "fedavg local.lr=0.01"]


def test_methods_of_python_leave_out_a_value_that_diverges() -> None:
    local = {"optimizer": "sgd"}
    results = isthmus.run("fedavg", local=local, rounds=2, grid={"local.lr": [0.01, 1e30]}, seeds=2)
    assert [(run.method, run.seed) for run in results.runs] == [("fedavg local.lr=0.01", seed) for seed in (0, 1)]
    with pytest.raises(IsthmusError, match="fedavg diverged with every value"):
        isthmus.run("fedavg", local=local, rounds=2, grid={"local.lr": [1e29, 1e30]})
    with pytest.raises(Diverged, match=r"^fedavg, seed 4: round 1, train: .*lower its learning rate"):
        isthmus.run("fedavg", local={**local, "lr": 1e30}, rounds=2, seeds=[4])


def test_what_diverged_is_never_chosen_even_without_validation_data() -> None:
    parties = [replace(party, val=torch.zeros_like(party.val)) for party in make_node_parties()]
    grid = {"local.lr": [1e30, 0.01]}
    results = isthmus.run("fedavg", parties, local={"optimizer": "sgd"}, rounds=2, grid=grid)
    assert results.search is not None
    assert [each.values["local.lr"] for each in results.search.tried if each.chosen] == [0.01]
    assert results.model("fedavg").about == [
        "the model is that of 'fedavg local.lr=0.01', which validation data chose of the settings of fedavg"
    ]


@pytest.mark.parametrize(
    ("later", "differs"),
    [
        ({"name": "fedavg", "rounds": 3, "local": {"lr": 0.5}}, "'local.lr' of method 'fedavg'"),
        ({"name": "fedprox", "label": "fedavg", "rounds": 3}, "'name' of method 'fedavg', .*"),
    ],
)
def test_a_run_that_was_left_out_comes_back_with_its_own_options_alone(
    tmp_path: Path, later: dict[str, Any], differs: str
) -> None:
    class Stopped(Watcher):
        def run_started(self, method: Method, seed: int) -> None:
            if method.name in ("majority", "local"):
                raise KeyboardInterrupt

    out, first = tmp_path / "out", {"name": "fedavg", "rounds": 3}
    with pytest.raises(KeyboardInterrupt):
        run_study(small(methods=[first, {"name": "majority"}]), out, watcher=Stopped())
    with pytest.raises(KeyboardInterrupt):
        run_study(small(methods=[{"name": "local"}]), out, resume=True, watcher=Stopped())
    with pytest.raises(IsthmusError, match=f"holds another study, which differs in {differs}: resume it"):
        run_study(small(methods=[later]), out, resume=True)
    heard = Listed()
    results = run_study(small(methods=[first]), out, resume=True, watcher=heard)
    assert heard.restored == [(0, "fedavg")]
    assert [(each.method, each.rounds) for each in results.runs] == [("fedavg", 3)]


def test_a_method_does_not_take_the_run_of_a_grids_setting(tmp_path: Path) -> None:
    class Stopped(Watcher):
        def run_done(self, result: RunResult) -> None:
            raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run_study(rates(0.01, 0.1), out, watcher=Stopped())
    named = {"name": "fedavg", "rounds": 2, "label": "fedavg local.lr=0.01", "local": {"optimizer": "sgd", "lr": 0.5}}
    with pytest.raises(IsthmusError, match=r"differs in 'local.lr' of method 'fedavg local\.lr=0\.01': resume"):
        run_study(small(methods=[named]), out, resume=True)


def test_a_study_is_not_resumed_on_data_that_have_changed(
    started: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(started, tmp_path / "same")
    run_study(small(), tmp_path / "same", resume=True)
    recorded = json.loads((tmp_path / "same" / "results.json").read_text())
    assert recorded["fingerprint"]["seed"] == 0
    before = files(started)
    load = Study.load

    def other(study: Study, seed: int) -> Any:
        loaded = load(study, seed)
        loaded.parties[1].graph.x[0, 0] += 1
        return loaded

    monkeypatch.setattr(Study, "load", other)
    with pytest.raises(IsthmusError, match="the data have changed since this study was started: give it the data"):
        run_study(small(seeds=[1, 0]), started, resume=True)
    assert files(started) == before
    changed = run_study(small(), started, force=True)
    assert changed.fingerprint["digest"] != recorded["fingerprint"]["digest"]


def test_a_seed_that_leaves_a_party_without_labels_is_refused_before_any_trains(tmp_path: Path) -> None:
    cut = {"data": {"name": "banks", "nodes": 120, "train": 0.1}, "parties": 4, "partition": {"name": "random"}}
    study = Study.of({**cut, "methods": [{"name": "fedavg", "rounds": 1}], "seeds": [0, 1, 3]})
    with pytest.raises(
        IsthmusError, match=r"^with seed 3, party 'party-\d' has no training label \(1 of 4 have none\)"
    ):
        run_study(study, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    trained: list[int] = []
    with pytest.raises(IsthmusError, match="with seed 3, party"):
        run(
            "fedavg",
            cut["data"],
            parties=4,
            partition="random",
            rounds=1,
            seeds=[0, 3],
            on_round=lambda *_: trained.append(1),
        )
    assert not trained
    assert run_study(study.model_copy(update={"unlabelled": "idle"})).runs


def test_parties_of_every_seed_need_labels_in_python_too() -> None:
    drawn = {"name": "banks", "nodes": 80, "train": 0.05}
    with pytest.raises(IsthmusError, match=r"^party 'party-\d' has no training label \(1 of 4 have none\)"):
        run("fedavg", drawn, rounds=1, seeds=[0, 3])
    assert len(run("fedavg", drawn, rounds=1, seeds=[0, 3], unlabelled="idle").runs) == 2


def test_results_are_not_overwritten_without_force(finished: Path) -> None:
    before = outline(finished)
    with pytest.raises(IsthmusError, match="is not empty: use resume=True to continue, force=True to start over"):
        run_study(TWO, finished)
    assert outline(finished) == before


@pytest.fixture
def older(finished: Path) -> Path:
    """A finished study of a version that wrote no format number."""
    content = json.loads((finished / "results.json").read_text())
    del content["format"]
    (finished / "results.json").write_text(json.dumps(content))
    return finished


@pytest.mark.parametrize("which", ["finished", "started", "older"])
def test_force_starts_anew_and_leaves_other_files(which: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    out = request.getfixturevalue(which)
    (out / "notes.txt").write_text("mine")
    (out / "dossier-party-0.json").write_text("{}")
    run_study(small(), out, force=True)
    run_study(small(), tmp_path / "whole")
    assert files(out) == files(tmp_path / "whole") | {"notes.txt"}
    assert outline(out)["runs"] == outline(tmp_path / "whole")["runs"]


def test_wrong_force_leaves_the_old_results(finished: Path) -> None:
    before = outline(finished)
    with pytest.raises(IsthmusError, match="2 nodes are too few for 4 parties"):
        run_study(small(data={"nodes": 2}), finished, force=True)
    assert outline(finished) == before


def test_empty_folder_is_taken(tmp_path: Path) -> None:
    run_study(small(), tmp_path)
    assert "results.json" in files(tmp_path)


# ---- isthmus.run


class Own(nn.Module):
    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.conv = GCNConv(features, outputs)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index)


class Headed(Own):
    def __init__(self, features: int, outputs: int, width: int = 4) -> None:
        super().__init__(features, 4)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.head(super().forward(x, edge_index))


def test_own_model_is_trained_on_own_parties() -> None:
    results = isthmus.run("fedavg", make_node_parties(), model=Own, rounds=3)
    assert set(results.runs[0].weights) == {name for name, _ in Own(16, 3).named_parameters()}


@pytest.mark.parametrize("method", ["fedavg", "fedper", "local"])
def test_a_module_for_another_number_of_features_is_one_line(method: str, caplog: pytest.LogCaptureFixture) -> None:
    line = "model Headed: its layer 'conv' reads 9 features and gets 16, the data have 16: make the widths equal"
    with pytest.raises(IsthmusError, match=f"{line}$"):
        isthmus.run(method, make_node_parties(), model=Headed(9, 3), rounds=1)
    line = "model Headed: its layer 'head' reads 5 features and gets 4, the data have 16: make the widths equal"
    with pytest.raises(IsthmusError, match=f"{line}$"):
        isthmus.run(method, make_node_parties(), model=Headed(16, 3, width=5), rounds=1)
    assert not caplog.records


@pytest.mark.parametrize("make", [make_node_parties, make_graph_parties])
def test_parties_of_every_level_train(make: Callable[[], Any]) -> None:
    assert 0 <= isthmus.run("fedavg", make(), rounds=2).metrics["test_accuracy"] <= 1


def test_parties_are_described() -> None:
    parties = make_node_parties()
    results = isthmus.run("fedavg", parties, classes=5, seeds=[0, 1], rounds=1)
    assert results.cuts == dict.fromkeys((0, 1), describe(parties, 5))
    assert isthmus.run("fedavg", rounds=1, seed=4).cuts.keys() == {4}


def test_several_methods_and_seeds_come_in_order() -> None:
    results = isthmus.run([Local(rounds=2), "fedavg"], make_node_parties(), seeds=[5, 1], rounds=1)
    assert [(each.method, each.seed, each.rounds) for each in results.runs] == [
        ("local", 1, 2), ("local", 5, 2), ("fedavg", 1, 1), ("fedavg", 5, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("method", ["scaffold", Scaffold()])
def test_options_in_a_table_keep_the_others_of_the_method(method: str | Method) -> None:
    results = isthmus.run(method, make_node_parties(), rounds=1, local={"epochs": 2})
    local = results.study["methods"][0]["local"]
    assert (local["epochs"], local["optimizer"], local["lr"]) == (2, "sgd", 0.5)


def test_data_and_partition_may_be_named() -> None:
    data = {"name": "BANKS", "nodes": 100}
    results = run("fedavg", data, partition="louvain", parties=3, rounds=2)
    study = small(partition={"name": "louvain"}, parties=3, model={"encoder": "gcn"}, training={"rounds": 2})
    due = run_study(Study.of(merge(study.model_dump(), {"model": {"hidden": 64}})))
    assert results.metrics == due.metrics
    assert (results.study["parties"], results.study["partition"]["name"]) == (3, "louvain")


def test_folders_are_given_by_a_text_or_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for draft in two_drafts():
        draft.write(tmp_path / "banks" / draft.settings["name"])
    monkeypatch.chdir(tmp_path)
    for data in ("banks/", Path("banks"), tmp_path / "banks"):  # also where a data set has that name
        results = isthmus.run("fedavg", data, rounds=1)
        assert [party.name for party in results.cuts[0].parties] == ["north", "south"]


def test_options_go_to_the_methods_that_have_them() -> None:
    results = isthmus.run(["fedavg", Local(rounds=1)], make_node_parties(), rounds=2, fraction=0.5)
    fedavg, local = results.study["methods"]
    assert (fedavg["rounds"], local["rounds"], fedavg["fraction"]) == (2, 1, 0.5)
    assert "fraction" not in local


def test_method_object_is_run_as_it_is() -> None:
    fits = []

    class Counted(LocalTraining):
        def fit(self, *arguments: Any, **options: Any) -> Tensor:
            fits.append(self.epochs)
            return super().fit(*arguments, **options)

    isthmus.run(FedAvg(rounds=2, local=Counted(epochs=3)), make_node_parties())
    assert fits == [3, 3]


def test_results_are_written_to_a_new_folder_only(tmp_path: Path) -> None:
    isthmus.run("fedavg", make_node_parties(), rounds=1, out=tmp_path / "out")
    before = files(tmp_path / "out")
    assert before >= {"results.json", "ledger.parquet", "weights/fedavg-0.safetensors"}
    with pytest.raises(IsthmusError, match="exists: choose another folder"):
        isthmus.run("local", make_node_parties(), rounds=1, out=str(tmp_path / "out"))
    assert files(tmp_path / "out") == before


def test_every_round_is_told() -> None:
    seen: list[int] = []
    isthmus.run("fedavg", make_node_parties(), rounds=3, on_round=lambda at, metrics: seen.append(at))
    assert seen == [1, 2, 3]


def test_a_metric_judges_the_runs_and_another_one_chooses_their_rounds() -> None:
    results = isthmus.run("fedavg", rounds=8, metric="macro_f1", select_by="loss", seeds=2)
    for each in results.runs:
        losses = {at: value for at, name, value in each.history if name == "val_loss"}
        assert each.chosen_round == min(losses, key=losses.__getitem__)
        assert (each.metric, each.select_by) == ("macro_f1", "loss")
    assert [each.seed for each in results.runs] == [0, 1]
    own = isthmus.run("fedavg", rounds=8, task=NodeClassification(select_by="loss"), metric="macro_f1", seeds=2)
    assert own.runs[1].history == results.runs[1].history
    assert own.runs[1].chosen_round == results.runs[1].chosen_round


def test_every_class_has_figures_by_its_name() -> None:
    (one,) = isthmus.run("fedavg", make_node_parties(), rounds=2).runs
    assert list(one.by_label) == ["0", "1", "2"]
    right = sum(own["items"] * own["recall"] for own in one.by_label.values() if own["items"])
    items = sum(own["items"] for own in one.by_label.values())
    assert right / items == pytest.approx(one.metrics["test_accuracy"])
    assert one.summary()["by_label"] == one.by_label


def test_weights_of_classes_change_what_is_learned() -> None:
    even, weighted = (
        isthmus.run("fedavg", rounds=3, task=task).runs[0] for task in ({}, {"class_weights": "balanced"})
    )
    assert any(not torch.equal(weight, weighted.weights[name]) for name, weight in even.weights.items())


NO = "run: no method of the study has an option"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"method": "fedavgg"}, "unknown method 'fedavgg': did you mean 'fedavg'"),
        ({"method": ["fedavg", FedAvg()]}, "run: method 'fedavg' is listed twice"),
        ({"model": "gcnn"}, "unknown encoder 'gcnn': did you mean 'gcn'"),
        ({"ronds": 3}, "run: no method of the study has an option 'ronds': did you mean rounds=3?"),
        ({"data": []}, "there are no parties"),
        (
            {"data": ["a/north", "a/south"]},
            "data must be the name of a data set, the path of a folder of party folders",
        ),
        ({"data": "bank"}, "unknown data set 'bank': did you mean 'banks'"),
        ({"partition": "metiss"}, "unknown partition 'metiss': did you mean 'metis'"),
        ({"parties": make_node_parties()}, "parties is how many parties to cut the data into"),
        ({"data": make_node_parties(), "parties": 3}, "Party objects are not cut or split again"),
        ({"task": "node-regression"}, "task 'node-regression': the labels are those of 'node-classification'"),
        ({"seeds": []}, "run: option 'seeds' is "),
        ({"seeds": 0}, "run: option 'seeds' is 0: "),
        ({"seeds": "x"}, "run: option 'seeds' is 'x': "),
        (
            {"protect": {"total": "none"}},
            "run: 'protect' belongs to a whole study: isthmus.run_study(isthmus.Study.of(",
        ),
        (
            {"data_seed": 3},
            "run: 'data_seed' belongs to a whole study: isthmus.run_study(isthmus.Study.of({'data_seed': 3",
        ),
        ({"trials": 3}, "run: no method of the study has an option 'trials': known: aggregate"),
        ({"lr": 0.1}, "run: no method of the study has an option 'lr': did you mean local={'lr': 0.1}?"),
        ({"task": 3}, "run: option 'task' is 3: give a table of options"),
        ({"class_weights": "balanced"}, f"{NO} 'class_weights': did you mean task={{'class_weights': 'balanced'}}?"),
        (
            {"task.class_weights": "balanced"},
            f"{NO} 'task.class_weights': did you mean task={{'class_weights': 'balanced'}}?",
        ),
        ({"local.lr": 1}, f"{NO} 'local.lr': did you mean local={{'lr': 1}}?"),
        ({"encoder": "sage"}, f"{NO} 'encoder': did you mean model='sage'?"),
        ({"metrics": "macro_f1"}, f"{NO} 'metrics': did you mean metric='macro_f1'?"),
        ({"split": [0.3, 0.3, 0.4]}, f"{NO} 'split': did you mean partition={{'split': [0.3, 0.3, 0.4]}}?"),
        ({"hidden": 8}, f"{NO} 'hidden': did you mean model={{'hidden': 8}}?"),
        ({"mu": 1}, f"{NO} 'mu': methods that have it: fedprox"),
        ({"xyz": 1}, f"{NO} 'xyz': known: aggregate, evaluate_by, "),
        ({"method": 3}, "run: method is 3: give the name of a method"),
        ({"method": []}, "run: method is []: give the name of a method"),
        ({"method": ["fedavg", 3]}, "run: method is ['fedavg', 3]: give the name of a method"),
        ({"grid": 3}, "run: grid is 3: give a table of lists"),
        ({"partition": 3}, "run: partition is 3: give the name of a partition"),
        ({"unlabelled": "idel"}, "run: unlabelled is 'idel': give 'error' or 'idle'"),
        ({"classes": 0}, "run: classes is 0: give their number"),
        ({"out": 3}, "run: out is 3: give the path of a folder"),
        ({"model": 3}, "run: model is 3: give the name of an encoder"),
        ({"model": lambda x: x}, "encoder "),
        ({"model": {"encoder": "sage", "hiden": 8}}, "encoder 'sage': unknown option 'hiden': did you mean 'hidden'?"),
        (
            {"task": {"class_weight": "balanced"}},
            "task: no task has an option 'class_weight': did you mean 'class_weights'",
        ),
        ({"metric": "auc"}, "task 'node-classification': option 'metric' is 'auc': did you mean 'roc_auc'"),
        ({"seed": -1}, "run: option 'seeds.0' is -1: "),
        ({"seed": 1, "seeds": [2]}, "run: seed is 1 and seeds is [2]: give one of the two"),
        ({"device": "cpuu"}, "unknown device 'cpuu': did you mean 'cpu'"),
        ({"classes": 2, "data": make_node_parties()}, "classes is 2, labels go up to 2"),
    ],
)
def test_wrong_argument_is_one_line(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(IsthmusError) as caught:
        isthmus.run(**{"method": "fedavg", **arguments})
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)


def test_what_a_method_was_made_with_goes_before_options_for_all() -> None:
    made = FedAvg(label="made", rounds=2, local={"lr": 0.5})
    results = isthmus.run([made, FedAvg()], make_node_parties(), rounds=1, local={"lr": 0.1, "epochs": 2})
    own, other = results.study["methods"]
    assert (own["rounds"], own["local"]["lr"], own["local"]["epochs"]) == (2, 0.5, 2)
    assert (other["rounds"], other["local"]["lr"], other["local"]["epochs"]) == (1, 0.1, 2)


def test_what_fails_at_once_leaves_nothing(tmp_path: Path) -> None:
    wrong = Study.of({"data": {"name": "banks", "nodes": 80}, "methods": [{"name": "fedgc", "min_contributors": 9}]})
    right = Study.of({"data": {"name": "banks", "nodes": 80}, "methods": [{"name": "fedavg", "rounds": 1}]})
    (tmp_path / "there").mkdir()
    for out in (tmp_path / "new" / "one", tmp_path / "there"):
        with pytest.raises(IsthmusError, match="lower `min_contributors`"):
            run_study(wrong, out)
        assert not (out / ".state").exists()
        run_study(right, out)
    with pytest.raises(IsthmusError, match="lower `min_contributors`"):
        isthmus.run("fedgc", min_contributors=9, out=tmp_path / "own")
    assert not (tmp_path / "own").exists()


def test_results_are_saved_to_a_folder_by_its_name_too(tmp_path: Path) -> None:
    results = isthmus.run("fedavg", rounds=1)
    results.save(str(tmp_path / "named"))
    assert (tmp_path / "named" / "results.json").exists()


def test_two_studies_in_one_folder_do_not_run_at_once(tmp_path: Path) -> None:
    out = tmp_path / "out"

    class Second(Watcher):
        """Starts the same study again while the first one runs."""

        def round_done(self, method: Method, seed: int, at: int, metrics: Mapping[str, float]) -> None:
            for more in ({"resume": True}, {"force": True}):
                with pytest.raises(IsthmusError, match="is in use by another study: wait for it, or stop it first"):
                    run_study(small(), out, **more)

    assert run_study(small(), out, watcher=Second()).runs
    with pytest.raises(IsthmusError, match="holds a finished study"):
        run_study(small(), out, resume=True)


def test_an_unset_learning_rate_is_the_encoders_on_nodes_and_is_recorded(tmp_path: Path) -> None:
    two = {"methods": [{"name": "ditto"}, {"name": "scaffold"}]}
    left_open = run_study(small(model={"encoder": "sgc"}, **two), tmp_path / "open")
    ditto, scaffold = left_open.study["methods"]
    assert (ditto["local"]["lr"], ditto["personal"]["lr"], scaffold["local"]["lr"]) == (Sgc.lr, Sgc.lr, 0.5)
    assert left_open.runs[0].description["method"]["local"]["lr"] == Sgc.lr
    again = run_study(Study.of(read_toml(tmp_path / "open" / "study.toml")))
    given = run("ditto", "banks", model="sgc", rounds=2, local={"lr": Sgc.lr}, personal={"lr": Sgc.lr})
    alone = run("ditto", "banks", model="sgc", rounds=2)
    assert again.runs[0].metrics == left_open.runs[0].metrics
    assert (alone.runs[0].metrics, alone.study["methods"]) == (given.runs[0].metrics, given.study["methods"])


@pytest.mark.parametrize(
    ("parties", "model", "local", "rate"),
    [
        (make_graph_parties(), "gcn", {}, 0.01),
        (make_node_parties(), "gin", {}, Gin.lr),
        (make_node_parties(), "gat", {"optimizer": "sgd"}, 0.01),
        (make_node_parties(), "gat", {"epochs": 1}, Gat.lr),
        (make_node_parties(), "gat", {"lr": 0.3}, 0.3),
        (make_node_parties(), lambda features, outputs: GCNConv(features, outputs), {}, 0.01),
    ],
)
def test_the_rate_of_an_encoder_is_for_nodes_and_adam(
    parties: Sequence[Party], model: Any, local: dict[str, Any], rate: float
) -> None:
    results = run("fedavg", parties, model=model, rounds=1, local=local)
    assert results.study["methods"][0]["local"]["lr"] == rate


@pytest.mark.parametrize(
    ("method", "gcn", "sgc", "unnamed"),
    [
        ("fedavg", Gcn.lr, Sgc.lr, 0.01),
        ("fedprox", 0.02, 0.02, 0.01),
        ("feddyn", 0.01, 0.1, 0.01),
        ("fedadam", 0.01, 0.2, 0.01),
    ],
)
def test_a_method_takes_less_than_its_encoders_rate_where_that_is_too_large(
    method: str, gcn: float, sgc: float, unnamed: float
) -> None:
    assert Method.named(method).rate_for(0.001) == 0.001, "never more"
    for model, rate in (("gcn", gcn), ("sgc", sgc), (lambda features, outputs: GCNConv(features, outputs), unnamed)):
        results = run(method, make_node_parties(), model=model, rounds=1)
        assert results.study["methods"][0]["local"]["lr"] == rate


def test_each_encoder_of_a_grid_has_its_own_rate(tmp_path: Path) -> None:
    one = run_study(small(methods=[{"name": "fedavg"}], grid={"model": {"encoder": ["sgc", "gat"]}}), tmp_path / "grid")
    assert {each.description["method"]["local"]["lr"] for each in one.runs} == {Sgc.lr, Gat.lr}
    assert Study.of(read_toml(tmp_path / "grid" / "study.toml")).listed_methods()[0].model_dump()["local"]["lr"] is None


def test_options_of_a_method_made_in_python_stay_when_others_are_given() -> None:
    """A nested group that is set holds, also where it is another than the method's default one."""
    for method in (Scaffold(local=LocalTraining()), FedRep(local=LocalTraining(lr=0.1))):
        (given,) = isthmus.run(method, "banks", rounds=1).study["methods"]
        assert given["local"] == {**method.local.model_dump(), "lr": given["local"]["lr"]}
        assert given["rounds"] == 1
