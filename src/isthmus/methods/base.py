"""What a method is: options, a server side and a party side."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer
from torch import Tensor, nn

from isthmus.data.cohort import Cohort
from isthmus.data.level import Level
from isthmus.data.party import Party
from isthmus.errors import IsthmusError
from isthmus.federation.answers import Answers, Total
from isthmus.federation.models import Models
from isthmus.federation.robust import Aggregation, Mean
from isthmus.federation.site import Site
from isthmus.federation.transport import Request
from isthmus.federation.verbs import Federation, Needed
from isthmus.methods.training import LocalTraining
from isthmus.nn.weights import Weights, body_weights, head_weights, initial_weights
from isthmus.options import Registered
from isthmus.privacy.account import Account
from isthmus.privacy.random_bits import NoiseKey
from isthmus.tasks.base import Task

Weighting = Literal["train", "size", "even"]
Role = Literal["federated", "pooled", "alone", "constant"]
EVALUATING = ("evaluate", "lend")
"""Actions of every party that are called to evaluate, not to train."""


@dataclass(frozen=True)
class Listing:
    """Where guides, defaults and the demo name a method. A subclass has its own: it does not inherit this."""

    setting: str = ""
    """What its parties have: a row of the decision table, and the page of the docs on it; empty for `methods`."""
    place: int = 0
    """Place among the methods that this row recommends, from 1; 0 for a method that it does not."""
    leaves: str = "nothing more"
    """What leaves a party beside sums of model weights."""
    costs: str = ""
    """What its time is like, where that is far above federated averaging's."""
    default: bool = False
    """Whether a study trains with it that names no method."""
    demo: int = 0
    """Place among the methods of the demo, from 1; 0 for none."""


class Model:
    """The server's view of the model before training.

    Attributes:
        outputs: width of the model's output: classes, or tasks.
        features: width of a node's features.
    """

    def __init__(self, module: nn.Module, outputs: int = 0, features: int = 0) -> None:
        self.module, self.outputs, self.features = module, outputs, features

    def weights(self) -> Weights:
        return {name: weight.clone() for name, weight in initial_weights(self.module).items()}

    def trained(self) -> tuple[str, ...]:
        """Names of the weights that are parameters, in the module's order; the others are running statistics."""
        return tuple(name for name, _ in self.module.named_parameters())

    def head(self) -> tuple[str, ...]:
        """Names of the weights of the head, which turns embeddings into outputs."""
        return head_weights(self.module)

    def body(self) -> tuple[str, ...]:
        """Names of all other weights."""
        return body_weights(self.module)


class MissingValueError(IsthmusError, AttributeError):
    """A value of the server side is read that has not been set."""


class State:
    """What of the server side must survive a restart: tensors, groups of tensors, plain numbers and texts.

    >>> state = State()
    >>> state.start(total=0)
    >>> for state.round in state.rounds(3):
    ...     state.total += state.round
    >>> state.total
    6
    """

    round: int
    done: list[str]

    def __init__(self) -> None:
        self.__dict__["values"] = {"round": 0, "done": []}

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["values"][name]
        except KeyError:
            raise MissingValueError(f"the state has no '{name}' yet: give it one in state.start(...)") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__["values"][name] = value

    def __contains__(self, name: str) -> bool:
        return name in self.__dict__["values"]

    def start(self, **values: Any) -> None:
        """First values; a resumed run keeps what was restored."""
        for name, value in values.items():
            self.__dict__["values"].setdefault(name, value)

    def rounds(self, count: int) -> Iterator[int]:
        """The rounds that are still to be done, from 1."""
        yield from range(self.round + 1, count + 1)

    def once(self, step: str) -> bool:
        """Whether a step of set-up is still to be done; it then counts as done from the next yield on."""
        if step in self.done:
            return False
        self.done = [*self.done, step]
        return True

    def save(self) -> dict[str, Any]:
        return dict(self.__dict__["values"])

    def restore(self, saved: Mapping[str, Any]) -> None:
        self.__dict__["values"] = dict(saved)


