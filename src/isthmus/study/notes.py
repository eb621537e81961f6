"""What a reader of results must know first: what a method does not use, and what a reference does as well."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from isthmus.data.cohort import Cohort
from isthmus.data.description import CutDescription, few_names
from isthmus.data.party import Party
from isthmus.data.skew import rare_class, rare_classes, rare_settings, rarest_class
from isthmus.errors import format_option, format_options
from isthmus.methods.base import Method
from isthmus.nn.draws import torch_seeded
from isthmus.nn.encoders import Encoder, uses_edge_features, uses_edge_weights, uses_types
from isthmus.nn.layerwise import infer
from isthmus.nn.per_party import PerParty
from isthmus.own_code import reference_of
from isthmus.paired import ahead_over_parties, alone_is_best, best_was_last, difference
from isthmus.study.loop import RunResult
from isthmus.study.own_models import model_table
from isthmus.study.protocol import keeps_parties, read_protocol
from isthmus.study.setup import module_for
from isthmus.tasks.base import Task
from isthmus.tasks.classification import Classification
from isthmus.tasks.metrics import Metric, metric_of
from isthmus.tasks.multilabel import MultiLabel
from isthmus.tasks.ranking import OF_ONE_CLASS, PRECISION_ERROR, RANKING
from isthmus.tasks.regression import Regression

if TYPE_CHECKING:
    from isthmus.study.config import Study

NOTED_CLASSES = 3
"""Rare classes that have a note each; of more, one note tells."""
NOTED_ERROR = 0.01
"""The error of an average precision from which on a note tells it."""


def data_notes(
    methods: Sequence[Method],
    parties: Sequence[Party],
    cut: CutDescription,
    task: Mapping[str, Any],
    seed: int | None = None,
) -> list[str]:
    """One line for each method that finds nothing of what it is for in these data, or leaves a part of them out.

    And one for each rare class that some party cannot validate or test, and one on the rarest class, unless the study
    names a metric or weights of classes.

    Arguments:
        task: options of the task that the study gives.
        seed: that the cut is of, where other seeds have others.
    """
    notes = []
    drawn = "" if seed is None else f"with seed {seed} "
    if len(parties) == 1 and (names := [method.label for method in methods if method.role == "federated"]):
        notes.append(f"there is one party, so nothing is federated: its data alone train {', '.join(names)}")
    for method in methods:
        several = cut.level == "node" and len(cut.parties) > 1
        if several and method.for_crossing and not cut.cross:
            notes.append(f"{method.label} is for edges that cross between parties, and these data have none")
        if several and method.for_shared and not any(party.shared for party in cut.parties):
            notes.append(f"{method.label} is for nodes that several parties hold, and these data have none")
        notes += [f"{method.label} {each}" for each in method.left_out(parties)]
        if parties[0].edge_width and not method.typed:
            notes.append(f"{method.label} leaves out the {parties[0].edge_width} features of edges (edge_attr)")
    notes += [f"{drawn}{cut.split_note}"] if cut.split_note else []
    if cut.kind != "class" or cut.level == "pair":
        return notes + _far_from_one(parties) + _yes_or_no_among_numbers(parties, cut)
    notes += _common_class(cut, task)
    notes += _classes_of_nobody(cut)
    known = None
    chosen = task.get("metric") or task.get("class_weights", "none") != "none"
    if not chosen and not all(method.unsupervised for method in methods):
        counts = _items_of_classes(cut)
        if note := rare_class(counts, cut.labels, format_options(rare_settings(counts))):
            notes.append(note)
            known = rarest_class(counts)
    return notes + [drawn + each for each in _rare_classes(parties, cut, known)]


def _far_from_one(parties: Sequence[Party]) -> list[str]:
    """A line if labels are numbers that a model starts far away from."""
    labels = torch.cat([party.graph.y[party.train].flatten() for party in parties])
    known = labels[~labels.isnan()] if labels.is_floating_point() else labels[:0]
    if known.numel() < 2 or bool(((known == 0) | (known == 1)).all()):
        return []
    size = float(known.abs().mean())
    if 0.1 <= size <= 10:
        return []
    return [
        f"labels are numbers of about {size:.3g}, and models start near 0: give more rounds or a larger local.lr, or "
        "divide them in your tables, and compare"
    ]


def _yes_or_no_among_numbers(parties: Sequence[Party], cut: CutDescription) -> list[str]:
    """A line if some of several tasks have only 0 and 1, and others other numbers: then all are measured values."""
    labels = torch.cat([party.graph.y for party in parties])
    if labels.dim() < 2 or not labels.is_floating_point():
        return []
    no, yes = labels == 0, labels == 1
    measured = ~(no | yes | labels.isnan()).all(0)
    plain = (~measured & no.any(0) & yes.any(0)).nonzero().flatten().tolist()
    if not plain or not bool(measured.any()):
        return []
    names = few_names([cut.label(at) for at in plain])
    return [f"labels of {names} are 0 and 1, and are measured values here as others are: predict them in another study"]


def _classes_of_nobody(cut: CutDescription) -> list[str]:
    """A line if no party has an item of some class; classes without names may then have been counted from 1."""
    lacking = [cut.label(at) for at, items in enumerate(_items_of_classes(cut)) if not items]
    if not lacking:
        return []
    remedy = "" if cut.labels else ": classes are numbers from 0, without gaps"
    return [f"no item is of {few_names(lacking)}, of {len(_items_of_classes(cut))} classes{remedy}"]


def _common_class(cut: CutDescription, task: Mapping[str, Any]) -> list[str]:
    """A line if metrics of one of two classes, or a threshold, are of the more frequent one, and nobody has said so."""
    counts = _items_of_classes(cut)
    judges = [metric_of(each).title for each in (task.get("metric"), task.get("select_by")) if each in OF_ONE_CLASS]
    what = [*judges, *(["task.threshold"] if task.get("threshold", 0.5) != 0.5 else [])]
    if len(counts) != 2 or not what or task.get("positive") is not None or rarest_class(counts) != 0:
        return []
    share = 100 * counts[1] / sum(counts)
    remedy = format_option("task.positive", cut.labels[0] if cut.labels else 0)
    return [f"{what[0]} is about '{cut.label(1)}', {share:.1f} % of the items: for '{cut.label(0)}' give {remedy}"]


def _items_of_classes(cut: CutDescription) -> list[int]:
    return [sum(counts) for counts in zip(*(party.labels for party in cut.parties), strict=True)]


def _rare_classes(parties: Sequence[Party], cut: CutDescription, known: int | None = None) -> list[str]:
    """A line for each rare class that some party that holds it cannot validate or test; one for all of them if many.

    Arguments:
        known: a class of which another note says that it is rare.
    """
    notes: dict[str, str] = {}
    untold = 0
    items = _items_of_classes(cut)
    for at in rare_classes(items):
        lacks, nowhere = [], []
        holders = [party for party in parties if bool((party.graph.y == at).any())]
        for split, name in (("val", "validation"), ("test", "test")):
            drawn = {party.name: party.graph.y[getattr(party, split)] for party in holders}
            tested = any(bool((y == at).any()) for y in drawn.values())
            without = [party for party, y in drawn.items() if len(y) and not bool((y == at).any())]
            if without:
                lacks.append(f"no {name} item of {few_names(without) if tested else 'any party'}")
                nowhere += [] if tested else [name]
        if lacks:
            share = f"is rare, {100 * items[at] / sum(items):.1f} % of the items, and " if at != known else ""
            rests = "what is said of it rests on the other parties" if not nowhere else "no score says anything of it"
            rests = "no round is chosen by it" if nowhere == ["validation"] else rests
            untold += "test" in nowhere
            notes[cut.label(at)] = (
                f"'{cut.label(at)}' {share}has {' and '.join(lacks)}: {rests}; "
                "larger shares for validation and test (--split, or the tables' own column) may help"
            )
    if len(notes) <= NOTED_CLASSES:
        return list(notes.values())
    nothing = f", and no score says anything of {untold} of them" if untold else ""
    return [
        f"{len(notes)} rare classes lack validation or test items at parties that hold them "
        f"({few_names(list(notes))}): what is said of them rests on few items{nothing}; larger shares for validation "
        "and test (--split, or the tables' own column) may help"
    ]


def protocol_notes(protocol: str | None, study: Mapping[str, Any]) -> list[str]:
    """A line that names the protocol that a study starts from, if it does, and one if the data keep their parties."""
    if protocol is None:
        return []
    notes = [f"options that the study does not set are those of protocol '{protocol}' (isthmus protocols {protocol})"]
    if keeps_parties(study):
        cut = read_protocol(protocol)
        notes.append(
            f"the parties are those of the data; {protocol} cuts a data set by {cut['partition']['name']} into "
            f"{cut['parties']}, as {format_option('partition.name', cut['partition']['name'])} would"
        )
    return notes


def federation_notes(study: Study) -> list[str]:
    """A line if a study has options that only a federation follows."""
    given = [f"[{name}]" for name in ("protect", "federation") if name in study.model_fields_set]
    return [f"{' and '.join(given)} of the study: only a federation follows them"] if given else []


def model_notes(models: Sequence[Any], parties: Sequence[Party], task: Task) -> list[str]:
    """One line for each model that reads edges but not the weights that these parties' edges have."""
    weighted = sum(party.weighted for party in parties)
    notes = []
    for model in models if weighted else ():
        module = model if isinstance(model, nn.Module) else module_for(model, parties, task, 0)
        reads_edges = getattr(getattr(module, "body", module), "hops", None) != 0
        if reads_edges and not uses_edge_weights(module):
            what = next(iter(model_table(model).values()))
            another = "use another model, such as gcn, or add edge_weight to forward in a class of your own"
            remedy = "set model.weighted = true" if hasattr(model, "weighted") else another
            notes.append(f"{what} ignores the edge weights of {weighted} of {len(parties)} parties: {remedy}")
    return list(dict.fromkeys([*notes, *_unread(models, parties, task)]))


