"""Sizes of data sets as text."""

from __future__ import annotations

from isthmus.data.datasets.sizes import Sizes


def test_the_size_ends_the_summary() -> None:
    nodes = Sizes(nodes=2708, edges=5278, features=1433, classes=7)
    graphs = Sizes(nodes=19_580, edges=37_282, features=21, classes=6, graphs=600)
    assert nodes.added_to("Papers.") == "Papers: 2,708 nodes, 5,278 edges, 1,433 features."
    assert graphs.added_to("Proteins.") == "Proteins: 600 graphs, 21 features."