class Method(Registered):
    """A way of training together. A subclass with a `name` is registered by being defined.

    `server` and `AtParty` are read side by side. Options are fields; each has a docstring below it.
    """

    kind: ClassVar[str] = "method"
    built_in_module: ClassVar[str] = "isthmus.methods"
    entry_points: ClassVar[str] = "isthmus.methods"
    levels: ClassVar[tuple[Level, ...]] = ("node", "graph", "pair", "edge")
    """Levels of tasks that it is for."""
    role: ClassVar[Role] = "federated"
    """What it is in a comparison: a method proper, or a reference that only sets the scale. To a `pooled` reference a
    study hands one party, put together from all; `alone` is every party by itself; `constant` reads no features."""
    nouns: ClassVar[Mapping[str, str]] = {}
    """What the fields are that its parties send, in plain words, by `field` or, for one action only, `action/field`."""
    listing: ClassVar[Listing] = Listing()
    everyone: ClassVar[Needed] = "never"
    """When a party that does not answer stops the run, whatever the quorum: never, in set-up, or always."""
    disjoint: ClassVar[bool] = False
    """Whether it is for parties no two of which hold the same node; of typed graphs, the same edge."""
    both_ways: ClassVar[bool] = False
    """Whether plain edges must run both ways."""
    typed: ClassVar[bool] = False
    """Whether it takes typed graphs and features of edges: it trains on a party's edges as they are. Not inherited."""
    for_classes: ClassVar[bool] = False
    """Whether it is for items that have one class each."""
    for_crossing: ClassVar[bool] = False
    """Whether it gains from edges that cross between parties, and from nothing else."""
    for_shared: ClassVar[bool] = False
    """Whether it gains from nodes that several parties hold, and from nothing else."""
    encoder: ClassVar[str] = "gcn"
    """An encoder that it can train; one that needs another than a GCN says so, for checks and examples."""
    unsupervised: ClassVar[bool] = False
    """Whether it learns without labels, for tasks that embed."""
    membership_defences: ClassVar[tuple[str, ...]] = ()
    """Boolean options that hide who was trained on: the membership audit also attacks the method without each."""
    tuned: ClassVar[tuple[str, ...]] = ()
    """Options that `isthmus tune` varies beside the learning rates, such as the weight of a term of the loss."""
    soon: ClassVar[Mapping[str, Any]] = {}
    """Options with which a few rounds make every call that many may make: checks and examples use them."""
    updates: ClassVar[tuple[str, ...]] = ()
    """Actions whose totals are sums of what parties trained from what they were sent; noise of parties covers these."""
    summing: ClassVar[tuple[str, ...]] = ()
    """Actions by which parties make sums over neighbours together, for models that read hops. Noise can cover these,
    and beside them the parties read their data as with `only_trains`."""
    only_trains: ClassVar[bool] = False
    """Whether its parties read their data for nothing but the task's loss in local training, and to evaluate: noise in
    that training then covers all that leaves them. Not inherited."""
    AtParty: ClassVar[type[Site]] = Site

    label: str = Field("", pattern=r"^(\w[\w .,=+-]*)?$", max_length=120, validate_default=True)
    """What results call it; by default its name. Settings of one method in a study need different labels."""
    rounds: int = Field(100, ge=1)
    """Communication rounds, at most."""
    patience: int = Field(0, ge=0)
    """Stop after this many rounds without a better validation metric; 0 never stops early."""
    every: int = Field(1, ge=1)
    """Rounds from one evaluation to the next; the last round is always evaluated."""
    select: Literal["validation", "last"] = "validation"
    """Which round is the result: the best on validation data, or the last."""
    select_over: Literal["items", "parties", "each"] = "items"
    """What the validation score that chooses the round, and that patience watches, is of: the validation items of all
    parties together, or each party's, of which the plain mean is taken. With "each", in a study, a party's round is the
    best on its own validation items, and figures are of these rounds."""
    quorum: float = Field(0.5, ge=0, le=1)
    """The smallest share of the asked parties that must answer; below it the run stops and says who did not."""
    evaluate_with: Literal["sent", "trained"] = "sent"
    """Which model of a party is evaluated: the one that the server sent, or the one that local training made of it."""
    evaluate_by: Literal["total", "ask"] = "total"
    """How a federation's server gets the counts that metrics follow from: only their sum, or each party's counts, from
    which it also knows the mean over parties and the worst one. A study in one process always knows these."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "listing" not in cls.__dict__:
            cls.listing = Listing()
        for declared in ("typed", "only_trains"):
            if declared not in cls.__dict__:
                setattr(cls, declared, False)

    @field_validator("label")
    @classmethod
    def _label_or_name(cls, given: str) -> str:
        return given or cls.name

    @model_serializer(mode="wrap")
    def _without_its_name(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A label that is only the name is no option that was set."""
        values: dict[str, Any] = dump(self)
        return {key: value for key, value in values.items() if key != "label" or value != self.name}

    @classmethod
    def default_name(cls) -> str:
        """The method of a study that names none."""
        return next(name for name, kind in cls.known().items() if kind.listing.default)

    def field_nouns(self) -> Mapping[str, str]:
        """`nouns` with these options: a result folder records them for the report."""
        return self.nouns

    @abstractmethod
    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        """The server side: a generator that yields its state after every round (and every step of set-up)."""

    def site(self, parties: Sequence[Party], task: Task, module: nn.Module, **where: Any) -> Site:
        """The party side for these parties; `where` are the site's seed, device, ..."""
        private, key = where.get("private"), where.get("noise_key")
        if private is not None:
            noise = NoiseKey(where.get("seed", 0) if key is None else key)
            parties, module = private.prepared(parties, module, noise)
        return self.site_type()(self, parties, task, module, **where)

    def predictor(self, parties: Sequence[Party], task: Task, module: nn.Module, **where: Any) -> Site:
        """The site that predicts with a trained model, from these parties' graphs alone; no other party is asked.

        They are one party, or several if `predicts_together`.
        """
        return Site(self, parties, task, module, **where)

    def training(self) -> Method:
        """The method whose local training its parties do."""
        return self

    @property
    def hides_structural(self) -> bool:
        """Whether its parties train without features that follow from edges."""
        return False

    @property
    def joins_both_ways(self) -> bool:
        """Whether, with these options, it sums over plain edges that must run both ways."""
        return self.both_ways

    @property
    def reads_across(self) -> bool:
        """Whether it trains on edges that cross between parties."""
        return self.for_crossing

    @property
    def predicts_together(self) -> bool:
        """Whether its predictor reads the edges between the parties that it is given."""
        return False

    def extended(self, module: nn.Module) -> nn.Module:
        """The model that it trains, where it adds something to the one that a study names."""
        return module

    def check(self, module: nn.Module) -> None:
        """An error where it cannot train this model."""

    def left_out(self, parties: Sequence[Party]) -> Sequence[str]:
        """What of these parties' data it does not use, such as "leaves out 2 features"."""
        return ()

    def calls(self, module: nn.Module) -> dict[str, int]:
        """How often a whole run with this model calls each action of `AtParty`, at most: a party answers no more.

        Each once a round, and what evaluates as often as `every` says; a method that calls otherwise says so here.
        """
        rated = math.ceil(self.rounds / self.every)
        actions = self.site_type().actions()
        return {name: rated if name in EVALUATING else self.rounds for name in actions}

    def epochs_per_call(self) -> int:
        """Epochs of the local training in one call of an action of `updates`, from which something leaves a party."""
        return 0

    def follows_rounds(self) -> bool:
        """Whether what its parties do depends on the number of the round: the server then tells them."""
        return any(isinstance(options, LocalTraining) and options.scheduled for _, options in self)

    @classmethod
    def rate_for(cls, lr: float) -> float:
        """The local learning rate where a study sets none; `lr` is what the encoder names for federated averaging."""
        return lr

    def with_rate(self, lr: float) -> Self:
        """This method with a learning rate for each local training that has none."""
        rated = {name: each.with_rate(lr) for name, each in self if isinstance(each, LocalTraining)}
        return self.model_copy(update=rated)

    def site_type(self) -> type[Site]:
        """The class of its party side."""
        return self.AtParty

    @abstractmethod
    def models(self, state: State) -> Models:
        """The models that exist now: shared by all, by groups, and what each party keeps for itself."""

    def evaluate(self, federation: Federation, state: State) -> Total | Answers:
        """Counts from which the metrics of a round follow: their sum over all parties, or every party's."""
        return self.collect_counts(federation, self.models(state).request(federation.parties))

    def collect_counts(self, federation: Federation, request: Request = None) -> Total | Answers:
        """Have the parties evaluate, by the verb that `evaluate_by` names."""
        return (federation.total if self.evaluate_by == "total" else federation.ask)("evaluate", request)

    def product(self, state: State) -> dict[str, Tensor]:
        """A graph that it makes beside the weights: `x`, `y`, `edge_index` and `edge_weight`; nothing without one."""
        return {}

    def account(self, state: State) -> Account | None:
        """What privacy the run has spent so far; none where nothing is protected by noise."""
        return None

    def most_spent(self) -> float | None:
        """The most epsilon that a whole run spends on what noise protects; none without noise."""
        return None

    def averaging_weights(self, cohort: Cohort) -> Tensor:
        """How much each party counts in a mean, `[parties]`."""
        return torch.ones(len(cohort))

    def aggregation(self) -> Aggregation:
        """How means of what parties trained are made."""
        return Mean()


