"""The report's section on embeddings: items in two dimensions after some rounds, as pictures and in figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape

from isthmus.report import charts, page, wording
from isthmus.report.loading import Findings

Picture = tuple[str, int, int]
"""Method, seed and round."""

_QUALITY = ("test_nmi", "test_ari", "test_accuracy")
"""Metrics of how well an embedding separates the classes."""


def section(findings: Findings) -> str:
    """The section's HTML, with each method's first seed; empty if nothing was drawn."""
    pictures: dict[Picture, list[tuple[float, float, int]]] = {}
    for row in findings.coordinates.to_pylist():
        key = row["method"], row["seed"], row["round"]
        pictures.setdefault(key, []).append((row["x"], row["y"], row["class"]))
    known = _metrics(findings)
    parts = []
    for method in findings.methods:
        first = min((seed for name, seed, _ in pictures if name == method), default=0)
        class_name = _class_names(findings, method)
        mine = {key: charts.clouds(pictures[key], class_name) for key in sorted(pictures) if key[:2] == (method, first)}
        titles = {f"{method}, seed {first}, round {at}": clouds for (_, _, at), clouds in mine.items()}
        figures = [f"<figure>{charts.scatter(title, clouds)}</figure>" for title, clouds in titles.items()]
        if figures:
            parts.append(f"<div class=three>{''.join(figures)}</div>{_table(mine, known)}")
    note = (
        "Embeddings of all items by the server's model, in two dimensions by t-SNE, which keeps neighbours together; "
        "how far apart groups are, and how large, says little. Labels only choose the colours and the shapes of marks."
    )
    return f"{''.join(parts)}<p class=note>{escape(note)}</p>" if parts else ""


def _class_names(findings: Findings, method: str) -> Callable[[int], str]:
    """Names of the classes, by number."""
    cuts = [cut for folder in findings.folders if method in folder.methods for cut in folder.results.cuts]
    return cuts[0].description.label if cuts else "class {}".format


def _metrics(findings: Findings) -> dict[Picture, dict[str, float]]:
    metrics: dict[Picture, dict[str, float]] = {}
    drawn = {(row["method"], row["seed"]) for row in findings.coordinates.select(["method", "seed"]).to_pylist()}
    for row in findings.history.to_pylist() if drawn else ():
        if (row["method"], row["seed"]) in drawn and row["metric"] in _QUALITY:
            metrics.setdefault((row["method"], row["seed"], row["round"]), {})[row["metric"]] = row["value"]
    return metrics


def _table(pictures: Mapping[Picture, Sequence[charts.Cloud]], known: Mapping[Picture, Mapping[str, float]]) -> str:
    """For each picture the items of each class, and how well the model of its round separates them."""
    metrics = [name for name in _QUALITY if any(name in known.get(picture, {}) for picture in pictures)]
    rows = []
    for picture, clouds in pictures.items():
        values = (wording.format_number(known.get(picture, {}).get(name), name) for name in metrics)
        counts = ", ".join(f"{cloud.name}: {len(cloud.points):,}" for cloud in clouds)
        rows.append(page.row(page.row_head(str(picture[2])), values, f"<td>{escape(counts)}</td>"))
    heads = page.heads((wording.metric_title(name) + wording.unit(name) for name in metrics), "n")
    head = f"<tr>{page.head('Round')}{heads}{page.head('Items')}</tr>"
    return page.table(head, "".join(rows), "What the pictures show, in figures: of all items, and of the same seed.")
