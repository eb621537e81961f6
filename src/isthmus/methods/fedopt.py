"""Adaptive optimisers at the server."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from isthmus.federation.verbs import Federation
from isthmus.methods.base import Listing, Model, State
from isthmus.methods.fedavg import FedAvg
from isthmus.methods.training import PLAIN_LR


class FedOpt(FedAvg):
    """Common ground of the methods of Reddi et al. 2021, Algorithm 2: options and the server's step."""

    server_lr: float = Field(0.01, gt=0)
    """Learning rate of the server."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """Decay of the first moment."""
    beta2: float = Field(0.99, ge=0, lt=1)
    """Decay of the second moment."""
    tau: float = Field(1e-3, gt=0)
    """Degree of adaptivity: a larger one makes the steps of all weights more alike, and bounds them."""

    @classmethod
    def rate_for(cls, lr: float) -> float:
        return min(lr, max(lr / 10, PLAIN_LR))

    def server(self, federation: Federation, model: Model, state: State) -> Iterator[State]:
        weights, trained = model.weights(), model.trained()
        state.start(
            weights=weights,
            m={name: torch.zeros_like(weights[name]) for name in trained},
            v={name: torch.full_like(weights[name], self.tau**2) for name in trained},
        )
        for state.round in state.rounds(self.rounds):
            chosen = federation.sample(self.fraction)
            total = federation.total("train", {"weights": state.weights}, of=chosen)
            mean = total.mean("weights", default=state.weights)
            delta = {name: mean[name] - state.weights[name] for name in state.m}
            state.m = {name: self.beta1 * m + (1 - self.beta1) * delta[name] for name, m in state.m.items()}
            state.v = {name: self.second_moment(v, delta[name].square()) for name, v in state.v.items()}
            state.weights = mean | {
                name: state.weights[name] + self.server_lr * m / (state.v[name].sqrt() + self.tau)
                for name, m in state.m.items()
            }
            yield state

    @abstractmethod
    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """v_t from v_{t-1} and Delta_t^2."""


class FedAdagrad(FedOpt):
    """FedAdagrad (Reddi et al. 2021), Algorithm 2: the server steps along the parties' mean change, as Adagrad does.

    Every weight has a step of its own, shorter the more it has moved in all rounds so far: weights that change seldom,
    because few parties have data that move them, keep their long steps. There is no momentum: beta1 is 0.

    Server:  v_t = v_{t-1} + Delta_t^2,  v_0 = tau^2

    All else is as in `fedadam`.
    """

    name: ClassVar[str] = "fedadagrad"
    typed: ClassVar[bool] = True
    only_trains: ClassVar[bool] = True

    server_lr: float = Field(0.1, gt=0)
    """Learning rate of the server."""
    beta1: float = Field(0.0, ge=0, lt=1)
    """Decay of the first moment."""

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


class FedAdam(FedOpt):
    """FedAdam (Reddi et al. 2021), Algorithm 2: the server steps along the parties' mean change, as Adam does.

    The mean change of the parties' weights stands for a gradient. The server follows a running mean of it, which evens
    out what the parties drawn in one round pull aside. Every weight has a step of its own, shorter the more the weight
    moved in the last rounds.

    Parties: w_k by local training from w_t
    Server:  Delta_t = sum_k (n_k / n) (w_k - w_t), over the parties drawn
             m_t     = beta1 m_{t-1} + (1 - beta1) Delta_t,  m_0 = 0
             v_t     = beta2 v_{t-1} + (1 - beta2) Delta_t^2,  v_0 = tau^2
             w_{t+1} = w_t + server_lr m_t / (sqrt(v_t) + tau)

    All of it is entry by entry; as in the paper, m has no bias correction. The server reads the weighted mean of the
    parties' weights only. The paper prints the even mean and plain SGD at the parties; the defaults are parties
    weighted by their training items, and AdamW (`weighting`, `local`). Running statistics of a model are averaged.
    """

    name: ClassVar[str] = "fedadam"
    typed: ClassVar[bool] = True
    only_trains: ClassVar[bool] = True
    listing: ClassVar[Listing] = Listing("labels", 3)

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


class FedYogi(FedOpt):
    """FedYogi (Reddi et al. 2021), Algorithm 2: the server steps along the parties' mean change, as Yogi does.

    FedAdam with another second moment. Adam's decays by a factor, so that steps grow fast when small changes follow
    large ones; Yogi's moves towards the last square by at most a share of that square, so that steps grow slowly.

    Server:  v_t = v_{t-1} - (1 - beta2) Delta_t^2 sign(v_{t-1} - Delta_t^2)
             v_0 = tau^2

    All else is as in `fedadam`.
    """

    name: ClassVar[str] = "fedyogi"
    typed: ClassVar[bool] = True
    only_trains: ClassVar[bool] = True

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * torch.sign(v - square)
