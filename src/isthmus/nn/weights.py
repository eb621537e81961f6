"""The weights of a model by name, and which of them are its head."""

from __future__ import annotations

import copy
from typing import TypeAlias

from torch import Tensor, nn

from isthmus.errors import IsthmusError
from isthmus.nn.draws import torch_seeded

Weights: TypeAlias = dict[str, Tensor]
"""Named tensors of one model; with a leading party dimension where they are a stack."""


def initial_weights(module: nn.Module) -> Weights:
    """What travels: parameters, and buffers of real numbers (running statistics)."""
    return {name: parameter.detach() for name, parameter in module.named_parameters()} | statistics(module)


def count_numbers(module: nn.Module) -> int:
    """How many numbers the weights are."""
    return sum(value.numel() for value in initial_weights(module).values())


def statistics(module: nn.Module) -> Weights:
    """The buffers of real numbers."""
    return {name: buffer.detach() for name, buffer in module.named_buffers() if buffer.is_floating_point()}


def draw_weights(module: nn.Module, seed: int) -> Weights:
    """Other initial weights for the same model: `reset_parameters` of every layer that has it."""
    module = copy.deepcopy(module)
    with torch_seeded(seed):
        for part in module.modules():
            if callable(reset := getattr(part, "reset_parameters", None)):
                reset()
    return initial_weights(module)


def give_name(module: nn.Module, encoder: str) -> nn.Module:
    """Tell a model by which encoder it was built, for messages."""
    vars(module)["encoder_name"] = encoder
    return module


def no_embedding(module: nn.Module) -> IsthmusError:
    """Return the error for a model whose head, perhaps the whole of it, reads the features."""
    name, head = getattr(module, "encoder_name", type(module).__name__), head_of(module)
    layer = f"'{head}' reads the features: use more layers, or" if head else "its only layer reads the features: use"
    return IsthmusError(f"model '{name}' has no embedding before its head: {layer} another encoder, such as gcn")


def head_of(module: nn.Module) -> str:
    """The dotted name of the submodule that turns embeddings into outputs: its `head`, a text or a submodule.

    >>> class Model(nn.Module):
    ...     head = "lin2"
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.lin1, self.lin2 = nn.Linear(4, 8), nn.Linear(8, 3)
    >>> head_of(Model()), head_weights(Model()), body_weights(Model())
    ('lin2', ('lin2.weight', 'lin2.bias'), ('lin1.weight', 'lin1.bias'))
    """
    head = getattr(module, "head", None)
    name = head if isinstance(head, str) else "head"
    if name not in dict(module.named_modules()):
        problem = f"names as its head '{name}', which it does not have" if isinstance(head, str) else "names no head"
        parts = ", ".join(at for at, part in module.named_modules() if at and next(part.parameters(), None) is not None)
        raise IsthmusError(
            f'model {type(module).__name__} {problem}: set `head = "name of the last layer"` in its class ({parts})'
        )
    return name


def head_weights(module: nn.Module) -> tuple[str, ...]:
    """Names of the weights (as in `initial_weights`) that belong to the head."""
    head = head_of(module)
    return tuple(name for name in initial_weights(module) if not head or name.startswith(f"{head}."))


def body_weights(module: nn.Module) -> tuple[str, ...]:
    """Names of the weights that do not belong to the head."""
    head = head_weights(module)
    return tuple(name for name in initial_weights(module) if name not in head)


def batch_norm_weights(module: nn.Module) -> tuple[str, ...]:
    """Names of the weights of batch normalisation, running statistics included.

    >>> batch_norm_weights(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
    ('1.weight', '1.bias', '1.running_mean', '1.running_var')
    """
    layers = [at for at, part in module.named_modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    return tuple(name for name in initial_weights(module) if any(not at or name.startswith(f"{at}.") for at in layers))
