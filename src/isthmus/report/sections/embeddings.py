"""The report's section on embeddings: where items stand after some rounds, as pictures and in figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape

from isthmus.report import charts, page, wording
from isthmus.report.loading import Findings

Picture = tuple[str, int, int]
"""Of a method and a seed, after a round."""

_JUDGED_BY = ("test_nmi", "test_ari", "test_accuracy")
"""What tells how well groups are told apart, where a round has it."""


def where_items_stand(findings: Findings) -> str:
    """The section's HTML, of each method's first seed; nothing where nothing was drawn."""
    pictures: dict[Picture, list[tuple[float, float, int]]] = {}
    for row in findings.coordinates.to_pylist():
        key = row["method"], row["seed"], row["round"]
        pictures.setdefault(key, []).append((row["x"], row["y"], row["class"]))
    known = _metrics(findings)
    parts = []
    for method in findings.methods:
        first = min((seed for name, seed, _ in pictures if name == method), default=0)
        called = _called(findings, method)
        mine = {key: charts.clouds(pictures[key], called) for key in sorted(pictures) if key[:2] == (method, first)}
        titles = {f"{method}, seed {first}, round {at}": clouds for (_, _, at), clouds in mine.items()}
        figures = [f"<figure>{charts.scatter(title, clouds)}</figure>" for title, clouds in titles.items()]
        if figures:
            parts.append(f"<div class=three>{''.join(figures)}</div>{_table(mine, known)}")
    note = (
        "Embeddings of all items by the server's model, in two dimensions by t-SNE, which keeps neighbours together; "
        "how far apart groups are, and how large, says little. Labels only choose the colours and the shapes of marks."
    )
    return f"{''.join(parts)}<p class=note>{escape(note)}</p>" if parts else ""


def _called(findings: Findings, method: str) -> Callable[[int], str]:
    """What the classes of a method's data are called."""
    cuts = [cut for folder in findings.folders if method in folder.methods for cut in folder.results.cuts]
    return cuts[0].description.label if cuts else "class {}".format


def _metrics(findings: Findings) -> dict[Picture, dict[str, float]]:
    found: dict[Picture, dict[str, float]] = {}
    drawn = {(row["method"], row["seed"]) for row in findings.coordinates.select(["method", "seed"]).to_pylist()}
    for row in findings.history.to_pylist() if drawn else ():
        if (row["method"], row["seed"]) in drawn and row["metric"] in _JUDGED_BY:
            found.setdefault((row["method"], row["seed"], row["round"]), {})[row["metric"]] = row["value"]
    return found


def _table(pictures: Mapping[Picture, Sequence[charts.Cloud]], known: Mapping[Picture, Mapping[str, float]]) -> str:
    """How many items of each class a picture has, and how well the model of its round tells them apart."""
    metrics = [name for name in _JUDGED_BY if any(name in known.get(picture, {}) for picture in pictures)]
    rows = []
    for picture, clouds in pictures.items():
        cells = (
            f"<td class=n>{wording.format_number(known.get(picture, {}).get(name), name)}</td>" for name in metrics
        )
        counts = ", ".join(f"{cloud.name}: {len(cloud.points):,}" for cloud in clouds)
        rows.append(f"<tr><th scope=row>{picture[2]}</th>{''.join(cells)}<td>{escape(counts)}</td></tr>")
    heads = "".join(page.head(wording.metric_title(name) + wording.unit(name), "n") for name in metrics)
    head = f"<tr>{page.head('Round')}{heads}{page.head('Items')}</tr>"
    return page.table(head, "".join(rows), "What the pictures show, in figures: of all items, and of the same seed.")
