"""One HTML file that shows what a study found, what it cost in traffic, and who saw what.

The page needs nothing else: no network, no script, no image files. The same results give the same page, byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isthmus import store
from isthmus.errors import IsthmusError
from isthmus.report import page
from isthmus.report.headline import facts, headline, title
from isthmus.report.loading import Findings, default_folder, expected_results, read_folders
from isthmus.report.sections import (
    audits,
    comparison,
    embeddings,
    graphs,
    ledger,
    parties,
    party_scores,
    privacy,
    reproducibility,
    rounds,
    scores,
    settings,
    traffic,
)


def write_report(folders: Path | str | Sequence[Path | str], out: Path | str | None = None) -> Path:
    """Write one self-contained HTML page about one or more result folders.

    A method that occurs in several folders is named with its folder.

    Arguments:
        folders: a result folder or several, each with study.toml, results.json, history.parquet and ledger.parquet.
        out: the file to write; `report.html` in the folder if left out. A page on several folders needs it.

    Returns:
        The path of the file.
    """
    folders = folders if isinstance(folders, Sequence) and not isinstance(folders, str) else [folders]
    if not folders:
        raise IsthmusError("report: no result folder given: name at least one")
    findings = read_folders(folders)
    target = default_folder(folders) / "report.html" if out is None else Path(out)
    with expected_results(folders):
        text = _page(findings)
    store.write(target, text)
    return target


def announcement(study: Mapping[str, Any]) -> str:
    """A page about a study before its first round, with the facts that are known."""
    most = [int(each["rounds"]) for each in study.get("methods", []) if "rounds" in each]
    note = "<p class=verdict>No round has been evaluated yet.</p>"
    known = facts(study, study.get("seeds") or (), f"at most {max(most)}" if most else "")
    return page.document(title([study]), note + known, [], [])


def _page(findings: Findings) -> str:
    results = scores.section(findings) + comparison.section(findings) + party_scores.section(findings)
    sections = [
        ("results", "Results", results),
        ("settings", "Settings tried", settings.section(findings)),
        ("parties", "Parties", parties.section(findings)),
        ("curves", "Learning curves", rounds.section(findings)),
        ("places", "Embeddings", embeddings.section(findings)),
        ("made", "Graphs made", graphs.section(findings)),
        ("traffic", "Traffic", traffic.section(findings)),
        ("ledger", "Who saw what", ledger.section(findings)),
        ("privacy", "Privacy", privacy.section(findings)),
        ("audits", "Audits", audits.section(findings)),
        ("reproduce", "Reproducibility", reproducibility.section(findings)),
    ]
    sources = sorted({f"Isthmus {f.results.isthmus}, results of {f.results.created}" for f in findings.folders})
    name = title(folder.results.study for folder in findings.folders)
    return page.document(name, headline(findings), [section for section in sections if section[2]], sources)
