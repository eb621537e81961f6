"""What stands before a run: the task, the model and checks that they fit the parties and the method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental import _config

from isthmus.data.cohort import check_compatible
from isthmus.data.coupling import check_both_ways
from isthmus.data.level import Level
from isthmus.data.party import Party
from isthmus.data.pooled import pool_parties
from isthmus.data.schema import Inputs
from isthmus.errors import IsthmusError, did_you_mean, format_option
from isthmus.methods.base import Method
from isthmus.methods.training import PLAIN_LR
from isthmus.nn.aggregation import aggregations
from isthmus.nn.draws import seed_of, torch_seeded
from isthmus.nn.encoders import Encoder, uses_edge_features
from isthmus.nn.weights import give_name
from isthmus.tasks.base import MultiTask, Task
from isthmus.tasks.classification import Classes


def needs_whole(parties: Sequence[Party], task: Task) -> bool:
    """Whether a study evaluates a model on all parties' data put together, too."""
    return task.unsupervised or (parties[0].level == "node" and bool(shared_nodes(parties)))


def whole_of(parties: Sequence[Party]) -> Party | None:
    """What parties that share nodes are put together to; none where they share none.

    Metrics summed over such parties count a node as often as it is held (FedGL's local goal); on the whole every node
    counts once (its global goal). Only a study can measure it: no federation has the whole.
    """
    return pool_parties(parties) if parties[0].level == "node" and shared_nodes(parties) else None


def shared_nodes(parties: Sequence[Party]) -> int:
    """How many nodes several parties hold."""
    if parties[0].level == "graph" or any(party.ids is None for party in parties):
        return 0
    counts = torch.cat([party.ids for party in parties if party.ids is not None]).unique(return_counts=True)[1]
    return int((counts > 1).sum())


def check_owned_once(method: Method, parties: Sequence[Party]) -> None:
    """Refuse parties with one owner for each node, or of typed graphs for each edge, where some have several or none.

    A party owns the typed edges within it and those from its nodes to another party's.
    """
    if not (twice := shared_nodes(parties)) and parties[0].schema is None:
        return
    if parties[0].schema is None:
        raise IsthmusError(
            f"method '{method.name}' is for graphs whose nodes have one owner each, {twice} nodes have several: "
            "cut them apart, or use a method for graphs that overlap"
        )
    if any(party.ids is None for party in parties):
        return
    owned, arriving = zip(*(_edges_of(party) for party in parties), strict=True)
    every = torch.cat([*owned, *arriving], dim=1)
    ids, rank = torch.unique(every[:2], return_inverse=True)
    key = (rank[0] * ids.numel() + rank[1]) * max(1, len(parties[0].schema.edges)) + every[2]
    *held, arrived = key.split([*(each.size(1) for each in owned), sum(each.size(1) for each in arriving)])
    known, count = torch.cat([each.unique() for each in held]).unique(return_counts=True)
    if several := int((count > 1).sum()):
        raise IsthmusError(
            f"method '{method.name}' is for graphs whose edges have one owner each, {several} edges have several: "
            "name the owners of rows (isthmus party new --owner), or use a method for graphs that overlap"
        )
    from_party = torch.isin(torch.cat(arriving, dim=1)[0], torch.cat([party.ids for party in parties]))  # type: ignore[misc]
    if none := int((from_party & ~torch.isin(arrived, known)).sum()):
        raise IsthmusError(
            f"method '{method.name}': {none} border edges arrive that their source's party does not list: list them "
            "there, too, as `leaving`"
        )


def _edges_of(party: Party) -> tuple[Tensor, Tensor]:
    """Ids of the source and the target, and the type, of the edges that a party owns, and of those that arrive."""
    assert party.ids is not None
    within = torch.cat([party.ids[party.graph.edge_index], party.graph.edge_type[None]])
    border = party.border
    if border is None or border.edge_type is None:
        return within, within[:, :0]
    across = torch.stack([border.outer, party.ids[border.inner], border.edge_type])
    if border.leaving is None:
        return within, across
    leaving = across[:, border.leaving][[1, 0, 2]]
    return torch.cat([within, leaving], dim=1), across[:, ~border.leaving]


