"""How a server may call what a party answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args

from isthmus.errors import IsthmusError
from isthmus.federation.bounds import Held
from isthmus.federation.ledger import Verb
from isthmus.federation.letters import DueForm
from isthmus.federation.transport import To

Action = TypeVar("Action", bound=Callable[..., Any])


@dataclass(frozen=True)
class Binding:
    """How an action may be called. A party refuses any other call, whatever its limits allow.

    Attributes:
        verbs: that may call it.
        to: who reads a total of it.
        least: parties of a total, at least.
        contributors: parties that must contribute to a total, or to a row of it: a number, or an option of the method.
        silent: its answers are empty; a party of a private study sends no others.
        protected: its answers are for parties only: a total is masked or encrypted, messages are sealed.
        bounds: fields of its answers that are not negative; by field the number introduced in the set-up that none of
            its counts may exceed, or None for real numbers. The server of a federation checks them.
        form: of its messages; the addressee drops others, and names their sender.
    """

    verbs: tuple[Verb, ...]
    to: To = "server"
    least: int = 1
    protected: bool = False
    contributors: int | str = 1
    bounds: Mapping[str, Held | None] = field(default_factory=dict)
    form: DueForm | None = None
    silent: bool = False

    def permit(self, action: str, verb: str, to: str) -> None:
        """Refuse a call by another verb, or for other eyes."""
        if verb not in self.verbs:
            raise IsthmusError(f"refused: action '{action}' is answered by {' or '.join(self.verbs)}, not by {verb}")
        if verb == "total" and to != self.to:
            raise IsthmusError(f"refused: a total of action '{action}' is for the {self.to}, not for the {to}")

    def permit_disclosure(self, action: str, verb: str, under: int, *, protected: bool) -> None:
        """Refuse a total over too few parties, and what would leave without the protection that it needs."""
        if verb == "total" and under < self.least:
            raise IsthmusError(f"refused: a total of action '{action}' over {under}, it needs {self.least} parties")
        if self.protected and not protected:
            remedy = "protect.total = 'masks'" if verb == "total" else "protect.exchange = 'sealed'"
            raise IsthmusError(f"refused: what action '{action}' answers is not for the server: set {remedy}")


def action(
    *verbs: Verb,
    to: To = "server",
    least: int = 1,
    protected: bool = False,
    contributors: int | str = 1,
    bounds: Mapping[str, Held | None] | None = None,
    form: DueForm | None = None,
    silent: bool = False,
) -> Callable[[Action], Action]:
    """Mark a method of a `Site` as something a server may ask for, in the way that `Binding` says.

    >>> @action("total")
    ... def train(self, request): ...
    >>> train.binding.verbs
    ('total',)
    """
    for verb in verbs:
        if verb not in get_args(Verb):
            name = getattr(verb, "__name__", verb)
            raise IsthmusError(f'action {name!r}: say by which verb it is called, as in @action("total")')

    def mark(function: Action) -> Action:
        function.__dict__["binding"] = Binding(verbs, to, least, protected, contributors, bounds or {}, form, silent)
        return function

    return mark
