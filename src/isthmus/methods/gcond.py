"""GCond and DosCond: condensation of a graph that is in one place."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from isthmus.methods.condensing import Matching


class DosCond(Matching):
    """DosCond (Jin et al. 2022b): gradients are matched where theta is drawn, (3), one step for each draw.

    All data are in one place. X' does not start at copies of training nodes, as in the published code, but is drawn
    from the classes' mean and spread.
    """

    name: ClassVar[str] = "doscond"
    pooled: ClassVar[bool] = True

    finetune: bool = False
    """Whether the model is trained further on the whole graph before it is evaluated."""
    least: int = Field(1, ge=1)
    """Parties that a class's gradient is at least of; all data are in one place."""


class GCond(DosCond):
    """GCond (Jin et al. 2022a): gradients are matched along the way of theta trained on the synthetic graph, (2).

    theta is drawn anew every `renew` rounds; between them it takes `inner` steps on the synthetic graph.
    """

    name: ClassVar[str] = "gcond"

    renew: int = Field(20, ge=1)
    """Rounds with one draw of theta."""
    inner: int = Field(10, ge=0)
    """Steps that theta is trained on the synthetic graph from one of these rounds to the next."""
