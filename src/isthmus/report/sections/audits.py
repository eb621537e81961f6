"""What audits of a study found, kept in its result folder, and the report's section on it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from isthmus import store
from isthmus.errors import IsthmusError
from isthmus.report import page, wording


class Audited(BaseModel):
    """What one audit of one method found.

    Attributes:
        of: the study that was attacked, as its result folder has it.
        audit: its name and its options.
        seed: whose cut and first model were attacked.
        corner, columns, sections, notes: a table for people, as `isthmus.audit.base.Shown` has it.
        protections: all figures, for each column.
    """

    of: str
    audit: dict[str, Any]
    method: str
    seed: int
    corner: str
    columns: list[str]
    sections: list[list[tuple[str, list[str]]]]
    notes: list[str]
    protections: list[dict[str, Any]]


def write_audit(folder: Path, found: Audited) -> Path:
    """Keeps it as `audits/AUDIT-METHOD.json`, in place of one that is there."""
    path = folder / "audits" / f"{found.audit['name']}-{found.method}.json"
    store.write(path, json.dumps(found.model_dump(mode="json"), indent=2) + "\n")
    return path


def read_audits(folder: Path, study: str) -> list[Audited]:
    """All that a result folder has of this study; of one that was there before there may be more."""
    found = []
    for path in sorted((folder / "audits").glob("*.json")):
        try:
            found.append(Audited.model_validate_json(path.read_bytes()))
        except (OSError, ValidationError) as error:
            text = getattr(error, "strerror", None) or "it is not what an audit writes"
            raise IsthmusError(f"cannot read '{path}': {text}: run the audit again, or remove the file") from error
    return [each for each in found if each.of == study]


def what_attacks_found(audits: Sequence[Audited]) -> str:
    """The section's HTML: a table for each audit."""
    return "".join(f"<h3>{escape(each.method)}: {escape(each.audit['name'])}</h3>{_table(each)}" for each in audits)


def _table(found: Audited) -> str:
    head = f"<tr>{page.head(found.corner)}{''.join(page.head(column, 'n') for column in found.columns)}</tr>"
    bodies = []
    for section in found.sections:
        rows = ""
        for title, cells in section:
            figures = "".join(f"<td class=n>{escape(cell)}</td>" for cell in cells)
            rows += f"<tr><th scope=row>{escape(title)}</th>{figures}</tr>"
        bodies.append(f"<tbody>{rows}</tbody>")
    plain = {name: value for name, value in found.audit.items() if not isinstance(value, dict)}
    origin = f"the cut and the first model are those of seed {found.seed}"
    note = "; ".join([*found.notes, origin, f"the audit: {wording.described(plain)}"]) + "."
    return page.table(head, "".join(bodies), note, grouped=True)
