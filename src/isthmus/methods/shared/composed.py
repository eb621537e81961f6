"""Methods that prepare data or a loss and leave training to another method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from torch import nn

from isthmus.errors import IsthmusError
from isthmus.federation.models import Models
from isthmus.federation.site import Prepared, Site
from isthmus.federation.verbs import Federation
from isthmus.methods.base import EVALUATING, Averaging, Learning, Method, Model, State
from isthmus.methods.fedavg import FedAvg


def as_table(trainer: Any) -> Any:
    """A method, given by its name or as an instance, as a table of its name and the options that were set."""
    if isinstance(trainer, Method):
        return {"name": trainer.name, **trainer.model_dump(exclude_unset=True)}
    return {"name": trainer} if isinstance(trainer, str) else trainer


class Composed(Averaging):
    """A method that determines data or loss, and leaves the training to another one, `trainer`.

    Its `AtParty` is a mixin in front of the trainer's: it gets this method, keeps the options that it needs, and passes
    the trainer on as the site's method.
    """

    trainer: Annotated[dict[str, Any], BeforeValidator(as_table)] = Field({"name": FedAvg.name})
    """The method that trains: its name, or a table of its name and options."""

    def field_nouns(self) -> Mapping[str, str]:
        return {**self.training().field_nouns(), **self.nouns}

    def check(self, module: nn.Module) -> None:
        self.training().check(module)

    def training(self) -> Method:
        """The trainer, with the options that it gets from this method."""
        table = dict(self.trainer)
        kind = Method.named(str(table.pop("name", FedAvg.name)))
        plain = issubclass(kind.AtParty, Learning) and not issubclass(kind.AtParty, Prepared)
        if kind.role == "pooled" or not plain or issubclass(kind, Composed):
            raise IsthmusError(f"method '{self.name}': '{kind.name}' is no trainer: name one that trains parties")
        if twice := [name for name in table if name in Method.model_fields]:
            raise IsthmusError(
                f"method '{self.name}': '{twice[0]}' is set for the whole method: take it out of trainer"
            )
        given = {name: getattr(self, name) for name in self._inherited(kind) & kind.model_fields.keys()}
        if isinstance(table.get("local"), dict) and "local" in given:
            table["local"] = {**given["local"].model_dump(), **table["local"]}
        return kind.read({**given, **table}, f"method '{self.name}', {kind.name}")

    def _inherited(self, kind: type[Method]) -> set[str]:
        """Options that the trainer gets from here: those that are set, and this method's own defaults, unless the
        trainer has its own, too (SCAFFOLD needs plain SGD)."""
        usual = {name: field.default for name, field in Averaging.model_fields.items()}
        own = {name for name in usual if type(self).model_fields[name].default != usual[name]}
        theirs = {
            name for name in usual if name in kind.model_fields and kind.model_fields[name].default != usual[name]
        }
        return {"rounds", "quorum", *(own - theirs), *self.model_fields_set}

    def follows_rounds(self) -> bool:
        return self.training().follows_rounds()

    def site_type(self) -> type[Site]:
        return type("AtParty", (self.AtParty, self.training().AtParty), {})

    def calls(self, module: nn.Module) -> dict[str, int]:
        trained = self.training().calls(module)
        return {**super().calls(module), **{name: trained[name] for name in trained.keys() - {*EVALUATING}}}

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        yield from self.training().server(federation, model, state)

    def models(self, state: State) -> Models:
        return self.training().models(state)
