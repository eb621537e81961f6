"""Counts of what one party holds: no rows, and few enough numbers to read before they are sent on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, NonNegativeInt

from isthmus.data.folder.reading import Contents
from isthmus.data.level import Level
from isthmus.data.matrices import run_both_ways
from isthmus.errors import IsthmusError
from isthmus.options import Options


class Counts(Options):
    """Counts of one party, as `isthmus party counts` prints them and `isthmus advise` reads them.

    >>> Counts(party="bank-a", level="node", items=5, labelled=3, labels=[2, 1]).labels
    [2, 1]
    """

    party: str = Field(min_length=1)
    """Name of the party."""
    level: Level
    """What is classified: nodes, or graphs."""
    items: int = Field(ge=0)
    """Number of nodes, or graphs."""
    labelled: int = Field(ge=0)
    """Items with a label."""
    crossing: int = Field(0, ge=0)
    """Edges to nodes of other parties."""
    classes: bool = True
    """Whether an item has one class; otherwise it has labels of several tasks."""
    typed: bool = False
    """Whether nodes are rows of several tables."""
    directed: bool = False
    """Whether some edges run from source to target only."""
    own_ids: bool = False
    """Whether ids are the party's own, so that no other party has its nodes."""
    labels: list[NonNegativeInt] = Field(default=[])
    """Labelled items of each class; empty if items have several labels, or none."""

    @classmethod
    def of(cls, contents: Contents) -> Counts:
        """Count what a party's files hold."""
        labels: list[int] = []
        if bool(contents.labelled.any()):
            y = contents.y[contents.labelled]
            labels = [] if y.dim() > 1 or y.is_floating_point() else torch.bincount(y).tolist()
        return cls(
            party=contents.settings.name,
            level=contents.settings.items_level,
            items=contents.items,
            labelled=int(contents.labelled.sum()),
            crossing=0 if contents.border is None else len(contents.border.arriving),
            classes=not contents.settings.tasks,
            typed=contents.database is not None,
            directed=contents.settings.directed
            and not run_both_ways(
                contents.edge_index,
                contents.edge_weight,
                int(contents.edge_index.max()) + 1 if contents.edge_index.numel() else 0,
            ),
            own_ids=contents.settings.ids == "own",
            labels=labels,
        )

    @classmethod
    def read_file(cls, path: Path) -> list[Counts]:
        """Read a file that `isthmus party counts` wrote, of one party or several."""
        try:
            content: Any = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise IsthmusError(f"cannot read {path}: {error.strerror or error}") from error
        except ValueError as error:
            raise IsthmusError(f"{path} is not JSON: write it with isthmus party counts") from error
        if not isinstance(content, list) or not all(isinstance(each, dict) for each in content):
            raise IsthmusError(f"{path} holds no counts: write it with isthmus party counts")
        return [cls.read(each, str(path)) for each in content]


def to_json(counts: Sequence[Counts]) -> str:
    """Return counts as JSON, a line for each party."""
    lines = ",\n".join(f" {json.dumps(each.model_dump())}" for each in counts)
    return f"[\n{lines}\n]"