def check_fit(method: Method, parties: Sequence[Party], task: Task, module: nn.Module) -> None:
    """Errors that show before anything runs."""
    check_compatible(parties)
    level = parties[0].level
    if task.level != level:
        remedies = {"pair": ": make the parties with its `make_parties`", "edge": ": make them with Party.of_edges"}
        remedy = remedies.get(task.level, "")
        raise IsthmusError(f"task '{task.name}' is for {task.level}s, the parties hold {level}s{remedy}")
    check_task(method, task)
    if level == "edge" and "edge_label_index" not in signature(module.forward).parameters:
        raise IsthmusError(
            f"model {type(module).__name__} gives nothing of labelled edges: name edge_label_index in its forward, and "
            "return a row for each of its columns"
        )
    check_typed(method, parties[0].inputs, module)
    if method.disjoint:
        check_owned_once(method, parties)
    if method.joins_both_ways and parties[0].schema is None and not aggregations(module):
        for party in parties:  # of a model that reads hops, sums have no weights, and they look for themselves
            check_both_ways(party)
    if not any(bool((party.train if method.role == "pooled" else party.training_mask).any()) for party in parties):
        if level == "pair":
            raise IsthmusError("no link to train on has both ends at one party: cut into fewer parties")
        raise IsthmusError("no party has a training label: give at least one party items to train on")
    if not task.unsupervised and not any(bool(party.val.any() or party.test.any()) for party in parties):
        raise IsthmusError("no party has anything to validate or test on: give at least one party such items")
    method.check(module)


def check_task(method: Method, task: Task) -> None:
    """Refuse a task that the method is not for."""
    if task.level not in method.levels:
        raise IsthmusError(
            f"method '{method.name}' is for {' and '.join(method.levels)} tasks, the parties hold {task.level}s"
        )
    if method.for_classes and not isinstance(task, Classes):
        raise IsthmusError(f"method '{method.name}' is for items of one class each: task '{task.name}' has none")
    if method.unsupervised != task.unsupervised:
        if method.unsupervised:
            raise IsthmusError(f"method '{method.name}' learns without labels: set task.name = 'graph-clustering'")
        fit = ", ".join(name for name, kind in Method.known().items() if kind.unsupervised)
        raise IsthmusError(f"method '{method.name}' learns from labels, task '{task.name}' has none: use {fit}")


def judged(task: Task, method: Method) -> Task:
    """The task by which a method is judged: a threshold would turn one answer for all into another."""
    return task.without_threshold() if method.role == "constant" else task


def check_typed(method: Method, inputs: Inputs, module: nn.Module) -> None:
    """Refuse typed graphs, and models that read features of edges, with a method that takes neither."""
    if method.typed:
        return
    fit = ", ".join(name for name, kind in Method.known().items() if kind.typed)
    if inputs.schema is not None:
        raise IsthmusError(f"method '{method.name}' is for graphs with one type of nodes and of edges: use {fit}")
    if inputs.edge_features and uses_edge_features(module):
        raise IsthmusError(f"method '{method.name}' leaves the features of edges out, which the model reads: use {fit}")


def without_training(parties: Sequence[Party]) -> list[str]:
    """Names of the parties without a training label."""
    return [party.name for party in parties if not bool(party.training_mask.any())]


def _may_link(parties: Sequence[Party]) -> bool:
    """Whether no node has a label at all, so that what there is to learn is links."""
    return parties[0].level == "node" and not any(bool((party.graph.y >= 0).any()) for party in parties)


def check_labelled(parties: Sequence[Party]) -> None:
    """Refuse parties without training labels, which would take part without learning anything of their own."""
    if idle := without_training(parties):
        first = next(party for party in parties if party.name == idle[0])
        drawn = int((first.val | first.test).sum())
        others = "the split drew all of its labels for validation and test, so give another seed or larger shares"
        raise IsthmusError(
            f"party '{idle[0]}' has no training label ({len(idle)} of {len(parties)} have none): "
            f"{others if drawn else 'label more'}, use fewer parties, or let them take part without weight: "
            + format_option("unlabelled", "idle")
            + (", or learn without labels: set task.name = 'graph-clustering'" if parties[0].level == "graph" else "")
            + (", or ask for links: set task.name = 'link-prediction'" if _may_link(parties) else "")
        )


def task_for(parties: Sequence[Party], classes: int | None = None) -> Task:
    """The task that the parties' labels ask for.

    Whole numbers `[items]` are classes. Real numbers `[items, tasks]`, NaN where a label is missing, are labels of
    several tasks: yes or no where there are only 0 and 1, else measured values.

    Arguments:
        classes: how many classes there are, where the labels do not show it; of several tasks, how many tasks.
    """
    check_compatible(parties)
    if parties[0].level == "pair":
        return Task.named("link-prediction")()
    y = torch.cat([party.graph.y for party in parties])
    kind, options = _several(y, classes) if y.is_floating_point() else _classes(y, classes)
    return Task.named(f"{parties[0].level}-{kind}").read(options, "task")


