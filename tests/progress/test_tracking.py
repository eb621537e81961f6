"""Curves reach TensorBoard, MLflow and Weights & Biases as the history has them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.errors import IsthmusError
from isthmus.progress.tracking import MlFlow, TensorBoard, WeightsAndBiases
from isthmus.study.config import Study
from isthmus.study.results import Results
from isthmus.study.run import Watcher, Watchers, run_study

PLAN = Study.of(
    {
        "data": {"name": "banks", "nodes": 120},
        "model": {"hidden": 8},
        "unlabelled": "idle",
        "methods": [{"name": "fedavg", "label": "mine", "rounds": 3}],
        "seeds": [0, 1],
    }
)


def history(results: Results, seed: int, metric: str) -> list[tuple[int, float]]:
    (run,) = (run for run in results.runs if run.seed == seed)
    return [(at, value) for at, name, value in run.history if name == metric]


def test_tensorboard_has_every_round(tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    results = run_study(PLAN, watcher=TensorBoard(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine-0", "mine-1"]
    events = reading.EventAccumulator(str(tmp_path / "mine-1"))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("test_accuracy")]
    assert found == [(at, pytest.approx(value)) for at, value in history(results, 1, "test_accuracy")]


@pytest.mark.slow
def test_mlflow_has_every_round_and_the_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    server = f"file:{tmp_path}/mlruns"
    results = run_study(PLAN, watcher=MlFlow(PLAN, server))
    client = mlflow.MlflowClient(tracking_uri=server)
    runs = client.search_runs([client.get_experiment_by_name("isthmus").experiment_id])
    by_name = {run.info.run_name: run for run in runs}
    assert by_name.keys() == {"mine-0", "mine-1"}
    run = by_name["mine-1"]
    assert (run.info.status, run.data.params["method"], run.data.params["rounds"]) == ("FINISHED", "fedavg", "3")
    found = [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, "val_accuracy")]
    assert found == history(results, 1, "val_accuracy")
    assert run.data.metrics["chosen_test_accuracy"] == results.runs[1].metrics["test_accuracy"]


def test_a_server_that_goes_away_ends_no_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    watcher = MlFlow(PLAN, f"file:{tmp_path}/mlruns")

    def away(*words: object, **more: object) -> None:
        raise mlflow.exceptions.MlflowException("it is away")

    monkeypatch.setattr(watcher._client, "log_batch", away)
    assert len(run_study(PLAN, watcher=watcher).runs) == 2
    assert caplog.text.count("MLflow refused log_batch; nothing more is sent: it is away") == 1


def test_what_is_stopped_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    server = f"file:{tmp_path}/mlruns"

    class Stopping(Watcher):
        def round_done(self, *told: object) -> None:
            if told[2] == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), TensorBoard(tmp_path / "tb") as board, MlFlow(PLAN, server) as kept:
        run_study(PLAN, watcher=Watchers(board, kept, Stopping()))
    client = mlflow.MlflowClient(tracking_uri=server)
    (run,) = client.search_runs([client.get_experiment_by_name("isthmus").experiment_id])
    assert run.info.status == "KILLED"
    events = reading.EventAccumulator(str(tmp_path / "tb" / "mine-0"))
    events.Reload()
    assert [event.step for event in events.Scalars("val_accuracy")] == [1, 2]


@pytest.mark.parametrize("server", ["nothing://there", "postgresql://nobody/here"])
def test_a_server_that_is_none_is_named_in_a_line(server: str) -> None:
    pytest.importorskip("mlflow")
    with pytest.raises(IsthmusError, match=f"MLflow at {server}: ") as raised:
        MlFlow(PLAN, server)
    assert "\n" not in str(raised.value)


def test_a_long_message_ends_at_a_word() -> None:
    from isthmus.progress.tracking import _line

    told = _line(OSError("HTTPConnectionPool could not reach " * 20))
    assert len(told) <= 200
    assert told.endswith((" could …", " not …", " reach …", "Pool …"))
    assert _line(OSError("refused\nand more")) == "refused"


class Recorded:
    """A run of a stand-in for wandb."""

    def __init__(self, **options: Any) -> None:
        self.options, self.rounds, self.summary, self.code = options, dict[int, Any](), dict[str, Any](), None

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.rounds[step] = metrics

    def finish(self, exit_code: int = 0) -> None:
        self.code = exit_code


def test_weights_and_biases_has_every_round_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Recorded] = []

    def init(**options: Any) -> Recorded:
        runs.append(Recorded(**options))
        return runs[-1]

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Settings=dict))
    with WeightsAndBiases(PLAN, tmp_path / "wb") as watcher:
        results = run_study(PLAN, watcher=watcher)
        watcher.run_started(PLAN.method_list()[0], 6)
        watcher.run_left_out(PLAN.method_list()[0], 6, "diverged")
        assert runs[-1].code == 1
        watcher.run_started(PLAN.method_list()[0], 7)
    assert [(run.options["name"], run.options["mode"], run.code) for run in runs] == [
        ("mine-0", "offline", 0), ("mine-1", "offline", 0), ("mine-6", "offline", 1), ("mine-7", "offline", 1),
    ]  # fmt: skip
    assert [(at, each["val_accuracy"]) for at, each in runs[1].rounds.items()] == history(results, 1, "val_accuracy")
    assert runs[1].summary["chosen_test_accuracy"] == results.runs[1].metrics["test_accuracy"]
    assert runs[0].options["config"]["rounds"] == 3
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **_: 1 / 0, Settings=dict))
    with pytest.raises(IsthmusError, match=r"^Weights & Biases in .*wb: division by zero"):
        run_study(PLAN, watcher=WeightsAndBiases(PLAN, tmp_path / "wb"))
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(IsthmusError, match=r"needs Weights & Biases: install it with pip install 'isthmus\[wandb\]'"):
        WeightsAndBiases(PLAN, tmp_path / "wb")


def test_weights_and_biases_writes_files_of_its_own(tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb")
    with WeightsAndBiases(PLAN, tmp_path) as watcher:
        run_study(PLAN, watcher=watcher)
    wandb.teardown()  # its own process writes the files
    written = [path.read_bytes() for path in tmp_path.rglob("*.wandb")]
    assert len(written) == 2
    assert all(b"val_accuracy" in each and b"chosen_test_accuracy" in each for each in written)
