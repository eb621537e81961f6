"""What a terminal sees of a study: progress while it runs, a table at the end."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from isthmus.methods.base import Method
from isthmus.study.engine import RunResult
from isthmus.study.results import Results
from isthmus.study.run import Watcher


class Live(Watcher):
    """A bar per run with the metric that rounds are chosen by; silent when the console is not a terminal."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rounds"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[metric]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._bars: dict[tuple[str, int], TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def run_started(self, method: Method, seed: int) -> None:
        label = f"{method.name}, seed {seed}"
        self._bars[method.name, seed] = self._progress.add_task(label, total=method.rounds, metric="")

    def round_done(self, method: Method, seed: int, at: int, metrics: Mapping[str, float]) -> None:
        value = metrics.get("val_accuracy")
        shown = "" if value is None else f"validation {100 * value:.1f}%"
        self._progress.update(self._bars[method.name, seed], completed=at, metric=shown)

    def run_done(self, result: RunResult) -> None:
        bar = self._bars[result.method, result.seed]
        self._progress.update(bar, total=max(1, result.rounds), completed=result.rounds)


def table(results: Results) -> Table:
    """Methods by metrics on test data, mean ± standard deviation over seeds; the round they are of; bytes sent."""
    summary = results.summary()
    titles = {"test_accuracy": "accuracy", "test_macro_f1": "macro F1", "val_accuracy": "validation"}
    metrics = {name: title for name, title in titles.items() if _has(summary, name)}
    if not metrics:
        metrics = {line["metric"]: line["metric"].removeprefix("test_") for line in summary}
    shown = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    shown.add_column("method", no_wrap=True)
    for title in (*metrics.values(), "round", "ms/round", "sent"):
        shown.add_column(title, justify="right", no_wrap=True)
    for method in dict.fromkeys(run.method for run in results.runs):
        runs = [run for run in results.runs if run.method == method]
        cells = [_cell(summary, method, metric) for metric in metrics]
        rounds = sum(run.chosen_round for run in runs) / len(runs)
        pace = 1000 * sum(run.seconds for run in runs) / max(1, sum(run.rounds for run in runs))
        pooled = method in Method.known() and Method.named(method).pooled
        sent = "-" if pooled else size(sum(run.ledger.sent for run in runs) / len(runs))
        shown.add_row(method, *cells, f"{rounds:.0f}", f"{pace:.1f}", sent)
    return shown


def size(count: float) -> str:
    """Bytes for people.

    >>> size(74_103_200)
    '74.1 MB'
    """
    for unit in ("B", "kB", "MB"):
        if count < (999.5 if unit == "B" else 999.95):
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _has(summary: list[dict[str, Any]], metric: str) -> bool:
    return any(line["metric"] == metric for line in summary)


def _cell(summary: list[dict[str, Any]], method: str, metric: str) -> str:
    for line in summary:
        if line["method"] == method and line["metric"] == metric:
            scale = 100.0 if metric.endswith(("accuracy", "f1", "auc")) else 1.0
            spread = f" ± {scale * line['std']:.1f}" if line["seeds"] > 1 else ""
            return f"{scale * line['mean']:.1f}{spread}"
    return "-"
