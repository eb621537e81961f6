"""Models of a user's own in a study: named as `module:Class`, recorded in its files, and never run as another model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from isthmus.errors import IsthmusError, did_you_mean, format_option
from isthmus.nn.encoders import Encoder
from isthmus.own_code import can_be_found, is_own, object_at, reference_of

ENCODER = "model.encoder"
GIVEN = "given"
"""Key of `[model]` that names a model which no file can build again: a module, or a function without a name."""
BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
"""Kinds of arguments that can be given by position."""
BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
"""Kinds of arguments that can be given by name."""


@dataclass(frozen=True)
class OwnModel:
    """A class or function of a user's own that makes a model from the numbers of features and outputs.

    Arguments:
        name: `module:Class`.
        options: further arguments by name.
    """

    name: str
    make: Callable[..., nn.Module]
    options: Mapping[str, Any]

    kind: ClassVar[str] = "encoder"

    def __post_init__(self) -> None:
        try:
            signature = inspect.signature(self.make)
            if unknown := unknown_option(signature, self.options):
                known = [name for name, each in signature.parameters.items() if each.kind in BY_NAME][2:]
                raise IsthmusError(f"encoder '{self.name}': unknown option '{unknown}': {did_you_mean(unknown, known)}")
            signature.bind(1, 1, **self.options)
            first = [each for each in signature.parameters.values() if each.kind in BY_POSITION][:2]
            if len(first) == 2 and first[1].default is not first[1].empty:
                raise IsthmusError(
                    f"encoder '{self.name}' gets the number of outputs as '{first[1].name}', which has a default: "
                    "make its second argument one for the outputs, without a default"
                )
        except (TypeError, ValueError) as error:
            raise IsthmusError(
                f"encoder '{self.name}' is called with the numbers of features and outputs and the options of [model]: "
                f"{error}"
            ) from error

    def __call__(self, features: int, outputs: int) -> nn.Module:
        return self.make(features, outputs, **self.options)

    def model_dump(self) -> dict[str, Any]:
        return dict(self.options)


def unknown_option(signature: inspect.Signature, options: Mapping[str, Any]) -> str:
    """The first option that no argument takes; empty if all are."""
    if any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values()):
        return ""
    return next((name for name in options if name not in signature.parameters), "")


def encoder_at(reference: str, options: Mapping[str, Any]) -> Encoder | OwnModel:
    """The encoder, or the model, that `module:Class` names."""
    found = object_at(reference)
    if isinstance(found, type) and issubclass(found, Encoder):
        return found.read(options, f"encoder '{reference}'")
    if not callable(found) or (isinstance(found, type) and not issubclass(found, nn.Module)):
        raise IsthmusError(
            f"encoder '{reference}' is no model: name a class of torch.nn.Module, or a function that returns one"
        )
    return OwnModel(reference, found, options)


def named_encoder(name: str, options: Mapping[str, Any]) -> Encoder | OwnModel:
    """The encoder that a study names, by its name or as `module:Class`."""
    if ":" in name:
        return encoder_at(name, options)
    return Encoder.named(name).read(options, f"encoder '{name.lower()}'")


def with_saved_options(own: Any, table: Mapping[str, Any]) -> Any:
    """A model that a user gives again, with the options of the table `[model]` that it was trained with.

    Arguments:
        own: a module or an encoder, which has its options; or a class or function, also as `module:Class`.
    """
    own = object_at(own) if isinstance(own, str) else own
    if not callable(own) and not isinstance(own, Encoder):
        raise IsthmusError(f"module is {own!r}: give the model, or the class or function that makes it")
    if isinstance(own, nn.Module | Encoder) or ":" not in str(table.get("encoder", "")):
        return own
    options = {key: value for key, value in table.items() if key != "encoder"}
    if isinstance(own, type) and issubclass(own, Encoder):
        return own.read(options, f"encoder '{reference_of(own)}'")
    return OwnModel(reference_of(own), own, options)


def with_model_options(model: Any, values: Mapping[str, Any]) -> Any:
    """A model with other values for some options of `[model]`; with another `encoder`, what is set here stays set."""
    if not values:
        return model
    table = model_table(model)
    if GIVEN in table:
        raise IsthmusError(
            f"grid: '{table[GIVEN]}' is an object made in Python, which has no options: leave model.{min(values)} out"
        )
    if isinstance(model, Encoder):
        table = {"encoder": table["encoder"], **model.model_dump(exclude_defaults=True)}
    table |= values
    return named_encoder(str(table.pop("encoder")), table)


def model_table(model: Encoder | OwnModel | nn.Module | Callable[[int, int], nn.Module]) -> dict[str, Any]:
    """The table `[model]` of a study that trained this model."""
    if isinstance(model, Encoder):
        name = model.name or reference_of(model)
        return {"encoder": name, **model.model_dump()}
    if isinstance(model, OwnModel):
        return {"encoder": model.name, **model.model_dump()}
    return {"encoder" if can_be_found(model) else GIVEN: reference_of(model)}


def refuse_given(table: Mapping[str, Any], where: str) -> None:
    """Refuse a study that trained a model which its file cannot build."""
    if GIVEN in table and "encoder" not in table:
        raise IsthmusError(
            f"{where}: the study trained '{table[GIVEN]}', an object made in Python, which a file cannot make again: "
            f"run it from Python, or put the class in a module and name it: {format_option(ENCODER, 'module:Class')}"
        )


def code_of(model: Any) -> Any:
    """What to identify of a model: the class or function that makes it."""
    return model.make if isinstance(model, OwnModel) else model


def own_models(models: Mapping[str, Any]) -> dict[str, Any]:
    """Of models by name those of a user's own, as `with_saved_options` takes them."""
    return {name: code_of(model) for name, model in models.items() if is_own(code_of(model))}