def probability_notes(models: Sequence[Any], parties: Sequence[Party], task: Task) -> list[str]:
    """One line for each model of a user's own that returns probabilities, where the task's loss expects scores.

    The smallest party's items show it, before training. Weights ten times as large, of either sign, move all outputs
    out of [0, 1] but those of a sigmoid.
    """
    party = min(parties, key=lambda each: each.nodes)
    notes = []
    for model in models if isinstance(task, Classification | MultiLabel) else ():
        if isinstance(model, Encoder):
            continue
        with suppress(Exception):  # an error of the model's own is the run's to say
            module = copy.deepcopy(module_for(copy.deepcopy(model), parties, task, 0))
            first = _untrained(module, party, 1)
            softmax = torch.allclose(first.sum(1), first.new_ones(len(first)))
            all_scales = [first] if softmax else [_untrained(module, party, scale) for scale in (1, 10, -10)]
            inside = all(bool(((each >= 0) & (each <= 1)).all()) for each in all_scales)
            if inside and (softmax or (isinstance(task, MultiLabel) and first.min() > 0)):
                last, what = "softmax" if softmax else "sigmoid", reference_of(module)
                notes.append(f"{what} returns probabilities, the loss expects scores: leave out the {last} at its end")
    return list(dict.fromkeys(notes))


