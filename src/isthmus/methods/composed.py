"""Methods that leave training to another one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import Field
from torch import nn

from isthmus.data.party import Party
from isthmus.errors import IsthmusError
from isthmus.federation.site import Site
from isthmus.federation.verbs import Federation
from isthmus.methods.base import Averaging, Method, Model, State
from isthmus.tasks.base import Task


class Composed(Averaging):
    """A method that says what is trained on, or on which loss, and leaves the training to another one, `trainer`.

    Its `AtParty` comes before the trainer's: it is handed this method, keeps of it what it needs, and hands on the
    trainer as the site's method.
    """

    trainer: dict[str, Any] = Field({"name": "fedavg"})
    """The method that trains, and its options."""

    def check(self, module: nn.Module) -> None:
        self.training().check(module)

    def training(self) -> Method:
        """The trainer, with the options that it shares with this method where these are set, or defaults of its own."""
        table = dict(self.trainer)
        kind = Method.named(str(table.pop("name", "fedavg")))
        if kind.pooled or kind.disjoint or issubclass(kind, Composed):
            raise IsthmusError(f"method '{self.name}': '{kind.name}' is no trainer: name one that trains parties")
        own = {
            name for base in type(self).__mro__ if issubclass(base, Composed) for name in vars(base)["__annotations__"]
        }
        given = {"rounds", "quorum", *own, *self.model_fields_set} & kind.model_fields.keys()
        where = f"method '{self.name}', {kind.name}"
        return kind.read({**{name: getattr(self, name) for name in given}, **table}, where)

    def site(self, parties: Sequence[Party], task: Task, module: nn.Module, **where: Any) -> Site:
        kind = type("AtParty", (self.AtParty, self.training().AtParty), {})
        return kind(self, parties, task, module, **where)

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        yield from self.training().server(federation, model, state)

    def evaluated(self, state: State) -> dict[str, Any]:
        return self.training().evaluated(state)
