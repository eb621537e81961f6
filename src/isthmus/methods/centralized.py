"""All data in one place."""

from __future__ import annotations

from typing import ClassVar

from isthmus.methods.base import Listing, Role
from isthmus.methods.fedavg import FedAvg


class Centralized(FedAvg):
    """The pooled reference that a federation may not have: one party holds all nodes, and all edges between them."""

    name: ClassVar[str] = "centralized"
    listing: ClassVar[Listing] = Listing(demo=5)
    role: ClassVar[Role] = "pooled"
