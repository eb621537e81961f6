"""A model card: one page on the models of a run, which lies beside their weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from isthmus.data.description import CutDescription
from isthmus.methods.base import Method
from isthmus.result_files import DOSSIER
from isthmus.study.loop import RunResult
from isthmus.tasks.base import Task
from isthmus.tasks.metrics import metric_of
from isthmus.tasks.ranking import PRECISION_ERROR
from isthmus.version import VERSION

_BY = {
    "federated": "by several parties together", "pooled": "on the data of all parties in one place",
    "alone": "by each party alone", "constant": "on labels alone, by several parties together,",
}  # fmt: skip
"""How methods of a role train."""

PAGE = Path(DOSSIER).with_suffix(".html").name
"""The page of the run's dossier, in the folder above the card."""
QUANTILE = 1.96
"""Of the normal distribution, for intervals of 95 %."""


def model_card(
    run: RunResult,
    study: Mapping[str, Any],
    cut: CutDescription | None = None,
    summary: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The card of a run's models, in Markdown.

    Arguments:
        study: with all its options, as `study.toml` has it.
        cut: what the parties held; a federation's server does not know it.
        summary: mean and standard deviation over seeds, as `Results.summary` gives it.
    """
    about = run.description
    encoder, task = about["model"].get("encoder", "a module of its own"), about["task"]["name"]
    labels, trained = about["labels"], _BY[Method.named(about["method"]["name"]).role]
    trained_for = Task.named(task).read({key: value for key, value in about["task"].items() if key != "name"}, "task")
    metrics = list(_metrics(run, cut, summary))
    lines = [
        f"# Model of {run.method}, seed {run.seed}",
        "",
        f"A graph model for {task}, trained {trained} with Isthmus {VERSION}. Use it with `isthmus predict`, or "
        "`isthmus.load_model` in Python.",
        "",
        "## What it is",
        "",
        f"- Encoder: {encoder}{_options(about['model'], 'encoder')}.",
        f"- Input: {about['features']} features for each node, {_input(about['encoding'])}.",
        f"- Output: {', '.join(labels) if labels else _outputs(about['task'])}.",
        f"- Owners: {_owners(run)}.",
        "",
        "## Data and parties",
        "",
        *_data(study, cut),
        "",
        "## How it was trained",
        "",
        f"- Method: {run.method}{_options(about['method'], 'name')}.",
        *_decisions(about["task"]),
        f"- The model is that of round {run.chosen_round} of {run.rounds}.",
        "",
        "## Metrics",
        "",
        "| metric | this run | 95 % interval | over the seeds |",
        "| --- | --- | --- | --- |",
        *(f"| {' | '.join(row)} |" for row in metrics),
        "",
        *_explained(metrics),
        *_over_parties(run, cut),
        *_by_label(run, cut),
        "## Limits",
        "",
        "- The figures hold for data like those of the parties. For others, test it on known labels first.",
        "- Scores are not calibrated: 0.9 does not mean that nine of ten are right.",
        "- A model gives away something of the data that it was trained on. `isthmus audit` measures how much.",
        f"- What left whom, and under which protection, is in [the dossier of the run](../{PAGE}), once "
        "`isthmus dossier` has made it.",
        *_limits(run, trained_for.prediction_note),
    ]
    return "\n".join(lines) + "\n"


def _options(table: Mapping[str, Any], name: str) -> str:
    shown = [f"{key} = {_text(value)}" for key, value in table.items() if key != name]
    return f" ({', '.join(shown)})" if shown else ""


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_text(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):  # of a run that was resumed, tuples are lists
        return "[" + ", ".join(map(_text, value)) + "]"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def _input(encoding: Mapping[str, Any] | None) -> str:
    if encoding is None:
        return "numbers as the data have them"
    if encoding["molecules"]:
        return "of atoms of molecules, given as SMILES"
    kinds = ", ".join(f"{name} ({table['kind']})" for name, table in encoding["columns"].items())
    return f"encoded from the columns {kinds}"


def _outputs(task: Mapping[str, Any]) -> str:
    known = [f"{task[key]} {key}" for key in ("classes", "tasks") if key in task]
    return known[0] if known else "embeddings"


def _decisions(task: Mapping[str, Any]) -> Iterator[str]:
    if "class_weights" in task:
        yield f"- Class weights in the loss: {_text(task['class_weights'])}."
    if "threshold" in task:
        yield f"- Threshold of the probability of yes, or of one of two classes: {_text(task['threshold'])}."


def _owners(run: RunResult) -> str:
    own, shared = len(run.models.get("parties", {})), bool(run.weights)
    if run.groups:
        return f"{len(run.groups)} groups of parties have a model each"
    if own:
        return f"{own} parties have a model each" + (", of which they share a part or a second one" if shared else "")
    return "all parties share one model" if shared else "every party keeps its own model"


def _data(study: Mapping[str, Any], cut: CutDescription | None) -> Iterator[str]:
    data = study.get("data", {})
    folder = f" {Path(data['path']).expanduser().resolve().name}" if data.get("path") else ""
    yield f"- Data: {data.get('name', 'unknown')}{folder}."
    if cut is None:
        yield "- What each party holds stays with the parties."
        return
    sizes = [party.items for party in cut.parties]
    yield (
        f"- {len(sizes)} parties with {min(sizes):,} to {max(sizes):,} {cut.level}s each; {cut.nodes:,} nodes and "
        f"{cut.edges:,} edges."
    )
    train, val, test = (sum(getattr(party, split) for party in cut.parties) for split in ("train", "val", "test"))
    yield f"- {train:,} items for training, {val:,} for validation, {test:,} for testing."
    if cut.note:
        yield f"- {cut.note}"


def _metrics(
    run: RunResult, cut: CutDescription | None, summary: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str, str, str]]:
    over = {line["metric"]: line for line in summary if line["method"] == run.method and line["seeds"] > 1}
    for name, value in sorted(run.metrics.items(), key=lambda each: each[0] != f"test_{run.metric}"):
        if not name.startswith("test_"):
            continue
        title = metric_of(name).title
        found = interval_of(name, value, cut)
        interval = "-" if found is None else f"{found[0]:.3f} to {found[1]:.3f}"
        line = over.get(name)
        spread = "-" if line is None else f"{line['mean']:.3f} ± {line['std']:.3f} ({line['seeds']} seeds)"
        yield title, f"{value:.3f}", interval, spread


def _explained(metrics: Sequence[tuple[str, str, str, str]]) -> Iterator[str]:
    """What the columns hold, of those that hold anything."""
    if any(interval != "-" for _, _, interval, _ in metrics):
        yield "Intervals are Wilson's, over test items taken as independent, which neighbours in a graph are not."
    if any(spread != "-" for *_, spread in metrics):
        yield "Over the seeds stands the mean ± the standard deviation."
    yield ""


def _over_parties(run: RunResult, cut: CutDescription | None) -> Iterator[str]:
    over = run.over_parties.get(f"test_{run.metric}")
    if over is not None and over["parties"] > 1:
        who = f", of {over['worst_party']}" if cut is not None else ""
        title = metric_of(run.metric).title
        yield f"Over the parties, the mean {title} is {over['mean']:.3f}, and the worst {over['worst']:.3f}{who}."
        yield ""


def _by_label(run: RunResult, cut: CutDescription | None) -> Iterator[str]:
    """A table of the figures of each class, or of each task; of a federation without numbers of items."""
    hidden = (PRECISION_ERROR, *(("items",) if cut is None else ()))
    figures = list(dict.fromkeys(name for own in run.by_label.values() for name in own if name not in hidden))
    if not figures:
        return
    yield "On the test items, label by label:"
    yield ""
    yield f"| {' | '.join(('label', *(metric_of(name).title for name in figures)))} |"
    yield f"| {' | '.join(('---', *('---:' for _ in figures)))} |"
    for label, own in run.by_label.items():
        shown = " ".join(label.split()).replace("|", "\\|")
        yield f"| {' | '.join((shown, *(_figure(name, own.get(name)) for name in figures)))} |"
    yield ""


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if name == "items" else f"{value:.3f}"


def interval_of(metric: str, value: float, cut: CutDescription | None) -> tuple[float, float] | None:
    """The interval of a metric over the test items of a cut; only of accuracy is it known."""
    items = 0 if cut is None else sum(party.test for party in cut.parties)
    if metric != "test_accuracy" or not items or cut is None or cut.kind != "class":
        return None
    return wilson(value, items)


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's interval of 95 % for a share of so many items.

    >>> [round(end, 3) for end in wilson(0.5, 100)]
    [0.404, 0.596]
    """
    z = QUANTILE**2 / count
    middle, half = share + z / 2, QUANTILE * math.sqrt(share * (1 - share) / count + z / count / 4)
    return (middle - half) / (1 + z), (middle + half) / (1 + z)


def _limits(run: RunResult, note: str) -> Iterator[str]:
    if note:
        yield f"- {note[0].upper()}{note[1:]}."
    if not run.privacy:
        yield "- No noise was added to hide what single items contributed."
    if not run.metrics:
        yield "- It was not tested."
