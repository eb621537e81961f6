"""The reconstruction audit: how much of others' features colluding parties read when FedCog propagates."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import numpy as np
from pydantic import Field
from scipy.sparse import csr_array
from torch import nn

from isthmus.audit.attacks import (
    Attack,
    Claim,
    Findings,
    Level,
    LinearSystem,
    NoInnerNeighbour,
    OneNeighbour,
    SecondHop,
    entries,
)
from isthmus.audit.base import Audit, Recorder, Shown
from isthmus.audit.knowledge import Knowledge, Law, Mail, Reals, known_of, law_of, mail_of
from isthmus.audit.sparse_attacks import InnerNeighbours, Supports, Values
from isthmus.data import matrices
from isthmus.data.coupling import Coupling, decouple, exposed_nodes
from isthmus.data.matrices import Ints
from isthmus.data.party import Party
from isthmus.errors import IsthmusError
from isthmus.federation.verbs import Federation
from isthmus.methods.base import Model, State
from isthmus.methods.fedcog import FedCog, diffusion_of
from isthmus.tasks.base import Task

ATTACKS: tuple[type[Attack], ...] = (
    OneNeighbour,
    LinearSystem,
    NoInnerNeighbour,
    SecondHop,
    Supports,
    Values,
    InnerNeighbours,
)
"""In the order in which they are run: later ones go on from what earlier ones found."""
LEVELS: tuple[Level, ...] = ("support", "direction", "features")
"""From least to most."""
EXACT = 1e-3
"""Relative error below which a row counts as read."""


@dataclass
class Exposure:
    """What colluders learn of their victims under one protection: nodes, summed over all victims.

    Attributes:
        nodes: of all victims.
        added: edges that LNNC added.
        summed: nodes that take part in a message that colluders receive.
        exposed: of these, nodes that meet the condition of Theorem 2.
        support, direction, features: nodes of which colluders find out where the features are not zero, or the
            features up to a factor, or the features.
        named: nodes whose features they read and know whose they are.
        wrong: rows that they take for features and that are not.
        attacks: by attack and level the nodes that it reads, whether or not others read them too.
        parties: by victim the nodes whose features are read.
        metric, value: of the model trained under this protection, where that was asked for.
    """

    lnnc: bool
    least: int
    nodes: int
    added: int
    summed: int = 0
    exposed: int = 0
    support: int = 0
    direction: int = 0
    features: int = 0
    named: int = 0
    wrong: int = 0
    attacks: dict[str, dict[str, int]] = field(
        default_factory=lambda: {attack.name: dict.fromkeys(LEVELS, 0) for attack in ATTACKS}
    )
    parties: dict[str, int] = field(default_factory=dict)
    metric: str = ""
    value: float | None = None

    @property
    def protection(self) -> str:
        """What protects, in a word or two."""
        parts = ["lnnc"] * self.lnnc + [f"least {self.least}"] * (self.least > 1)
        return " + ".join(parts) or "none"

    def to_dict(self) -> dict[str, Any]:
        return {"protection": self.protection, **asdict(self)}

    def add(self, checked: Sequence[_Checked], victim: str) -> None:
        """Count what colluders claim of one more victim."""
        right = [(each.claim, each.node) for each in checked if each.node is not None and each.own]
        self.wrong += sum(each.node is None for each in checked)
        for rank, level in enumerate(LEVELS):
            told = [(claim, node) for claim, node in right if LEVELS.index(claim.level) >= rank]
            setattr(self, level, getattr(self, level) + len({node for _, node in told}))
            for name, levels in self.attacks.items():
                levels[level] += len({node for claim, node in told if claim.attack == name})
        read = {node for claim, node in right if claim.level == "features"}
        self.named += len({node for claim, node in right if claim.level == "features" and len(claim.nodes) == 1})
        self.parties[victim] = len(read)


class Reconstruction(Audit):
    """Colluding parties solve for a victim's features from FedCog's messages, each party in turn the victim.

    They have their own graphs, features and borders, the messages between them and the victim, and the rules.
    """

    name: ClassVar[str] = "reconstruction"
    attacked: ClassVar[str] = "fedcog"

    colluders: int = Field(0, ge=0)
    """Parties that collude against each victim, those that most of its edges lead to; 0 is all others."""
    least: int = Field(3, ge=1)
    """Nodes that a message is over at least, where that is the protection."""

    def protected(self, method: FedCog) -> list[FedCog]:
        """The method without protection, with LNNC, with `least`, and with both."""
        kinds = dict.fromkeys([(False, 1), (True, 1), (False, self.least), (True, self.least)])
        return [method.model_copy(update={"lnnc": lnnc, "least": least}) for lnnc, least in kinds]

    def of(
        self, parties: Sequence[Party], task: Task, module: nn.Module, method: FedCog | None = None, *, seed: int = 0
    ) -> list[Exposure]:
        """What colluders learn under each protection.

        Arguments:
            module: the model, which says what is propagated.
            method: FedCog with options of its own; its protections are replaced.
        """
        if len(parties) < 2:
            raise IsthmusError("audit 'reconstruction': there is one party: nobody receives anything; use two or more")
        if parties[0].level not in FedCog.levels:
            raise IsthmusError(f"audit 'reconstruction' is of parties of one graph, these hold {parties[0].level}s")
        laws = [law_of(party) for party in parties]
        return [self._exposure(each, parties, laws, task, module, seed) for each in self.protected(method or FedCog())]

    def shown(self, found: Sequence[Exposure], parties: int) -> Shown:
        learned = [(title, [f"{getattr(each, name):,}" for each in found]) for title, name in LINES.items()]
        read = [(f"read by: {attack}", [_cell(each.attacks[attack]) for each in found]) for attack in found[0].attacks]
        more = {"claims that are wrong": "wrong", "edges that lnnc adds": "added"}
        checked = [(title, [f"{getattr(each, name):,}" for each in found]) for title, name in more.items()]
        if found[0].value is not None:
            checked.append((f"test {found[0].metric}", [f"{each.value:.3f}" for each in found]))
        against = f"{self.colluders} others collude" if self.colluders > 1 else "one other is"
        if not 0 < self.colluders < parties - 1:
            against = "all others collude"
        notes = [f"{parties} parties; {against} against each in turn"]
        if any(levels["direction"] > levels["features"] for each in found for levels in each.attacks.values()):
            notes.append("in brackets: nodes of which an attack reads the direction")
        columns = [each.protection for each in found]
        return Shown(f"of {found[0].nodes:,} nodes", columns, [learned, read, checked], notes)

    def _exposure(
        self, method: FedCog, parties: Sequence[Party], laws: Sequence[Law], task: Task, module: nn.Module, seed: int
    ) -> Exposure:
        mail = propagated(method, parties, task, module, seed=seed)
        coupling = decouple(parties, join_isolated=method.lnnc, min_neighbours=method.least)
        truth = _Truth(parties, coupling)
        found = Exposure(lnnc=method.lnnc, least=method.least, nodes=sum(coupling.sizes), added=coupling.added)
        for at, victim in enumerate(parties):
            chosen = self._colluders(parties, at)
            colluders = [parties[other] for other in chosen]
            law = Law.common(laws[other] for other in chosen)
            known = known_of(victim.name, colluders, mail, diffusion_of(module), law)
            if known is not None:
                found.add(truth.checked(at, {party.name for party in colluders}, attacked(known)), victim.name)
                found.summed += int((np.diff(known.joined.tocsc().indptr) > 0).sum())
                found.exposed += exposed_nodes(parties, coupling, at, {party.name for party in colluders}).size
        return found

    def _colluders(self, parties: Sequence[Party], at: int) -> list[int]:
        others = [other for other in range(len(parties)) if other != at]
        border = parties[at].border
        if not self.colluders or border is None:
            return others
        edges = Counter(border.owners[owner] for owner in border.owner.tolist())
        return sorted(others, key=lambda other: -edges[parties[other].name])[: self.colluders]


LINES = {
    "are in a message": "summed", "meet Theorem 2's condition": "exposed", "support read": "support",
    "direction read": "direction", "features read": "features", "... and whose they are": "named",
}  # fmt: skip


def _cell(levels: dict[str, int]) -> str:
    """Nodes whose features an attack reads; in brackets, where they are more, nodes whose direction it reads."""
    more = levels["direction"] > levels["features"]
    return f"{levels['features']:,}" + (f" ({levels['direction']:,})" if more else "")


def propagated(method: FedCog, parties: Sequence[Party], task: Task, module: nn.Module, *, seed: int = 0) -> Mail:
    """The messages of a propagation over all hops, as it runs in this process."""
    recorder = Recorder([method.site(parties, task, module, seed=seed)])
    next(method.server(Federation(recorder, seed=seed), Model(module), State()))
    return mail_of(recorder.letters)


def attacked(known: Knowledge, attacks: Sequence[type[Attack]] = ATTACKS) -> list[Claim]:
    """What colluders who know this claim to have read."""
    found = Findings(known)
    for attack in attacks:
        attack().run(found)
    return found.claims


@dataclass(frozen=True)
class _Checked:
    """A claim and the node that it is right about, by its position among all nodes; none where it is wrong."""

    claim: Claim
    node: int | None
    own: bool = True


class _Truth:
    """All features and edges, which no attacker sees: claims are compared with them."""

    def __init__(self, parties: Sequence[Party], coupling: Coupling) -> None:
        self.parties, self.inner = parties, coupling.inner
        self.first = np.cumsum([0, *coupling.sizes])
        self.x = csr_array(matrices.concat_rows([csr_array(matrices.from_tensor(party.graph.x)) for party in parties]))
        self.x.eliminate_zeros()
        self.at = {party.name: at for at, party in enumerate(parties)}
        self.order = [
            np.empty(0, np.int64) if party.ids is None else np.argsort(party.ids.numpy()) for party in parties
        ]
        self._dense = np.zeros(self.x.shape[1])

    def checked(self, at: int, colluders: Collection[str], claims: Sequence[Claim]) -> list[_Checked]:
        """Every claim on the victim at this position with the node that it is right about."""
        found: list[_Checked] = []
        taken: dict[Level, set[int]] = {level: set() for level in LEVELS}
        strangers = self._strangers(at, colluders)
        for claim in claims:
            right = [node for node in self._meant(at, strangers, claim) if self._holds(claim, node)]
            # nodes with the same features are told one after the other
            node = next((each for each in right if each not in taken[claim.level]), right[0] if right else None)
            if node is not None:
                taken[claim.level].add(node)
            found.append(_Checked(claim, node, node is not None and self.first[at] <= node < self.first[at + 1]))
        return found

    def _meant(self, at: int, strangers: Mapping[int, Sequence[int]], claim: Claim) -> list[int]:
        """The nodes that a claim may be on."""
        if claim.near is None:
            return self._places(at, np.array(claim.nodes)).tolist()
        node = int(self._places(at, np.array([claim.near]))[0])
        columns, values = entries(self.inner, node)
        inner = columns[(columns != node) | (values > 1)]  # of A + I: a node with a loop is its own neighbour
        return [*inner.tolist(), *strangers.get(node, ())]

    def _strangers(self, at: int, colluders: Collection[str]) -> dict[int, list[int]]:
        """Of nodes the neighbours at others who do not collude: to colluders they are as unknown as inner ones."""
        found: dict[int, list[int]] = defaultdict(list)
        border = self.parties[at].border
        for position, owner in enumerate(() if border is None else border.owners):
            if border is not None and owner not in colluders:
                edges = border.owner == position
                nodes = self._places(self.at[owner], border.outer[edges].numpy()).tolist()
                for inner, node in zip((border.inner[edges] + self.first[at]).tolist(), nodes, strict=True):
                    found[inner].append(node)
        return found

    def _places(self, at: int, ids: Ints) -> Ints:
        """Positions among all nodes of a party's nodes with these ids."""
        order, held = self.order[at], self.parties[at].ids
        assert held is not None
        return self.first[at] + order[np.searchsorted(held.numpy(), ids, sorter=order)]

    def _holds(self, claim: Claim, node: int) -> bool:
        columns, values = entries(self.x, node)
        if claim.level == "support" or not columns.size or not claim.columns.size:
            return np.array_equal(np.sort(claim.columns), np.sort(columns))
        scale, size = (1.0, 1.0) if claim.level == "features" else (_norm(claim.values), _norm(values))
        self._dense[claim.columns] = claim.values / scale
        self._dense[columns] -= values / size
        both = np.union1d(columns, claim.columns)
        error = _norm(self._dense[both])
        self._dense[both] = 0
        return error < EXACT * _norm(values) / size


def _norm(values: Reals) -> float:
    return float(np.linalg.norm(values))
