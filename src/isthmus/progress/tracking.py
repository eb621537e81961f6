"""The curves of a study in TensorBoard, MLflow and Weights & Biases, through their own libraries."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from types import TracebackType
from typing import Any, Self

from isthmus.errors import IsthmusError, missing_extra
from isthmus.methods.base import Method
from isthmus.study.config import Study
from isthmus.study.loop import RunResult
from isthmus.study.run import Watcher

log = logging.getLogger(__name__)


class Tracker(Watcher):
    """A watcher that writes curves elsewhere; a run that is open when the `with` ends was stopped."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __init__(self) -> None:
        self._runs: dict[tuple[str, int], Any] = {}

    def run_left_out(self, method: Method, seed: int, why: str) -> None:
        if (run := self._runs.pop((method.label, seed), None)) is not None:
            self.stop(run, "FAILED")

    def close(self) -> None:
        """End the runs that are open."""
        for run in self._runs.values():
            self.stop(run, "KILLED")

    def stop(self, run: Any, how: str) -> None:
        """End a run that has not come to its end; MLflow has a word for how."""


class TensorBoard(Tracker):
    """Writes every evaluated round as scalars, with a TensorBoard run for each method and seed.

    Arguments:
        folder: the one for `tensorboard --logdir`.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise missing_extra("TensorBoard", "tensorboard", "--tensorboard") from error
        super().__init__()
        self._folder, self._writer = folder, SummaryWriter

    def run_started(self, method: Method, seed: int) -> None:
        path = self._folder / f"{method.label}-{seed}"
        try:
            self._runs[method.label, seed] = self._writer(str(path))
        except OSError as error:
            raise IsthmusError(f"cannot write {path}: {error.strerror or error}; choose another folder") from error

    def round_done(self, method: Method, seed: int, at: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._runs[method.label, seed].add_scalar(name, value, at)

    def run_done(self, result: RunResult) -> None:
        self._runs.pop((result.method, result.seed)).close()

    def stop(self, run: Any, how: str) -> None:
        run.close()


class MlFlow(Tracker):
    """Writes every evaluated round as metrics, with an MLflow run for each method and seed, in one experiment.

    If the server stops answering, nothing more is sent and the study goes on.

    Arguments:
        server: MLflow's tracking URI.
        experiment: its name; a missing one is created.
    """

    def __init__(self, study: Study, server: str, experiment: str = "isthmus") -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # by default it reports its use to its makers
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # by default a study waits minutes for a server
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric, Param
        except ImportError as error:
            raise missing_extra("MLflow", "mlflow", "--mlflow") from error
        super().__init__()
        self._study, self._metric, self._param, self._disabled = study, Metric, Param, False
        try:
            self._client = MlflowClient(tracking_uri=server)
            known = self._client.get_experiment_by_name(experiment)
            self._experiment = self._client.create_experiment(experiment) if known is None else known.experiment_id
        except Exception as error:  # MLflow's own errors, and those of the library that the address needs
            raise IsthmusError(f"MLflow at {server}: {_line(error)}") from error

    def run_started(self, method: Method, seed: int) -> None:
        created = self._call("create_run", self._experiment, run_name=f"{method.label}-{seed}")
        if created is not None:
            self._runs[method.label, seed] = created.info.run_id
            values = {"method": method.name, "seed": seed, "data": self._study.data["name"], **method.model_dump()}
            params = [self._param(name, str(value)[:500]) for name, value in values.items()]
            self._call("log_batch", created.info.run_id, params=params)

    def round_done(self, method: Method, seed: int, at: int, metrics: Mapping[str, float]) -> None:
        self._batch((method.label, seed), metrics, at)

    def run_done(self, result: RunResult) -> None:
        key = result.method, result.seed
        self._batch(key, {f"chosen_{name}": value for name, value in result.metrics.items()}, result.chosen_round)
        if run := self._runs.pop(key, None):
            self._call("set_terminated", run)

    def stop(self, run: Any, how: str) -> None:
        self._call("set_terminated", run, status=how)

    def _batch(self, key: tuple[str, int], metrics: Mapping[str, float], at: int) -> None:
        if run := self._runs.get(key):
            now = int(1000 * time.time())
            self._call(
                "log_batch", run, metrics=[self._metric(name, value, now, at) for name, value in metrics.items()]
            )

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if self._disabled:
            return None
        try:
            return getattr(self._client, name)(*args, **kwargs)
        except Exception as error:  # MLflow's own errors, and those of the connection
            self._disabled = True
            log.warning("MLflow refused %s; nothing more is sent: %s", name, _line(error))
            return None


class WeightsAndBiases(Tracker):
    """Writes every evaluated round to a folder, with a run for each method and seed; nothing leaves this machine.

    `wandb sync` sends the runs to a server later. Neither code nor names and loads of the machine are written.

    Arguments:
        folder: where the runs are written, each in a folder `wandb/offline-run-...` there.
    """

    def __init__(self, study: Study, folder: Path) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # by default it reports its errors to its makers
        try:
            import wandb
        except ImportError as error:
            raise missing_extra("Weights & Biases", "wandb", "--wandb") from error
        super().__init__()
        self._wandb, self._study, self._folder = wandb, study, folder

    def run_started(self, method: Method, seed: int) -> None:
        quiet = {
            "silent": True,
            "host": "isthmus",
            "console": "off",
            "disable_git": True,
            "save_code": False,
            "disable_job_creation": True,
        }
        private = {
            "x_disable_stats": True,
            "x_disable_meta": True,
            "x_disable_machine_info": True,
            "x_save_requirements": False,
        }
        values = {
            "method": method.name,
            "seed": seed,
            "data": self._study.data["name"],
            **method.model_dump(mode="json"),
        }
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._runs[method.label, seed] = self._wandb.init(
                project="isthmus", name=f"{method.label}-{seed}", config=values, dir=str(self._folder), mode="offline",
                reinit="create_new", settings=self._wandb.Settings(**quiet, **private),
            )  # fmt: skip
        except Exception as error:  # its own errors, and those of the disk
            raise IsthmusError(f"Weights & Biases in {self._folder}: {_line(error)}") from error

    def round_done(self, method: Method, seed: int, at: int, metrics: Mapping[str, float]) -> None:
        self._runs[method.label, seed].log(dict(metrics), step=at)

    def run_done(self, result: RunResult) -> None:
        run = self._runs.pop((result.method, result.seed))
        run.summary.update({f"chosen_{name}": value for name, value in result.metrics.items()})
        run.finish()

    def stop(self, run: Any, how: str) -> None:
        run.finish(exit_code=1)


def _line(error: Exception) -> str:
    """The first line of an error, cut at a word if it is long."""
    return shorten(next(iter(str(error).splitlines()), type(error).__name__), 200, placeholder=" …")
