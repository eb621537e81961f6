"""The report's section on reproducibility: versions, seeds, and the study of each folder."""

from __future__ import annotations

from html import escape

from isthmus.report import page
from isthmus.report.loading import Findings


def section(findings: Findings) -> str:
    """The section's HTML."""
    folders = findings.folders
    packages = list(dict.fromkeys(name for folder in folders for name in folder.results.versions))
    rows = [(name, [str(folder.results.versions.get(name, "–")) for folder in folders]) for name in packages]
    rows.append(("results of", [folder.results.created for folder in folders]))
    rows.append(("seeds", [folder.results.seeds for folder in folders]))
    body = "".join(
        f"<tr><th scope=row>{escape(name)}</th>{''.join(f'<td class=name>{escape(each)}</td>' for each in values)}</tr>"
        for name, values in rows
    )
    head = f"<tr>{page.head('')}{page.heads((folder.name for folder in folders), 'name')}</tr>"
    table = page.table(head, body, "The same study with the same versions and seeds gives the same figures.")
    return table + "".join(
        f"<h3>{escape(folder.name)}/study.toml</h3><pre><code>{escape(folder.toml)}</code></pre>" for folder in folders
    )
