"""What parties send under differential privacy, and what the server makes of it.

Where all data of a party are protected, it answers the changes of all its real numbers on a grid, with its share of
the noise (`privacy.updates`), instead of the numbers. Where single training items are, it answers what it trained with
noise (`methods.per_item`). Where edges or nodes are, it first makes noisy sums over neighbours (`privacy.hops`). All
else that answers could tell stays with it: counts of evaluations, weights of means.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from isthmus.data import rows
from isthmus.data.party import Party
from isthmus.errors import IsthmusError, TooFewAnswers
from isthmus.federation import wire
from isthmus.federation.answers import Answer, Total
from isthmus.federation.ledger import Ledger
from isthmus.federation.transport import Each
from isthmus.nn.aggregation import Aggregated, aggregations, reading_hops, without_edges
from isthmus.nn.stacks import slice_of
from isthmus.privacy.account import Account
from isthmus.privacy.hops import HopPlan
from isthmus.privacy.items import ItemPlan
from isthmus.privacy.random_bits import NoiseKey
from isthmus.privacy.updates import PartyPlan

SHARES = "shares"
"""The field of a request that says among how many parties the noise is shared."""
UPDATE = "update"
"""The field of an answer with the changes, by the paths of the numbers that change."""
EVALUATE = "evaluate"
"""The action whose answers stay at the parties."""


@dataclass(frozen=True)
class Asked:
    """The parties that answer side by side.

    Arguments:
        answered: by party how many actions it has answered.
        noise: what they draw from.
    """

    names: Sequence[str]
    answered: Sequence[int]
    noise: NoiseKey


class Private(ABC):
    """How parties answer under differential privacy.

    Attributes:
        actions: what they answer with noise; everything else has no fields, or is refused.
        hides_items: answers and counts of evaluations could tell something, see `Privacy`.
        summing: by which they make sums over neighbours together; without any, each makes its own.
    """

    actions: tuple[str, ...]
    summing: tuple[str, ...] = ()
    hides_items: ClassVar[bool] = True

    @property
    def sums(self) -> PrivateSums | None:
        """How the server asks for sums to which parties add shares of one noise."""
        return None

    @property
    def items(self) -> ItemPlan | None:
        """The noise of local training."""
        return None

    @property
    def together(self) -> HopPlan | None:
        """The noise of sums over neighbours that parties make together; None where each makes its own, or none."""
        return None

    def prepared(
        self, parties: Sequence[Party], module: nn.Module, noise: NoiseKey
    ) -> tuple[Sequence[Party], nn.Module]:
        """The parties as methods see them, and the model for these.

        Arguments:
            noise: what each party draws from.
        """
        return parties, module

    def least(self, action: str, request: wire.Payload | Each) -> int:
        """How many parties a sum needs, so that its noise is what the account says: parties open no other."""
        named = isinstance(request, Each) or SHARES in request
        return shares_of(request) if named and action in self.summing else 1

    def answer(self, action: str, answer: Answer, request: Any, asked: Asked) -> Answer:
        """What parties send in place of an answer, side by side."""
        if action in self.actions:
            return self.noisy(action, answer, request, asked)
        if answer.fields:
            raise IsthmusError(f"refused: privacy does not cover what it answers ({', '.join(answer.fields)})")
        return answer

    @abstractmethod
    def noisy(self, action: str, answer: Answer, request: Any, asked: Asked) -> Answer:
        """What parties send in place of an answer of one of the `actions`."""

    def account(self, ledger: Ledger) -> Account:
        """What the party spent that was asked most often, whether or not its answer came."""
        times: dict[str, int] = {}
        for entry in ledger.entries:
            if entry.action in self.actions:
                for party in entry.parties:
                    times[party] = times.get(party, 0) + 1
        return self.spent(max(times.values(), default=0))

    @abstractmethod
    def spent(self, times: int) -> Account:
        """What a party spent that was asked so often."""


@dataclass(frozen=True)
class PrivateItems(Private):
    """What parties send is what local training made of their items, with noise: it needs no more.

    Arguments:
        plan: the noise; none where no training leads to what is sent.
        actions: that train.
    """

    plan: ItemPlan | None
    actions: tuple[str, ...]

    @property
    def items(self) -> ItemPlan | None:
        return self.plan

    def noisy(self, action: str, answer: Answer, request: Any, asked: Asked) -> Answer:
        return Answer(answer.fields)  # without weights, which could tell how many items a party has

    def spent(self, times: int) -> Account:
        return Account() if self.plan is None else self.plan.account(times)


@dataclass(frozen=True)
class PrivateEdges(Private):
    """Parties release noisy sums over neighbours once, and have no edges from then on: all else follows from these.

    Arguments:
        plan: the noise.
    """

    hides_items: ClassVar[bool] = False
    plan: HopPlan
    actions: tuple[str, ...] = ()
    summing: tuple[str, ...] = ()

    @property
    def together(self) -> HopPlan | None:
        return self.plan if self.summing else None

    def prepared(
        self, parties: Sequence[Party], module: nn.Module, noise: NoiseKey
    ) -> tuple[Sequence[Party], nn.Module]:
        if self.summing:
            return [_without_structural(party) for party in parties], module
        return with_sums(self.plan, parties, module, noise)

    def noisy(self, action: str, answer: Answer, request: Any, asked: Asked) -> Answer:
        return answer

    def spent(self, times: int) -> Account:
        return self.plan.account()


@dataclass(frozen=True)
class PrivateNodes(PrivateItems):
    """Training hides items that are rows of noisy sums over neighbours.

    Arguments:
        hops: the noise of these sums.
    """

    hops: HopPlan
    summing: tuple[str, ...] = ()

    @property
    def together(self) -> HopPlan | None:
        return self.hops if self.summing else None

    def prepared(
        self, parties: Sequence[Party], module: nn.Module, noise: NoiseKey
    ) -> tuple[Sequence[Party], nn.Module]:
        if self.summing:
            return [_without_structural(party) for party in parties], module
        return (parties, module) if self.plan is None else with_sums(self.hops, parties, module, noise)

    def answer(self, action: str, answer: Answer, request: Any, asked: Asked) -> Answer:
        return answer if action in self.summing else super().answer(action, answer, request, asked)

    def spent(self, times: int) -> Account:
        found = super().spent(times)
        out = bool(self.summing or found.releases)  # its own sums leave it with what it trains, and not before
        return Account([*self.hops.account().releases, *found.releases]) if out else found


@dataclass(frozen=True)
class PrivateSums(Private):
    """Both sides of sums of updates.

    Arguments:
        plan: the noise.
        actions: whose totals are sums of updates.
    """

    plan: PartyPlan
    actions: tuple[str, ...]

    @property
    def sums(self) -> PrivateSums:
        return self

    def request(self, action: str, request: wire.Payload | Each, asked: Sequence[str]) -> wire.Payload:
        """The request, with how many parties share the noise."""
        if isinstance(request, Each):
            raise IsthmusError(
                f"privacy: action '{action}' asks parties for different things, whose updates have no sum"
            )
        self.plan.least(len(asked))
        return {**request, SHARES: len(asked)}

    def least(self, action: str, request: wire.Payload | Each) -> int:
        if action not in self.actions:
            return 1
        return self.plan.least(shares_of(request))

    def noisy(self, action: str, answer: Answer, request: Any, asked: Asked) -> Answer:
        fields, sent = dict(wire.flatten(answer.fields)), dict(wire.flatten(request))
        self.least(action, request)
        updates = [self._update(asked, at, action, fields, sent, request[SHARES]) for at in range(len(asked.names))]
        stacks = {path: torch.stack([update[path] for update in updates]) for path in fields}
        return Answer(wire.unflatten({f"{UPDATE}/{path}": stack for path, stack in stacks.items()}))

    def _update(
        self, asked: Asked, at: int, action: str, fields: Mapping[str, Any], sent: Mapping[str, Any], shares: int
    ) -> dict[str, Tensor]:
        """The noisy update of one party: by path its changes in steps."""
        changes = {path: _change(path, slice_of(column, at), sent.get(path)) for path, column in fields.items()}
        whole = np.concatenate([change.reshape(-1).numpy() for change in changes.values()])
        purpose: tuple[object, ...] = action, asked.names[at], asked.answered[at], shares
        if not asked.noise.repeatable:  # whatever was asked before, no other value gets this noise
            purpose = *purpose, repr(self.plan), whole.tobytes().hex()
        found = self.plan.clipped(whole, asked.noise.bits("rounding", *purpose))
        found = found + self.plan.share(len(whole), shares, asked.noise.bits("noise", *purpose))
        parts = torch.from_numpy(found).split([change.numel() for change in changes.values()])
        return {path: part.view(change.shape) for part, (path, change) in zip(parts, changes.items(), strict=True)}

    def opened(self, action: str, total: Total, request: Any, asked: Sequence[str]) -> Total:
        """The total that a method reads, from the sum of updates: every party that answered counts once."""
        count, least = total.contributors, self.plan.least(len(asked))
        if count < least:
            raise TooFewAnswers(
                f"action '{action}': a sum over {count} of {len(asked)} parties has less noise than the account says, "
                f"at least {least} must answer (privacy.dropouts = {self.plan.options.dropouts})"
            )
        sent = dict(wire.flatten(request))
        kinds = [value.dtype for value in sent.values() if isinstance(value, Tensor) and value.is_floating_point()]
        sums: dict[str, Tensor] = {}
        means: dict[str, Tensor] = {}
        for path, value in total.sums.items():
            own = path.removeprefix(f"{UPDATE}/")
            moved, before = value.double().cpu() * self.plan.grid, sent.get(own)
            if isinstance(before, Tensor) and before.shape == value.shape:
                means[own] = (before.double().cpu() + moved / count).to(before.dtype)
                sums[own] = means[own] * count
            else:
                sums[own] = moved.to(kinds[0] if kinds else torch.float32)
        found = Total(sums, dict.fromkeys(sums, float(count)), count, total.missing)
        found.means = means
        return found

    def spent(self, times: int) -> Account:
        return self.plan.account(times)


def shares_of(request: Any) -> int:
    """Among how many parties the noise of a sum is shared."""
    shares = None if isinstance(request, Each) else request.get(SHARES)
    if type(shares) is not int or shares < 1:
        raise IsthmusError("refused: the request does not say among how many parties the noise is shared")
    return shares


def with_sums(
    plan: HopPlan, parties: Sequence[Party], module: nn.Module, noise: NoiseKey
) -> tuple[Sequence[Party], nn.Module]:
    """The parties with noisy sums over neighbours in place of edges, and the model that reads them."""
    reader = aggregations(module)[0]
    return [_with_hops(party, plan, reader, noise) for party in parties], reading_hops(module)


def _with_hops(party: Party, plan: HopPlan, reader: Aggregated, noise: NoiseKey) -> Party:
    """The party with hops beside its features, see `without_edges`."""
    if party.schema is not None:
        raise IsthmusError(f"privacy: party '{party.name}' has a typed graph, whose edges no sums with noise read")
    hops = itertools.count(1)

    def total(h: Tensor, edges: Tensor) -> Tensor:
        plan.check_neighbours(edges, party.name)
        return plan.total(h, edges, noise, party.name, next(hops))

    x = rows.to_dense(_without_structural(party).graph.x)
    return without_edges(party, reader.aggregate(x.double(), party.graph.edge_index, total).to(x.dtype))


def _without_structural(party: Party) -> Party:
    return party.without_structural("sums with noise alone teach nothing, so give nodes features of their own")


def _change(path: str, value: Any, before: Any) -> Tensor:
    """How much numbers changed; those that the request does not have count from zero."""
    if not (isinstance(value, Tensor) and value.is_floating_point()):
        raise IsthmusError(f"refused: '{path}' is no real number that noise could cover")
    new = value.detach().cpu().double()
    old = before.detach().cpu().double() if isinstance(before, Tensor) and before.shape == value.shape else 0.0
    return new - old
