"""Functions of single numbers that give a number the same bits wherever it stands in a tensor.

Torch's own `sigmoid`, `gelu` and `softplus` compute most of a tensor in vectors and the last numbers one by one, which
rounds differently. A party whose rows stand in another place beside other parties would get other bits. `tanh`, `erf`,
`exp`, `log` and a softmax over the last dimension do not depend on the place.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e^-x).

    >>> sigmoid(torch.tensor([-1000.0, 0.0, 1000.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    return torch.tanh(x / 2) / 2 + 0.5


def gelu(x: Tensor) -> Tensor:
    """x times the share of a standard normal distribution that is below x.

    >>> gelu(torch.tensor([-1.0, 0.0, 1000.0])).tolist()
    [-0.15865525603294373, 0.0, 1000.0]
    """
    return x * (torch.erf(x * math.sqrt(0.5)) / 2 + 0.5)
