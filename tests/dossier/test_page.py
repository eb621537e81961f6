"""The page shows the content, and none of it as code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from result_folders import Page

from isthmus.dossier.page import render

SECTIONS = (
    "Purpose", "What it is about", "Who counted", "What was sent to whom", "Protections and limits", "Privacy account",
    "Audits", "Metrics", "Questions of output checking", "Known limits", "Files",
)  # fmt: skip


def with_script(value: Any, key: str = "") -> Any:
    """The same with a script in every text but names of metrics."""
    if isinstance(value, dict):
        return {key: with_script(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [with_script(each) for each in value]
    return f"<script>{value}" if isinstance(value, str) and key != "metric" else value


def test_it_has_a_section_for_each_part(run: Path) -> None:
    page = Page(run / "dossier.html")
    assert page.open == []
    assert all(f">{name}</h2>" in page.source for name in SECTIONS)
    content = json.loads((run / "dossier.json").read_text())
    for each in content["known_limits"]:
        assert each in page.text
    assert page.row("train")[1].startswith("server sees the sum")


def test_texts_of_others_are_no_code(run: Path, tmp_path: Path) -> None:
    content = json.loads((run / "dossier.json").read_text())
    content["signed_by"] = dict.fromkeys(("subject", "role", "federation"), "by")
    evil = {**with_script(content), "of": "study"}
    evil["refused"] = [{"why": "<script>", "times": 1}]
    (tmp_path / "evil.html").write_text(render(evil, "<script>"))
    page = Page(tmp_path / "evil.html")
    assert "script" not in page.tags
    assert page.open == []