def _untrained(module: nn.Module, party: Party, scale: float) -> torch.Tensor:
    """Return the outputs for a party's items of a model whose weights are multiplied by a number."""
    scaled = copy.deepcopy(module)
    with torch.no_grad(), torch_seeded(0):
        for weight in scaled.parameters():
            weight.mul_(scale)
        cohort = Cohort((party,), torch.device("cpu"))
        output: torch.Tensor = infer(PerParty(scaled, 1, cohort.device), cohort.block)
    return output


def _unread(models: Sequence[Any], parties: Sequence[Party], task: Task) -> list[str]:
    """One line for each model that does not read the features of edges, or the types, that these parties have."""
    width, schema = parties[0].edge_width, parties[0].schema
    notes = []
    for model in models if width or schema is not None else ():
        module = model if isinstance(model, nn.Module) else module_for(model, parties, task, 0)
        what = next(iter(model_table(model).values()))
        if width and not uses_edge_features(module) and not parties[0].label_width:
            other = "transformer" if schema is None else "rgcn"
            own = f"use another model, such as {other}, or add edge_attr to forward in a class of your own"
            remedy = "set model.edge_features = true" if hasattr(model, "edge_features") else own
            notes.append(f"{what} ignores the {width} features of edges (edge_attr): {remedy}")
        if schema is not None and not uses_types(module):
            notes.append(
                f"{what} knows node types by their columns only, and treats all types of edges as one: use rgcn, "
                "hetero-sage or hgt"
            )
    return notes


