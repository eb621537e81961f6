"""The glossary is short, and no word is in it twice."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "glossary.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE)[2:]


def test_it_has_at_most_25_terms_each_once() -> None:
    words = [word for word, _ in ROWS]
    assert 15 <= len(words) <= 25
    assert len(set(words)) == len(words)
