"""The reconstruction audit: which features of others colluding parties read from FedCog's propagation."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any, ClassVar

import numpy as np
from pydantic import Field
from scipy.sparse import csr_array
from torch import nn

from isthmus.audit.attacks import (
    Attack,
    AttackState,
    Level,
    LinearSystem,
    NoInnerNeighbour,
    OneNeighbour,
    RowClaim,
    SecondHop,
    entries,
)
from isthmus.audit.base import Audit, AuditTable, Recorder
from isthmus.audit.knowledge import Knowledge, Law, Mail, Reals, collect_mail, knowledge_of, law_of
from isthmus.audit.sparse_attacks import InnerNeighbours, Supports, Values
from isthmus.data import matrices
from isthmus.data.coupling import Coupling, decouple, exposed_nodes
from isthmus.data.matrices import Ints
from isthmus.data.party import Party
from isthmus.errors import IsthmusError
from isthmus.federation.verbs import Federation
from isthmus.methods.base import Model, State
from isthmus.methods.fedcog import FedCog, diffusion_of
from isthmus.study.config import Loaded, Study
from isthmus.study.loop import Run
from isthmus.study.setup import module_for
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
"""In the order in which they run; later ones use what earlier ones found."""
LEVELS: tuple[Level, ...] = ("support", "direction", "features")
"""What can be read of a row, from least to most."""
EXACT = 1e-3
"""A row counts as read if its relative error is smaller."""


@dataclass
class Exposure:
    """What colluders learn under one protection: numbers of nodes, summed over all victims.

    Attributes:
        nodes: all nodes of the victims.
        added: edges that LNNC added.
        summed: nodes in a message that colluders receive.
        exposed: those of them that meet the condition of Theorem 2.
        support, direction, features: nodes whose non-zero positions, features up to a factor, or features are read.
        named: nodes whose features are read and whose id is known.
        wrong: claims that are not true.
        attacks: nodes read by each attack, by level, whether or not other attacks read them too.
        parties: nodes whose features are read, by victim.
        metric, value: of the model trained under this protection, if the audit trains.
    """

    lnnc: bool
    min_neighbours: int
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
        """The protection in short: `none`, `lnnc`, `min 3` or `lnnc + min 3`."""
        parts = ["lnnc"] * self.lnnc + [f"min {self.min_neighbours}"] * (self.min_neighbours > 1)
        return " + ".join(parts) or "none"

    def to_dict(self) -> dict[str, Any]:
        return {"protection": self.protection, **asdict(self)}

    def add(self, checked: Sequence[_Checked], victim: str) -> None:
        """Count the checked claims on one more victim."""
        right = [(each.claim, each.node) for each in checked if each.node is not None and each.own]
        self.wrong += sum(each.node is None for each in checked)
        for rank, level in enumerate(LEVELS):
            read = [(claim, node) for claim, node in right if LEVELS.index(claim.level) >= rank]
            setattr(self, level, getattr(self, level) + len({node for _, node in read}))
            for name, levels in self.attacks.items():
                levels[level] += len({node for claim, node in read if claim.attack == name})
        features = [(claim, node) for claim, node in right if claim.level == "features"]
        self.named += len({node for claim, node in features if len(claim.nodes) == 1})
        self.parties[victim] = len({node for _, node in features})


class Reconstruction(Audit):
    """Colluding parties solve for a victim's features from FedCog's messages, each party in turn the victim.

    They know their own graphs, features and borders, the messages between them and the victim, and the rules.
    """

    name: ClassVar[str] = "reconstruction"
    attacked: ClassVar[str] = FedCog.name

    colluders: int = Field(0, ge=0)
    """Parties that collude against each victim, those with most edges to it first; 0 is all others."""
    min_neighbours: int = Field(3, ge=1)
    """Fewest nodes that a message may cover, where that is the protection."""
    accuracy: bool = False
    """Also train under each protection, with every seed of the study."""

    def protected(self, method: FedCog) -> list[FedCog]:
        """Return the method without protection, with LNNC, with a minimum of nodes per message, and with both."""
        kinds = dict.fromkeys([(False, 1), (True, 1), (False, self.min_neighbours), (True, self.min_neighbours)])
        return [method.model_copy(update={"lnnc": lnnc, "min_neighbours": count}) for lnnc, count in kinds]

    def run(
        self, parties: Sequence[Party], task: Task, module: nn.Module, method: FedCog | None = None, *, seed: int = 0
    ) -> list[Exposure]:
        """Attack the method under each protection; the model determines what is propagated."""
        if len(parties) < 2:
            raise IsthmusError("audit 'reconstruction' needs two or more parties: nobody sends to a single one")
        if parties[0].level not in FedCog.levels:
            raise IsthmusError(f"audit 'reconstruction' is for parties of one graph, these hold {parties[0].level}s")
        laws = [law_of(party) for party in parties]
        return [self._exposure(each, parties, laws, task, module, seed) for each in self.protected(method or FedCog())]

    def run_study(self, study: Study, loaded: Loaded, method: FedCog) -> list[Exposure]:
        found: list[Exposure] = super().run_study(study, loaded, method)
        if self.accuracy:
            for exposure, each in zip(found, self.protected(method), strict=True):
                exposure.metric, exposure.value = _test_metric(study, each)
        return found

    def table(self, found: Sequence[Exposure], parties: int) -> AuditTable:
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
        return AuditTable(f"of {found[0].nodes:,} nodes", columns, [learned, read, checked], notes)

    def _exposure(
        self, method: FedCog, parties: Sequence[Party], laws: Sequence[Law], task: Task, module: nn.Module, seed: int
    ) -> Exposure:
        mail = propagated_mail(method, parties, task, module, seed=seed)
        coupling = decouple(parties, join_isolated=method.lnnc, min_neighbours=method.min_neighbours)
        truth = _Truth(parties, coupling)
        exposure = Exposure(method.lnnc, method.min_neighbours, nodes=sum(coupling.sizes), added=coupling.added)
        for victim, party in enumerate(parties):
            others = self._colluders(parties, victim)
            colluders = [parties[other] for other in others]
            law = Law.common(laws[other] for other in others)
            known = knowledge_of(party.name, colluders, mail, diffusion_of(module), law)
            if known is not None:
                names = {each.name for each in colluders}
                exposure.add(truth.checked(victim, names, run_attacks(known)), party.name)
                exposure.summed += int((np.diff(known.joined.tocsc().indptr) > 0).sum())
                exposure.exposed += exposed_nodes(parties, coupling, victim, names).size
        return exposure

    def _colluders(self, parties: Sequence[Party], victim: int) -> list[int]:
        others = [other for other in range(len(parties)) if other != victim]
        border = parties[victim].border
        if not self.colluders or border is None:
            return others
        edges = Counter(border.owners[owner] for owner in border.owner.tolist())
        return sorted(others, key=lambda other: -edges[parties[other].name])[: self.colluders]


LINES = {
    "are in a message": "summed", "meet Theorem 2's condition": "exposed", "support read": "support",
    "direction read": "direction", "features read": "features", "... and whose they are": "named",
}  # fmt: skip


def _cell(levels: dict[str, int]) -> str:
    """Nodes whose features an attack reads; in brackets, if they are more, nodes whose direction it reads."""
    more = levels["direction"] > levels["features"]
    return f"{levels['features']:,}" + (f" ({levels['direction']:,})" if more else "")


def _test_metric(study: Study, method: FedCog) -> tuple[str, float]:
    """Train a method with each seed of a study; return the name and the mean of the task's metric on test data."""
    values = []
    for seed in study.seeds:
        loaded = study.load(seed)
        module = module_for(study.encoder(method), loaded.parties, loaded.task, seed)
        run = Run(method, loaded.parties, loaded.task, module, seed=seed, device=study.torch_device()).go()
        if (name := f"test_{loaded.task.judged_by}") not in run.metrics:
            raise IsthmusError(f"seed {seed}: no party has test items to measure accuracy on: set audit.accuracy=false")
        values.append(run.metrics[name])
    return loaded.task.judged_by, fmean(values)