def task_of(
    named: Task | None,
    parties: Sequence[Party],
    classes: int | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
    labels: Sequence[str] = (),
) -> Task:
    """The task that is named, if the parties' labels are fit for it; without one, the task that they ask for.

    Arguments:
        options: of the task, if none is named.
        labels: names of the classes, or of the tasks.
    """
    if named is None:
        return with_options(task_for(parties, classes), options, labels)
    if named.level != parties[0].level:
        return named
    due = task_for(parties, named.outputs or classes)
    check_kind(named, due)
    return named.complete_from(due, labels)


def check_kind(named: Task, due: Task) -> None:
    """Refuse a task that is for labels of another kind than the task that the labels ask for."""
    if not any(isinstance(due, kind) and isinstance(named, kind) for kind in (MultiTask, Classes, type(due))):
        raise IsthmusError(f"task '{named.name}': the labels are those of '{due.name}'")


def with_options(due: Task, options: Mapping[str, Any], labels: Sequence[str] = ()) -> Task:
    """The task that labels ask for, with options that a study gives without naming a task."""
    return type(due).read(options, f"task '{due.name}'").complete_from(due, labels)


def _classes(y: Tensor, classes: int | None) -> tuple[str, dict[str, int]]:
    if y.dim() > 1:
        raise IsthmusError("labels are whole numbers of several tasks: give them as real numbers, NaN where missing")
    seen = int(y.max()) + 1
    if classes is not None and classes < seen:
        raise IsthmusError(f"classes is {classes}, labels go up to {seen - 1}: classes must be at least {seen}")
    return "classification", {"classes": classes or max(2, seen)}


def _several(y: Tensor, tasks: int | None) -> tuple[str, dict[str, int]]:
    count = y[0].numel()
    if y.dim() > 2 or (tasks is not None and tasks != count):
        due = "one for each task" if tasks is None else f"{tasks} as `classes` says, or leave `classes` out"
        raise IsthmusError(f"labels are {count} real numbers for each item: give {due}, or whole numbers for classes")
    known = y[~y.isnan()]
    if not known.numel():
        raise IsthmusError("labels are all missing: give at least one item a number")
    if not bool(known.isfinite().all()):
        raise IsthmusError("labels are infinite: give finite numbers, and NaN where one is missing")
    binary = bool(((known == 0) | (known == 1)).all())
    return "multilabel" if binary else "regression", {"tasks": count}


def suited(method: Method, model: Any, level: Level) -> Method:
    """The method with the learning rate that suits the model, where it names none: on nodes, that of the encoder."""
    suits = model.lr if level == "node" and isinstance(model, Encoder) else PLAIN_LR
    return method.with_rate(method.rate_for(suits))


def device_named(name: str) -> torch.device:
    """A device that is at hand on this machine, or an error that says so."""
    ready = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    kind = name.split(":")[0]
    if kind not in ready:
        raise IsthmusError(f"unknown device '{name}': {did_you_mean(kind, ready)}")
    if not ready[kind]:
        raise IsthmusError(f"device '{name}' is not at hand on this machine: use cpu")
    return torch.device(name)


def module_for(
    model: Encoder | nn.Module | Callable[[int, int], nn.Module], parties: Sequence[Party], task: Task, seed: int
) -> nn.Module:
    """The model before training for these parties' data, see `module_of`."""
    return module_of(model, parties[0].inputs, task, seed)


def module_of(
    model: Encoder | nn.Module | Callable[[int, int], nn.Module], inputs: Inputs, task: Task, seed: int
) -> nn.Module:
    """The model before training, its weights drawn by the seed alone.

    Arguments:
        inputs: what it may read of the data.
        model: an encoder; a module of your own (its `reset_parameters` is called if it has one); or a function of
            the numbers of features and outputs that makes one.
    """
    with torch_seeded(seed_of(seed, "model")):
        if isinstance(model, Encoder):
            if not inputs.features:
                raise IsthmusError(
                    f"model '{model.name}': the parties' data have no features to read: give them some, degrees perhaps"
                )
            return give_name(task.model(model.reading(inputs), inputs.features), model.name)
        if isinstance(model, nn.Module):
            reset = getattr(model, "reset_parameters", None)
            if callable(reset):
                reset()
            return model
        return model(inputs.features, task.outputs)


def extended(method: Method, module: nn.Module, seed: int) -> nn.Module:
    """The model that the method trains, what it adds to the module drawn by the seed alone."""
    with torch_seeded(seed_of(seed, "method")):
        return method.extended(module)


def outline(method: Method, model: Encoder | Callable[[int, int], nn.Module], inputs: Inputs, task: Task) -> nn.Module:
    """The model that the method trains, without memory for its weights: to count and compare them."""
    # a model of several views runs once to learn its width, on a graph without edges
    with torch.device("meta"), _config.patch(meta_nonzero_assume_all_nonzero=True):  # type: ignore[attr-defined]
        return extended(method, module_of(model, inputs, task, 0), 0)
