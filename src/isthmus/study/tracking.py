"""A study's curves in TensorBoard and in MLflow, through their own libraries."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isthmus.errors import IsthmusError, missing_extra
from isthmus.methods.base import Method
from isthmus.study.config import Study
from isthmus.study.engine import RunResult
from isthmus.study.run import Watcher

log = logging.getLogger(__name__)


class TensorBoard(Watcher):
    """Every evaluated round as scalars, a run of TensorBoard for each method and seed.

    Arguments:
        folder: that `tensorboard --logdir` is told.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise missing_extra("TensorBoard", "tensorboard", "--tensorboard") from error
        self._folder, self._writer = folder, SummaryWriter
        self._writers: dict[tuple[str, int], Any] = {}

    def run_started(self, method: Method, seed: int) -> None:
        place = self._folder / f"{method.name}-{seed}"
        try:
            self._writers[method.name, seed] = self._writer(str(place))
        except OSError as error:
            raise IsthmusError(f"cannot write {place}: {error.strerror or error}; choose another folder") from error

    def round_done(self, method: Method, seed: int, at: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writers[method.name, seed].add_scalar(name, value, at)

    def run_done(self, result: RunResult) -> None:
        self._writers.pop((result.method, result.seed)).close()


class MlFlow(Watcher):
    """Every evaluated round as metrics, a run of MLflow for each method and seed, in an experiment for the study.

    Arguments:
        server: MLflow's tracking URI.
        experiment: its name; it is made where it is not there.
    """

    def __init__(self, study: Study, server: str, experiment: str = "isthmus") -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # else it tells its makers that it is used
        try:
            from mlflow import MlflowClient
            from mlflow.exceptions import MlflowException
        except ImportError as error:
            raise missing_extra("MLflow", "mlflow", "--mlflow") from error
        self._study, self._fault = study, MlflowException
        self._runs: dict[tuple[str, int], str] = {}
        try:
            self._client = MlflowClient(tracking_uri=server)
            known = self._client.get_experiment_by_name(experiment)
            self._experiment = self._client.create_experiment(experiment) if known is None else known.experiment_id
        except MlflowException as error:
            raise IsthmusError(f"MLflow at {server}: {str(error).splitlines()[0][:200]}") from error

    def run_started(self, method: Method, seed: int) -> None:
        made = self._told("create_run", self._experiment, run_name=f"{method.name}-{seed}")
        if made is None:
            return
        self._runs[method.name, seed] = made.info.run_id
        told = {"method": method.name, "seed": seed, "data": self._study.data["name"]}
        for name, value in {**told, **method.model_dump()}.items():
            self._told("log_param", made.info.run_id, name, str(value)[:500])

    def round_done(self, method: Method, seed: int, at: int, metrics: Mapping[str, float]) -> None:
        if run := self._runs.get((method.name, seed)):
            for name, value in metrics.items():
                self._told("log_metric", run, name, value, step=at)

    def run_done(self, result: RunResult) -> None:
        if run := self._runs.pop((result.method, result.seed), None):
            for name, value in result.metrics.items():
                self._told("log_metric", run, f"chosen_{name}", value, step=result.chosen_round)
            self._told("set_terminated", run)

    def _told(self, call: str, *words: Any, **more: Any) -> Any:
        """A call of the client; a server that is away takes nothing, and ends no study."""
        try:
            return getattr(self._client, call)(*words, **more)
        except self._fault as error:
            log.warning("MLflow did not take %s: %s", call, str(error).splitlines()[0][:200])
            return None