def propagated_mail(method: FedCog, parties: Sequence[Party], task: Task, module: nn.Module, *, seed: int = 0) -> Mail:
    """Run a propagation in this process and return its messages of all hops."""
    recorder = Recorder([method.site(parties, task, module, seed=seed)])
    next(method.server(Federation(recorder, seed=seed), Model(module), State()))
    return collect_mail(recorder.letters)


def run_attacks(known: Knowledge, attacks: Sequence[type[Attack]] = ATTACKS) -> list[RowClaim]:
    """Return the claims of colluders with this knowledge."""
    found = AttackState(known)
    for attack in attacks:
        attack().run(found)
    return found.claims


@dataclass(frozen=True)
class _Checked:
    """A claim and the node it is right about, by position among all nodes; None if the claim is wrong.

    `own` says whether the node is the victim's.
    """

    claim: RowClaim
    node: int | None
    own: bool = True


class _Truth:
    """All features and edges. Attackers do not see them; claims are compared with them."""

    def __init__(self, parties: Sequence[Party], coupling: Coupling) -> None:
        self.parties, self.inner = parties, coupling.inner
        self.first = np.cumsum([0, *coupling.sizes])
        self.x = csr_array(matrices.concat_rows([csr_array(matrices.from_tensor(party.graph.x)) for party in parties]))
        self.x.eliminate_zeros()
        self.position = {party.name: position for position, party in enumerate(parties)}
        self.order = [
            np.empty(0, np.int64) if party.ids is None else np.argsort(party.ids.numpy()) for party in parties
        ]
        self._dense = np.zeros(self.x.shape[1])

    def checked(self, victim: int, colluders: Collection[str], claims: Sequence[RowClaim]) -> list[_Checked]:
        """Find for every claim on a victim, by its position, the node it is right about."""
        checked: list[_Checked] = []
        taken: dict[Level, set[int]] = {level: set() for level in LEVELS}
        strangers = self._strangers(victim, colluders)
        for claim in claims:
            right = [node for node in self._candidates(victim, strangers, claim) if self._holds(claim, node)]
            # claims on nodes with equal features count for one node after another
            node = next((each for each in right if each not in taken[claim.level]), right[0] if right else None)
            if node is not None:
                taken[claim.level].add(node)
            own = node is not None and self.first[victim] <= node < self.first[victim + 1]
            checked.append(_Checked(claim, node, own))
        return checked

    def _candidates(self, victim: int, strangers: Mapping[int, Sequence[int]], claim: RowClaim) -> list[int]:
        """List the nodes that a claim may be about."""
        if claim.near is None:
            return self._rows(victim, np.array(claim.nodes)).tolist()
        node = int(self._rows(victim, np.array([claim.near]))[0])
        columns, values = entries(self.inner, node)
        inner = columns[(columns != node) | (values > 1)]  # rows of A + I; a node with a loop is its own neighbour
        return [*inner.tolist(), *strangers.get(node, ())]

    def _strangers(self, victim: int, colluders: Collection[str]) -> dict[int, list[int]]:
        """Map nodes to neighbours at parties that do not collude; to colluders these look like inner neighbours."""
        found: dict[int, list[int]] = defaultdict(list)
        border = self.parties[victim].border
        for position, owner in enumerate(() if border is None else border.owners):
            if border is not None and owner not in colluders:
                edges = border.owner == position
                nodes = self._rows(self.position[owner], border.outer[edges].numpy()).tolist()
                for inner, node in zip((border.inner[edges] + self.first[victim]).tolist(), nodes, strict=True):
                    found[inner].append(node)
        return found

    def _rows(self, position: int, ids: Ints) -> Ints:
        """Return the positions, among all nodes, of a party's nodes with these ids."""
        order, own = self.order[position], self.parties[position].ids
        assert own is not None
        return self.first[position] + order[np.searchsorted(own.numpy(), ids, sorter=order)]

    def _holds(self, claim: RowClaim, node: int) -> bool:
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
