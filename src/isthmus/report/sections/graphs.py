"""The report's section on graphs that methods made: how large they are, and what they hold."""

from __future__ import annotations

from isthmus.report import page
from isthmus.report.loading import Findings


def section(findings: Findings) -> str:
    """The section's HTML; empty if no graph was made."""
    if not findings.graphs:
        return ""
    rows = []
    for (method, seed), graph in findings.graphs.items():
        classes = ", ".join(f"{count:,}" for count in graph.classes)
        counts = (f"{count:,}" for count in (seed, graph.nodes, graph.edges, graph.features))
        rows.append(page.row(page.row_head(method), counts, f"<td>{classes}</td>"))
    names = ("Seed", "Nodes", "Edges", "Features")
    head = f"<tr>{page.head('Method')}{page.heads(names, 'n')}{page.head('Nodes of each class')}</tr>"
    note = (
        "The parties made these graphs together; all of them and the server know them. isthmus.load_graph reads them "
    )
    note += "from graphs/METHOD-SEED of the result folder."
    return page.table(head, "".join(rows), note)