def result_notes(methods: Sequence[Method], runs: Sequence[RunResult], judged_by: str) -> list[str]:
    """One line for each method that is no better than one answer for all items, and one if training alone is best.

    One more if the validation data do not give the metric that chooses rounds.

    Arguments:
        judged_by: the metric that judges the task.
    """
    notes, metric = [], metric_of(judged_by)
    own = {method.label: [run for run in runs if run.method == method.label] for method in methods}
    for name in (method.label for method in methods if method.role != "constant" and is_majority(own[method.label])):
        value = metric.shown(fmean(run.majority_score for run in own[name] if run.majority_score is not None), " %")
        what = f"{name} is no better than {metric.one_answer} of the test items, whose {metric.title} is {value}"
        unscaled = ": labels are not scaled, so a model learns their mean first; give more rounds, without dropout"
        notes.append(what + (unscaled if metric.name in Regression.known_metrics[:2] else ""))
    for answer in (method.label for method in methods if method.role == "constant"):
        for name in (method.label for method in methods if method.role != "constant"):
            pairs = [
                (run.metrics.get(f"test_{judged_by}"), of_all.metrics.get(f"test_{judged_by}"))
                for run, of_all in zip(own[name], own[answer], strict=False)
                if run.majority_score is None
            ]
            if pairs and metric.no_better(pairs):
                notes.append(f"{name} is no better than {answer}, one answer for all items, by {metric.title}")
    notes += _unmeasured(methods, runs, metric)
    validated = [run for run in runs if any(name.startswith("val_") for name in run.metrics)]
    missing = dict.fromkeys(run.select_by for run in validated if f"val_{run.select_by}" not in run.metrics)
    titles = [metric_of(name).title for name in missing if name]
    notes += [f"validation data with a single class give no {title}: the last round is the result" for title in titles]
    notes += _imprecise(own, methods, metric)
    judged = f"test_{judged_by}"
    alone, federated = (_best(methods, runs, judged, role) for role in ("alone", "federated"))
    few = {
        (len(run.parties) - run.over_parties[judged]["parties"], len(run.parties))
        for run in runs
        if judged in run.over_parties
    }
    if any(without for without, _ in few):
        (fewest, known), (most, _) = min(few), max(few)
        some = f"{most} of {known}" if len(few) == 1 else f"by seed, {fewest} to {most}"
        notes.append(f"{some} parties have test items that give no {metric.title}: means over parties leave them out")
    shown = [metric.shown(abs(each[0])) for each in (alone, federated) if each is not None]
    if alone is not None and federated is not None and alone[0] > federated[0] and shown[0] != shown[1]:
        chosen = [each.label for each in methods if each.role == "federated" and each.select == "validation"]
        rising = {name: max(run.rounds for run in own[name]) for name in chosen if best_was_last(own[name])}
        first, second = (
            {run.seed: run.metrics[judged] for run in own[name] if judged in run.metrics}
            for name in (alone[1], federated[1])
        )
        compared = [alone[1], *(each.label for each in methods if each.role == "federated")]
        of_parties = {
            name: [(over["mean"], over["worst"]) for run in own[name] if (over := run.over_parties.get(judged))]
            for name in compared
        }
        ahead = ahead_over_parties(alone[1], of_parties, smaller=metric.smaller_is_better)
        notes.append(alone_is_best(alone[1], rising, difference(first, second, metric.smaller_is_better), ahead))
    return notes


def _imprecise(own: Mapping[str, Sequence[RunResult]], methods: Sequence[Method], metric: Metric) -> Iterator[str]:
    """A note if scores share so many bins that average precisions may be a point off."""
    if metric.name != "average_precision":
        return
    off = {}
    for name in (method.label for method in methods if method.role != "constant"):
        of_runs = [
            [error for label in run.by_label.values() if (error := label.get(PRECISION_ERROR)) is not None]
            for run in own[name]
        ]
        off[name] = max((fmean(errors) for errors in of_runs if errors), default=0.0)
    if names := [name for name, most in off.items() if most > NOTED_ERROR]:
        yield (
            f"{metric.title} of {few_names(names)} is up to {100 * max(off.values()):.1f} points off the exact one, "
            "since many scores share a bin: isthmus predict gives the scores"
        )


def _unmeasured(methods: Sequence[Method], runs: Sequence[RunResult], metric: Metric) -> Iterator[str]:
    """Notes on figures that the data do not give, because there are no items to measure, or not those that it takes."""
    names = {name for run in runs for name in run.metrics}
    tested = [name for name in names if name.startswith("test_")]
    if not tested:
        yield "no party has test items: what is known are validation figures alone"
    elif metric.name in RANKING and f"test_{metric.name}" not in names:
        yield f"test data with a single class give no {metric.title}: other metrics of them say little"
    chooses = any(method.select == "validation" for method in methods if method.role != "constant")
    if chooses and not any(name.startswith("val_") for name in names):
        yield "no party has validation items: the last round is the result"


def _best(methods: Sequence[Method], runs: Sequence[RunResult], metric: str, role: str) -> tuple[float, str] | None:
    """The mean over seeds, larger is better, and the name of the best method of a role."""
    sign = -1 if metric_of(metric).smaller_is_better else 1
    means = []
    for name in (method.label for method in methods if method.role == role):
        values = [sign * run.metrics[metric] for run in runs if run.method == name and metric in run.metrics]
        means += [(fmean(values), name)] if values else []
    return max(means, default=None)


def is_majority(runs: Sequence[RunResult]) -> bool:
    """Whether some runs are no better than one answer for all items, by the mean of the metric that judges them."""
    pairs = [(run.metrics.get(f"test_{run.metric}"), run.majority_score) for run in runs]
    return bool(runs) and metric_of(runs[0].metric).no_better(pairs)
