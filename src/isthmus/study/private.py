"""What a private study asks of its methods: a release that the account does not cover is refused by its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from isthmus.data.party import Party
from isthmus.errors import IsthmusError, format_option
from isthmus.federation.actions import Binding
from isthmus.federation.private import EVALUATE, PrivateSums
from isthmus.federation.robust import Mean
from isthmus.methods.base import Method
from isthmus.privacy.options import PartyPrivacy, Privacy
from isthmus.privacy.updates import PartyPlan

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
    if study.named_privacy() is None:
        return
    if (name := study.protect.protection().name) != "masks":
        raise IsthmusError(
            f"privacy: each party adds a share of the noise, which hides nothing with protect.total = '{name}': set "
            "protect.total = 'masks'"
        )
    if study.protect.noise != "own":
        raise IsthmusError("privacy: whoever knows the study's seed knows its noise: set protect.noise = 'own'")


def most_spent(method: Method, privacy: Privacy | None) -> float | None:
    """The most epsilon that a run spends on a unit that noise protects; None without noise."""
    both = (method.most_spent(), None if privacy is None else privacy.epsilon)
    return max((spent for spent in both if spent is not None), default=None)


def adapted(method: Method, privacy: Privacy | None) -> Method:
    """The method with public values of options that would read data; one that is set to another value is refused."""
    if privacy is None:
        return method
    due = {name: value for name, (value, _) in PUBLIC.items() if name in type(method).model_fields}
    for name, value in due.items():
        if name in method.model_fields_set and getattr(method, name) != value:
            raise IsthmusError(
                f"method '{method.name}': {name} = {getattr(method, name)!r} with privacy, but {PUBLIC[name][1]}: "
                f"set {format_option(name, value)}"
            )
    return method.model_copy(update=due)


def private_sums(
    privacy: Privacy | None, method: Method, module: nn.Module, parties: Sequence[Party] = ()
) -> PrivateSums | None:
    """How a run of this method keeps to the privacy that the study asks for; an error where it does not."""
    if privacy is None:
        return None
    if release := next(_uncovered(method, module, parties), ""):
        raise IsthmusError(f"method '{method.name}' with privacy.unit = '{privacy.name}': {release}")
    assert isinstance(privacy, PartyPrivacy)
    planned = method.calls(module)
    times = sum(planned.get(name, 0) for name in method.updates)
    return PrivateSums(PartyPlan.of(privacy, max(1, times)), method.updates)


def _uncovered(method: Method, module: nn.Module, parties: Sequence[Party]) -> Iterator[str]:
    """What the method, or a study with it, releases that noise does not cover."""
    if method.role == "pooled":
        yield "it trains on the data of all parties in one place: leave it out"
    if not isinstance(method.aggregation(), Mean):
        yield f"aggregate = '{method.aggregation().name}' reads more than a sum of updates: set aggregate = 'mean'"
    if len(parties) > 1 and parties[0].level == "pair":
        yield "to evaluate pairs, parties send each other outputs of nodes ('lend'), which no noise covers"
    planned = method.calls(module)
    for name, function in method.site_type().actions().items():
        if not planned.get(name, 0) or name == EVALUATE or name == "lend" or function.binding.silent:
            continue
        if name not in method.updates or function.binding.verbs != ("total",) or function.binding.contributors != 1:
            yield f"no noise covers what '{name}' releases {_eyes(function.binding)}: use a method that only averages"


def _eyes(binding: Binding) -> str:
    if "exchange" in binding.verbs:
        return "to other parties"
    return "to the server" if binding.to == "server" else "to the parties"
