"""What a study hides of its parties, and how well: the table `[privacy]`."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from isthmus.options import Registered


class Privacy(Registered):
    """A unit of differential privacy: what two data sets differ in that must look alike in all that parties release."""

    kind: ClassVar[str] = "unit of privacy"
    built_in_module: ClassVar[str] = "isthmus.privacy.options"
    in_shares: ClassVar[bool] = False
    """Whether parties add shares of one noise to a sum, so that masks must hide the summands."""
    hides_items: ClassVar[bool] = True
    """Whether what a party counts of its items, such as hits, is a release of the unit."""
    tells_nodes: ClassVar[bool] = False
    """Whether a party that hides its items tells how many nodes it has."""

    epsilon: float = Field(gt=0, le=1e9)
    """The most that a whole run may spend."""
    delta: float = Field(1e-5, gt=0, le=0.01)
    """Probability with which that may be exceeded; well below one in the number of units. Noise with a larger one may
    reveal a unit whole."""


class PartyPrivacy(Privacy):
    """All data of one party: what is released looks alike with its update and with zeros in its place."""

    name: ClassVar[str] = "party"
    in_shares: ClassVar[bool] = True

    clip: float = Field(1.0, gt=0)
    """The largest norm of what a party changes in a round, all weights together; larger changes are scaled down."""
    dropouts: int = Field(1, ge=0)
    """Parties of a sum whose share of the noise may be missing: they drop out, or work with whoever reads the sum. Each
    party knows its own share, so with 0 the parties themselves are not covered as readers."""


class ItemPrivacy(Privacy):
    """One training item of a party, a graph or a node without edges: what is released looks alike with it and with an
    item in its place from which nothing can be learned (DP-SGD, Abadi et al. 2016)."""

    name: ClassVar[str] = "item"

    clip: float = Field(1.0, gt=0)
    """The largest norm of the gradient of one item, all weights together; larger gradients are scaled down."""
    rate: float = Field(1.0, gt=0, le=1)
    """Probability with which a step reads an item. An epoch has 1 / rate steps, rounded up."""


class EdgePrivacy(Privacy):
    """One edge of a party's graph, or of the whole graph where a method sums over all parties: what is released looks
    alike with it and without it, in both directions (GAP, Sajadmanesh et al. 2023). Features and labels of nodes are
    not hidden."""

    name: ClassVar[str] = "edge"
    hides_items: ClassVar[bool] = False

    @property
    def changes(self) -> int:
        """How many rows of a sum over neighbours a unit is in: an edge adds each of its ends to the other's."""
        return 2


class NodePrivacy(ItemPrivacy):
    """One node of a party's graph, with its features, its label and all its edges: what is released looks alike with it
    and with an empty node in its place (GAP, Sajadmanesh et al. 2023, with DP-SGD behind its sums)."""

    name: ClassVar[str] = "node"
    tells_nodes: ClassVar[bool] = True

    neighbours: int = Field(ge=1, le=1 << 20)
    """The most nodes that a node may have an edge to: of its party, or of all where a method sums over all. It must be
    known without these data: dropping edges of larger nodes would change with each node, so data with larger nodes are
    refused."""
    share: float = Field(0.5, gt=0, lt=1)
    """What of the budget the sums over neighbours get, in terms of 1 / noise^2; training gets the rest."""

    @property
    def changes(self) -> int:
        return self.neighbours
