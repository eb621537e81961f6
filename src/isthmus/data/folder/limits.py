"""What a party allows, whatever a federation asks of it: the table `[limits]` of `party.toml`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from pydantic import Field, ValidationInfo, field_validator

from isthmus.errors import IsthmusError, did_you_mean
from isthmus.options import Options

if TYPE_CHECKING:
    from isthmus.methods.base import Method
    from isthmus.protect.options import Protect

Verb = Literal["ask", "total", "exchange"]
SET_UP = ("introduce", "values", "first", "second", "encode")
"""Actions of the set-up."""


class Limits(Options):
    """Checked at the party's own machine before it answers; a request beyond them gets a refusal that says so."""

    methods: list[str] | None = None
    """Methods that may run; without, all."""
    actions: list[str] | None = None
    """Actions that are answered, of the set-up too; without, all. `total:train` is that action for a total alone."""
    verbs: list[Verb] = Field(["ask", "total", "exchange"])
    """What may leave: what the server reads (ask), parts of sums (total), messages to other parties (exchange)."""
    least: int = Field(1, ge=1)
    """Parties that must be asked for a total, at least."""
    totals: list[str] | None = None
    """Protections of which a study's totals must have one, such as masks; without, any or none."""
    epsilon: float | None = Field(None, gt=0)
    """Most that a method may spend on what is protected by noise; then one without noise is refused too."""

    @field_validator("methods", "totals")
    @classmethod
    def _are_known(cls, names: list[str] | None, told: ValidationInfo) -> list[str] | None:
        from isthmus.methods.base import Method  # which knows of folders
        from isthmus.protect.options import Protection

        known = Method.known() if told.field_name == "methods" else Protection.known()
        for name in names or ():
            if name not in known:
                raise ValueError(f"there is no '{name}': {did_you_mean(name, known)}")
        return names

    @field_validator("actions")
    @classmethod
    def _are_actions(cls, names: list[str] | None) -> list[str] | None:
        from isthmus.methods.base import Method

        known = set(SET_UP).union(*(method.AtParty.actions() for method in Method.known().values()))
        for name in names or ():
            verb, colon, action = name.rpartition(":")
            if action not in known or (colon and verb not in get_args(Verb)):
                raise ValueError(f"there is no action '{name}': {did_you_mean(action, known)}")
        return names

    def permit_method(self, method: Method, protect: Protect) -> None:
        """Refuse a method that is not allowed, or spends too much."""
        if self.methods is not None and method.name not in self.methods:
            raise IsthmusError(f"refused: method '{method.name}' is not among limits.methods ({_told(self.methods)})")
        if self.epsilon is None:
            return
        spends = method.most_spent()
        if spends is None:
            raise IsthmusError(f"refused: method '{method.name}' adds no noise, limits.epsilon asks for it")
        if protect.noise != "own":
            raise IsthmusError("refused: limits.epsilon asks for noise of the party's own: protect.noise = 'own'")
        if spends > self.epsilon:
            raise IsthmusError(
                f"refused: method '{method.name}' spends epsilon {spends:g}, limits.epsilon is {self.epsilon:g}"
            )

    def permit_protection(self, name: str) -> None:
        """Refuse a study whose totals are not protected as they must be."""
        if self.totals is not None and name not in self.totals:
            raise IsthmusError(f"refused: protect.total is '{name}', limits.totals asks for {_told(self.totals)}")

    def permit_call(self, verb: str, action: str, under: int) -> None:
        """Refuse an action that is not allowed, or a total of too few."""
        if self.actions is not None and not {action, f"{verb}:{action}"} & set(self.actions):
            raise IsthmusError(f"refused: action '{action}' is not among limits.actions ({_told(self.actions)})")
        if verb not in self.verbs:
            raise IsthmusError(f"refused: '{verb}' is not among limits.verbs ({_told(self.verbs)}), action '{action}'")
        if verb == "total" and under < self.least:
            raise IsthmusError(f"refused: a total of {under}, limits.least is {self.least}, action '{action}'")


def _told(names: list[str] | list[Verb]) -> str:
    return ", ".join(names) or "none"
