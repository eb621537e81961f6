"""What a private study asks of its methods: a release that the account does not cover is refused by its name."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from torch import nn

from isthmus.errors import IsthmusError, format_option
from isthmus.federation.actions import Binding
from isthmus.federation.private import Private, PrivateEdges, PrivateItems, PrivateNodes, PrivateSums
from isthmus.federation.robust import Mean
from isthmus.methods.base import EVALUATING, Method
from isthmus.methods.training import LocalTraining
from isthmus.nn.aggregation import aggregations, only_aggregation
from isthmus.nn.encoders import Encoder
from isthmus.nn.per_party import reach_of
from isthmus.nn.weights import batch_norm_weights
from isthmus.privacy.account import Account
from isthmus.privacy.hops import HopPlan
from isthmus.privacy.items import ItemPlan
from isthmus.privacy.options import EdgePrivacy, ItemPrivacy, NodePrivacy, PartyPrivacy, Privacy
from isthmus.privacy.updates import PartyPlan
from isthmus.tasks.base import Task

PUBLIC: Mapping[str, tuple[Any, str]] = {
    "weighting": ("even", "how many items a party has is a release"),
    "select": ("last", "validation counts of the parties are a release"),
    "select_over": ("items", "validation counts of the parties are a release"),
    "patience": (0, "validation counts of the parties are a release"),
}
"""Options with the value that needs nothing of the parties' data, and why others do."""


def privacy_of(table: Mapping[str, Any], where: str = "privacy") -> Privacy | None:
    """The table `[privacy]` of a study; None without one."""
    if not table:
        return None
    unit = table.get("unit", "party")
    kind = Privacy.named(unit if isinstance(unit, str) else str(unit))
    return kind.read({key: value for key, value in table.items() if key != "unit"}, where)


def privacy_table(privacy: Privacy) -> dict[str, Any]:
    """The table with all its options."""
    return {"unit": privacy.name, **privacy.model_dump()}


def check_private(study: Any) -> None:
    """Refuse protections of a federation under which noise in shares does not protect."""
    privacy = study.named_privacy()
    if privacy is None:
        return
    together = any(method.summing for method in study.method_list())
    if study.protect.matching == "oblivious" and (together or not privacy.hides_items):
        raise IsthmusError(
            "privacy: a private study matches no ids obliviously, and its methods may need ids: set "
            "protect.matching = 'hashes'"
        )
    in_shares = privacy.in_shares or together
    if in_shares and (name := study.protect.protection().name) != "masks":
        raise IsthmusError(
            f"privacy: each party adds a share of the noise, which hides nothing with protect.total = '{name}': set "
            "protect.total = 'masks'"
        )
    if study.protect.noise != "own":
        raise IsthmusError("privacy: whoever knows the study's seed knows its noise: set protect.noise = 'own'")


def check_no_search(privacy: Privacy | None, searched: bool) -> None:
    """Refuse a search under privacy: every setting trains on the same data, and figures of all of them choose one."""
    if privacy is not None and searched:
        raise IsthmusError(
            "privacy: a grid and tuning train on the same data once per setting, and choosing one is a release that no "
            "account covers: leave them out, and choose settings on public data"
        )


def most_spent(method: Method, privacy: Privacy | None) -> float | None:
    """The most epsilon that a run spends on a unit that noise protects; None without noise."""
    both = (method.most_spent(), None if privacy is None else privacy.epsilon)
    return max((spent for spent in both if spent is not None), default=None)


def adapted(method: Method, privacy: Privacy | None) -> Method:
    """The method with public values of options that would read data; one that is set to another value is refused."""
    if privacy is None or not privacy.hides_items:
        return method
    due = {name: value for name, (value, _) in PUBLIC.items() if name in type(method).model_fields}
    found = method.model_copy(update=due)
    for each in (method, found.training()):
        for name, value in due.items():
            if name in each.model_fields_set and getattr(each, name) != value:
                raise IsthmusError(
                    f"method '{each.name}': {name} = {getattr(each, name)!r} with privacy, but {PUBLIC[name][1]}: "
                    f"set {format_option(name, value)}"
                )
    return found


