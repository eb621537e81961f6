"""A study in a terminal: progress while it runs, a table at the end; and what the parties of a cut hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from types import TracebackType
from typing import Any, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
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

from isthmus.data.datasets.folder import PartyFolders
from isthmus.data.description import CutDescription
from isthmus.federation.ledger import PartyStanding
from isthmus.methods.base import Method
from isthmus.progress import standing
from isthmus.progress.pace import Pace
from isthmus.report import wording
from isthmus.report.wording import format_bytes
from isthmus.study.loop import RunResult
from isthmus.study.notes import is_majority
from isthmus.study.results import Results, methods_of
from isthmus.study.run import Watcher
from isthmus.study.settings import Search, Tried
from isthmus.tasks.metrics import METRICS, metric_of

MAX_SETTINGS = 20
"""Settings that a table shows at most."""
MAJORITY = "* no better than {}"
PARTY_MEAN = "party mean"
"""Head of the column with the mean over parties."""


class _Bars(Progress):
    """Bars, and a table below them if there is one."""

    below: Table | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.below is not None:
            yield self.below


class ProgressBars:
    """Progress bars inside a `with`; without a terminal nothing is drawn.

    Arguments:
        columns: of each bar.
    """

    def __init__(self, console: Console, *columns: ProgressColumn) -> None:
        self._console = console
        self._progress = _Bars(*columns, console=console, disable=not console.is_terminal)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.below = None
        self._progress.stop()


class _Time(TimeElapsedColumn):
    """The time left once it is known, until then the elapsed time."""

    def render(self, task: Task) -> Text:
        left = task.fields["left"]
        return Text(left) if left else super().render(task)


class TerminalProgress(ProgressBars, Watcher):
    """A bar per run, with the time left and the metric that chooses the round, and one for the study.

    Below them, in a federation, a table of the parties. Without a terminal: a line per finished run, and
    one beforehand where a method takes long.
    """

    def __init__(self, console: Console) -> None:
        name, unit, metric = (
            TextColumn(f"{{task.{each}}}") for each in ("description", "fields[unit]", "fields[metric]")
        )
        super().__init__(console, name, BarColumn(8), MofNCompleteColumn(), unit, _Time(), metric)
        self._bars: dict[tuple[str, int], TaskID] = {}
        self._pace, self._whole, self._stops = Pace({}, ()), self._bar("all runs", 1, "runs", visible=False), False
        self._chosen_by, self._own_files, self._noted, self._told = "", False, "", set[str]()

    def study_started(self, study: Mapping[str, Any]) -> None:
        self._pace = Pace.of_study(study)
        methods = methods_of(study)
        self._chosen_by = f"val_{study.get('task', {}).get('select_by', '')}"
        self._stops = any(each.patience for each in methods)
        count = len(methods) * len(study["seeds"])
        self._progress.update(self._whole, total=count, visible=count > 1)
        self._own_files = study.get("data", {}).get("name") == PartyFolders.name

    def cut_made(self, seed: int, cut: CutDescription) -> None:
        """Print what was noticed in a user's own files before the first run."""
        if self._own_files and cut.note and cut.note != self._noted:
            self._noted = cut.note
            self._console.print(cut.note, markup=False, highlight=False, soft_wrap=True)

    def run_started(self, method: Method, seed: int) -> None:
        self._pace.run_started(method.label, seed)
        self._bars[method.label, seed] = self._bar(f"{method.label}, seed {seed}", method.rounds, "rounds")
        if method.listing.costs and method.label not in self._told and not self._console.is_terminal:
            self._told.add(method.label)
            line = f"{method.label} takes {method.listing.costs}"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def round_done(self, method: Method, seed: int, at: int, metrics: Mapping[str, float]) -> None:
        self._pace.round_done(method.label, seed, at)
        figure = standing.validation_figure(metrics, self._chosen_by)
        left = self._left(self._pace.left_in_run(method.label, seed), stops=method.patience > 0)
        self._progress.update(self._bars[method.label, seed], completed=at, metric=figure, left=left)
        self._progress.update(self._whole, left=self._left(self._pace.left_in_study(), stops=self._stops))

    def run_restored(self, result: RunResult) -> None:
        self._pace.run_done(result.method, result.seed)
        self._progress.advance(self._whole)

    def run_done(self, result: RunResult) -> None:
        self._pace.run_done(result.method, result.seed, result.seconds)
        bar = self._bars[result.method, result.seed]
        self._progress.update(bar, total=max(1, result.rounds), completed=result.rounds, left="")
        self._progress.update(self._whole, advance=1, left=self._left(self._pace.left_in_study(), stops=self._stops))
        self._hide_finished()
        if not self._console.is_terminal:
            rounds = f"{result.rounds} round{'' if result.rounds == 1 else 's'}"
            line = f"{result.method}, seed {result.seed}: {rounds} in {result.seconds:.1f} s"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def run_left_out(self, method: Method, seed: int, why: str) -> None:
        self._pace.run_done(method.label, seed)
        if bar := self._bars.get((method.label, seed)):
            self._progress.update(bar, visible=False)
        self._progress.update(self._whole, advance=1, left=self._left(self._pace.left_in_study(), stops=self._stops))
        if why:
            line = f"{method.label}, seed {seed}: left out, {why}"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def parties_seen(self, parties: Mapping[str, PartyStanding]) -> None:
        self._progress.below = standing.parties_table(parties, max(3, self._console.height // 2)) if parties else None

    def _hide_finished(self) -> None:
        """Hide the oldest bars of finished runs if there are more bars than lines."""
        shown = [bar for bar in self._progress.tasks if bar.visible]
        finished = [bar for bar in shown if bar.finished and bar.id != self._whole]
        below = 0 if self._progress.below is None else self._progress.below.row_count + 4
        for bar in finished[: max(0, len(shown) - self._console.height + 2 + below)]:
            self._progress.update(bar.id, visible=False)

    def _bar(self, name: str, total: int, unit: str, visible: bool = True) -> TaskID:
        return self._progress.add_task(name, total=total, unit=unit, left="", metric="", visible=visible)

    def _left(self, seconds: float | None, stops: bool) -> str:
        if not seconds:
            return ""
        return f"{'≤' if stops else 'about'} {wording.format_time(max(1.0, seconds))} left"


class TuningProgress(ProgressBars):
    """A bar of trials per method, with its best validation metric. Without a terminal: a line per trial.

    Arguments:
        trials: of each method.
    """

    def __init__(self, console: Console, trials: int) -> None:
        super().__init__(
            console, TextColumn("{task.description}"), BarColumn(8), MofNCompleteColumn(), TimeElapsedColumn()
        )
        self._trials = trials
        self._bars: dict[str, TaskID] = {}

    def trial_done(self, method: str, tried: Tried, metric: str) -> None:
        if method not in self._bars:
            self._bars[method] = self._progress.add_task(f"{method}, trials", total=self._trials)
        self._progress.advance(self._bars[method])
        if not self._console.is_terminal:
            figure = wording.validation(metric, tried)
            line = f"{method}: validation {figure}, {wording.setting(tried.values)}"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def show_results(results: Results, console: Console) -> None:
    """Print who did not count, the results table, what a reader must know first, and what noise has spent."""
    if missing := absence_lines(results):
        console.print(f"[bold red]{wording.SUBSET}[/]", highlight=False)
        for line in missing:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(
        results_table(results, console) if results.search is None else search_table(results, results.search, console)
    )
    for line in results.notes:
        console.print(f"note: {line}", markup=False, highlight=False)
    for line in privacy_lines(results):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def results_table(results: Results, console: Console) -> Table:
    """Methods by test metrics, mean ± standard deviation over seeds, with the round that they are from and bytes sent.

    The metric that judges the runs is pooled over the parties. Beside it stand the mean over parties, if it differs and
    there is room for it, and the worst party; other test metrics are left out then. A star marks a method that is no
    better than one answer for all items, such as the majority class.
    """
    known = dict.fromkeys(name for run in results.runs for name in run.metrics)
    names = dict.fromkeys([*(run.metric for run in results.runs), *METRICS])
    columns = [(metric_of(name).title, f"test_{name}", "") for name in names if f"test_{name}" in known][:2]
    if columns and any(columns[0][1] in run.over_parties for run in results.runs):
        judged = columns[0][1]
        columns = [columns[0], (PARTY_MEAN, judged, "mean"), ("worst party", judged, "worst")]
    columns += [
        ("all together", name, "") for name in (f"pooled_{each}" for _, each, _ in columns[:1]) if name in known
    ]
    chosen_by = (f"val_{name}" for name in [*(run.select_by for run in results.runs), *METRICS])
    for name in [name for name in chosen_by if name in known][:1]:
        same = bool(columns) and columns[0][1].removeprefix("test_") == name.removeprefix("val_")
        columns.append(("validation" if same else f"validation {metric_of(name).title}", name, ""))
    columns = columns or [(name.removeprefix("test_"), name, "") for name in known]
    filled = [(title, _column(results, metric, figure)) for title, metric, figure in columns]
    table = _results_table(results, filled)
    for title, means in filled:
        if title == PARTY_MEAN:
            differs = any(mean not in ("-", pooled) for mean, pooled in zip(means, filled[0][1], strict=True))
            if not differs or _measured(table, console).maximum > console.width:
                return _results_table(results, [each for each in filled if each[0] != PARTY_MEAN])
    return table


def _column(results: Results, metric: str, figure: str) -> list[str]:
    """By method a metric over all test items, or a figure of it over the parties: `mean` or `worst`."""
    found: dict[str, list[float]] = {run.method: [] for run in results.runs}
    for run in results.runs:
        value = run.over_parties.get(metric, {}).get(figure) if figure else run.metrics.get(metric)
        found[run.method] += [] if value is None else [value]
    return [_cell(metric, values) for values in found.values()]


def _results_table(results: Results, columns: Sequence[tuple[str, Sequence[str]]]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column("method", overflow="fold")  # in full: labels of settings differ at their ends
    for head in (*(title for title, _ in columns), "round", "ms/round", "sent"):
        table.add_column(head, justify="right", no_wrap=True)
    roles = {label: about["role"] for label, about in results.methods().items()}
    for at, method in enumerate(dict.fromkeys(run.method for run in results.runs)):
        runs = [run for run in results.runs if run.method == method]
        rounds = sum(run.chosen_round for run in runs) / len(runs)
        pace = 1000 * sum(run.seconds for run in runs) / max(1, sum(run.rounds for run in runs))
        sent = "-" if roles.get(method) == "pooled" else format_bytes(sum(run.ledger.sent for run in runs) / len(runs))
        marked = is_majority(runs) and roles.get(method) != "constant"
        cells = [column[at] for _, column in columns]
        table.add_row(f"{method} *" if marked else method, *cells, f"{rounds:.0f}", f"{pace:.1f}", sent)
        if marked:
            table.caption, table.caption_justify = MAJORITY.format(metric_of(runs[0].metric).one_answer), "left"
    return table


def search_table(results: Results, search: Search, console: Console) -> Table:
    """Settings by their validation metric, best first, and of the best of each method also the test metric."""
    metric = metric_of(search.metric)
    tests, captions = search.test_metrics(run.metric for run in results.runs), list[str]()
    roles = {label: about["role"] for label, about in results.methods().items()}
    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column("method", no_wrap=True)
    table.add_column("setting", overflow="fold")
    for head in (f"validation {metric.title}", *(f"test {metric_of(test).title}" for test in tests)):
        table.add_column(head, justify="right", no_wrap=True)
    for at, each in enumerate(search.tried):
        if at >= MAX_SETTINGS and not each.chosen:
            continue
        runs = [run for run in results.runs if each.chosen and run.method == each.label]
        own = [run.metrics for run in runs]
        marked = is_majority(runs) and roles.get(each.label) != "constant"
        captions += [MAJORITY.format(metric_of(runs[0].metric).one_answer)] if marked else []
        cells = (
            wording.validation(search.metric, each),
            *(_cell(test, [metrics[test] for metrics in own if test in metrics]) for test in tests),
        )
        table.add_row(
            f"{escape(each.of)} *" if marked else escape(each.of),
            escape(wording.setting(each.values)),
            *cells,
            style="bold" if each.chosen else None,
        )
    if len(search.tried) > MAX_SETTINGS:
        captions.append(
            f"The best {MAX_SETTINGS} of {len(search.tried)} settings, and the best of each method; the report has all."
        )
    table.caption = "\n".join(dict.fromkeys(captions)) or None
    return table


def privacy_lines(results: Results) -> list[str]:
    """For each method that adds noise a line on the run that spent most."""
    most: dict[str, dict[str, Any]] = {}
    for run in results.runs:
        if run.privacy and run.privacy["basic"]["epsilon"] >= most.get(run.method, run.privacy)["basic"]["epsilon"]:
            most[run.method] = run.privacy
    return [f"{method}: {wording.describe_privacy(privacy)}" for method, privacy in most.items()]


def absence_lines(results: Results) -> list[str]:
    """Return for each run that stopped early, and each party that did not count in all rounds, a line."""
    lines = [f"{run.method}, seed {run.seed}: stopped early. {run.stopped}" for run in results.runs if run.stopped]
    for run in results.runs:
        spans = [(span.first, span.last, span.missing) for span in run.ledger.turnout()]
        lines += wording.absences(f"{run.method}, seed {run.seed}", run.rounds, spans)
    return lines


def difference_lines(results: Results) -> list[str]:
    """What differs between the server's ledger and the parties' own, a line each, and why that may be."""
    found = [line for run in results.runs for line in run.reconciled.get("differences", ())]
    why = "an answer that came too late, or a round repeated by --resume, is in a party's ledger alone; nothing else is"
    return [*found, f"the ledgers differ: {why}"] if found else []


def show_cut(cut: CutDescription, console: Console) -> None:
    """Print a table of what each party holds, and sentences on the cut."""
    table = parties_table(cut)
    console.width = max(_measured(table, console).minimum, console.width)  # a long line is better than a number cut off
    console.print(table)
    lines = [wording.describe_cut([cut])]
    if len(cut.parties) > wording.MAX_PARTIES:
        lines.append(f"The first {wording.MAX_PARTIES} parties are shown; --json has all {len(cut.parties):,}.")
    if cut.kind != "value" and len(cut.labels) > 1:
        lines.append(f"The {'classes' if cut.kind == 'class' else 'tasks'} in their order: {', '.join(cut.labels)}.")
    lines += [cut.note] if cut.note else []
    lines += [f"Note: {note}." for note in [cut.split_note] if note]
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def parties_table(cut: CutDescription) -> Table:
    """One row per party: what it holds, with its labels in one column."""
    counts = wording.count_columns(cut)
    missing = counts.pop("unlabelled", [0] * len(cut.parties))
    _, labels = wording.label_columns(cut)
    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column("party", no_wrap=True)
    for head in counts:
        table.add_column(head, justify="right", no_wrap=True)
    heads = {"class": "labels of each class", "yes-no": "yes of labelled", "value": "mean label"}
    table.add_column("pairs without a link, with one" if cut.level == "pair" else heads[cut.kind])
    for at, party in enumerate(cut.parties[: wording.MAX_PARTIES]):
        cells = [*labels[at], *([f"({missing[at]:,} without)"] if missing[at] else [])]
        table.add_row(escape(party.name), *(f"{column[at]:,}" for column in counts.values()), " ".join(cells))
    return table


def _measured(table: Table, console: Console) -> Measurement:
    """The width that a table needs, with and without breaks in its cells."""
    return Measurement.get(console, console.options.update(max_width=1000), table)


def _cell(metric: str, values: Sequence[float]) -> str:
    """Mean and standard deviation over seeds."""
    if not values:
        return "-"
    shown = metric_of(metric).shown
    return shown(fmean(values)) + (f" ± {shown(stdev(values))}" if len(values) > 1 else "")
