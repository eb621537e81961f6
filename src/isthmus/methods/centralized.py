"""All data in one place."""

from __future__ import annotations

from typing import ClassVar

from isthmus.methods.base import Listing, Role
from isthmus.methods.fedavg import FedAvg


class Centralized(FedAvg):
    """A reference on pooled data, as a federation may not pool them: one party with all nodes and all edges."""

    name: ClassVar[str] = "centralized"
    listing: ClassVar[Listing] = Listing(demo=5)
    role: ClassVar[Role] = "pooled"
