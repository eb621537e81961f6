"""The report's section on graphs that methods made: how large they are, and what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

from isthmus.report import page
from isthmus.study.graphs import load_graph


@dataclass(frozen=True)
class Made:
    """The size of a graph that one run made."""

    nodes: int
    edges: int
    features: int
    classes: tuple[int, ...]


def read_made(folder: Path) -> Made:
    """Of `graphs/METHOD-SEED` in a result folder."""
    graph = load_graph(folder)
    counts = graph.y.bincount().tolist()
    return Made(graph.num_nodes or 0, graph.num_edges, graph.num_node_features, tuple(counts))


def what_was_made(made: Mapping[tuple[str, int], Made]) -> str:
    """The section's HTML; nothing where no graph was made."""
    if not made:
        return ""
    rows = []
    for (method, seed), graph in made.items():
        classes = ", ".join(f"{count:,}" for count in graph.classes)
        counts = "".join(f"<td class=n>{count:,}</td>" for count in (seed, graph.nodes, graph.edges, graph.features))
        rows.append(f"<tr><th scope=row>{escape(method)}</th>{counts}<td>{classes}</td></tr>")
    heads = "".join(page.head(name, "n") for name in ("Seed", "Nodes", "Edges", "Features"))
    head = f"<tr>{page.head('Method')}{heads}{page.head('Nodes of each class')}</tr>"
    note = "Made by the parties together, and known to all of them and to the server. Files: graphs/METHOD-SEED of the "
    note += "result folder, which isthmus.load_graph reads."
    return page.table(head, "".join(rows), note)
