"""Methods that give each party a weighted mix of all parties' models."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch.nn import functional as F

from isthmus.federation.actions import action
from isthmus.federation.answers import Answer
from isthmus.federation.models import Models
from isthmus.federation.site import OWN, Site
from isthmus.federation.verbs import Coefficients, Federation
from isthmus.federation.wire import Payload
from isthmus.methods.base import Learning, Method, Model, State
from isthmus.methods.training import LocalTraining
from isthmus.nn.weights import Weights

log = logging.getLogger(__name__)

Told = Mapping[str, Any]
"""By party what it tells the server about its data or its model."""


class Mixing(Method):
    """Common ground of methods that send party i the mix sum_j a_ij w_j of all models, for it alone to read.

    In each round parties train their own model and describe it (`describe`); the server reads the descriptions and
    makes the coefficients a_ij of them (`mix`). A mix is a total with coefficients: one sum for each party, or set of
    parties, instead of one for all. Masks hide the summands of one sum, so they cannot protect these: the server
    process adds up models that it can read, and whoever operates it could look at each. Parties that put enough mixes
    together can solve for single models, too. A run with masked or encrypted totals is refused.

    A party without training items receives mixes and is in none. A party that was not drawn keeps its last mix.
    """

    AtParty: ClassVar[type[Site]]
    nouns: ClassVar[Mapping[str, str]] = {
        "trained": "whether it has training items",
        "share": "the number 1, by which mixes are divided",
    }

    fraction: float = Field(1.0, gt=0, le=1)
    """Share of the parties drawn in each round."""
    local: LocalTraining = LocalTraining()
    """Training at the parties."""
    min_parties: int = Field(2, ge=2)
    """Fewest parties in a mix; a party with fewer keeps the model that it trained. A mix of two shows each nearly the
    other's model."""

    def models(self, state: State) -> Models:
        return Models(personal=True)

    @abstractmethod
    def mix(self, told: Told, among: Collection[str]) -> Coefficients:
        """By party that told something, how much of the models of these parties its mix has; 0 may be left out.

        Coefficients need not add up to one: a mix is divided by their sum.
        """

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        federation.permit_coefficients("give")
        for state.round in state.rounds(self.rounds):
            told = of_one_form(federation.ask("train", of=federation.sample(self.fraction)))
            among = [party for party, answer in told.items() if answer["trained"]]
            if among:
                mixes = self.mix(told, among)
                federation.total("give", of=among, to="parties", coefficients=self._large_enough(mixes))
            yield state

    def _large_enough(self, mixes: Coefficients) -> Coefficients:
        """The mixes of enough parties."""
        held = {party: {name: value for name, value in own.items() if value} for party, own in mixes.items()}
        return {party: own for party, own in held.items() if len(own) >= self.min_parties}


def of_one_form(told: Told) -> Told:
    """What parties told, without those whose fields or shapes differ from most parties'."""
    forms = {party: tuple((name, value.shape) for name, value in sorted(each.items())) for party, each in told.items()}
    ((usual, _),) = Counter(forms.values()).most_common(1)
    for party, form in forms.items():
        if form != usual:
            log.warning("party '%s' is in no mix of this round: it answered fields of another form than most", party)
    return {party: each for party, each in told.items() if forms[party] == usual}


def by_cosine(vectors: Told, among: Collection[str], sharpness: float) -> Coefficients:
    """Coefficients that are a softmax of the cosines of the parties' vectors, times `sharpness`."""
    unit = {party: F.normalize(vector.double(), dim=0) for party, vector in vectors.items()}
    mixes: dict[str, dict[str, float]] = {}
    for party, own in unit.items():
        alike = torch.stack([own @ unit[each] for each in among])
        mixes[party] = dict(zip(among, (sharpness * alike).softmax(0).tolist(), strict=True))
    return mixes


class MixingSite(Learning):
    """The party side: it keeps its model, which each mix replaces, except for weights that are not mixed."""

    def describe(self) -> dict[str, Any]:
        """What the parties tell the server about the models that they have now."""
        raise NotImplementedError

    def learn(self) -> None:
        """Train the parties' models."""
        self.fit()

    @action("ask", bounds={"trained": "items"})
    def train(self, request: Payload) -> Answer:
        self.load_model({})
        self.learn()
        self.keep_model()
        trained = self.cohort.counts("train") > 0
        return Answer({**self.describe(), "trained": trained.long()})

    @action("total", to="parties")
    def give(self, request: Payload) -> Answer:
        self.load_model({})
        return Answer({"weights": self.mixed(), "share": torch.ones(len(self.cohort), dtype=torch.float64)})

    def mixed(self) -> Weights:
        """The weights that are mixed; all others stay at the party."""
        return self.model.stacks()

    def deliver(self, name: str, mail: Mapping[str, Any]) -> None:
        """Take the mixes as the parties' models at once: the next delivery would replace them."""
        super().deliver(name, mail)
        if name == "give":
            mixes = {at: came for at, came in self.inbox.pop(name).items() if came}
            for at, came in mixes.items():
                with self.kept.of([at]):
                    own = self.kept.each(OWN)[0] if OWN in self.kept else {}
                    mix = {key: value / came["share"].to(value.dtype) for key, value in came["weights"].items()}
                    self.kept[OWN] = [{**own, **mix}]
