"""The site builds without a warning, and links between files of the repository lead somewhere."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import isthmus

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PAGES = sorted(
    path.relative_to(ROOT)
    for path in [*ROOT.glob("*.md"), *ROOT.glob("benchmarks/**/*.md"), *ROOT.glob("deploy/**/*.md")]
)


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "which.html").exists()


def test_tests_that_the_page_of_attacks_names_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "faults-and-attacks.md").read_text(encoding="utf-8")))
    found = {name for path in (ROOT / "tests").rglob("*.py")
             for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)}  # fmt: skip
    assert len(named) > 50
    assert named <= found


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_of_other_pages_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in LINK.findall(text):
        path = target.partition("#")[0]
        if path and "://" not in path and not path.startswith("mailto:"):
            assert (ROOT / page.parent / path).exists(), f"{page}: {target}"


def test_the_reference_has_all_that_the_package_brings() -> None:
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    listed = re.findall(r"^::: (isthmus\.[\w.]+)\.(\w+)$", text, re.MULTILINE)
    assert sorted(name for _, name in listed) == sorted(set(isthmus.__all__) - {"__version__"})
    for home, name in listed:
        assert getattr(isthmus, name) is getattr(importlib.import_module(home), name)