def private_answers(
    privacy: Privacy | None, method: Method, module: nn.Module, task: Task, parties: int = 1
) -> Private | None:
    """How a run of this method keeps to the privacy that the study asks for; an error where it does not.

    Arguments:
        parties: how many there are in this process.
    """
    if privacy is None:
        return None
    unit = _UNITS[type(privacy)]
    if release := next(itertools.chain(_beside_all(method, task, parties), unit.problems(method, module, task)), ""):
        raise IsthmusError(f"method '{method.name}' with privacy.unit = '{privacy.name}': {release}")
    return unit.answers(privacy, method, module, parties)


def _sums(privacy: Any, method: Method, module: nn.Module, parties: int) -> PrivateSums:
    if privacy.delta * parties >= 1:
        raise IsthmusError(
            f"privacy.delta is {privacy.delta:g}, one in the {parties:,} parties or more, which lets a release show "
            f"one of them whole: set privacy.delta well below {1 / parties:.2g}"
        )
    return PrivateSums(PartyPlan.of(privacy, max(1, _times(method, module))), method.training().updates)


def _items(privacy: Any, method: Method, module: nn.Module, parties: int) -> PrivateItems:
    return PrivateItems(_trainings(privacy, method, module), method.training().updates)


def _edges(privacy: Any, method: Method, module: nn.Module, parties: int) -> PrivateEdges:
    return PrivateEdges(HopPlan.of(privacy, aggregations(module)[0].depth), summing=_summing(method, module))


def _nodes(privacy: Any, method: Method, module: nn.Module, parties: int) -> Private:
    if (reader := only_aggregation(aggregations(module))) is None:  # a method that releases nothing has any model
        return _items(privacy, method, module, parties)
    hops = HopPlan.of(privacy, reader.depth)
    trainings = _trainings(privacy, method, module, hops.account())
    return PrivateNodes(trainings, method.training().updates, hops, _summing(method, module))


def _summing(method: Method, module: nn.Module) -> tuple[str, ...]:
    """The actions by which a run of this model makes sums over neighbours at all parties."""
    planned = method.calls(module)
    return tuple(name for name in method.summing if planned.get(name, 0))


def _times(method: Method, module: nn.Module) -> int:
    """How often a party answers with an update."""
    planned = method.calls(module)
    return sum(planned.get(name, 0) for name in method.training().updates)


def _trainings(
    privacy: ItemPrivacy, method: Method, module: nn.Module, beside: Account | None = None
) -> ItemPlan | None:
    """The noise of training, beside what was released before; none where nothing leaves."""
    times, epochs = _times(method, module), method.training().epochs_per_call()
    return ItemPlan.of(privacy, times, epochs, beside) if times and epochs else None


def _beside_all(method: Method, task: Task, parties: int) -> Iterator[str]:
    """What no noise on what parties train covers."""
    if method.role == "pooled":
        yield "it trains on the data of all parties in one place: leave it out"
    if parties > 1 and task.level == "pair":
        yield "to evaluate pairs, parties send each other outputs of nodes ('lend'), which no noise covers"


def _beside_updates(method: Method, module: nn.Module, task: Task) -> Iterator[str]:
    """What the method releases that noise in sums of updates does not cover."""
    trains = method.training()
    if not isinstance(trains.aggregation(), Mean):
        yield f"aggregate = '{trains.aggregation().name}' reads more than a sum of updates: set aggregate = 'mean'"
    for name, binding in _releases(method, module):
        if name not in trains.updates or binding.verbs != ("total",) or binding.contributors != 1:
            yield _uncovered(name, binding)


