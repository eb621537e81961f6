"""Every method has its page, written from the code, a run and the committed results."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from scripts import DOCS, script

from isthmus.methods.base import Method
from isthmus.papers.claims import Claim, Comparison, Verdict
from isthmus.papers.results import means
from isthmus.papers.shelf import entry

MODULE = script("make_methods")


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    """The pages as they are in the repository."""
    return {path.stem: path.read_text(encoding="utf-8") for path in (DOCS / "methods").glob("*.md")}


@pytest.mark.slow
def test_pages_are_up_to_date(written: dict[str, str]) -> None:
    pages: dict[str, str] = MODULE.pages()
    assert written.keys() == pages.keys()
    assert [name for name in pages if written[name] != pages[name]] == [], "run python docs/make_methods.py"


def test_every_method_has_a_page(written: dict[str, str]) -> None:
    known = {name for name, kind in Method.known().items() if kind.__module__.startswith("isthmus.")}
    assert written.keys() == known, "run python docs/make_methods.py"


def test_every_method_has_a_page_in_the_menu_that_says_all(written: dict[str, str]) -> None:
    menu = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    for name, text in written.items():
        assert f"methods/{name}.md" in menu
        assert re.findall(r"^## (.*)", text, re.MULTILINE)[:3] == [
            "What leaves a party",
            "Options",
            "Ours and the paper's",
        ]
        for option in Method.named(name).describe()["options"]:
            assert f"| `{option['name']}` |" in text


def test_what_leaves_a_party_is_what_the_ledger_says(written: dict[str, str]) -> None:
    assert (
        "| before the first round | `known` | ask | Each of 4 parties: the server saw its ids, once, "
        in written["fedgl"]
    )
    told = written["fedcog"].partition("`propagate` | exchange | ")[2].partition(" |")[0]
    assert "only the addressed party saw its ids and propagated features" in told
    assert "rows each time" in told
    assert "sum of model weights" not in written["local"]


@pytest.mark.parametrize("method", ["fedcog", "fedgl", "fgcl", "fclg", "fedgc"])
def test_claims_of_a_methods_paper_are_on_its_page(written: dict[str, str], method: str) -> None:
    said = papers_part(written[method])
    number = r"(by|off by|apart by) [+-]?\d+\.\d+.*"
    verdict = rf"^- .*: \*\*(holds|fails|points|may be luck).*\*\*, {number}, \d+ comparison.* \(`{method}/"
    assert re.search(verdict, said, re.MULTILINE)
    assert len(re.findall(verdict, said, re.MULTILINE)) == len(re.findall(r"^- ", said, re.MULTILINE))


def papers_part(page: str) -> str:
    return page.partition("## Ours and the paper's")[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    "method", ["bds-gcn", "doscond", "fclg", "fedgl", "fedsage-plus", "gcond", "infograph", "sfgc"]
)
def test_figures_stand_beside_the_papers(written: dict[str, str], method: str) -> None:
    line = r"^\| `\w+/[\w-]+`, \w+ \| [^|]+ \| \d+ \| ([\d.]+) ± [\d.]+ \| ([\d.]+) \| ([+-][\d.]+) \|$"
    found = re.findall(line, papers_part(written[method]), re.MULTILINE)
    assert found
    for ours, paper, difference in found:
        assert float(ours) - float(paper) == pytest.approx(float(difference), abs=0.11)


def test_figures_are_those_of_the_results(written: dict[str, str]) -> None:
    each = entry(MODULE.PAPERS, "fedgl/table2")
    mean = means(each.plan, each.results, "global")["cora", "fedgl"]
    paper = each.plan.published_value("global", {"data": "cora", "method": "fedgl"})
    assert f"| `fedgl/table2`, global | cora | 5 | {mean:.1f} ± " in written["fedgl"]
    assert f"| {paper:.1f} | {mean - paper:+.1f} |" in written["fedgl"]


def test_figures_of_first_rounds_are_marked() -> None:
    plan = entry(MODULE.PAPERS, "fgcl/table3").plan
    early, late = {"round": plan.early}, {"round": plan.early + 1}
    assert MODULE._early(plan, [early, early, late]) == f", of the first {plan.early} rounds"
    assert MODULE._early(plan, [early, late]) == ""


def test_claims_about_what_trains_nothing_are_of_no_method(written: dict[str, str]) -> None:
    each = entry(MODULE.PAPERS, "fclg/table2")
    untrained = [claim for claim in each.plan.claims if claim.paper_at]
    assert untrained
    for claim in untrained:
        assert MODULE._subjects(each.plan, claim) == set()


def test_what_has_nothing_to_compare_with_says_so(written: dict[str, str]) -> None:
    for name, text in written.items():
        part = papers_part(text)
        printed = re.search(r" \| [+-][\d.]+( \([^)]*\))? \|$", part, re.MULTILINE)
        assert bool(printed) != ("there is nothing to compare with" in part), name
    assert "there is nothing to compare with" in written["fedyogi"]


def test_a_method_is_told_by_its_default_setting() -> None:
    plan = entry(MODULE.PAPERS, "fgcl/table3").plan
    assert {cell.place["method"] for cell in MODULE._own(Method.named("fgcl"), plan)} == {"fgcl 1"}
    plan = entry(MODULE.PAPERS, "fedgl/figure11").plan
    assert {cell.place["threshold"] for cell in MODULE._own(Method.named("fedgl"), plan)} == {"0.5"}


def test_our_own_studies_are_called_so(written: dict[str, str]) -> None:
    for text in written.values():
        assert "`guide/" not in papers_part(text)
    ours = written["scaffold"].partition("## On generated data")[2]
    assert "Studies of our own" in ours
    assert re.search(r"`guide/labels`, accuracy, \d+ seeds: .*scaffold [\d.]+ ± ", ours)
    assert re.search(r"^- Corrections of drift gain on FedAvg: .*`guide/labels`", ours, re.MULTILINE)


def test_a_margin_is_of_the_narrowest_step() -> None:
    order = Claim(says="", along="method", order=["a", "b", "c"])
    assert MODULE._margin(Verdict(order, [Comparison("", True, (3.0, 2.5, 1.0), 1)]), 1) == "by +0.5"
    lower = Claim(says="", along="method", order=["a", "b"], lower=True)
    assert MODULE._margin(
        Verdict(lower, [Comparison("", True, (1.0, 4.0), 1), Comparison("", False, (2.0, 1.0), 1)]), 0
    ) == ("by -1 to +3")
    assert MODULE._margin(Verdict(Claim(says="", near=2.0), [Comparison("", True, (80.0, 81.5), 1)]), 1) == "off by 1.5"
    alike = Claim(says="", along="method", within=2.0)
    assert MODULE._margin(Verdict(alike, [Comparison("", True, (80.0, 81.5), 1)]), 1) == "apart by 1.5"


OWN = sorted(name for name, kind in Method.known().items() if kind.__module__.startswith("isthmus."))


@pytest.mark.parametrize("method", sorted({*OWN} - {"local", "centralized"}))
def test_equations_are_there_and_fit_on_a_page(method: str) -> None:
    parts = list(MODULE._said(inspect.getdoc(Method.named(method)) or ""))
    formulas = [line for part in parts if part.startswith("```") for line in part.splitlines()[1:-1]]
    assert formulas
    assert not any("`" in line or len(line) > 80 for line in formulas)
    assert any(not part.startswith("```") for part in parts[1:])  # and what it is about


def test_formulas_stand_as_they_are() -> None:
    doc = "Averages: w <- mean(w_k).\n\nParty:  y <- y - g\nServer: x <- mean(y)\n\n- a list\n  goes on"
    doc += "\n\nProse\nw <- here.\n\n    w = x"
    assert list(MODULE._said(doc)) == [
        "Averages: w <- mean(w_k).",
        "```text\nParty:  y <- y - g\nServer: x <- mean(y)\n```",
        "- a list\n  goes on",
        "Prose\nw <- here.",
        "```text\nw = x\n```",
    ]


def test_check_says_which_page_is_old(
    written: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(MODULE, "HERE", tmp_path)
    monkeypatch.setattr(MODULE, "pages", lambda: written)
    assert MODULE.main([]) == 0
    assert MODULE.main(["--check"]) == 0
    (tmp_path / "methods" / "fedavg.md").write_text("old")
    assert MODULE.main(["--check"]) == 1
    assert "fedavg.md: run python docs/make_methods.py" in capsys.readouterr().err
