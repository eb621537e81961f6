"""Code that a page shows as from the source is the source."""

from __future__ import annotations

import pytest
from scripts import script

MODULE = script("make_sources")


def test_pages_show_the_source() -> None:
    assert MODULE.main(["--check"]) == 0, "run python docs/make_sources.py"


def test_the_method_of_the_guides_is_shown_from_the_source() -> None:
    for page in ("docs/architecture.md", "CONTRIBUTING.md"):
        text = (MODULE.ROOT / page).read_text(encoding="utf-8")
        assert "<!-- source src/isthmus/methods/fedavg.py" in text, page


def test_old_code_is_replaced_and_other_text_is_not() -> None:
    text = "# A\n<!-- source src/isthmus/version.py -->\nold\n<!-- /source -->\n# B\n"
    found = MODULE.written(text)
    assert found.startswith("# A\n")
    assert found.endswith("<!-- /source -->\n# B\n")
    assert "VERSION = " in found
    assert "old" not in found


def test_a_name_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no class or function 'Nobody'"):
        MODULE.written("<!-- source src/isthmus/version.py Nobody -->\n<!-- /source -->")