def _beside_items(method: Method, module: nn.Module, task: Task, *, sums: bool = False) -> Iterator[str]:
    """What the method releases, or reads, that noise on the gradients of single items does not cover.

    Arguments:
        sums: a node has noisy sums over its neighbours beside its features.
    """
    released = dict(_releases(method, module))
    if not released:
        return
    trains = method.training()
    covered = (*trains.updates, *(method.summing if sums else ()))
    for name, binding in released.items():
        if name not in covered:
            yield _uncovered(name, binding)
    if not (method.only_trains or (sums and method.summing)):
        yield "it does not say that its parties only train on the loss of items (only_trains): use one that does"
    yield from _beside_training(method)
    if task.level not in ("graph", "node"):
        yield f"an item is a graph or a node, and this task is on {task.level}s: use privacy.unit = 'party'"
    if sums and task.level != "node":
        yield f"this task is on {task.level}s: use privacy.unit = 'item'"
    if task.level == "node" and not sums and reach_of(module) != 0:
        readers = ", ".join(name for name, kind in Encoder.known().items() if not kind.reads_edges)
        yield f"an item is a node without its edges, and this model reads edges: use one that does not ({readers})"
    if batch_norm_weights(module):
        yield "batch normalisation mixes the items of a step: use a model without it"
    if not task.loss_is_of_items:
        yield f"the loss of task '{task.name}' weighs items by others of the step: set task.class_weights = 'none'"
    if why := getattr(trains, "local", LocalTraining()).items_problem():
        yield f"local.{why}"


def _beside_training(method: Method) -> Iterator[str]:
    """Where a method leaves the training to another one: that may read, before the sums are there, what they hide."""
    if (trains := method.training()) is not method and not trains.only_trains:
        yield (
            f"trainer '{trains.name}' does not say that its parties only train on the loss of items (only_trains): use "
            "one that does"
        )


def _beside_hops(method: Method, module: nn.Module, task: Task) -> Iterator[str]:
    """What the method, or its model, reads of edges that noise on sums over neighbours does not cover."""
    if method.for_crossing and not method.summing:
        yield "no noise covers what parties send of edges that cross between them: use a method without that"
    if method.most_spent() is not None:
        yield "it adds noise to edges itself: leave out [privacy]"
    yield from _beside_training(method)
    if task.level not in ("graph", "node"):
        yield f"this task is on {task.level}s, which are edges themselves: use privacy.unit = 'party'"
    yield from _beside_sums(module)


def _beside_nodes(method: Method, module: nn.Module, task: Task) -> Iterator[str]:
    """What the method releases of a node, or its model reads, that noise on sums and gradients does not cover."""
    yield from _beside_items(method, module, task, sums=True)
    if dict(_releases(method, module)):
        yield from _beside_sums(module)


def _beside_sums(module: nn.Module) -> Iterator[str]:
    if only_aggregation(aggregations(module)) is None:
        yield "only sums over neighbours have noise, and this model reads edges otherwise: use the encoder gap"


def _releases(method: Method, module: nn.Module) -> Iterator[tuple[str, Binding]]:
    """The actions of a run by which something leaves a party, but for evaluations."""
    planned = method.calls(module)
    for name, function in method.site_type().actions().items():
        if planned.get(name, 0) and name not in EVALUATING and not function.binding.silent:
            yield name, function.binding


def _uncovered(name: str, binding: Binding) -> str:
    return f"no noise covers what '{name}' releases {_eyes(binding)}: use a method that only averages"


def _eyes(binding: Binding) -> str:
    if "exchange" in binding.verbs:
        return "to other parties"
    return "to the server" if binding.to == "server" else "to the parties"


class _Unit(NamedTuple):
    """What a unit of privacy asks of a run.

    Attributes:
        problems: what its noise does not cover.
        answers: how parties answer.
    """

    problems: Callable[[Method, nn.Module, Task], Iterator[str]]
    answers: Callable[[Any, Method, nn.Module, int], Private]


_UNITS: Mapping[type[Privacy], _Unit] = {
    PartyPrivacy: _Unit(_beside_updates, _sums),
    ItemPrivacy: _Unit(_beside_items, _items),
    EdgePrivacy: _Unit(_beside_hops, _edges),
    NodePrivacy: _Unit(_beside_nodes, _nodes),
}
