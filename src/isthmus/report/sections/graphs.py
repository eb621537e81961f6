"""The report's section on graphs that methods made: how large they are, and what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from isthmus.report import page
from isthmus.report.loading import GraphSize


def what_was_made(graphs: Mapping[tuple[str, int], GraphSize]) -> str:
    """The section's HTML; nothing where no graph was made."""
    if not graphs:
        return ""
    rows = []
    for (method, seed), graph in graphs.items():
        classes = ", ".join(f"{count:,}" for count in graph.classes)
        counts = "".join(f"<td class=n>{count:,}</td>" for count in (seed, graph.nodes, graph.edges, graph.features))
        rows.append(f"<tr><th scope=row>{escape(method)}</th>{counts}<td>{classes}</td></tr>")
    heads = "".join(page.head(name, "n") for name in ("Seed", "Nodes", "Edges", "Features"))
    head = f"<tr>{page.head('Method')}{heads}{page.head('Nodes of each class')}</tr>"
    note = "Made by the parties together, and known to all of them and to the server. Files: graphs/METHOD-SEED of the "
    note += "result folder, which isthmus.load_graph reads."
    return page.table(head, "".join(rows), note)