class Learning(Site):
    """The party side of a method that trains locally; one that learns something else than the task extends `fit`."""

    method: Any

    def fit(self, **how: Any) -> Tensor:
        """Train locally on the task's loss; for `how` (`pull`, `only`, ...) see `LocalTraining.fit`."""
        steps: Tensor = self.method.local.fit(self, self.task.loss, **how)
        return steps


class Averaging(Method):
    """Common ground of the methods that average weights: options and weighting."""

    AtParty: ClassVar[type[Site]] = Learning
    updates: ClassVar[tuple[str, ...]] = ("train",)

    fraction: float = Field(1.0, gt=0, le=1)
    """Share of the parties drawn in each round."""
    weighting: Weighting = "train"
    """What a party's weights count by: its training items, all its items, or evenly."""
    aggregate: dict[str, Any] = Field(default={"name": "mean"})
    """How trained weights are combined: mean, clipped-mean, median, trimmed-mean or krum; or a table with a name and
    options. See the page on lying parties."""
    local: LocalTraining = LocalTraining()
    """Training at the parties."""

    @field_validator("aggregate", mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        options = {"name": given} if isinstance(given, str) else given
        if not isinstance(options, Mapping):
            raise ValueError("give the name of an aggregation, or a table with its name and options")
        try:
            found = Aggregation.of(options)
        except IsthmusError as error:
            raise ValueError(str(error)) from error
        return found.to_dict()

    def aggregation(self) -> Aggregation:
        return Aggregation.of(self.aggregate)

    def epochs_per_call(self) -> int:
        return self.local.epochs

    def models(self, state: State) -> Models:
        return Models(shared=state.weights)

    def averaging_weights(self, cohort: Cohort) -> Tensor:
        if self.weighting == "even":
            return torch.ones(len(cohort))
        return cohort.counts("train") if self.weighting == "train" else torch.tensor(cohort.items)
