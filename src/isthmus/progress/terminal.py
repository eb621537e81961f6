"""What a terminal sees of a study: progress while it runs, a table at the end; and what the parties of a cut hold."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from isthmus.data.describe import CutDescription
from isthmus.methods.base import Method
from isthmus.progress.pace import Pace
from isthmus.report import wording
from isthmus.report.wording import format_bytes
from isthmus.study.loop import RunResult
from isthmus.study.results import Results
from isthmus.study.run import Watcher
from isthmus.tasks.metrics import LEADING, METRICS, metric_of

_CHOSEN_BY = tuple(f"val_{name}" for name in LEADING)


class ProgressBars:
    """Bars of progress in a terminal, within a `with`; where there is none nothing is drawn.

    Arguments:
        columns: of each bar.
    """

    def __init__(self, console: Console, *columns: ProgressColumn) -> None:
        self._console = console
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


class _Time(TimeElapsedColumn):
    """The time left once it is known, else the time that has gone by."""

    def render(self, task: Task) -> Text:
        left = task.fields["left"]
        return Text(left) if left else super().render(task)


class TerminalProgress(ProgressBars, Watcher):
    """A bar per run with the time left and the metric that rounds are chosen by, and one for the study; where there is
    no terminal, a line per run that ends."""

    def __init__(self, console: Console) -> None:
        name, unit, metric = (
            TextColumn(f"{{task.{each}}}") for each in ("description", "fields[unit]", "fields[metric]")
        )
        super().__init__(console, name, BarColumn(8), MofNCompleteColumn(), unit, _Time(), metric)
        self._bars: dict[tuple[str, int], TaskID] = {}
        self._pace, self._whole, self._stops = Pace({}, ()), self._bar("all runs", 1, "runs", visible=False), False

    def study_started(self, study: Mapping[str, Any]) -> None:
        self._pace = Pace.of(study)
        self._stops = any(each["patience"] for each in study["methods"])
        count = len(study["methods"]) * len(study["seeds"])
        self._progress.update(self._whole, total=count, visible=count > 1)

    def run_started(self, method: Method, seed: int) -> None:
        self._pace.begun(method.name, seed)
        self._bars[method.name, seed] = self._bar(f"{method.name}, seed {seed}", method.rounds, "rounds")

    def round_done(self, method: Method, seed: int, at: int, metrics: Mapping[str, float]) -> None:
        self._pace.came_to(method.name, seed, at)
        name = next((name for name in _CHOSEN_BY if name in metrics), "")
        figure = f"validation {metric_of(name).shown(metrics[name], '%')}" if name else ""
        left = self._left(self._pace.of_run(method.name, seed), stops=method.patience > 0)
        self._progress.update(
            self._bars[method.name, seed],
            completed=at,
            metric=figure,
            left=left,
        )
        self._progress.update(self._whole, left=self._left(self._pace.of_study(), stops=self._stops))

    def run_restored(self, result: RunResult) -> None:
        self._pace.ended(result.method, result.seed)
        self._progress.advance(self._whole)

    def run_done(self, result: RunResult) -> None:
        self._pace.ended(result.method, result.seed, result.seconds)
        bar = self._bars[result.method, result.seed]
        self._progress.update(bar, total=max(1, result.rounds), completed=result.rounds, left="")
        self._progress.update(self._whole, advance=1, left=self._left(self._pace.of_study(), stops=self._stops))
        if not self._console.is_terminal:
            rounds = f"{result.rounds} round{'' if result.rounds == 1 else 's'}"
            line = f"{result.method}, seed {result.seed}: {rounds} in {result.seconds:.1f} s"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _bar(self, name: str, total: int, unit: str, visible: bool = True) -> TaskID:
        return self._progress.add_task(name, total=total, unit=unit, left="", metric="", visible=visible)

    def _left(self, seconds: float | None, stops: bool) -> str:
        if not seconds:
            return ""
        return f"{'≤' if stops else 'about'} {wording.format_time(max(1.0, seconds))} left"


def show_results(results: Results, console: Console) -> None:
    """The table, and under it what noise has spent."""
    console.print(results_table(results))
    for line in privacy_lines(results):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def results_table(results: Results) -> Table:
    """Methods by metrics on test data, mean ± standard deviation over seeds; the round they are of; bytes sent."""
    summary = results.summary()
    names = ("roc_auc", "auc", "party_auc", "accuracy", "macro_f1", "rmse", "mae")
    titles = {f"test_{name}": METRICS[name].title for name in names} | {"pooled_test_accuracy": "all together"}
    titles |= dict.fromkeys([name for name in _CHOSEN_BY if _has(summary, name)][:1], "validation")
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
        pooled = method in Method.known() and Method.named(method).role == "pooled"
        sent = "-" if pooled else format_bytes(sum(run.ledger.sent for run in runs) / len(runs))
        shown.add_row(method, *cells, f"{rounds:.0f}", f"{pace:.1f}", sent)
    return shown


def privacy_lines(results: Results) -> list[str]:
    """A line for each method that adds noise: what the run that spent most spent."""
    most: dict[str, dict[str, Any]] = {}
    for run in results.runs:
        if run.privacy and run.privacy["basic"]["epsilon"] >= most.get(run.method, run.privacy)["basic"]["epsilon"]:
            most[run.method] = run.privacy
    return [f"{method}: {wording.describe_privacy(privacy)}" for method, privacy in most.items()]


def unanswered_lines(results: Results) -> list[str]:
    """A line for each party that gave no answer in some call, and why in the first."""
    failed: dict[str, list[dict[str, Any]]] = {}
    for run in results.runs:
        for row in run.ledger.rows():
            if row["status"] != "answered":
                failed.setdefault(row["party"], []).append({"method": run.method, **row})
    return [
        f"party '{party}' did not answer {len(rows):,} times, "
        f"first in round {rows[0]['round']} of {rows[0]['method']}: {rows[0]['note']}"
        for party, rows in failed.items()
    ]


def show_cut(cut: CutDescription, console: Console) -> None:
    """What each party holds as a table, and under it the cut in wording."""
    table = parties_table(cut)
    needed = Measurement.get(console, console.options.update(max_width=1000), table).minimum
    console.width = max(needed, console.width)  # a long line is better than a figure cut off
    console.print(table)
    lines = [wording.describe_cut([cut])]
    if len(cut.parties) > wording.MAX_PARTIES:
        lines.append(f"The first {wording.MAX_PARTIES} parties are shown; --json has all {len(cut.parties):,}.")
    lines += [cut.note] if cut.note else []
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def parties_table(cut: CutDescription) -> Table:
    """What each party holds, a line each, and its labels in one column."""
    counts = wording.count_columns(cut)
    missing = counts.pop("unlabelled", [0] * len(cut.parties))
    _, labels = wording.label_columns(cut)
    shown = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    shown.add_column("party", no_wrap=True)
    for head in counts:
        shown.add_column(head, justify="right", no_wrap=True)
    shown.add_column({"class": "labels of each class", "yes-no": "yes of labelled", "value": "mean label"}[cut.kind])
    for at, party in enumerate(cut.parties[: wording.MAX_PARTIES]):
        told = [*labels[at], *([f"({missing[at]:,} without)"] if missing[at] else [])]
        shown.add_row(escape(party.name), *(f"{of[at]:,}" for of in counts.values()), " ".join(told))
    return shown


def _has(summary: list[dict[str, Any]], metric: str) -> bool:
    return any(line["metric"] == metric for line in summary)


def _cell(summary: list[dict[str, Any]], method: str, metric: str) -> str:
    for line in summary:
        if line["method"] == method and line["metric"] == metric:
            shown = metric_of(metric).shown
            return shown(line["mean"]) + (f" ± {shown(line['std'])}" if line["seeds"] > 1 else "")
    return "-"
