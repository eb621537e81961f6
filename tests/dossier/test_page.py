"""The page shows the content, and none of it as code."""

from __future__ import annotations

import json
from pathlib import Path

from result_folders import Page, hostile

from isthmus.dossier.page import render

SECTIONS = (
    "Purpose", "What it is about", "Who counted", "What was sent to whom", "Protections and limits", "Privacy account",
    "Audits", "Metrics", "Questions of output checking", "Known limits", "Files",
)  # fmt: skip


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
    evil = {**hostile(content), "of": "study", "sent": hostile(content["sent"]), "metrics": content["metrics"]}
    evil["signed_by"] = dict.fromkeys(("subject", "role", "federation"), "<script>")
    evil["refused"] = [{"why": "<script>", "times": 1}]
    (tmp_path / "evil.html").write_text(render(evil, "<script>"))
    page = Page(tmp_path / "evil.html")
    assert "script" not in page.tags
    assert page.open == []
