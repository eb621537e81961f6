"""Every method has its page, made from the code, a run and the committed results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripts import DOCS, script

from isthmus.methods.base import Method

MODULE = script("make_methods")


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    pages: dict[str, str] = MODULE.pages()
    return pages


def test_pages_are_up_to_date(made: dict[str, str]) -> None:
    kept = {path.stem: path.read_text(encoding="utf-8") for path in (DOCS / "methods").glob("*.md")}
    assert kept.keys() == made.keys()
    assert [name for name in made if kept[name] != made[name]] == [], "run python docs/make_methods.py"


def test_every_method_has_a_page_in_the_menu_that_says_all(made: dict[str, str]) -> None:
    menu = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    for name, text in made.items():
        assert f"methods/{name}.md" in menu
        assert re.findall(r"^## (.*)", text, re.MULTILINE)[:2] == ["What leaves a party", "Options"]
        for option in Method.named(name).describe()["options"]:
            assert f"| `{option['name']}` |" in text


def test_what_leaves_a_party_is_what_the_ledger_says(made: dict[str, str]) -> None:
    assert "| before the first round | `known` | ask | The server saw each party's ids. |" in made["fedgl"]
    assert "`propagate` | exchange | Only the addressed party saw ids and rows" in made["fedcog"]
    assert "sums of weights" not in made["local"]


@pytest.mark.parametrize("method", ["fedcog", "fedgl", "fgcl", "fclg", "fedgc"])
def test_claims_of_a_methods_paper_are_on_its_page(made: dict[str, str], method: str) -> None:
    said = made[method].partition("## Ours and the paper's")[2]
    assert re.search(rf"^- .*: \*\*(holds|fails).*\*\*, \d+ comparison.* \(`{method}/", said, re.MULTILINE)


def test_formulas_stand_as_they_are() -> None:
    doc = "Averages: w <- mean(w_k).\n\nParty:  y <- y - g\nServer: x <- mean(y)\n\n- a list\n  goes on\n\nProse\nhere."
    assert list(MODULE._said(doc)) == [
        "Averages: w <- mean(w_k).",
        "```text\nParty:  y <- y - g\nServer: x <- mean(y)\n```",
        "- a list\n  goes on",
        "Prose\nhere.",
    ]


def test_check_says_which_page_is_old(
    made: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(MODULE, "HERE", tmp_path)
    monkeypatch.setattr(MODULE, "pages", lambda: made)
    assert MODULE.main([]) == 0
    assert MODULE.main(["--check"]) == 0
    (tmp_path / "methods" / "fedavg.md").write_text("old")
    assert MODULE.main(["--check"]) == 1
    assert "fedavg.md: run python docs/make_methods.py" in capsys.readouterr().err
