"""What a party allows in a federation: the table `[limits]` of `party.toml`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol

from pydantic import Field, model_validator

from isthmus.errors import IsthmusError
from isthmus.options import Options

Verb = Literal["ask", "total", "exchange"]
STANDING = ("methods", "rounds", "epochs", "runs", "totals")
"""Limits that a standing approval must name."""

SUGGESTED = """
# In a federation this party answers only studies that it approved (isthmus federation approve).
# Remove the comment signs to answer studies within these bounds without an approval of their own:
# [limits]
# standing = true
# methods = []  # their names: isthmus methods
# rounds = 100
# epochs = 10
# runs = 5  # of a study: methods times seeds
# totals = ["masks"]
"""
"""The end of a new `party.toml`."""


class PlannedMethod(Protocol):
    """What limits ask of a method."""

    name: ClassVar[str]

    @property
    def rounds(self) -> int: ...

    @property
    def every(self) -> int: ...

    @property
    def evaluate_by(self) -> Literal["total", "ask"]: ...

    def model_dump(self) -> dict[str, Any]: ...


class Limits(Options):
    """The party's own machine checks these limits before it answers, and refuses what they do not allow.

    A name that nobody knows allows nothing; `isthmus.deploy.limits` reports such names.
    """

    methods: list[str] | None = None
    """Methods that may run; default: all."""
    rounds: int | None = Field(None, ge=1)
    """The largest of a method's numbers of rounds."""
    epochs: int | None = Field(None, ge=1)
    """The largest of a method's numbers of epochs."""
    evaluations: int | None = Field(None, ge=1)
    """The most evaluations that a run may have."""
    runs: int | None = Field(None, ge=1)
    """The most runs that a study may have: methods times seeds."""
    calls: int | None = Field(None, ge=1)
    """How often a run may call one action. With `epochs` this bounds the work of a run, under whatever name a method
    has its rounds."""
    model_numbers: int = Field(100_000_000, ge=1)
    """The most numbers that the weights of a model may be."""
    repeats: int = Field(1, ge=0)
    """How often calls that a study plans may be repeated with other content, as after a crash. Repeating exactly what
    was answered before discloses nothing new and does not count."""
    actions: list[str] | None = None
    """Actions that the party answers, including those of the set-up; default: all. Its verb goes with an action."""
    verbs: list[Verb] = Field(["ask", "total", "exchange"])
    """What may leave: answers that the server reads (ask), parts of sums (total), messages to parties (exchange)."""
    evaluate_by: list[Literal["total", "ask"]] = Field(["total"])
    """How the counts of evaluations may leave: in sums, or (ask) so that the server reads the party's own."""
    min_contributors: int = Field(2, ge=1)
    """The party answers a total only if at least this many parties contribute to it."""
    totals: list[str] | None = None
    """Accepted protections of totals, such as masks; default: any or none."""
    matching: list[str] | None = None
    """Accepted ways to match ids, `hashes` or `oblivious`; default: both."""
    matched: int | None = Field(None, ge=1)
    """The longest list of another party that this one helps to match: its number of points is about that of the ids
    in it, and of the guesses that the other party has at this one's."""
    epsilon: float | None = Field(None, gt=0)
    """The largest epsilon that all runs of a study may spend; with this limit, methods without noise are refused."""
    standing: bool = False
    """Whether studies within these limits run without an approval of their own; the limits must then name methods,
    rounds, epochs, runs and totals."""
    studies: int = Field(10, ge=1)
    """How many different studies may run by this standing approval."""

    @model_validator(mode="after")
    def _names_bounds(self) -> Limits:
        if self.standing and (missing := [name for name in STANDING if getattr(self, name) is None]):
            raise ValueError(f"a standing approval needs {', '.join(f'limits.{name}' for name in missing)}, too")
        return self

    def permit_method(self, method: PlannedMethod, noise: str, runs: int, spent: float | None) -> None:
        """Refuse a method that is not allowed, or with options beyond the limits.

        Arguments:
            noise: where the study's noise is drawn from: `own`, a secret of the party, or `study`, the study's seed.
            runs: runs of this method in the study: one for each seed.
            spent: the most epsilon that a run spends on what noise protects; None without noise.
        """
        name = method.name
        if self.methods is not None and name not in self.methods:
            raise _refusal(f"method '{name}' is not among limits.methods ({_joined(self.methods)})")
        options = method.model_dump()
        planned = {kind: max(_numbers_of(kind, options), default=0) for kind in ("rounds", "epochs")}
        planned["evaluations"] = -(-method.rounds // method.every)
        for kind, number in planned.items():
            most = getattr(self, kind)
            if most is not None and number > most:
                raise _refusal(f"method '{name}' has {number:,} {kind}, limits.{kind} is {most:,}")
        if method.evaluate_by not in self.evaluate_by:
            raise _refusal(
                f"method '{name}' evaluates by '{method.evaluate_by}', limits.evaluate_by accepts "
                f"{_joined(self.evaluate_by)}"
            )
        if self.epsilon is None:
            return
        if spent is None:
            raise _refusal(f"method '{name}' adds no noise, but limits.epsilon demands it")
        if noise != "own":
            raise _refusal("limits.epsilon demands noise of the party's own: set protect.noise = 'own'")
        if runs * spent > self.epsilon:
            each = "" if runs == 1 else f" in {runs} runs"
            raise _refusal(f"method '{name}' spends epsilon {runs * spent:g}{each}, limits.epsilon is {self.epsilon:g}")

    def permit_runs(self, runs: int) -> None:
        """Refuse a study of too many runs."""
        if self.runs is not None and runs > self.runs:
            raise _refusal(f"the study has {runs} runs, limits.runs is {self.runs}")

    def permit_plan(self, method: str, planned: Mapping[str, int]) -> None:
        """Refuse a run that calls an action too often."""
        for action, times in planned.items():
            if self.calls is not None and times > self.calls:
                raise _refusal(f"method '{method}' calls '{action}' {times:,} times, limits.calls is {self.calls:,}")

    def permit_model(self, method: str, numbers: int) -> None:
        """Refuse a model of too many numbers, before memory is taken for them."""
        if numbers > self.model_numbers:
            raise _refusal(
                f"the model of method '{method}' has {numbers:,} numbers, limits.model_numbers is "
                f"{self.model_numbers:,}"
            )

    def permit_protection(self, name: str) -> None:
        """Refuse a study whose totals do not have one of the accepted protections."""
        if self.totals is not None and name not in self.totals:
            raise _refusal(f"protect.total is '{name}', limits.totals accepts {_joined(self.totals)}")

    def permit_matching(self, name: str) -> None:
        """Refuse a study that does not match ids in one of the accepted ways."""
        if self.matching is not None and name not in self.matching:
            raise _refusal(f"protect.matching is '{name}', limits.matching accepts {_joined(self.matching)}")

    def permit_call(self, verb: str, action: str, contributors: int) -> None:
        """Refuse an action that is not allowed, or a total over too few parties."""
        if self.actions is not None and action not in self.actions:
            raise _refusal(f"action '{action}' is not among limits.actions ({_joined(self.actions)})")
        if verb not in self.verbs:
            raise _refusal(f"'{verb}' is not among limits.verbs ({_joined(self.verbs)}), action '{action}'")
        if verb == "total" and contributors < self.min_contributors:
            raise _refusal(
                f"a total of {contributors}, limits.min_contributors is {self.min_contributors}, action '{action}'"
            )


def _numbers_of(kind: str, options: Mapping[str, Any]) -> Iterator[int]:
    """Yield all numbers of rounds, or of epochs, among options, however deep.

    >>> sorted(_numbers_of("epochs", {"head_epochs": 2, "rounds": 9, "local": {"epochs": 5}}))
    [2, 5]
    """
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _numbers_of(kind, value)
        elif isinstance(value, int) and (name == kind or name.endswith(f"_{kind}")):
            yield value


def _refusal(reason: str) -> IsthmusError:
    return IsthmusError(f"refused: {reason}")


def _joined(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
