"""The size of a public data set; this module imports nothing, so that the command line lists data sets quickly."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """The size of a data set, for the docs and for the test that reads the real files.

    Arguments:
        nodes: nodes of all graphs together.
        edges: pairs of joined nodes of all graphs together; an edge in both directions counts once.
        features: number of features.
        classes: number of classes, or of tasks where labels have several.
        graphs: number of graphs; none where nodes are classified.
    """

    nodes: int
    edges: int
    features: int
    classes: int
    graphs: int | None = None

    def __str__(self) -> str:
        items = f"{self.nodes:,} nodes, {self.edges:,} edges" if self.graphs is None else f"{self.graphs:,} graphs"
        return f"{items}, {self.features:,} features"

    def added_to(self, summary: str) -> str:
        """Return a summary that ends with the size.

        >>> Sizes(nodes=2708, edges=5278, features=1433, classes=7).added_to("Papers.")
        'Papers: 2,708 nodes, 5,278 edges, 1,433 features.'
        """
        return f"{summary.rstrip('.')}: {self}."
