"""All data in one place."""

from __future__ import annotations

from typing import ClassVar

from isthmus.methods.base import Listing, Role
from isthmus.methods.fedavg import FedAvg


class Centralized(FedAvg):
    """A reference that a federation cannot run: one party holds all nodes and all edges."""

    name: ClassVar[str] = "centralized"
    typed: ClassVar[bool] = True
    without: ClassVar[tuple[str, ...]] = ("fraction", "aggregate", "select_over")  # there is one party
    listing: ClassVar[Listing] = Listing(demo=5, leaves="all data, to one place")
    role: ClassVar[Role] = "pooled"
