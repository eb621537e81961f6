"""What the items of a task are."""

from __future__ import annotations

from typing import Literal

Level = Literal["node", "graph", "pair", "edge"]
